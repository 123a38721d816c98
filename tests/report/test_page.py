"""The report: its numbers are those of evaluate and predict, and nothing in it runs but itself."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small
import xarray as xr
from report_cases import SOURCE, STATION, UNITS, case, fitted, parts, stations_only, timeless

import gridtnp as gt
from gridtnp.evaluation.results import Prediction
from gridtnp.report import page
from gridtnp.report.ablation import ablation
from gridtnp.report.charts import nice_ticks
from gridtnp.report.maps import Region
from gridtnp.report.packing import json_in_html, pack, unpack
from gridtnp.report.sections import headline, quantity
from gridtnp.report.series import series
from gridtnp.sources.source import unit_symbol

VENDOR = Path(page.__file__).parent / "vendor"


class Elements(HTMLParser):
    """Elements with their attributes, texts of scripts, and the text that is shown."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.shown: list[str] = []
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside == "script" else self.shown).append(data)


# ---- numbers -------------------------------------------------------------------------------------


def test_scores_are_those_of_evaluate_to_the_last_digit() -> None:
    made = case()
    table = re.search(r'<table class="scores">(.*?)</table>', made.html, re.DOTALL)
    assert table is not None
    found = [
        [float(raw) if raw else np.nan for raw in re.findall(r'data-raw="([^"]*)"', row)]
        for row in re.findall(r"<tr[ >].*?</tr>", table[1])
    ]
    columns = ["crps", "rmse", "mae", "bias", "log_likelihood", "coverage_90", "crps_skill"]
    expected = made.evaluation.to_dataframe()[columns].to_numpy()
    np.testing.assert_array_equal(np.array([row for row in found if row]), expected)


def test_the_headline_says_what_evaluate_found() -> None:
    made = case()
    rows = made.evaluation.to_dataframe().to_dict("records")
    found = headline(rows, made.evaluation.split)
    assert found["text"].startswith("At 6 stations never seen, t2m is predicted with an RMSE of ")
    assert f"{rows[0]['rmse']:.2f}" in found["text"].replace("\u00a0", " ")
    assert "the best of 2 baselines" in found["text"]
    assert [tile["raw"] for tile in found["tiles"]][:2] == [rows[0]["crps"], rows[0]["rmse"]]
    assert f"{100 * rows[0]['coverage_90']:.0f}\u00a0% of the observations" in found["calibration"]


@pytest.mark.parametrize(
    ("covered", "low", "high", "words"),
    [
        (0.94, 0.88, 0.99, "by no more than chance"),
        (0.97, 0.95, 0.99, "wider than they should be"),
        (0.70, 0.60, 0.80, "narrower than they should be"),
    ],
)
def test_the_headline_on_calibration(covered: float, low: float, high: float, words: str) -> None:
    row = small.evaluation().to_dataframe().to_dict("records")[0]
    row |= {"coverage_90": covered, "coverage_90_low": low, "coverage_90_high": high}
    assert words in headline([row], "2 stations")["calibration"]


def test_series_are_those_of_the_evaluation_and_of_predict() -> None:
    made = case()
    stations = made.data["stations"]
    values = {k: unpack(v) for k, v in stations["values"]["t2m"].items()}
    points = made.evaluation.predictions()
    row = points["station"].map(stations["names"].index).to_numpy()
    seconds = points["time"].to_numpy().astype("datetime64[s]").astype(int)
    column = [stations["times"].index(second) for second in seconds]
    for name, expected in (("observed", "observed"), ("mean", "model_mean"), ("std", "model_std")):
        step = stations["values"]["t2m"][name]["step"]
        np.testing.assert_allclose(values[name][row, column], points[expected], atol=step)
    assert np.isfinite(values["mean"]).sum() == len(points)
    width = values["q95"] - values["q05"]  # of a normal distribution
    np.testing.assert_allclose(width, 2 * 1.6448536 * values["std"], atol=0.01)


def test_a_station_that_closed_before_the_times_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gridtnp.report.series.MOST_VALUES", 2 * small.STATIONS * 3)
    whole = small.evaluation()
    assert whole.time is not None
    kept = (whole.station != "S0") | (whole.time == whole.time[0])
    model = whole.forecasts["model"]
    evaluation = small.evaluation(
        time=whole.time[kept],
        station=whole.station[kept],
        lat=whole.lat[kept],
        lon=whole.lon[kept],
        observed=whole.observed[kept],
        forecasts={"model": Prediction(model.mean[kept], model.std[kept])},
    )
    found = series(case().model.contents, case().test, evaluation, 1)
    assert len(found["times"]) == 3
    assert (found["lat"][0], found["lon"][0]) == (40, -3)
    assert np.isnan(unpack(found["values"]["tmax"]["mean"])[0]).all()
    json_in_html(found)


