"""What tf32 does to a model, played on the CPU: the factors of products lose bits, and are summed up in fp32."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
CONVOLUTIONS = {aten.convolution.default, aten.conv1d.default, aten.conv2d.default}
MATRICES = {aten.mm.default, aten.bmm.default, aten.matmul.default, aten.linear.default}
ADDED = {aten.addmm.default, aten.baddbmm.default}
"""Of which the factors are the second and the third argument."""
ATTENTION = {aten.scaled_dot_product_attention.default}
LOST_BITS = 13
"""Of fp32's 23 behind the point: tf32 has ten, as fp16 has."""


def shortened(tensor: torch.Tensor, nearest: bool) -> torch.Tensor:
    """To ten bits, the nearest or those that are there: kernels round, or leave the rest to be ignored.

    >>> numbers = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 2**-12])
    >>> [shortened(numbers, nearest).sub(1).mul(2**10).tolist() for nearest in (True, False)]
    [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    bits = tensor.contiguous().view(torch.int32) + nearest * (1 << LOST_BITS - 1)
    return (bits & -(1 << LOST_BITS)).view(torch.float32)


class Shortened(TorchDispatchMode):
    """While it lasts, for this thread; `count` is of the products that it touched."""

    def __init__(self, matrices: bool, convolutions: bool, nearest: bool) -> None:
        super().__init__()
        self._nearest, self.count = nearest, 0
        self._places = dict.fromkeys(CONVOLUTIONS, (0, 1)) if convolutions else {}
        if matrices:
            self._places |= dict.fromkeys(MATRICES, (0, 1)) | dict.fromkeys(ADDED, (1, 2))
            self._places |= dict.fromkeys(ATTENTION, (0, 1, 2))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        places: tuple[int, ...] = self._places.get(func, ())
        self.count += bool(places)
        given = [shortened(x, self._nearest) if place in places else x for place, x in enumerate(args)]
        return func(*given, **(kwargs or {}))
