"""Simulate global weather for the paper's two weather experiments, src/gridtnp/demo/weather.nc.

    $ python scripts/make_weather.py --excerpt     # four weeks, and the package's excerpt
    $ python scripts/make_weather.py --days 365    # a year

The model is SPEEDY, a simplified general circulation model, in its JAX version `jcm` (Apache-2.0):
spectral, truncation 31, 48 × 96 points, with real orography and land and climatological sea-surface
temperature. It needs JAX and 1.6 GB of packages; on first use, this script creates an environment
for it in the user's cache folder and runs itself there. The simulation is stored in the same
folder, in single precision.

Near-surface air and surface temperature take the place of ERA5's t2m and skt, and winds on the
model's three lowest levels that of winds at 1000, 850 and 700 hPa.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gridtnp"
ENVIRONMENT = CACHE / "jcm-3.0.0"
PACKAGES = ["jcm==3.0.0", "h5netcdf", "h5py"]
OUTPUT = Path(__file__).parent.parent / "src" / "gridtnp" / "demo" / "weather.nc"
START, SPIN_UP = "2000-10-03", 90  # days of spin-up from rest
CHUNK = 10  # days in memory at once, with all fields of the model
EXCERPT = 21  # days
STEP = 0.1  # resolution of the excerpt, in K and m/s
LEVELS = {0.95: 1000.0, 0.835: 850.0, 0.685: 700.0}  # sigma: nominal pressure in hPa
FIELDS = {  # name: long name, CF standard name, unit
    "t2m": ("near-surface air temperature", "air_temperature", "K"),
    "skt": ("surface temperature", "surface_temperature", "K"),
    "u": ("eastward wind", "eastward_wind", "m s-1"),
    "v": ("northward wind", "northward_wind", "m s-1"),
    "elevation": ("elevation of the model's surface", "surface_altitude", "m"),
    "land": ("fraction of land", "land_area_fraction", "1"),
    "lat": ("latitude", "latitude", "degrees_north"),
    "lon": ("longitude", "longitude", "degrees_east"),
    "level": ("pressure that the model level stands for", "air_pressure", "hPa"),
    "sigma": ("pressure over surface pressure", "atmosphere_sigma_coordinate", "1"),
}


def environment() -> Path:
    """The interpreter of the environment with the model, created on first use."""
    python = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = ENVIRONMENT / "ready"  # written last, so that a failed attempt is repeated
    if not ready.exists():
        print(f"Setting up {ENVIRONMENT} (once, a few minutes) ...", flush=True)
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        ready.touch()
    return python


def simulate(days: int) -> xr.Dataset:
    """Six-hourly weather for this many days after the spin-up."""
    from importlib.resources import files

    import numpy as np
    import xarray as xr
    from jcm.forcing import ForcingData  # pyright: ignore[reportMissingImports]
    from jcm.model import Model  # pyright: ignore[reportMissingImports]
    from jcm.physics.speedy import speedy_coords  # pyright: ignore[reportMissingImports]
    from jcm.terrain import TerrainData  # pyright: ignore[reportMissingImports]

    coordinates = speedy_coords.get_speedy_coords(layers=8, spectral_truncation=31)
    climate = files("jcm.data.bc.t30.clim")
    terrain = TerrainData.from_file(climate / "terrain.nc", coords=coordinates)
    forcing = ForcingData.from_file(climate / "forcing.nc", coords=coordinates)
    model = Model(coords=coordinates, terrain=terrain, start_time=START)
    parts: list[xr.Dataset] = []
    began = time.perf_counter()
    # the spin-up runs in the same chunks, so that the model is compiled once
    for end in range(CHUNK, SPIN_UP + days + CHUNK, CHUNK):
        advance = model.resume if end > CHUNK else model.run
        states = advance(forcing=forcing, save_interval=0.25, total_time=CHUNK)
        if end > SPIN_UP:
            parts.append(select(states.to_xarray()))
        print(f"day {end}: {time.perf_counter() - began:.0f} s", flush=True)
    weather = xr.concat(parts, "time").isel(time=slice(4 * days))
    weather["elevation"] = ("lon", "lat"), np.asarray(terrain.orog)
    weather["land"] = ("lon", "lat"), np.asarray(terrain.fmask)
    return describe(weather)


def select(states: xr.Dataset) -> xr.Dataset:
    """The variables to keep, of about 80."""
    import numpy as np
    import xarray as xr

    rows = [int(np.abs(states["level"].to_numpy() - sigma).argmin()) for sigma in LEVELS]
    keep = {
        "t2m": states["surface_flux.t0"],
        "skt": states["surface_flux.tskin"],
        "u": states["u_wind"].isel(level=rows),
        "v": states["v_wind"].isel(level=rows),
    }
    plain = {name: field.reset_coords(drop=True).load() for name, field in keep.items()}
    return xr.Dataset(plain, attrs={})


def describe(weather: xr.Dataset) -> xr.Dataset:
    """Dimensions in CF order, and CF attributes."""
    weather = weather.transpose("time", "level", "lat", "lon").astype("float32")
    weather = weather.assign_coords(
        level=list(LEVELS.values()), sigma=("level", list(LEVELS)), time=weather["time"]
    )
    for name, (long, standard, unit) in FIELDS.items():
        weather[name].attrs = {"long_name": long, "standard_name": standard, "units": unit}
    weather["time"].attrs = {"standard_name": "time"}
    weather.attrs = {
        "Conventions": "CF-1.10",
        "title": "Simulated global weather every six hours",
        "source": "jcm 3.0.0 (SPEEDY physics, T31, 8 levels, climatological sea surface), "
        f"from rest on {START}, the first {SPIN_UP} days left out; not observations",
        "licence": "MIT, as gridtnp; elevation and land are those of jcm, Apache-2.0",
        "history": "made by scripts/make_weather.py",
    }
    return weather


def save(weather: xr.Dataset, path: Path, packed: bool) -> None:
    """Write a compressed file atomically, as 16-bit integers if `packed`."""
    small = {"zlib": True, "complevel": 9, "shuffle": True}
    encoding: dict[Any, Any] = dict.fromkeys(weather.data_vars, small)
    for name in ("t2m", "skt", "u", "v"):
        # one chunk per level compresses best, one per time is fastest to read
        one = "level" if packed else "time"
        chunk = tuple(1 if d == one else weather.sizes[d] for d in weather[name].dims)
        encoding[name] = {**small, "chunksizes": chunk}
        if packed:
            encoding[name] |= {"dtype": "int16", "scale_factor": STEP, "_FillValue": -32768}
    encoding["time"] = {"dtype": "int32", "units": "hours since 2001-01-01"}
    part = path.with_suffix(".part")
    weather.to_netcdf(part, engine="h5netcdf", encoding=encoding)
    part.replace(path)
    print(f"{path}: {dict(weather.sizes)}, {path.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=28, help="days after the spin-up (default: 28)")
    parser.add_argument("--excerpt", action="store_true", help="also write the package's file")
    arguments = parser.parse_args()
    if arguments.days < EXCERPT:
        parser.error(f"--days {arguments.days}: must be at least {EXCERPT}.")
    if Path(sys.prefix).resolve() != ENVIRONMENT.resolve():
        command = [environment(), __file__, *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, check=False).returncode)

    import xarray as xr

    path = CACHE / f"weather-{arguments.days}-days.nc"
    if path.exists():
        print(f"{path} already exists; delete it to simulate again.")
    else:
        save(simulate(arguments.days), path, packed=False)
    if arguments.excerpt:
        weather = xr.load_dataset(path, engine="h5netcdf").isel(time=slice(4 * EXCERPT))
        weather.attrs["history"] += f"; {EXCERPT} days, rounded to {STEP} K and {STEP} m/s"
        save(weather, OUTPUT, packed=True)


if __name__ == "__main__":
    main()
