import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrate.serve.telemetry import own_processes
from tailrate.serve.telemetry.host import HostSource
from tailrate.serve.telemetry.sampler import Sampler, after, sources
from tailrate.serve.wire import SAMPLE_FIELDS, WireError


class FakeSource:
    name = "fake"

    def __init__(self) -> None:
        self.asked = 0
        self.problem: Exception | None = None

    def read(self) -> list[dict[str, Any]]:
        self.asked += 1
        if self.problem:
            raise self.problem
        return [{"device": "GPU-a", "index": 0, "power_w": 10.0 * self.asked}]


MINUTE_MS = 60_000
"""Period of samplers that tests ask by hand: no machine is held up for so long that a reading counts as stalled."""


def powers(read: dict[str, Any]) -> list[float]:
    return [row[SAMPLE_FIELDS.index("power_w")] for row in read["rows"]]


def test_each_sample_is_read_once_in_order() -> None:
    sampler = Sampler([FakeSource()], MINUTE_MS, host="h")
    sampler.sample()
    sampler.sample()
    first = sampler.read()
    assert first["columns"] == list(SAMPLE_FIELDS)
    assert first["host"] == "h"
    assert powers(first) == [10, 20]
    row = dict(zip(first["columns"], first["rows"][0], strict=True))
    assert (row["host"], row["device"], row["index"]) == ("h", "GPU-a", 0)
    assert row["util_pct"] is None
    assert powers(sampler.read(first["cursor"])) == []
    sampler.sample()
    assert powers(sampler.read(first["cursor"])) == [30]
    assert sampler.read(first["cursor"])["overwritten"] == 0


def test_what_was_overwritten_before_it_was_read_is_counted() -> None:
    sampler = Sampler([FakeSource()], MINUTE_MS, kept=3)
    sampler.sample()
    cursor = sampler.read()["cursor"]
    for _ in range(5):
        sampler.sample()
    found = sampler.read(cursor)
    assert powers(found) == [40, 50, 60]
    assert found["overwritten"] == 2


def test_a_cursor_of_another_sampler_starts_from_the_oldest() -> None:
    old = Sampler([FakeSource()], MINUTE_MS)
    for _ in range(9):
        old.sample()
    new = Sampler([FakeSource()])
    new.sample()
    found = new.read(old.read()["cursor"])
    assert powers(found) == [10]
    assert found["overwritten"] == 0


def test_a_cursor_from_the_future_starts_from_the_oldest() -> None:
    sampler = Sampler([FakeSource()], MINUTE_MS)
    sampler.sample()
    epoch = sampler.read()["cursor"].split(":")[0]
    assert powers(sampler.read(f"{epoch}:999")) == [10]


@pytest.mark.parametrize("cursor", ["x", ":", "a:", ":3", "a:b", "a:-1", "a:1.5", "a:1:2"])
def test_a_malformed_cursor_is_a_400(cursor: str) -> None:
    with pytest.raises(WireError) as problem:
        Sampler([FakeSource()]).read(cursor)
    assert problem.value.status == 400


def test_a_source_that_fails_is_an_event_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    failing, steady = FakeSource(), FakeSource()
    steady.name = "steady"
    failing.problem = OSError("lost the bus")
    sampler = Sampler([failing, steady])
    sampler.sample()
    sampler.sample()
    assert failing.asked == 1  # not hammered
    assert powers(sampler.read()) == [10, 20]
    (event,) = sampler.read()["events"]
    assert (event["source"], event["event"]) == ("fake", "OSError: lost the bus")
    now_s[0] += 60
    failing.problem = None
    sampler.sample()
    assert powers(sampler.read()) == [10, 20, 20, 30]


def test_samples_keep_their_times_and_what_was_missed_comes_in_no_burst() -> None:
    """In virtual time: samples that take long, one that is late, a stop of 3 s."""

    def times(takes: Sequence[float], asleep: Mapping[int, float] = {}) -> list[float]:
        now = due = 0.0
        began = []
        for k, long in enumerate(takes):
            began.append(now)
            due = after(due, now, 0.1)
            now = max(now + long, due) + asleep.get(k, 0.0)
        return [round(each, 3) for each in began]

    assert times([0.01] * 4) == [0, 0.1, 0.2, 0.3]
    assert times([0.01] * 5, {1: 0.05}) == [0, 0.1, 0.25, 0.3, 0.4]
    assert times([0.01] * 5, {1: 3.0}) == [0, 0.1, 3.2, 3.3, 3.4]
    assert times([0.01, 3.0, 0.01, 0.01, 0.01]) == [0, 0.1, 3.1, 3.2, 3.3]
    assert times([0.16] * 6) == [0, 0.16, 0.32, 0.48, 0.64, 0.8]


