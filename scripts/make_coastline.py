"""Make src/gridtnp/demo/coastline.npz: the coastlines of the world.

They are from Natural Earth at 1:50 million (public domain), in the npm package `world-atlas`:

    $ npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
    $ python scripts/make_coastline.py package/land-50m.json

The input is TopoJSON: arcs of delta-encoded integers, and rings made of arcs, where ~i means arc i
reversed. Rings that cross the date line are cut at ±180°, and Antarctica is closed along the edge
of the map at the pole.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

OUTPUT = Path(__file__).parent.parent / "src" / "gridtnp" / "demo" / "coastline.npz"
PROVENANCE = (
    "Natural Earth 1:50m land (public domain), from land-50m.json of the npm package "
    "world-atlas 2.0.2, cut at the date line, made by scripts/make_coastline.py; "
    "closed rings of hundredths of degrees east and north, as differences of consecutive points"
)


def rings(topology: dict[str, Any]) -> list[np.ndarray]:
    """All rings of all polygons, holes included, as (longitude, latitude) rows in degrees."""
    scale, translate = topology["transform"]["scale"], topology["transform"]["translate"]
    arcs = [np.cumsum(arc, 0) * scale + translate for arc in topology["arcs"]]
    found = []
    for geometry in topology["objects"]["land"]["geometries"]:
        polygons = geometry["arcs"] if geometry["type"] == "MultiPolygon" else [geometry["arcs"]]
        for ring in (ring for polygon in polygons for ring in polygon):
            parts = [arcs[i] if i >= 0 else arcs[~i][::-1] for i in ring]
            # consecutive arcs share a point
            found.append(np.concatenate([parts[0], *(part[1:] for part in parts[1:])]))
    return found


def on_the_map(ring: np.ndarray) -> list[np.ndarray]:
    """The pieces of a ring between -180 and 180 degrees."""
    longitude = np.unwrap(ring[:, 0], period=360)
    if abs(longitude[-1] - longitude[0]) > 180:  # around the pole: start at the date line
        first = 1 + int(np.abs(np.diff(ring[:, 0])).argmax())
        ring = np.concatenate([ring[first:-1], ring[: first + 1]])
        longitude = np.unwrap(ring[:, 0], period=360)
        pole = np.copysign(90, ring[0, 1])
        corners = [(longitude[-1], pole), (longitude[0], pole), (longitude[0], ring[0, 1])]
        ring = np.concatenate([np.stack([longitude, ring[:, 1]], 1), corners])
    else:
        ring = np.stack([longitude, ring[:, 1]], 1)
    pieces = [cut(cut(ring + np.array([turn, 0]), 180), -180) for turn in (-360, 0, 360)]
    return [piece for piece in pieces if len(piece) > 3 and np.ptp(piece[:, 0]) > 0]


def cut(ring: np.ndarray, limit: float) -> np.ndarray:
    """The part of a closed ring on the inner side of a meridian, closed along that meridian."""
    kept: list[tuple[float, float]] = []
    for (x, y), (x2, y2) in pairwise(ring):
        room, room2 = np.sign(limit) * (limit - x), np.sign(limit) * (limit - x2)
        if room >= 0:
            kept.append((x, y))
        if room * room2 < 0:
            kept.append((limit, y + (y2 - y) * room / (room - room2)))
    return np.array([*kept, *kept[:1]]).reshape(-1, 2)


def distinct(ring: np.ndarray) -> np.ndarray:
    """Without points that are the same as the one before."""
    return ring[np.append(True, (np.diff(ring, axis=0) != 0).any(1))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", type=Path, help="land-50m.json of world-atlas")
    found = rings(json.loads(parser.parse_args().input.read_text()))
    broken = [i for i, ring in enumerate(found) if len(ring) < 4 or (ring[0] != ring[-1]).any()]
    if broken:
        raise SystemExit(f"Rings {broken} do not end where they start.")
    found = [piece for ring in found for piece in on_the_map(ring)]
    found = [distinct((100 * ring).round().astype(np.int32)) for ring in found]
    found = [ring for ring in found if len(ring) >= 4]
    points = np.diff(np.concatenate(found), axis=0, prepend=0).T  # small numbers compress best
    starts = np.cumsum([0, *(len(ring) for ring in found[:-1])])
    np.savez_compressed(OUTPUT, points=points, starts=starts, provenance=np.array(PROVENANCE))
    print(f"{OUTPUT}: {len(found)} rings, {points.shape[1]} points, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
