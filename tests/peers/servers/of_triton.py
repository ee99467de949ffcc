"""Triton with the arithmetic behind its model mlp, and story, which streams the words of its prompt.

python of_triton.py HTTP_PORT GRPC_PORT METRICS_PORT FOLDER
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from arithmetic import GAP_S, OUT, WIDTH, answer
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def infer(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": answer(x)}


def words(requests: list) -> Iterator[list[dict[str, np.ndarray]]]:
    (request,) = requests
    for word in request["text_input"].reshape(-1)[0].decode().split():
        time.sleep(GAP_S)
        yield [{"text_output": np.array([word.encode()], object)}]


def main() -> None:
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), map(int, sys.argv[1:4]), strict=True))
    config = TritonConfig(http_address="127.0.0.1", grpc_address="127.0.0.1", metrics_address="127.0.0.1", **ports)
    with Triton(config=config, workspace=Path(sys.argv[4]) / "workspace") as triton:
        triton.bind(
            model_name="mlp",
            infer_func=infer,
            inputs=[Tensor(name="x", dtype=np.float32, shape=(WIDTH,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(OUT,))],
            config=ModelConfig(max_batch_size=8, batcher=DynamicBatcher(max_queue_delay_microseconds=100)),
        )
        triton.bind(
            model_name="story",
            infer_func=words,
            inputs=[Tensor(name="text_input", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="text_output", dtype=bytes, shape=(1,))],
            config=ModelConfig(batching=False, decoupled=True),
        )
        triton.serve()


if __name__ == "__main__":
    main()
