"""Queries: EDR parameters and bodies of `POST /predict` as places, times and columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from gridtnp.data.places import LATITUDE, LONGITUDE, grid_of
from gridtnp.errors import require_known
from gridtnp.inference.forecasts import above
from gridtnp.inference.prediction import thresholds
from gridtnp.inference.queries import column
from gridtnp.server import wkt
from gridtnp.server.served import Served, Statistics
from gridtnp.server.work import Limits, Refused
from gridtnp.sources.csv_files import parse_csv
from gridtnp.sources.times import show, to_time, to_times

Format = Literal["CoverageJSON", "netCDF", "CSV"]
FORMATS: tuple[Format, ...] = ("CoverageJSON", "netCDF", "CSV")
CRS84 = "http://www.opengis.net/def/crs/OGC/1.3/CRS84"
KNOWN_CRS = ("CRS84", "OGC:CRS84", CRS84)
MOST_COLUMNS = 200
MOST_KEYS = 10_000
"""Of a body, whose keys are those of columns at most."""


@dataclass(frozen=True, eq=False)
class Question:
    """Places, times and columns; `inside` masks the points of a grid that are wanted."""

    at: xr.Dataset
    times: np.ndarray | None
    what: Statistics
    inside: xr.DataArray | None = None

    @property
    def points(self) -> int:
        places = int(np.prod([self.at.sizes[d] for d in self.at.dims], dtype=object))
        return places * (1 if self.times is None else len(self.times))


def require_affordable(points: int, limits: Limits, f: Format) -> bool:
    """Whether so many points are a job; raises if they are too many for that."""
    if points > limits.job_points:
        raise Refused(
            413,
            f"The request is for {points:,} points, but at most {limits.job_points:,} are allowed; "
            "ask for fewer places or times.",
        )
    if points > limits.points and f == "CoverageJSON":
        raise Refused(
            413,
            f"The request is for {points:,} points, but CoverageJSON is limited to "
            f"{limits.points:,}; ask for f=netCDF or f=CSV, or for fewer places or times.",
        )
    return points > limits.points


# ---- EDR -----------------------------------------------------------------------------------------


def position(geometry: wkt.Geometry) -> xr.Dataset:
    """One place, or several."""
    if geometry.kind == "POINT":
        return places((), geometry.lat[0], geometry.lon[0])
    return places("point", geometry.lat, geometry.lon)


def trajectory(geometry: wkt.Geometry) -> xr.Dataset:
    """Places on a line, with times if it has measures: seconds since 1970."""
    seconds = geometry.measure
    if seconds is None:
        return places("point", geometry.lat, geometry.lon)
    if (np.abs(seconds) > 1e11).any():
        raise ValueError("The measures of LINESTRINGM must be times in seconds since 1970.")
    time = (seconds * 1000).round().astype("datetime64[ms]")
    return places("point", geometry.lat, geometry.lon).assign_coords(time=("point", time))


def box(
    served: Served,
    west: float,
    south: float,
    east: float,
    north: float,
    resolution: tuple[int | None, int | None],
    most: int,
) -> xr.Dataset:
    """A grid over a box, at the native resolution or with this many longitudes and latitudes."""
    if not (-90 <= south <= north <= 90 and -360 <= west <= 360 and -360 <= east <= 360):
        raise ValueError(
            f"bbox={west:g},{south:g},{east:g},{north:g} is not west,south,east,north in degrees; "
            "write bbox=-109,37,-102,41."
        )
    if east < west:  # across the end of the longitudes
        east += 360.0
    rows, columns = served.spacing
    ny = resolution[1] or (round((north - south) / rows) + 1)
    nx = resolution[0] or (round((east - west) / columns) + 1)
    if nx * ny > most:
        raise Refused(
            413,
            f"The grid has {nx * ny:,} points, but at most {most:,} are allowed; ask for a smaller "
            "box or a lower resolution.",
        )
    return grid_of(np.linspace(south, north, ny), np.linspace(west, east, nx))


def location(served: Served, name: str) -> xr.Dataset:
    """A station, with its own static features."""
    stations = served.stations
    if stations is None or name not in stations.index:
        raise Refused(404, f"There is no location {name!r}; see the list of locations.")
    row = stations.loc[name]
    at = places((), float(row["lat"]), float(row["lon"]))
    return at.assign_coords({key: float(row[key]) for key in served.data.statics})


def times_of(served: Served, datetime: str | None) -> np.ndarray | None:
    """An instant, an interval of the times of the data, or all of them."""
    known = served.times
    if known is None:
        if datetime is not None:
            raise ValueError("The data have no times; leave datetime out.")
        return None
    if datetime is None:
        return known
    first, slash, last = datetime.partition("/")
    if not slash:
        return np.array([to_time(first.strip(), "datetime")])
    start = known[0] if first.strip() in ("..", "") else to_time(first.strip(), "datetime")
    stop = known[-1] if last.strip() in ("..", "") else to_time(last.strip(), "datetime")
    found = known[(known >= start) & (known <= stop)]
    if not len(found):
        raise Refused(
            404,
            f"There is no time in {datetime!r}; the data are from {show(known[0])} to "
            f"{show(known[-1])}.",
        )
    return found


def names_of(parameters: str | None) -> list[str] | None:
    """The columns of `parameter-name=a,b`; names that contain commas are quoted by none."""
    if parameters is None or not parameters.strip():
        return None
    names = [name.strip() for name in parameters.split(",")]
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{len(names)} parameters are asked for; at most {MOST_COLUMNS} may be.")
    return names


def require_plane(crs: str | None, z: str | None) -> None:
    if crs is not None and crs not in KNOWN_CRS:
        raise ValueError(f"Unknown crs {crs!r}; longitudes and latitudes are in CRS84.")
    if z is not None:
        raise ValueError("The predictions have no vertical levels; leave z out.")


# ---- POST /predict -------------------------------------------------------------------------------

Cell = FiniteFloat | str | None
Table = Annotated[dict[str, list[Cell]], Field(max_length=MOST_COLUMNS)]
Text = Annotated[str, Field(max_length=100)]
Levels = Annotated[list[FiniteFloat], Field(max_length=99)]


class Body(BaseModel):
    """Plain data; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Box(Body):
    """A grid from south to north and from west to east, with a step in degrees."""

    lat: tuple[FiniteFloat, FiniteFloat]
    lon: tuple[FiniteFloat, FiniteFloat]
    step: Annotated[FiniteFloat, Field(gt=0)]


