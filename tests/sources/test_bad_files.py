"""Bad files, each with the sentence that it is refused, warned about or described with.

A new case is one line of `CSV` or `NETCDF`: what is wrong, the file, the outcome and the sentence.
"""
# ruff: noqa: E501

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import weather
import xarray as xr

from gridtnp.data.dataset import Dataset
from gridtnp.sources.quality import DataWarning

HEADER = "station,time,lat,lon,tmax,rain"
ROWS = (
    "A,2019-03-01 00:00,48.1,11.5,12.5,0.5",
    "B,2019-03-01 00:00,49.2,10.5,11.0,1.5",
    "C,2019-03-01 00:00,50.3,9.5,10.5,2.5",
    "A,2019-03-02 00:00,48.1,11.5,13.5,0.0",
    "B,2019-03-02 00:00,49.2,10.5,12.0,3.5",
    "C,2019-03-02 00:00,50.3,9.5,11.5,",
)


def table(old: str = "", new: str = "", *, header: str = HEADER, each: str = "") -> str:
    """A CSV file with one text replaced, another header, or something added to each row."""
    rows = "".join(f"{row}{each}\n" for row in ROWS)
    assert not old or rows.count(old) == 1, "the text to replace must be there once"
    return f"{header}\n{rows.replace(old, new) if old else rows}"


def with_column(name: str, *values: object) -> str:
    """A CSV file with one more column."""
    rows = [f"{row},{value}" for row, value in zip(ROWS, values, strict=True)]
    return "\n".join([f"{HEADER},{name}", *rows, ""])


