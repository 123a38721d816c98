"""`make gallery`: run the examples in docs/gallery, and keep what they print and draw.

An example is a Python file in cells: `# %%` begins code, `# %% [markdown]` text in comments. It
saves one picture under its own name. What it prints is kept in a text file beside it, so that the
site is built from files alone; docs/conf.py makes pages and notebooks of them with this module.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import multiprocessing
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "gallery"
MARK = "# %%"
PICTURE = ".webp"  # a third of the bytes of a PNG, without its bands where colours are few
STEPS = re.compile(r"\b(steps ?= ?)\d+")


@dataclass(frozen=True)
class Cell:
    """A piece of an example: code, or text in Markdown."""

    text: str
    line: int
    is_code: bool


def examples() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def cells(source: str) -> list[Cell]:
    """The cells of an example; what stands before the first mark is none."""
    found: list[Cell] = []
    lines = source.splitlines()
    marks = [number for number, line in enumerate(lines) if line.startswith(MARK)]
    for begin, end in zip(marks, [*marks[1:], len(lines)], strict=True):
        inner, is_code = lines[begin + 1 : end], lines[begin].strip() == MARK
        text = "\n".join(inner if is_code else [re.sub(r"^# ?", "", line) for line in inner])
        found.append(Cell(text.strip("\n"), begin + 1, is_code))
    return found


def outputs(path: Path) -> list[str]:
    """What every code cell printed when the example was last run."""
    kept = path.with_suffix(".txt")
    texts = kept.read_text(encoding="utf-8").split(f"{MARK}\n")[1:] if kept.exists() else []
    return [text.rstrip("\n") for text in texts]


def page(path: Path, source: str) -> str:
    """The example in Markdown, with its output and its picture."""
    printed, parts = iter(outputs(path)), []
    for cell in cells(source):
        if not cell.is_code:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if text := next(printed, ""):
            parts.append(f"```text\n{text}\n```")
    name = path.stem
    links = [
        f'<a href="{name}{suffix}" download>{what}</a>'
        for suffix, what in ((".ipynb", "the notebook"), (".py", "the Python file"))
    ]
    parts.append(f"![{title(source)}]({name}{PICTURE})")
    parts.append(f"Download {links[0]} or {links[1]}.")
    return "\n\n".join(parts) + "\n"


def title(source: str) -> str:
    return cells(source)[0].text.splitlines()[0].removeprefix("# ")


def notebook(path: Path) -> dict[str, Any]:
    """The example as a Jupyter notebook, with its output and its picture."""
    printed, made = iter(outputs(path)), []
    for cell in cells(path.read_text(encoding="utf-8")):
        kind = "code" if cell.is_code else "markdown"
        entry: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": cell.text}
        if cell.is_code:
            text = next(printed, "")
            stream = {"output_type": "stream", "name": "stdout", "text": text}
            entry |= {"execution_count": None, "outputs": [stream] if text else []}
        made.append(entry)
    picture = path.with_suffix(PICTURE)
    if not picture.exists():
        raise SystemExit(f"No picture {picture.name}; run make gallery NAMES={path.stem}.")
    show = f'from IPython.display import Image\n\nImage("{picture.name}")'
    data = base64.b64encode(picture.read_bytes()).decode()
    shown = {"output_type": "display_data", "data": {"image/webp": data}, "metadata": {}}
    made.append({"cell_type": "code", "metadata": {}, "source": show, "execution_count": None})
    made[-1]["outputs"] = [shown]
    for number, entry in enumerate(made):
        entry["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": made}


def write_downloads(path: Path, folder: Path) -> None:
    """The example and its notebook."""
    text = json.dumps(notebook(path), indent=1, ensure_ascii=False)
    (folder / f"{path.stem}.ipynb").write_text(text, encoding="utf-8")
    (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def run(path: Path, out: Path, steps: int | None = None) -> None:
    """Run an example in the folder `out`, with another number of training steps if given."""
    os.environ["COLUMNS"] = "100"  # of the tables that it prints
    source = path.read_text(encoding="utf-8")
    if steps is not None:
        source = STEPS.sub(rf"\g<1>{steps}", source)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(out):
        for cell in (cell for cell in cells(source) if cell.is_code):
            code = compile("\n" * cell.line + cell.text, str(path), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(code, namespace)
            lines = [line.rstrip() for line in stream.getvalue().strip("\n").splitlines()]
            printed.append(f"{MARK}\n" + "".join(f"{line}\n" for line in lines))
    (out / path.with_suffix(".txt").name).write_text("".join(printed), encoding="utf-8")
    if not (out / f"{path.stem}{PICTURE}").exists():
        raise SystemExit(f"{path.name} left no picture {path.stem}{PICTURE}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the examples of the gallery.")
    known = [path.stem for path in examples()]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for texts and pictures")
    parser.add_argument("--steps", type=int, help="training steps, to try an example quickly")
    options = parser.parse_args()
    if unknown := set(options.names) - set(known):
        parser.error(f"no example {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    options.out.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:  # a fresh process for each
        for name in options.names or known:
            begin = time.perf_counter()
            pool.submit(run, FOLDER / f"{name}.py", options.out, options.steps).result()
            sys.stdout.write(f"{name}: {time.perf_counter() - begin:.0f} s\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