class Observations(Body):
    """Observations by source: columns of values, or the text of a CSV file.

    Without any, the model predicts from the run's own. `keep` are sources of the run to keep.
    Observations without times are of the time `time`.
    """

    observations: dict[Text, Table | str] | None = None
    keep: Annotated[list[Text], Field(max_length=100)] = []
    time: Text | None = None


class Prediction(Observations):
    """Where (`at`: columns lat, lon, and perhaps time and static features; or `grid`), when, what
    and in which format to predict.
    """

    at: Table | None = None
    grid: Box | None = None
    times: Annotated[list[Text], Field(min_length=1, max_length=10_000)] | None = None
    quantiles: Levels = [0.05, 0.95]
    exceed: Levels | dict[Text, Levels] = []
    f: Format = "CoverageJSON"


def read_body(kind: type[Any], body: bytes) -> Any:
    """A body of this kind, or one sentence on what is wrong with it."""
    keys = islice(re.finditer(rb'"\s*:', body), MOST_KEYS + 1)
    if sum(1 for _ in keys) > MOST_KEYS:
        raise ValueError(
            f"The body has more than {MOST_KEYS:,} keys; send observations as columns, not as rows."
        )
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise ValueError(_explain(error, kind)) from None


def _explain(error: ValidationError, kind: type[BaseModel]) -> str:
    errors = error.errors(include_url=False, include_context=False)
    of_key = [e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]]
    first = max(of_key, key=lambda e: len(e["loc"]))  # of the alternative that fits best
    if first["type"] == "json_invalid":
        return (
            'The body is not JSON; send an object such as {"at": {"lat": [39.7], "lon": [-105]}}.'
        )
    parts = [str(part) for part in first["loc"]]
    place = ".".join(part for part in parts if not part.startswith(("list[", "dict[")))
    if first["type"] == "extra_forbidden":
        try:
            require_known(str(first["loc"][0]), kind.model_fields, "key", "in the body")
        except ValueError as unknown:
            return str(unknown)
    return f"{place or 'The body'}: {first['msg'].rstrip('.')}."[:300]


