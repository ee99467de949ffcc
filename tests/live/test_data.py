"""Runs whose requests carry rows of a file: what reached the endpoint, by its own record, against the rule."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from endpoint import endpoint
from waiting import PATIENCE_S

from tailrate import analysis
from tailrate.analysis.records.folder import read_events
from tailrate.analysis.records.manifest import Manifest
from tailrate.serve.deploy.haproxy import free_port

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]


def write(tmp_path, rows):
    """Rows that say their own number in two bytes; every fourth is long."""
    path = tmp_path / "rows.csv"
    lines = [f"{row // 256},{row % 256},{'long' if row % 4 == 0 else 'short'}" for row in range(rows)]
    path.write_text("\n".join(["x0,x1,kind", *lines]) + "\n")
    return path


def rows_of(path):
    return len(path.read_text().splitlines()) - 1


def drive(tmp_path, url, *words, scenario=ROOT / "loadtest/null.py"):
    command = [sys.executable, "-m", "locust", "-f", str(scenario), "--headless", "--only-summary"]
    command += ["--host", url, "--run-dir", str(tmp_path), "--run-id", "it", "--idle-seconds=0", "--settle-seconds=0"]
    return subprocess.run([*command, *words], check=False, capture_output=True, text=True, timeout=PATIENCE_S)


def received(kept):
    """The endpoint's own record: which row came with each request."""
    found = {}
    for line in kept.read_text().splitlines():
        name, _, raw = line.partition(" ")
        high, low = bytes.fromhex(raw)[-2:]
        found.setdefault(name, []).append(256 * high + low)
    return found


@pytest.mark.parametrize("reuse", ["reused", "unique"])
def test_each_row_reaches_the_endpoint_as_often_as_the_rule_says(tmp_path, reuse):
    kept, path = tmp_path / "kept", write(tmp_path, 30 if reuse == "reused" else 1000)
    how = ["--rates=60,120", "--step-seconds=0.5", "--arrivals=constant", f"--data={path}", "--data-label=kind"]
    if reuse == "unique":
        port = str(free_port())
        how += ["--processes=2", "--master-bind-port", port, "--master-port", port]
        how += ["--data-order=drawn", "--data-reuse=unique"]
    with endpoint(delay_ms=2, keep=kept) as url:
        done = drive(tmp_path, url, *how, "--slo", "p99<500ms;[long] errors<10%")
    assert done.returncode == 0, done.stderr
    run = analysis.load(tmp_path / "it")
    rows = run.requests()
    assert len(rows) == run.manifest.totals["scheduled"] == 2 * (30 + 60)
    came = received(kept)
    trial = 2 * ["None"]  # one request at each endpoint before the run, which has no number
    assert sum(map(len, came.values())) == len(rows) + len(trial)
    for row in rows.itertuples():
        assert came[f"{row.step}-{row.seq}"] == [row.data_row]
        assert row.label == ("long" if row.data_row % 4 == 0 else "short")
    used = Counter(rows["data_row"])
    if reuse == "unique":
        assert set(rows["worker"]) == {0, 1}
        assert (len(used), max(used.values())) == (180, 1)
    else:  # both variants take turns on the same rows, and the second rate goes on where the first came to
        assert set(used.values()) == {6}
        in_order = rows.sort_values(["step", "seq"])["data_row"].tolist()
        assert in_order == [*([k % 30 for k in range(30)] * 2), *([k % 30 for k in range(30, 90)] * 2)]
    counted = rows.groupby(["step", "label"], observed=True).size()
    found = run.slices.set_index(["index", "label"])["n"]
    assert found.to_dict() == counted.to_dict()
    found = run.manifest.scenario["data"]
    assert (found["reuse"], found["rows"], found["bytes"]) == (reuse, rows_of(path), path.stat().st_size)


def test_a_closed_loop_ends_when_each_row_was_sent_once(tmp_path):
    kept, path = tmp_path / "kept", write(tmp_path, 90)
    with endpoint(delay_ms=5, keep=kept) as url:
        how = ["--mode=closed", "--concurrency=3", "--step-seconds=20", "--variants=eager"]
        done = drive(tmp_path, url, *how, f"--data={path}", "--data-reuse=unique")
    assert done.returncode == 0, done.stderr
    assert "the run ends when the rows are used up" in done.stderr
    run = analysis.load(tmp_path / "it")
    assert sorted(run.requests()["data_row"]) == list(range(90))
    assert Counter(row for name, rows in received(kept).items() if name != "None" for row in rows) == Counter(range(90))
    (step,) = run.manifest.scenario["steps"]
    assert step["seconds"] < 15  # it was no longer than it took


def test_a_run_that_the_rows_do_not_suffice_for_is_refused_before_the_load(tmp_path):
    kept, path = tmp_path / "kept", write(tmp_path, 100)
    with endpoint(keep=kept) as url:
        done = drive(tmp_path, url, "--rates=30", "--step-seconds=2", "--arrivals=constant", f"--data={path}",
                     "--data-reuse=unique")  # fmt: skip
        assert done.returncode == 2
        assert f"tailrate: --data-reuse unique: {path} has 100 rows, and the run needs 120" in done.stderr
    assert not (tmp_path / "it").exists()
    assert len(kept.read_text().splitlines()) <= 2 if kept.exists() else True


