"""The house: who may know whom, held against the code. Rooms are folders; what stands at the door of one, beside its
rooms, is a room by itself. No circle, and nothing imports upwards."""

import ast
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "tailrate"

# room or module → (ours it may import, third parties it may import); the longest name that matches holds
TABLE = {
    "serve.wire": ((), ("numpy",)),
    "serve.body": (("serve.body", "serve.wire"), ("numpy",)),
    "analysis.records": (("analysis.records",), ()),
    "serve": (
        ("serve",),
        ("numpy", "torch", "torchvision", "transformers", "tokenizers", "safetensors", "psutil", "PIL"),
    ),
    "serve.faults": (("serve.faults", "serve.machine", "serve.wire"), ()),  # the load side reads what it may ask for
    "serve.deploy": (("serve",), ("ray", "uvicorn", "yaml", "psutil")),  # the others come with ray
    "serve.deploy.doctor": (("serve",), ("torch", "ray", "psutil")),
    "serve.edge.over_grpc": (("serve",), ("grpc",)),  # comes with ray
    "serve.edge.auth": (("serve",), ("starlette",)),  # comes with ray
    "serve.models.stable_diffusion": (("serve",), ("numpy", "torch", "diffusers")),
    # what is executed by something else than torch; optional, so imported where it is used
    "serve.variants.int8": (("serve",), ("torch", "torchao")),
    "serve.variants.onnx": (("serve",), ("torch", "onnxruntime")),
    "serve.variants.openvino": (("serve",), ("torch", "openvino")),
    "serve.variants.tensorrt": (("serve",), ("torch", "torch_tensorrt")),
    "serve.telemetry.nvml": (("serve",), ("pynvml", "psutil")),
    "loadtest": (("loadtest.engine", "loadtest._images", "analysis.records"), ("numpy", "locust")),
    "loadtest.soak": (("loadtest.bert",), ("locust",)),
    "loadtest._images": (("loadtest.engine", "serve.wire"), ("numpy", "locust")),
    "loadtest.engine": (  # what keeps an objective is said by one judge, live and afterwards
        (
            "loadtest.engine",
            "serve.faults",
            "serve.body",
            "serve.machine",
            "serve.wire",
            "analysis.records",
            "analysis.judging",
            "analysis.run.arrays",  # … and what a row is, by one definition
            "analysis.run.bins",
            "analysis.run.columns",
            "analysis.run.outcomes",
            "analysis.stats",
            "analysis.text.words",
        ),
        ("locust", "gevent", "numpy"),
    ),
    "loadtest.engine.endpoint.http2": (
        ("loadtest.engine.endpoint.http2", "loadtest.engine.endpoint.stamping"),
        ("gevent",),
    ),
    "loadtest.engine.endpoint.http1": (
        ("loadtest.engine.endpoint.http1", "loadtest.engine.endpoint.stamping"),
        ("gevent",),
    ),
    "loadtest.engine.endpoint.stamping": (("loadtest.engine.endpoint.stamping",), ("gevent", "numpy")),
    "loadtest.engine.endpoint.stamping.reading_loop": (("analysis.stats",), ("numba",)),
    "loadtest.engine.child_python": (("__init__",), ()),
    "loadtest._locust": (("analysis", "loadtest", "serve"), ("locust",)),
    "loadtest.engine.session": (  # the workers of --processes are our children; psutil comes with locust
        ("loadtest.engine", "serve.wire", "analysis.records"),
        ("locust", "gevent", "numpy", "psutil"),
    ),
    "loadtest.engine.soak.process_usage": ((), ("psutil",)),
    # the page on Locust's own server, which is Flask's; the table in the terminal, a program of its own
    "loadtest.engine.live.web": (("loadtest.engine", "analysis.pages.assets"), ("flask", "gevent")),
    "loadtest.engine.live.same_origin": (("loadtest.engine", "analysis.records"), ("flask",)),
    "loadtest.engine.live.terminal": (("analysis.text.words",), ("rich",)),
    # the run folder's segments are Arrow
    "loadtest.engine.record.segments": (("analysis.records",), ("pyarrow",)),
    "loadtest.engine.modes._trace": (("loadtest.engine",), ("numpy", "pyarrow")),
    "loadtest.engine.workers.on_time": (
        ("loadtest.engine.workers.on_time",),
        ("gevent", "greenlet", "numpy", "pyarrow"),
    ),
    # rows of a user's file
    "loadtest.engine.workers.input": (
        ("loadtest.engine", "serve.wire", "analysis.text.words"),
        ("gevent", "numpy", "pyarrow"),
    ),
    # a library that only who asks for it needs
    "loadtest.engine.workers.input.tokenizer": (("loadtest.engine",), ("tokenizers",)),
    "analysis": (("analysis",), ("pandas", "numpy", "numba", "pyarrow", "scipy")),
    "analysis.text.console": (("analysis",), ("rich",)),
    # whoever exports to those has them
    "analysis.exports.forms.mlflow": (("analysis",), ("mlflow",)),
    "analysis.exports.forms.wandb": (("analysis",), ("wandb",)),
    "cli": (("cli", "serve", "loadtest", "analysis"), ("click",)),
    "cli.run_file": (("cli", "loadtest"), ("click", "yaml")),
    "cli.yaml_words": ((), ("yaml",)),
    "__main__": (("cli",), ()),
    "__init__": ((), ()),
}
# each may import what stands in a line above its own, or itself: the floors of each house
FLOORS = (
    ("analysis.records", "serve.wire", "serve.file_locks", "serve.machine"),
    # serve
    ("serve.body",),
    ("serve.asgi", "serve.faults", "serve.spec"),
    ("serve.models", "serve.telemetry", "serve.variants"),
    ("serve.options",),
    ("serve.runner",),
    ("serve.engine",),
    ("serve.edge.openai",),
    ("serve.edge", "serve.bare_loop"),
    ("serve.deploy", "serve.telemetry.agent"),
    # analysis
    ("analysis.stats", "analysis.steps.faults", "analysis.text", "analysis.pages.assets"),
    ("analysis.pages.html",),
    ("analysis.judging", "analysis.run", "analysis.planning.simulator"),
    ("analysis.counting", "analysis.server_metrics"),
    ("analysis.steps",),
    ("analysis.verdicts",),
    ("analysis.soak", "analysis.history", "analysis.pages.report.charts", "analysis"),
    (
        "analysis.planning.model",
        "analysis.exports",
        "analysis.exports.forms",
        "analysis.pages.report",
        "analysis.pages.index",
        "analysis.plot",
    ),
    ("analysis.planning.plan",),
    ("analysis.planning", "analysis.pages.plan"),
    # loadtest
    (
        "loadtest",
        "loadtest.engine",
        "loadtest.engine.clock",
        "loadtest.engine.child_python",
        "loadtest.engine.faults",
        "loadtest.engine.endpoint.stamping",
        "loadtest.engine.workers.on_time",
    ),
    (
        "loadtest.engine.scenario",
        "loadtest._locust",
        "loadtest.engine.endpoint.http1",
        "loadtest.engine.endpoint.http2",
    ),
    ("loadtest.engine.endpoint", "loadtest.engine.live"),
    ("loadtest.engine.endpoint.protocols",),
    ("loadtest.engine.modes",),
    ("loadtest.engine.record", "loadtest.engine.workers.input"),
    ("loadtest.engine.record.devices", "loadtest.engine.record.server_metrics"),
    (
        "loadtest.engine.workers",
        "loadtest.engine.injection",
        "loadtest.engine.soak",
    ),
    ("loadtest.engine.conductor",),
    ("loadtest.engine.session",),
    ("loadtest.engine.user",),
    # the command line
    ("cli.misuse",),
    ("cli.campaign", "cli.options"),
    ("cli.commands",),
    ("cli.main",),
)
DEEPEST = 9
"""Rooms that stand on each other; what stands at a door is none."""
MOST_ENTRIES = {
    "serve": 13, "analysis": 15, "analysis.run": 13, "analysis.stats": 13, "loadtest": 13,
    "loadtest.engine.endpoint": 15,
}  # fmt: skip
"""Of a room that has more than a dozen, beside its `__init__` and folders of extensions, such as one file per model."""
EXTENSIONS = {
    "serve.models",
    "serve.variants",
    "serve.faults",
    "loadtest.engine.modes",
    "loadtest.engine.endpoint.protocols",
    "loadtest.engine.faults",
    "loadtest.engine.record.server_metrics.presets",
    "analysis.steps.faults",
    "analysis.exports.forms",
    "analysis.pages.report.sections",
    "cli.commands",
}
DOORS = ("", "serve", "analysis", "loadtest", "loadtest.engine", "cli")


