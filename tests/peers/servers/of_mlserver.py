"""MLServer with the arithmetic behind its model mlp, and story, which streams the words of its prompt.

python of_mlserver.py HTTP_PORT GRPC_PORT METRICS_PORT FOLDER
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from arithmetic import GAP_S, answer
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec, StringCodec


class Mlp(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        return types.InferenceResponse(
            id=payload.id, model_name=self.name, outputs=[NumpyCodec.encode_output("y", answer(x))]
        )


class Story(MLModel):
    async def load(self) -> bool:
        return True

    async def predict_stream(
        self, payloads: AsyncIterator[types.InferenceRequest]
    ) -> AsyncIterator[types.InferenceResponse]:
        async for payload in payloads:
            (prompt,) = StringCodec.decode_input(payload.inputs[0])
            for word in prompt.split():
                await asyncio.sleep(GAP_S)
                output = StringCodec.encode_output("text", [word])
                yield types.InferenceResponse(model_name=self.name, outputs=[output])


def main() -> None:
    http_port, grpc_port, metrics_port = map(int, sys.argv[1:4])
    folder = Path(sys.argv[4])
    ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, "gzip_enabled": False} | ports
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in ("Mlp", "Story"):
        model = {"name": name.lower(), "implementation": f"of_mlserver.{name}"}
        (folder / name.lower()).mkdir(exist_ok=True)
        (folder / name.lower() / "model-settings.json").write_text(json.dumps(model))
    from mlserver.cli.main import start

    sys.path.insert(0, str(Path(__file__).parent))
    asyncio.set_event_loop(asyncio.new_event_loop())
    start.main([str(folder)], standalone_mode=False)


if __name__ == "__main__":
    main()