def tables_of(observations: Mapping[str, Table | str], limits: Limits) -> dict[str, pd.DataFrame]:
    """Observations as tables; a text is never taken for a path."""
    found = {}
    for name, given in observations.items():
        table = (
            parse_csv(given, name, MOST_COLUMNS) if isinstance(given, str) else _frame(name, given)
        )
        if len(table) > limits.observations:
            raise Refused(
                413,
                f"Source {name!r} has {len(table):,} observations, but at most "
                f"{limits.observations:,} are allowed; send fewer.",
            )
        found[name] = table
    return found


def _frame(name: str, columns: Table) -> pd.DataFrame:
    sizes = {key: len(values) for key, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"The columns of {name!r} differ in length: {sizes}; give rows in full.")
    table = pd.DataFrame(columns)
    if table.empty:
        raise ValueError(f"{name!r} has no rows; give at least one.")
    return table


def question_of(served: Served, body: Prediction, limits: Limits) -> Question:
    """What a body asks for."""
    if (body.at is None) == (body.grid is None):
        raise ValueError("Give either at (columns lat and lon) or grid (lat, lon and step).")
    at = _places(body.at) if body.grid is None else _grid(body.grid, limits)  # pyright: ignore
    times = None
    if "time" in at.coords:
        if body.times is not None:
            raise ValueError("times are given, but at has times already; drop one of them.")
    elif body.times is not None:
        times = to_times(body.times, "times")
    return Question(at, times, _statistics(served, body.quantiles, body.exceed))


def _statistics(
    served: Served,
    quantiles: Sequence[float],
    exceed: Sequence[float] | Mapping[str, Sequence[float]],
) -> Statistics:
    levels = thresholds(served.model.spec, exceed)
    names = []
    for variable in served.variables:
        chances = [above(level) for level in levels[variable]]
        for what in ("mean", "std", *quantiles, *chances, "support"):
            names.append(column(variable, what))
    return Statistics(tuple(dict.fromkeys(names)), tuple(quantiles), levels)


def _grid(box: Box, limits: Limits) -> xr.Dataset:
    (south, north), (west, east), step = box.lat, box.lon, box.step
    if not (-90 <= south <= north <= 90 and -360 <= west <= east <= 360):
        raise ValueError(
            "grid: lat must be [south, north] and lon [west, east] in degrees, such as "
            '{"lat": [37, 41], "lon": [-109, -102], "step": 0.1}.'
        )
    ny, nx = (int((high - low) / step + 1e-9) + 1 for low, high in (box.lat, box.lon))
    if nx * ny > limits.job_points:
        raise Refused(
            413,
            f"The grid has {nx * ny:,} points, but at most {limits.job_points:,} are allowed; take "
            "a larger step.",
        )
    return grid_of(south + step * np.arange(ny), west + step * np.arange(nx))


def _places(columns: Table) -> xr.Dataset:
    table = _frame("at", columns)
    for name in ("lat", "lon"):
        if name not in table:
            raise ValueError(f"at has no column {name!r}; give lat and lon.")
    found: dict[str, np.ndarray] = {}
    for name, values in table.items():
        if name == "time":
            found["time"] = to_times(values, "time")
            continue
        numbers = np.asarray(pd.to_numeric(values, errors="coerce"), np.float64)
        if name in ("lat", "lon") and not np.isfinite(numbers).all():
            raise ValueError(f"at.{name} must be numbers.")
        found[str(name)] = numbers
    at = places("point", found.pop("lat"), found.pop("lon"))
    return at.assign_coords({name: ("point", values) for name, values in found.items()})


def places(dims: str | tuple[()], lat: Any, lon: Any) -> xr.Dataset:
    """Latitudes and longitudes along a dimension, or one of each."""
    return xr.Dataset(coords={"lat": (dims, lat, LATITUDE), "lon": (dims, lon, LONGITUDE)})
