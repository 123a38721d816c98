"""Make src/gridtnp/demo/colorado.nc: monthly weather at stations in Colorado, and the terrain.

The observations are in the R package `fields`, which is packaged by Debian:

    $ apt-get download r-cran-fields && dpkg -x r-cran-fields_*.deb fields
    $ pip install rdata xarray h5netcdf h5py
    $ python scripts/make_colorado.py fields/usr/lib/R/site-library/fields/data/COmonthlyMet.rda

Nothing is rounded: temperatures are multiples of 0.1 degrees and precipitation of 1 mm. According
to the package's help page, precipitation is in millimetres, but the numbers are centimetres: their
average annual sum is 42.5, and Colorado gets about 400 mm.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import rdata  # pyright: ignore[reportMissingImports]
import xarray as xr

OUTPUT = Path(__file__).parent.parent / "src" / "gridtnp" / "demo" / "colorado.nc"
FIRST_YEAR, YEARS, STATIONS = 1895, 103, 376
MISSING = -32768
VALUES = {  # name in R: our name, factor to our unit, resolution, attributes
    "CO.tmax": (
        "tmax",
        1,
        0.1,
        {
            "long_name": "mean daily maximum temperature",
            "standard_name": "air_temperature",
            "units": "degC",
            "cell_methods": "time: maximum within days time: mean over days",
        },
    ),
    "CO.tmin": (
        "tmin",
        1,
        0.1,
        {
            "long_name": "mean daily minimum temperature",
            "standard_name": "air_temperature",
            "units": "degC",
            "cell_methods": "time: minimum within days time: mean over days",
        },
    ),
    "CO.ppt": (
        "precipitation",
        10,
        1.0,
        {
            "long_name": "total precipitation",
            "standard_name": "lwe_thickness_of_precipitation_amount",
            "units": "mm",
            "cell_methods": "time: sum",
        },
    ),
}
LATITUDE = {"standard_name": "latitude", "units": "degrees_north"}
LONGITUDE = {"standard_name": "longitude", "units": "degrees_east"}
METRES = {"standard_name": "surface_altitude", "units": "m"}


def convert(path: Path) -> xr.Dataset:
    """The R objects as one dataset: values by month and station, elevation on the grid."""
    r = rdata.read_rda(path)
    months = np.arange(f"{FIRST_YEAR}-01", f"{FIRST_YEAR + YEARS}-01", dtype="datetime64[M]")
    variables = {}
    for key, (name, factor, step, attributes) in VALUES.items():
        values = factor * np.asarray(r[key])
        if values.shape != (YEARS, 12, STATIONS):
            raise SystemExit(f"{key} has shape {values.shape}, not {(YEARS, 12, STATIONS)}.")
        error = np.nanmax(np.abs(values / step - (values / step).round()))
        if error > 1e-6:
            raise SystemExit(f"{key} is up to {error} steps from a multiple of {step}.")
        variables[name] = (("time", "station"), values.reshape(-1, STATIONS), attributes)
    places, terrain = np.asarray(r["CO.loc"]), r["CO.elevGrid"]
    variables |= {
        "station_lon": ("station", places[:, 0], LONGITUDE),
        "station_lat": ("station", places[:, 1], LATITUDE),
        "station_elevation": ("station", np.asarray(r["CO.elev"], float), METRES),
        "elevation": (("lat", "lon"), np.asarray(terrain["z"], np.float32).T, METRES),
    }
    label = {"standard_name": "time", "comment": "each month is labelled with its first day"}
    coordinates = {
        "time": ("time", months.astype("datetime64[ns]"), label),
        "station": ("station", [str(code) for code in r["CO.id"]], {"cf_role": "timeseries_id"}),
        "lat": ("lat", np.asarray(terrain["y"]), LATITUDE),
        "lon": ("lon", np.asarray(terrain["x"]), LONGITUDE),
    }
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    provenance = {
        "Conventions": "CF-1.10",
        "title": "Monthly temperature and precipitation at stations in Colorado, 1895-1997",
        "institution": "US National Climatic Data Center (observations), NCAR (selection)",
        "source": "COmonthlyMet of the R package fields, from Debian's package r-cran-fields",
        "source_sha256": digest,
        "licence": "The observations are works of the US government, in the public domain",
        "history": "made by scripts/make_colorado.py, precipitation turned from cm into mm",
    }
    data = xr.Dataset(variables, coordinates, provenance)
    return data.set_coords(["station_lat", "station_lon", "station_elevation"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", type=Path, help="COmonthlyMet.rda of the R package fields")
    data = convert(parser.parse_args().input)
    small = {"zlib": True, "complevel": 9, "shuffle": True}
    encoding = {
        name: {"dtype": "int16", "scale_factor": step, "_FillValue": MISSING, **small}
        for name, _, step, _ in VALUES.values()
    }
    encoding["elevation"] = small
    encoding["time"] = {"dtype": "int32", "units": f"days since {FIRST_YEAR}-01-01", **small}
    data.to_netcdf(OUTPUT, engine="h5netcdf", encoding=encoding)
    print(f"{OUTPUT}: {dict(data.sizes)}, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
