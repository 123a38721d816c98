"""Write docs/files.md: every module of the package with the first paragraph of its docstring."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "gridtnp"
PAGE = ROOT / "docs" / "files.md"
HEADER = """# Every file in one line

Generated from the modules by `python scripts/list_files.py`; a test compares the two. How the
folders depend on each other is in [architecture](architecture.md).
"""


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise SystemExit(f"{path} has no docstring.")
    return " ".join(text.split("\n\n")[0].split())


def page() -> str:
    """The text of the page: the top level first, then the folders."""
    parts = [HEADER]
    folders = [PACKAGE, *sorted(p.parent for p in PACKAGE.glob("*/__init__.py"))]
    for folder in folders:
        name = folder.relative_to(PACKAGE.parent)
        parts.append(f"\n## `{name}/`\n\n{summary(folder / '__init__.py')}\n")
        files = [p for p in sorted(folder.glob("*.py")) if p.name != "__init__.py"]
        parts += [f"\n- `{p.name}`: {summary(p)}" for p in files]
        parts.append("\n" if files else "")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
