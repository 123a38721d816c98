"""Experiments in YAML: what is read, what the command line replaces, what is refused and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small
import yaml

from gridtnp.cli.experiment import Experiment, read_experiment, replaced
from gridtnp.cli.first_experiment import first_experiment, named
from gridtnp.recipes import Recipe

SMALL: dict[str, Any] = {"data": {"sources": {"stations": "a.csv"}, "target": "stations.t2m"}}


def written(folder: Path, values: Any) -> Path:
    path = folder / "exp.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values), encoding="utf-8")
    return path


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    made = read_experiment(written(tmp_path, SMALL))
    assert made.data.sources == {"stations": str(tmp_path / "a.csv")}  # beside the file
    assert made.model.size == "tiny"
    assert made.train.made(made.model) is None  # that of the size
    assert made.out == "runs/model"


def test_it_survives_being_written(tmp_path: Path) -> None:
    values = SMALL | {
        "split": {"time": ["1990", "1995"], "hold_out_stations": ["S1", "S2"]},
        "train": {"steps": 5, "lr": 0.001},
        "model": {"size": "small", "window": [4, 4]},
    }
    made = read_experiment(written(tmp_path, values))
    again = tmp_path / "again.yaml"
    made.write(again)
    assert read_experiment(again) == made
    trained = made.train.made(made.model)
    assert isinstance(trained, Recipe)
    assert trained.rate == 0.001


def test_keys_can_be_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    tokens = ["--train.lr", "1e-3", "--model.size=small", "--evaluate.baselines", "[nearest]"]
    made = read_experiment(path, [*tokens, "--train.recipe", "gp", "--out", "runs/b"])
    trained = made.options().recipe
    assert isinstance(trained, Recipe)
    assert (trained.rate, trained.steps) == (1e-3, 500_000)
    assert (made.model.size, made.evaluate.baselines, made.out) == ("small", ("nearest",), "runs/b")
    assert replaced(["--split.hold-out-stations", "0.3"]) == [("split.hold_out_stations", 0.3)]


def test_dates_are_written_as_people_do(tmp_path: Path) -> None:
    text = yaml.safe_dump(SMALL) + "split:\n  time: [1990, 1995-06-01]\n"
    assert read_experiment(written(tmp_path, text)).split.time == ("1990", "1995-06-01")


@pytest.mark.parametrize(
    ("values", "tokens", "sentence"),
    [
        (SMALL | {"modle": {}}, [], r"A key of .*exp.yaml must be known.*did you mean 'model'"),
        (SMALL | {"model": {"sise": "tiny"}}, [], r"A key of model in .*did you mean 'size'"),
        (SMALL, ["--train.stpes", "3"], r"A key of train in .*'stpes'; did you mean 'steps'"),
        (
            SMALL | {"train": {"recipe": "qick"}},
            [],
            r"known by name.*did you mean 'quick'",
        ),
        (SMALL | {"train": {"steps": "many"}}, [], r"steps in .* does not fit: .*, got 'many'"),
        (
            SMALL | {"model": {"size": "huge"}},
            [],
            r"model.size in .* does not fit: A size of a model .* did you mean 'large'\?$",
        ),
        ({"out": "runs/a"}, [], "must have the key 'data', but it is not there"),
        (SMALL | {"split": 3}, [], r"split in .* must hold keys and values, got 3"),
        ("- a\n- b\n", [], "must hold keys and values, got list"),
        ("a: [1\n", [], "must be YAML, but it cannot be read"),
        (SMALL, ["train.lr", "3"], r"must be a key and a value, such as --train.lr 1e-3, got"),
        (SMALL, ["--train.lr"], r"--train.lr must have a value"),
        (
            SMALL | {"out": "a"},
            ["--out.where", "a"],
            "out.where cannot be replaced, because out holds no keys",
        ),
    ],
)
def test_what_does_not_fit(tmp_path: Path, values: Any, tokens: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_experiment(written(tmp_path, values), tokens)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"make one with `gridtnp init FILES -o exp.yaml`"):
        read_experiment(tmp_path / "none.yaml")


# ---- a first experiment --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    small.table().to_csv(path / "stations.csv", index=False)
    small.field().to_netcdf(path / "era5.nc")
    small.heights().to_netcdf(path / "relief.nc")
    return path


def test_files_become_an_experiment(folder: Path) -> None:
    files = [str(folder / name) for name in ("era5.nc", "stations.csv", "relief.nc")]
    made, reasons = first_experiment(files, None, folder)
    assert made.data.sources == {"era5": "era5.nc", "stations": "stations.csv"}
    assert made.data.target == "stations.t2m"
    assert made.data.static == {"elevation": "relief.nc"}
    assert made.data.features == ("local_hour",)
    assert made.split.hold_out_stations == 0.2
    assert reasons[0] == "target stations.t2m: the first variable of stations; others: era5.t2m"
    made.write(folder / "exp.yaml")
    train, val, test = read_experiment(folder / "exp.yaml").parts()
    assert (train.part, test.part) == ("train", "test")
    assert val is not None
    assert test.held_out


def test_without_a_split_nothing_is_validated(folder: Path) -> None:
    made, _ = first_experiment([str(folder / "era5.nc")], "era5.t2m", folder)
    made.write(folder / "grid.yaml")
    train, val, test = read_experiment(folder / "grid.yaml").parts()
    assert val is None
    assert train is test


def test_files_have_names(folder: Path) -> None:
    assert named(["a/my-stations.csv.gz", "x=b.nc"]) == {
        "my_stations": "a/my-stations.csv.gz",
        "x": "b.nc",
    }
    with pytest.raises(ValueError, match=r"'a/x.csv' and 'b/x.nc' are both called 'x'; name them"):
        named(["a/x.csv", "b/x.nc"])
    files = [str(folder / "stations.csv")]
    with pytest.raises(ValueError, match=r"target's source must be one of the files.*'station'"):
        first_experiment(files, "station.t2m", folder)
    with pytest.raises(ValueError, match="A variable must be one of source 'stations'"):
        first_experiment(files, "stations.rain", folder)


def test_an_experiment_is_frozen() -> None:
    made = Experiment.model_validate(SMALL)
    with pytest.raises(ValueError, match="frozen"):
        made.out = "elsewhere"  # type: ignore[misc]
