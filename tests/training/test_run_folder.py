"""The folder of a run: begun as a whole, held by one process, resumed with the same data only."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from fitting_cases import RECIPE, environment, parts, small
from weather import stations

from gridtnp import files
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.estimator import GriddedTNP
from gridtnp.files import locked
from gridtnp.sources.source import Source
from gridtnp.tasks.selection import Count, Fraction, Selection, TaskRandom
from gridtnp.training import run_folder
from gridtnp.training.run_folder import RunFolder, commit

SHORT = replace(RECIPE, steps=2, validate_every=1)
BORDERS = ("2019-03-17", "2019-03-21")


def relief(height: float = 1.0) -> xr.Dataset:
    lat, lon = np.linspace(47, 56, 4), np.linspace(-5, 5, 4)
    heights = height * np.arange(16.0).reshape(4, 4)
    return xr.Dataset({"relief": (("lat", "lon"), heights)}, {"lat": lat, "lon": lon})


def fit(
    out: Path,
    *,
    table: Any = None,
    static: xr.Dataset | None = None,
    split: Mapping[str, Any] | None = None,
    val: bool = True,
    normaliser: Normaliser | None = None,
    **options: Any,
) -> GriddedTNP:
    """A short run, with anything that decides what is trained on replaced."""
    data = Dataset(
        {"gauges": stations(20, 24) if table is None else table},
        target="gauges.t2m",
        static=relief() if static is None else static,
    )
    train, check, _ = data.split(**{"time": BORDERS, "hold_out_stations": 0.3, **(split or {})})
    model = small(train)
    if normaliser is not None:
        model = GriddedTNP(model.config, model.spec, normaliser, model.network)
    options = {"recipe": SHORT, "quiet": True, "resume": True} | options
    return model.fit(train, check if val else None, out=out, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    fit(out, resume=False)
    return out


# ---- the same data -------------------------------------------------------------------------------


def changed_table() -> Any:
    table = stations(20, 24)
    table.loc[3, "t2m"] += 0.01
    return table


def shifted_normaliser() -> Normaliser:
    data = Dataset({"gauges": stations(20, 24)}, target="gauges.t2m", static=relief())
    found = Normaliser.fit(data.split(BORDERS, hold_out_stations=0.3)[0])
    return Normaliser(found.mean, dict(found.std) | {"relief": 2 * found.std["relief"]})


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"table": changed_table()}, "source 'gauges' of the training part differs"),
        ({"static": relief(2.0)}, "static feature 'relief' of the training part differs"),
        (
            {"split": {"time": ("2019-03-18", "2019-03-21")}},
            "time span of the training part differs from that of the run in .* "
            r"\(before 2019-03-17, now before 2019-03-18\)",
        ),
        (
            {"split": {"gap": "1D"}},
            r"time span of the validation part .*\(from 2019-03-17 and .*, now from 2019-03-18",
        ),
        (
            {"split": {"time": ("2019-03-17", "2019-03-20")}},
            "time span of the validation part differs",
        ),
        ({"split": {"seed": 1}}, r"context places .*'gauges' of the training part .*336 of 480"),
        ({"split": {"hold_out_stations": 0.4}}, "context places of source 'gauges'"),
        ({"split": {"hold_out_stations": None}}, r"context places .*336 of 480.*, now all"),
        ({"val": False}, r"validation part.*, now none"),
        (
            {"selection": {"gauges": Count(3)}},
            r"selection of 'gauges' .*Fraction.*, now Count\(low",
        ),
        ({"selection": {"gauges": Fraction(0.1, 0.2)}}, r"Fraction\(.*, now Fraction\(low=0\.1"),
        ({"normaliser": shifted_normaliser()}, "normaliser of 'relief' differs"),
    ],
)
def test_resuming_with_anything_else_is_refused(
    run: Path, other: dict[str, Any], difference: str
) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    sentence = rf"^The .*{difference}.*; resume with what the run started with, or train into anoth"
    with pytest.raises(ValueError, match=sentence):
        fit(run, **other)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_resuming_with_the_same_is_not_refused(run: Path) -> None:
    """Rows in any order; a normaliser up to rounding; selections that are the default ones."""
    table = stations(20, 24).sample(frac=1.0, random_state=0)
    train = Dataset({"gauges": table}, target="gauges.t2m", static=relief()).split(
        BORDERS, hold_out_stations=0.3
    )[0]
    found = Normaliser.fit(train)
    rounded = Normaliser({k: v * (1 + 1e-12) for k, v in found.mean.items()}, found.std)
    fit(run, table=table, normaliser=rounded)
    fit(run, selection={"gauges": Fraction(0.05, 0.95, spare=True)})


class Odd(Selection):
    """A user's own, without a meaningful repr."""

    def select(self, source: Source, rows: np.ndarray, random: TaskRandom) -> np.ndarray:  # noqa: ARG002
        return rows[::2]


def test_a_selection_of_ones_own_is_known_by_its_name(tmp_path: Path) -> None:
    fit(tmp_path / "run", selection={"gauges": Odd()}, resume=False)
    fit(tmp_path / "run", selection={"gauges": Odd()})
    with pytest.raises(ValueError, match=r"selection of 'gauges' .*\(Odd, now Fraction\("):
        fit(tmp_path / "run")


def test_a_run_that_recorded_less_is_checked_by_its_fingerprint(run: Path, tmp_path: Path) -> None:
    """As runs before this check did."""
    old = Path(shutil.copytree(run, tmp_path / "old"))
    config = RunFolder(old).read_config()
    del config["data"]
    (old / "config.yaml").write_text(run_folder.yaml.safe_dump(config))
    fit(old)
    with pytest.raises(
        ValueError, match=r"The data have fingerprint .*; resume with the data that"
    ):
        fit(old, table=changed_table())