CSV: list[tuple[str, str | bytes, str, str]] = [
    # what is wrong, file, outcome, sentence
    ("every row one field longer", table(each=",0"), "refused", r"^Line 2 of '.*a\.csv' has 7 fields, but the header has 6; correct the row or complete the header\.$"),
    ("every row ends with a comma", table(each=","), "refused", r"^Line 2 of '.*' has 7 fields"),
    ("one row one field longer", table("50.3,9.5,10.5", "50.3,9.5,10,5"), "refused", r"^Line 4 of '.*' has 7 fields, but the header has 6"),
    ("one row one field shorter", table("49.2,10.5,11.0,", "49.2,11.0,"), "refused", r"^Line 3 of '.*' has 5 fields"),
    ("cut in the middle of a row", table()[:-8], "refused", r"^Line 7 of '.*' has 4 fields"),
    ("cut in the middle of a number", table() + "A,2019-03-03 00:00,48.1,11.5,12.5,0", "warned", r"'.*a\.csv' does not end with a line break; was its download or copy cut short\?"),
    ("a quotation mark that never closes", table("12.0", '"12.0'), "refused", r"^Line 7 of '.*' has 5 fields"),
    ("separated by semicolons", table().replace(",", ";"), "refused", r"^The fields of '.*' are separated by ';', not by commas; pass pd\.read_csv\(path, sep=';'\)"),
    ("semicolons and decimal commas", table().replace(",", ";").replace(".", ","), "refused", r"^The fields of '.*' are separated by ';'"),
    ("latin-1", table("C,2019-03-01", "Orléans,2019-03-01").encode("latin-1"), "refused", r"^'.*a\.csv' is not UTF-8 text: line 4 has byte 0xe9; if it is Latin-1, pass pd\.read_csv\(path, encoding='latin-1'\)"),
    ("utf-16", table().encode("utf-16"), "refused", r"^'.*' is not UTF-8 text: line 1 has byte 0xff"),
    ("empty", "", "refused", r"^'.*a\.csv' is empty; a CSV file needs a header and rows\.$"),
    ("no rows", f"{HEADER}\n", "refused", r"^'.*a\.csv' has no rows; it needs at least one after its header\.$"),
    ("no latitude", table(header=HEADER.replace("lat", "hat")), "refused", r"^Source 'obs' has no latitude among \["),
    ("text in a coordinate", table("50.3,9.5,10.5", "north,9.5,10.5"), "refused", r"^Column 'lat' of source 'obs' is not numeric: row 2 holds 'north'\.$"),
    ("a header again", table("B,2019-03-02 00:00,49.2,10.5,12.0,3.5", HEADER), "refused", r"^Column 'lat' of source 'obs' is not numeric: row 4 holds 'lat'\.$"),
    ("some times with a zone", table("00:00,50.3,9.5,10.5", "00:00+02,50.3,9.5,10.5"), "refused", r"^'time' mixes times with and without a time zone, '2019-03-01 00:00\+02' \(row 2\) and '2019-03-01 00:00' \(row 0\)"),
    ("now", table("2019-03-01 00:00,50.3", "now,50.3"), "refused", r"^'time' holds 'now' in row 2, which is not a date"),
    ("today", table("2019-03-01 00:00,50.3", "today,50.3"), "refused", r"^'time' holds 'today' in row 2, which is not a date"),
    ("day first", table("2019-03-01 00:00,50.3", "01/03/2019,50.3"), "refused", r"^'time' holds '01/03/2019' in row 2"),
    ("times as numbers", table().replace("2019-03-0", "2019030").replace(" 00:00", ""), "refused", r"^'time' holds numbers \(first: 20190301\), not dates"),
    ("one M among numbers", table("12.0", "M"), "warned", r"obs: 1 of 6 noticed: column 'tmax' is left out, because it holds text among its numbers; na_values=\['M'\] masks it \(for example row 4: 'M'\)"),
    ("decimal commas in quotes", table("12.0", '"12,0"'), "warned", r"column 'tmax' is left out, because it holds text among its numbers; na_values=\['12,0'\] masks it \(for example row 4: '12,0'\)"),
    ("-9999 for missing", table("12.0", "-9999"), "warned", r"obs: 1 of 6 noticed: tmax is -9999, which often stands for missing; na_values=\[-9999\] masks it"),
    ("999.9 for missing", table("12.0", "999.9").replace("11.0", "999.9"), "warned", r"obs: 2 of 6 noticed: tmax is 999\.9, which often stands for missing"),
    ("1e20 for missing", table("12.0", "1e20"), "warned", r"obs: 1 of 6 noticed: tmax is 1e\+20, which often stands for missing"),
    ("-9999 as an elevation", with_column("elevation", 500, 600, 700, 500, -9999, 700), "warned", r"obs: 1 of 6 noticed: elevation is -9999, which often"),
    ("an index without a name", table(header=f"{HEADER},", each=",7"), "listed", r"left out: column 'Unnamed: 6' has no name$"),
    ("a column twice", table(header=f"{HEADER},lat", each=",48"), "listed", r"left out: column 'lat\.1' repeats 'lat'$"),
    ("another latitude", table(header=f"{HEADER},latitude", each=",48"), "listed", r"left out: column 'latitude' is a second latitude$"),
    ("a number of the observation", with_column("obs", 0, 1, 2, 3, 4, 5), "listed", r"left out: column 'obs' numbers the rows$"),
    ("a number of the trajectory", with_column("traj", 0, 0, 0, 1, 1, 1), "listed", r"left out: column 'traj' numbers the rows$"),
    ("a slash in a name", table(header=HEADER.replace("tmax", "t/max")), "refused", r"^Column 't/max' of source 'obs' cannot be the name of a variable in a file; rename it, e\.g\. to 't_max'\.$"),
    ("a name that begins with a sign", table(header=HEADER.replace("tmax", "% tmax")), "refused", r"^Column '% tmax' of source 'obs' cannot be .* rename it, e\.g\. to 'tmax'\.$"),
    ("coordinates off the globe", table("50.3,9.5,10.5", "50.3,999,10.5"), "warned", r"obs: 1 of 6 dropped: invalid coordinates \(for example row 2: lat 50\.3, lon 999\)"),
    ("latitudes in metres", table().replace(",4", ",54").replace(",50.3", ",5450.3"), "refused", r"^No row of source 'obs' has a latitude within ±90"),
    ("a column without values", with_column("wind", *[""] * 6), "refused", r"^Variable 'wind' of source 'obs' is missing everywhere"),
    ("rows twice", table() + ROWS[0] + "\n", "warned", r"obs: 1 of 7 dropped: duplicates \(for example row 6: A at 2019-03-01\)"),
]  # fmt: skip


