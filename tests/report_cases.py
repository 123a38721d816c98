"""A small model with its report, in which every name from the data tries to run a script."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import small

import gridtnp as gt
from gridtnp.evaluation.results import Evaluation

STATION = "<script>alert(1)</script>"
SOURCE = "<img src=x onerror=alert(2)>"
UNITS = "K</script><script>alert(3)</script>"


@dataclass(frozen=True, eq=False)
class Case:
    """A model, its test part and evaluation, and its report as text."""

    model: gt.GriddedTNP
    test: gt.Dataset
    evaluation: Evaluation
    html: str

    @property
    def data(self) -> dict[str, Any]:
        """What the page draws."""
        found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', self.html)
        assert found is not None
        return json.loads(found[1])

    def write(self, folder: Path) -> Path:
        path = folder / "report.html"
        path.write_text(self.html, encoding="utf-8")
        return path


def parts(held_out: str | None = None, units: str = "K") -> tuple[gt.Dataset, gt.Dataset]:
    """Train and test; one of the held-out stations gets another name."""
    rows = small.table()
    rows.loc[rows["station"] == held_out, "station"] = STATION
    rows.attrs["units"] = {"t2m": units}
    field = small.field()
    field["t2m"].attrs["units"] = units
    data = gt.Dataset(
        {"stations": rows, SOURCE: field},
        target="stations.t2m",
        static={"elevation": small.heights()},
        features=["hour"],
    )
    train, _, test = data.split(hold_out_stations=0.3)
    return train, test


def fitted(train: gt.Dataset) -> gt.GriddedTNP:
    model = gt.GriddedTNP.for_data(train, dim=8, heads=2, layers=1, prior="none", quiet=True)
    return model.fit(train, recipe=gt.Recipe(steps=2, batch=2), quiet=True)


@cache
def case() -> Case:
    """Made once in every process."""
    _, test = parts()
    source = test.sources["stations"]
    assert source.labels is not None
    assert test.target_places is not None
    train, test = parts(str(source.labels[test.target_places][0]), UNITS)
    model = fitted(train)
    evaluation = model.evaluate(test, ["nearest", "kriging"])
    html = _html(model, test, evaluation=evaluation, points=700, samples=2)
    return Case(model, test, evaluation, html)


@cache
def stations_only() -> str:
    """The report of a model with a feature that is known at stations only."""
    static = {"elevation": "stations.elevation"}
    data = gt.Dataset({"stations": small.table()}, target="stations.t2m", static=static)
    train, _, test = data.split(hold_out_stations=0.3)
    return _html(fitted(train), test, baselines=["nearest"], points=100)


@cache
def timeless() -> str:
    """The report of two variables without times, across the date line."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"lat": rng.uniform(48, 54, 60), "lon": rng.uniform(170, 190, 60)})
    rows = rows.assign(station=[f"S{i}" for i in range(60)], a=rng.normal(size=60))
    rows["b"] = rows["a"] + rng.normal(size=60)
    data = gt.Dataset({"soil": rows}, target=["soil.a", "soil.b"])
    train, _, test = data.split(hold_out_stations=0.4)
    return _html(fitted(train), test, baselines=["nearest"], points=100, samples=1)


def _html(model: gt.GriddedTNP, test: gt.Dataset, **options: Any) -> str:
    with TemporaryDirectory() as folder:
        path = model.report(test, Path(folder) / "report.html", **options)
        return path.read_text(encoding="utf-8")
