"""Runs docs/notebook.ipynb; `python tests/support/notebook_cells.py FOLDER`, where runs/ lies, keeps what it shows."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrate.analysis.plot import Figure

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def shown(source: str, names: dict[str, Any]) -> Any:
    """What a cell's last line is worth, None where that is no expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if isinstance(last, ast.Expr) else None


def execute() -> tuple[list[Any], dict[str, Any]]:
    """What each cell of code shows, in the present folder, and the names that are known at the end."""
    names: dict[str, Any] = {}
    return [shown("".join(cell["source"]), names) for cell in cells() if cell["cell_type"] == "code"], names


def output(value: Any, number: int, drawn: Callable[[Figure], bytes]) -> list[dict[str, Any]]:
    """As a notebook keeps it. A figure as a picture: not every page that shows notebooks shows frames."""
    if value is None:
        return []
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if isinstance(value, Figure):
        data["image/png"] = b64encode(drawn(value)).decode()
    elif hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    return [{"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}]


def main(folder: str) -> None:
    import pictures
    from chromium import chromium

    os.chdir(folder)
    whole = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    values, _ = execute()
    of_code = [cell for cell in whole["cells"] if cell["cell_type"] == "code"]
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 300})

        def drawn(figure: Figure) -> bytes:
            page.set_content(figure.html)
            picture = io.BytesIO()
            pictures.written(pictures.taken(page.screenshot(full_page=True)), picture)
            return picture.getvalue()

        for number, (cell, value) in enumerate(zip(of_code, values, strict=True), 1):
            cell |= {"execution_count": number, "outputs": output(value, number, drawn)}
    NOTEBOOK.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
