"""What is kept of a page: by preset, on pages of real servers, by pattern, and of pages too large or broken."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrate.loadtest.engine.endpoint.credentials import Access
from tailrate.loadtest.engine.record.server_metrics.choice import MOST_SERIES, Choice
from tailrate.loadtest.engine.record.server_metrics.presets import COUNTER, GAUGE, HISTOGRAM, ROLES, every
from tailrate.loadtest.engine.record.server_metrics.sources import fields_for, parse
from tailrate.loadtest.engine.scenario.scenario import ScenarioError

ROOT = Path(__file__).parents[4]
PAGES = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "pages").glob("*.txt"))}
"""Of servers that ran here: MLServer 1.7.1, KServe, Triton 2.51, Ray 2.60, tailrate."""


def written(name: str) -> str:
    """A page with everything that a preset knows, as its server's documentation calls it."""
    lines = []
    for metric in every()[name].metrics:
        labels = ",".join(f'{label}="{value}"' for label, value in metric.where.items())
        lines += [f"{sample}{{{labels}}} 1" for sample in metric.samples]
    return "\n".join(dict.fromkeys(lines)) + "\n"


# ---- presets


@pytest.mark.parametrize("name", PAGES)
def test_a_real_page_is_known_for_what_it_is_and_kept_as_it_says(name: str) -> None:
    choice = Choice()
    kept = choice.take(PAGES[name])
    assert choice.presets == [every()[name].title]
    assert choice.left_out == 0
    names = {name for name, *_ in kept}
    # the client would call a counter _total whether its page does or not
    untyped = "".join(f"{line}\n" for line in PAGES[name].split("\n") if not line.startswith("#"))
    theirs = {
        (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
        for family in text_string_to_metric_families(untyped)
        for sample in family.samples
        if sample.name in names
    }
    assert {(name, labels): value for name, labels, value in kept} == theirs
    assert {metric["role"] for metric in choice.metrics} & {"requests", "running"}


@pytest.mark.parametrize("name", sorted(every()))
def test_a_preset_tells_its_server_from_every_other(name: str) -> None:
    choice = Choice()
    choice.take(written(name))
    assert choice.presets == [every()[name].title]
    assert len(choice.metrics) == len(every()[name].metrics)


def test_presets_say_all_that_a_report_needs() -> None:
    titles = [preset.title for preset in every().values()]
    assert len(set(titles)) == len(titles) >= 8
    for preset in every().values():
        for metric in preset.metrics:
            assert metric.kind in (COUNTER, GAUGE, HISTOGRAM)
            assert metric.role in ("", *ROLES)
            assert metric.meaning.endswith(".")
            assert metric.title
            assert metric.across == ("max" if metric.role == "cache" else "sum")
        assert len({(metric.name, *metric.where.items()) for metric in preset.metrics}) == len(preset.metrics)


def test_the_docs_list_every_preset_and_role() -> None:
    page = (ROOT / "docs" / "server-metrics.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page.split("## Presets")[1].split("\n## ")[0], re.M)
    assert {name: title.strip() for name, title in listed} == {name: one.title for name, one in every().items()}
    roles = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page.split("## Roles")[1].split("\n## ")[0], re.M)
    assert {name: what.strip() for name, what in roles} == ROLES


def test_metrics_that_come_later_are_added() -> None:
    choice = Choice()
    choice.take('nv_inference_request_success{model="a"} 1\n')
    assert [metric["name"] for metric in choice.metrics] == ["nv_inference_request_success"]
    choice.take(PAGES["triton"])
    assert len(choice.metrics) == 6


# ---- patterns


PATTERN_PAGE = """\
# HELP my_queue Orders that wait.
# TYPE my_queue gauge
my_queue 3
# TYPE my_seconds histogram
my_seconds_bucket{le="1"} 2
my_seconds_bucket{le="+Inf"} 4
my_seconds_sum 6
my_seconds_count 4
# TYPE my_share summary
my_share{quantile="0.5"} 0.2
my_share_sum 3
my_share_count 9
# TYPE my_orders_total counter
my_orders_total 7
other_total 1
"""


def test_a_pattern_keeps_what_its_names_hold_in_the_pages_own_kinds() -> None:
    choice = Choice("^my_")
    kept = {name: value for name, _, value in choice.take(PATTERN_PAGE)}
    assert kept == {
        "my_queue": 3, "my_seconds_sum": 6, "my_seconds_count": 4, "my_share_sum": 3, "my_share_count": 9,
        "my_orders_total": 7,
    }  # fmt: skip
    kinds = {metric["name"]: (metric["kind"], metric["meaning"]) for metric in choice.metrics}
    assert kinds == {
        "my_queue": (GAUGE, "Orders that wait."), "my_seconds": (HISTOGRAM, ""), "my_share": (HISTOGRAM, ""),
        "my_orders_total": (COUNTER, ""),
    }  # fmt: skip
    assert choice.presets == []


def test_without_a_pattern_nothing_of_an_unknown_page_is_kept() -> None:
    choice = Choice()
    assert choice.take(PATTERN_PAGE) == []
    assert choice.metrics == []
    assert "my_queue" in choice.names


# ---- pages that are none, or too much


def test_of_too_many_series_the_first_are_kept_and_the_others_counted() -> None:
    choice = Choice()
    page = "".join(f'nv_inference_count{{model="m{n}"}} {n}\n' for n in range(10_000))
    assert len(choice.take(page)) == MOST_SERIES
    assert choice.left_out == 10_000 - MOST_SERIES


def test_what_is_broken_or_said_twice_is_passed_over() -> None:
    choice = Choice()
    lines = ['nv_inference_count{model="a"} 1', 'nv_inference_count{model="a"} 2', 'nv_inference_count{model="a" 3']
    lines += ["nv_inference_count NaN", f'nv_inference_count{{model="{"x" * 5000}"}} 1', "up 7"]
    kept = choice.take("\n".join(lines))
    assert kept[0] == ("nv_inference_count", '{"model": "a"}', 1.0)
    assert len(kept) == 2
    assert math.isnan(kept[1][2])
    assert choice.left_out == 2


# ---- the option


def test_pages_with_and_without_a_name() -> None:
    found = parse("http://gpu:8002, m/a=http://gpu:8003/x?y=1,m/a=gpu:9", "", ["m/a", "m/b"])
    assert [(one.source, one.endpoint, one.url) for one in found] == [
        ("gpu:8002", "", "http://gpu:8002/metrics"),
        ("m/a", "m/a", "http://gpu:8003/x?y=1"),
        ("m/a 2", "m/a", "http://gpu:9/metrics"),
    ]
    assert parse("", "", ["m/a"]) == ()


@pytest.mark.parametrize(
    ("text", "match", "part"),
    [
        ("m/c=http://gpu:1", "", "names no endpoint 'm/c'; there are m/a"),
        ("http://me:secret@gpu:1", "", "--metrics must not hold a user or a password"),
        ("ftp://gpu:1", "", "--metrics 'ftp://gpu:1' is not a URL"),
        ("http://gpu:1", "(", "is no regular expression"),
        ("", "x", "name the page with --metrics"),
        (",".join(f"http://gpu:{n}" for n in range(1, 40)), "", "more than 32 pages"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(text: str, match: str, part: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(part)) as found:
        parse(text, match, ["m/a"])
    assert "secret" not in str(found.value)


def test_a_token_goes_to_the_endpoints_own_host_and_port_alone() -> None:
    own, port, other, plain = parse("https://gpu:1/metrics,https://gpu:2,https://elsewhere:1,http://gpu:1", "", [])
    access = Access("t0ken")
    assert fields_for(own, "https://gpu:1", access) == "Authorization: Bearer t0ken\r\n"
    assert [fields_for(each, "https://gpu:1", access) for each in (port, other, plain)] == ["", "", ""]
