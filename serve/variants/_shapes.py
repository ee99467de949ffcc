"""For variants whose code is made for one shape: a callable per bucket, found by the shape of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrate.serve.spec import BuildContext

if TYPE_CHECKING:
    import torch

Inputs = tuple["torch.Tensor", ...]


def per_bucket(making: BuildContext, make: Callable[[Inputs, str], Callable[..., Any]]) -> Callable[..., Any]:
    """`make` gets a bucket's example inputs and a name for its files."""
    made: dict[tuple[torch.Size, ...], Callable[..., Any]] = {}
    for number, example in enumerate(making.examples, start=1):
        name = "x".join(map(str, example[0].shape[:2])) if making.spec.lengths else str(len(example[0]))
        name = making.names[number - 1] if making.names else name
        making.say(f"building bucket {number} of {len(making.examples)} ({name} rows)")
        made[tuple(tensor.shape for tensor in example)] = make(example, name)

    def call(*inputs: torch.Tensor) -> Any:
        return made[tuple(tensor.shape for tensor in inputs)](*inputs)

    return call


@contextmanager
def capturing(example: Inputs) -> Iterator[Inputs]:
    """Outside inference mode, whose tensors no exporter takes; the example as ordinary tensors."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        yield tuple(tensor.clone() for tensor in example)
