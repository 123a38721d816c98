"""Rain with the likelihood that its values ask for, beside a Gaussian model and baselines.

Colorado's monthly precipitation is in the package; daily precipitation of the central United States
is read from the folder `--data`, if it is there. Scores are at stations and times that training
never saw. Results go to `experiments/results/rain`, one file per data set, with commit and machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import gridtnp as gt

RESULTS = Path("experiments/results/rain")
BASELINES = ("regression-kriging", "kriging", "climatology")
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


CASES: dict[str, tuple[Callable[[Path], Parts], tuple[float, ...]]] = {
    "colorado": (colorado, (1.0, 20.0, 50.0)),
    "noaa": (noaa, (1.0, 10.0)),
}
"""Data sets, and thresholds in their units."""


def run(parts: Parts, thresholds: tuple[float, ...], minutes: float, limit: int) -> dict[str, Any]:
    """Scores of the model for these data, and of a Gaussian one beside the baselines."""
    train, val, test = parts
    found: dict[str, Any] = {}
    for name, likelihood in {"chosen": None, "gaussian": "gaussian"}.items():
        model = gt.GriddedTNP.for_data(train, likelihood=likelihood, quiet=True)
        start = time.perf_counter()
        model.fit(train, val, minutes=minutes, quiet=True)
        seconds = round(time.perf_counter() - start)
        scores = model.evaluate(test, BASELINES if likelihood is None else [], limit=limit)
        table: Any = scores.to_dataframe()
        events = [scores.exceedance(t).to_dict(orient="records") for t in thresholds]
        kinds = [one.kind for one in model.config.likelihood] or ["gaussian"]
        mean = scores.forecasts["model"].mean
        found[name] = {
            "likelihood": kinds,
            "seconds": seconds,
            "split": scores.split,
            "negative means": float((mean < 0).mean()),
            "scores": json.loads(table.to_json(orient="records")),
            "exceedances": [row for rows in events for row in rows],
        }
        own = table[table["forecast"] == "model"].iloc[0]
        print(f"{name} {kinds}: CRPS {own['crps']:.4g}, 90 % holds {own['coverage_90']:.1%}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the other data")
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="data sets (default: all)")
    parser.add_argument("--minutes", type=float, default=5.0, help="training time of each model")
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
        found = run(parts, thresholds, options.minutes, options.limit)
        path = RESULTS / f"{name}-{options.minutes:g}min.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        record = origin | {"minutes": options.minutes, "models": found}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
