"""`gridtnp doctor`: what is installed and what this machine can do."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from gridtnp import __version__, processor
from gridtnp.ops import native

PACKAGES = ("torch", "accelerate", "numpy", "pandas", "xarray", "scipy", "pydantic", "cyclopts")
EXTRAS = {
    "io": ("dask", "h5netcdf", "netCDF4", "pyarrow", "zarr"),
    "grib": ("cfgrib", "eccodes"),
    "geo": ("pyproj",),
    "plots": ("matplotlib",),
    "report": ("jinja2",),
    "serve": ("fastapi", "uvicorn", "edr_pydantic", "covjson_pydantic"),
}
GB = 1e9


def examine(folder: Path | None = None) -> dict[str, Any]:
    """Versions, device, threads, back-ends, extras, memory, and the disk that holds `folder`."""
    built, bfloat16 = native.library(), processor.why_not_bfloat16()
    memory = psutil.virtual_memory()
    disk = shutil.disk_usage(folder or Path.cwd())
    return {
        "gridtnp": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "c_backend": {"works": not isinstance(built, str), "why_not": _reason(built)},
        "bfloat16": {
            "works": bfloat16 is None,
            "why_not": bfloat16,
            "way_out": processor.way_out() if bfloat16 else "",
        },
        "extras": {
            extra: {"missing": [name for name in needed if find_spec(name) is None]}
            for extra, needed in EXTRAS.items()
        },
        "memory_gb": {"free": memory.available / GB, "total": memory.total / GB},
        "disk_gb": {"free": disk.free / GB, "total": disk.total / GB},
    }


def report(found: dict[str, Any]) -> str:
    """Text of what `examine` found."""
    backend, memory, disk = found["c_backend"], found["memory_gb"], found["disk_gb"]
    bfloat16 = found["bfloat16"]
    trouble = "; ".join(filter(None, (bfloat16["why_not"], bfloat16["way_out"])))
    lines = {
        "gridtnp": f"{found['gridtnp']}, Python {found['python']}, {found['platform']}",
        "packages": ", ".join(f"{k} {v}" for k, v in found["packages"].items()),
        "device": f"{found['device']}, {found['threads']} threads of {found['cores']} cores",
        "C back-end": "compiled" if backend["works"] else f"not used: {backend['why_not']}",
        "bfloat16": "products work" if bfloat16["works"] else trouble,
    }
    for extra, state in found["extras"].items():
        missing = state["missing"]
        hint = f"missing {', '.join(missing)}: pip install 'gridtnp[{extra}]'"
        lines[f"extra {extra}"] = hint if missing else "installed"
    lines["memory"] = f"{memory['free']:.1f} of {memory['total']:.1f} GB free"
    lines["disk"] = f"{disk['free']:.1f} of {disk['total']:.1f} GB free here"
    return "\n".join(f"{name:<16} {text}" for name, text in lines.items())


def _reason(built: object) -> str | None:
    return built if isinstance(built, str) else None