def outcome(sources: dict[str, Path | str]) -> tuple[str, str]:
    """How reading ends: refused, warned or listed, and the sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            data = Dataset(sources, target="obs")
        except (ValueError, OSError) as error:
            text = str(error)
            assert "\n" not in text, text
            return "refused", text
    assert all(issubclass(w.category, DataWarning) for w in caught), [str(w) for w in caught]
    if caught:
        return "warned", "\n".join(str(w.message) for w in caught)
    return "listed", "\n".join(map(str, data.notes))


def check(got: tuple[str, str], expected: str, sentence: str) -> None:
    assert got[0] == expected, got
    assert re.search(sentence, got[1], re.MULTILINE), got[1]


@pytest.mark.parametrize(
    ("content", "expected", "sentence"), [c[1:] for c in CSV], ids=[c[0] for c in CSV]
)
def test_a_bad_csv_file(tmp_path: Path, content: str | bytes, expected: str, sentence: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    check(outcome({"obs": path}), expected, sentence)


def test_the_good_csv_file_is_read_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(table())
    assert outcome({"obs": path}) == ("listed", "obs: 1 of 6 masked: rain is missing")


# ---- netCDF --------------------------------------------------------------------------------------

Change = Callable[[xr.Dataset], xr.Dataset]


def attributes(name: str, **changed: object) -> Change:
    """Other attributes of a variable."""

    def change(ds: xr.Dataset) -> xr.Dataset:
        ds[name].attrs.update(changed)
        return ds

    return change


def values(name: str, value: float, number: int = 3, **declared: object) -> Change:
    """Some values of a variable replaced, and attributes about them."""

    def change(ds: xr.Dataset) -> xr.Dataset:
        ds[name].values.reshape(-1)[:number] = value
        ds[name].attrs.update(declared)
        return ds

    return change


def axes(y: str, x: str, units: str, scale: float = 1.0, **names: str) -> Change:
    """Other names, units, scale and standard names of the coordinates."""

    def change(ds: xr.Dataset) -> xr.Dataset:
        made = ds.assign_coords(lat=ds.lat * scale, lon=ds.lon * scale)
        made.lat.attrs["units"] = made.lon.attrs["units"] = units
        for axis, standard in names.items():
            made[axis].attrs["standard_name"] = standard
        return made.rename({k: v for k, v in (("lat", y), ("lon", x)) if k != v})

    return change


def curved(lon: float) -> Change:
    """Two-dimensional coordinates, with one impossible longitude."""

    def change(ds: xr.Dataset) -> xr.Dataset:
        y, x = np.meshgrid(ds.lat.values, ds.lon.values, indexing="ij")
        x[1, 2] = lon
        ds = ds.rename(lat="row", lon="column").drop_vars(["row", "column"])
        return ds.assign_coords(lat=(("row", "column"), y), lon=(("row", "column"), x))

    return change


def numbered_times(units: str, **more: object) -> Change:
    """Times as numbers since a date."""

    def change(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign_coords(time=("time", np.arange(6), {"units": units, **more}))

    return change


NETCDF: list[tuple[str, Change, str, str]] = [
    # what is wrong, change of a good dataset, outcome, sentence
    ("x and y in km", axes("y", "x", "km"), "refused", r"^Latitude 'y' of source 'obs' is in 'km', not in degrees; convert it, e\.g\. by its projection: crs=\{'obs': 'EPSG:25832'\}\.$"),
    ("x and y in m", axes("y", "x", "m"), "refused", r"^Latitude 'y' of source 'obs' is in 'm', not in degrees"),
    ("lat and lon in m", axes("lat", "lon", "m", 1000.0), "refused", r"^Latitude 'lat' of source 'obs' is in 'm', not in degrees"),
    ("gon", attributes("lon", units="gon"), "refused", r"^Longitude 'lon' of source 'obs' is in 'gon', not in degrees"),
    ("a latitude to the east", attributes("lat", units="degrees_east", standard_name="latitude"), "refused", r"^Latitude 'lat' of source 'obs' is in 'degrees_east', not in degrees"),
    ("negative degrees west", attributes("lon", units="degrees_west"), "refused", r"^Longitude 'lon' of source 'obs' is in 'degrees_west', but some are negative; give it positive degrees west or units 'degrees_east'\.$"),
    ("a rotated grid", axes("lat", "lon", "degrees", lat="grid_latitude", lon="grid_longitude"), "refused", r"^Source 'obs' has no latitude among \[.*\], only projected 'lon' and 'lat'; convert them, e\.g\. by their projection: crs=\{"),
    ("projected by standard name", axes("y", "x", "m", lat="projection_y_coordinate", lon="projection_x_coordinate"), "refused", r"^Source 'obs' has no latitude among \[.*\], only projected 'x' and 'y'"),
    ("an impossible longitude among 2-D ones", curved(-999.0), "warned", r"obs: 1 of 20 dropped: invalid coordinates \(for example station 7: 51\.25, -999\)"),
    ("an impossible longitude of an axis", lambda ds: ds.assign_coords(lon=[-999.0, *ds.lon.values[1:]]), "refused", r"^Longitude -999 of source 'obs' \('lon', position 0\) is outside -360 to 360"),
    ("-9999 for missing", values("t2m", -9999.0), "warned", r"obs: 3 of 120 noticed: t2m is -9999, which often stands for missing; na_values=\[-9999\] masks it"),
    ("1e20 for missing", values("t2m", 1e20), "warned", r"obs: 3 of 120 noticed: t2m is 1e\+20"),
    ("9.97e36 for missing", values("t2m", 9.969209968386869e36), "warned", r"obs: 3 of 120 noticed: t2m is 9\.96921e\+36"),
    ("missing_value", values("t2m", -9999.0, missing_value=-9999.0), "listed", r"^obs: 3 of 120 masked: t2m is missing$"),
    ("missing_value in single precision", lambda ds: values("t2m", 1e20, missing_value=1e20)(ds.astype(np.float32)), "listed", r"^obs: 3 of 120 masked: t2m is missing$"),
    ("valid_range", values("t2m", -5.0, valid_range=[200.0, 350.0]), "listed", r"^obs: 3 of 120 masked: t2m is missing$"),
    ("valid_min", values("t2m", -5.0, valid_min=200.0), "listed", r"^obs: 3 of 120 masked: t2m is missing$"),
    ("valid_max", values("t2m", 999.0, valid_max=350.0), "listed", r"^obs: 3 of 120 masked: t2m is missing$"),
    ("a valid_range that nothing is in", values("t2m", 1.0, valid_range=[500.0, 600.0]), "refused", r"^Variable 't2m' of source 'obs' is missing everywhere"),
    ("months since", numbered_times("months since 2000-01-01"), "refused", r"^Cannot decode '.*a\.nc' \(.*months since 2000-01-01.*\); open it with xr\.open_dataset\(path, decode_times=False\), correct it and pass the dataset\.$"),
    ("another calendar", numbered_times("days since 2000-01-01", calendar="360_day"), "refused", r"^'time' is in calendar '360_day'; convert it with"),
    ("times without units", lambda ds: ds.assign_coords(time=np.arange(6)), "refused", r"^'time' holds numbers \(first: 0\), not dates"),
    ("an axis of text", lambda ds: ds.assign_coords(lat=[f"{v}N" for v in ds.lat.values]), "refused", r"^Latitude 'lat' of source 'obs' is not numeric \(first: '50\.0N'\); convert it to degrees\.$"),
    ("no latitude", lambda ds: ds.rename(lat="row"), "refused", r"^Source 'obs' has no latitude among \["),
    ("no variable", lambda ds: ds.drop_vars(["t2m", "u10"]), "refused", r"^Source 'obs' has no variable with dimensions"),
    ("a number of the trajectory", lambda ds: ds.assign(traj=ds.t2m.astype(int)), "listed", r"left out: column 'traj' numbers the rows$"),
    ("another latitude", lambda ds: ds.assign(latitude=ds.t2m), "listed", r"left out: column 'latitude' is a second latitude$"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected", "sentence"), [c[1:] for c in NETCDF], ids=[c[0] for c in NETCDF]
)
def test_a_bad_netcdf_file(tmp_path: Path, change: Change, expected: str, sentence: str) -> None:
    change(weather.field()).to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    check(outcome({"obs": tmp_path / "a.nc"}), expected, sentence)


def test_the_good_netcdf_file_is_read_without_a_word(tmp_path: Path) -> None:
    weather.field().to_netcdf(tmp_path / "a.nc", engine="netcdf4")
    assert outcome({"obs": tmp_path / "a.nc"}) == ("listed", "")


@pytest.mark.parametrize("units", ["degC", None])
def test_files_in_other_units_are_not_joined(tmp_path: Path, units: str | None) -> None:
    ds = weather.field()
    ds.isel(time=slice(0, 3)).to_netcdf(tmp_path / "1.nc", engine="netcdf4")
    other = ds.isel(time=slice(3, None)) - (0 if units is None else 273.15)
    other.t2m.attrs = {} if units is None else {"units": units}
    other.u10.attrs = {"units": "m s-1"}
    other.to_netcdf(tmp_path / "2.nc", engine="netcdf4")
    found = "in 'degC'" if units else "without units"
    sentence = rf"^'t2m' is in 'K' in '.*1\.nc' but {found} in '.*2\.nc'; convert one of them"
    check(outcome({"obs": tmp_path / "*.nc"}), "refused", sentence)


def test_degrees_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    ds = weather.field()
    for i, units in enumerate(("degrees_north", "degree")):
        part = ds.isel(time=slice(3 * i, 3 * i + 3))
        part.lat.attrs["units"] = units
        part.to_netcdf(tmp_path / f"{i}.nc", engine="netcdf4")
    assert outcome({"obs": tmp_path / "*.nc"}) == ("listed", "")
    part = part.assign_coords(lat=("lat", np.deg2rad(ds.lat.values), {"units": "rad"}))
    part.to_netcdf(tmp_path / "1.nc", engine="netcdf4")
    sentence = r"^'lat' is in 'degrees' in '.*0\.nc' but in 'rad' in '.*1\.nc'; convert one"
    check(outcome({"obs": tmp_path / "*.nc"}), "refused", sentence)


def test_files_that_do_not_join_are_named(tmp_path: Path) -> None:
    ds = weather.field()
    for i in (1, 2):
        ds.isel(time=[0, 2, 4] if i == 1 else [1, 3, 5]).to_netcdf(tmp_path / f"{i}.nc")
    sentence = r"^Cannot join '.*1\.nc' to '.*2\.nc' \(.+\); join them with xarray and pass the"
    check(outcome({"obs": tmp_path / "*.nc"}), "refused", sentence)


def test_a_left_out_column_says_why_when_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(table("12.0", "M"))
    message = (
        r"^Variable 'tmax' of source 'obs' is not used: column 'tmax' is left out, because it holds"
        r" text among its numbers; na_values=\['M'\] masks it \(for example row 4: 'M'\)\.$"
    )
    with pytest.raises(ValueError, match=message):
        Dataset({"obs": path}, target="obs.tmax")


def test_na_values_are_masked_in_tables_and_datasets(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(table("12.0", "M").replace("2.5\n", "-9999\n").replace(",13.5,", ",-9999.0,"))
    data = Dataset({"obs": path}, target="obs.tmax", na_values=["M", -9999])
    source = data.sources["obs"]
    assert source.names == ("rain", "tmax")
    assert [str(note) for note in data.notes] == [
        "obs: 2 of 6 masked: rain is missing",
        "obs: 2 of 6 masked: tmax is missing",
    ]
    frame = pd.read_csv(path)
    again = Dataset({"obs": frame}, target="obs.tmax", na_values=["M", -9999])
    assert again.fingerprint() == data.fingerprint()
    ds = values("t2m", 1e20)(weather.field(np.float32))
    made = Dataset({"obs": ds}, target="obs.t2m", na_values=[1e20])
    assert [str(note) for note in made.notes] == ["obs: 3 of 120 masked: t2m is missing"]
    lazily = Dataset({"obs": ds}, target="obs.t2m", na_values=[1e20], memory=0)
    assert np.isnan(lazily.sources["obs"].values(0, 3)[:, 0]).all()
