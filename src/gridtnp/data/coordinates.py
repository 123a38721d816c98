"""Which column or variable is latitude, longitude, time, level, station or elevation.

CF attributes (`standard_name`, `units`, `cf_role`) win over names; names are compared without case.
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
"""What each is called, the likeliest name first."""
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
    """The name of the column in each role that was found, from all names and their attributes."""
    said = {name: _by_attributes(attributes) for name, attributes in columns.items()}
    found = {}
    for role, names in NAMES.items():
        candidates = [name for name in columns if said[name] == role]
        if not candidates:
            free = [name for name in columns if said[name] is None]
            candidates = [name for name in free if name.lower() in names]
        if candidates:
            found[role] = min(candidates, key=lambda name: _rank(name, names))
    return found


def require_places(found: Mapping[str, str], source: str, columns: Iterable[str]) -> None:
    """Raise unless latitudes and longitudes were found."""
    for role, word in (("lat", "latitude"), ("lon", "longitude")):
        if role not in found:
            raise ValueError(
                f"Source {source!r} must have latitudes and longitudes, but no {word} was found "
                f"among {sorted(columns)}; name it {role!r} or give it the CF standard_name "
                f"{word!r}."
            )


def wrap(lon: np.ndarray, west: float = -180.0) -> np.ndarray:
    """Longitudes in the 360 degrees from `west` eastwards; those already there stay bit for bit."""
    outside = (lon < west) | (lon >= west + 360.0)
    turned = west + np.mod(np.where(outside, lon, west) - west, 360.0)
    return np.where(outside, np.where(turned >= west + 360.0, west, turned), lon)


def possible(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    """Where a place is one: all numbers, latitudes up to ±90, longitudes from -360 to 360."""
    with np.errstate(invalid="ignore"):
        return (np.abs(lat) <= 90.0) & (np.abs(lon) <= 360.0)


def unit_vectors(
    lat: Float[np.ndarray, " n"], lon: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n 3"]:
    """Locations on the unit sphere in Cartesian coordinates."""
    phi, turn = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(phi) * np.cos(turn), np.cos(phi) * np.sin(turn), np.sin(phi)], -1)


def western_edge(lon: np.ndarray) -> float:
    """Where to cut the circle of longitudes: -180, unless places across it would be torn apart.

    Then in the middle of the widest empty part.
    """
    around = np.unique(wrap(lon))
    if len(around) < 2:
        return -180.0
    gaps = np.diff(np.append(around, around[0] + 360.0))
    widest = int(np.argmax(gaps))
    if widest == len(gaps) - 1 or gaps[widest] < 60.0 or gaps[-1] > 30.0:
        return -180.0
    return float(np.round(around[widest] + gaps[widest] / 2))


def _by_attributes(attributes: Mapping[str, Any]) -> str | None:
    standard = STANDARD_NAMES.get(str(attributes.get("standard_name", "")).lower())
    units = UNITS.get(str(attributes.get("units", "")).lower())
    return standard or units or CF_ROLES.get(str(attributes.get("cf_role", "")).lower())


def _rank(name: str, names: tuple[str, ...]) -> int:
    return names.index(name.lower()) if name.lower() in names else len(names)
