"""Makes src/gridtnp/data/coastline.npz: the outlines of land on a map of the world.

The outlines are those of Natural Earth at 1:110 million (public domain), as the npm package
`world-atlas` carries them:

    $ npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz
    $ python scripts/make_coastline.py package/land-110m.json

The file there is TopoJSON: arcs of whole numbers, each the step from the point before, and rings
made of arcs, where ~i means arc i from its end to its beginning.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

OUTPUT = Path(__file__).parent.parent / "src" / "gridtnp" / "data" / "coastline.npz"
PROVENANCE = (
    "Natural Earth 1:110m land (public domain), from land-110m.json of the npm package "
    "world-atlas 2.0.2, made by scripts/make_coastline.py; degrees east and north, closed rings"
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
            # arcs that follow each other share a point
            found.append(np.concatenate([parts[0], *(part[1:] for part in parts[1:])]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", type=Path, help="land-110m.json of world-atlas")
    found = rings(json.loads(parser.parse_args().input.read_text()))
    broken = [i for i, ring in enumerate(found) if len(ring) < 4 or (ring[0] != ring[-1]).any()]
    if broken:
        raise SystemExit(f"Every ring must end where it starts, but rings {broken} do not.")
    points = np.concatenate(found).round(3).astype(np.float32)
    starts = np.cumsum([0, *(len(ring) for ring in found[:-1])])
    np.savez_compressed(OUTPUT, points=points, starts=starts, provenance=np.array(PROVENANCE))
    print(f"{OUTPUT}: {len(found)} rings, {len(points)} points, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
