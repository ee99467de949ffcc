"""Where a batch is put together: the sizes that there are (buckets), and reusable buffers for its inputs.

Every batch is padded with zeros to the smallest bucket that holds it, so that only shapes which were warmed up
ever run. All buckets share one buffer per input, of which a smaller one is the beginning: what a batch costs in
memory does not depend on how many buckets there are, and a row is copied once, from the request's body to here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrate.serve.spec import Tensors

if TYPE_CHECKING:
    import torch


class Bucket(NamedTuple):
    """The shape that a batch is padded to."""

    rows: int
    length: int | None = None
    """Of the second dimension, such as tokens; None: it does not vary."""

    def __str__(self) -> str:
        return str(self.rows) if self.length is None else f"{self.rows}x{self.length}"


def sizes(max_batch: int) -> tuple[int, ...]:
    """Powers of two up to `max_batch`, and `max_batch` itself."""
    return tuple(sorted({2**n for n in range(max_batch.bit_length())} | {max_batch}))


def buckets(rows: Sequence[int], lengths: Sequence[int] = ()) -> tuple[Bucket, ...]:
    """Every number of rows at every length, smallest first."""
    return tuple(Bucket(count, length) for count in sorted(rows) for length in sorted(lengths) or (None,))


def smallest(buckets: Sequence[Bucket], rows: int, length: int | None) -> Bucket:
    """That holds so many rows, the longest of which is so long."""
    for bucket in buckets:
        if bucket.rows >= rows and (bucket.length is None or length is None or bucket.length >= length):
            return bucket
    raise ValueError(f"no bucket holds {rows} rows" + ("" if length is None else f" of length {length}"))


def cut(tensors: Tensors, length: int | None) -> Tensors:
    """To that length of the second dimension."""
    return tensors if length is None else {name: tensor[:, :length] for name, tensor in tensors.items()}


class Buffers:
    """One buffer per input, and what each bucket sees of it."""

    def __init__(
        self, like: Tensors, buckets: Sequence[Bucket], device: torch.device | None = None, pinned: bool = False
    ) -> None:
        """`like` has the inputs' types and shapes in any number of rows."""
        import torch

        self.tensors: dict[Bucket, tuple[torch.Tensor, ...]] = dict.fromkeys(buckets, ())
        for tensor in like.values():
            kind = torch.from_numpy(tensor[:0]).dtype
            shapes = {bucket: _shape(tensor.shape, bucket) for bucket in buckets}
            size = max(map(math.prod, shapes.values()))
            flat = torch.zeros(size, dtype=kind, device=device, pin_memory=pinned)
            for bucket, shape in shapes.items():
                self.tensors[bucket] += (flat[: math.prod(shape)].view(shape),)
        # numpy's view of the same memory: its assignment converts, and checks shapes, at a fraction of torch's cost
        self._arrays = (
            {} if device is not None else {b: [tensor.numpy() for tensor in found] for b, found in self.tensors.items()}
        )
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in self.tensors[buckets[-1]]}

    def fill(self, parts: Sequence[Tensors], bucket: Bucket) -> None:
        """Copies the requests' rows one after the other into the bucket, and zeroes what they leave of it."""
        for place, target in enumerate(self._arrays[bucket]):
            at = 0
            for part in parts:
                tensor = tuple(part.values())[place]
                end = at + len(tensor)
                if bucket.length is None:
                    target[at:end] = tensor
                else:
                    length = tensor.shape[1]
                    target[at:end, :length] = tensor
                    target[at:end, length:] = 0
                at = end
            target[at:] = 0

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in these buffers, such as the output of a model that hands an input through."""
        return tensor.untyped_storage().data_ptr() in self._storages


def _shape(of_rows: Sequence[int], bucket: Bucket) -> tuple[int, ...]:
    _, *rest = of_rows
    if bucket.length is not None:
        rest[0] = bucket.length
    return (bucket.rows, *rest)


def natural_length(tensors: Mapping[str, object]) -> int:
    """Of a request's second dimension, which all of its inputs share."""
    length: int = next(iter(tensors.values())).shape[1]  # type: ignore[attr-defined]
    return length
