"""The shape of the code base: who may import whom, and that the docs list what there is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gridtnp

PACKAGE = Path(gridtnp.__file__).parent
ROOT = PACKAGE.parent.parent
MODULES = {".".join(p.relative_to(PACKAGE).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}
ENTRY_POINTS = {"__init__", "__main__"}


def rule() -> dict[str, set[str]]:
    """What each part may import, as docs/architecture.md says."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.*)\|$", page, re.MULTILINE)
    found = {part: set(re.findall(r"`(\w+)`", allowed)) for part, allowed in rows}
    return {p: set(found) if ("everything" in dict(rows)[p]) else a for p, a in found.items()}


def part_of(module: str) -> str:
    return module.split(".")[0]


def imports(path: Path) -> set[str]:
    """The parts of the package that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and part_of(node.module or "") == "gridtnp":
            inner = (node.module or "").removeprefix("gridtnp").lstrip(".")
            found |= {part_of(inner)} if inner else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("gridtnp.")]
            found |= {part_of(name.removeprefix("gridtnp.")) for name in names}
    return found - {"__version__"}


def test_the_rule_covers_the_tree() -> None:
    assert set(rule()) == {part_of(m) for m in MODULES} - ENTRY_POINTS


def test_the_rule_has_no_cycles() -> None:
    left = rule()
    while left:
        free = {part for part, allowed in left.items() if not (allowed - {part}) & set(left)}
        assert free, f"these import each other: {sorted(left)}"
        left = {part: allowed for part, allowed in left.items() if part not in free}


@pytest.mark.parametrize("module", sorted(set(MODULES) - ENTRY_POINTS))
def test_modules_import_what_the_rule_allows(module: str) -> None:
    part = part_of(module)
    assert imports(MODULES[module]) <= rule()[part] | {part}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_modules_are_short_and_two_levels_deep(module: str) -> None:
    assert module.count(".") <= 1
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 500


NO_NAMES = (
    "suspects moving verdict rivals history view setting beginning trainee watching picks "
    "understanding luck beyond told together whole"
)
"""Words that say nothing in the terms of the field; `gt.Whole` is public."""


def names(path: Path) -> set[str]:
    """A module, its classes and functions, and their arguments."""
    found = {path.stem}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found - {"Whole"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_names_are_terms_of_the_field(module: str) -> None:
    for name in names(MODULES[module]):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
        assert not set(words) & set(NO_NAMES.split()), name


def test_folders_stay_small() -> None:
    for folder in {path.parent for path in MODULES.values()}:
        assert len(list(folder.glob("*.py"))) <= 16, f"{folder.name} holds too many files"


def test_the_docs_list_every_file() -> None:
    script = ROOT / "scripts" / "list_files.py"
    code = f"import runpy; print(runpy.run_path({str(script)!r})['page'](), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    page = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    assert page == done.stdout, "docs/files.md is old; run python scripts/list_files.py"


def test_the_readme_lists_every_folder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`\w+/`.*?) \|", readme, re.MULTILINE)
    listed = re.findall(r"`(\w+)/`", " ".join(cells))
    assert sorted(listed) == sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))


def test_what_only_data_needs_is_loaded_with_the_first_data() -> None:
    code = (
        "import sys, gridtnp\n"
        "assert not {'torch', 'pydantic'} & set(sys.modules), 'loaded too early'\n"
        "gridtnp.build_model, gridtnp.PointSet\n"
        "assert not {'pandas', 'xarray'} & set(sys.modules), 'loaded too early'\n"
        "gridtnp.Dataset\n"
        "assert {'pandas', 'xarray'} <= set(sys.modules)\n"
        "assert not {'zarr', 'netCDF4', 'cfgrib', 'dask'} & set(sys.modules), 'not asked for'\n"
        "gridtnp.GriddedTNP\n"
        "slow = {'sympy', 'scipy.stats', 'torch.distributed.fsdp', 'torch._dynamo'}\n"
        "assert not slow & set(sys.modules), 'loaded too early'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="module 'gridtnp' has no attribute 'Datasets'"):
        _ = gridtnp.Datasets


def test_public_names_exist() -> None:
    assert all(hasattr(gridtnp, name) for name in gridtnp.__all__)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme
