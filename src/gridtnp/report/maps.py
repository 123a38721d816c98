"""Maps of the report: predicted fields, joint samples and observations at some times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.evaluation.results import MODEL, Evaluation
from gridtnp.inference.conditioning import Context
from gridtnp.inference.context_reader import ContextReader
from gridtnp.inference.forecasts import Advance, above
from gridtnp.inference.joint_samples import sample
from gridtnp.inference.prediction import predict
from gridtnp.inference.queries import Query, column
from gridtnp.inference.running import Output
from gridtnp.report.packing import pack
from gridtnp.sources.coordinates import wrap
from gridtnp.sources.quality import collecting

MARGIN = 0.03
"""Of the extent of the stations, on every side of the map."""
MESH = 150
"""Points per side of the mesh on which static features are looked up."""
AROUND = 300.0
"""Degrees of longitude from which a map goes around the whole Earth."""
MOST_OBSERVATIONS = 3000
"""Places of the context on a map."""
PIXELS = 1500
"""Across a map; what is smaller cannot be seen."""
QUANTILES = (0.05, 0.95)
ZEROS = 0.1
"""Share of zeros from which the map shows the probability of more than zero."""
RAMPS = {
    "mean": "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725",
    "std": "fff7f3 fde0dd fcc5c0 fa9fb5 f768a1 dd3497 ae017e 7a0177 49006a",
    "support": "ffffd9 edf8b1 c7e9b4 7fcdbb 41b6c4 1d91c0 225ea8 253494 081d58",
    "chance": "f7fbff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b",
    "error": "2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b",
}
"""Colours that people with colour blindness can read, after viridis and ColorBrewer."""
STATISTICS: tuple[str | float, ...] = ("mean", "std", *QUANTILES, "support")


@dataclass(frozen=True)
class Region:
    """A box of latitudes and longitudes; `east` may exceed 180."""

    south: float
    north: float
    west: float
    east: float

    @property
    def around(self) -> bool:
        """Whether it goes around the whole Earth."""
        return self.east - self.west >= 360.0

    @classmethod
    def of(cls, model: ModelContents, data: Dataset) -> Region:
        """All places of the target's source in this part, with a margin."""
        source = data.sources[data.target_source]
        masks = (data.context_places.get(source.name), data.target_places)
        known = [mask for mask in masks if mask is not None]
        used = np.any(known, axis=0) if known else np.ones(len(source.lat), bool)
        lat, lon = source.lat[used], wrap(source.lon[used], model.spec.west)
        margin = MARGIN * max(float(np.ptp(lat)), float(np.ptp(lon)), 1.0)
        south, north = max(lat.min() - margin, -90.0), min(lat.max() + margin, 90.0)
        west, east = float(lon.min() - margin), float(lon.max() + margin)
        if east - west > AROUND:
            west, east = model.spec.west, model.spec.west + 360.0
        region = cls(float(south), float(north), west, east)
        return region if region.around else region._with_statics(data, lat, lon)

    def _with_statics(self, data: Dataset, lat: np.ndarray, lon: np.ndarray) -> Region:
        """The part where static features are known, and all stations."""
        south_north = np.linspace(self.south, self.north, MESH)
        west_east = np.linspace(self.west, self.east, MESH)
        y, x = (a.ravel() for a in np.meshgrid(south_north, west_east, indexing="ij"))
        known = np.ones(len(y), bool)
        for feature in data.statics.values():
            if feature.field is not None:
                known &= np.isfinite(feature.field.at(y, x))
        if known.all() or not known.any():
            return self
        half = (self.north - self.south) / MESH, (self.east - self.west) / MESH
        return Region(
            min(float(y[known].min()), float(lat.min()) - half[0]),
            max(float(y[known].max()), float(lat.max()) + half[0]),
            min(float(x[known].min()), float(lon.min()) - half[1]),
            max(float(x[known].max()), float(lon.max()) + half[1]),
        )

    def lines(self, ring: Float[np.ndarray, "n 2"]) -> list[Float[np.ndarray, "m 2"]]:
        """The parts of a ring of longitudes and latitudes on the map, as fine as can be seen."""
        margin, pixel = ((self.east - self.west) / number for number in (20, PIXELS))
        lon, lat = ring.T
        inside = (lat > self.south - margin) & (lat < self.north + margin)
        if not self.around:
            east = np.mod(lon - (self.west - margin), 360.0)
            inside &= east < self.east - self.west + 2 * margin
        near = inside.copy()  # up to the first points outside
        near[1:] |= inside[:-1]
        near[:-1] |= inside[1:]
        found = []
        for part in np.split(ring, np.flatnonzero(np.diff(near)) + 1)[int(not near[0]) :: 2]:
            way = np.cumsum(np.append(0.0, np.hypot(*np.diff(part, axis=0).T)))
            kept = np.append(np.diff(np.floor(way / pixel), prepend=-1.0)[:-1] > 0, True)
            if kept.sum() > 2:
                found.append(part[kept])
        return found

    def grid(self, model: ModelContents, points: int) -> xr.Dataset:
        """About this many points, as far apart in both directions, where the model can predict."""
        (south, north), (west, east) = (self.south, self.north), (self.west, self.east)
        own = model.network.grid
        for axis in () if own is None else own.axes:
            half = axis.step / 2
            if axis.name == "lat":
                south, north = max(south, axis.low - half), min(north, axis.high + half)
            elif axis.name == "lon" and not axis.periodic and not self.around:
                west, east = max(west, axis.low - half), min(east, axis.high + half)
        width = (east - west) * max(np.cos(np.deg2rad((south + north) / 2)), 0.2)
        spacing = np.sqrt(width * (north - south) / points)
        rows = max(2, round((north - south) / spacing) + 1)
        columns = max(2, round(width / spacing) + 1)
        inner = 1e-6 * (north - south)  # rounding must not leave the model's grid
        lat = np.linspace(south + inner, north - inner, rows)
        lon = np.linspace(west + inner, east - inner, columns)
        if self.around:
            lon = west + 360.0 * np.arange(columns) / columns
        return xr.Dataset(coords={"lat": lat, "lon": lon})


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings about the data, which `evaluate` has given already."""
    with collecting():
        yield


def thresholds(evaluation: Evaluation) -> dict[str, float]:
    """What the map shows the probability of more of, for variables that are not Gaussian.

    Zero if a tenth of the observations are zero, as for rain on a day; else about their median.
    """
    found = {}
    for v, name in enumerate(evaluation.variables):
        observed = evaluation.observed[:, v]
        if evaluation.of(MODEL, v).marginal is None:
            continue
        level = 0.0 if (observed == 0).mean() >= ZEROS else float(f"{np.median(observed):.1g}")
        if (observed > level).any():
            found[name] = level
    return found


def fields(
    model: ModelContents,
    test: Context,
    grid: xr.Dataset,
    times: np.ndarray | None,
    exceed: Mapping[str, float],
    progress: bool | Advance = False,
) -> dict[str, Any]:
    """Predictions on a grid, by variable and statistic; rows are times, latitudes, longitudes.

    `exceed` are thresholds whose probability of being exceeded is predicted too.
    """
    levels = {name: [level] for name, level in exceed.items()}
    options: dict[str, Any] = {"quantiles": QUANTILES, "exceed": levels, "times": times}
    with quietly():
        found = predict(model, test, grid, output=Output(progress=progress), **options)
    assert isinstance(found, xr.Dataset)
    lat, lon = grid["lat"].to_numpy(), grid["lon"].to_numpy()
    shape = (1 if times is None else len(times), len(lat), len(lon))
    values = {
        name: {
            _key(statistic): pack(found[column(name, statistic)].to_numpy().reshape(shape))
            for statistic in STATISTICS
        }
        for name in model.spec.target_names
    }
    for name, level in exceed.items():
        chance = found[column(name, above(level))].to_numpy().reshape(shape)
        values[name]["chance"] = pack(chance)
    return {"lat": _axis(lat), "lon": _axis(lon), "values": values}


def _axis(values: np.ndarray) -> dict[str, Any]:
    """First value, spacing and number of evenly spaced values."""
    return {"first": values[0], "step": float(values[1] - values[0]), "size": len(values)}


def _key(statistic: str | float) -> str:
    """The name of a statistic in the page; quantiles are the ends of the 90 % interval."""
    return statistic if isinstance(statistic, str) else "low" if statistic < 0.5 else "high"


def joint_samples(
    model: ModelContents,
    test: Dataset,
    grid: xr.Dataset,
    time: np.datetime64 | None,
    number: int,
) -> dict[str, Any]:
    """Joint samples at one time, by variable."""
    times = None if time is None else [time]
    with quietly():
        found = sample(model, number, test, grid, times=times, progress=False)
    assert isinstance(found, xr.Dataset)
    shape = (number, grid.sizes["lat"], grid.sizes["lon"])
    return {name: pack(found[name].to_numpy().reshape(shape)) for name in model.spec.target_names}


def observations(model: ModelContents, test: Dataset, times: np.ndarray | None) -> dict[str, Any]:
    """What the model is given of the target variables at each time: places and values."""
    with quietly():
        reader = ContextReader.of(model.spec, test)
    query = Query.of((np.zeros(1), np.zeros(1)))
    query = query if times is None else query.at_times(times)
    pieces = []
    for task_time, rows in reader.groups(query):
        found = reader.observations(task_time)
        for name in model.spec.target_names:
            for key in reader.sets_of(name):
                if key not in found:
                    continue
                variables, seen = reader.variables[key], found[key]
                places = variables.source.places(seen.rows)
                labels = variables.source.labels
                piece = pd.DataFrame(
                    {
                        "variable": name,
                        "station": (places if labels is None else labels[places]).astype(str),
                        "lat": variables.source.lat[places],
                        "lon": wrap(variables.source.lon[places], model.spec.west),
                        "value": seen.values[:, variables.variables.index(name)],
                    }
                )
                pieces += [piece.assign(number=int(row)) for row in rows]
    if not pieces:
        return {"names": [], "lat": [], "lon": [], "values": {}}
    table = pd.concat(pieces, ignore_index=True)
    table = table.drop_duplicates(["variable", "station", "number"], keep="last")
    sites = table.drop_duplicates("station").set_index("station")[["lat", "lon"]]
    if len(sites) > MOST_OBSERVATIONS:
        kept = np.linspace(0, len(sites) - 1, MOST_OBSERVATIONS).round().astype(int)
        sites = sites.iloc[kept]
    steps = range(1 if times is None else len(times))
    values = {
        str(name): pack(
            own.pivot(index="number", columns="station", values="value")
            .reindex(index=steps, columns=sites.index)
            .to_numpy(np.float64)
        )
        for name, own in table.groupby("variable")
    }
    return {
        "names": list(map(str, sites.index)),
        "lat": sites["lat"].round(4).tolist(),
        "lon": sites["lon"].round(4).tolist(),
        "values": values,
    }
