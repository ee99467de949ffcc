"""Live servers, driven by Triton's own client and by plain sockets; outputs against a direct call of the module."""

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import tritonclient.grpc
import tritonclient.http as triton
from serving import MARK, Served, assert_private_but, served, started_with, starting
from test_own_models import MODEL, written
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE_S, until

from tailrate.analysis import load
from tailrate.serve import models, wire
from tailrate.serve.body.request import encode_infer
from tailrate.serve.body.result import decode_result
from tailrate.serve.deploy.haproxy import free_port
from tailrate.serve.models import _weights
from tailrate.serve.options import ServeOptions, named
from tailrate.serve.wire import Array

pytestmark = pytest.mark.served

IMAGE = np.random.default_rng(5).standard_normal((2, 3, 224, 224), dtype=np.float32)


RAISING = MODEL.replace(
    "            def forward(self, x):\n",
    "            def forward(self, x):\n"
    + """\
                if bool((x[:, 0] == 3.0).any()):
                    raise RuntimeError("three on purpose")
                if bool((x[:, 0] == 6.0).any()):
                    return x.reshape(7, 7, 7)
""",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def own_model(folder: Path, text: str = MODEL) -> dict[str, str]:
    """Of a server's `sources`: a user's, which doubles."""
    return dict(named(ServeOptions((f"{written(folder, text)}:spec",))).sources)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Which raises too, in two ways."""
    return own_model(tmp_path_factory.mktemp("own"), RAISING)


@pytest.fixture(scope="module")
def images(cache: Path, own: dict[str, str]) -> Iterator[Served]:
    """resnet50, null and a model of the user's own, eager: three models on one server."""
    options: dict[str, Any] = {"models": ["resnet50", "null", *own], "variants": ["eager"], "max_batch": 2}
    options["grpc_port"] = free_port()
    with served(cache, **options, sources=own, max_body_bytes=8 << 20, settings={"delay_ms": "20"}) as server:
        yield server


def client(server: Served) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(server.netloc, network_timeout=PATIENCE_S, connection_timeout=PATIENCE_S)


def get(server: Served, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(server.url + path, timeout=PATIENCE_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, json.loads(problem.read())


def post(server: Served, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.netloc, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        assert len(response.headers.get_all("x-request-id", [])) == 1
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def tensor(name: str, value: Array, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(value.shape), wire.datatype_of(value))
    made.set_data_from_numpy(value, binary_data=binary)
    return made


def direct(name: str, cache: Path, *inputs: Array, settings: dict[str, str] | None = None) -> list[Array]:
    """The module itself, on the numbers that the server holds."""
    module, _ = _weights.load(models.load(name, settings or {}), "random", 0, cache)
    with torch.inference_mode():
        found = module(*(torch.from_numpy(value.copy()) for value in inputs))
    return [value.numpy() for value in (found if isinstance(found, tuple) else (found,))]


# ---- resnet50/eager, by Triton's client


def test_health_index_and_metadata(images: Served) -> None:
    with client(images) as server:
        assert server.is_server_live()
        assert server.is_server_ready()
        assert server.get_server_metadata()["name"] == "tailrate"
        index = server.get_model_repository_index()
        assert [(entry["name"], entry["version"], entry["state"]) for entry in index] == [
            ("resnet50", "eager", "READY"), ("null", "eager", "READY"), ("twice", "eager", "READY"),
        ]  # fmt: skip
        for version in ("eager", ""):
            assert server.is_model_ready("resnet50", version)
            metadata = server.get_model_metadata("resnet50", version)
            assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 224, 224]}]
            assert metadata["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 1000]}]
            assert metadata["parameters"]["max_batch"] == 2
            assert metadata["parameters"]["parity_ok"] is True
            assert server.get_model_config("resnet50", version)["max_batch_size"] == 2


@pytest.mark.parametrize("how", ["binary", "json", "gzip"])
def test_resnet50_gives_what_the_module_gives(images: Served, cache: Path, how: str) -> None:
    with client(images) as server:
        found = server.infer(
            "resnet50",
            [tensor("image", IMAGE, binary=how != "json")],
            model_version="eager",
            outputs=[triton.InferRequestedOutput("logits", binary_data=how != "json")],
            request_id="r7",
            request_compression_algorithm="gzip" if how == "gzip" else None,
        )
    assert found.get_response()["id"] == "r7"
    (expected,) = direct("resnet50", cache, IMAGE)
    np.testing.assert_allclose(found.as_numpy("logits"), expected, rtol=1e-3, atol=1e-4)


def test_statistics_count_what_was_asked(images: Served) -> None:
    with client(images) as server:

        def stats() -> dict[str, Any]:
            found: dict[str, Any] = server.get_inference_statistics("resnet50", "eager")["model_stats"][0]
            return found

        before = stats()
        server.infer("resnet50", [tensor("image", IMAGE)], model_version="eager")
        with pytest.raises(InferenceServerException, match="unknown input 'picture'"):
            server.infer("resnet50", [tensor("picture", IMAGE)], model_version="eager")
        after = stats()
    assert after["inference_count"] - before["inference_count"] == 2
    assert after["execution_count"] - before["execution_count"] == 1
    for outcome in ("success", "fail"):
        assert after["inference_stats"][outcome]["count"] - before["inference_stats"][outcome]["count"] == 1
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]


# ---- over gRPC


def test_tritons_grpc_client_gets_what_its_http_client_gets(images: Served) -> None:
    asked = tritonclient.grpc.InferInput("image", list(IMAGE.shape), "FP32")
    asked.set_data_from_numpy(IMAGE)
    with client(images) as http, tritonclient.grpc.InferenceServerClient(images.grpc) as server:
        assert server.is_server_live()
        assert server.is_server_ready()
        assert server.is_model_ready("resnet50", "eager")
        assert server.get_server_metadata().name == "tailrate"
        said = server.get_model_metadata("resnet50", as_json=True)
        assert said["inputs"][0]["shape"] == ["-1", "3", "224", "224"]
        index = server.get_model_repository_index(as_json=True)["models"]
        assert [(entry["name"], entry["state"]) for entry in index] == [
            (entry["name"], entry["state"]) for entry in http.get_model_repository_index()
        ]
        found = server.infer("resnet50", [asked], model_version="eager", request_id="r8", client_timeout=PATIENCE_S)
        expected = http.infer("resnet50", [tensor("image", IMAGE)], model_version="eager")
        assert found.get_response().id == "r8"
        np.testing.assert_allclose(found.as_numpy("logits"), expected.as_numpy("logits"), rtol=1e-5, atol=1e-6)
        with pytest.raises(InferenceServerException, match="unknown model 'other'") as refusal:
            server.infer("other", [asked])
        assert refusal.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_it_is_driven_either_way_and_counts_what_was_sent(images: Served, way: str, tmp_path: Path) -> None:
    def count() -> int:
        (found,) = get(images, wire.model_path("null", "eager") + "/stats")[1]["model_stats"]
        return int(found["inference_stats"]["success"]["count"])

    before = count()
    url = f"ours=http://{images.grpc if way == 'grpc' else images.netloc}#null"  # which protocol it is, is found out
    command = [sys.executable, "-m", "tailrate", "run", "null", f"--endpoints={url}", "--rates=20,30,40"]
    command += ["--step-seconds=2", "--settle-seconds=0.5", "--idle-seconds=0", "--self-check=off", "--timeout=60"]
    command += [f"--run-dir={tmp_path}", "--run-id=it"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 3)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    rows = run.requests()
    (entry,) = run.manifest.endpoints
    assert entry["protocol"] == ("oip-grpc" if way == "grpc" else "oip")
    said = get(images, wire.model_path("null", "eager"))[1]["parameters"]
    assert entry["parameters_after"].items() <= said.items()
    assert len(entry["parameters_after"]) > 10
    assert set(rows["status"]) == {"200"}
    assert run.manifest.totals["scheduled"] == len(rows) > 100
    assert count() - before == len(rows) + 1  # what it was tried with before the load
    assert (rows["server_ms"] > 0).all()
    assert rows["replica"].nunique() == 1


# ---- by plain HTTP


def test_headers_say_where_the_time_went(images: Served) -> None:
    body, headers = encode_infer({"image": IMAGE[:1]})
    before_ns = time.time_ns()
    status, found, _ = post(images, wire.infer_path("resnet50", "eager"), body, headers | {"x-request-id": "mine"})
    after_ns = time.time_ns()
    assert status == 200
    assert found["x-request-id"] == "mine"
    timing = wire.parse_timing(found[wire.TIMING])
    assert sum(timing[stage] for stage in wire.STAGES) == pytest.approx(timing["total"], rel=0.05)
    assert timing["compute"] > 0
    assert timing["total"] <= (after_ns - before_ns) / 1e6
    received_ns, sent_ns = wire.parse_clock(found[wire.CLOCK_HEADER]) or (0, 0)
    assert before_ns <= received_ns <= sent_ns <= after_ns
    assert found[wire.BATCH] == "1"
    assert found[wire.DEVICE] == "cpu"
    assert found[wire.REPLICA] in get(images, wire.model_path("resnet50"))[1]["parameters"]["replica"]


NULL = encode_infer({"x": np.zeros((1, 4), np.uint8)})


@pytest.mark.parametrize(
    ("status", "path", "body", "headers"),
    [
        (400, wire.infer_path("null", "eager"), b"{", {}),
        (400, wire.infer_path("null"), b"{", {}),
        (404, wire.infer_path("bert", "eager"), *NULL),
        (404, wire.infer_path("null", "fast"), *NULL),
        (404, "/elsewhere", *NULL),
        (405, wire.model_path("null", "eager"), *NULL),
        (413, wire.infer_path("null", "eager"), *encode_infer({"x": np.zeros((513, 4), np.uint8)})),
        (413, wire.infer_path("null", "eager"), b" " * (9 << 20), {}),
        (415, wire.infer_path("null", "eager"), NULL[0], NULL[1] | {"content-encoding": "br"}),
    ],
)
def test_errors_have_their_status_and_one_sentence(
    images: Served, status: int, path: str, body: bytes, headers: dict[str, str]
) -> None:
    found, _, answer = post(images, path, body, headers)
    assert found == status
    assert set(json.loads(answer)) == {"error"}


def test_a_deadline_that_passes(images: Served) -> None:
    path = wire.infer_path("null", "eager")
    body, headers = NULL
    status, _, answer = post(images, path, body, headers | {"x-request-timeout-seconds": "0.001"})
    assert status == 504
    assert "deadline" in json.loads(answer)["error"]
    assert post(images, path, body, headers)[0] == 200


def test_bad_requests_among_good_ones_harm_none(images: Served) -> None:
    path = wire.infer_path("resnet50", "eager")
    good = encode_infer({"image": IMAGE[:1]})
    spoilt = IMAGE[:1].copy()
    spoilt[0, 0, 0, 0] = np.nan
    bad = [encode_infer({"image": spoilt}), encode_infer({"image": IMAGE[:1, :, :9]}), (b"{", {})]
    alone = post(images, path, *good)[2]
    answers: dict[int, tuple[int, bytes]] = {}

    def send(place: int) -> None:
        status, _, body = post(images, path, *(bad[place % 3] if place % 2 else good))
        answers[place] = (status, body)

    threads = [threading.Thread(target=send, args=(place,)) for place in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[place][0] for place in range(12)] == [200, 400] * 6

    def logits(body: bytes) -> Array:
        return np.frombuffer(body[-4000:], np.float32)

    for place in range(0, 12, 2):
        np.testing.assert_allclose(logits(answers[place][1]), logits(alone), rtol=1e-3, atol=1e-4)


def test_a_client_that_leaves_in_the_middle_of_its_body(images: Served) -> None:
    host, port = images.netloc.split(":")
    head = f"POST {wire.infer_path('null', 'eager')} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    for _ in range(3):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as half:
            half.sendall(head.encode() + b"{")
    assert post(images, wire.infer_path("null", "eager"), *NULL)[0] == 200


def test_waiting_requests_are_batched(images: Served) -> None:
    sizes: list[str] = []

    def send() -> None:
        sizes.append(post(images, wire.infer_path("null", "eager"), *NULL)[1][wire.BATCH])

    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(sizes) <= {"1", "2"}
    assert "2" in sizes


def test_telemetry_is_read_on_by_cursor(images: Served) -> None:
    first = get(images, wire.DEVICES)[1]
    assert first["columns"] == list(wire.SAMPLE_FIELDS)
    assert first["period_ms"] == 100
    assert any(row[2] == "cpu" for row in first["rows"])
    time.sleep(0.5)
    second = get(images, f"{wire.DEVICES}?after={first['cursor']}")[1]
    assert second["rows"]
    assert min(row[0] for row in second["rows"]) > max(row[0] for row in first["rows"])
    assert get(images, f"{wire.DEVICES}?after=nonsense")[0] == 400
    before_ns = time.time_ns()
    clock = get(images, wire.CLOCK)[1]
    assert before_ns <= clock["recv_ns"] <= clock["send_ns"] <= time.time_ns()


def test_metrics(images: Served) -> None:
    with urllib.request.urlopen(images.url + wire.METRICS, timeout=PATIENCE_S) as response:
        text = response.read().decode()
    assert 'tailrate_ready{model="resnet50",variant="eager"' in text


def test_what_ray_exports_can_be_read_although_its_own_port_is_on_loopback(images: Served) -> None:
    until_s, text = time.monotonic() + PATIENCE_S, ""
    while "ray_serve_deployment_replica_healthy" not in text:  # Ray makes its figures every ten seconds
        assert time.monotonic() < until_s, text
        with urllib.request.urlopen(images.url + wire.RAY_METRICS, timeout=PATIENCE_S) as response:
            text = response.read().decode()
        time.sleep(0.5)


# ---- a model of the user's own


def assert_it_doubles(server: Served, variants: tuple[str, ...]) -> None:
    body, headers = encode_infer({"x": np.array([[1, 2, 3]], np.float32)})
    for variant in variants:
        status, found, answer = post(server, wire.infer_path("twice", variant), body, headers)
        assert status == 200
        assert decode_result(answer, int(found[wire.HEADER_LENGTH]))["y"].tolist() == [[2, 4, 6]]
    assert get(server, wire.model_path("twice"))[1]["parameters"]["parity_ok"] is True


def test_a_model_of_the_user_s_own_is_served_beside_others(images: Served) -> None:
    assert_it_doubles(images, ("eager",))


def test_one_that_raises_under_load_leaves_tracebacks_and_harms_nobody(images: Served, own: dict[str, str]) -> None:
    """One request in three raises, in two ways, eight at once."""
    path, before = wire.infer_path("twice", "eager"), len(images.lines)
    found: list[tuple[float, int, float]] = []

    def ask(first: int) -> None:
        for number in range(first, first + 75):
            value = float((1, 2, 3, 1, 2, 6)[number % 6])
            status, said, answer = post(images, path, *encode_infer({"x": np.full((1, 3), value, np.float32)}))
            doubled = decode_result(answer, int(said[wire.HEADER_LENGTH]))["y"][0, 0] if status == 200 else 0.0
            found.append((value, status, float(doubled)))

    threads = [threading.Thread(target=ask, args=(75 * k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for value, status, _ in found if value in (1.0, 2.0)} == {200}
    assert all(answer == 2 * value for value, status, answer in found if status == 200)
    assert {status for value, status, _ in found if value in (3.0, 6.0)} == {500}
    failed = sum(value in (3.0, 6.0) for value, *_ in found)
    until(lambda: told_of(images.lines[before:]) == failed)
    said = "".join(images.lines[before:])
    assert "RuntimeError: three on purpose" in said
    assert "is invalid for input of size" in said
    assert f'File "{own["twice"].partition(":")[0]}", line ' in said
    assert 2 <= said.count("Traceback") <= 8  # of each kind one, by each way that leads to it
    assert " ERROR twice/eager " in said
    assert len(said) < 20_000


def told_of(lines: list[str]) -> int:
    said = "".join(lines)
    return said.count("Traceback") + sum(int(number) for number in re.findall(r"\((\d+) times more\)", said))


@pytest.mark.long
def test_a_model_of_the_user_s_own_is_compiled(tmp_path: Path) -> None:
    sources, variants = own_model(tmp_path), ("eager", "compiled")
    with served(tmp_path, models=[*sources], variants=variants, sources=sources, max_batch=2) as server:
        assert_it_doubles(server, variants)


# ---- starts that fail


def test_a_replica_that_cannot_load_makes_the_start_fail_with_the_cause_and_disturbs_no_other_cluster(
    images: Served, cache: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, path)
    with starting(cache, models=["custom_cnn"], variants=["eager"], weights=str(path)) as server:
        assert server.process.wait(PATIENCE_S) == 2
    assert server.lines[-1].startswith("error: custom_cnn/eager could not be started: weights")
    assert "tensors are missing" in server.lines[-1]
    assert post(images, wire.infer_path("null", "eager"), *NULL)[0] == 200


def test_who_hangs_up_while_queued_is_not_computed_for(images: Served) -> None:
    path, stats = wire.infer_path("null", "eager"), wire.model_path("null", "eager") + "/stats"
    before = get(images, stats)[1]["model_stats"][0]["inference_count"]
    host, port = images.netloc.split(":")
    body, headers = NULL
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
    long = encode_infer({"x": np.zeros((32, 4), np.uint8)})  # in sixteen batches of 20 ms
    sent, taken, left = [0] * 12, threading.Event(), threading.Event()

    def keep_busy(number: int) -> None:
        while not left.is_set():
            sent[number] += 1
            assert post(images, path, *long)[0] == 200
            taken.set()

    busy = [threading.Thread(target=keep_busy, args=(number,)) for number in range(len(sent))]
    for thread in busy:
        thread.start()
    assert taken.wait(PATIENCE_S)  # the others' requests are before the device now, for more than three seconds
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as leaves:
            leaves.sendall(request)
            time.sleep(0.05)
    left.set()
    for thread in busy:
        thread.join()
    assert post(images, path, *NULL)[0] == 200
    assert get(images, stats)[1]["model_stats"][0]["inference_count"] == before + sum(sent) * 32 + 1


# ---- the way in


def test_nothing_listens_beyond_loopback(images: Served) -> None:
    ours = {process["pid"]: process["name"] for process in started_with(MARK, images.mark)}
    assert {"haproxy", "raylet", "gcs_server"} <= set(ours.values())
    assert sum("Replica" in name for name in ours.values()) == 4  # of three models and of the gateway
    assert_private_but(set(), ours)


def test_ray_starts_nobody_whom_nobody_asks(images: Served) -> None:
    """Of its own programs in Python: not those that tell drivers what workers print, and a cloud what is wanted."""
    started = started_with(MARK, images.mark)
    programs = {Path(word).name for each in started for word in each["cmdline"] if word.endswith(".py")}
    assert "dashboard.py" in programs
    assert not {"log_monitor.py", "monitor.py"} & programs


def test_what_ray_runs_for_us_knows_no_pandas(images: Served) -> None:
    """It costs 65 MB and a third of a second of each process, of which a server has five beside its models'."""
    names = ("ServeController", "ProxyActor", "HAProxyManager", "ServeReplica:gateway", "ServeReplica:null")
    started = started_with(MARK, images.mark)
    for name in names:
        (pid,) = (each["pid"] for each in started if name in " ".join(each["cmdline"]))
        maps = {part.path for part in psutil.Process(pid).memory_maps()}
        assert any("_raylet" in path for path in maps), name
        assert not any("/pandas/" in path for path in maps), name


def test_a_model_computes_in_huge_pages(images: Served) -> None:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("this system gives nobody any")
    (pid,) = (
        each["pid"] for each in started_with(MARK, images.mark) if "Replica:resnet50" in " ".join(each["cmdline"])
    )
    held = re.search(r"AnonHugePages: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert held is not None
    assert int(held[1]) > 20_000  # of 100 MB of weights


def test_requests_went_the_fast_way(images: Served) -> None:
    before = get(images, wire.SERVER)[1]["ingress"]  # what came before all was up may have gone the slow way
    assert (before["way"], before["fallback"]) == ("fast", None)
    for _ in range(3):
        assert post(images, wire.infer_path("null", "eager"), *NULL)[0] == 200
    assert get(images, wire.SERVER)[1]["ingress"] == before
