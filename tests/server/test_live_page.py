"""The live page in a browser: slider, hover, click, dropped files; no error, no other address."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import xarray as xr
from browser import Browser, why_not
from report_cases import STATION
from serving import Server, evaluated, expected_of, model_and_parts, observations, rainy, running

from gridtnp.report.sections import headline

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
PICTURE = "return document.querySelector('#field canvas').toDataURL()"
QUIET = "return document.querySelector('#busy').hidden"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, server: Server) -> Iterator[Browser]:
    """The page, freshly opened; afterwards only its own server must have been asked."""
    window.emulate(1280, 900)
    window.errors(), window.requests()  # of the page before
    window.open(server.address)
    yield window
    own = {f"{server.address}{path}" for path in ("", "map", "predict")}
    known = (f"blob:{server.address}", f"{server.address}jobs/")
    asked = {url for url in window.requests() if not url.startswith(known)}
    assert asked <= own


def number(text: str) -> float:
    found = re.search(r"[−-]?\d+(\.\d+)?", text)
    assert found is not None, text
    return float(found[0].replace("−", "-"))


def rows(browser: Browser, query: str) -> dict[str, str]:
    script = (
        "return [...document.querySelectorAll(arguments[0] + ' div')]"
        ".map((row) => [...row.children].map((e) => e.textContent))"
    )
    return dict(browser.run(script, query))


def click(browser: Browser, lat: float, lon: float) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers that the server gave for a place, and what is shown of them."""
    browser.run("gridtnp.distribution = null")
    x, y = browser.run("return gridtnp.explorer.map.point(arguments[0], arguments[1])", lat, lon)
    browser.pointer("#field canvas", x, y, click=True)
    browser.wait("return gridtnp.distribution !== null")
    return browser.run("return gridtnp.distribution"), rows(browser, "#values")


def assert_shown(found: dict[str, float], shown: dict[str, str], wanted: xr.Dataset) -> None:
    """Exactly the values of `predict`, and the same on the page, rounded."""
    columns = {"mean": "mean", "std": "std", "low": "q05", "high": "q95"}
    for key, column in columns.items():
        assert found[key] == float(wanted[f"t2m_{column}"].item())
    assert abs(number(shown["mean"]) - found["mean"]) < 0.06
    assert abs(number(shown["standard deviation"]) - found["std"]) < 0.06
    low, high = shown["90 % interval"].split(" to ")
    assert abs(number(low) - found["low"]) < 0.06
    assert abs(number(high) - found["high"]) < 0.06


def at(found: dict[str, float]) -> xr.Dataset:
    return xr.Dataset(coords={k: ("point", [found[k]]) for k in ("lat", "lon")})


def shown_time(browser: Browser) -> np.datetime64:
    """The time on the slider."""
    seconds = browser.run("return gridtnp.explorer.report.times[gridtnp.explorer.state.time]")
    return np.datetime64(seconds, "s")


def test_slider_hover_and_click(browser: Browser) -> None:
    model, _, test = model_and_parts()
    before, labels = browser.run(PICTURE), browser.run("return gridtnp.explorer.report.labels")
    first = browser.run("return gridtnp.explorer.state.time")
    browser.keys("#time", "\ue014")  # right
    assert browser.text("#when") == labels[first + 1]
    assert browser.run(PICTURE) != before
    x, y = browser.run("return gridtnp.explorer.map.point(51.3, 0.4)")
    browser.pointer("#field canvas", x, y)
    tip = rows(browser, "#field .tip")
    found, shown = click(browser, 51.3, 0.4)
    time = np.datetime64(browser.run("return gridtnp.explorer.report.times")[first + 1], "s")
    wanted = model.predict(test, at(found), times=[time], progress=False)
    assert_shown(found, shown, wanted)
    assert abs(number(tip["mean"]) - found["mean"]) < 0.5  # interpolated
    assert browser.run("return document.querySelectorAll('#dots-chart circle').length") == 50
    browser.keys("#time", "\ue012")  # left: the same place at another time
    browser.wait(f"return gridtnp.distribution.mean !== {found['mean']}")
    assert browser.errors() == []


def test_dropping_a_csv_updates_the_map(browser: Browser) -> None:
    before = browser.run(PICTURE)
    table = observations()
    table.loc[0, "station"] = STATION
    browser.drop("#map", "today.csv", table.to_csv(index=False))
    browser.wait("return document.querySelector('#from').textContent === 'today.csv'", 30)
    assert browser.run(PICTURE) != before
    assert browser.text("#when") == "2019-03-01 12:00"
    assert browser.run("return document.querySelector('#held-out').hidden")
    found, shown = click(browser, 50.4, -1.2)
    assert_shown(found, shown, expected_of(table, at(found)))
    x, y = browser.run(
        "return gridtnp.explorer.map.point(arguments[0], arguments[1])",
        *table.loc[0, ["lat", "lon"]],
    )
    browser.pointer("#field canvas", x, y)
    assert STATION in rows(browser, "#field .tip")["nearest observation"]
    assert browser.run("return document.querySelectorAll('body script').length") == 2
    browser.run("document.querySelector('#reset').click()")
    browser.wait("return document.querySelector('#from').textContent.startsWith('the obs')")
    browser.wait("return !document.querySelector('#held-out').hidden")
    assert browser.errors() == []


