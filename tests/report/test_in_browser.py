"""The report in a browser: slider, hover, stations, keys; no error and no request but itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, why_not
from report_cases import SOURCE, STATION, Case, case, stations_only, timeless

from gridtnp.report.packing import unpack
from gridtnp.sources.times import show

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return case().write(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, report: Path) -> Iterator[Browser]:
    """The report, freshly opened; afterwards the console and the network must have been silent."""
    window.emulate(1280, 900)
    window.open(report)
    yield window
    assert window.errors() == []
    assert set(window.requests()) <= {report.resolve().as_uri()}


def number(text: str) -> float:
    found = re.search(r"[−-]?\d+(\.\d+)?", text)
    assert found is not None, text
    return float(found[0].replace("−", "-"))


def rows(browser: Browser, query: str) -> dict[str, str]:
    """The names and texts of a tip or of the values of a station."""
    script = (
        "return [...document.querySelectorAll(arguments[0] + ' div')]"
        ".map((row) => [...row.children].map((e) => e.textContent))"
    )
    return dict(browser.run(script, query))


def field(made: Case, name: str, time: int, lat: float, lon: float) -> float:
    """Bilinear interpolation of a field of the report."""
    fields = made.data["fields"]
    values = unpack(fields["values"]["t2m"][name])[time]
    r = (lat - fields["lat"]["first"]) / fields["lat"]["step"]
    c = (lon - fields["lon"]["first"]) / fields["lon"]["step"]
    j, i = int(r), int(c)
    v, u = r - j, c - i
    low = (1 - u) * values[j, i] + u * values[j, i + 1]
    return (1 - v) * low + v * ((1 - u) * values[j + 1, i] + u * values[j + 1, i + 1])


def test_the_slider_changes_time_map_and_values(browser: Browser) -> None:
    made = case()
    labels = made.data["labels"]
    first = made.data["first"]
    assert browser.text("#when") == labels[first]
    picture = "return document.querySelector('#field canvas').toDataURL()"
    before = browser.run(picture)
    browser.keys("#time", "\ue014")  # right
    assert browser.text("#when") == labels[first + 1]
    assert browser.run(picture) != before
    assert rows(browser, "#now").get("time", labels[first + 1]) == labels[first + 1]


def test_hovering_tells_the_prediction_and_the_nearest_observation(browser: Browser) -> None:
    made = case()
    lat, lon = 51.3, 0.4
    x, y = browser.run("return gridtnp.explorer.map.point(51.3, 0.4)")
    browser.pointer("#field canvas", x, y)
    found = rows(browser, "#field .tip")
    assert found[""].startswith(("51.3°N, 0.4", "51.29°N, 0.4", "51.31°N, 0.4"))
    time = made.data["first"]
    low, high = (unpack(made.data["fields"]["values"]["t2m"][k]) for k in ("low", "high"))
    tolerance = 0.02 * float(np.nanmax(high) - np.nanmin(low))
    assert abs(number(found["mean"]) - field(made, "mean", time, lat, lon)) < tolerance
    ends = found["90 % interval"].split(" to ")
    assert abs(number(ends[0]) - field(made, "low", time, lat, lon)) < tolerance
    assert abs(number(ends[1]) - field(made, "high", time, lat, lon)) < tolerance
    distance = number(found["nearest observation"].split(", ")[1])
    assert abs(distance - field(made, "support", time, lat, lon)) < 6
    browser.pointer("h1", 5, 5)
    assert browser.run("return document.querySelector('#field .tip').hidden")


def test_clicking_a_station_shows_its_series(browser: Browser) -> None:
    made = case()
    stations = made.data["stations"]
    points = made.evaluation.predictions()
    time = np.datetime64(made.data["times"][made.data["first"]], "s")
    here = points.loc[points["time"] == time]
    for _, point in here.iterrows():
        i = stations["names"].index(point["station"])
        x, y = browser.run(
            "return gridtnp.explorer.map.point(arguments[0], arguments[1])", *point[["lat", "lon"]]
        )
        browser.pointer("#field canvas", x, y, click=True)
        assert browser.run("return document.querySelector('#station').value") == str(i)
        found = rows(browser, "#now")
        assert found["time"] == show(time)
        for name, column in {"observed": "observed", "predicted mean": "model_mean"}.items():
            assert abs(number(found[name]) - point[column]) < 0.06
        error = point["model_mean"] - point["observed"]
        assert abs(number(found["error"]) - error) < 0.12
    assert browser.run("return document.querySelectorAll('#series canvas').length") == 1
    drawn = browser.run("return gridtnp.explorer.series.plot.data.map((row) => Array.from(row))")
    own = points.loc[points["station"] == here["station"].iloc[-1]]
    np.testing.assert_allclose([v for v in drawn[6] if v is not None], own["observed"], atol=1e-3)


def test_layers_and_scores(browser: Browser) -> None:
    made = case()
    for layer, words in {
        "std": "standard deviation",
        "error": "predicted − observed",
        "support": "km",
    }.items():
        browser.run(
            "document.querySelector(`input[name=layer][value=${arguments[0]}]`).click()", layer
        )
        assert words in browser.text("#legend .name")
    crps = made.evaluation.to_dataframe()["crps"][0]
    raw = browser.run("return document.querySelector('.scores tbody td').dataset.raw")
    assert float(raw) == crps


def test_all_of_it_can_be_used_with_the_keyboard(browser: Browser) -> None:
    canvas = "#field canvas"
    browser.keys(canvas, "\ue012\ue013\ue007")  # left, up, enter
    assert "mean" in browser.run("return document.querySelector('#said').textContent")
    browser.keys(canvas, "\ue00c")  # escape
    assert browser.run("return document.querySelector('#field .tip').hidden")
    before = browser.run("return document.querySelector('#station').value")
    browser.keys("#station", "\ue015" if before == "0" else "\ue013")
    assert browser.run("return document.querySelector('#station').value") != before
    browser.run("document.querySelector('#play').focus()")
    browser.keys("#play", " ")
    assert (
        browser.run("return document.querySelector('#play').getAttribute('aria-pressed')") == "true"
    )
    browser.keys("#play", " ")


def test_samples_move(browser: Browser) -> None:
    assert browser.text("#sample-which") == "sample 1 of 2"
    picture = "return document.querySelector('#sample canvas').toDataURL()"
    before = browser.run(picture)
    browser.keys("#sample-number", "\ue010")  # end
    assert browser.text("#sample-which") == "sample 2 of 2"
    assert browser.run(picture) != before
    browser.run("document.querySelector('input[value=departure]').click()")
    assert "sample − mean" in browser.text("#sample-legend .name")


def test_names_that_would_be_scripts_are_shown(browser: Browser) -> None:
    for name in (STATION, SOURCE):
        assert name in browser.text("body")
    assert (
        browser.run(
            "return [...document.querySelector('#station').options].map((o) => o.text)"
        ).count(STATION)
        == 1
    )
    browser.run("document.querySelector(`button[data-station]`).click()")
    assert browser.run("return document.querySelectorAll('body script').length") == 2


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_is_cut_off_at_any_width(browser: Browser, width: int) -> None:
    browser.emulate(width, 900)
    for scheme in ("dark", "light"):
        browser.scheme(scheme)
        assert browser.run("return document.documentElement.scrollWidth") <= width
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(246, 247, 249)"


def test_several_variables_without_times(window: Browser, tmp_path: Path) -> None:
    path = tmp_path / "timeless.html"
    path.write_text(timeless(), encoding="utf-8")
    window.emulate(1280, 900)
    window.open(path)
    shown = "return [...document.querySelectorAll('#headline h1')].map((e) => e.checkVisibility())"
    assert window.run(shown) == [True, False]
    window.keys("#variable", "b")
    assert window.run(shown) == [False, True]
    assert window.text("#legend .name") == "b: mean"
    assert "predicted mean" in rows(window, "#now")
    assert window.errors() == []
    assert window.requests() == [path.resolve().as_uri()]


def test_a_report_without_a_field(window: Browser, tmp_path: Path) -> None:
    path = tmp_path / "stations.html"
    path.write_text(stations_only(), encoding="utf-8")
    window.open(path)
    assert window.text("#legend .name").startswith("t2m: predicted − observed")
    x, y = window.run("return gridtnp.explorer.map.point(51, 0)")
    window.pointer("#field canvas", x, y)
    assert "nearest observation" in rows(window, "#field .tip")
    assert window.errors() == []
    assert window.requests() == [path.resolve().as_uri()]
