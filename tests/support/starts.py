"""What a test may start: servers, runs and browsers are only for tests that are marked for it.

So `make check`, which leaves the marked ones out, needs none of them and stays quick.
"""

marks: set[str] | None = None
"""Of the test that runs now, set by `conftest.py`; None outside of tests."""


def need(mark: str) -> None:
    """Called by whatever starts something: fails a test that is not marked for it."""
    assert marks is None or mark in marks, f"this test starts what only tests marked '{mark}' may"
