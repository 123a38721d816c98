"""Which column or variable is latitude, longitude, time, level, station or elevation.

CF attributes (`standard_name`, `units`, `cf_role`) take precedence over names, which are compared
without case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

NAMES: dict[str, tuple[str, ...]] = {
    "lat": ("lat", "latitude", "nav_lat", "lats", "y"),
    "lon": ("lon", "longitude", "nav_lon", "lons", "long", "lng", "x"),
    "time": ("valid_time", "time", "datetime", "date", "timestamp", "valid"),
    "level": ("level", "pressure_level", "plev", "isobaricinhpa", "isobaric", "lev", "pressure"),
    "station": (
        *("station", "station_id", "stationid", "stid", "icao", "wmo", "wmo_id", "usaf"),
        *("site", "site_id", "platform", "platform_id", "buoy", "ship", "id", "station_name"),
    ),
    "elevation": ("elevation", "elev", "elev_m", "altitude", "alt", "orography"),
}
"""Accepted names of each role, the most likely first."""
STANDARD_NAMES = {
    "latitude": "lat",
    "longitude": "lon",
    "time": "time",
    "air_pressure": "level",
    "platform_id": "station",
    "platform_name": "station",
    "surface_altitude": "elevation",
    "height_above_mean_sea_level": "elevation",
}
UNITS = {
    **dict.fromkeys(("degrees_north", "degree_north", "degrees_n", "degree_n"), "lat"),
    **dict.fromkeys(("degrees_east", "degree_east", "degrees_e", "degree_e"), "lon"),
}
CF_ROLES = {"timeseries_id": "station", "trajectory_id": "station", "profile_id": "station"}


def recognise(columns: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The column in each role that was found, given all names with their attributes."""
    declared = {name: _declared_role(attributes) for name, attributes in columns.items()}
    found = {}
    for role, names in NAMES.items():
        candidates = [name for name in columns if declared[name] == role]
        if not candidates:
            undeclared = [name for name in columns if declared[name] is None]
            candidates = [name for name in undeclared if name.lower() in names]
        if candidates:
            found[role] = min(candidates, key=lambda name: _rank(name, names))
    return found


def require_places(found: Mapping[str, str], source: str, columns: Iterable[str]) -> None:
    """Raise unless latitude and longitude were found."""
    for role, word in (("lat", "latitude"), ("lon", "longitude")):
        if role not in found:
            raise ValueError(
                f"Source {source!r} has no {word} among {sorted(columns)}; name it {role!r} or "
                f"give it the CF standard_name {word!r}."
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

    It is -180, or the middle of the widest gap if the data lie on both sides of the date line.
    """
    sorted_lon = np.unique(wrap(lon))
    if len(sorted_lon) < 2:
        return -180.0
    gaps = np.diff(np.append(sorted_lon, sorted_lon[0] + 360.0))
    widest = int(np.argmax(gaps))
    if widest == len(gaps) - 1 or gaps[widest] < 60.0 or gaps[-1] > 30.0:
        return -180.0
    return float(np.round(sorted_lon[widest] + gaps[widest] / 2))


def _declared_role(attributes: Mapping[str, Any]) -> str | None:
    standard = STANDARD_NAMES.get(str(attributes.get("standard_name", "")).lower())
    units = UNITS.get(str(attributes.get("units", "")).lower())
    return standard or units or CF_ROLES.get(str(attributes.get("cf_role", "")).lower())


def _rank(name: str, names: tuple[str, ...]) -> int:
    return names.index(name.lower()) if name.lower() in names else len(names)
