"""Which column or variable is latitude, longitude, time, level, station or elevation.

CF attributes (`standard_name`, `units`, `cf_role`) take precedence over names, which are compared
without case. Latitudes and longitudes are converted to degrees north and east.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

NAMES: dict[str, tuple[str, ...]] = {
    "lat": ("lat", "latitude", "nav_lat", "lats", "y"),
    "lon": ("lon", "longitude", "nav_lon", "lons", "long", "lng", "x"),
    "time": (
        *("valid_time", "time", "datetime", "date_time", "date", "timestamp", "valid"),
        *("obs_time", "observation_time"),
    ),
    "level": ("level", "pressure_level", "plev", "isobaricinhpa", "isobaric", "lev", "pressure"),
    "station": (
        *("station", "station_id", "stationid", "stid", "icao", "wmo", "wmo_id", "usaf"),
        *("site", "site_id", "platform", "platform_id", "buoy", "ship", "id", "station_name"),
    ),
    "elevation": ("elevation", "elev", "elev_m", "altitude", "alt", "orography"),
    "x": ("x", "easting", "xc", "rlon"),
    "y": ("y", "northing", "yc", "rlat"),
}
"""Accepted names of each role, the most likely first; `x` and `y` are projected coordinates.

Blanks and hyphens in a name count as underscores.
"""
WORDS = {"lat": "latitude", "lon": "longitude"}
STANDARD_NAMES = {
    "latitude": "lat",
    "longitude": "lon",
    "time": "time",
    "air_pressure": "level",
    "platform_id": "station",
    "platform_name": "station",
    "surface_altitude": "elevation",
    "height_above_mean_sea_level": "elevation",
    "projection_x_coordinate": "x",
    "projection_y_coordinate": "y",
    "grid_longitude": "x",
    "grid_latitude": "y",
}
DEGREES = re.compile(
    r"(?:decimal[ _])?(?:deg(?:ree)?s?|°)[ _]?(?:(n(?:orth)?|s(?:outh)?)|(e(?:ast)?|w(?:est)?))?",
    re.I,
)
"""Units of latitudes and longitudes, with the direction of one or the other."""
RADIANS = ("rad", "radian", "radians")
SHOWN = 12
"""Most names in an error message."""
ROW_NUMBERS = ("obs", "traj", "trajectory", "profile", "index", "level_0", "row", "record")
"""Names of columns that number rows or tracks, if they hold whole numbers."""
CF_ROLES = {"timeseries_id": "station", "trajectory_id": "station", "profile_id": "station"}


def plain(name: str) -> str:
    """A name as it is compared: in lower case, with underscores."""
    return re.sub(r"[ -]", "_", name.strip().lower())


def recognise(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The column in each role that was found, given all names with their attributes."""
    declared = {name: _declared_role(attributes) for name, attributes in columns.items()}
    found = {}
    for role, names in NAMES.items():
        candidates = [name for name in columns if declared[name] == role]
        if not candidates:
            undeclared = [name for name in columns if declared[name] is None]
            candidates = [name for name in undeclared if plain(name) in names]
        if candidates:
            found[role] = min(candidates, key=lambda name: _rank(name, names))
    return found


def require_places(found: Mapping[str, str], source: str, columns: Iterable[str]) -> None:
    """Raise unless latitude and longitude were found."""
    named = sorted(columns)
    for role, word in WORDS.items():
        if role not in found:
            way = f"; name it {role!r} or give it the CF standard_name {word!r}."
            if "x" in found and "y" in found:
                way = (
                    f", only projected {found['x']!r} and {found['y']!r}; convert them, "
                    f"e.g. by their projection: crs={{{source!r}: 'EPSG:25832'}}."
                )
            elif not {"lat", "lon"} & set(found) and len(named) > SHOWN:
                way += " If every column is a station, give a row per station and time (melt)."
            raise ValueError(f"Source {source!r} has no {word} among {shown(named)}{way}")


