"""Wind: a direction that it comes from, and components that say where it goes."""

import pandas as pd
import pytest

from gridtnp.cli.wind import wind_components


@pytest.mark.parametrize(
    ("direction", "u", "v"), [(0, 0, -2), (90, -2, 0), (180, 0, 2), (270, 2, 0), (360, 0, -2)]
)
def test_the_direction_is_where_the_wind_comes_from(direction: float, u: float, v: float) -> None:
    frame = pd.DataFrame({"lat": [50.0], "ff": [2.0], "dd": [direction]})
    frame.attrs["units"] = {"ff": "m s-1"}
    for data in (frame, frame.to_xarray()):
        found = wind_components(data, "ff", "dd")
        assert float(found["u"][0]) == pytest.approx(u, abs=1e-12)
        assert float(found["v"][0]) == pytest.approx(v, abs=1e-12)
        assert "dd" not in found
    assert wind_components(frame, "ff", "dd").attrs["units"]["v"] == "m s-1"


def test_what_cannot_be_turned_is_reported() -> None:
    frame = pd.DataFrame({"ff": [2.0], "dd": [10.0], "u": [1.0]})
    with pytest.raises(ValueError, match=r"Unknown variable 'fff' of the wind; did you mean 'ff'"):
        wind_components(frame, "fff", "dd")
    with pytest.raises(ValueError, match=r"already have \['u'\]; leave out"):
        wind_components(frame, "ff", "dd")