def test_fields_are_those_of_predict() -> None:
    made = case()
    data = made.data
    lat, lon = (
        a["first"] + a["step"] * np.arange(a["size"])
        for a in (data["fields"]["lat"], data["fields"]["lon"])
    )
    grid = xr.Dataset(coords={"lat": lat, "lon": lon})
    times = np.array(data["times"], "datetime64[s]").astype("datetime64[ms]")
    found = made.model.predict(made.test, grid, times=times)
    for key, name in {"mean": "mean", "std": "std", "low": "q05", "support": "support"}.items():
        packed = data["fields"]["values"]["t2m"][key]
        np.testing.assert_allclose(
            unpack(packed), found[f"t2m_{name}"].to_numpy(), atol=packed["step"] + 2e-3
        )


def test_observations_are_those_of_the_context() -> None:
    made = case()
    context = made.data["context"]
    assert STATION not in context["names"]
    values = unpack(context["values"]["t2m"])
    rows = small.table().dropna(subset="t2m").set_index(["station", "time"])["t2m"]
    for number, seconds in enumerate(made.data["times"]):
        for i, name in enumerate(context["names"]):
            expected = rows.get((name, pd.Timestamp(seconds, unit="s")), np.nan)
            np.testing.assert_allclose(values[number, i], expected, atol=1e-3)


def test_what_sources_are_worth_is_measured_on_the_same_points() -> None:
    made = case()
    found = ablation(made.model.contents, made.test, limit=3)
    names = list(found.evaluation.forecasts)
    assert names == ["model", "without stations", f"without {SOURCE}"]
    assert found.notes == ()
    again = made.model.evaluate(made.test, [], limit=3).to_dataframe()
    table = found.evaluation.to_dataframe()
    assert table["crps"][0] == again["crps"][0]
    assert table["crps"].nunique() == 3


@pytest.mark.parametrize(
    ("region", "least", "most"),
    [
        (Region(37.0, 41.0, -109.0, -102.0), 0, 0),  # Colorado
        (Region(49.0, 59.0, -8.0, 2.0), 300, 2_000),  # Great Britain
        (Region(50.0, 70.0, 160.0, 200.0), 300, 3_000),  # across the date line
        (Region(-90.0, 90.0, -180.0, 180.0), 5_000, 40_000),
    ],
)
def test_coastlines_are_those_of_the_region(region: Region, least: int, most: int) -> None:
    found = page.coastline(region)
    lon, lat = unpack(found["lon"]), unpack(found["lat"])
    assert least <= len(lon) == len(lat) == sum(found["sizes"]) <= most
    if region.around or not len(lon):
        return
    lines = np.split(np.stack([lon, lat]), np.cumsum(found["sizes"])[:-1], axis=1)
    for x, y in lines:
        inside = (y >= region.south - 2) & (y <= region.north + 2)
        inside &= np.mod(x - region.west + 2, 360) <= region.east - region.west + 4
        assert inside[1:-1].all()


# ---- one file, nothing else ----------------------------------------------------------------------


def test_names_from_the_data_are_shown_and_never_run() -> None:
    made = case()
    page_elements = Elements(made.html)
    shown = " ".join(page_elements.shown)
    for name in (STATION, SOURCE, UNITS):
        assert name in shown
        assert name not in made.html
    scripts = [attributes for tag, attributes in page_elements.found if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "report-data"}, {}]
    assert "img" not in {tag for tag, _ in page_elements.found}
    assert not [a for _, attributes in page_elements.found for a in attributes if a[:2] == "on"]


