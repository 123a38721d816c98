"""`make demo`: from stations in Colorado to a temperature map with calibrated uncertainty.

A small Swin-TNP learns to predict the monthly mean of daily maximum temperature from the other
stations of the month. It is evaluated at held-out stations and times, beside interpolation and
kriging. All results are in one folder.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gridtnp as gt
from gridtnp import plots

BASELINES = ("nearest", "idw", "kriging", "kriging-drift", "regression-kriging", "climatology")
MONTH = "1996-07-01"


def main() -> None:
    parser = argparse.ArgumentParser(description="The quick start on stations in Colorado.")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--steps", type=int, help="training steps (default: the recipe's)")
    options = parser.parse_args()
    out: Path = options.out

    stations, terrain = gt.demo.load()
    data = gt.Dataset(
        {"stations": stations},
        target="stations.tmax",
        static={"elevation": terrain["elevation"]},
        features=["month"],
    )
    print(data, end="\n\n")
    train, val, test = data.split(time=["1990", "1994"], gap="31D", hold_out_stations=0.2)

    recipe = gt.recipe("quick")
    if options.steps is not None:
        recipe = replace(recipe, steps=options.steps)
    model = gt.GriddedTNP.for_data(train, recipe=recipe)
    resume = (out / "config.yaml").exists()  # continues an interrupted run, keeps a finished one
    model.fit(train, val, recipe=recipe, out=out, resume=resume)

    evaluation = model.evaluate(test, baselines=BASELINES)
    print(f"\n{evaluation}\n")
    evaluation.save(out)

    field = model.predict(test.at(MONTH), at=terrain)
    gt.write(field, out / "map.nc", overwrite=True)
    names = {"observed": "tmax", "model_mean": "tmax_mean"}
    unseen = evaluation.predictions().rename(columns=names)  # all months; the map selects its own
    pictures = plots.album(evaluation, out)
    plots.maps(field, "tmax", stations=unseen).savefig(pictures / "map.png", dpi=150)

    model.report(test, out / "report.html", evaluation=evaluation, overwrite=True)

    print(f"Everything is in {out}:")
    for path, text in {
        "report.html": "open it in a browser: map, calibration, scores",
        "plots/map.png": f"tmax in {MONTH[:7]} and its errors at held-out stations",
        "plots/": "calibration, normalised errors, training",
        "map.nc": "the same map for xarray",
        "eval/": "scores, overall and per station",
        "model/": f"the model: gt.GriddedTNP.load({str(out)!r})",
    }.items():
        print(f"  {path:<14} {text}")


if __name__ == "__main__":
    main()
