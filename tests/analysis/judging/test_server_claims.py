from pathlib import Path
from typing import Any

import pytest
from folders import Load, constant, make_run

from tailrate import analysis
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.judging import server_claims
from tailrate.analysis.pages.report import write
from tailrate.analysis.records.manifest import Manifest
from tailrate.analysis.verdicts.verdict import INCONCLUSIVE, PASS


def a_run(folder: Path, ingress: Any = None, **said: Any) -> Path:
    """One that passes, of m/compiled, of which the server said so much."""
    written = make_run(folder, [Load("m/compiled", 100, constant(10))], slo=["p99<50ms"])
    written.manifest.endpoints[0].update(said)
    if ingress is not None:
        written.manifest.extra["ingress"] = ingress
    written.manifest.write(folder)
    return folder


def judged(folder: Path, **said: Any) -> tuple[str, list[str], str]:
    report = report_of(analysis.load(a_run(folder, **said)))
    return report["verdict"], report["reasons"], report["conclusion"]


PLAIN = {"way": "plain", "fallback": "there is no HAProxy", "slow_requests": None}
FAST = {"way": "fast", "fallback": None, "slow_requests": 2}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"ingress": {"before": PLAIN, "after": PLAIN}},
            "requests fell back to the server's plain path: there is no HAProxy",
        ),
        ({"ingress": {"before": PLAIN}}, "requests fell back to the server's plain path: there is no HAProxy"),
        (
            {"ingress": {"before": FAST, "after": FAST | {"slow_requests": 9}}},
            "7 requests fell back to the server's plain path, as no replica seemed to be there",
        ),
        (
            {
                "parameters": {"sampled_failures": 1, "sampled_responses": 5},
                "parameters_after": {
                    "sampled_failures": 3, "sampled_responses": 25, "sampled_why": "relative error 0.3 (at most 0.001)",
                },
            },
            "2 of 20 responses of m/compiled that were compared afterwards are not those of eager fp32: "
            "relative error 0.3 (at most 0.001)",
        ),
        (
            {"events": {"parity_samples": 40, "parity_failures": 4}},
            "4 of 40 responses of m/compiled that were compared afterwards are not those of eager fp32",
        ),
        (
            {"parameters_after": {"fallbacks": 1, "recompile_reasons": "fallback of f: limit exceeded"}},
            "torch.compile gave up on code of m/compiled, which ran eager from then on: fallback of f: limit exceeded",
        ),
        (
            {"parameters": {"fallbacks": 1}, "parameters_after": {"fallbacks": 1}},
            "torch.compile gave up on code of m/compiled, which ran eager from then on",
        ),
    ],
)  # fmt: skip
def test_what_was_not_served_as_it_claims_cannot_be_trusted(tmp_path: Path, said: Any, sentence: str) -> None:
    verdict, reasons, conclusion = judged(tmp_path / "run", **said)
    assert verdict == INCONCLUSIVE
    assert reasons[0] == sentence
    assert conclusion == f"This run cannot say what the endpoints can take: {sentence}."


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"parameters": {"parity_ok": False, "parity_relative_error": 0.0123, "parity_cosine": 0.98}},
            "m/compiled was served on request although its outputs are not those of eager fp32 "
            "(relative error 0.0123, cosine 0.98)",
        ),
        (
            {
                "events": {"recompiles": 2, "first_hits": 1, "recompiled_requests": 12},
                "parameters_after": {"recompile_reasons": "recompile of f: size mismatch"},
            },
            "torch.compile was at work for m/compiled during the run (2 recompiles, 1 first hits) and 12 requests "
            "waited for it: recompile of f: size mismatch",
        ),
        (
            {"parameters": {"recompiles": 1}, "parameters_after": {"recompiles": 4}},
            "torch.compile was at work for m/compiled during the run (3 recompiles, 0 first hits)",
        ),
        (
            {"events_unread": "http://h answered 500: the server failed"},
            "the statistics of m/compiled could not be read (http://h answered 500: the server failed): recompiles, "
            "batches that did not fit into memory and responses unlike eager's may have gone uncounted",
        ),
        (
            {"events": {"profiled_batches": 20}},
            "20 batches of m/compiled ran under the profiler, which slows them",
        ),
        (
            {"events": {"out_of_memory": 5}},
            "5 batches of m/compiled did not fit into the device's memory and were halved",
        ),
    ],
)
def test_what_a_reader_must_know_stands_in_every_report(tmp_path: Path, said: Any, sentence: str) -> None:
    verdict, reasons, _ = judged(tmp_path / "run", **said)
    assert verdict == PASS
    assert reasons[-1] == sentence
    run = analysis.load(tmp_path / "run")
    write(run, report_of(run))
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert sentence.split(" (")[0].replace("'", "&#x27;") in page or sentence.split(" (")[0] in page
    assert sentence.split(" (")[0] in (run.folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"parameters": {"parity_ok": True, "recompiles": 3, "fallbacks": 0, "sampled_failures": 2}},
        {"parameters": {"recompiles": 3}, "parameters_after": {"recompiles": 3}, "events": {"recompiles": 0}},
        {"ingress": {"before": FAST, "after": FAST}},
        {"ingress": {"before": {"way": "plain", "fallback": None}, "after": None}},
        {"ingress": "fast", "parameters": None, "parameters_after": 7, "events": []},
        {"parameters": {"recompiles": 9}, "parameters_after": {"recompiles": 1}},  # started anew in between
    ],
)
def test_nothing_is_said_where_there_is_nothing(tmp_path: Path, said: Any) -> None:
    manifest = Manifest.read(a_run(tmp_path / "run", **said))
    assert server_claims.flaws(manifest) == server_claims.warnings(manifest) == []
    assert judged(tmp_path / "again", **said)[0] == PASS


def test_the_report_shows_what_changed_and_the_way_in(tmp_path: Path) -> None:
    folder = a_run(
        tmp_path / "run",
        ingress={"before": FAST, "after": FAST},
        parameters={"recompiles": 1, "warmup_s": 2.5, "recompile_reasons": ""},
        parameters_after={"recompiles": 4, "warmup_s": 2.5, "recompile_reasons": "a guard"},
    )
    run = analysis.load(folder)
    write(run, report_of(run))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "1, after the run 4" in page
    assert "–, after the run a guard" in page
    assert "<dt>way to the replicas</dt><dd>fast</dd>" in page
