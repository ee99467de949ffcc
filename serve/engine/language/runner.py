"""What a replica's device thread runs for a language model: a piece of a prompt read, or a token more for every answer.

Answers are in the first rows of one cache, without gaps, so that a step over some of them is a step over the first
ones. Prompts are read, a piece at a time, in a row of their own, and then copied to where they are continued.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tailrate.serve.engine.language.shapes import Shape, Shapes, enough
from tailrate.serve.runner.runner import first_line

if TYPE_CHECKING:
    import torch

    from tailrate.serve.engine.language.steps import Steps

Call = Callable[..., Any]


class LanguageRunner:
    """`steps`, `call` and `facts` are set by whoever opens it."""

    steps: tuple[Steps, Steps]
    """That write answers, and that read prompts."""
    call: tuple[Call, Call]
    """The same as they are executed."""
    facts: Callable[[], dict[str, Any]] = dict

    def __init__(self, shapes: Shapes, slots: int, device: torch.device, name: str, words: int) -> None:
        self.shapes = shapes
        self.slots = self.most_slots = slots
        self.device = name
        self.words = words
        self._device = device
        self._places: dict[int, torch.Tensor] = {}

    @property
    def ahead(self) -> bool:
        """Whether steps are only begun by who calls them: the device works by itself."""
        return self._device.type != "cpu"

    @property
    def context(self) -> int:
        return self.shapes.lengths[-1]

    @property
    def chunk(self) -> int:
        return self.shapes.chunks[-1]

    @property
    def max_batch(self) -> int:
        return self.slots

    def parameters(self) -> dict[str, Any]:
        return {"slots": self.slots, "context": self.context, "prefill_chunk": self.chunk} | self.facts()

    # ---- steps

    @property
    def buckets(self) -> list[Shape]:
        return [*self.shapes.reading, *self.shapes.writing]

    def execute(self, shape: Shape) -> torch.Tensor:
        """With any tokens, to the end."""
        found = self.read([0], 0, shape) if shape.tokens > 1 else self.write([0], [0], shape)
        found.cpu()
        return found

    def read(self, tokens: Sequence[int], begin: int, shape: Shape | None = None) -> torch.Tensor:
        """A piece of the prompt that is being read: the scores of what follows it."""
        shape = shape or self.shapes.to_read(begin, len(tokens))
        ids = [*tokens, *[0] * (shape.tokens - len(tokens))]
        return self._run(1, shape, [ids], [list(range(begin, begin + shape.tokens))], len(tokens) - 1)

    def write(self, tokens: Sequence[int], places: Sequence[int], shape: Shape | None = None) -> torch.Tensor:
        """For each row its newest token, and its place: the scores of what follows, a row each."""
        shape = shape or self.shapes.to_write(len(tokens), max(places) + 1)
        spare = shape.rows - len(tokens)  # rows that nobody has, whose first place may hold anything
        ids, at = [*tokens, *[0] * spare], [*places, *[0] * spare]
        return self._run(0, shape, [[one] for one in ids], [[one] for one in at], 0)[: len(tokens)]

    def _run(self, which: int, shape: Shape, ids: Any, at: Any, last: int) -> torch.Tensor:
        import torch

        tensors = [torch.tensor(given).to(self._device, non_blocking=True) for given in (ids, at, [last])]
        found: torch.Tensor = self.call[which](*tensors, self._upto(shape.length))[0]
        return found

    def example(self, shape: Shape) -> tuple[torch.Tensor, ...]:
        """Inputs as they come."""
        import torch

        at = torch.arange(shape.tokens).expand(shape.rows, -1).contiguous()
        ids = torch.zeros_like(at)
        return (
            ids.to(self._device),
            at.to(self._device),
            torch.zeros(1, dtype=torch.int64, device=self._device),
            (self._upto(shape.length)),
        )

    def _upto(self, length: int) -> torch.Tensor:
        import torch

        if length not in self._places:
            self._places[length] = torch.arange(length, device=self._device)
        return self._places[length]

    def fewer(self, rows: int) -> int:
        """As many as a smaller step has; 0 where there is none."""
        used = enough(self.shapes.rows, rows)
        return max((some for some in self.shapes.rows if some < used), default=0)

    # ---- rows

    def adopt(self, row: int, length: int) -> None:
        """The prompt that was read is continued there."""
        self._copy(self.steps[1], 0, row, length)

    def move(self, source: int, target: int, length: int) -> None:
        self._copy(self.steps[0], source, target, length)

    def _copy(self, source: Steps, row: int, target: int, length: int) -> None:
        for held, into in zip(source.held(), self.steps[0].held(), strict=True):
            for one, other in zip(held, into, strict=True):
                other[target, :, :length].copy_(one[row, :, :length])

    def lost(self) -> str | None:
        """After a step that failed: why nothing can be run in this process any more, or None."""
        try:
            for held in self.steps[0].held()[0][:1]:
                held[0, 0, 0, 0].item()
        except Exception as problem:
            return f"the device was lost: {first_line(problem)}"
        return None
