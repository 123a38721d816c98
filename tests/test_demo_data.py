"""The demo data: sizes, dates, units, plausible values and provenance."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from gridtnp import demo, reproduce

LIMITS = {  # bytes
    "colorado.nc": 2_000_000,
    "weather.nc": 3_000_000,
    "coastline.npz": 150_000,
    "stations.csv.gz": 150_000,
}
WEIGHTS = {"gp-0.5.safetensors": 1_000_000, "gp-0.1.safetensors": 1_000_000}


@pytest.fixture(scope="module")
def colorado() -> tuple[pd.DataFrame, xr.Dataset]:
    return demo.load()


@pytest.fixture(scope="module")
def globe() -> tuple[xr.Dataset, pd.DataFrame]:
    return demo.weather()


def test_the_files_are_there_and_small() -> None:
    data = [path for path in demo.DATA.iterdir() if path.is_file() and path.suffix != ".py"]
    weights = list(Path(reproduce.__file__).parent.glob("*.safetensors"))
    for paths, limits in ((data, LIMITS), (weights, WEIGHTS)):
        sizes = {path.name: path.stat().st_size for path in paths}
        assert sorted(sizes) == sorted(limits)
        assert all(0 < sizes[name] <= limit for name, limit in limits.items()), sizes


# Colorado


def test_the_table_has_every_station_and_month(colorado: tuple[pd.DataFrame, xr.Dataset]) -> None:
    table, _ = colorado
    columns = ["time", "lat", "lon", "elevation", "station", "tmax", "tmin", "precipitation"]
    assert list(table.columns) == columns
    assert table["station"].nunique() == 376
    assert table["time"].min() == pd.Timestamp("1895-01-01")
    assert table["time"].max() == pd.Timestamp("1997-12-01")
    assert table["time"].nunique() == 103 * 12
    assert (table["time"].dt.day == 1).all()
    assert not table.duplicated(["time", "station"]).any()
    assert table.groupby("station")[["lat", "lon", "elevation"]].nunique().eq(1).all(axis=None)


def test_colorado_is_where_and_as_warm_as_it_is(
    colorado: tuple[pd.DataFrame, xr.Dataset],
) -> None:
    table, _ = colorado
    assert table["lat"].between(36.5, 41.5).all()
    assert table["lon"].between(-109.5, -101).all()
    assert table["elevation"].between(800, 3600).all()
    july = table[table["time"].dt.month == 7]
    january = table[table["time"].dt.month == 1]
    assert 25 < july["tmax"].mean() < 33
    assert -15 < january["tmin"].mean() < -8
    # higher is colder, by about the lapse rate of the atmosphere
    slope = np.polyfit(*july[["elevation", "tmax"]].dropna().to_numpy().T, 1)[0] * 1000
    assert -10 < slope < -5
    assert table["precipitation"].min() >= 0
    yearly = table.groupby([table["time"].dt.year, "station"])["precipitation"].sum(min_count=12)
    assert 300 < yearly.mean() < 500  # mm


def test_values_are_the_observed_ones_to_the_last_digit(
    colorado: tuple[pd.DataFrame, xr.Dataset],
) -> None:
    table, _ = colorado
    boulder = table[(table["station"] == "050848") & (table["time"] == "1895-01-01")]
    # as the source has them, but for its 1.1 cm of precipitation
    assert boulder[["lat", "lon", "elevation"]].to_numpy().tolist() == [[40.0, -105.27, 1672.0]]
    seen = boulder[["tmax", "tmin", "precipitation"]].to_numpy()
    assert seen.dtype == np.float32
    assert (seen == np.float32([[3.1, -9.4, 11]])).all()


def test_missing_months_are_left_out_and_missing_values_are_nan(
    colorado: tuple[pd.DataFrame, xr.Dataset],
) -> None:
    table, _ = colorado
    values = table[["tmax", "tmin", "precipitation"]]
    assert not values.isna().all(axis=1).any()
    assert not table[["time", "lat", "lon", "elevation", "station"]].isna().any(axis=None)
    there = values.notna().sum() / (376 * 103 * 12)
    assert there.between(0.35, 0.45).all()
    assert values.isna().any(axis=None)


def test_the_terrain_agrees_with_the_stations(
    colorado: tuple[pd.DataFrame, xr.Dataset],
) -> None:
    table, terrain = colorado
    assert dict(terrain.sizes) == {"lat": 119, "lon": 205}
    assert set(terrain.variables) == {"lat", "lon", "elevation"}
    assert (np.diff(terrain["lat"]) > 0).all()
    assert (np.diff(terrain["lon"]) > 0).all()
    stations = table.drop_duplicates("station")
    inside = stations[
        stations["lat"].between(*terrain["lat"].to_numpy()[[0, -1]])
        & stations["lon"].between(*terrain["lon"].to_numpy()[[0, -1]])
    ]
    assert len(inside) > 300
    at = {name: xr.DataArray(inside[name].to_numpy(), dims="station") for name in ("lat", "lon")}
    error = terrain["elevation"].interp(at).to_numpy() - inside["elevation"].to_numpy()
    # stations sit in valleys, and a grid of 4 km does not see them
    assert np.median(np.abs(error)) < 100
    assert np.sqrt(np.mean(error**2)) < 250


def test_units_and_provenance_come_along(colorado: tuple[pd.DataFrame, xr.Dataset]) -> None:
    table, terrain = colorado
    assert table.attrs["units"] == {
        "tmax": "degC",
        "tmin": "degC",
        "precipitation": "mm",
        "lat": "degrees_north",
        "lon": "degrees_east",
        "elevation": "m",
    }
    assert terrain["elevation"].attrs["units"] == "m"
    assert terrain["lat"].attrs["units"] == "degrees_north"
    for attributes in (table.attrs, terrain.attrs):
        assert "r-cran-fields" in attributes["source"]
        assert "public domain" in attributes["licence"]
        assert "scripts/make_colorado.py" in attributes["history"]
        assert len(attributes["source_sha256"]) == 64


# Coastlines


def test_coastlines_are_closed_rings_on_the_map() -> None:
    rings = demo.coastline()
    assert len(rings) > 100
    for ring in rings:
        assert ring.ndim == 2
        assert ring.shape[1] == 2
        assert len(ring) >= 4
        assert (ring[0] == ring[-1]).all()
        # no streak across the map where land crosses the date line
        streak = (np.abs(np.diff(ring[:, 0])) > 90) & (ring[1:, 1] > -90)
        assert not streak.any()
    points = np.concatenate(rings)
    assert points[:, 0].min() == -180
    assert points[:, 0].max() == 180
    assert points[:, 1].min() == -90
    assert 83 < points[:, 1].max() < 84  # Greenland


@pytest.mark.parametrize(
    ("place", "lon", "lat", "land"),
    [
        ("Denver", -105.0, 39.7, True),
        ("Nairobi", 36.8, -1.3, True),
        ("South Pole", 0.0, -89.5, True),
        ("Chukotka, beyond the date line", -173.0, 66.5, True),
        ("Caspian Sea", 51.0, 41.0, False),
        ("mid-Atlantic", -40.0, 30.0, False),
        ("Pacific", 170.0, 0.0, False),
        ("North Pole", 0.0, 89.0, False),
    ],
)
def test_coastlines_separate_land_from_sea(place: str, lon: float, lat: float, land: bool) -> None:
    crossings = 0
    for ring in demo.coastline():
        (x, y), (x2, y2) = ring[:-1].T.astype(float), ring[1:].T.astype(float)
        across = (y > lat) != (y2 > lat)
        rise = np.where(across, y2 - y, 1.0)
        crossings += int((across & (lon < x + (lat - y) / rise * (x2 - x))).sum())
    assert (crossings % 2 == 1) == land, place


# Simulated weather


def test_weather_is_on_the_whole_globe_every_six_hours(
    globe: tuple[xr.Dataset, pd.DataFrame],
) -> None:
    data, _ = globe
    assert data.sizes["time"] == 21 * 4
    assert {name: data.sizes[name] for name in ("level", "lat", "lon")} == {
        "level": 3,
        "lat": 48,
        "lon": 96,
    }
    assert (np.diff(data["time"]) == np.timedelta64(6, "h")).all()
    assert (np.diff(data["lat"]) > 0).all()
    np.testing.assert_allclose(data["lat"], -data["lat"].to_numpy()[::-1])
    np.testing.assert_allclose(data["lon"], np.arange(96) * 3.75, atol=1e-4)
    assert data["level"].to_numpy().tolist() == [1000, 850, 700]
    for name in ("t2m", "skt"):
        assert data[name].dims == ("time", "lat", "lon")
        assert data[name].attrs["units"] == "K"
    for name in ("u", "v"):
        assert data[name].dims == ("time", "level", "lat", "lon")
        assert data[name].attrs["units"] == "m s-1"
    assert not any(data[name].isnull().any() for name in data.data_vars)


def test_weather_is_plausible(globe: tuple[xr.Dataset, pd.DataFrame]) -> None:
    data, _ = globe
    mean = data.weighted(np.cos(np.deg2rad(data["lat"]))).mean(["lat", "lon"]).mean("time")
    for name in ("t2m", "skt"):
        assert 283 < mean[name] < 293
        assert data[name].min() > 190
        assert data[name].max() < 330
    assert 0.25 < mean["land"] < 0.33
    zonal = data.mean(["time", "lon"])
    assert zonal["t2m"].sel(lat=slice(-15, 15)).mean() > 292
    assert zonal["t2m"].sel(lat=slice(75, 90)).mean() < 260  # polar night
    mean_t2m = data["t2m"].mean("time")
    assert mean_t2m.sel(lat=-25, lon=130, method="nearest") > 298  # summer in Australia
    assert mean_t2m.sel(lat=65, lon=130, method="nearest") < 260  # winter in Siberia
    assert zonal["u"].sel(lat=slice(40, 60), level=700).mean() > 4  # westerlies
    assert zonal["u"].sel(lat=slice(-15, 15), level=1000).mean() < -1  # trade winds
    assert np.abs(data["u"]).max() < 90
    assert np.abs(data["v"]).max() < 90
    assert np.abs(mean["v"]).max() < 1
    tibet = data["elevation"].sel(lat=33, lon=88, method="nearest")
    assert 3500 < tibet < 5500


def test_weather_changes_as_weather_does(globe: tuple[xr.Dataset, pd.DataFrame]) -> None:
    wind = globe[0]["u"].sel(level=700, lat=slice(40, 60))
    anomaly = wind - wind.mean("time")
    assert 3 < anomaly.std() < 15

    def correlation(steps: int) -> float:
        now, later = anomaly.to_numpy()[:-steps], anomaly.to_numpy()[steps:]
        return float(np.corrcoef(now.ravel(), later.ravel())[0, 1])

    assert correlation(1) > 0.8  # six hours on
    assert correlation(20) < 0.4  # five days on


def test_weather_says_where_it_is_from(globe: tuple[xr.Dataset, pd.DataFrame]) -> None:
    attributes = globe[0].attrs
    assert "jcm 3.0.0" in attributes["source"]
    assert "scripts/make_weather.py" in attributes["history"]
    assert "simulated" in attributes["title"].lower()
    assert attributes["licence"]


def test_stations_are_where_they_are(globe: tuple[xr.Dataset, pd.DataFrame]) -> None:
    _, sites = globe
    assert list(sites.columns) == ["station", "lat", "lon", "elevation"]
    assert len(sites) > 6000
    assert sites["station"].is_unique
    assert sites["lat"].between(-90, 90).all()
    assert sites["lon"].between(-180, 180).all()
    assert sites["elevation"].dropna().between(-450, 5000).all()
    assert 0 < sites["elevation"].isna().mean() < 0.1
    assert sites.attrs["units"]["elevation"] == "m"
    row = sites.set_index("station").loc["KDEN"]
    np.testing.assert_allclose(row.astype(float), [39.86, -104.67, 1656], atol=0.02, rtol=0.002)


# What may go wrong


@pytest.mark.parametrize("name", LIMITS)
def test_a_missing_or_truncated_file_says_how_to_restore_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {file: (demo.DATA / file).read_bytes() for file in LIMITS}
    ask = {"colorado.nc": demo.load, "coastline.npz": demo.coastline}.get(name, demo.weather)
    monkeypatch.setattr(demo, "DATA", tmp_path)
    for file, content in whole.items():
        (tmp_path / file).write_bytes(content)
    ask()
    (tmp_path / name).write_bytes(whole[name][: len(whole[name]) // 2])
    with pytest.raises(OSError, match=rf"^Cannot read '.*{name}' \(.*\); reinstall gridtnp"):
        ask()
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"^No such file: '.*{name}'; reinstall gridtnp"):
        ask()


def test_without_a_reader_of_netcdf_the_missing_install_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^Reading colorado\.nc needs .*: pip install 'gridtnp\[io\]'"
    ):
        demo.load()


@pytest.mark.parametrize("engine", demo.READERS)
def test_either_reader_gives_the_same(
    engine: str, globe: tuple[xr.Dataset, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "READERS", {engine: demo.READERS[engine]})
    xr.testing.assert_identical(demo.weather()[0], globe[0])


def test_importing_gridtnp_stays_light() -> None:
    code = "import sys, gridtnp; print(sorted({'pandas', 'xarray', 'h5py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
