"""`report.schema.json` against the code: every column is described, in its type, and every kind of report is valid."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import jsonschema
import pytest
from folders import Load, Waveform, constant, make_run, queue

from tailrate import analysis
from tailrate.analysis.exports.judged_rates import JudgedRate
from tailrate.analysis.exports.report_json import report_of
from tailrate.analysis.server_metrics.beside_prompts import BesidePrompts
from tailrate.analysis.server_metrics.by_step import StepMetric
from tailrate.analysis.soak.findings import Finding
from tailrate.analysis.soak.memory_growth import Process
from tailrate.analysis.soak.soak_verdict import Gap, Limits, Visible
from tailrate.analysis.steps.capacity import Capacity
from tailrate.analysis.steps.curves import Batches, Curve
from tailrate.analysis.steps.fault_effects import FaultEffect
from tailrate.analysis.steps.latency_breakdown import Breakdown
from tailrate.analysis.steps.step_summary import StepSummary
from tailrate.analysis.steps.variant_pairs import Pair
from tailrate.analysis.text.words import VERDICTS
from tailrate.analysis.verdicts.ledger import LedgerRow
from tailrate.analysis.verdicts.risks import Risk
from tailrate.analysis.verdicts.slices import Slice
from tailrate.analysis.verdicts.verdict import EXIT_CODES

SCHEMA: dict[str, Any] = json.loads(
    (Path(analysis.__file__).parent / "exports" / "report.schema.json").read_text(encoding="utf-8")
)
ROWS = {
    "step": StepSummary, "pair": Pair, "capacity": Capacity, "breakdown": Breakdown, "ledger": LedgerRow,
    "curve": Curve, "batches": Batches, "risk": Risk, "fault": FaultEffect,
    "metric": StepMetric, "beside_prompts": BesidePrompts,
    "slice": Slice, "rate": JudgedRate,
    "finding": Finding, "limits": Limits, "visible": Visible, "gap": Gap, "process": Process,
}  # fmt: skip
SLO = ["p99<50ms, errors<1%"]
TWO = [Load("m/eager", 100), Load("m/eager", 200, queue(8)), Load("m/compiled", 100), Load("m/compiled", 200)]

RUNS: dict[str, tuple[list[Load], dict[str, Any]]] = {
    "normal": (TWO, {"slo": SLO, "devices": [Waveform()], "offset_ns": 5_000_000}),
    "no objective": (TWO, {"devices": [Waveform(), Waveform("cpu", counter=False, power=False)]}),
    "overloaded": ([Load("m/a", 100, queue(20)), Load("m/a", 200, queue(20))], {"slo": SLO}),
    "failures": ([Load("m/a", 100, failed=1), Load("m/a", 200, failed=0.02, timed_out=0.1, dropped=0.1)], {"slo": SLO}),
    "foreign": (TWO, {"foreign": True, "slo": SLO}),
    "aborted": (TWO, {"status": "aborted", "stopped_s": 13, "slo": SLO, "devices": [Waveform()]}),
    "killed": (TWO, {"status": "running", "sealed": False, "stopped_s": 13, "slo": SLO}),
    "nothing at all": (TWO, {"status": "aborted", "stopped_s": -1}),
    "empty window": ([Load("m/a", 100), Load("m/a", 100, settle_s=10)], {"slo": SLO, "mode": "hold"}),
    "few": ([Load("m/a", 3, constant(5))], {"slo": SLO, "mode": "hold"}),
    "slices": (TWO, {"slo": [*SLO, "[long] p99<20ms"], "labels": ("short", "long", None)}),
    "side by side": ([Load("m/a", 100, at_s=0), Load("m/b", 100, at_s=0)], {"mode": "mixed", "devices": [Waveform()]}),
}  # fmt: skip


def _report(tmp_path: Path, kind: str = "normal") -> dict[str, Any]:
    loads, more = RUNS[kind]
    return report_of(analysis.load(make_run(tmp_path / "run", loads, **more).folder))


def _check(report: Any) -> None:
    jsonschema.validate(report, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_schema_is_one() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_report_is_valid(tmp_path: Path, kind: str) -> None:
    report = _report(tmp_path, kind)
    _check(report)
    _check(json.loads(json.dumps(report, allow_nan=False)))


def test_what_the_run_brought_with_it_is_valid(tmp_path: Path) -> None:
    written = make_run(tmp_path / "run", TWO, slo=SLO, devices=[Waveform()])
    check = {"wanted_rps": 200.0, "safe_rps": 200.0, "late_p99_ms": 0.1, "cpu_pct": 12.0, "p50_ms": 0.4, "p99_ms": 0.9}
    written.manifest.extra["self_check"] = check | {"at_s": 1.79e9, "closed": False}
    written.manifest.scenario["steps"][0] |= {"rate": 0.0, "concurrency": 16}
    written.manifest.write(written.folder)
    report = report_of(analysis.load(written.folder))
    assert report["trust"]["self_check"]["safe_rps"] == 200
    _check(report)


# ---- the schema and the dataclasses


def _types(hint: Any) -> set[str]:
    if get_origin(hint) in (tuple, dict):
        return {"array" if get_origin(hint) is tuple else "object"}
    names = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
    return {names[kind] for kind in get_args(hint) or (hint,)}


@pytest.mark.parametrize(("name", "row"), ROWS.items(), ids=list(ROWS))
def test_a_row_has_the_columns_of_its_dataclass_in_their_types(name: str, row: type) -> None:
    described, hints = SCHEMA["$defs"][name], get_type_hints(row)
    if name in ("step", "slice"):
        hints["infinite"] = tuple[str, ...]
    assert set(described["properties"]) == set(hints), (
        "a new column is described in analysis/exports/report.schema.json"
    )
    assert set(described["required"]) == set(hints)
    assert described["additionalProperties"] is False
    for column, hint in hints.items():
        said = described["properties"][column]["type"]
        assert _types(hint) == ({said} if isinstance(said, str) else set(said)), column


def test_the_rest_is_what_the_report_has(tmp_path: Path) -> None:
    report, trust = _report(tmp_path), SCHEMA["properties"]["trust"]
    assert set(SCHEMA["properties"]) == set(SCHEMA["required"]) == set(report)
    assert set(trust["properties"]) == set(trust["required"]) == set(report["trust"])
    for key in ("lateness", "ledger", "missing_rows", "join"):
        assert set(trust["properties"][key]["properties"]) == set(report["trust"][key])
    for key in ("clock", "devices"):
        assert set(trust["properties"][key]["items"]["properties"]) == set(report["trust"][key][0])
    assert set(trust["properties"]["join"]["properties"]) == {"with_device", "joined", "near_boundary"}
    assert set(SCHEMA["properties"]["verdict"]["enum"]) == set(EXIT_CODES) == set(VERDICTS)


def _properties(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, list):
        for item in schema:
            yield from _properties(item, path)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "properties":
                yield from ((f"{path}/{name}", one) for name, one in value.items())
                for name, one in value.items():
                    yield from _properties(one, f"{path}/{name}")
            elif key != "description":
                yield from _properties(value, path if key == "items" else f"{path}/{key}")


UNITS = {
    "_ms": "in milliseconds",
    "_s": "in seconds",
    "tokens_in_rps": "in tokens per second",
    "tokens_out_rps": "in tokens per second",
    "_rps": "in requests per second",
    "_pct": "in percent",
    "_bytes": "in bytes",
    "_w": "in watts",
    "_mhz": "in megahertz",
    "_ppm": "in parts per million",
    "joules": "in joules",
    "joules_per_request": "in joules",
}


def test_every_property_is_described_in_one_line_with_its_unit() -> None:
    found = list(_properties(SCHEMA))
    assert len(found) > 100
    for path, schema in found:
        text = schema.get("description", "")
        assert text.endswith("."), path
        assert "\n" not in text, path
        if unit := next((unit for suffix, unit in UNITS.items() if path.endswith(suffix)), None):
            assert unit in text, path


# ---- what is not valid


def _broken(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    def changed(name: str, change: Any) -> tuple[str, dict[str, Any]]:
        other = copy.deepcopy(report)
        change(other)
        return name, other

    yield changed("an undescribed key", lambda r: r.update(more=1))
    for table in ("steps", "pairs", "capacity", "rates", "breakdown", "ledger", "risks"):
        yield changed(f"an undescribed column of {table}", lambda r, t=table: r[t][0].update(more=1))
        yield changed(f"a column less in {table}", lambda r, t=table: r[t][0].popitem())
    for key in report:
        yield changed(f"no {key}", lambda r, k=key: r.pop(k))
    for key in report["trust"]:
        yield changed(f"no trust.{key}", lambda r, k=key: r["trust"].pop(k))
    yield changed("another verdict", lambda r: r.update(verdict="cannot say"))
    yield changed("another schema", lambda r: r.update(schema=2))
    yield changed("a count below 0", lambda r: r["steps"][0].update(ok=-1))
    yield changed("a count that is not whole", lambda r: r["steps"][0].update(n=1.5))
    yield changed("no count", lambda r: r["steps"][0].update(n=None))
    yield changed("a text for a number", lambda r: r["steps"][0].update(p99_ms="inf"))
    yield changed("a number for a bool", lambda r: r["steps"][0].update(slo=1))
    yield changed("one text for several", lambda r: r["steps"][0].update(reasons="late"))


def test_what_is_undescribed_absent_or_of_another_type_is_not_valid(tmp_path: Path) -> None:
    report = _report(tmp_path)
    _check(report)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for name, broken in _broken(report):
        assert list(validator.iter_errors(broken)), f"valid with {name}"
