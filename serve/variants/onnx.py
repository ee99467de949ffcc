"""ONNX Runtime: exported once per bucket and kept."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrate.serve.spec import BuildContext, Variant, as_tuple
from tailrate.serve.variants._shapes import Inputs, capturing, per_bucket

if TYPE_CHECKING:
    import torch


def build(making: BuildContext) -> Callable[..., Any]:
    import onnxruntime
    import torch

    providers = ["CPUExecutionProvider"]
    if making.device == "cuda":
        providers.insert(0, "CUDAExecutionProvider")
    if absent := set(providers) - set(onnxruntime.get_available_providers()):
        raise RuntimeError(f"this onnxruntime has no {', '.join(absent)}: pip install onnxruntime-gpu")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3

    def make(example: Inputs, name: str) -> Callable[..., Any]:
        path = making.folder / f"{name}.onnx"
        with capturing(example) as inputs:
            if not path.exists():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    logging.getLogger("onnxscript").setLevel(logging.ERROR)
                    torch.onnx.export(making.module, inputs, path, dynamo=True, verbose=False)
            outputs = making.module(*inputs)
        session = onnxruntime.InferenceSession(path, options, providers=providers)
        return _on_device(session, outputs) if making.device == "cuda" else _on_cpu(session)

    return per_bucket(making, make)


def _on_cpu(session: Any) -> Callable[..., Any]:
    import torch

    names = [item.name for item in session.get_inputs()]

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return tuple(map(torch.from_numpy, session.run(None, given)))

    return call


def _on_device(session: Any, like: Any) -> Callable[..., Any]:
    """Inputs and outputs stay in the device's memory."""
    import torch

    outputs = [torch.empty_like(tensor) for tensor in as_tuple(like)]
    names = [item.name for item in session.get_inputs()], [item.name for item in session.get_outputs()]

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        binding = session.io_binding()
        for bind, known, tensors in zip(
            (binding.bind_input, binding.bind_output), names, (inputs, outputs), strict=True
        ):
            for name, tensor in zip(known, tensors, strict=True):
                kind = str(tensor.dtype).removeprefix("torch.")
                bind(name, "cuda", 0, kind, tuple(tensor.shape), tensor.data_ptr())
        torch.cuda.current_stream().synchronize()  # the session has a stream of its own
        session.run_with_iobinding(binding)
        return tuple(outputs)

    return call


VARIANT = Variant(
    name="onnx",
    what="ONNX Runtime",
    build=build,
    precisions=("fp32", "fp16"),
    packages=("onnxruntime", "onnx", "onnxscript"),
    extra="onnx",
    keeps=True,
)