def test_what_a_stall_held_up_in_the_middle_of_a_reading_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time: a stop of 3 s, a source that is slow from some time on, and one with instants of its own."""
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "time_ns", lambda: round(now_s[0] * 1e9))

    def times(takes: Sequence[float], **own: int) -> list[float]:
        class Held(FakeSource):
            def read(self) -> list[dict[str, Any]]:
                now_s[0] += takes[self.asked]
                return [sample | own for sample in super().read()]

        now_s[0] = 1000.0
        sampler = Sampler([Held()])
        for _ in takes:
            sampler.sample()
            now_s[0] += 1.0
        return [round(row[0] / 1e9 - 1000, 3) for row in sampler.read()["rows"]]

    assert times([0.02, 0.02, 3.0, 0.02]) == [0.01, 1.03, 6.05]  # none at 3.54, in the middle of the stop
    assert times([0.02, 0.09, 0.02, 0.09]) == [0.01, 1.065, 2.12, 3.175]
    assert times([0.5, 0.02, 0.3, 0.4, 0.3]) == [0.25, 1.51, 4.02, 5.37]
    assert times([0.02, 3.0], time_ns=1001 * 10**9) == [1.0, 1.0]


def test_the_thread_samples_until_stopped() -> None:
    source = FakeSource()
    sampler = Sampler([source], period_ms=10)
    sampler.start()
    give_up_s = time.monotonic() + 10
    while source.asked < 3 and time.monotonic() < give_up_s:
        time.sleep(0.01)
    sampler.stop()
    asked = source.asked
    assert asked >= 3
    times = [row[0] for row in sampler.read()["rows"]]
    assert times == sorted(times)
    time.sleep(0.03)
    assert source.asked == asked


def test_the_host_is_always_there() -> None:
    sampler = Sampler([source for source in sources() if source.name == "host"])
    sampler.sample()
    row = dict(zip(SAMPLE_FIELDS, sampler.read()["rows"][0], strict=True))
    assert row["device"] == "cpu"
    assert 0 <= row["util_pct"] <= 100
    assert 0 < row["own_mem_bytes"] < row["mem_bytes"]
    assert row["sm_mhz"] is None
    assert abs(row["time_ns"] - time.time_ns()) < 60e9


def test_the_server_s_own_memory_is_that_of_its_processes(tmp_path: Path) -> None:
    """On a node of Ray: the raylet that started this one, and all that it started."""

    def process(pid: int, comm: str, statm: str, *children: str) -> None:
        for number, listed in enumerate(children):
            (tmp_path / f"{pid}/task/{pid + number}").mkdir(parents=True)
            (tmp_path / f"{pid}/task/{pid + number}/children").write_text(listed)
        (tmp_path / f"{pid}/comm").write_text(f"{comm}\n")
        (tmp_path / f"{pid}/statm").write_text(f"{statm} 0 0 0 0\n")

    above = 10**7  # no pid is so high
    process(os.getpid(), "python", "900 100 40", f"{above} ")
    process(above, "haproxy", "90 7 2", "")
    process(os.getppid(), "bash", "900 50 1", f"{os.getpid()} {above + 1} ", "")
    process(above + 1, "other", "900 50 10", "")
    assert own_processes.kin(tmp_path) == [os.getpid(), above]
    assert own_processes.own_bytes(tmp_path) == 65 * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / f"{os.getppid()}/comm").write_text("raylet\n")
    assert set(own_processes.kin(tmp_path)) == {os.getppid(), os.getpid(), above, above + 1}
    assert own_processes.own_bytes(tmp_path) == 154 * os.sysconf("SC_PAGE_SIZE")
    assert own_processes.own_bytes(tmp_path / "nothing") is None


def test_host_power_is_the_difference_of_rapls_counter_even_where_it_starts_over(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the first: it must not be counted twice
    (zone / "max_energy_range_uj").write_text("10000000")
    (zone / "energy_uj").write_text("9000000")
    source = HostSource(tmp_path)
    (first,) = source.read()
    assert first["energy_j"] == 9
    assert first["power_w"] is None
    (zone / "energy_uj").write_text("1000000")
    time.sleep(0.01)  # more than a clock may move at once
    (second,) = source.read()
    assert second["energy_j"] == 11
    assert second["power_w"] > 0


def test_without_rapl_power_is_missing(tmp_path: Path) -> None:
    (sample,) = HostSource(tmp_path).read()
    assert "power_w" not in sample
    assert "energy_j" not in sample


def test_a_reader_gets_all_that_a_source_said_or_nothing_of_it() -> None:
    class SlowSource(FakeSource):
        def read(self) -> Any:
            yield from super().read()
            reader.start()
            reader.join(0.2)  # it waits until all of it is there
            yield from super().read()

    sampler, found = Sampler([SlowSource()], MINUTE_MS), list[dict[str, Any]]()
    reader = threading.Thread(target=lambda: found.append(sampler.read()))
    sampler.sample()
    reader.join()
    assert powers(found[0]) == [10, 20]
