"""Rain with the likelihood that its values ask for, beside a Gaussian model and baselines.

Colorado's monthly precipitation is in the package; daily precipitation of the central United States
and radar rain are read from the folder `--data`, if they are there. The radar's five-minute sums
(`example_areal_reference_data.nc`, in the wheel of pycomlink 0.6 on PyPI, with shifted coordinates)
become hourly ones: single pixels are gauges, and means of 16 × 16 pixels a gridded source. Scores
are at stations and times that training never saw; `--part val` is for choices, `--part test` for
results. With `--steps`, training does not depend on the speed of the machine.
Results go to `experiments/results/rain`, one file per data set, with commit and machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import gridtnp as gt
from gridtnp.files import write_text

RESULTS = Path("experiments/results/rain")
BASELINES = ("regression-kriging", "kriging", "normal-scores", "empirical-climatology")
RADAR, COARSE, GAUGES = "example_areal_reference_data.nc", 16, 120
"""File of the radar, pixels along a side of the gridded source, and number of gauges."""
Parts = tuple[gt.Dataset, gt.Dataset, gt.Dataset]


def colorado(_: Path) -> Parts:
    stations, terrain = gt.demo.load()
    columns = ["time", "station", "lat", "lon", "elevation", "precipitation"]
    recent = stations.loc[stations["time"] >= "1960", columns].dropna()
    data = gt.Dataset(
        {"stations": recent},
        target="stations.precipitation",
        static={"elevation": terrain["elevation"]},
        features=["month"],
    )
    return data.split(time=["1990", "1994"], gap="31D", hold_out_stations=0.2)


def noaa(folder: Path) -> Parts:
    table: Any = pd.read_parquet(folder / "noaa_central_us_daily_1990_1993.parquet")
    table = table[["time", "id", "lat", "lon", "Precip"]].dropna()
    table = table.assign(rain=25.4 * table.pop("Precip"))  # inches to millimetres
    data = gt.Dataset(
        {"stations": table},
        target="stations.rain",
        features=["day_of_year"],
        units={"stations.rain": "mm"},
    )
    return data.split(time=["1992-07-01", "1993-01-01"], gap="7D", hold_out_stations=0.2)


def radar(folder: Path) -> Parts:
    """Hourly sums; gauges are random pixels, the grid is coarse and does not know them."""
    path = folder / RADAR
    if not path.exists():
        raise FileNotFoundError(2, "no such file", str(path))
    field = xr.open_dataset(path)["rainfall_amount"]
    hourly = field.resample(time="1h").sum(skipna=False).load()
    lat, lon = (hourly[name].to_numpy() for name in ("latitudes", "longitudes"))
    complete = np.argwhere(np.isfinite(hourly.to_numpy()).mean(0) > 0.9)
    some = complete[np.random.default_rng(0).permutation(len(complete))[:GAUGES]]
    gauges: Any = pd.concat(
        pd.DataFrame(
            {
                "time": hourly["time"].to_numpy(),
                "station": f"pixel {i} {j}",
                "lat": lat[i, j],
                "lon": lon[i, j],
                "rain": hourly.to_numpy()[:, i, j],
            }
        )
        for i, j in some
    ).dropna()
    coarse = hourly.coarsen(y=COARSE, x=COARSE, boundary="trim").mean()
    places = coarse["latitudes"].to_numpy(), coarse["longitudes"].to_numpy()
    rows, columns = (a.mean(axis) for a, axis in zip(places, (1, 0), strict=True))
    grid = xr.Dataset(
        {"rain": (("time", "lat", "lon"), coarse.to_numpy(), {"units": "mm"})},
        {"time": coarse["time"].to_numpy(), "lat": rows, "lon": columns},
    )
    data = gt.Dataset(
        {"gauges": gauges, "coarse": grid},
        target="gauges.rain",
        units={"gauges.rain": "mm"},
    )
    return data.split(time=["2018-05-17", "2018-05-18T12:00"], gap="3h", hold_out_stations=0.3)


CASES: dict[str, tuple[Callable[[Path], Parts], tuple[float, ...]]] = {
    "colorado": (colorado, (1.0, 20.0, 50.0)),
    "noaa": (noaa, (1.0, 10.0)),
    "radar": (radar, (0.1, 1.0)),
}
"""Data sets, and thresholds in their units."""


def run(parts: Parts, thresholds: tuple[float, ...], options: argparse.Namespace) -> dict[str, Any]:
    """Scores of the model for these data, and of a Gaussian one beside the baselines."""
    train, val, test = parts
    scored = val if options.part == "val" else test
    found: dict[str, Any] = {}
    first: Any = None
    for name, likelihood in {"chosen": None, "gaussian": "gaussian"}.items():
        model = gt.GriddedTNP.for_data(train, likelihood=likelihood, quiet=True)
        start = time.process_time()
        if options.steps is None:
            model.fit(train, val, minutes=options.minutes, quiet=True)
        else:
            quick = replace(gt.recipe("quick"), steps=options.steps)
            model.fit(train, val, recipe=quick, quiet=True)
        seconds = round(time.process_time() - start)
        names = BASELINES if likelihood is None else []
        scores = model.evaluate(scored, names, limit=options.limit)
        table: Any = scores.to_dataframe()
        events = [scores.exceedance(t).to_dict(orient="records") for t in thresholds]
        kinds = [one.kind for one in model.config.likelihood] or ["gaussian"]
        mean = scores.forecasts["model"].mean
        found[name] = {
            "likelihood": kinds,
            "processor_seconds": seconds,
            "split": scores.split,
            "negative means": float((mean < 0).mean()),
            "scores": json.loads(table.to_json(orient="records")),
            "exceedances": [row for rows in events for row in rows],
        }
        own = table[table["forecast"] == "model"].iloc[0]
        first = first or scores
        if scores is not first:
            rival = {"gaussian model": scores.forecasts["model"]}
            both: Any = replace(first, forecasts=dict(first.forecasts) | rival).to_dataframe()
            against = both[both["forecast"] == "gaussian model"].iloc[0]
            ends = ("crps_skill", "crps_skill_low", "crps_skill_high")
            found["chosen"]["skill against gaussian"] = [float(against[end]) for end in ends]
        print(f"{name} {kinds}: CRPS {own['crps']:.4g}, 90 % holds {own['coverage_90']:.1%}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the other data")
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="data sets (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="training time of each model")
    parser.add_argument("--steps", type=int, help="training steps of each model, instead")
    parser.add_argument("--part", choices=("val", "test"), default="test", help="part to score on")
    parser.add_argument("--limit", type=int, default=96, help="most test times")
    options = parser.parse_args()
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    origin = {"commit": git.stdout.strip(), "machine": f"{platform.machine()} {platform.system()}"}
    for name in options.only or CASES:
        make, thresholds = CASES[name]
        try:
            parts = make(options.data)
        except FileNotFoundError as error:
            print(f"{name}: left out, {error.filename or error}")
            continue
        found = run(parts, thresholds, options)
        budget = f"{options.minutes:g}min" if options.steps is None else f"{options.steps}steps"
        path = RESULTS / f"{name}-{budget}{'-val' * (options.part == 'val')}.json"
        record = origin | {"training": budget, "part": options.part, "models": found}
        write_text(path, json.dumps(record, indent=1) + "\n")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
