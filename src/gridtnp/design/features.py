"""Designing features: what is known of every place beyond what the data say."""

from __future__ import annotations

import numpy as np

from gridtnp.data.coast import LAND
from gridtnp.data.dataset import Dataset

FEWEST = 50
"""Places of the target that can tell what the share of land is worth."""
MOST = 1_000_000
"""Places of all sources at which computing it takes seconds."""
VARIES = 0.1
"""Standard deviation of the share of land, at least, on a coast."""
ONE_SIDE = 0.1
"""Places with a share of land nearer than this to 0 or 1 are not on the coast."""


def add_land_fraction(train: Dataset) -> tuple[Dataset, str]:
    """With the share of land as a feature, and the reason, for many places around a coast.

    Else the same data, and no reason.
    """
    source = train.sources[train.target_source]
    used = np.broadcast_to(train.context_places.get(source.name, True), source.lat.shape)
    unique = np.unique(np.stack([source.lat[used], source.lon[used]]), axis=1).shape[1]
    total = sum(len(s.lat) for s in train.sources.values())
    if LAND in train.statics or unique < FEWEST or total > MOST:
        return train, ""
    made = train.with_land_fraction()
    land = made.static_at(source.name)[used, -1]
    if land.std() < VARIES:
        return train, ""
    share = np.mean((land > ONE_SIDE) & (land < 1 - ONE_SIDE))
    return made, f"{share:.0%} of the places are at a coast"