def shown(names: Sequence[str]) -> str:
    """Some names for an error message: the first ones, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{list(names[:SHOWN])}{more}"


def units_text(attributes: Mapping[str, Any]) -> str:
    """The units that attributes declare; empty if there are none."""
    units = attributes.get("units")
    return "" if units is None else str(units).strip()


def to_degrees(
    values: np.ndarray, role: str, column: str, attributes: Mapping[str, Any], source: str
) -> np.ndarray:
    """Latitudes in degrees north or longitudes in degrees east, as their units declare them.

    Values that are in these units already, or declare none, are unchanged to the bit.
    """
    units = units_text(attributes)
    what = f"{WORDS[role].capitalize()} {column!r} of source {source!r}"
    if values.dtype.kind not in "fiu":
        raise ValueError(
            f"{what} is not numeric (first: {str(np.ravel(values)[0])!r}); convert it to degrees."
        )
    if units.lower() in RADIANS:
        return np.rad2deg(values)
    match = DEGREES.fullmatch(units)
    if units and (match is None or match[2 if role == "lat" else 1]):
        raise ValueError(
            f"{what} is in {units!r}, not in degrees; convert it, e.g. by its projection: "
            f"crs={{{source!r}: 'EPSG:25832'}}."
        )
    direction = (match[1] or match[2] or "").lower() if match else ""
    if direction[:1] not in ("s", "w"):
        return values
    if (values < 0).any():
        right = "degrees_north" if role == "lat" else "degrees_east"
        raise ValueError(
            f"{what} is in {units!r}, but some are negative; give it positive "
            f"{units.replace('_', ' ')} or units {right!r}."
        )
    return -values


def table_places(table: pd.DataFrame, source: str) -> tuple[dict[str, str], np.ndarray, np.ndarray]:
    """The columns of a list of places in their roles, its latitudes and its longitudes."""
    units = table.attrs.get("units", {})
    columns = {str(c): {"units": units[c]} if c in units else {} for c in table.columns}
    found = recognise(columns)
    require_places(found, source, columns)
    lat, lon = (
        to_degrees(
            _numbers(pd.Series(table[found[role]])), role, found[role], columns[found[role]], source
        )
        for role in ("lat", "lon")
    )
    return found, lat, lon


def _numbers(column: pd.Series) -> np.ndarray:
    """As numbers; text that is none stays, for `to_degrees` to name."""
    try:
        return column.to_numpy(np.float64)
    except ValueError:
        return column.to_numpy()


def why_no_variable(column: str, columns: Collection[str], integers: bool) -> str | None:
    """Why a column without a role is no variable either: an index, a repeated or second coordinate.

    `integers` is whether it holds nothing else.
    """
    name = plain(column)
    if not name or re.fullmatch(r"unnamed:_\d+(_level_\d+)?", name):
        return f"column {column!r} has no name"
    first = re.sub(r"\.\d+$", "", column)
    if first != column and first in columns:
        return f"column {column!r} repeats {first!r}"
    for role in ("lat", "lon", "time", "station"):
        if name in NAMES[role] and name not in "xy":
            return f"column {column!r} is a second {WORDS.get(role, role)}"
    if name in ROW_NUMBERS and integers:
        return f"column {column!r} numbers the rows"
    return None


def require_file_name(column: str, source: str) -> None:
    """Raise if netCDF or Zarr could not hold a variable of this name."""
    first = column[:1].isalnum() or column[:1] == "_"
    if not first or "/" in column or not column.isprintable() or column != column.strip():
        proposed = re.sub(r"\W+", "_", column).strip("_") or "variable"
        raise ValueError(
            f"Column {column!r} of source {source!r} cannot be the name of a variable in a file; "
            f"rename it, e.g. to {proposed!r}."
        )


def wrap(lon: np.ndarray, west: float = -180.0) -> np.ndarray:
    """Longitudes in [west, west + 360); those already in this range are unchanged to the bit."""
    outside = (lon < west) | (lon >= west + 360.0)
    wrapped = west + np.mod(np.where(outside, lon, west) - west, 360.0)
    return np.where(outside, np.where(wrapped >= west + 360.0, west, wrapped), lon)


def possible(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """Which coordinates are valid: finite, latitude within ±90 and longitude within ±360."""
    with np.errstate(invalid="ignore"):
        return (np.abs(lat) <= 90.0) & (np.abs(lon) <= 360.0)


def unit_vectors(
    lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n 3"]:
    """Locations on the unit sphere in Cartesian coordinates."""
    phi, lam = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)], -1)


def western_edge(lon: np.ndarray) -> float:
    """The western end of the range of longitudes.

    It is -180, or the middle of the widest gap if that is elsewhere and at least 60° wide.
    """
    sorted_lon = np.unique(wrap(lon))
    if len(sorted_lon) < 2:
        return -180.0
    gaps = np.diff(np.append(sorted_lon, sorted_lon[0] + 360.0))
    widest = int(np.argmax(gaps))
    if widest == len(gaps) - 1 or gaps[widest] < 60.0:
        return -180.0
    return float(np.round(sorted_lon[widest] + gaps[widest] / 2))


def _declared_role(attributes: Mapping[str, Any]) -> str | None:
    standard = STANDARD_NAMES.get(str(attributes.get("standard_name", "")).lower())
    match = DEGREES.fullmatch(units_text(attributes))
    units = ("lat" if match[1] else "lon" if match[2] else None) if match else None
    return standard or units or CF_ROLES.get(str(attributes.get("cf_role", "")).lower())


def _rank(name: str, names: tuple[str, ...]) -> int:
    return names.index(plain(name)) if plain(name) in names else len(names)
