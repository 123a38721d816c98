"""Wind direction and speed to eastward and northward components, which can be averaged."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from gridtnp.errors import require_known

Table = pd.DataFrame | xr.Dataset
COMPONENTS = ("u", "v")
"""Names of the eastward and the northward component."""


def wind_components(data: Table, speed: str, direction: str) -> Table:
    """The data with the components `u` and `v` instead of speed and direction.

    The direction is the one that the wind comes from, in degrees clockwise from north. Data with
    components and neither speed nor direction stay as they are.
    """
    names = [str(name) for name in (data.columns if isinstance(data, pd.DataFrame) else data)]
    if set(COMPONENTS) <= set(names) and not {speed, direction} & set(names):
        return data
    for name in (speed, direction):
        require_known(name, names, "variable", "of the wind")
    taken = [name for name in COMPONENTS if name in names]
    if taken:
        raise ValueError(f"The data already have {taken}; leave out the conversion of the wind.")
    angle = np.deg2rad(data[direction])
    u, v = -data[speed] * np.sin(angle), -data[speed] * np.cos(angle)
    if isinstance(data, pd.DataFrame):
        units = dict(data.attrs.get("units", {}))
        made = data.drop(columns=[speed, direction]).assign(u=u, v=v)
        made.attrs["units"] = units | {n: units[speed] for n in COMPONENTS if speed in units}
        return made
    made = data.drop_vars([speed, direction]).assign(u=u, v=v)
    for name in COMPONENTS:
        made[name].attrs = {k: w for k, w in data[speed].attrs.items() if k == "units"}
    return made
