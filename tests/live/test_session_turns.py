"""Sessions of several turns against a server that keeps what it was told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_prompts import trained
from tokenizers import Tokenizer
from waiting import PATIENCE_S

from tailrate.analysis import load

pytestmark = pytest.mark.live

REPO = Path(__file__).parents[2]
THINK_S = 0.3
US = 1_000


@contextmanager
def server(refuse: int) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """Answers with what it was asked last, in two events; a conversation of so many messages is refused."""
    told: dict[str, list[dict[str, Any]]] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def whole(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", f"{len(body)}")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.whole(200, b'{"object":"list","data":[{"id":"m","object":"model"}]}')

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            messages = asked["messages"]
            told[self.headers["x-request-id"]] = messages
            if len(messages) == refuse:
                self.whole(503, b'{"error":{"message":"too long"}}')
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for text in ("re: ", messages[-1]["content"].split()[0]):
                event = b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                time.sleep(0.01)
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    door = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    door.daemon_threads = True
    threading.Thread(target=door.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{door.server_port}", told
    finally:
        door.shutdown()
        door.server_close()


def driven(folder: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "tailrate", "run", "chat", "--host", url, "--idle-seconds=0", "--self-check=off",
        "--prompt-tokens=12", "--output-tokens=2", f"--run-dir={folder}", "--run-id=it", *more,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPO, timeout=PATIENCE_S * 3)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_turn_follows_an_answer_and_carries_all_before_it(tmp_path: Path, processes: int) -> None:
    with server(refuse=7) as (url, told):
        done = driven(
            tmp_path, url, "--rates=5", "--step-seconds=5", "--settle-seconds=0", "--turns=uniform:1:5",
            f"--think={THINK_S}", f"--processes={processes}", "--arrivals=constant", f"--tokenizer={trained(tmp_path)}",
        )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    run = load(tmp_path / "it")
    rows = run.requests()
    assert run.manifest.totals["scheduled"] == len(rows)
    assert run.manifest.scenario["prompts"]["turns"] == "uniform:1:5"
    assert not rows.duplicated(["step", "seq"]).any()
    begun = rows[rows["turn"] == 0]
    assert len(begun) == 25
    assert begun["session"].nunique() == 25
    # begun by schedule, whatever the answers did
    assert sorted((begun["intended_ns"] - begun["intended_ns"].min()).round(-3)) == [
        k * 200_000 * US for k in range(25)
    ]
    lengths = set()
    for _, session in rows.sort_values("turn").groupby("session"):
        assert session["turn"].tolist() == list(range(len(session)))
        lengths.add(len(session))
        turns = list(session.itertuples())
        for before, after in pairwise(turns):
            assert before.status == "200"
            assert after.intended_ns - before.done_ns == pytest.approx(THINK_S * 1e9, abs=2 * US)
        for turn in turns:
            messages = told[f"{turn.step}-{turn.seq}"]
            own = [each["content"] for each in messages[::2]]
            assert [each["content"] for each in messages[1::2]] == [f"re: {each.split()[0]}" for each in own[:-1]]
            assert len(own) == turn.turn + 1
            assert turn.status == ("503" if len(messages) == 7 else "200")
        if len(turns) == 4:
            assert turns[-1].status == "503"
    assert lengths == {1, 2, 3, 4}, "refused at the fourth"
    # its server counts no tokens, so they are counted here, and the report says so
    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for row in rows[rows["status"] == "200"].itertuples():
        texts = ("re: ", told[f"{row.step}-{row.seq}"][-1]["content"].split()[0])
        counts = [len(theirs.encode(text, add_special_tokens=False)) for text in ("".join(texts), texts[0])]
        assert [row.text_tokens, row.first_tokens] == counts
    assert rows["tokens_out"].isna().all()
    report = json.loads((tmp_path / "it" / "report.json").read_text())
    assert {risk["kind"] for risk in report["risks"] if "tokens" in risk["kind"]} >= {"tokens_counted_here"}
    assert any("began a session" in reason for step in report["steps"] for reason in step["reasons"])


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("--mode=closed", "--turns=2"), "which mode closed has not"),
        (("--mode=knee", "--turns=2", "--slo=p99<1s"), "which mode knee has not"),
        (("--think=2",), "say how many it has with --turns"),
        (("--turns=0",), "--turns '0' is not understood"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path: Path, asked: tuple[str, ...], sentence: str) -> None:
    with server(refuse=0) as (url, _):
        done = driven(tmp_path, url, "--step-seconds=20", *asked)
    assert done.returncode == 2
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
