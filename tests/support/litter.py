class Ring:
    """What only a look for garbage finds."""

    def __init__(self) -> None:
        self.own = self