def test_downloads(browser: Browser) -> None:
    for button, name in {"netcdf": "predictions.nc", "csv": "predictions.csv"}.items():
        browser.run(
            "gridtnp.downloaded = null; document.getElementById(arguments[0]).click()", button
        )
        browser.wait(
            "return gridtnp.downloaded !== null || !document.querySelector('#notes').hidden"
        )
        assert browser.run("return gridtnp.downloaded && gridtnp.downloaded.name") == name
        assert browser.run("return gridtnp.downloaded.size") > 1000
    assert browser.errors() == []


def test_what_is_wrong_with_a_file_is_said(browser: Browser) -> None:
    for text, words in {
        "lat,lon\n1,2\n": "numeric column",
        "lat,lon,t2m\n51,0,=1+1\n": "=1+1",
        "\ufffd;;": "",
        "lat,lon,t2m\n<img src=x onerror=alert(1)>,0,1\n": "<img src=x onerror=alert(1)>",
    }.items():
        browser.run("document.querySelector('#notes').hidden = true")
        browser.drop("#map", "wrong.csv", text)
        browser.wait("return !document.querySelector('#notes').hidden")
        browser.wait(QUIET)
        assert words in browser.text("#notes")
        assert browser.text("#from") == "the observations of this run"
    assert browser.run("return document.querySelectorAll('#notes *').length") == 0
    assert all("400" in error for error in browser.errors())  # the browser notes the status


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_is_cut_off_at_any_width(browser: Browser, width: int) -> None:
    browser.emulate(width, 900)
    for scheme in ("dark", "light"):
        browser.scheme(scheme)
        assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.errors() == []


def test_the_keyboard_is_enough(browser: Browser) -> None:
    browser.run("gridtnp.distribution = null")
    browser.keys("#field canvas", "\ue012\ue013\ue007")  # left, up, enter
    browser.wait("return gridtnp.distribution !== null")
    assert "mean" in rows(browser, "#values")
    assert browser.errors() == []


def test_headline_and_scores_are_those_of_evaluate(browser: Browser) -> None:
    table = evaluated().to_dataframe()
    sentence = headline(table.to_dict("records"), evaluated().split)["text"]
    assert browser.text("h1").replace("\u00a0", " ") == sentence.replace("\u00a0", " ")
    raw = "return [...document.querySelectorAll(arguments[0])].map((e) => Number(e.dataset.raw))"
    assert browser.run(raw, ".tiles dd[data-raw]")[:2] == table.loc[0, ["crps", "rmse"]].tolist()
    columns = ["crps", "rmse", "mae", "bias", "log_likelihood", "coverage_90"]
    shown = np.reshape(browser.run(raw, ".scores td"), (len(table), -1))
    np.testing.assert_array_equal(shown[:, :-1], table[columns].to_numpy())
    assert browser.run("return document.querySelectorAll('#calibration svg').length") == 3
    assert browser.run("return document.querySelector('[value=chance]').parentElement.hidden")


def test_probabilities_of_rain(window: Browser) -> None:
    model, served = rainy()
    with running(served) as server:
        window.errors()
        window.open(server.address)
        chance = "document.querySelector('[value=chance]')"
        before = window.run(PICTURE)
        window.run(f"{chance}.click()")
        assert window.run(PICTURE) != before
        assert window.text("#legend .name") == "probability of rain > 0 mm"
        found, shown = click(window, 47.5, 7.5)
        wanted = model.predict(
            served.data, at(found), times=[shown_time(window)], exceed={"rain": [0]}, progress=False
        )
        assert found["chance"] == float(wanted["rain_above_0"].item())
        assert number(shown["P(> 0 mm)"]) == round(100 * found["chance"])
        window.run(
            "const choice = document.querySelector('#variable');"
            "choice.value = 1; choice.dispatchEvent(new Event('change'))"
        )
        assert window.run(f"return {chance}.parentElement.hidden")  # a Gaussian variable has none
        assert ", tmax is predicted" in window.text("[data-variable='1'] h1")
        assert window.run("return document.querySelector('[data-variable=\"0\"]').hidden")
        assert window.errors() == []


def test_clicking_a_held_out_station_shows_its_series(browser: Browser) -> None:
    points = evaluated().predictions()
    points = points[points["time"] == shown_time(browser)]
    assert len(points) > 1
    names = browser.run("return gridtnp.explorer.report.stations.names")
    for _, point in points.iterrows():
        click(browser, point["lat"], point["lon"])
        station = browser.run("return Number(document.querySelector('#station').value)")
        assert names[station] == point["station"]
        shown = rows(browser, "#now")
        assert abs(number(shown["observed"]) - point["observed"]) < 0.06
        assert abs(number(shown["predicted mean"]) - point["model_mean"]) < 0.06
    assert browser.run("return document.querySelectorAll('#series canvas').length") == 1
    assert browser.errors() == []
