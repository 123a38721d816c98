"""The paper's tables at the scale of a CPU: all rows, for the same processor time each.

    $ python scripts/make_weather.py --days 365
    $ python experiments/paper.py ~/.cache/gridtnp/weather-365-days.nc

Every row gets 15 minutes of one core, at the learning rate that is best on validation tasks after
an eighth of that time; the main rows are trained from two seeds. It takes days, but can be stopped
at any time: the same command continues, and every row is written to `experiments/results` as soon
as it is finished. The rows that matter most come first. Further arguments are passed to
`gridtnp reproduce`: `--minutes 5`, for example.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

RESULTS = Path("experiments/results")
RATES = ["--rates", "1e-3", "3e-3", "1e-2"]
SEEDS = ["--seeds", "0", "1"]
MAIN = {
    "gp": ["swin-tnp-pt", "swin-tnp-ki", "vitnp-pt", "convcnp", "pt-tnp", "cnp"],
    "stations": [
        "swin-tnp-pt-64x128",
        "swin-tnp-ki-64x128",
        "convcnp-64x128-full",
        "pt-tnp-256",
        "cnp",
    ],
    "wind": [
        "swin-tnp-multi-pt-24x60",
        "swin-tnp-multi-ki-24x60",
        "convcnp-24x60",
        "pt-tnp-64",
        "cnp",
    ],
}
"""Rows that are trained from two seeds."""


def commands(weather: str) -> list[list[str]]:
    """The arguments of all commands, in order."""
    found = []
    for rows in (True, False):  # the main rows of all tables first
        for table, main in MAIN.items():
            own = ["--rows", *main, *SEEDS] if rows else []
            out = ["--minutes", "15", *RATES, "--threads", "1", "--out", str(RESULTS / table)]
            if table == "gp":
                found += [[table, "--data", kind, *out, *own] for kind in ("exact", "rank-limited")]
            else:
                found.append([table, "--data", weather, *out, *own])
    rich = ["--minutes", "15", *RATES, "--threads", "1", "--out", str(RESULTS / "stations-rich")]
    return [*found, ["stations", "--rich", "--data", weather, *rich]]


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    os.environ["OMP_NUM_THREADS"] = "1"
    from gridtnp.reproduce.__main__ import main as reproduce

    for arguments in commands(sys.argv[1]):
        reproduce([*arguments, *sys.argv[2:]])


if __name__ == "__main__":
    main()
