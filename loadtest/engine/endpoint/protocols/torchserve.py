"""TorchServe's and SageMaker's ways: a model's inputs as they are, at a path of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tailrate.loadtest.engine.endpoint.protocols.json_http import Json
from tailrate.loadtest.engine.endpoint.target import Endpoint, Target
from tailrate.loadtest.engine.scenario.options import Option
from tailrate.loadtest.engine.scenario.scenario import ScenarioError
from tailrate.serve.wire import Array

if TYPE_CHECKING:
    from tailrate.loadtest.engine.endpoint.client import Client

HEALTHY = {"status": "Healthy"}


@dataclass(frozen=True)
class TorchServe(Json):
    name = "torchserve"
    what = "TorchServe: /predictions/MODEL/VERSION, a lone input of bytes as it is, others as JSON"
    options: ClassVar[tuple[Option, ...]] = ()
    path: str = "/predictions/{model}"

    @classmethod
    def spoken(cls, client: Client) -> str:
        try:
            return "TorchServe" if client.get_json("/ping") == HEALTHY else ""
        except ScenarioError:
            return ""

    def find(self, client: Client, target: Target) -> list[Endpoint]:
        path = f"{self.path}/{{version}}" if target.version else self.path
        return Json.find(replace(self, path=path), client, target)

    def write(
        self, endpoint: Endpoint, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        alone = len(inputs) == 1 and all(tensor.dtype.kind == "O" and tensor.size == 1 for tensor in inputs.values())
        return Json.write(replace(self, form="bytes") if alone else self, endpoint, inputs, outputs)


@dataclass(frozen=True)
class SageMaker(Json):
    name = "sagemaker"
    what = "SageMaker's containers: JSON of the inputs to /invocations"
    options: ClassVar[tuple[Option, ...]] = ()
    path: str = "/invocations"
