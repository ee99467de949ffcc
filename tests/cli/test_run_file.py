"""A run as a file: what it says is what the command line would have said, and what is wrong in it has a line."""

import json
import subprocess
import sys
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from endpoint import endpoint
from waiting import PATIENCE_S

from tailrate.cli import run_file
from tailrate.cli.commands import campaign as campaign_module
from tailrate.cli.commands import run as run_module
from tailrate.cli.commands import soak as soak_module
from tailrate.loadtest.engine.endpoint.target import Target, parse

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "run-file.schema.json"
WHOLE = """
scenario: mlp
endpoints:
  - {name: a, url: "http://127.0.0.1:1"}
  - {name: b, url: "http://127.0.0.1:2", protocol: json, path: /go, body: '{"rows": "$x"}'}
  - c=http://127.0.0.1:3#m/2
rates: [20, 50.5]
step_seconds: 3
slo: [p99<50ms, errors<1%]
json-headers: {x-trace: 7, accept: application/json}
json-body: {rows: $x}
self-check: "off"
fail-on-recompile: true
set: {sequence: 128}
"""


def given(tmp_path, text, *words, command=run_module.run):
    """The parameters that a command gets."""
    path = tmp_path / "bench.yaml"
    path.write_text(text)
    with command.make_context(command.name, [str(path), *words]) as context:
        return run_file.applied(context)


def test_what_a_file_says_is_what_the_command_line_would_have_said(tmp_path):
    found = given(tmp_path, WHOLE, "--step-seconds=5")
    assert found["scenario"] == "mlp"
    assert (found["rates"], found["slo"], found["self_check"]) == ("20,50.5", "p99<50ms;errors<1%", "off")
    assert found["step_seconds"] == 5.0  # the command line goes before the file
    assert (found["json_headers"], found["json_body"]) == ("x-trace: 7;accept: application/json", '{"rows": "$x"}')
    assert (found["fail_on_recompile"], found["settings"], found["seed"]) == (True, ("sequence=128",), None)
    assert parse(found["endpoints"], "mlp") == [
        Target("http://127.0.0.1:1", "mlp", "a"),
        Target("http://127.0.0.1:2", "mlp", "b", "", "json", {"path": "/go", "body": '{"rows": "$x"}'}),
        Target("http://127.0.0.1:3", "m", "c", "2"),
    ]


def test_words_are_taken_as_they_are_written(tmp_path):
    """YAML 1.1 has 21005, 1.1, True, a date and 61 for these."""
    found = given(
        tmp_path,
        "scenario: mlp\nrates: 5:50:5\nself-check: on\nstep-seconds: 30.1234567\nrun-id: 2026-11-30\n"
        "json-body: {at: 2026-11-30, n: 1.50, span: 1:01, yes: true}\nset: {size: 1.10}\ncache-dir: 1_000\n"
        "endpoints:\n- &a {url: http://h, version: 1.10, name: on, protocol: oip, binary: off}\n"
        "- {<<: *a, name: 2026-11-31}\n",
    )
    assert (found["rates"], found["self_check"], found["step_seconds"]) == ("5:50:5", "on", 30.1234567)
    assert (found["run_id"], found["settings"], found["cache_dir"]) == ("2026-11-30", ("size=1.10",), "1_000")
    assert json.loads(found["json_body"]) == {"at": "2026-11-30", "n": 1.5, "span": "1:01", "yes": True}
    assert parse(found["endpoints"], "m") == [
        Target("http://h", "m", name, "1.10", "oip", {"binary": False}) for name in ("on", "2026-11-31")
    ]
    assert given(tmp_path, "scenario: mlp\nrates: 10:20:10\n")["rates"] == "10:20:10"


def test_a_printed_file_says_the_same_as_what_it_was_printed_from(tmp_path):
    def printed(text, *words):
        (tmp_path / "bench.yaml").write_text(text)
        done = CliRunner().invoke(run_module.run, [str(tmp_path / "bench.yaml"), *words, "--print-file"])
        assert done.exit_code == 0, done.output
        return done.output

    once = printed(WHOLE, "--seed=9", "--run-id=x")
    assert printed(once) == once
    before, after = given(tmp_path, WHOLE, "--seed=9"), given(tmp_path, once)
    assert parse(before.pop("endpoints"), "m") == parse(after.pop("endpoints"), "m")
    assert before == after
    assert "run-id" not in once  # a second run is another one
    words = CliRunner().invoke(
        run_module.run, ["mlp", "--endpoints=a=http://h,b=http://i", "--rates=5", "--print-file"]
    )
    assert yaml.safe_load(words.output) == {"scenario": "mlp", "endpoints": ["a=http://h", "b=http://i"], "rates": "5"}


def test_a_scenarios_own_options_are_in_it_too(tmp_path):
    words = ["chat", "--prompt-tokens", "900", "--own-token=s3cret", "--seed=3"]
    done = CliRunner().invoke(run_module.run, [*words, "--print-file"])
    said = ["--prompt-tokens", "900", "--own-token=***"]
    assert yaml.safe_load(done.output) == {"scenario": "chat", "seed": 3, "locust-args": said}
    found = given(tmp_path, done.output, "--prompt-tokens=7")
    assert found["locust_args"] == (*said, "--prompt-tokens=7")  # of two, Locust takes the last