def modules():
    """(name below the package, file); the links in the package's folder lead to ours beside it."""
    for name in ("serve", "loadtest", "analysis", PACKAGE):
        for path in sorted((ROOT / name).rglob("*.py")):
            words = path.relative_to(ROOT / PACKAGE if name == PACKAGE else ROOT).with_suffix("").parts
            yield ".".join(words).removesuffix(".__init__"), path


FILES = dict(modules())


@cache
def imports(path):
    """(ours or not, name of a module)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                ours = within(alias.name, [PACKAGE])
                name = alias.name.removeprefix(PACKAGE).removeprefix(".") or "__init__" if ours else alias.name
                found.append((ours, name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: locustfiles load as top-level modules, so imports are absolute"
            if not within(node.module, [PACKAGE]):
                found.append((False, node.module))
                continue
            parent = node.module.removeprefix(PACKAGE).removeprefix(".")
            for alias in node.names:
                whole = f"{parent}.{alias.name}".removeprefix(".")
                found.append((True, whole if whole in FILES else parent))
    return found


def within(name, prefixes):
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def room(module):
    """The folder that a module is in; at a door, the module."""
    folder = module.rpartition(".")[0]
    return module if FILES[module].name == "__init__.py" or folder in DOORS else folder


@pytest.mark.parametrize(("module", "path"), FILES.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_stay_inside_the_table(module, path):
    row = max((name for name in TABLE if within(module, [name])), key=len)
    may_import, third_party = TABLE[row]
    for ours, name in imports(path):
        if ours:
            assert name == module or within(name, may_import), f"{module} imports {name}; {row} may not"
        elif (top := name.split(".")[0]) not in sys.stdlib_module_names:
            assert within(name, third_party), f"{module} imports {top}; {row} may not"


def test_every_row_of_the_tables_is_of_something():
    assert all(any(within(name, [row]) for name in FILES) for row in TABLE)
    assert {name for floor in FLOORS for name in floor} <= {room(name) for name in FILES}


def arrows():
    """Of rooms: from whoever imports to what it imports, with a pair of modules that shows it."""
    found = defaultdict(dict)
    for module, path in FILES.items():
        for ours, name in imports(path):
            if ours and name in FILES and room(name) != room(module):
                found[room(module)][room(name)] = (module, name)
    return found


def test_no_room_imports_upwards():
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    for above, below in arrows().items():
        for other, (module, name) in below.items():
            if above in floor and other in floor:
                assert floor[other] < floor[above], f"{module} imports {name}, of the same floor or one above"


def test_rooms_make_no_circle_and_stand_no_more_than_nine_deep():
    known, under_way = {}, []

    def depth(name):
        assert name not in under_way, f"a circle: {' → '.join([*under_way[under_way.index(name) :], name])}"
        if name not in known:
            under_way.append(name)
            below = max(map(depth, found.get(name, ())), default=0)
            under_way.pop()
            known[name] = below + (FILES[name].name == "__init__.py" and within(name, TOPS))
        return known[name]

    found = arrows()
    assert max(map(depth, {room(name) for name in FILES})) <= DEEPEST


MOST_LINES, MOST_PARAMETERS = 60, 8
"""Of a function; beside `self` or `cls`."""


def long_functions():
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                count = sum(name not in ("self", "cls") for name in names) + bool(given.vararg) + bool(given.kwarg)
                if node.end_lineno - node.lineno + 1 > MOST_LINES or count > MOST_PARAMETERS:
                    yield module, node.name


def test_a_function_fits_on_a_screen():
    assert list(long_functions()) == []


MOST_FILE_LINES = 300


def test_a_longer_file_is_listed_with_its_reason():
    section = (ROOT / "docs/testing.md").read_text().partition("## Long files")[2].partition("\n## ")[0]
    listed = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
    longer = {
        str(path.relative_to(ROOT)) for path in FILES.values() if len(path.read_text().splitlines()) > MOST_FILE_LINES
    }
    assert set(listed) == longer, "take it apart, or say why not in docs/testing.md; a shorter one leaves the table"
    assert all(len(line.split("|")[2].split()) > 1 for line in listed.values())


TOPS = ("serve", "loadtest", "analysis", "cli")


def test_a_room_has_few_entries_and_says_what_it_is():
    for name, path in FILES.items():
        if path.name == "__init__.py" and name not in EXTENSIONS and name != "__init__":
            entries = {one.name for one in path.parent.iterdir()} - {"__init__.py", "__pycache__"}
            entries -= {extension.rpartition(".")[2] for extension in EXTENSIONS}
            assert len(entries) <= MOST_ENTRIES.get(name, 12), f"{name} has {len(entries)} entries"
        assert path.name != "__init__.py" or ast.get_docstring(ast.parse(path.read_text())), f"{name} says nothing"


def test_no_module_reads_what_is_private_to_another():
    for module, path in FILES.items():
        tree = ast.parse(path.read_text())
        names = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and within(node.module, [PACKAGE]):
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}".removeprefix(f"{PACKAGE}.")
                    if whole in FILES:
                        names[alias.asname or alias.name] = whole
                    else:
                        assert not alias.name.startswith("_"), f"{module} imports {alias.name} of {node.module}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                assert not private or f"{names[node.value.id]}.{node.attr}" in FILES, f"{module} reads {node.attr}"


def test_the_command_line_imports_the_packages_inside_its_commands():
    for path in sorted(p for folder in (".", "commands") for p in (ROOT / PACKAGE / "cli" / folder).glob("*.py")):
        at_top = {
            name for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        }  # fmt: skip
        assert not {name for name in at_top if within(name, (PACKAGE, "rich", "torch", "ray", "pandas"))
                    and not within(name, [f"{PACKAGE}.cli"])}, path  # fmt: skip


def test_nothing_outside_needs_the_planning():
    """It could be taken out whole: its page and the command line know of it, and the load side runs it as a program."""
    for module, path in FILES.items():
        if not within(module, ("analysis.planning", "analysis.pages.plan", "cli")):
            assert not [name for ours, name in imports(path) if ours and within(name, ["analysis.planning"])], module


def test_there_is_no_common_room():
    names = {
        path.stem for package in ("serve", "loadtest", "analysis", PACKAGE) for path in (ROOT / package).rglob("*")
    }
    assert not names & {"common", "utils", "util", "helpers", "core", "misc", "shared"}


def test_the_package_links_to_the_folders_beside_it():
    for name in ("serve", "loadtest", "analysis"):
        assert (ROOT / PACKAGE / name).readlink() == Path("..", name)


def test_no_two_files_of_tests_have_one_name():
    """They import each other by it."""
    paths = [path for path in (ROOT / "tests").rglob("*.py") if "bench" not in path.parts]
    assert len({path.name for path in paths}) == len(paths)
