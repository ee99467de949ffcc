"""Prints what tailrate and some of its extras need, and what builds it: `dependencies.py pyproject.toml serve,onnx`.

An image installs these before it gets any code, so that a change of code doesn't fetch them again.
"""

import sys
import tomllib
from pathlib import Path

path, *extras = sys.argv[1:]
read = tomllib.loads(Path(path).read_text())
project = read["project"]
for names in (
    read["build-system"]["requires"],
    project["dependencies"],
    *(project["optional-dependencies"][extra] for extra in ",".join(extras).split(",") if extra),
):
    print(*names, sep="\n")