def test_no_other_script_and_no_address_is_admitted() -> None:
    made = case()
    elements = Elements(made.html)
    (policy,) = (
        a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    digest = hashlib.sha256(elements.scripts[-1].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    addresses = [a[key] for _, a in elements.found for key in ("src", "href") if key in a]
    assert all(str(address).startswith(("#", "data:,")) for address in addresses)


def test_it_is_small_and_says_how_it_was_made() -> None:
    made = case()
    assert len(made.html.encode()) < 1_000_000
    for words in ("gridtnp 0.", "torch ", "command ", made.test.fingerprint(), "ISC", "uPlot"):
        assert words in made.html
    assert made.evaluation.split in made.html


def test_libraries_are_the_ones_that_were_vendored() -> None:
    lines = (VENDOR / "checksums.txt").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    there = {path.name: path for path in VENDOR.iterdir() if path.name != "checksums.txt"}
    assert set(listed) == set(there)
    for name, path in there.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[name]
    assert sum(path.stat().st_size for path in there.values()) < 100_000


# ---- other data ----------------------------------------------------------------------------------


def test_a_feature_known_at_stations_only_leaves_a_report_without_a_field() -> None:
    text = stations_only()
    assert (
        "There is no field to show: Feature &#39;elevation&#39; is known only at stations" in text
    )
    assert 'value="error"' in text
    assert 'value="mean"' not in text


def test_data_without_times_and_several_variables() -> None:
    text = timeless()
    assert 'id="variable"' in text
    assert 'id="time"' not in text
    assert text.count('<table class="scores">') == 2


def test_targets_that_are_not_held_out(tmp_path: Path) -> None:
    data = gt.Dataset({"stations": small.table()}, target="stations.t2m")
    train, _, test = data.split(time=["2019-03-01T18:00", "2019-03-02"])
    path = fitted(train).report(test, tmp_path / "a.html", baselines=[], points=100, samples=0)
    text = path.read_text(encoding="utf-8")
    assert "There are no joint samples in this report." in text
    assert "without stations, other points would be predicted" in text


# ---- refusals ------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_one_sentence(tmp_path: Path) -> None:
    made = case()
    train, test = parts()
    report = made.model.report
    taken = tmp_path / "taken.html"
    taken.touch()
    with pytest.raises(FileExistsError, match=r"taken.html' already exists; pass overwrite=True"):
        report(test, taken)
    with pytest.raises(FileNotFoundError, match=r"^No such folder: .*missing'; create it"):
        report(test, tmp_path / "missing" / "a.html")
    with pytest.raises(IsADirectoryError, match=r"is a folder; give the name of a file\.$"):
        report(test, tmp_path)
    with pytest.raises(ValueError, match=r"^Part 'train' may have been trained on.*the test part"):
        report(train, tmp_path / "a.html")
    with pytest.raises(TypeError, match=r"^test is a DataFrame: must be the test part"):
        page.require_unseen(small.table())
    with pytest.raises(ValueError, match=r"^times=0: must be at least 1\.$"):
        report(test, tmp_path / "a.html", times=0)
    with pytest.raises(ValueError, match=r"^samples=-1: must not be negative\.$"):
        report(test, tmp_path / "a.html", samples=-1)
    with pytest.raises(
        ValueError, match=r"^The evaluation is of \['tmax', 'wind'\], but the model"
    ):
        report(test, tmp_path / "a.html", evaluation=small.evaluation())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken.html"]


def test_without_jinja2_the_way_to_install_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    made = case()
    with pytest.raises(ImportError, match=r"pip install 'gridtnp\[report\]'"):
        made.model.report(made.test, tmp_path / "a.html")


# ---- pieces --------------------------------------------------------------------------------------


def test_packing_keeps_sixteen_bits() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 5, 7))
    values[0, 1] = np.nan
    packed = pack(values)
    np.testing.assert_allclose(unpack(packed), values, atol=0.51 * packed["step"])
    assert packed["step"] < 2e-4
    for constant in (np.full((2, 3), 4.5), np.full((2, 3), np.nan)):
        np.testing.assert_array_equal(unpack(pack(constant)), constant)


def test_a_map_of_the_whole_earth_has_no_seam() -> None:
    model = small.model(small.dataset())
    around = Region(-90.0, 90.0, -180.0, 180.0)
    assert around.around
    grid = around.grid(model.contents, 400)
    assert grid["lon"][0] == -180
    assert grid["lon"][-1] + (grid["lon"][1] - grid["lon"][0]) == pytest.approx(180)
    assert 47 <= float(grid["lat"].min()) < float(grid["lat"].max()) <= 56  # the model's own area
    data = small.dataset()
    region = Region.of(model.contents, data)
    assert not region.around
    assert region.south < data.sources["stations"].lat.min()


@pytest.mark.parametrize(("variables", "times", "samples"), [(1, 12, 8), (6, 24, 8), (1, 500, 100)])
def test_many_values_make_a_coarser_map(variables: int, times: int, samples: int) -> None:
    points = page.affordable_points(variables, times, samples)
    assert points >= 12_000 or variables * times > 12
    values = points * variables * (6 * times + samples)
    assert values * 2 * 4 / 3 < 4.1e6  # bytes as base64, if nothing can be compressed


def test_json_in_html_has_no_signs_of_html() -> None:
    text = json_in_html({"a": "</script><!-- & é"})
    assert not set("<>&") & set(text)
    assert text.isascii()


def test_numbers_for_people() -> None:
    assert quantity(-0.0571, "°C") == "−0.0571\u00a0°C"
    assert quantity(1234.5, "") == "1234"
    assert quantity(np.nan, "K") == "–"
    assert unit_symbol("degC") == "°C"
    assert unit_symbol(None) == ""
    assert nice_ticks(0, 3.7) == [0, 1, 2, 3]
    assert nice_ticks(2, 2) == [2]


def test_notebooks_show_models_and_evaluations_as_tables() -> None:
    made = case()
    html = made.model._repr_html_()
    assert "<caption>GriddedTNP to predict stations.t2m (K&lt;/script&gt;" in html
    assert "<th>network</th>" in html
    scores = made.evaluation._repr_html_()
    assert scores.count("<tr>") == 4
    assert made.evaluation.split in scores
    assert "<script>" not in html + scores
