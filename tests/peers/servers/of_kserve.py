"""KServe with the arithmetic behind its model mlp:  python of_kserve.py HTTP_PORT GRPC_PORT"""

import sys

from arithmetic import answer
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Mlp(Model):
    def __init__(self) -> None:
        super().__init__("mlp")
        self.ready = True

    def load(self) -> bool:
        return True

    async def predict(self, payload: InferRequest, headers=None, response_headers=None) -> InferResponse:
        y = answer(payload.inputs[0].as_numpy())
        output = InferOutput(name="y", shape=list(y.shape), datatype="FP32")
        output.set_data_from_numpy(y, binary_data=payload.use_binary_outputs)
        return InferResponse(
            response_id=payload.id or "0",
            model_name=self.name,
            infer_outputs=[output],
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )


if __name__ == "__main__":
    http_port, grpc_port = map(int, sys.argv[1:3])
    ModelServer(http_port=http_port, grpc_port=grpc_port, workers=1, enable_docs_url=False).start([Mlp()])
