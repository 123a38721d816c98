"""`make leaderboard`: models and rivals on real data, at equal information.

Every data set is split once, by later times and unseen stations, before anything is trained;
settings are chosen on validation parts. Colorado is in the package, the others are read from the
folder `--data`, each if its file is there. Finished parts are kept, so that an interrupted run
continues: scores in `experiments/results/leaderboard`, checkpoints in `runs/leaderboard`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import gridtnp as gt
from gridtnp.evaluation.baselines import default_baselines
from gridtnp.files import write_text

RESULTS, RUNS = Path("experiments/results/leaderboard"), Path("runs/leaderboard")
UNTRAINED = Path("experiments/results/in-the-box")
"""Scores of the model that is not trained, by `in_the_box.py`."""
PAGE = Path("docs/leaderboard.md")
"""Ends with the table of all results."""
TIMES = 96
"""Most test times to evaluate at."""


@dataclass(frozen=True)
class Case:
    """A data set with its split, the options of `for_data`, and the rivals beside the defaults."""

    data: gt.Dataset
    split: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    baselines: tuple[str, ...] = ("boosting",)


Maker = Callable[[Path], Case]


def colorado(variable: str) -> Maker:
    def make(_: Path) -> Case:
        stations, terrain = gt.demo.load()
        data = gt.Dataset(
            {"stations": stations},
            target=f"stations.{variable}",
            static={"elevation": terrain["elevation"]},
            features=["month"],
        )
        return Case(data, {"time": ["1990", "1994"], "gap": "31D", "hold_out_stations": 0.2})

    return make


def noaa(variable: str) -> Maker:
    def make(folder: Path) -> Case:
        table: Any = pd.read_parquet(folder / "noaa_central_us_daily_1990_1993.parquet")
        data = gt.Dataset(
            {"stations": table[["time", "id", "lat", "lon", variable]].dropna()},
            target=f"stations.{variable}",
            static={"elevation": relief(folder, table)},
            features=["day_of_year"],
        )
        split = {"time": ["1992-07-01", "1993-01-01"], "gap": "7D", "hold_out_stations": 0.2}
        return Case(data, split)

    return make


def sao(variable: str, *, lead: str = "0h") -> Maker:
    def make(folder: Path) -> Case:
        table: Any = pd.read_parquet(folder / "sao_surface_obs_1995_03_18.parquet")
        table = table[table["lat"].between(20, 60) & table["lon"].between(-130, -60)]
        columns = ["time", "id", "lat", "lon", "elev", variable]
        table = table[columns].dropna().rename(columns={"elev": "elevation"})
        data = gt.Dataset(
            {"stations": table},
            target=f"stations.{variable}",
            static={"elevation": "stations.elevation"},
            features=["local_hour"],
        )
        if lead == "0h":
            return Case(data, {"hold_out_stations": 0.2})
        ahead = {"lead": lead, "context_window": "(-3h, 0h]"}
        split = {"time": ["1995-03-18T14:00", "1995-03-18T18:00"]}
        return Case(data, split, ahead, ("persistence",))

    return make


def uk(folder: Path) -> Case:
    field = _renamed(xr.open_dataset(folder / "era5_t2m_uk_2019_03.nc")).load()
    stations = sites(field, *_random_points(field, 300, seed=0))
    coarse = field.coarsen(lat=8, lon=8, boundary="trim").mean()
    data = gt.Dataset(
        {"stations": stations, "coarse": coarse},
        target="stations.t2m",
        static={"elevation": relief(folder, stations)},
        features=["local_hour"],
    )
    return Case(
        data, {"time": ["2019-03-19", "2019-03-25"], "gap": "12h", "hold_out_stations": 0.2}
    )


def world(folder: Path) -> Case:
    field = _renamed(xr.open_dataset(folder / "era5_global_1deg_24snapshots.nc"))[["t2m"]].load()
    metar = pd.read_csv(folder / "metar_stations_avwx.csv").dropna(subset=["lat", "lon"])
    metar = metar.sample(2000, random_state=0)
    stations = sites(field, metar["lat"].to_numpy(), metar["lon"].to_numpy() % 360)
    coarse = field.coarsen(lat=8, lon=8, boundary="trim").mean()
    data = gt.Dataset(
        {"stations": stations, "coarse": coarse},
        target="stations.t2m",
        static={"elevation": relief(folder, stations)},
        features=["solar_elevation"],
    )
    split = {"time": ["2026-03-29T00:00", "2026-03-30T00:00"], "hold_out_stations": 0.2}
    return Case(data, split)


def storm(folder: Path) -> Case:
    field = xr.open_dataset(folder / "storm_1996_6fields.nc")[["t", "mslp"]].load()
    stations = sites(field, *_random_points(field, 400, seed=0))
    data = gt.Dataset({"stations": stations.dropna()}, target=["stations.t", "stations.mslp"])
    split = {"time": ["1996-01-15", "1996-01-18"], "hold_out_stations": 0.2}
    return Case(data, split)


def kamchatka(folder: Path) -> Case:
    path = folder / "era5_u10v10_kamchatka_2019_10_11.nc"
    field = _renamed(xr.open_dataset(path)).isel(time=slice(0, None, 3)).load()
    stations = sites(field, *_random_points(field, 200, seed=0))
    data = gt.Dataset({"stations": stations}, target=["stations.u10", "stations.v10"])
    split = {"time": ["2019-11-10", "2019-11-20"], "gap": "12h", "hold_out_stations": 0.2}
    return Case(data, split)


def known(make: Maker) -> Maker:
    """The same data, with the stations of the test part in training too; only its times are new."""

    def without_holding_out(folder: Path) -> Case:
        case = make(folder)
        split = {k: v for k, v in case.split.items() if k != "hold_out_stations"}
        return replace(case, split=split)

    return without_holding_out


CASES: dict[str, Maker] = {
    "colorado-tmax": colorado("tmax"),
    "colorado-tmin": colorado("tmin"),
    "noaa-tmax": noaa("Tmax"),
    "noaa-dew-point": noaa("TDP"),
    "sao-temperature": sao("T"),
    "sao-dew-point": sao("TD"),
    "sao-pressure": sao("PSL"),
    "sao-3h-ahead": sao("T", lead="3h"),
    "era5-uk": uk,
    "era5-world": world,
    "storm-1996": storm,
    "kamchatka": kamchatka,
    "colorado-tmax-known": known(colorado("tmax")),
    "noaa-tmax-known": known(noaa("Tmax")),
    "era5-uk-known": known(uk),
}


def relief(folder: Path, table: pd.DataFrame) -> xr.DataArray:
    """The relief around some places."""
    elevation = xr.open_dataset(folder / "etopo_20min.nc")["elevation"]
    lon = (table["lon"] + 180) % 360 - 180
    (south, north), (west, east) = ((v.min() - 2, v.max() + 2) for v in (table["lat"], lon))
    return elevation.sel(lat=slice(south, north), lon=slice(west, east)).load()


def sites(field: xr.Dataset, lat: np.ndarray, lon: np.ndarray) -> pd.DataFrame:
    """The field at the grid points nearest to some places, each once, as stations."""
    near = field.sel(
        lat=xr.DataArray(lat, dims="site"), lon=xr.DataArray(lon, dims="site"), method="nearest"
    )
    table = near.to_dataframe().reset_index().drop(columns="site")
    table["station"] = table["lat"].round(3).astype(str) + "," + table["lon"].round(3).astype(str)
    return table.drop_duplicates(["station", "time"])


def _random_points(field: xr.Dataset, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    size = field.sizes["lat"] * field.sizes["lon"]
    row, column = np.divmod(rng.choice(size, min(n, size), replace=False), field.sizes["lon"])
    return field["lat"].to_numpy()[row], field["lon"].to_numpy()[column]


def _renamed(field: xr.Dataset) -> xr.Dataset:
    return field.rename(latitude="lat", longitude="lon").sortby("lat")


def run(name: str, case: Case, sizes: list[Any], minutes: list[float]) -> Iterator[str]:
    """Train and score what is missing; yields a line for each part."""
    train, val, test = case.data.split(**case.split)
    for size in sizes:
        for budget in minutes:
            path = RESULTS / name / f"{size}-{budget:g}min.json"
            if path.exists():
                continue
            model = gt.GriddedTNP.for_data(train, size, quiet=True, **case.options)
            out, start = RUNS / name / path.stem, time.perf_counter()
            model.fit(train, val, minutes=budget, out=out, resume=out.exists(), quiet=True)
            seconds = time.perf_counter() - start
            found = model.evaluate(test, _baselines(name, model, test, case), limit=TIMES)
            table: Any = found.to_dataframe()
            record = {"seconds": seconds, "split": found.split} | _origin()
            _write(path, record | {"scores": _records(table)})
            others = path.with_name("rivals.json")
            if not others.exists():
                rows = _records(table[table["forecast"] != "model"])
                _write(others, _origin() | {"scores": rows})
            own = table[table["forecast"] == "model"]
            yield f"{name} {path.stem}: {', '.join(f'{v:.4g}' for v in own['crps'])} CRPS"


def _baselines(name: str, model: gt.GriddedTNP, test: gt.Dataset, case: Case) -> tuple[str, ...]:
    """All rivals for the first model, the best of them for the others."""
    path = RESULTS / name / "rivals.json"
    if not path.exists():
        return tuple(dict.fromkeys([*default_baselines(model.spec, test), *case.baselines]))
    scores = json.loads(path.read_text())["scores"]
    variables = {row["variable"] for row in scores}
    return tuple({best_rival(scores, variable)["forecast"]: None for variable in variables})


def best_rival(scores: list[dict[str, Any]], variable: str) -> dict[str, Any]:
    rows = [s for s in scores if s["variable"] == variable and s["forecast"] != "model"]
    return min(rows, key=lambda row: row["crps"])


def _records(table: Any) -> list[dict[str, Any]]:
    return json.loads(table.to_json(orient="records"))


def _origin() -> dict[str, str]:
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return {"commit": git.stdout.strip(), "machine": f"{platform.machine()} {platform.system()}"}


def _write(path: Path, record: dict[str, Any]) -> None:
    write_text(path, json.dumps(record, indent=1) + "\n")


def table() -> str:
    """All results as a Markdown table: the best rival, and every model's skill against it."""
    rows = []
    for path in sorted(RESULTS.glob("*/*min.json")):
        scores = json.loads(path.read_text())["scores"]
        for own in (row for row in scores if row["forecast"] == "model"):
            best = best_rival(scores, own["variable"])
            low, high = (100 * best[f"crps_skill_{end}"] for end in ("low", "high"))
            rows.append(_row(path.parent.name, path.stem, own, best, f" ({low:.1f} to {high:.1f})"))
    for path in sorted(p for p in UNTRAINED.glob("*.json") if p.stem in CASES):
        scores = json.loads(path.read_text())["rows"]
        for own in (row for row in scores if row["forecast"] == "pretrained"):
            best = best_rival([row for row in scores if row is not own], own["variable"])
            rows.append(_row(path.stem, "in the box", own, best))
    if not rows:
        return ""
    head = list(rows[0])
    rows.sort(key=lambda row: row["data"])
    lines = [head, ["---"] * len(head), *([row[k] for k in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(
    data: str, model: str, own: dict[str, Any], best: dict[str, Any], interval: str = ""
) -> dict[str, str]:
    return {
        "data": f"{data} {own['variable']}",
        "model": model,
        "CRPS": f"{own['crps']:.4g}",
        "best rival": f"{best['forecast']} {best['crps']:.4g}",
        "skill": f"{100 * (1 - own['crps'] / best['crps']):.1f} %{interval}",
        "RMSE": f"{own['rmse']:.4g} ({best['rmse']:.4g})",
        "log-lik.": f"{own['log_likelihood']:.3f} ({best['log_likelihood']:.3f})",
        "90 % holds": f"{100 * own['coverage_90']:.0f} %",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the other data")
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="data sets (default: all)")
    parser.add_argument("--sizes", nargs="*", default=["tiny"], help="sizes of models")
    parser.add_argument("--minutes", nargs="*", type=float, default=[1, 5, 20])
    options = parser.parse_args()
    for name in options.only or CASES:
        try:
            case = CASES[name](options.data)
        except FileNotFoundError as error:
            print(f"{name}: left out, {error.filename or error}")
            continue
        for line in run(name, case, options.sizes, options.minutes):
            print(line, flush=True)
    text = table()
    before = PAGE.read_text(encoding="utf-8").partition("| data | model |")[0]
    PAGE.write_text(before + text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
