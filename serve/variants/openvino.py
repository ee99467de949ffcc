"""OpenVINO on the CPU: converted per bucket. Precision is stated to it, since it may take less by itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrate.serve.spec import BuildContext, Variant
from tailrate.serve.variants._shapes import Inputs, capturing, per_bucket

if TYPE_CHECKING:
    import torch


def build(making: BuildContext) -> Callable[..., Any]:
    import torch

    # else each conversion is told to a server in the internet, by a process forked beside our threads, which may hang
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import openvino

    core = openvino.Core()
    how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}

    def make(example: Inputs, name: str) -> Callable[..., Any]:
        path = making.folder / f"{name}.xml"
        if not path.exists():
            with capturing(example) as inputs, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shapes = [tuple(tensor.shape) for tensor in inputs]
                converted = openvino.convert_model(making.module, example_input=inputs, input=shapes)
                openvino.save_model(converted, path, compress_to_fp16=False)
        request = core.compile_model(path, "CPU", how).create_infer_request()

        def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = request.infer([tensor.numpy() for tensor in inputs])
            return tuple(torch.from_numpy(array) for array in found.values())

        return call

    return per_bucket(making, make)


VARIANT = Variant(
    name="openvino",
    what="OpenVINO",
    build=build,
    devices=("cpu",),
    packages=("openvino",),
    extra="openvino",
    keeps=True,
)
