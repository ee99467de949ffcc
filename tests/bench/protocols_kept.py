"""How many requests a second one load process sends on time in each protocol, against the null server that plays back
an answer of that protocol.

Kept is a rate at which every arrival was sent and answered, and the 99th percentile of lateness was at most 1 ms. Each
round takes the protocols in turn, each in a process of its own, from the lowest rate to the first that is not kept.

Physics: nothing else may run on the machine meanwhile.

Prints a table (the highest rate kept; late P99 and the processor time at the lowest rate: medians over the rounds, the
lowest and the highest), then one JSON line.

    python tests/bench/protocols_kept.py [--rounds 5] [--rates 1000,2500,3500,4500,5500] [--seconds 2.5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import in_turns, last_line, shown, spread  # noqa: E402

WAYS = ("oip", "json", "oip-grpc")
LATE_MS, BODIES, OUTPUTS = 1.0, 32, ("y",)


# ---- in a process of its own


def answer_of(way: str) -> Any:
    """What a server of that protocol answers to a row of 64 numbers."""
    from tailrate.loadtest.engine.endpoint.answer import EndpointAnswer
    from tailrate.loadtest.engine.endpoint.http2.grpc_message import framed
    from tailrate.serve.body import infer_grpc
    from tailrate.serve.body.result import encode_result
    from tailrate.serve.wire import EndpointInfo

    y = {"y": np.zeros((1, 10), np.float32)}
    if way == "oip-grpc":
        head = b":status: 200\r\ncontent-type: application/grpc\r\ngrpc-status: 0\r\n"
        return EndpointAnswer("200", 0, 0, head, framed(infer_grpc.encode_result("mlp", "", "", y)))
    if way == "json":
        body, fields = json.dumps({"status": "ok", "scores": [0.1] * 10}).encode(), {"content-type": "application/json"}
    else:
        body, fields = encode_result(EndpointInfo("mlp", "1"), y, binary={"y": True})
    lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in fields.items())]
    return EndpointAnswer("200", 0, 0, "".join(f"{line}\r\n" for line in lines).encode(), body)


def kept(way: str, rates: list[float], seconds: float) -> None:
    from gevent import monkey

    monkey.patch_all()
    import gc

    from tailrate.loadtest.engine.clock import Base
    from tailrate.loadtest.engine.endpoint import protocols  # noqa: F401  # which makes them known
    from tailrate.loadtest.engine.endpoint.payloads import Inputs
    from tailrate.loadtest.engine.endpoint.protocol import protocol_of
    from tailrate.loadtest.engine.endpoint.target import Endpoint
    from tailrate.loadtest.engine.scenario.arrivals import Pattern
    from tailrate.loadtest.engine.scenario.steps import LoadStep
    from tailrate.loadtest.engine.workers import selfcheck
    from tailrate.loadtest.engine.workers.on_time.cpu_priority import precedence
    from tailrate.loadtest.engine.workers.work_order import WorkOrder

    rng = np.random.default_rng(1)
    rows = tuple({"x": rng.standard_normal((1, 64)).astype(np.float32)} for _ in range(BODIES))
    settings = {"body": '{"instances": "$x"}', "success": "/status=ok,/scores"} if way == "json" else {}
    protocol = protocol_of(way, settings)
    path = "/inference.GRPCInferenceService/ModelInfer" if way == "oip-grpc" else "/v2/models/mlp/infer"
    endpoint = Endpoint("mlp", "http://x", way, "mlp", "", path, protocol.settings())
    answer, inputs = protocol.replayed(answer_of(way)), Inputs(rows, (1,) * BODIES, OUTPUTS)
    found = []
    gc.collect()
    gc.freeze()
    with precedence():
        for rate in rates:
            step = LoadStep(0, "mlp", rate, seconds, 0.0, 0, 1)
            order = WorkOrder(0, 0, Base.here(), 0, 1, Pattern("poisson"), (step,), (endpoint,), answer)
            said = selfcheck.measure(order, inputs, 5.0, 1000)
            found.append({"rate": rate, **{key: said[key] for key in ("kept", "late_p99_ms", "cpu_pct")}})
            if said["kept"] < 1 or said["late_p99_ms"] > LATE_MS:
                break
    print(json.dumps(found))


# ---- outside it


def round_of(way: str, given: argparse.Namespace) -> dict[str, float]:
    words = [sys.executable, __file__, "--way", way, "--rates", given.rates, "--seconds", str(given.seconds)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    rates = json.loads(done.stdout.strip().splitlines()[-1])
    good = [one["rate"] for one in rates if one["kept"] == 1 and one["late_p99_ms"] <= LATE_MS]
    return {"kept_rps": max(good, default=0.0), "late_p99_ms": rates[0]["late_p99_ms"], "cpu_pct": rates[0]["cpu_pct"]}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--rates", default="1000,2500,3500,4500,5500")
    found.add_argument("--seconds", type=float, default=2.5)
    found.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    return found


def main() -> None:
    given = parser().parse_args()
    rates = [float(rate) for rate in given.rates.split(",")]
    if given.way:
        kept(given.way, rates, given.seconds)
        return
    found = in_turns(given.rounds, {way: lambda way=way: round_of(way, given) for way in WAYS})
    print(f"{'':9} {'kept /s':>24} {f'late P99 ms at {rates[0]:g}/s':>28} {'CPU %':>24}")
    rows = {}
    for way, rounds in found.items():
        row = {key: spread(one[key] for one in rounds) for key in rounds[0]}
        rows[way] = row
        print(
            f"{way:9} {shown(row['kept_rps'], '.0f', 24)} {shown(row['late_p99_ms'], '.2f', 28)} "
            f"{shown(row['cpu_pct'], '.1f', 24)}"
        )
    last_line("protocols_kept", late_ms=LATE_MS, protocols=rows)


if __name__ == "__main__":
    main()
