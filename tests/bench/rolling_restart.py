"""Rolling restarts under load, as Ray's own tools do them: who was answered, and whether the server counted them all.

    python tests/bench/rolling_restart.py [--restarts 10] [--clients 8]

`ray start`, then `serve deploy` of what `tailrate serve null --replicas 2 --config` prints, again and again with
another delay, so that both replicas are replaced. Clients send one request after the other meanwhile. Prints what they
got and what `/v2/models/stats` counts, then one JSON line; ends with 1 where one failed or the counts differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]  # not this folder, of packages' names

from bench._rounds import last_line  # noqa: E402
from ray_tools import Cluster, asked, successes  # noqa: E402
from waiting import until  # noqa: E402

from tailrate.serve import models, wire  # noqa: E402
from tailrate.serve.body.request import encode_infer  # noqa: E402
from tailrate.serve.deploy.haproxy import free_port  # noqa: E402


class Client(threading.Thread):
    """One request after the other until it is told to leave; `outcomes` by status, `replicas` by name."""

    def __init__(self, port: int, over: threading.Event) -> None:
        super().__init__()
        self._port, self._over = port, over
        self.outcomes: Counter[str] = Counter()
        self.replicas: Counter[str] = Counter()

    def run(self) -> None:
        body, headers = encode_infer(models.load("null").example(1, 0))
        while not self._over.is_set():
            try:
                request = asked(self._port, wire.infer_path("null", "eager"), body, headers)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                    self.replicas[answer.headers[wire.REPLICA]] += 1
                    self.outcomes["200"] += 1
            except urllib.error.HTTPError as refused:
                self.outcomes[str(refused.code)] += 1
            except OSError as problem:
                self.outcomes[type(problem).__name__] += 1


def restarted(cluster: Cluster, port: int, restarts: int, clients: int) -> list[Client]:
    words = ["null", "--variants", "eager", "--replicas", "2", "--config", f"--port={port}"]
    config = yaml.safe_load(cluster.run("tailrate", "serve", *words))
    (endpoint,) = (each for each in config["applications"] if each["name"] == "null-eager")

    def deploy(delay_ms: int) -> None:
        endpoint["args"]["delay_ms"] = str(delay_ms)
        cluster.deploy(yaml.safe_dump(config))

    deploy(1)
    cluster.wait(port, wire.READY)
    # the slow way until HAProxy has seen that all are up
    ways = [cluster.get(port, wire.SERVER)["ingress"]]
    until(lambda: ways.append(cluster.get(port, wire.SERVER)["ingress"]) or ways[-1] == ways[-2])
    over = threading.Event()
    found = [Client(port, over) for _ in range(clients)]
    for client in found:
        client.start()

    def replicas() -> set[str]:
        return set().union(*(set(client.replicas) for client in found))

    try:
        until(lambda: len(replicas()) >= 2)
        for number in range(restarts):
            before, began_s = replicas(), time.monotonic()
            deploy(2 + number % 2)
            until(lambda before=before: len(replicas() - before) == 2)
            time.sleep(2)  # the old ones end
            print(f"restart {number + 1} of {restarts}: {time.monotonic() - began_s:.1f} s", flush=True)
    finally:
        over.set()
        for client in found:
            client.join()
    until(lambda: cluster.get(port, wire.READY))
    time.sleep(2)  # replicas report once a second
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--restarts", type=int, default=10)
    found.add_argument("--clients", type=int, default=8)
    return found


def main() -> int:
    how = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="tr-", ignore_cleanup_errors=True) as home:
        cluster, port = Cluster(Path(home)), free_port()
        try:
            cluster.wait(cluster.dashboard, "/api/version")
            clients = restarted(cluster, port, how.restarts, how.clients)
            counted = successes(cluster, port)
        finally:
            cluster.process.terminate()
            cluster.process.communicate(timeout=180)
    outcomes = sum((client.outcomes for client in clients), Counter[str]())
    replicas = len(set().union(*(set(client.replicas) for client in clients)))
    failed = outcomes.total() - outcomes["200"]
    print(f"\n{outcomes.total()} requests, {replicas} replicas: {dict(outcomes)}; the server counts {counted} answered")
    last_line("rolling_restart", restarts=how.restarts, replicas=replicas, outcomes=dict(outcomes), counted=counted)
    return int(bool(failed) or counted != outcomes["200"])


if __name__ == "__main__":
    sys.exit(main())
