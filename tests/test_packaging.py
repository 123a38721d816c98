"""What people install: a source archive, the wheel made of it, and the README's ten lines with
nothing else of this folder in reach.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).parents if (p / "pyproject.toml").exists())
FRESH = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))}


def run(*command: object, cwd: Path) -> str:
    """Outside of this environment, as far as it is known by names."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=FRESH, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all files under version control, because building leaves traces."""
    folder = tmp_path_factory.mktemp("tree")
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    code = "import setuptools.build_meta as backend; backend.build_sdist('dist')"
    run(sys.executable, "-c", code, cwd=tree)
    (path,) = (tree / "dist").glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Of the source archive alone, so that everything to build it must be in there."""
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet")
    run(sys.executable, "-m", "pip", "wheel", *options, sdist.name, cwd=sdist.parent)
    (path,) = sdist.parent.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new one with the wheel, and then the packages of this one behind it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, "-c", code, cwd=folder).strip())
    others = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    (packages / "others.pth").write_text("\n".join(sorted(others)))
    return folder


def sources(tree: Path) -> dict[str, bytes]:
    files = (path for path in (tree / "src").rglob("*") if path.is_file())
    kept = (path for path in files if ".egg-info" not in str(path) and path.suffix != ".pyc")
    return {path.relative_to(tree / "src").as_posix(): path.read_bytes() for path in kept}


def test_the_archives_hold_every_file_of_the_package(tree: Path, sdist: Path, wheel: Path) -> None:
    """And the wheel nothing else; C sources, data and the mark of types among them."""
    expected = sources(tree)
    kinds = {Path(name).suffix for name in expected}
    assert {".py", ".c", ".h", ".typed", ".nc", ".safetensors"} <= kinds
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {f"src/{name}" for name in expected} | {"pyproject.toml", "README.md", "LICENSE"}
    assert needed <= names
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == set(expected)
        assert {name: archive.read(name) for name in names} == expected


def test_the_ten_lines_and_the_command_run_from_the_wheel_alone(
    environment: Path, tmp_path: Path
) -> None:
    """Elsewhere, with a fifth of the stations and a recipe of three steps."""
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    whole, short = ".fit(train, val)", ".fit(train, val, recipe=gt.Recipe(3, 2, 5e-3))"
    assert block[1].count(whole) == 1
    load = "stations, terrain = gt.demo.load()"
    assert block[1].count(load) == 1
    lines = block[1].replace(whole, short).replace(load, FEWER)
    (tmp_path / "ten_lines.py").write_text(lines + CHECKS)
    printed = run(environment / "bin" / "python", "ten_lines.py", cwd=tmp_path)
    assert "CRPS" in printed
    loaded = json.loads(printed.splitlines()[-1])
    assert len(loaded) > 20
    assert [path for path in loaded if not Path(path).is_relative_to(environment)] == []
    assert "Usage: gridtnp COMMAND" in run(environment / "bin" / "gridtnp", "--help", cwd=tmp_path)


FEWER = """stations, terrain = gt.demo.load()
stations = stations[stations["station"].isin(stations["station"].unique()[::5])]"""
CHECKS = """
assert field["tmax_mean"].sizes == terrain["elevation"].sizes
import json, shutil, sys
from gridtnp.ops import native
if any(map(shutil.which, ("cc", "gcc", "clang"))):
    assert not isinstance(native.library(), str), native.library()
print(json.dumps([m.__file__ for name, m in sys.modules.items() if name.startswith("gridtnp")]))
"""
