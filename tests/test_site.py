"""The docs site: every public name is in the reference, examples are complete and run, and the
built pages work from a folder, without a network.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, why_not

import gridtnp

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts"))

import gallery  # noqa: E402

EXAMPLES = gallery.examples()
REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
MODULES = re.findall(r"automodule:: (\S+)", REFERENCE)
WHOLE = ("network", "distributions", "evaluation", "synthetic")
"""Folders of the package that are in the reference with all their modules."""


# ---- the reference -------------------------------------------------------------------------------


def public(module: str) -> list[str]:
    """Functions and classes that a module defines, but for those that `gridtnp` has itself."""
    path = Path(importlib.import_module(module).__file__ or "")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = [n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return [n for n in found if not n.startswith("_") and n not in gridtnp.__all__]


def test_every_name_of_the_package_is_in_the_reference() -> None:
    entries = r"(?:autoclass|autofunction|py:data):: gridtnp\.([\w.]+)$"
    listed = set(re.findall(entries, REFERENCE, re.MULTILINE))
    modules = {"config", "demo", "plots"}
    assert {"gridtnp.config", "gridtnp.demo"} <= set(MODULES)
    assert set(gridtnp.__all__) - modules <= listed
    assert {f"plots.{name}" for name in gridtnp.plots.__all__} <= listed


def test_every_module_of_the_documented_folders_is_in_the_reference() -> None:
    package = Path(gridtnp.__file__).parent
    there = {f"gridtnp.{f}.{p.stem}" for f in WHOLE for p in (package / f).glob("*.py")}
    assert {name for name in there if not name.endswith("__init__")} <= set(MODULES)
    assert len(MODULES) == len(set(MODULES))


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_a_docstring(module: str) -> None:
    """The reference leaves out what has none."""
    loaded = importlib.import_module(module)
    assert [name for name in public(module) if not getattr(loaded, name).__doc__] == []


def test_what_the_docs_import_is_in_the_reference() -> None:
    pages = [*DOCS.glob("*.md"), *EXAMPLES]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    used = re.findall(r"^from (gridtnp\.[\w.]+) import (.+)$", text, re.MULTILINE)
    assert ("gridtnp.testing", "check_grid_encoder") in used
    for module, names in used:
        if module in MODULES:
            continue
        for name in names.split(", "):
            assert name in gridtnp.__all__ or f"{module}.{name}" in REFERENCE, f"{module}.{name}"


# ---- the gallery ---------------------------------------------------------------------------------


def test_there_are_many_examples_with_small_pictures() -> None:
    pictures = [path.with_suffix(gallery.PICTURE) for path in EXAMPLES]
    assert len(EXAMPLES) >= 10
    assert sum(picture.stat().st_size for picture in pictures) < 1_500_000


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_complete(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    cells = gallery.cells(source)
    assert gallery.title(source)
    assert not cells[0].is_code
    assert len(gallery.outputs(path)) == sum(cell.is_code for cell in cells), "run make gallery"
    index = (DOCS / "gallery" / "index.md").read_text(encoding="utf-8")
    assert index.count(f"]({path.name})") == 2  # its picture and its title
    assert re.search(rf"^{path.stem}$", index, re.MULTILINE)


def test_cells_pages_and_notebooks() -> None:
    path = EXAMPLES[0]
    source = path.read_text(encoding="utf-8")
    code = "\n".join(cell.text for cell in gallery.cells(source) if cell.is_code)
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
    page = gallery.page(path, source)
    assert page.startswith("# ")
    assert f"({path.stem}{gallery.PICTURE})" in page
    made = gallery.notebook(path)
    written = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
    assert ast.dump(ast.parse("\n".join(written[:-1]))) == ast.dump(ast.parse(source))
    assert "image/webp" in made["cells"][-1]["outputs"][0]["data"]
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    """With two training steps; all else is as it stands."""
    script = ROOT / "scripts" / "gallery.py"
    command = [sys.executable, script, path.stem, "--out", tmp_path, "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{path.stem}{gallery.PICTURE}").stat().st_size > 5_000


# ---- the site ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run([*command, DOCS, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if reason := why_not():
        pytest.skip(reason)
    with Browser() as window:
        yield window


def visit(browser: Browser, path: Path, query: str = "") -> None:
    browser.call("POST", "/url", {"url": path.as_uri() + query})


@pytest.mark.slow
def test_the_built_reference_has_every_public_name(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, uri: base + uri)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    wanted = {f"gridtnp.{name}" for name in gridtnp.__all__}
    wanted |= {f"gridtnp.plots.{name}" for name in gridtnp.plots.__all__}
    wanted |= {f"{module}.{name}" for module in MODULES for name in public(module)}
    assert wanted - known == set()


@pytest.mark.slow
def test_notebooks_can_be_downloaded(site: Path) -> None:
    for path in EXAMPLES:
        page = (site / "gallery" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert f'href="{path.stem}.ipynb"' in page
        made = json.loads((site / "gallery" / f"{path.stem}.ipynb").read_text(encoding="utf-8"))
        assert made["nbformat"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("word", ["kriging", "hold_out_stations", "MaxGridEncoder"])
def test_search_works_from_a_folder(site: Path, browser: Browser, word: str) -> None:
    visit(browser, site / "search.html", f"?q={word}")
    browser.wait("return document.querySelectorAll('#search-results li a').length > 0", 120)
    found = browser.run(
        "return document.querySelector('#search-results li a').getAttribute('href')"
    )
    page = site / re.split("[?#]", found)[0]
    assert word.lower() in page.read_text(encoding="utf-8").lower()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_their_window_and_ask_for_nothing(
    site: Path, browser: Browser, scheme: str, width: int
) -> None:
    browser.emulate(width, 900)
    browser.scheme(scheme)
    browser.errors(), browser.requests()
    for name in (
        "index",
        "tutorial",
        "data",
        "models",
        "gallery/index",
        "gallery/gp",
        "api/gridtnp",
    ):
        visit(browser, site / f"{name}.html")
        browser.wait("return document.readyState === 'complete'")
        wide = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels wider than a window of {width}"
        light = browser.run(
            "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] > 128"
        )
        assert light == (scheme == "light")
        broken = "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
        assert browser.run(broken) == []
    assert browser.errors() == []
    assert [r for r in browser.requests() if not r.startswith(("file:", "data:"))] == []