PAYLOADS = """
import sys
from locust.argument_parser import parse_options
from locust.util.load_locustfile import load_locustfile
from locust.env import Environment
from tailrate.loadtest.engine.endpoint.protocols.oip import Oip
from tailrate.loadtest.engine.endpoint.target import Endpoint
from tailrate.loadtest.engine.scenario.scenario import DataPlan
from tailrate.serve.body.request import decode_infer
from tailrate.serve import wire
from pathlib import Path
scenario, data, *words = sys.argv[1:]
users, _ = load_locustfile(f"loadtest/{scenario}.py")
(user,) = users.values()
options = parse_options(["--host", "http://127.0.0.1:9", "--data", data, *words])
inputs = user(Environment(user_classes=[user], parsed_options=options)).draw(1, (1,), DataPlan(Path(data)))
found = Oip().payloads(Endpoint("m", "", "oip", "m", "", ""), inputs)
for body, headers in zip(found.bodies, found.headers):
    (tensor,) = decode_infer(body, int(headers[wire.HEADER_LENGTH])).inputs.items()
    print(tensor[0], tensor[1].dtype, tensor[1].tolist())
"""


def test_texts_and_images_become_what_the_scenarios_send(tmp_path):
    """The bodies as our own server reads them."""

    def sent(*words):
        done = subprocess.run([sys.executable, "-c", PAYLOADS, *words], cwd=ROOT, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if " object " in line], done.stderr

    (tmp_path / "texts.txt").write_text("one\nzwölf\n")
    assert sent("bert", str(tmp_path / "texts.txt"))[0] == [
        "text object [[b'one']]",
        "text object [[b'zw\\xc3\\xb6lf']]",
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"\xff\xd8\xff it \xff\xd9")
    jpeg = ["image object [[b'\\xff\\xd8\\xff it \\xff\\xd9']]"]
    assert sent("resnet50", str(tmp_path / "a"), "--input=jpeg")[0] == jpeg
    assert "so serve with --set input=jpeg and say --input jpeg" in sent("resnet50", str(tmp_path / "a"))[1]


@pytest.mark.long
def test_a_search_that_uses_up_the_rows_ends_and_says_so(tmp_path):
    path = write(tmp_path, 150)
    with endpoint(delay_ms=2) as url:
        how = ["--mode=knee", "--slo=p50<100ms", "--rates=100", "--step-seconds=1", "--variants=eager"]
        done = drive(tmp_path, url, *how, f"--data={path}", "--data-reuse=unique")
    assert done.returncode == 0, done.stderr
    manifest = Manifest.read(tmp_path / "it")
    assert manifest.status == "aborted"
    assert manifest.extra["stopped"].startswith("the rows of the file are used up: there are ")
    rows = analysis.load(tmp_path / "it").requests()["data_row"]
    assert rows.is_unique
    assert any(event["event"] == "knee" for event in read_events(tmp_path / "it"))


def test_a_load_process_that_fails_ends_the_run_and_the_report_says_why(tmp_path):
    """Locust begins a failed task again, which would wait for orders that nobody gives."""
    scenario, path, port = tmp_path / "null.py", write(tmp_path, 60), str(free_port())
    scenario.write_text("""
import numpy as np
from locust.runners import WorkerRunner
from tailrate.loadtest.engine.user import EndpointUser

class Null(EndpointUser):
    model, variants = "null", "eager"

    def payload(self, rng, rows): ...

    def from_row(self, row):
        if row["x1"] == 40 and isinstance(self.environment.runner, WorkerRunner):
            raise RuntimeError("not on this machine")
        return {"x": np.array([[row["x1"]]], np.uint8)}
""")
    how = ["--rates=10,40", "--step-seconds=1", f"--data={path}", "--arrivals=constant"]
    how += ["--processes=2", "--master-bind-port", port, "--master-port", port]
    with endpoint(delay_ms=2) as url:
        done = drive(tmp_path, url, *how, scenario=scenario)
    why = f"--data {path}: row 40 cannot be made into inputs: RuntimeError: not on this machine"
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    manifest = Manifest.read(tmp_path / "it")
    assert (manifest.status, manifest.extra["stopped"]) == ("aborted", why)
    assert manifest.totals["ok"] == 10  # of the step before
    (event,) = (event for event in read_events(tmp_path / "it") if event["event"] == "aborted")
    assert event["sentence"] == why


@pytest.mark.long
@pytest.mark.parametrize("there", [True, False])
def test_a_worker_with_another_file_is_refused(tmp_path, there):
    for name, rows in (("master", 20), ("worker", 21)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, rows)
    if not there:
        (tmp_path / "worker" / "rows.csv").unlink()
    port = str(free_port())
    command = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest/null.py"), "--data=rows.csv"]
    with endpoint(delay_ms=2) as url:
        worker = subprocess.Popen([*command, "--worker", "--master-port", port], cwd=tmp_path / "worker")
        words = ["--master", "--headless", "--expect-workers=1", "--master-bind-port", port, "--host", url]
        words += ["--run-dir", str(tmp_path), "--run-id", "it"]
        try:
            done = subprocess.run(
                [*command, *words], cwd=tmp_path / "master", capture_output=True, text=True, timeout=60
            )
        finally:
            worker.kill()
            worker.wait()
    assert done.returncode == 2
    if there:
        assert "load processes read different files as --data: " in done.stderr
        assert "21 rows, " in done.stderr
    else:
        assert "tailrate: --data rows.csv: there is no such file or folder" in done.stderr
    assert not (tmp_path / "it").exists()