def test_a_printed_file_holds_no_secret(tmp_path):
    words = ["mlp", "--host=http://h", "--json-headers=authorization: Bearer s3cret; accept: a/b", "--print-file"]
    printed = CliRunner().invoke(run_module.run, words).output
    assert yaml.safe_load(printed)["json-headers"] == "authorization: ***; accept: a/b"
    with soak_module.soak.make_context(
        "soak", ["mlp", "--webhook=https://s3cret", "--capacity-from=runs/x"]
    ) as context:
        assert yaml.safe_load(run_file.text(context)) == {"scenario": "mlp", "capacity-from": "runs/x"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("scenario: chat\nprompt-tokens: 9\n", "no option of tailrate run; those of a scenario stand under"),
        ("scenario: chat\nlocust-args: 9\n", "line 2: 'locust-args' must be a list of words"),
        ("scenario: mlp\nratess: 4\n", "line 2: 'ratess' is no option of tailrate run; did you mean rates?"),
        ("scenario: mlp\nrates: 4\n\nrates: 5\n", "line 4: 'rates' is there twice"),
        ("scenario: mlp\nstep-seconds: abc\n", "line 2: step-seconds: 'abc' is not a valid float"),
        ("scenario: mlp\nmode: no\n", "line 2: mode: 'no' is not one of 'ab'"),
        ("scenario: mlp\nfail-on-recompile: 3\n", "line 2: 'fail-on-recompile' must be true or false, not 3"),
        ("scenario: mlp\nrates:\n", "line 2: 'rates' has no value"),
        ("scenario: mlp\nendpoints: [{name: a}]\n", "line 2: each of the endpoints needs a url, as {'name': 'a'}"),
        ("scenario: mlp\nrates: [5\n", "line 3: it is no YAML: "),
        ("scenario: mlp\nrates: 4\nscenario: bert\n", "line 3: 'scenario' is there twice"),
        ("scenario: mlp\nendpoints:\n- url: a\n  url: b\n", "line 4: 'url' is there twice"),
        ("scenario: mlp\x00\n", "it is no YAML: unacceptable character #x0000"),
        ('scenario: mlp\nrun-dir: "a\\0"\n', "line 2: it is no YAML: a word holds a NUL"),
        (f"scenario: mlp\nrates: {3000 * '['}", "is nested too deep"),
        ("rates: 5\n", "names no scenario; write for instance scenario: bert"),
        ("- 1\n", "holds no keys"),
        ("", "holds no keys"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, capsys, text, sentence):
    with pytest.raises(SystemExit) as ended:
        given(tmp_path, text)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_soak_takes_one_too(tmp_path):
    found = given(tmp_path, "scenario: null\nrates: 5\nhours: 2\n".replace("null", "'null'"), command=soak_module.soak)
    assert (found["scenario"], found["rates"], found["hours"]) == ("null", "5", 2.0)


def test_a_campaign_takes_one_without_a_scenario(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(campaign_module, "_study", lambda *words: asked.append(words))
    path = tmp_path / "study.yaml"
    path.write_text("quick: false\nonly: [mlp, bert-128]\ndevice: cpu\nout: there\n")
    campaign_module.campaign.main([str(path), "--out", "here"], standalone_mode=False)
    assert asked == [(False, Path("here"), "cpu", "mlp,bert-128")]
    path.write_text("scenario: mlp\n")
    with pytest.raises(SystemExit):
        campaign_module.campaign.main([str(path)], standalone_mode=False)
    assert "line 1: 'scenario' is no option of tailrate campaign" in capsys.readouterr().err


def test_a_locustfile_is_meant_from_the_folder_of_the_file(tmp_path):
    assert given(tmp_path, "scenario: mine.py\n")["scenario"] == str(tmp_path / "mine.py")


@pytest.mark.parametrize("command", [run_module.run, soak_module.soak])
def test_the_schema_takes_what_the_command_takes(command: click.Command):
    schema = run_file.schema(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    good = yaml.safe_load(WHOLE.replace("step_seconds", "step-seconds"))
    assert list(check.iter_errors(good)) == []
    for wrong in ({"ratess": 5}, {"mode": "no"}, {"step-seconds": "abc"}, {"endpoints": [{"name": "a"}]}):
        assert list(check.iter_errors(good | wrong)), wrong


def test_the_published_schema_is_that_of_the_command():
    """In a process of its own: tests have protocols that nobody else has."""
    code = "import json; from tailrate.cli import run_file; from tailrate.cli.commands.run import run; "
    code += "print(json.dumps(run_file.schema(run)))"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(SCHEMA.read_text()) == json.loads(made.stdout)


@pytest.mark.live
def test_a_run_is_driven_by_a_file_and_again_by_that_in_its_folder(tmp_path):
    def driven(path, run_id):
        done = subprocess.run(
            [sys.executable, "-m", "tailrate", "run", path, f"--run-dir={tmp_path}", f"--run-id={run_id}"],
            capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode in (0, 3), done.stdout + done.stderr
        return json.loads((tmp_path / run_id / "run.json").read_text())

    with endpoint(delay_ms=2) as url:
        (tmp_path / "bench.yaml").write_text(
            f"scenario: 'null'\nendpoints:\n  - {{name: one, url: {url}, model: 'null', version: eager}}\n"
            "rates: 40\nstep-seconds: 2\nsettle-seconds: 0.5\nidle-seconds: 0\nself-check: 'off'\nseed: 7\n"
        )
        once, again = driven(tmp_path / "bench.yaml", "once"), driven(tmp_path / "once" / "run.yaml", "again")
    for key in ("seed", "rates", "mode", "slo", "rows"):
        assert once["scenario"][key] == again["scenario"][key]
    assert once["scenario"]["seed"] == 7
    assert [entry["name"] for entry in once["endpoints"]] == [entry["name"] for entry in again["endpoints"]] == ["one"]
    assert once["totals"]["scheduled"] == again["totals"]["scheduled"] > 40
    page = (tmp_path / "once" / "report.md").read_text()
    assert "tailrate run runs/once/run.yaml" in page
    assert "seed: 7" in page
