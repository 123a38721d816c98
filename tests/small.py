"""A small untrained model with its data, and an evaluation of forecasts that are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
import xarray as xr

from gridtnp.config import (
    Embedded,
    Fourier,
    GriddedConfig,
    ModelConfig,
    Neighbour,
    PseudoToken,
    Raw,
    Swin,
    TNPConfig,
)
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.estimator import GriddedTNP
from gridtnp.evaluation.results import Evaluation, Prediction
from gridtnp.grid import Axis, Grid
from gridtnp.tasks.specification import TaskSpec

LATS, LONS = np.arange(47.0, 56.0, 0.5), np.arange(-5.0, 5.0, 0.5)
TIMES = pd.date_range("2019-03-01", periods=6, freq="6h")
STATIONS, DAYS = 10, 60


def table(number: int = 40, seed: int = 0) -> pd.DataFrame:
    """Stations with exact coordinates in single precision; some values are missing."""
    rng = np.random.default_rng(seed)
    sites = pd.DataFrame(
        {
            "station": [f"S{i:03d}" for i in range(number)],
            "lat": (rng.integers(48 * 64, 55 * 64, number) / 64).astype(float),
            "lon": (rng.integers(-4 * 64, 4 * 64, number) / 64).astype(float),
            "elevation": rng.integers(0, 900, number).astype(float),
        }
    )
    rows = sites.merge(pd.DataFrame({"time": TIMES}), how="cross")
    rows["t2m"] = rng.normal(280, 5, len(rows)).astype(np.float32).astype(float)
    rows.loc[rng.random(len(rows)) < 0.15, "t2m"] = np.nan
    rows.attrs["units"] = {"t2m": "K"}
    return rows


def field(seed: int = 1) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    values = rng.normal(281, 4, (len(TIMES), len(LATS), len(LONS))).astype(np.float32)
    return xr.Dataset(
        {"t2m": (("time", "lat", "lon"), values.astype(float), {"units": "K"})},
        {"time": TIMES, "lat": LATS, "lon": LONS},
    )


def heights() -> xr.DataArray:
    lat, lon = np.arange(45.0, 58.0), np.arange(-8.0, 9.0)
    values = 100 + 10 * (lat[:, None] - 45) + 5 * lon
    return xr.DataArray(values, {"lat": lat, "lon": lon}, ("lat", "lon"), "elevation")


def dataset(
    rows: pd.DataFrame | None = None,
    grid: xr.Dataset | None = None,
    relief: xr.DataArray | None = None,
) -> Dataset:
    return Dataset(
        {
            "stations": table() if rows is None else rows,
            "era5": field() if grid is None else grid,
        },
        target="stations.t2m",
        static={"elevation": heights() if relief is None else relief},
        features=["hour"],
    )


def model(data: Dataset | None = None, seed: int = 0) -> GriddedTNP:
    """For stations and a field between 47 and 56 degrees north, at the time of the context."""
    data = dataset() if data is None else data
    torch.manual_seed(seed)
    axes = (Axis.cells("lat", 47.0, 56.0, 8), Axis.cells("lon", -5.0, 5.0, 8))
    places = Fourier(of=("lat", "lon"), per_column=8, shortest=2.0, longest=40.0)
    config = ModelConfig(
        coordinates=("lat", "lon"),
        features=data.feature_names,
        sources={name: len(data.variables_of(name)[1]) for name in data.contexts},
        tokens=Embedded(embedding=(places, Raw(of=data.feature_names)), shared_with="stations"),
        architecture=GriddedConfig(
            grid=Grid(axes, "sphere"),
            grid_encoder=PseudoToken(),
            fusion="multi",
            processor=Swin(layers=1, window=(4, 4)),
            decoder=Neighbour(neighbours=9),
        ),
        dim=16,
        heads=2,
    )
    return GriddedTNP(config, TaskSpec.of(data), Normaliser.fit(data))


def gridless(data: Dataset) -> GriddedTNP:
    """A transformer neural process without a grid."""
    torch.manual_seed(0)
    spec = TaskSpec.of(data)
    places = Fourier(of=("lat", "lon"), per_column=8, shortest=2.0, longest=40.0)
    raw = (Raw(of=data.feature_names),) if data.feature_names else ()
    config = ModelConfig(
        coordinates=("lat", "lon"),
        features=data.feature_names,
        sources={name: len(held.variables) for name, held in spec.contexts.items()},
        dim_y=len(spec.target),
        tokens=Embedded(embedding=(places, *raw)),
        architecture=TNPConfig(layers=1),
        dim=16,
        heads=2,
    )
    return GriddedTNP(config, spec, Normaliser.fit(data))


def evaluation(**changes: object) -> Evaluation:
    """Forecasts of a known truth: the model is calibrated, its baselines are worse."""
    rng = np.random.default_rng(0)
    n = STATIONS * DAYS
    mean = rng.normal(10, 5, (n, 2))
    observed = mean + rng.normal(size=(n, 2)) * [1.0, 3.0]
    right = np.tile([1.0, 3.0], (n, 1))
    worse = mean + rng.normal(size=(n, 2)) * [1.0, 3.0]
    days = np.datetime64("2020-02-01", "ms") + np.arange(DAYS) * np.timedelta64(1, "D")
    known: dict[str, object] = {
        "variables": {"tmax": "degC", "wind": None},
        "time": np.repeat(days, STATIONS),
        "station": np.tile([f"S{i}" for i in range(STATIONS)], DAYS),
        "lat": np.tile(np.linspace(40, 49, STATIONS), DAYS),
        "lon": np.tile(np.linspace(-3, 6, STATIONS), DAYS),
        "observed": observed,
        "forecasts": {
            "model": Prediction(mean, right),
            "kriging": Prediction(worse, right * np.sqrt(2)),
            "nearest": Prediction(worse + 1, right * np.sqrt(2), "training errors"),
            "bilinear": Prediction(worse + 2, np.zeros((n, 2)), "none"),
        },
        "split": "10 stations never seen",
    }
    return Evaluation(**(known | changes))  # type: ignore[arg-type]
