"""The benchmarks: all of them in the runner's table, none named like a package, and figures that mean what they say."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.metadata
import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from bench import commits, request_path, run_all, variants
from bench._rounds import in_turns, last_line, left_out, over, shown, spread, spreads
from bench.served_over_bare import BATCH, rate_of
from waiting import until

BENCH = Path(__file__).parents[1] / "bench"
PROGRAMS = sorted(path for path in BENCH.glob("*.py") if not path.name.startswith("_") and path.stem != "run_all")
WANTED_IF_THERE = {"coverage"}
"""What numba imports only where it is installed: a file of that name would pass for it."""


def test_the_table_has_every_benchmark():
    assert sorted(run_all.BENCHES) == [path.stem for path in PROGRAMS]


def test_the_table_says_how_long_all_of_it_takes():
    full_s = sum(bench.full_s for bench in run_all.BENCHES.values())
    quick_s = sum(bench.quick_s for bench in run_all.BENCHES.values())
    assert full_s < 120 * 60
    assert quick_s < 5 * 60
    for name, bench in run_all.BENCHES.items():
        assert bench.full_s > 0, name
        assert (bench.quick is None) == bool(bench.why) == (bench.quick_s == 0), name


@pytest.mark.parametrize("name", run_all.BENCHES)
def test_every_form_of_a_benchmark_can_be_asked_for(name):
    program, bench = importlib.import_module(f"bench.{name}"), run_all.BENCHES[name]
    parser = program.parser()
    assert isinstance(parser, argparse.ArgumentParser)
    assert parser.format_help()
    for words in (bench.full, bench.quick or ""):
        parser.parse_args(shlex.split(words))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_what_it_calls_can_be_called_so(path):
    """Functions of other benchmarks too, which change without it: a full form is run once in weeks."""
    program = importlib.import_module(f"bench.{path.stem}")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)):
        called, names = getattr(program, call.func.id, None), [one.arg for one in call.keywords]
        if inspect.isfunction(called) and None not in names and not any(isinstance(a, ast.Starred) for a in call.args):
            inspect.signature(called).bind(*call.args, **dict.fromkeys(names))


def test_no_file_is_named_like_a_package():
    packages = sys.stdlib_module_names | importlib.metadata.packages_distributions().keys() | WANTED_IF_THERE
    names = {path.stem for folder in (BENCH.parent, BENCH, BENCH.parent / "support") for path in folder.iterdir()}
    assert not names - {"__pycache__"} & packages


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_its_last_line_has_its_name(path):
    said = re.search(r'\blast_line\(\s*"(\w+)",', path.read_text(encoding="utf-8"))
    assert said
    assert said[1] == path.stem


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_benchmark_leaves_its_folder_off_the_path(path):
    """Locust and numba import by name: what stands first on the path has that name."""
    lines = path.read_text().splitlines()
    at = lines.index('if __name__ == "__main__":')
    assert lines[at + 1].startswith('    sys.path[:1] = [f"{ROOT}", f"{ROOT}/tests", f"{ROOT}/tests/support"]')
    assert sum("sys.path" in line for line in lines) == 1
    assert not any(line.lstrip().startswith(("from test_", "import test_")) for line in lines)  # they are not on it


# ---- figures


def test_a_spread_is_the_median_with_the_lowest_and_the_highest():
    found = spread([3, 1, 2.5, 9])
    assert found == {"median": 2.75, "low": 1.0, "high": 9.0, "rounds": 4}
    assert shown(found, ".1f") == "2.8 (1.0–9.0)"
    assert shown(found, ".0f", 12) == "     3 (1–9)"
    assert spreads([{"a": 1, "b": 5}, {"a": 3, "b": 5}])["a"]["median"] == 2


def test_a_ratio_is_of_one_round():
    """Both sides slow down by ten in the second round: the ratio does not."""
    assert over([2, 20, 2], [1, 10, 1]) == {"median": 2.0, "low": 2.0, "high": 2.0, "rounds": 3}


def test_what_is_compared_takes_turns():
    order = []
    found = in_turns(2, {name: lambda name=name: order.append(name) or len(order) for name in ("a", "b")})
    assert order == ["a", "b", "a", "b"]
    assert found == {"a": [1, 3], "b": [2, 4]}


def test_the_last_line_is_json_whatever_was_found(capsys):
    last_line("it", mean=float("nan"), rows=[{"most": float("inf")}, (1, 2)], said="yes")
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "benchmark": "it", "mean": None, "rows": [{"most": None}, [1, 2]], "said": "yes",
    }  # fmt: skip
    left_out("it", "there is no wrk")
    assert capsys.readouterr().out.splitlines()[0] == "it: left out, there is no wrk"


# ---- the rate of answers that come by batches


def batches(at_s, size=BATCH, apart_s=0.0):
    """The instants of all answers: those of a batch come at one, or one shortly after the other."""
    return [at + place * apart_s for at in at_s for place in range(size)]


@pytest.mark.parametrize("apart_s", [0.0, 0.0003])
@pytest.mark.parametrize("count", [2, 3, 5, 40])
def test_regular_batches_have_their_rate_however_few(count, apart_s):
    done_s = batches(7 + 0.2 * np.arange(count), apart_s=apart_s)
    assert rate_of(done_s, BATCH) == pytest.approx(BATCH / 0.2, rel=1e-9)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_batch_that_the_window_cuts_does_not_count_for_a_whole_one(cut):
    done_s = batches(0.2 * np.arange(6), apart_s=0.0003)
    for part in (done_s[cut:], done_s[:-cut], done_s[cut:-cut]):
        assert rate_of(part, BATCH) == pytest.approx(BATCH / 0.2, rel=1e-9)


def test_irregular_batches_have_the_rate_of_their_mean_interval():
    rng = np.random.default_rng(1)
    gaps_s = rng.gamma(4.0, 0.05, 500)
    done_s = batches(np.concatenate([[0.0], np.cumsum(gaps_s)]), apart_s=0.0002)
    rng.shuffle(done_s)  # clients note them in any order
    assert rate_of(done_s, BATCH) == pytest.approx(BATCH / gaps_s.mean(), rel=1e-9)


def test_few_irregular_batches_are_off_by_chance_alone():
    """Windows of one second, cut anywhere: the mean of many is within 2 % of the truth, and no end adds a batch."""
    rng = np.random.default_rng(2)
    at_s = np.cumsum(rng.uniform(0.08, 0.12, 20_000))
    done_s = np.array(batches(at_s, apart_s=0.0005))
    rates = []
    for begin_s in rng.uniform(1, at_s[-1] - 2, 300):
        rates.append(rate_of(done_s[(done_s >= begin_s) & (done_s <= begin_s + 1)], BATCH))
    assert np.mean(rates) == pytest.approx(BATCH / 0.1, rel=0.02)


def test_batches_that_are_not_full_move_a_rate_by_less_than_a_batch():
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, BATCH + 1, 400)
    done_s = np.repeat(0.1 * np.arange(400), sizes)
    assert rate_of(done_s, BATCH) == pytest.approx(sizes.mean() / 0.1, rel=BATCH / sizes.sum() + 0.01)


@pytest.mark.parametrize("done_s", [[], [1.0], [1.0] * BATCH, [1.0] * (BATCH + 2), [1.0, 1.001, 1.002, 1.003]])
def test_one_batch_has_no_rate_and_says_so(done_s):
    with pytest.raises(ValueError, match=r"answers in one batch \(of 4\) have no rate: give more --seconds"):
        rate_of(done_s, BATCH)


# ---- the runner


def ran(tmp_path, source):
    path = tmp_path / "it.py"
    path.write_text(source)
    return run_all.run(path, ["--seconds", "1"], 5.0)


def test_a_benchmark_that_ends_well_is_heard(tmp_path, capsys):
    found = ran(tmp_path, 'import sys\nprint(sys.argv[1:])\nprint(\'{"benchmark": "it", "a": 1}\')')
    assert (found.outcome, found.reason, found.said) == ("ok", "", {"benchmark": "it", "a": 1})
    assert "['--seconds', '1']\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "outcome", "reason"),
    [
        ("raise SystemExit(3)", "failed", "ended with 3"),
        ("print('no JSON')", "failed", "its last line is no JSON that names it"),
        ("""print('{"benchmark": "other"}')""", "failed", "its last line is no JSON that names it"),
        ("""print('{"benchmark": "it"}')\nprint('and more')""", "failed", "its last line is no JSON that names it"),
        ("""print('{"benchmark": "it", "left_out": "there is no wrk"}')""", "left out", "there is no wrk"),
    ],
)
def test_a_benchmark_that_does_not_says_why(tmp_path, source, outcome, reason):
    found = ran(tmp_path, source)
    assert (found.outcome, found.reason) == (outcome, reason)


def test_one_that_takes_far_longer_than_it_did_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "SLOW", (0.0, 0.0))
    found = ran(tmp_path, """print('{"benchmark": "it"}')""")
    assert found.outcome == "ok"
    assert re.match(r"took \d+\.\d times as long as expected", found.reason)


LEAVES = """
import subprocess, sys
it = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL,
                      start_new_session=True)
