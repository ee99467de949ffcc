"""TorchServe with the arithmetic as a handler of its own:  python of_torchserve.py HTTP MANAGEMENT METRICS FOLDER

Its workers import torch, which is that of PYTHONPATH.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CONFIG = """
inference_address=http://127.0.0.1:{http}
management_address=http://127.0.0.1:{management}
metrics_address=http://127.0.0.1:{metrics}
grpc_inference_port=0
grpc_management_port=0
metrics_mode=prometheus
default_workers_per_model=1
disable_system_metrics=true
"""


def handle(data, context):
    """A list of what each request of a batch holds."""
    import numpy as np
    from arithmetic import answer

    return [{"y": answer(np.array(row["body"]["x"], np.float32)).tolist()} for row in data or ()]


def main() -> None:
    import torch  # noqa: F401 -- where it is another Python's, workers would fail for ever behind a ping that is well

    http, management, metrics, folder = sys.argv[1:]
    store = Path(folder) / "store"
    store.mkdir()
    config = Path(folder) / "config.properties"
    config.write_text(CONFIG.format(http=http, management=management, metrics=metrics))
    programs = Path(sys.executable).parent
    words = ["--model-name", "mlp", "--version", "1.0", "--handler", __file__]
    words += ["--extra-files", str(HERE / "arithmetic.py"), "--export-path", str(store)]
    subprocess.run([programs / "torch-model-archiver", *words], check=True)
    # of its own temporary folder, as one that is there already says "already running"
    os.environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": folder}
    words = [
        "--foreground",
        "--ncs",
        "--disable-token-auth",
        "--model-store",
        str(store),
        "--models",
        "mlp=mlp.mar",
        "--ts-config",
        str(config),
    ]
    os.execv(programs / "torchserve", [programs / "torchserve", "--start", *words])


if __name__ == "__main__":
    main()
