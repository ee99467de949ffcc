"""What can be known without a GPU of how modules behave on one: nothing on the CPU, nothing that the host waits for."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tailrate.serve import models
from tailrate.serve.spec import ModelSpec

pytestmark = pytest.mark.computes

aten = torch.ops.aten
READS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.item.default}
MODELS = [
    ("mlp", {}),
    ("custom_cnn", {}),
    ("resnet50", {}),
    ("resnet50", {"input": "uint8"}),
    ("bert", {"sequence": "32", "layers": "2"}),
]
DIFFUSION = ("stable_diffusion", {"size": "tiny", "steps": "2"})
each = pytest.mark.parametrize(("model", "settings"), MODELS, ids=lambda value: value if isinstance(value, str) else "")


def places(tree: object) -> set[str]:
    """The kinds of device on which its tensors are."""
    return {leaf.device.type for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


class Watch(TorchDispatchMode):
    """What a module does that makes the host wait, or that isn't done on the GPU."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device, self.operations = device, 0
        self.reads: list[str] = []
        self.elsewhere: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        if func in READS:
            self.reads.append(str(func))
        found = func(*args, **(kwargs or {}))
        if places((args, kwargs, found)) - {self._device}:
            self.elsewhere.append(str(func))
        return found


def module_of(spec: ModelSpec) -> torch.nn.Module:
    assert spec.build is not None
    return spec.build().eval().requires_grad_(False)


def watched(module: torch.nn.Module, inputs: Sequence[torch.Tensor], device: str) -> Watch:
    with torch.inference_mode(), Watch(device) as watch:
        module(*inputs)
    assert watch.operations > 2
    return watch


@each
def test_the_host_reads_no_number_of_a_batch(model: str, settings: dict[str, str]) -> None:
    """It would wait for the device each time, and for the batch that is in flight before."""
    spec = models.load(model, settings)
    module = module_of(spec)
    for rows in (1, 2):
        inputs = [torch.from_numpy(array) for array in spec.example(rows, 0).values()]
        assert watched(module, inputs, "cpu").reads == []
        inputs = [torch.ones_like(tensor) for tensor in inputs]  # a mask that hides nothing
        assert watched(module, inputs, "cpu").reads == []


def test_the_host_reads_no_number_of_a_generation() -> None:
    spec = models.load(*DIFFUSION)
    inputs = [torch.from_numpy(array) for array in spec.example(2, 0).values()]
    assert watched(module_of(spec), inputs, "cpu").reads == []


@each
def test_nothing_of_a_batch_is_done_on_the_cpu(model: str, settings: dict[str, str]) -> None:
    spec = models.load(model, settings)
    module = module_of(spec)
    with FakeTensorMode(allow_non_fake_inputs=True):  # such as a constant that nobody has moved
        move(module)
        inputs = [on_gpu(torch.from_numpy(array)) for array in spec.example(2, 0).values()]
        assert_on_gpu_alone(module, inputs)


def test_nothing_of_a_step_or_of_the_decoder_is_done_on_the_cpu() -> None:
    """Of diffusion; between them are a scheduler's few numbers, which the host has and sends along."""
    spec = models.load(*DIFFUSION)
    embeds, noise = (torch.from_numpy(array) for array in spec.example(2, 0).values())
    module: Any = module_of(spec)
    with FakeTensorMode(allow_non_fake_inputs=True):
        move(module)
        at = torch.full((2,), 981, device="cuda")
        assert_on_gpu_alone(module.step, [on_gpu(noise), at, on_gpu(embeds)])
        assert_on_gpu_alone(module.vae.decoder, [on_gpu(noise)])


def move(module: torch.nn.Module) -> None:
    for part in module.modules():
        for name, tensor in part._parameters.items():
            if tensor is not None:
                part._parameters[name] = torch.nn.Parameter(on_gpu(tensor), requires_grad=False)
        part._buffers |= {name: tensor if tensor is None else on_gpu(tensor) for name, tensor in part._buffers.items()}


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")


def assert_on_gpu_alone(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Run as it is, and as the one graph that a compiler gets."""
    watch = watched(module, inputs, "cuda")
    assert (watch.elsewhere, watch.reads) == ([], [])
    assert kinds(module, inputs) == {"cuda"}


def kinds(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> set[str]:
    """Of the devices on which anything is in the module's one graph, in which nothing is read."""
    graph = torch.export.export(module, tuple(inputs), strict=False).graph
    assert not READS & {node.target for node in graph.nodes}
    return places([node.meta.get("val") for node in graph.nodes])


class Strays(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(3).to(x.device)


def test_the_graph_shows_what_is_made_on_the_cpu() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert kinds(Strays(), [torch.empty(3, device="cuda")]) == {"cpu", "cuda"}


def test_the_watch_sees_what_it_should() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    def moves(x: torch.Tensor) -> torch.Tensor:
        return x.to("cpu") + x.size(0) + torch.zeros(1)

    watch = watched(reads, [torch.ones(3)], "cpu")  # type: ignore[arg-type]
    assert len(watch.reads) == 1
    with FakeTensorMode(allow_non_fake_inputs=True):
        watch = watched(moves, [torch.empty(3, device="cuda")], "cuda")  # type: ignore[arg-type]
    assert len(watch.elsewhere) >= 2
