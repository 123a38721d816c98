"""Figures: what is on them, that they leave pyplot alone, and what they refuse."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.figure import Figure
from small import evaluation

from gridtnp import plots
from gridtnp.training.loop import Progress


def prediction(lon: np.ndarray | None = None) -> xr.Dataset:
    lat = np.arange(45.0, 39.9, -0.5)
    lon = np.arange(-110.0, -101.9, 0.5) if lon is None else lon
    mean = lat[:, None] + 0.1 * np.arange(len(lon))[None]
    coords = {"lat": lat, "lon": lon, "time": np.datetime64("1995-01-01", "ns")}
    units = {"units": "degC"}
    return xr.Dataset(
        {
            "tmax_mean": (("lat", "lon"), mean, units),
            "tmax_std": (("lat", "lon"), 0 * mean + 2, units),
        },
        coords,
    )


def stations() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "time": pd.to_datetime(["1995-01-01"] * 3 + ["1995-02-01"]),
            "lat": [41.0, 43.0, 44.5, 42.0],
            "lon": [-109.0, -105.0, -103.0, -104.0],
            "tmax": [40.0, 43.0, np.nan, 1.0],
        }
    )


def drawn(figure: Figure) -> int:
    file = io.BytesIO()
    figure.savefig(file, dpi=40)
    return len(file.getvalue())


def dots(figure: Figure, panel: int) -> PathCollection:
    (found,) = [c for c in figure.axes[panel].collections if isinstance(c, PathCollection)]
    return found


def bars(figure: Figure) -> list[Any]:
    """What the colour bars of a figure belong to."""
    shown = [c for ax in figure.axes for c in ax.collections]
    return [c for c in shown if c.colorbar is not None]


# ---- maps ----------------------------------------------------------------------------------------


def test_probabilities_are_mapped() -> None:
    field = prediction()
    field["tmax_above_40.5"] = (field["tmax_mean"] > 41).astype(float)
    figure = plots.maps(field, "tmax")
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["mean", "standard deviation", "> 40.5 °C"]


def test_a_map_has_mean_std_and_errors_at_the_stations_of_its_time() -> None:
    figure = plots.maps(prediction(), "tmax", stations=stations())
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["mean", "standard deviation", "error at stations"]
    assert figure.get_suptitle() == "tmax, 1995-01-01 UTC"
    error = dots(figure, 2)
    np.testing.assert_allclose(error.get_offsets(), [[-109, 41], [-105, 43]])
    np.testing.assert_allclose(error.get_array(), [41.2 - 40.0, 44.0 - 43.0])
    assert error.get_clim() == (pytest.approx(-1.2), pytest.approx(1.2))
    assert [ax.get_xlabel() for ax in figure.axes[3:]] == [
        "°C",
        "°C",
        "predicted − observed, °C",
    ]
    assert figure.axes[0].get_aspect() == pytest.approx(1 / np.cos(np.deg2rad(42.5)))
    assert figure.axes[0].yaxis.get_major_formatter()(43.0) == "43°N"
    assert figure.axes[0].xaxis.get_major_formatter()(-105.0) == "105°W"
    assert drawn(figure) > 1000


def test_fields_have_the_same_colours_unless_set_apart() -> None:
    field = prediction()
    panels = {
        "model": field["tmax_mean"],
        "other": field["tmax_mean"] + 5,
        "std": field["tmax_std"],
    }
    points = stations()[["lat", "lon", "tmax"]].dropna()
    figure = plots.fields(panels, points=points, column="tmax", apart=["std"])
    meshes = [c for ax in figure.axes for c in ax.collections if isinstance(c, QuadMesh)]
    ranges = [mesh.get_clim() for mesh in meshes[:3]]
    assert ranges[0] == ranges[1] != ranges[2]
    assert dots(figure, 0).get_clim() == ranges[0]
    np.testing.assert_allclose(dots(figure, 0).get_array(), points["tmax"])
    assert dots(figure, 2).get_array() is None  # another variable: dots without colours
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[:3] == ["model", "other", "std"]
    assert drawn(figure) > 1000
    some = plots.fields(panels, points={"other": points})
    assert not [c for c in some.axes[0].collections if isinstance(c, PathCollection)]
    assert len(dots(some, 1).get_offsets()) == len(points)


def test_colour_bars_are_pointed_where_values_lie_beyond_the_colours() -> None:
    field = prediction()
    found = bars(plots.maps(field.clip(41), "tmax", stations=stations()))
    mean, std, error = (c.colorbar for c in found)  # one observation is less than all means
    assert (mean.extend, std.extend, error.extend) == ("both", "neither", "neither")
    two = (field["tmax_mean"] > 42).astype(float)
    above = two.where(field["tmax_mean"] < field["tmax_mean"].max(), 5.0)
    assert [c.colorbar.extend for c in bars(plots.fields({"two": two}))] == ["neither"]
    assert [c.colorbar.extend for c in bars(plots.fields({"above": above, "two": two}))] == ["max"]


def test_all_fields_may_be_set_apart() -> None:
    figure = plots.fields({"std": prediction()["tmax_std"]}, apart=["std"])
    assert len(bars(figure)) == 1
    assert drawn(figure) > 1000


def test_fields_that_cannot_be_mapped() -> None:
    field = prediction()["tmax_mean"]
    with pytest.raises(ValueError, match=r"^No fields to map: panels is empty"):
        plots.fields({})
    with pytest.raises(ValueError, match=r"^Unknown title 'sdt' among the panels; did"):
        plots.fields({"std": field}, apart=["sdt"])
    with pytest.raises(ValueError, match="a map needs latitude and longitude"):
        plots.fields({"many": field.expand_dims(sample=2)})


def test_rows_from_the_north_are_drawn_in_the_north() -> None:
    figure = plots.maps(prediction(), "tmax")
    assert len([ax for ax in figure.axes if ax.get_title()]) == 2
    (mesh,) = [c for c in figure.axes[0].collections if isinstance(c, QuadMesh)]
    values = np.asarray(mesh.get_array())
    assert values[-1, 0] == 45.0
    assert values[0, 0] == 40.0


def test_predictions_of_the_table_itself_win_over_the_grid() -> None:
    table = stations().assign(tmax_mean=[39.0, 44.0, 1.0, 1.0])
    figure = plots.maps(prediction(), "tmax", stations=table)
    np.testing.assert_allclose(dots(figure, 2).get_array(), [-1.0, 1.0])
    bare = plots.maps(prediction(), "tmax", stations=stations().drop(columns="tmax"))
    assert len([ax for ax in bare.axes if ax.get_title()]) == 2
    assert len(dots(bare, 0).get_offsets()) == 3


def test_longitudes_of_any_range_lie_together_with_their_stations() -> None:
    field = prediction(np.r_[np.arange(352.0, 360.0, 0.5), np.arange(0.0, 3.0, 0.5)])
    table = stations().assign(lon=[-4.0, 2.0, 1.0, 1.0])
    figure = plots.maps(field, "tmax", stations=table)
    low, high = figure.axes[0].get_xlim()
    assert (low, high) == (-8.25, 2.75)
    np.testing.assert_allclose(np.asarray(dots(figure, 2).get_offsets())[:, 0], [-4.0, 2.0])
    pacific = prediction(np.arange(160.0, 200.0, 2.0))
    table = table.assign(lon=[-170.0, 170.0, 0.0, 0.0])
    figure = plots.maps(pacific, "tmax", stations=table)
    np.testing.assert_allclose(np.asarray(dots(figure, 2).get_offsets())[:, 0], [190.0, 170.0])
    assert figure.axes[0].xaxis.get_major_formatter()(190.0) == "170°W"


def test_one_of_several_times_is_chosen() -> None:
    days = pd.date_range("1995-01-01", periods=2, freq="MS")
    one = prediction().drop_vars("time")
    both = xr.concat([one, one + 1], pd.Index(days, name="time"))
    figure = plots.maps(both, "tmax", time="1995-02-01")
    assert figure.get_suptitle() == "tmax, 1995-02-01 UTC"
    with pytest.raises(ValueError, match=r"^The prediction has 2 times .* time='1995-01-01'\.$"):
        plots.maps(both, "tmax")
    with pytest.raises(
        ValueError, match=r"^No prediction at 1996-01-01; .* 1995-01-01 to 1995-02-01\.$"
    ):
        plots.maps(both, "tmax", time="1996")


def test_what_is_not_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Unknown variable 'tmx' in .*; did you mean 'tmax'\?$"):
        plots.maps(prediction(), "tmx")
    points = prediction().stack(place=("lat", "lon")).reset_index("place")
    with pytest.raises(
        ValueError, match=r"^tmax_mean has dimensions \('place',\), .* predict on a"
    ):
        plots.maps(points, "tmax")


def test_a_constant_field_and_no_stations_at_all_can_be_drawn() -> None:
    flat = prediction() * 0
    flat["tmax_mean"].attrs["units"] = "degC"
    empty = plots.maps(flat, "tmax", stations=stations().iloc[3:])
    assert drawn(empty) > 1000


# ---- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["normalised_errors", "pit"])
def test_histograms_have_a_panel_for_every_forecast_with_a_spread(name: str) -> None:
    figure = getattr(plots, name)(evaluation(), "tmax")
    assert [ax.get_title() for ax in figure.axes] == ["model", "kriging", "nearest"]
    area = [sum(p.get_height() * p.get_width() for p in ax.patches[-20:]) for ax in figure.axes]
    if name == "pit":
        np.testing.assert_allclose(area, 1.0)
    assert all(ax.get_xlabel() for ax in figure.axes)
    assert drawn(figure) > 1000
    one = getattr(plots, name)(evaluation(), forecasts=["model"])
    assert len(one.axes) == 1


def test_the_mean_log_density_is_on_the_histogram() -> None:
    figure = plots.normalised_errors(evaluation(), "tmax", ["model"])
    (text,) = figure.axes[0].texts
    row = evaluation().to_dataframe().iloc[0]
    assert text.get_text().startswith(f"−{-row['normalised_log_density']:.3f}\n(−1.419 if")
    total = sum(p.get_height() * p.get_width() for p in figure.axes[0].patches)
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["coverage", "spread_skill"])
def test_curves_have_a_line_for_every_forecast_and_the_diagonal(name: str) -> None:
    figure = getattr(plots, name)(evaluation(), "tmax")
    (ax,) = figure.axes
    assert {line.get_label() for line in ax.lines} == {"model", "kriging", "nearest", "calibrated"}
    assert ax.get_xlim() == ax.get_ylim()
    assert drawn(figure) > 1000
    if name == "coverage":
        (model,) = [line for line in ax.lines if line.get_label() == "model"]
        x, y = (np.asarray(values, float) for values in (model.get_xdata(), model.get_ydata()))
        np.testing.assert_allclose(y, x, atol=0.07)
    else:
        assert ax.get_xlabel() == "predicted standard deviation (°C)"
    assert "(" not in getattr(plots, name)(evaluation(), "wind").axes[0].get_xlabel()


def test_a_forecast_without_a_spread_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Unknown forecast 'bilinear' with standard deviations;"):
        plots.pit(evaluation(), forecasts=["bilinear"])


# ---- training ------------------------------------------------------------------------------------


def run(folder: Path, end: str = "") -> Path:
    lines = []
    for step in range(1, 101):
        score = 1 - (step - 60.0) ** 2 if step % 20 == 0 else None
        lines.append(asdict(Progress(step, 1 / step, step, 1e3, score)))
    text = "\n".join(map(json.dumps, lines)) + "\n" + end
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_training_curves_survive_a_last_line_cut_short(tmp_path: Path) -> None:
    figure = plots.training(run(tmp_path, '{"step": 10'))
    assert [ax.get_title() for ax in figure.axes] == [
        "training",
        "validation, best 1.000 at step 60",
    ]
    assert len(np.asarray(figure.axes[0].lines[0].get_xdata())) == 100
    assert drawn(figure) > 1000


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"^No such file: '.*metrics\.jsonl'; give the folder"
    ):
        plots.training(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"metrics\.jsonl' has no training steps yet\.$"):
        plots.training(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1\n{"step": 2, "loss": 1.0}\n')
    with pytest.raises(ValueError, match=r"^Line 1 of '.*metrics\.jsonl' is not a JSON object"):
        plots.training(tmp_path)


def test_without_validation_there_is_one_panel(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    assert len(plots.training(tmp_path).axes) == 1


def test_an_album_has_all_pictures_of_a_run(tmp_path: Path) -> None:
    made = evaluation()
    place = plots.album(made, run(tmp_path))
    suffixes = [f"-{v}" for v in made.variables] if len(made.variables) > 1 else [""]
    names = {f"{n}{s}" for n in ("errors", "pit", "coverage", "spread_skill") for s in suffixes}
    assert {p.name for p in place.iterdir()} == {f"{n}.png" for n in names | {"training"}}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in place.iterdir())


# ---- around --------------------------------------------------------------------------------------


def test_pyplot_is_left_alone_and_matplotlib_is_not_needed_before_a_figure(tmp_path: Path) -> None:
    code = (
        "import sys, gridtnp\n"
        "gridtnp.plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"gridtnp.plots.training({str(run(tmp_path))!r}).savefig({str(tmp_path / 'a.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_missing_matplotlib_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"Plotting needs matplotlib, .* 'gridtnp\[plots\]'\.$"):
        plots.training(run(tmp_path))
