"""The demo runs from end to end in a fresh process, as a newcomer would start it."""

import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

import gridtnp as gt

DEMO = Path(__file__).parent.parent / "experiments" / "demo.py"


@pytest.mark.slow
def test_the_demo_leaves_scores_maps_and_a_model(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, str(DEMO), "--out", str(out), "--steps", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in ("kriging-drift", "CRPS", "held-out stations", f"Everything is in {out}"):
        assert words in done.stdout
    for name in ("map", "errors", "pit", "coverage", "training"):
        assert (out / "plots" / f"{name}.png").stat().st_size > 10_000
    assert (out / "eval" / "scores.csv").exists()
    assert 200_000 < (out / "report.html").stat().st_size < 5_000_000
    with xr.open_dataset(out / "map.nc") as field:
        assert field["tmax_mean"].shape == (119, 205)
    assert gt.GriddedTNP.load(out).spec.target == ("stations.tmax",)
