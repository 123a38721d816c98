"""The live page in a browser: slider, hover, click, dropped files; no error, no other address."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import xarray as xr
from browser import Browser, why_not
from report_cases import STATION
from serving import Server, expected_of, model_and_parts, observations

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
    window.errors()  # of the page before
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
