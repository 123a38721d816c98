"""Experiments in YAML: reading, overrides from the command line, errors, first experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small
import yaml

from gridtnp.cli.arguments import read_context
from gridtnp.cli.experiment import Experiment, parse_overrides, read_experiment
from gridtnp.cli.first_experiment import first_experiment, name_files
from gridtnp.estimator import GriddedTNP
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
    assert made.train.recipe_for(made.model) is None  # that of the size
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
    trained = made.train.recipe_for(made.model)
    assert isinstance(trained, Recipe)
    assert trained.rate == 0.001


@pytest.mark.parametrize(
    "likelihood",
    ["gaussian", {"kind": "quantiles"}, {"rain": "poisson", "wind": {"kind": "lognormal"}}],
)
def test_likelihoods_are_named_for_all_targets_or_for_some(
    tmp_path: Path, likelihood: object
) -> None:
    made = read_experiment(written(tmp_path, SMALL | {"model": {"likelihood": likelihood}}))
    again = tmp_path / "again.yaml"
    made.write(again)
    assert read_experiment(again).model.likelihood == made.model.likelihood is not None


def test_keys_can_be_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    tokens = ["--train.lr", "1e-3", "--model.size=small", "--evaluate.baselines", "[nearest]"]
    made = read_experiment(path, [*tokens, "--train.recipe", "gp", "--out", "runs/b"])
    trained = made.options().recipe
    assert isinstance(trained, Recipe)
    assert (trained.rate, trained.steps) == (1e-3, 500_000)
    assert (made.model.size, made.evaluate.baselines, made.out) == ("small", ("nearest",), "runs/b")
    tokens = ["--split.hold-out-stations", "0.3"]
    assert parse_overrides(tokens) == [("split.hold_out_stations", 0.3)]


def test_dates_are_written_as_people_do(tmp_path: Path) -> None:
    text = yaml.safe_dump(SMALL) + "split:\n  time: [1990, 1995-06-01]\n"
    assert read_experiment(written(tmp_path, text)).split.time == ("1990", "1995-06-01")


@pytest.mark.parametrize(
    ("values", "tokens", "sentence"),
    [
        (SMALL | {"modle": {}}, [], r"Unknown key 'modle' in .*exp.yaml; did you mean 'model'\?"),
        (SMALL | {"model": {"sise": 1}}, [], r"key 'sise' in model of .*; did you mean 'size'\?"),
        (SMALL, ["--train.stpes", "3"], r"key 'stpes' in train of .*; did you mean 'steps'\?"),
        (SMALL | {"train": {"recipe": "qick"}}, [], r"recipe 'qick'; did you mean 'quick'\?"),
        (SMALL | {"train": {"steps": "many"}}, [], r"train.steps in .*exp.yaml is 'many': must be"),
        (SMALL | {"split": {"seed": "a"}}, [], r"split.seed in .*exp.yaml is 'a': must be"),
        (
            SMALL | {"model": {"size": "huge"}},
            [],
            r"model.size in .*exp.yaml: Unknown size 'huge'; did you mean 'large'\?$",
        ),
        (
            SMALL | {"model": {"prior": "krig"}},
            [],
            r"model.prior in .*exp.yaml: Unknown prior 'krig'; did you mean 'kriging'\?$",
        ),
        ({"out": "runs/a"}, [], "exp.yaml has no key 'data'; add it"),
        (SMALL | {"split": 3}, [], r"split in .* is 3: must hold keys and values"),
        ("- a\n- b\n", [], "exp.yaml' holds a list: must hold keys and values"),
        ("", [], "exp.yaml' is empty: must hold keys and values"),
        ("a: [1\n", [], "exp.yaml' is not valid YAML: while parsing"),
        (SMALL, ["train.lr", "3"], r"Unexpected argument 'train.lr'; options are a key and a"),
        (SMALL, ["--train.lr"], r"--train.lr has no value; give one"),
        (
            SMALL | {"out": "a"},
            ["--out.where", "a"],
            "Unknown key 'out.where'; 'out' holds a value, not keys",
        ),
    ],
)
def test_what_does_not_fit(tmp_path: Path, values: Any, tokens: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_experiment(written(tmp_path, values), tokens)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file: '.*none.yaml'; .* `gridtnp init "):
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
    assert reasons[0] == "target stations.t2m: the only variable that could be meant"
    assert made.evaluate.baselines is None  # the strongest that apply
    made.write(folder / "exp.yaml")
    train, val, test = read_experiment(folder / "exp.yaml").parts()
    assert (train.part, test.part) == ("train", "test")
    assert val is not None
    assert test.held_out


def test_one_of_several_targets_must_be_named(tmp_path: Path) -> None:
    rows = small.table().assign(rain=1.0)
    rows.to_csv(tmp_path / "stations.csv", index=False)
    files = [str(tmp_path / "stations.csv")]
    with pytest.raises(ValueError, match=r"Several .* stations\.rain, stations\.t2m; name one: "):
        first_experiment(files, None, tmp_path)
    made, reasons = first_experiment(files, "stations.t2m", tmp_path)
    assert made.data.static == {"elevation": "stations.elevation"}
    assert "static elevation: a column of stations; maps need it as a field, too" in reasons
    assert made.evaluate.baselines is None


def test_what_stands_for_missing_is_masked(tmp_path: Path) -> None:
    """Else, `init && fit && report` learns -9999 degrees."""
    rows = small.table()
    rows.loc[::9, "t2m"] = -9999
    rows.to_csv(tmp_path / "stations.csv", index=False)
    made, reasons = first_experiment([str(tmp_path / "stations.csv")], None, tmp_path)
    assert made.data.na_values == (-9999,)
    assert "missing values -9999: in stations, far from all other values" in reasons


@pytest.mark.parametrize("name", ["Elevation", "elev_m"])
def test_the_elevation_of_stations_goes_with_fields(
    folder: Path, tmp_path: Path, name: str
) -> None:
    """A field of elevation is one feature with the column of stations, under any name; without a
    field, gridded sources lack it.
    """
    rows = small.table()
    elevation = next(c for c in rows if c.lower().startswith("elev"))
    rows.rename(columns={elevation: name}).to_csv(tmp_path / "stations.csv", index=False)
    files = [str(tmp_path / "stations.csv"), str(folder / "era5.nc")]
    made, _ = first_experiment([*files, str(folder / "relief.nc")], None, folder)
    assert set(made.data.static) == {"elevation"}
    made, reasons = first_experiment(files, None, folder)
    assert made.data.static == {}
    assert f"static {name}: left out, because era5 has none; give it as a field" in reasons
    made.write(folder / "plain.yaml")
    read_experiment(folder / "plain.yaml").dataset()


def test_observations_alone_at_their_times_get_windows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.uniform(0, 480, 2000), unit="h")
    place = {"lat": rng.uniform(0, 9, 2000), "lon": rng.uniform(0, 9, 2000)}
    ships = pd.DataFrame({"time": times, **place, "sst": rng.normal(size=2000)})
    ships.to_csv(tmp_path / "ships.csv", index=False)
    made, reasons = first_experiment([str(tmp_path / "ships.csv")], None, tmp_path)
    assert made.model.context_window == made.model.target_window == "(-6h, 6h]"
    assert made.model.every == made.split.gap == "12h"
    assert "time window (-6h, 6h]: 50 observations on average, a single time only 1" in reasons


def test_wind_becomes_components_on_request(tmp_path: Path) -> None:
    rows = small.table().assign(ff=2.0, dd=270.0)
    rows.to_csv(tmp_path / "stations.csv", index=False)
    files = [str(tmp_path / "stations.csv")]
    made, reasons = first_experiment(files, None, tmp_path, "stations.ff,dd")
    assert made.data.target == ("stations.u", "stations.v")
    assert "wind stations: ff and dd become u and v" in reasons
    assert made.model.likelihood == "bivariate-gaussian"
    assert "likelihood bivariate-gaussian: u and v are correlated" in reasons
    other, _ = first_experiment(files, "stations.t2m", tmp_path, "stations.ff,dd")
    assert other.model.likelihood is None
    made.write(tmp_path / "exp.yaml")
    source = read_experiment(tmp_path / "exp.yaml").dataset().sources["stations"]
    assert source.names == ("t2m", "u", "v")
    assert source.values(0, 1)[0, 1] == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"--wind stations\.ff: must name a source, its speed and"):
        first_experiment(files, None, tmp_path, "stations.ff")


def test_fresh_wind_becomes_components_too(tmp_path: Path) -> None:
    rows = small.table()
    rows = rows.assign(ff=2.0, dd=90.0 * (rows.index % 4))
    rows.to_csv(tmp_path / "stations.csv", index=False)
    made, _ = first_experiment([str(tmp_path / "stations.csv")], None, tmp_path, "stations.ff,dd")
    made.write(tmp_path / "exp.yaml")
    made = read_experiment(tmp_path / "exp.yaml")
    small_options = made.options().model_copy(update={"dim": 8, "heads": 2, "layers": 1})
    model = GriddedTNP.from_options(made.dataset(), small_options, quiet=True)
    places = pd.DataFrame({"lat": [50.0], "lon": [1.0], "elevation": [100.0]})
    found = model.predict(made.dataset().at("2019-03-01"), at=places, derive=["speed"])
    assert (found["speed_mean"] > 0).all()
    rows.assign(dd=90.0).to_csv(tmp_path / "today.csv", index=False)
    components = rows.drop(columns=["ff", "dd"]).assign(u=3.0, v=0.0)
    components.to_csv(tmp_path / "components.csv", index=False)
    for file, u in (("today.csv", -2.0), ("components.csv", 3.0)):
        data = read_context(model, made, [f"stations={tmp_path / file}"], None)
        assert data.sources["stations"].values(0, 1)[0, 1] == pytest.approx(u)


@pytest.mark.parametrize(
    ("freq", "periods", "gap"),
    [
        *(("MS", 200, "31D"), ("1D", 400, "7D"), ("1h", 2000, "1D"), ("6h", 120, "6h")),
        *(("1D", 30, "1D"), ("1D", 15, "0h")),
    ],
)
def test_later_parts_are_a_gap_away(freq: str, periods: int, gap: str, tmp_path: Path) -> None:
    times = pd.date_range("2000-01-01", periods=periods, freq=freq)
    place = {"lat": [50.0, 51.0], "lon": 1.0, "station": ["A", "B"], "t": 1.0}
    rows = pd.DataFrame({"time": times}).merge(pd.DataFrame(place), how="cross")
    rows.to_csv(tmp_path / "s.csv", index=False)
    made, _ = first_experiment([str(tmp_path / "s.csv")], None, tmp_path)
    assert made.split.gap == gap
    made.write(tmp_path / "exp.yaml")
    for part in read_experiment(tmp_path / "exp.yaml").parts():
        assert part is not None
        assert len(part.times())


def test_without_a_split_nothing_is_validated(folder: Path) -> None:
    made, _ = first_experiment([str(folder / "era5.nc")], "era5.t2m", folder)
    made.write(folder / "grid.yaml")
    train, val, test = read_experiment(folder / "grid.yaml").parts()
    assert val is None
    assert train is test


@pytest.mark.parametrize("written_in", ["the file", "an option"])
def test_a_share_of_zero_holds_out_no_stations(folder: Path, written_in: str) -> None:
    made, _ = first_experiment([str(folder / "stations.csv")], "stations.t2m", folder)
    values = yaml.safe_load(yaml.safe_dump(made.model_dump(mode="json", exclude_none=True)))
    values["split"]["time"] = ["2019-03-01T12:00", "2019-03-02"]
    tokens = ["--split.hold_out_stations", "0"] if written_in == "an option" else []
    if written_in == "the file":
        values["split"]["hold_out_stations"] = 0
    path = folder / "zero.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    by_time = read_experiment(path, tokens)
    train, val, test = by_time.parts()
    assert not any(part.held_out for part in (train, test))
    assert val is not None
    assert [len(part.times()) for part in (train, val, test)] == [2, 2, 2]
    neither = by_time.model_copy(update={"split": by_time.split.model_copy(update={"time": None})})
    train, val, test = neither.parts()
    assert train is test
    assert val is None


def test_files_have_names(folder: Path) -> None:
    assert name_files(["a/my-stations.csv.gz", "x=b.nc"]) == {
        "my_stations": "a/my-stations.csv.gz",
        "x": "b.nc",
    }
    with pytest.raises(ValueError, match=r"'a/x.csv' and 'b/x.nc' are both called 'x'; give one"):
        name_files(["a/x.csv", "b/x.nc"])
    files = [str(folder / "stations.csv")]
    with pytest.raises(ValueError, match=r"Unknown source 'station' in --target; did you mean"):
        first_experiment(files, "station.t2m", folder)
    with pytest.raises(ValueError, match=r"Unknown variable 'rain' .*'stations'"):
        first_experiment(files, "stations.rain", folder)


def test_an_experiment_is_frozen() -> None:
    made = Experiment.model_validate(SMALL)
    with pytest.raises(ValueError, match="frozen"):
        made.out = "elsewhere"  # type: ignore[misc]