print(it.pid, flush=True)
"""


@pytest.mark.live
def test_what_a_benchmark_leaves_running_is_ended_and_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_all, "PATIENCE_S", (0.2, 0.2, 5.0))
    found = ran(tmp_path, LEAVES + """print('{"benchmark": "it"}')""")
    pid = int(capsys.readouterr().out.splitlines()[0])
    assert (found.outcome, found.reason.split()[:3]) == ("failed", ["left", "running:", str(pid)])
    assert not psutil.pid_exists(pid)


@pytest.mark.live
def test_a_benchmark_that_hangs_is_ended_with_all_that_it_started(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_all, "PATIENCE_S", (0.2, 0.2, 5.0))
    hangs = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + LEAVES
    hangs += f"open({str(tmp_path / 'hangs')!r}, 'w')\ntime.sleep(60)"

    class Popen(subprocess.Popen):
        def wait(self, timeout=None):
            until((tmp_path / "hangs").exists)  # from when on time counts
            return super().wait(timeout)

    monkeypatch.setattr(run_all.subprocess, "Popen", Popen)
    monkeypatch.setattr(run_all, "LONGEST", (0.0, 0.1))
    found = ran(tmp_path, hangs)
    pid = int(capsys.readouterr().out.splitlines()[0])
    assert found.outcome == "failed"
    assert "and was ended" in found.reason
    assert not psutil.pid_exists(pid)


def test_the_runner_goes_on_after_a_failure(monkeypatch, capsys):
    outcomes = {"a": "failed", "b": "ok", "c": "left out"}
    table = {name: run_all.Bench("", 1, "", 1) for name in outcomes} | {
        "d": run_all.Bench("", 1, None, 0, "it is long")
    }
    monkeypatch.setattr(run_all, "BENCHES", table)
    monkeypatch.setattr(
        run_all, "run", lambda path, words, expected_s: run_all.Ran(path.stem, outcomes[path.stem], "", 1.0, 1.0, {})
    )
    monkeypatch.setattr(run_all.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--quick"])
    assert run_all.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 benchmarks in their quick form, about 3 s on two cores"
    said = json.loads(lines[-1])
    assert [one["outcome"] for one in said["benches"]] == ["failed", "ok", "left out", "left out"]
    assert said["benches"][3]["reason"] == "not in the quick form: it is long"
    assert said["failed"] == ["a"]
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--only", "b"])
    assert run_all.main() == 0


def test_an_interrupt_ends_the_runner_after_what_runs(monkeypatch, capsys):
    def run(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_all, "run", run)
    monkeypatch.setattr(run_all.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--only", "knee,watching"])
    assert run_all.main() == 130
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["interrupted"]
    assert [(one["benchmark"], one["reason"]) for one in said["benches"]] == [("knee", "interrupted")]


@pytest.mark.long
def test_all_of_them_run_from_start_to_end_in_their_quick_form():
    done = subprocess.run(
        [sys.executable, BENCH / "run_all.py", "--quick"], capture_output=True, text=True, check=False
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["failed"], done.returncode) == ([], 0)
    assert {bench["benchmark"] for bench in said["benches"]} == set(run_all.BENCHES)


# ---- two commits


def costs_of(rng, ratio, rounds=30, noise=0.025):
    """Of a base and of what costs so many times as much, on a machine that is slow in some rounds."""
    mood = np.exp(rng.normal(0, 0.1, rounds))
    base, new = (mood * np.exp(rng.normal(0, noise, rounds)) for _ in range(2))
    return base.tolist(), (ratio * new).tolist()


def test_five_per_cent_are_seen_and_nothing_is_not():
    rng = np.random.default_rng(1)

    def verdicts(ratio):
        return [commits.Compared.of(*costs_of(rng, ratio)).verdict for _ in range(400)]

    assert sum(verdict == "slower" for verdict in verdicts(1.05)) >= 0.97 * 400
    assert sum(verdict == "faster" for verdict in verdicts(1 / 1.05)) >= 0.97 * 400
    same = verdicts(1.0)
    assert not {"slower", "faster"} & set(same)
    assert same.count("no change") > 240  # in others a little may have changed


def test_what_thirty_rounds_leave_open_gets_more_of_them():
    """With noise that hides five per cent from every other comparison of thirty rounds."""
    rng = np.random.default_rng(3)

    def compared(ratio):
        costs = [iter(side) for side in costs_of(rng, ratio, commits.MOST_TIMES * 30, noise=0.05)]
        base, new = commits.compared(lambda tree: next(costs[tree.name == "new"]), (Path("base"), Path("new")), 30)
        assert len(base) == len(new)
        return len(base), commits.Compared.of(base, new).verdict

    slower, same = ([compared(ratio) for _ in range(100)] for ratio in (1.05, 1.0))
    first = sum(rounds == 30 for rounds, _ in slower)
    assert 10 < first < 70
    assert sum(verdict == "slower" for _, verdict in slower) > first + 20
    assert not any(verdict == "slower" for _, verdict in same)
    assert all(rounds == 90 or verdict != commits.OPEN for rounds, verdict in slower + same)


def test_the_interval_of_a_ratio_holds_it():
    rng = np.random.default_rng(2)
    found = [commits.Compared.of(*costs_of(rng, 1.3, rounds)) for rounds in (10, 11, 30) for _ in range(300)]
    held = sum(one.low <= 1.3 <= one.high for one in found)
    assert 0.94 * len(found) < held
    assert all(one.low <= one.ratio <= one.high < np.inf for one in found)


def test_pieces_are_named_and_an_unknown_one_is_refused():
    assert list(commits.chosen("report,help")) == ["help", "report", "report of a million rows"]
    assert commits.chosen("") == commits.PIECES
    with pytest.raises(SystemExit, match="no piece begins with 'nothing'"):
        commits.chosen("help,nothing")


def test_each_side_is_run_by_its_own_code(tmp_path):
    for name, told in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"print({told})")
    piece = commits.Piece(("-m", "mine"), told=True)
    assert [commits.cost(piece, tmp_path / name, {}) for name in ("a", "b", "a")] == [1, 2, 1]
    busy = commits.Piece(("-c", "import time\nwhile time.process_time() < 0.2: pass"))
    assert commits.cost(busy, tmp_path, {}) >= 0.2
    with pytest.raises(SystemExit, match="ended with 3"):
        commits.cost(commits.Piece(("-c", "raise SystemExit(3)")), tmp_path, {})


def test_a_commit_is_checked_out_for_as_long_as_it_is_needed():
    if not (commits.ROOT / ".git").exists():
        pytest.skip("no git checkout")
    with commits.checkout("HEAD") as tree:
        assert (tree / "tailrate" / "serve" / "wire.py").is_file()
    assert not tree.exists()
    assert str(tree) not in commits.git("worktree", "list")
    with pytest.raises(SystemExit, match="git worktree add"), commits.checkout("no-such-commit"):
        pass


def test_a_no_op_is_visited_with_its_own_cluster_alone():
    three = ["uvicorn", "no-op", "ours"]
    assert request_path.passes(three) == [["no-op", "ours"], ["uvicorn", "ours"]]
    assert request_path.passes(["no-op", "uvicorn"]) == [["no-op"], ["uvicorn"]]
    assert request_path.passes(["ours", "no-op"]) == [["ours", "no-op"]]
    assert request_path.passes(["uvicorn", "ours"]) == [["uvicorn", "ours"]]


def _cell(variant, *rounds):
    return {
        "model": "m", "variant": variant, "rounds": [{"1": {"median": one, "low": 0.0, "high": 9.0}} for one in rounds],
        "batches": {"1": {"speed": {}}},
    }  # fmt: skip


def test_what_was_measured_before_is_found_again_or_not():
    eight = (2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.0, 2.0)
    kept = [_cell("a", *eight), _cell("b", *eight), {"model": "m", "variant": "c", "failed": "so"}, _cell("d", 2.0)]
    variants.rate(kept)
    again = [_cell("a", 2.02), _cell("b", 3.0), _cell("c", 1), _cell("d", 1), _cell("e", 1)]
    variants.rate(again)
    found = variants.repeated(again, kept)
    assert [(name, within) for name, within, _ in found] == [("m/a at 1", True), ("m/b at 1", False)]
    speed = kept[1]["batches"]["1"]["speed"]
    assert found[1][2] == f"3.00, not within 2.00 ({speed['from']:.2f}–{speed['to']:.2f})"


def test_a_range_holds_each_round_that_was_seen():
    (one,) = page = [_cell("a", *(2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.0, 3.5))]
    variants.rate(page)
    speed = one["batches"]["1"]["speed"]
    assert speed["to"] == 3.5
    assert 1.5 < speed["from"] < 1.9  # one that is far off widens its own side only


def test_rounds_of_another_hour_are_added_to_those_that_are_kept(monkeypatch, tmp_path):
    def run(model, variant, batches, cache, spent_s, limit_s):
        cold = not (Path(cache) / "made").exists()
        (Path(cache) / "made").touch()
        speed = {"median": 2.0, "low": 1.0, "high": 3.0}
        return {"ready_s": 9.0, "warmup_s": 8.0 if cold else 1.0, "batches": {"1": {"speed": speed}} if spent_s else {}}

    monkeypatch.setattr(variants, "run", run)
    (tmp_path / "m--v").mkdir()
    (tmp_path / "m--v" / "made").touch()  # left by a first start that was stopped
    options = argparse.Namespace(batches="1", seconds=1.0, limit=9.0, rounds=2)
    one = variants.measured(tmp_path / "cells", "m", "v")
    for _ in range(2):
        variants.start(one, options, tmp_path)
        variants.keep(tmp_path / "cells", one)
    assert variants.measured(tmp_path / "cells", "m", "v") == one
    assert (one["warmup_s"], one["warm_s"], len(one["rounds"])) == (8.0, 1.0, 2)

    alone = variants.measured(None, "m", "w")
    variants.start(alone, argparse.Namespace(batches="1", seconds=1.0, limit=9.0, rounds=1), tmp_path)
    assert (alone["warmup_s"], alone["warm_s"], len(alone["rounds"])) == (8.0, 1.0, 1)


def test_a_start_that_fails_hides_no_round_before_it(monkeypatch, tmp_path):
    figures = dict.fromkeys(("parity_relative_error", "parity_cosine", "peak_rss_bytes", "artefact_bytes"), 0.5)
    one = _cell("v", 2.0, 2.0) | figures | {"warmup_s": 8.0, "warm_s": 1.0, "compile_mode": "eager"}
    options = argparse.Namespace(batches="1", seconds=1.0, limit=9.0, rounds=3)
    monkeypatch.setattr(variants, "run", lambda *_: {"failed": "not ready within 9 s"})
    variants.start(one, options, tmp_path)
    variants.rate([one])
    assert variants.table([one], ["1"])[-1].startswith(
        "| m/v (after 2 rounds: not ready within 9 s) | 2.00 (2.00–2.00) | 5.0e-01 | 0.500000 | 8.0 | 1.0 |"
    )
    assert " | 8.0 |  | " in variants.table([one | {"warm_s": None}], ["1"])[-1]  # that start failed
    nothing = variants.measured(None, "m", "x")
    variants.start(nothing, options, tmp_path)
    assert variants.table([nothing], ["1"])[-1].startswith("| m/x | not ready within 9 s | | |")


def test_ranges_of_a_page_hold_all_of_its_figures_together():
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        drawn = np.exp(rng.normal(0.7, 0.05, (9, 8)))
        page = [_cell(f"{place}", *drawn[:, place].tolist()) for place in range(8)]
        variants.rate(page)
        next_one = [_cell(f"{place}", float(np.exp(rng.normal(0.7, 0.05)))) for place in range(8)]
        variants.rate(next_one)
        held += all(within for _, within, _ in variants.repeated(next_one, page))
    assert 0.92 <= held / 400 <= 0.99  # 0.955


def test_a_figure_of_another_machine_need_not_come_again():
    here = variants.machine()
    assert variants.otherwise(here, here) is None
    there = here | {"instructions": [*here["instructions"], "amx_bf16_9"], "torch": "1.0"}
    assert "without amx_bf16_9; " in variants.otherwise(here, there)
    assert f"{here['torch']} torch in place of 1.0" in variants.otherwise(here, there)
    assert "with amx_bf16_9" in variants.otherwise(there, here | {"torch": "1.0"})
    assert "is not said" in variants.otherwise(here, {})