# ---- begun as a whole ----------------------------------------------------------------------------


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.mark.slow
@pytest.mark.parametrize("resume", [False, True])
def test_a_kill_at_any_step_of_the_beginning_leaves_nothing_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    """After every system call that changes the disk; then the same code runs, or its resumption."""
    names = {os: ("mkdir", "replace", "fsync", "rmdir"), files.tempfile: ("mkdtemp",)}
    for step in range(100):
        out, calls = tmp_path / str(step), 0

        def counted(call: Any, step: int = step) -> Any:
            def wrapper(*args: Any, **options: Any) -> Any:
                nonlocal calls
                found = call(*args, **options)
                calls += 1
                if calls > step:
                    raise Killed
                return found

            return wrapper

        with monkeypatch.context() as patch:
            for module, functions in names.items():
                for name in functions:
                    patch.setattr(module, name, counted(getattr(module, name)))
            patch.setattr(files, "_clear", lambda _: None)  # a killed process clears up nothing
            patch.setattr("gridtnp.training.fit.train", _end)
            with pytest.raises((Killed, Ended)) as ended:
                fit(out, resume=False)
        begun = (out / "config.yaml").exists()
        with monkeypatch.context() as patch:
            patch.setattr("gridtnp.training.fit.train", _end)
            patch.setattr(files, "_is_dead", lambda _: True)
            with pytest.raises(Ended):
                fit(out, resume=begun or resume)
        here = {p.name for p in out.iterdir()}
        assert {"config.yaml", "data.json", "environment.txt"} <= here
        if ended.type is Ended:
            break
    assert step > 8


def test_a_prior_is_fitted_when_a_run_is_resumed_before_its_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, _, _ = parts()

    def fit_prior(out: Path, **options: Any) -> dict[str, torch.Tensor]:
        model = GriddedTNP.for_data(
            train, prior="kriging", dim=16, heads=2, layers=1, seed=3, quiet=True
        )
        model.fit(train, recipe=SHORT, out=out, quiet=True, **options)
        return model.network.state_dict()

    with monkeypatch.context() as patch:
        patch.setattr("gridtnp.training.fit.train", _end)
        with pytest.raises(Ended):
            fit_prior(tmp_path / "a")
    resumed, whole = fit_prior(tmp_path / "a", resume=True), fit_prior(tmp_path / "b")
    for name, value in whole.items():
        assert torch.equal(resumed[name], value), name
    monkeypatch.setattr("gridtnp.training.fit.fit_prior", _end)  # checkpoints hold it
    again = fit_prior(tmp_path / "b", resume=True)
    for name, value in whole.items():
        assert torch.equal(again[name], value), name


class Ended(Exception):
    pass


def _end(*_: Any, **__: Any) -> None:
    raise Ended


FULL = """
import resource, signal, sys
from pathlib import Path
from test_run_folder import fit
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in map(int, sys.argv[2:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        fit(Path(sys.argv[1]))
    except OSError as error:
        print(error)
"""


def test_a_full_disk_leaves_a_folder_that_can_be_begun_or_resumed(tmp_path: Path) -> None:
    """A real limit on the size of files, in a process of its own: the same code after each."""
    out, limits = tmp_path / "run", (10, 600, 3000, 20_000)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(out), *map(str, limits)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == len(limits), done.stdout
    assert all(line.startswith("Cannot write ") for line in done.stdout.splitlines())
    fit(out)
    GriddedTNP.load(out)


def test_what_is_in_a_folder_without_a_run_stays(tmp_path: Path) -> None:
    """Also where its name is that of a file of ours."""
    (tmp_path / "data.json").write_text("mine")
    for resume in (True, False):
        with pytest.raises(ValueError, match=r"No such run|is not empty; choose another folder"):
            fit(tmp_path, resume=resume)
    assert [p.name for p in tmp_path.iterdir()] == ["data.json"]
    assert (tmp_path / "data.json").read_text() == "mine"


def test_git_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fit(tmp_path / "run", resume=False)
    assert "(unknown)" in (tmp_path / "run" / "environment.txt").read_text()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_only_the_repository_of_the_package_counts(tmp_path: Path) -> None:
    """Not that of a project with a virtual environment in it."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    installed = tmp_path / ".venv" / "lib" / "gridtnp"
    own = tmp_path / "src" / "gridtnp"
    for package in (installed, own):
        package.mkdir(parents=True)
        (package / "a.py").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    assert commit(installed) == "unknown"
    name = commit(own)
    assert len(name) >= 7
    (own / "a.py").write_text("2")
    assert commit(own) == f"{name}-dirty"


# ---- one process at a time -----------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from gridtnp.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_fit_in_one_folder_is_told_who_holds_it(tmp_path: Path) -> None:
    """Until the first has ended, even if it was killed."""
    out = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    who = rf"run is in use by process {holder.pid} on {socket.gethostname()} since 20.*Z; wait for"
    with pytest.raises(ValueError, match=who):
        fit(out)
    assert not (out / "config.yaml").exists()
    holder.kill()
    holder.communicate()
    fit(out)
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


def test_the_lock_holds_within_a_process_and_is_released(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(ValueError, match=rf"is in use by process {os.getpid()} on "):
            locked(tmp_path).__enter__()
        (tmp_path / ".gridtnp-lock").unlink()  # by hand: it does not help the next
    with locked(tmp_path), pytest.raises(ValueError, match="is in use by"):
        locked(tmp_path).__enter__()
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match=r"cannot be locked .*; make sure that no other process"):
        locked(tmp_path).__enter__()
