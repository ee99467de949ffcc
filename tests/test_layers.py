"""The import table of the design, held against the code: who may know whom."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "tailrate"

# package or module → (ours it may import, third parties it may import); the longest name that matches holds
TABLE = {
    "serve.wire": ((), ("numpy",)),
    "analysis.records": ((), ()),
    "serve": (
        ("serve",),
        ("numpy", "torch", "torchvision", "transformers", "tokenizers", "safetensors", "psutil", "PIL"),
    ),
    "serve.deploy": (("serve",), ("ray", "uvicorn", "yaml", "psutil")),  # the others come with ray
    "serve.deploy.doctor": (("serve",), ("torch", "ray", "psutil")),
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
            "serve.wire",
            "analysis.records",
            "analysis.judging",
            "analysis.stats",
            "analysis.text.words",
        ),
        ("locust", "gevent", "numpy"),
    ),
    "loadtest.engine.child_python": (("__init__",), ()),
    "loadtest.engine.session": (  # the workers of --processes are our children; psutil comes with locust
        ("loadtest.engine", "serve.wire", "analysis.records"),
        ("locust", "gevent", "numpy", "psutil"),
    ),
    "loadtest.engine.soak.process_usage": ((), ("psutil",)),
    # the page on Locust's own server, which is Flask's; the table in the terminal, a program of its own
    "loadtest.engine.live.web": (("loadtest.engine",), ("flask", "gevent")),
    "loadtest.engine.live.same_origin": (("loadtest.engine",), ("flask",)),
    "loadtest.engine.live.terminal": ((), ("rich",)),
    # the run folder's segments are Arrow
    "loadtest.engine.record.segments": (("analysis.records",), ("pyarrow",)),
    "loadtest.engine.scenario.trace": (("loadtest.engine",), ("numpy", "pyarrow")),
    "analysis": (("analysis",), ("pandas", "numpy", "numba", "pyarrow", "scipy")),
    "analysis.text.console": (("analysis",), ("rich",)),
    "cli": (("cli", "serve", "loadtest", "analysis"), ("click",)),
    "__main__": (("cli",), ()),
    "__init__": ((), ()),
}


def modules():
    """(name below the package, file); the links in the package's folder lead to ours beside it."""
    for name in ("serve", "loadtest", "analysis", PACKAGE):
        for path in sorted((ROOT / name).rglob("*.py")):
            words = path.relative_to(ROOT / PACKAGE if name == PACKAGE else ROOT).with_suffix("").parts
            yield ".".join(words).removesuffix(".__init__"), path


NAMES = {name for name, _ in modules()}


def imports(path):
    """(ours or not, name of a module)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                ours = within(alias.name, [PACKAGE])
                yield ours, alias.name.removeprefix(PACKAGE).removeprefix(".") or "__init__" if ours else alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: locustfiles load as top-level modules, so imports are absolute"
            if not within(node.module, [PACKAGE]):
                yield False, node.module
                continue
            parent = node.module.removeprefix(PACKAGE).removeprefix(".")
            for alias in node.names:
                whole = f"{parent}.{alias.name}".removeprefix(".")
                yield True, whole if whole in NAMES else parent


def within(name, prefixes):
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_stay_inside_the_table(module, path):
    row = max((name for name in TABLE if within(module, [name])), key=len)
    may_import, third_party = TABLE[row]
    for ours, name in imports(path):
        if ours:
            assert name == module or within(name, may_import), f"{module} imports {name}; {row} may not"
        elif (top := name.split(".")[0]) not in sys.stdlib_module_names:
            assert within(name, third_party), f"{module} imports {top}; {row} may not"


def test_the_command_line_imports_the_packages_inside_its_commands():
    for path in sorted(p for room in (".", "commands") for p in (ROOT / PACKAGE / "cli" / room).glob("*.py")):
        at_top = {
            name for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        }  # fmt: skip
        assert not {name for name in at_top if within(name, (PACKAGE, "rich", "torch", "ray", "pandas"))
                    and not within(name, [f"{PACKAGE}.cli"])}, path  # fmt: skip


def test_every_row_of_the_table_is_of_something():
    assert all(any(within(name, [row]) for name in NAMES) for row in TABLE)


def test_there_is_no_common_room():
    names = {
        path.stem for package in ("serve", "loadtest", "analysis", PACKAGE) for path in (ROOT / package).rglob("*")
    }
    assert not names & {"common", "utils", "util", "helpers", "core", "misc", "shared"}


def test_the_package_links_to_the_folders_beside_it():
    for name in ("serve", "loadtest", "analysis"):
        assert (ROOT / PACKAGE / name).readlink() == Path("..", name)
