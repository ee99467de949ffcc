"""The site of docs/: built without a warning, every page in its menu, every page that a text names a link."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urljoin

import pytest

from tailrate.analysis.steps.step_summary import COLUMNS
from tailrate.cli.main import main
from tailrate.serve import wire
from tailrate.serve.edge.contract import OPERATIONS, SCHEMAS, contract

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def hook():
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / ".ci" / "site.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_it_is_built_without_a_warning_and_has_every_page(site):
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / (place.parent if page.name == "index.md" else place) / "index.html").is_file(), page
    assert (site / "index.html").is_file()


def test_each_picture_and_script_is_there(site):
    seen = 0
    for page in site.rglob("*.html"):
        address = "/" + page.relative_to(site).as_posix().removesuffix("index.html")
        for source in re.findall(r'\s(?:src|srcset)="([^"]+)"', page.read_text()):
            if not source.startswith("data:"):
                assert (site / urljoin(address, source).lstrip("/")).is_file(), (address, source)
                seen += source.endswith(".png")
    assert seen >= 12


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert [url for url in fetched if "canonical" not in url] == [], page


def test_every_command_and_option_is_in_the_reference(site):
    told = (site / "reference" / "commands" / "index.html").read_text()
    for name in main.commands:
        assert f"tailrate {name}" in told
        for param in main.commands[name].params:
            if not getattr(param, "hidden", False) and param.param_type_name == "option":
                assert param.opts[0] in told, (name, param.opts)


def test_paths_columns_and_metrics_are_in_the_reference(site):
    def told(name):
        return (site / "reference" / name / "index.html").read_text()

    http = told("http")
    assert all(f"{one.method} {one.path}" in http for one in OPERATIONS)
    assert all(f'id="{name.lower()}"' in http for name in SCHEMAS)
    assert json.loads((site / "reference" / "openapi.json").read_text()) == json.loads(json.dumps(contract()))
    assert all(f"<code>{name}</code>" in told("columns") for name in (*COLUMNS, *wire.SAMPLE_FIELDS))
    metrics = told("metrics")
    for name in ("request_seconds", "refused_total", "tokens_written_total", "device_power_w", "step_ttft_seconds"):
        assert f"<code>tailrate_{name}</code>" in metrics


def test_a_page_that_a_text_names_is_a_link_and_code_stays_as_it_is():
    made = hook()
    uris = ("load.md", "how-to/start.md", "project/security.md")
    files = [SimpleNamespace(src_uri=uri, url=uri.replace(".md", "/")) for uri in uris]
    page = SimpleNamespace(file=files[1])

    def shown(text):
        return made.on_page_markdown(text, page, None, files)

    assert shown("see docs/load.md.") == "see [load.md](../load.md)."
    assert shown("SECURITY.md says") == "[SECURITY.md](../project/security.md) says"
    assert shown('<img src="../pictures/a.png">') == '<img src="../../pictures/a.png">'
    for text in (
        "`docs/load.md`",
        "```\ndocs/load.md\n```",
        '```\n<img src="../pictures/a.png">\n```',
        '<img src="https://there/a.png">',
        "[here](../load.md)",
        "docs/no.md",
        "docs/how-to/start.md",
    ):
        assert shown(text) == text
    assert made.moved("docs/load.md", "project/security.md") == "../load.md"
    assert made.moved("SECURITY.md", "index.md") == "project/security.md"
