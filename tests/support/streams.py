"""A CUDA that is played: what is put into a stream happens later, in any order that streams and events allow.

Copies, calls and marks go into queues, one for each stream; a seeded scheduler takes the next piece of work of any
stream that need not wait. Time goes on only where somebody asks for it (`query`, `synchronize`), as far as that
demands or further. Memory that was handed out and not yet written holds `POISON`, a call writes into one and the same
buffer as the replay of a graph does, and pinned memory is poisoned as soon as nobody holds it, though copies out of it
or into it may be on their way still.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tailrate.serve.wire import Array

POISON = -7777.0
aten = torch.ops.aten


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name
        self.work: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        """(whether it may happen, what happens)"""

    def add(self, happen: Callable[[], None], may: Callable[[], bool] = lambda: True) -> None:
        self.work.append((may, happen))

    def wait_event(self, event: Event) -> None:
        self.add(lambda: None, event.waited_for())


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._recorded = self._happened = 0
        self.at = 0.0

    def record(self, stream: Stream) -> None:
        self._recorded += 1
        stream.add(lambda number=self._recorded: self._happen(number))  # type: ignore[misc]

    def _happen(self, number: int) -> None:
        self._happened, self.at = number, self._cuda.now

    def waited_for(self) -> Callable[[], bool]:
        """As of now: a wait for an event that was never recorded is none, as CUDA has it."""
        number = self._recorded
        return lambda: self._happened >= number

    def query(self) -> bool:
        self._cuda.some()
        return self.waited_for()()

    def synchronize(self) -> None:
        self._cuda.until(self.waited_for())

    def elapsed_time(self, other: Event) -> float:
        assert self.waited_for()()
        assert other.waited_for()()
        return other.at - self.at


class Current:
    """Which stream work goes into, as `torch.cuda` has it: the one that this begins with, but within `stream`."""

    def __init__(self, stream: Any) -> None:
        self._current = stream

    def current_stream(self) -> Any:
        return self._current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before


class Cuda(Current):
    """As much of `torch.cuda` as the pipeline uses."""

    def __init__(self, seed: int) -> None:
        super().__init__(Stream("computing"))
        self._random = Random(seed)
        self._streams = [self._current]
        self._blocks: list[Array] = []
        self.now = 0.0
        self.happened = 0

    def Event(self, enable_timing: bool, blocking: bool) -> Event:  # noqa: N802
        return Event(self)

    def Stream(self) -> Stream:  # noqa: N802
        self._streams.append(Stream(f"stream {len(self._streams)}"))
        return self._streams[-1]

    def synchronize(self) -> None:
        self.until(lambda: not any(stream.work for stream in self._streams))

    def empty_cache(self) -> None: ...

    def some(self) -> None:
        """A little of what may happen does, or nothing."""
        for _ in range(self._random.randrange(4)):
            self._step()

    def until(self, true: Callable[[], bool]) -> None:
        while not true():
            assert self._step(), "the streams wait for one another"
        self.some()

    def _step(self) -> bool:
        ready = [stream for stream in self._streams if stream.work and stream.work[0][0]()]
        if not ready:
            return False
        _, happen = self._random.choice(ready).work.popleft()
        self.now += self._random.random()
        happen()
        self.happened += 1
        return True

    def memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Which holds poison before it is written and after nobody holds it."""
        whole = torch.full(shape, POISON, dtype=dtype).numpy()
        self._blocks.append(whole)
        handed_out = whole.view(_Held)
        weakref.finalize(handed_out, whole.fill, POISON)
        return torch.from_numpy(handed_out)

    @contextmanager
    def device(self) -> Iterator[None]:
        """In which copies that wait for nothing go into the current stream."""
        with _Later(self):
            yield


class _Later(TorchDispatchMode):
    def __init__(self, cuda: Cuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is aten.copy_.default and (kwargs.get("non_blocking") or (len(args) > 2 and args[2])):
            target, source = args[:2]
            into, out_of = _bare(target), _bare(source)
            self._cuda.current_stream().add(lambda: _copy(into, out_of))
            return target
        if func is aten.empty.memory_format:
            return self._cuda.memory(tuple(args[0]), kwargs.get("dtype") or torch.get_default_dtype())
        return func(*args, **kwargs)


class _Held(np.ndarray[Any, Any]):
    """Of which somebody has to know when it is gone."""


def _bare(tensor: torch.Tensor) -> Array:
    """The same memory, which this doesn't hold."""

    class Place:
        __array_interface__ = tensor.numpy().__array_interface__

    return np.asarray(Place())


def _copy(into: Array, out_of: Array) -> None:
    into[...] = out_of


class Graph:
    """A call whose output is in one and the same buffer each time, written when its turn in the stream comes."""

    def __init__(self, cuda: Cuda, work: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._cuda, self._work = cuda, work
        self._outputs: dict[torch.Size, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output = self._outputs.setdefault(x.shape, torch.full_like(x, POISON))
        into, out_of = _bare(output), _bare(x)
        self._cuda.current_stream().add(lambda: _copy(into, self._work(torch.from_numpy(out_of)).numpy()))
        return output
