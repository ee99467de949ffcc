"""CUDA graphs over a played recorder: what no graph can hold raises, and a replay does what it recorded."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from streams import Current
from test_on_gpu import READS, each, module_of, move, on_gpu, places
from test_weights import small_net
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tailrate.serve import models, variants
from tailrate.serve.engine.language.steps import Steps
from tailrate.serve.spec import BuildContext

POISON = -7777.0
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
aten = torch.ops.aten
PINS = {aten._pin_memory, aten.pin_memory}
COPIES = {aten._to_copy, aten.to, aten.copy_}


def first(found: Any) -> torch.Tensor:
    """Of what an operation makes: BatchNorm's others are of training alone."""
    made: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return made


class Recorder(TorchDispatchMode):
    """What happens while a graph is recorded, but for what would have the host wait for that which has not begun."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[tuple[Any, Sequence[Any], Mapping[str, Any], torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in READS or func.overloadpacket in PINS or (kwargs or {}).get("pin_memory"):
            raise RuntimeError(NOT_PERMITTED)
        found = func(*args, **(kwargs or {}))
        # out of memory that isn't pinned, or into it
        if func.overloadpacket in COPIES and len(places((args, found))) > 1:
            raise RuntimeError(NOT_PERMITTED)
        self.work.append((func, args, kwargs or {}, first(found)))
        return found


class Graph:
    """`torch.cuda.CUDAGraph`: bound to the thread that recorded it."""

    def __init__(self) -> None:
        self.work: list[Any] = []
        self.thread = threading.get_ident()

    def replay(self) -> None:
        assert self.work, "replayed before it was recorded"
        if threading.get_ident() != self.thread:
            raise RuntimeError("replayed by a thread that does not own it")
        for *_, found in self.work:
            if found.is_floating_point() and not any(found.data_ptr() == given.data_ptr() for given in self._given()):
                found.fill_(POISON)
        for func, args, kwargs, found in self.work:
            again = first(func(*args, **kwargs))
            if again.data_ptr() != found.data_ptr():
                found.copy_(again)

    def _given(self) -> list[torch.Tensor]:
        """What was there before: inputs and weights, and views of them."""
        made = {found.data_ptr() for *_, found in self.work}
        used = [x for _, args, *_ in self.work for x in args if isinstance(x, torch.Tensor)]
        return [x for x in used if x.data_ptr() not in made]


class Stream:
    def wait_stream(self, other: "Stream") -> None: ...


class Cuda(Current):
    """As much of `torch.cuda` as the variant uses."""

    def __init__(self) -> None:
        self.pools: set[object] = set()
        self.rehearsed = 0
        self.recording = False
        self.main = Stream()
        super().__init__(self.main)

    def graph_pool_handle(self) -> object:
        self.pools.add(pool := object())
        return pool

    Stream = Stream
    CUDAGraph = Graph

    @contextmanager
    def graph(self, graph: Graph, pool: object) -> Iterator[None]:
        assert pool in self.pools
        assert self.rehearsed >= 3, "libraries make what they need at the first calls, which can't be recorded"
        self.rehearsed = 0
        with Recorder() as recorder:
            self.recording = True
            yield
        graph.work, graph.thread = recorder.work, threading.get_ident()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    played = Cuda()
    for name in ("graph_pool_handle", "Stream", "current_stream", "stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(played, name))
    return played


SMALL = [[torch.ones(rows, 3, 8, 8)] for rows in (1, 2)]


def built(
    cuda: Cuda,
    module: torch.nn.Module,
    folder: Path,
    examples: Sequence[Sequence[torch.Tensor]] = SMALL,
    variant: str = "cudagraph",
    mode: str = "",
) -> Any:
    def rehearse(*_: Any) -> None:
        cuda.rehearsed += cuda.current_stream() is not cuda.main

    module.register_forward_pre_hook(rehearse)
    making = BuildContext(small_net(), module, tuple(map(tuple, examples)), "cuda", mode, folder, print)
    return variants.load(variant).build(making)


def net() -> torch.nn.Module:
    build = small_net().build
    assert build is not None
    return build().eval().requires_grad_(False)


def test_each_size_has_a_graph_and_each_replay_is_of_its_own_inputs(cuda: Cuda, tmp_path: Path) -> None:
    module = net()
    call = built(cuda, module, tmp_path)
    with torch.inference_mode():
        for seed, rows in enumerate((1, 2, 2, 1)):
            given = torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(call(given).clone(), module(given))
        first = call(torch.ones(1, 3, 8, 8))
        assert call(torch.zeros(1, 3, 8, 8)).data_ptr() == first.data_ptr()  # who keeps it must copy it
    assert len(cuda.pools) == 1


@pytest.mark.parametrize(("mode", "pools"), [("reduce-overhead", 1), ("default", 0), ("max-autotune", 1)])
def test_what_was_compiled_ahead_is_recorded_where_the_mode_has_graphs(
    cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, pools: int
) -> None:
    """By us, as the compiler's own graphs aren't there once it is loaded from a file."""
    asked = list[Mapping[str, Any]]()

    def from_file(making: BuildContext, options: Mapping[str, Any], example: Any, name: str) -> Any:
        asked.append(options)
        return making.module

    monkeypatch.setattr("tailrate.serve.variants._inductor._from_file", from_file)
    module = net()
    call = built(cuda, module, tmp_path, variant="compiled", mode=mode)
    own = torch._inductor.list_mode_options(mode)
    assert [dict(options) for options in asked] == 2 * [{key: own[key] for key in own if key != "triton.cudagraphs"}]
    assert len(cuda.pools) == pools
    with torch.inference_mode():
        given = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(call(given).clone(), module(given))
        kept = call(torch.ones(1, 3, 8, 8))
        assert (call(torch.zeros(1, 3, 8, 8)).data_ptr() == kept.data_ptr()) is bool(pools)


def test_a_step_of_a_language_model_can_be_recorded(cuda: Cuda, tmp_path: Path) -> None:
    """Answers written and a prompt read, on a GPU that is faked as to what is where."""
    spec = models.load("tiny_llama", {"layers": "2"})
    for rows, tokens in ((2, 1), (1, 16)):
        steps = Steps(module_of(spec), rows, 64)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
            move(steps)
            shapes = (rows, tokens), (rows, tokens), (1,), (32,)
            built(cuda, steps, tmp_path, [[on_gpu(torch.zeros(shape, dtype=torch.int64)) for shape in shapes]])


def test_another_thread_can_not_replay_it(cuda: Cuda, tmp_path: Path) -> None:
    call, problems = built(cuda, net(), tmp_path), list[BaseException]()

    def replay() -> None:
        try:
            call(torch.ones(1, 3, 8, 8))
        except RuntimeError as problem:
            problems.append(problem)

    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
    assert "does not own it" in str(problems[0])


@pytest.mark.computes
@each
def test_each_model_can_be_recorded(cuda: Cuda, tmp_path: Path, model: str, settings: dict[str, str]) -> None:
    """On a GPU that is faked as to what is where."""
    spec = models.load(model, settings)
    module = module_of(spec)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        move(module)
        built(cuda, module, tmp_path, [[on_gpu(torch.from_numpy(array)) for array in spec.example(2, 0).values()]])


def reads(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x


def copies_in(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(3, device="cpu").to(x.device)


def copies_out(x: torch.Tensor) -> torch.Tensor:
    return x.to("cpu")


def copies_into(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, device="cpu").copy_(x, non_blocking=True)


def pins(x: torch.Tensor) -> torch.Tensor:
    torch.empty(x.shape, device="cpu", pin_memory=True)
    return x


@pytest.mark.parametrize("what", [reads, copies_in, copies_out, copies_into, pins])
def test_what_no_graph_can_hold_is_not_recorded(
    cuda: Cuda, tmp_path: Path, what: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    class Module(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            # a fake tensor has no numbers to read, before a graph is recorded either
            return image if what is reads and not cuda.recording else what(image)

    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.inference_mode(),
        pytest.raises(RuntimeError, match=NOT_PERMITTED),
    ):
        built(cuda, Module(), tmp_path, [[torch.empty(3, device="cuda")]])
