"""The shape of the code base:

Who may import whom, and that everything is listed where people look.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gridtnp

PACKAGE = Path(gridtnp.__file__).parent
ROOT = PACKAGE.parent.parent
# Each level may import from those above it, and modules of a level that come before them.
LEVELS = [
    ["version", "errors", "processor", "background", "task", "grid"],
    ["demo"],
    # data, which knows nothing of models
    ["times", "coordinates", "cleaning", "reading", "sources", "tables", "fields", "understanding"],
    ["features", "splits", "description", "dataset", "normalisation", "assembly"],
    ["picks", "sampling", "places", "output", "streaming"],
    ["kernels", "lattice", "oracle", "synthetic"],
    ["ops.reference", "ops.vectorised", "ops.padded", "ops.rows", "ops.native"],
    ["ops.native_attention", "ops.native_rows", "ops"],
    ["layers", "embeddings"],
    ["tokens", "grid_encoders", "fusion", "grid_processors", "grid_decoders", "likelihoods"],
    ["model", "baselines"],
    ["config", "build"],
    ["presets"],
    ["setting"],
    # training and models on disk
    [
        "recipes",
        "checkpoints",
        "interruption",
        "sharing",
        "suspects",
        "muon",
        "optimisers",
        "processes",
    ],
    ["trainee", "training", "estimates", "gridding", "choices", "saving", "exporting"],
    ["moving", "runs", "watching", "fitting"],
    # predictions
    ["view", "prediction", "joint"],
    # judging
    ["scores", "bootstrap", "verdict", "scoreboard"],
    ["interpolation", "history", "kriging", "rivals", "evaluation"],
    ["estimator"],
    ["plots.canvas", "plots.atlas", "plots.calibration", "plots.curves", "plots.album", "plots"],
    ["reproduce", "reproduce.gp", "reproduce.report", "reproduce.__main__"],
    # the command line
    ["experiment", "beginning", "doctor", "commands", "__main__"],
    ["testing"],
    ["__init__"],
]
ORDER = [module for level in LEVELS for module in level]


def modules() -> dict[str, Path]:
    names = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        names[name.removesuffix(".__init__") if name != "__init__" else name] = path
    return names


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gridtnp"):
            module = (node.module or "").removeprefix("gridtnp").lstrip(".")
            for alias in node.names:
                inner = f"{module}.{alias.name}".lstrip(".")
                found.add(inner if inner in modules() else module)
    return found


def test_every_module_has_its_place_in_the_order() -> None:
    assert sorted(modules()) == sorted(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_modules_import_only_what_comes_before_them(module: str) -> None:
    before = set(ORDER[: ORDER.index(module)])
    assert imports(modules()[module]) <= before


@pytest.mark.parametrize("module", ORDER)
def test_modules_say_what_they_are_and_stay_short(module: str) -> None:
    text = modules()[module].read_text()
    assert ast.get_docstring(ast.parse(text)), f"{module} needs a docstring"
    assert len(text.splitlines()) <= 500


def test_the_readme_has_one_line_per_file() -> None:
    readme = (ROOT / "README.md").read_text()
    listed = re.findall(r"^\| `(?:src/gridtnp/)?([\w/]+\.py)` \|", readme, re.MULTILINE)
    present = [str(path.relative_to(PACKAGE)) for path in modules().values()]
    assert sorted(listed) == sorted(present)


def test_what_only_data_needs_is_loaded_with_the_first_data() -> None:
    code = (
        "import sys, gridtnp\n"
        "assert not {'torch', 'pydantic'} & set(sys.modules), 'loaded too early'\n"
        "gridtnp.build_model, gridtnp.PointSet\n"
        "assert not {'pandas', 'xarray'} & set(sys.modules), 'loaded too early'\n"
        "gridtnp.Dataset\n"
        "assert {'pandas', 'xarray'} <= set(sys.modules)\n"
        "assert not {'zarr', 'netCDF4', 'cfgrib', 'dask'} & set(sys.modules), 'not asked for'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="module 'gridtnp' has no attribute 'Datasets'"):
        _ = gridtnp.Datasets


def test_public_names_exist() -> None:
    assert all(hasattr(gridtnp, name) for name in gridtnp.__all__)
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme
