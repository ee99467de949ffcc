import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tailrate.serve.runner import compile_watch
from tailrate.serve.runner.compile_watch import Compiler

pytestmark = pytest.mark.computes

HERE = "runner/test_compile_watch.py"


@pytest.fixture(autouse=True)
def a_compiler_as_it_was() -> Iterator[None]:
    config = torch._dynamo.config
    torch._dynamo.reset()
    with config.patch(recompile_limit=8, accumulated_recompile_limit=256, fail_on_recompile_limit_hit=False):
        yield
    torch.compiler.set_stance("default")
    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def loop_with_a_break(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x


def compiled(function: Any) -> Any:
    return torch.compile(function, dynamic=False, backend="eager")


def test_a_shape_that_was_warm_is_no_event_and_another_is_a_recompile_with_its_reason() -> None:
    call, watch = compiled(double), Compiler()
    before = compile_watch.compilations()
    call(torch.ones(2))
    call(torch.ones(3))
    watch.ready()
    call(torch.ones(2))
    call(torch.ones(3))
    assert watch.happened() is None
    assert watch.events() == []
    call(torch.ones(4))
    assert watch.happened() == "recompile"
    assert watch.happened() is None
    (event,) = watch.events()
    assert event.place.startswith(f"{HERE}:")
    assert event.place.endswith(" in double")
    assert "expected 3, actual 4" in event.reason or "expected 2, actual 4" in event.reason
    facts = watch.facts()
    assert (facts["recompiles"], facts["first_hits"], facts["fallbacks"]) == (1, 0, 0)
    assert facts["compilations"] == before + 2
    assert event.reason in facts["recompile_reasons"]


def test_the_metadata_may_be_read_before_the_batch_is_asked_about() -> None:
    call, watch = compiled(double), Compiler()
    call(torch.ones(2))
    watch.ready()
    call(torch.ones(3))
    assert watch.facts()["recompiles"] == 1
    assert watch.happened() == "recompile"


def test_a_function_that_the_warm_up_did_not_reach_is_a_first_hit() -> None:
    call, other, watch = compiled(double), compiled(lambda x: x - 1), Compiler()
    call(torch.ones(2))
    watch.ready()
    other(torch.ones(2))
    assert watch.happened() == "first_hit"
    assert watch.facts()["first_hits"] == 1


def test_past_the_limit_the_silent_fallback_is_seen_and_the_request_still_answered() -> None:
    call, watch = compiled(double), Compiler()
    compile_watch.allow_compilations(2)
    torch._dynamo.config.recompile_limit = 2
    call(torch.ones(2))
    watch.ready()
    call(torch.ones(3))
    assert watch.happened() == "recompile"
    assert call(torch.ones(4)).tolist() == [2] * 4
    assert watch.happened() == "fallback"
    assert watch.facts()["fallbacks"] == 1
    assert "recompile limit exceeded" in watch.facts()["recompile_reasons"]
    assert call(torch.ones(5)).tolist() == [2] * 5  # eager from now on, which torch tells nobody
    assert watch.happened() is None


def test_past_the_limit_the_warm_up_fails() -> None:
    call = compiled(double)
    compile_watch.allow_compilations(1)
    torch._dynamo.config.recompile_limit = 2
    for size in (2, 3):
        call(torch.ones(size))
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        call(torch.ones(4))


def test_code_that_cannot_be_compiled_at_all_is_a_fallback() -> None:
    call, other, watch = compiled(double), compiled(loop_with_a_break), Compiler()
    call(torch.ones(2))
    watch.ready()
    other(torch.ones(2))
    assert watch.happened() == "fallback"
    (event,) = [event for event in watch.events() if event.kind == "fallback"]
    assert event.place.startswith(f"{HERE}:")
    assert event.place.endswith("in loop_with_a_break")
    assert "graph_break" in event.reason


def test_graph_breaks_are_listed_once_each_with_their_place() -> None:
    call = compiled(with_a_break)
    call(torch.ones(2))
    call(torch.ones(3))
    ((line, times),) = compile_watch.graph_breaks().items()
    number = with_a_break.__code__.co_firstlineno + 2
    assert line.startswith(f"{HERE}:{number} in with_a_break: Call to `torch._dynamo.graph_break()`")
    assert times == 2
    watch = Compiler()
    watch.ready()
    call(torch.ones(4))
    facts = watch.facts()  # of the warm-up, whatever came later
    assert facts["graph_breaks"] == 2
    assert facts["graph_break_places"] == f"{line} (2 times)"


def test_a_branch_on_data_is_a_graph_break_too_and_its_other_side_a_first_hit() -> None:
    call, watch = compiled(branch), Compiler()
    call(torch.ones(2))
    watch.ready()
    assert watch.facts()["graph_breaks"] == 1
    call(-torch.ones(2))
    assert watch.happened() == "first_hit"
    assert watch.events()[0].place.endswith("in branch")


def test_a_function_that_runs_eager_as_a_whole_is_listed() -> None:
    compiled(loop_with_a_break)(torch.ones(2))
    (line,) = compile_watch.graph_breaks()
    assert line.startswith(f"{HERE}:")
    assert "in loop_with_a_break, all of which runs eager: Call to `torch._dynamo.graph_break()`" in line
    torch._dynamo.reset()  # as when a mode has failed and the next is tried
    compiled(double)(torch.ones(2))
    assert compile_watch.graph_breaks() == {}


@pytest.mark.parametrize("function", [double, with_a_break])
def test_fail_on_recompile_refuses_what_is_not_warm_and_serves_what_is(function: Any) -> None:
    call, watch = compiled(function), Compiler()
    warm = call(torch.ones(2))
    watch.ready(fail_on_recompile=True)
    with pytest.raises(RuntimeError) as problem:
        call(torch.ones(3))
    sentence = compile_watch.refused(problem.value)
    assert sentence is not None
    assert sentence.startswith("this request would make torch.compile compile again, which --fail-on-recompile forbids")
    assert "expected 2, actual 3" in sentence
    assert "\n" not in sentence
    assert call(torch.ones(2)).equal(warm)  # and the one after it is served
    assert watch.happened() is None


def test_fail_on_recompile_lets_through_what_the_compiler_skipped_in_the_warm_up() -> None:
    call, watch = compiled(loop_with_a_break), Compiler()
    call(torch.ones(2))
    watch.ready(fail_on_recompile=True)
    assert call(torch.ones(3)).tolist() == [3] * 3  # eager in the warm-up, eager now


def test_other_problems_are_not_taken_for_a_recompile() -> None:
    assert compile_watch.refused(RuntimeError("out of memory")) is None
    assert compile_watch.refused(ValueError("stance is 'fail_on_recompile'")) is None


OPENING = """
import sys
import torch
from tailrate.serve import models, variants
from tailrate.serve.options import ServeOptions
from tailrate.serve.runner.open_runner import open_runner

mlp = models.load("mlp")

def opened(spec, **how):
    options = ServeOptions(("mlp",), device="cpu", cache_dir=sys.argv[1], **how)
    return open_runner(spec, variants.load("eager"), options, print)
"""


def in_a_process(program: str, cache: Path, environ: Mapping[str, str] | None = None) -> str:
    """What it prints, in a process that has loaded no compiler yet."""
    command, root = [sys.executable, "-c", OPENING + program, str(cache)], Path(__file__).parents[3]
    env = os.environ | (environ or {})
    return subprocess.run(command, check=True, cwd=root, env=env, stdout=subprocess.PIPE, text=True).stdout


def test_a_process_that_does_not_compile_never_loads_the_compiler_and_torch_logs_go_to_a_file(tmp_path: Path) -> None:
    assert compile_watch.send_logs_to(tmp_path, {}) is None
    given = {"TORCH_LOGS": "recompiles", "TORCH_LOGS_OUT": "/elsewhere.log"}
    assert compile_watch.send_logs_to(tmp_path, given) == Path("/elsewhere.log")
    environ = {"TORCH_LOGS": "recompiles"}
    path = compile_watch.send_logs_to(tmp_path / "logs", environ)
    assert path == tmp_path / "logs" / "torch.log"
    program = (
        "with opened(mlp, max_batch=1):\n"
        "    assert 'torch._dynamo' not in sys.modules\n"
        "from tailrate.serve.runner.compile_watch import Compiler\n"
        "watch = Compiler()\n"
        "watch.ready(fail_on_recompile=True)\n"
        "assert watch.happened() is None\n"
        "assert watch.facts()['compilations'] == 0 and watch.facts()['graph_break_places'] == ''\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "call = torch.compile(lambda x: x + 1, dynamic=False, backend='eager')\n"
        "call(torch.ones(2)), call(torch.ones(3))\n"
    )
    in_a_process(program, tmp_path, environ)
    assert "expected 2, actual 3" in path.read_text()


OWN = """
from dataclasses import replace

class Own(torch.nn.Module):
    def forward(self, x):
        return torch.compile(torch.neg, dynamic=False, backend="eager")(x)

with opened(replace(mlp, build=Own), buckets=tuple(range(1, 13))) as runner:
    print({name: runner.parameters()[name] for name in ("compilations", "graph_breaks", "fallbacks")})
"""


def test_a_module_that_compiles_itself_has_room_for_every_bucket(tmp_path: Path) -> None:
    """torch's own limit is eight; the compiler is loaded by the first call, and not by us before."""
    said = in_a_process(OWN, tmp_path)
    assert said.splitlines()[-1] == "{'compilations': 12, 'graph_breaks': 0, 'fallbacks': 0}"
