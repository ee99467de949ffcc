"""Prometheus' text form, against the parser of its own client; and what is no such text."""

import math
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import CollectorRegistry, CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tailrate.loadtest.engine.record import exposition
from tailrate.loadtest.engine.record.exposition import BROKEN, CUT, parse

PAGE = r"""# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post",code="400"}    3 1395066363000

# Escaping in label values:
msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1.458255915e9

# Minimalistic line:
metric_without_timestamp_and_labels 12.47

# A weird metric from before the epoch:
something_weird{problem="division by zero"} +Inf -3982045

# A histogram, which has a pretty complex representation in the text format:
# HELP http_request_duration_seconds A histogram of the request duration.
# TYPE http_request_duration_seconds histogram
http_request_duration_seconds_bucket{le="0.05"} 24054
http_request_duration_seconds_bucket{le="+Inf"} 144320
http_request_duration_seconds_sum 53423
http_request_duration_seconds_count 144320
rpc_duration_seconds{quantile="0.01",} 3102
spaced { a = "b" , c = "d" }  5
"""
"""Most of it is the example of Prometheus' own documentation."""


def theirs(text):
    return [
        (one.name, dict(one.labels), one.value) for each in text_string_to_metric_families(text) for one in each.samples
    ]


def same(one, other):
    return len(one) == len(other) and all(
        a[:2] == b[:2] and (a[2] == b[2] or (math.isnan(a[2]) and math.isnan(b[2])))
        for a, b in zip(one, other, strict=True)
    )


def test_the_example_of_the_documentation_is_read_as_prometheus_own_client_does():
    found = list(parse(PAGE))
    assert same(found, theirs(PAGE))
    assert len(found) == 11
    assert found[2][1] == {"path": "C:\\DIR\\FILE.TXT", "error": 'Cannot find file:\n"FILE.TXT"'}


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
LABELS = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9]{0,5}", fullmatch=True), WORDS, min_size=2, max_size=2)


@settings(max_examples=60)
@given(st.lists(st.tuples(LABELS, st.floats()), max_size=6))
def test_whatever_their_client_writes_is_read_as_their_parser_does(samples):
    class Collector:
        def collect(self):
            for number, (labels, value) in enumerate(samples):
                kind = (GaugeMetricFamily, CounterMetricFamily)[number % 2]
                family = kind(f"m{number}", "what it is\nof \\ two lines", labels=list(labels))
                family.add_metric(list(labels.values()), value)
                yield family
            yield HistogramMetricFamily("h", "", buckets=[("0.5", 1), ("+Inf", 4)], sum_value=2.5)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    text = generate_latest(registry).decode()
    skipped: Counter[str] = Counter()
    assert same(list(parse(text, skipped)), theirs(text))
    assert not skipped


@settings(max_examples=150)
@given(st.integers(0, len(PAGE) - 1), st.integers(1, 6), st.text(' {}",=\\#0aé\t', max_size=3))
def test_a_line_that_is_broken_costs_no_other_and_raises_nothing(at, length, instead):
    text = PAGE[:at] + instead + PAGE[at + length :]
    skipped: Counter[str] = Counter()
    found = list(parse(text, skipped))
    untouched = list(parse("\n".join(set(PAGE.split("\n")) & set(text.split("\n")))))
    assert all(one in found for one in untouched)
    lines = [line for line in text.split("\n") if line.strip(" \t") and line.strip(" \t")[0] != "#"]
    assert len(found) + skipped[BROKEN] == len(lines)


@pytest.mark.parametrize(
    "line",
    [
        "up", "up one", "up 1 2 3", 'up{a="b} 1', 'up{a=b} 1', 'up{a="b"c="d"} 1', 'up{a="b"', 'up{a="b"} ', "1up 1",
        'up{a="b",,} 1', "up{,} 1", 'up{a="1",a="2"} 1', "<html><body>up 1</body></html>", "up 1_000", "up 0x10",
        '{"a.b"} up', '{"a","b"} 1', 'up{"a"} 1', "{} 1", "up ١", '{"error": "no such page"}', "\x00\x01", 'é{a="b"} 1',
    ],
)  # fmt: skip
def test_what_is_no_figure_is_counted(line):
    skipped: Counter[str] = Counter()
    assert list(parse(f"before 1\n{line}\nafter 2\n", skipped)) == [("before", {}, 1.0), ("after", {}, 2.0)]
    assert skipped == {BROKEN: 1}


def test_names_of_prometheus_3_examples_of_open_metrics_and_carriage_returns():
    text = '{"http.requests","a.b"="c",d="e"} 1\r\nfoo_bucket{le="1"} 17 # {trace="x"} 0.5 1.2\r\n# EOF\r\n'
    assert list(parse(text)) == [
        ("http.requests", {"a.b": "c", "d": "e"}, 1.0),
        ("foo_bucket", {"le": "1"}, 17.0),
    ]


def test_a_page_without_an_end_is_read_to_the_bound_alone():
    line = 'up{a="b"} 1\n'
    text = line * (exposition.MOST_CHARACTERS // len(line) + 1000)
    skipped: Counter[str] = Counter()
    count = sum(1 for _ in parse(text[: 1 << 16], skipped))
    assert count == (1 << 16) // len(line)
    skipped.clear()
    parsed = parse(text, skipped)
    next(parsed)
    assert skipped == {CUT: len(text) - exposition.MOST_CHARACTERS}


@pytest.mark.parametrize(
    "line", ['up{a="' + "\\" * 60_000, "up{" + 'a="b",' * 9_000, "a" * 65_000, "up " + "1" * 60_000]
)
def test_a_line_made_to_be_slow_is_not(line):
    began_s = time.process_time()
    list(parse(f"{line}\n" * 3 + "x" * (exposition.MOST_IN_LINE + 1) + "\n"))
    assert time.process_time() - began_s < 1.0
