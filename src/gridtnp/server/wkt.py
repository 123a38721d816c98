"""Well-known text, the geometries of EDR queries: points, lines and polygons of degrees."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from gridtnp.errors import require_known

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
SHAPES = {
    "POINT": "R",
    "MULTIPOINT": r"R|\(R(?:,R)*\)",
    "LINESTRING": "R",
    "MULTILINESTRING": r"\(R(?:,R)*\)",
    "POLYGON": r"\(R(?:,R)*\)",
    "MULTIPOLYGON": r"\(\(R(?:,R)*\)(?:,\(R(?:,R)*\))*\)",
}
"""How lists of coordinates, R, are nested in each kind."""
EXAMPLES = {
    "POINT": "POINT(-105.2 39.7)",
    "LINESTRING": "LINESTRING(-108 38,-104 40)",
    "POLYGON": "POLYGON((-108 38,-104 38,-104 40,-108 40,-108 38))",
}


@dataclass(frozen=True, eq=False)
class Geometry:
    """Lists of coordinates (longitude, latitude, and the measure M if there is one)."""

    kind: str
    parts: tuple[Float[np.ndarray, "n d"], ...]

    @property
    def lon(self) -> Float[np.ndarray, " n"]:
        return np.concatenate([part[:, 0] for part in self.parts])

    @property
    def lat(self) -> Float[np.ndarray, " n"]:
        return np.concatenate([part[:, 1] for part in self.parts])

    @property
    def measure(self) -> Float[np.ndarray, " n"] | None:
        if self.parts[0].shape[1] < 3:
            return None
        return np.concatenate([part[:, 2] for part in self.parts])

    def contains(
        self, lon: Float[np.ndarray, " n"], lat: Float[np.ndarray, " n"]
    ) -> Bool[np.ndarray, " n"]:
        """Which points are inside of a polygon: those with an odd number of borders to the east."""
        inside = np.zeros(len(lon), bool)
        for part in self.parts:
            x, y = part[:, 0], part[:, 1]
            for x1, y1, x2, y2 in zip(x, y, np.roll(x, -1), np.roll(y, -1), strict=True):
                if y1 == y2:
                    continue
                crossed = (lat >= min(y1, y2)) & (lat < max(y1, y2))
                inside ^= crossed & (lon < x1 + (lat - y1) * (x2 - x1) / (y2 - y1))
        return inside


def parse(text: str, *kinds: str) -> Geometry:
    """Parse a geometry of one of these kinds."""
    example = EXAMPLES[kinds[0]]
    named = re.match(r"\s*([A-Za-z]+)\s*(?:(ZM|Z|M)\b)?\s*(\(.*\))\s*$", text, re.DOTALL | re.I)
    if named is None:
        raise ValueError(f"coords={_short(text)!r} is not well-known text; write {example}.")
    kind, suffix, body = named[1].upper(), (named[2] or "").upper(), named[3]
    if kind not in SHAPES:
        for ending in ("ZM", "Z", "M"):
            if kind.endswith(ending) and kind.removesuffix(ending) in SHAPES:
                kind, suffix = kind.removesuffix(ending), ending
                break
    require_known(kind, kinds, "geometry", "for this query")
    if "Z" in suffix:
        raise ValueError(f"{kind}{suffix} has heights, which the model does not know; leave Z out.")
    lists = re.findall(r"\(([^()]*)\)", body)
    skeleton = re.sub(r"\s+", "", re.sub(r"\([^()]*\)", "R", body))
    if re.fullmatch(SHAPES[kind], skeleton) is None:
        raise ValueError(f"The brackets of coords={_short(text)!r} do not fit; write {example}.")
    size = 3 if suffix == "M" else 2
    parts = tuple(_coordinates(one, size, kind, example) for one in lists)
    if kind == "POINT" and len(parts[0]) != 1:
        raise ValueError(f"A POINT has one place, but {len(parts[0])} are given; write {example}.")
    return Geometry(kind, parts)


def _coordinates(text: str, size: int, kind: str, example: str) -> np.ndarray:
    rows = [row.split() for row in text.split(",")]
    for row in rows:
        if len(row) != size or not all(re.fullmatch(NUMBER, number) for number in row):
            raise ValueError(
                f"{_short(' '.join(row))!r} in {kind} must be {size} numbers; write {example}."
            )
    found = np.array(rows, np.float64)
    if not np.isfinite(found).all():
        raise ValueError(f"{kind} has numbers that are too large; write {example}.")
    return found


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
