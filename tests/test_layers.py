"""The import table of the design, held against the code: who may know whom."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"serve", "loadtest", "analysis", "headroom"}

# package or module → (ours it may import, third parties it may import); the longest name that matches holds
TABLE = {
    "serve.wire": ((), ("numpy",)),
    "analysis.records": ((), ()),
    "serve": (
        ("serve",),
        ("numpy", "torch", "torchvision", "transformers", "tokenizers", "safetensors", "psutil", "PIL"),
    ),
    "serve.app": (("serve",), ("ray", "uvicorn", "yaml")),  # the others come with ray
    "serve.cluster": (("serve",), ("ray", "psutil")),  # the processes of a node that did not start
    "serve.nodes": (("serve",), ("ray",)),
    "serve.guard": (("serve",), ("starlette",)),  # comes with ray
    "serve.models.stable_diffusion": (("serve",), ("numpy", "torch", "diffusers")),
    # what is executed by something else than torch; optional, so imported where it is used
    "serve.variants.int8": (("serve",), ("torch", "torchao")),
    "serve.variants.onnx": (("serve",), ("torch", "onnxruntime")),
    "serve.variants.openvino": (("serve",), ("torch", "openvino")),
    "serve.variants.tensorrt": (("serve",), ("torch", "torch_tensorrt")),
    "serve.nvml": (("serve",), ("pynvml", "psutil")),
    "loadtest": (("loadtest.engine", "analysis.records"), ("numpy", "locust")),
    "loadtest.soak": (("loadtest.bert",), ("locust",)),
    "loadtest.engine": (  # what keeps an objective is said by one judge, live and afterwards
        ("loadtest.engine", "serve.wire", "analysis.records", "analysis.judge", "analysis.sketch", "analysis.words"),
        ("locust", "gevent", "numpy"),
    ),
    "loadtest.engine.session": (  # the workers of --processes are our children; psutil comes with locust
        ("loadtest.engine", "serve.wire", "analysis.records"),
        ("locust", "gevent", "numpy", "psutil"),
    ),
    "loadtest.engine.footprint": ((), ("psutil",)),
    # the page on Locust's own server, which is Flask's; the table in the terminal, a program of its own
    "loadtest.engine.web": (("loadtest.engine",), ("flask", "gevent")),
    "loadtest.engine.gate": (("loadtest.engine",), ("flask",)),
    "loadtest.engine.terminal": ((), ("rich",)),
    # the run folder's segments are Arrow
    "loadtest.engine.recorder": (("analysis.records",), ("pyarrow",)),
    "loadtest.engine.trace": (("loadtest.engine",), ("numpy", "pyarrow")),
    "analysis": (("analysis",), ("pandas", "numpy", "numba", "pyarrow", "scipy")),
    "analysis.console": (("analysis",), ("rich",)),
    "headroom": (("serve", "loadtest", "analysis"), ("click",)),
}


def modules():
    for package in ("serve", "loadtest", "analysis"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path
    yield "headroom", ROOT / "headroom.py"


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: locustfiles load as top-level modules, so imports are absolute"
            # `from serve import wire` imports serve.wire
            ours = (node.module or "").split(".")[0] in OURS
            files = [f"{node.module}.{alias.name}" for alias in node.names] if ours else []
            yield from (name if (ROOT / (name.replace(".", "/") + ".py")).exists() else node.module for name in files)
            if not ours:
                yield node.module


def within(name, prefixes):
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_stay_inside_the_table(module, path):
    row = max((name for name in TABLE if within(module, [name])), key=len)
    ours, third_party = TABLE[row]
    for name in imports(path):
        top = name.split(".")[0]
        if top in OURS:
            assert name == module or within(name, ours), f"{module} imports {name}; {row} may not"
        elif top not in sys.stdlib_module_names:
            assert within(name, third_party), f"{module} imports {name}; {row} may not"


def test_the_front_door_imports_the_packages_inside_its_commands():
    tree = ast.parse((ROOT / "headroom.py").read_text())
    at_top = {name for node in tree.body if isinstance(node, ast.Import) for name in (a.name for a in node.names)}
    at_top |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in at_top} & (OURS | {"rich", "torch", "ray", "pandas"})


def test_there_is_no_common_room():
    names = {path.stem for package in ("serve", "loadtest", "analysis") for path in (ROOT / package).rglob("*")}
    assert not names & {"common", "utils", "util", "helpers", "core", "misc", "shared"}
