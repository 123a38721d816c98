"""The command `python -m gridtnp.reproduce`.

python -m gridtnp.reproduce gp --scale cpu --rows swin-tnp-pt cnp --length-scale 0.5
python -m gridtnp.reproduce stations --scale cpu --data weather.nc
python -m gridtnp.reproduce wind --scale smoke

train the rows one after the other, continuing interrupted ones, and write scores, a table and
figures.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gridtnp.errors import require_known
from gridtnp.reproduce import gp_report
from gridtnp.reproduce.gp import (
    GP,
    NAMES,
    PACKAGED,
    configuration,
    keep,
    on_square,
    run_larger,
    scale_for,
    trained,
)
from gridtnp.reproduce.rows import Plan, load_row, result_path, run_row
from gridtnp.training.distributed import make_accelerator

SCALES = ("smoke", "cpu", "full")


def main(
    arguments: Sequence[str] | None = None, program: str = "python -m gridtnp.reproduce"
) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(program).parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console()
    folder = getattr(options, "table", options.experiment)
    out = (options.out or Path("runs") / folder) / options.scale
    command = f"python -m gridtnp.reproduce {shlex.join(given)}"
    plan = Plan(out, command, tuple(options.seeds), tuple(options.rates))
    options.run(options, plan, console)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Train rows of the paper's tables, continuing interrupted ones, and write "
        "scores, a table and figures.",
    )
    experiments = parser.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--scale", choices=SCALES, default="cpu")
    common.add_argument("--rows", nargs="*", metavar="ROW", help="default: all")
    common.add_argument("--out", type=Path, help="default: runs/EXPERIMENT")
    common.add_argument("--steps", type=int, help="training steps (default: the scale's)")
    common.add_argument(
        "--minutes",
        type=float,
        help="train for this time instead of a number of steps; on a CPU, processor time",
    )
    common.add_argument("--batch", type=int, help="tasks per step (default: the scale's)")
    common.add_argument("--seeds", nargs="+", type=int, default=[0])
    common.add_argument(
        "--rates",
        nargs="*",
        type=float,
        default=[],
        help="learning rates to try, each for an eighth of the training; the best on validation "
        "tasks is used (default: the scale's)",
    )
    common.add_argument("--threads", type=int, help="default: the number of cores")

    gp = experiments.add_parser("gp", parents=[common], help="Gaussian processes (table 3)")
    gp.set_defaults(run=_run_gp)
    gp.add_argument("--length-scale", nargs="+", type=float, default=[0.5, 0.1])
    gp.add_argument("--data", choices=["exact", "rank-limited"], default="exact")
    gp.add_argument(
        "--larger",
        nargs="*",
        type=float,
        default=[],
        metavar="HALF",
        help="also predict on the squares [-HALF, HALF]² with rows that have relative positions; "
        "after an empty --rows, with the trained models of the package",
    )
    gp.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="also write the weights of rows with relative positions into this folder",
    )

    weather = argparse.ArgumentParser(add_help=False)
    weather.add_argument(
        "--data",
        default="embedded",
        metavar="PATH",
        help="netCDF, Zarr or GRIB, a glob or a URL (default: simulated weather in the package)",
    )
    weather.add_argument("--tests", type=int, help="test tasks (default: the scale's)")
    both = [common, weather]
    stations = experiments.add_parser(
        "stations", parents=both, help="2 m temperature at stations (tables 1 and 6)"
    )
    stations.set_defaults(run=_run_stations)
    stations.add_argument(
        "--stations",
        metavar="PATH",
        help="sites: a table, HadISD's list or a folder of its files (default: METAR stations)",
    )
    stations.add_argument(
        "--rich",
        dest="table",
        action="store_const",
        const="stations-rich",
        default="stations",
        help="a quarter to half of the stations in the context (table 6)",
    )
    wind = experiments.add_parser("wind", parents=both, help="wind at three levels (table 2)")
    wind.set_defaults(run=_run_wind)
    return parser


def _recipe(options: argparse.Namespace) -> dict[str, Any]:
    """Settings of the recipe that were given; steps end a training that had minutes."""
    given = {k: v for k in ("steps", "batch", "minutes") if (v := getattr(options, k)) is not None}
    return given | ({"minutes": None} if "steps" in given and "minutes" not in given else {})


def _run_gp(options: argparse.Namespace, plan: Plan, console: Console) -> None:
    rows = list(NAMES) if options.rows is None else options.rows
    first = make_accelerator().is_main_process
    for row in rows:
        require_known(row, NAMES, "row")
    for length_scale in options.length_scale:
        scale = scale_for(options.scale, length_scale, **_recipe(options))
        table = GP(scale, length_scale, options.data)
        for row in rows:
            run_row(table, row, plan, console)
            if not first:
                continue
            folder = result_path(table, row, plan, plan.seeds[0]).parent
            for half in options.larger if row.endswith("relative") else ():
                model = load_row(on_square(configuration(row, scale), half), folder)
                run_larger(model, row, table, half, folder, plan.command)
            if options.keep is not None and row.endswith("relative"):
                keep(row, table, folder, options.keep)
        for half in () if rows else options.larger:
            model, row = trained(length_scale, half), PACKAGED[length_scale]
            folder = plan.out / GP(scale, length_scale).name_of(row)
            run_larger(model, row, table, half, folder, plan.command)
            console.print(f"wrote {folder}/larger-{half:g}.json", highlight=False)
    for path in gp_report.write_report(plan.out) if rows and first else ():
        console.print(f"wrote {path}", highlight=False)


def _run_stations(options: argparse.Namespace, plan: Plan, console: Console) -> None:
    from gridtnp.reproduce.stations import SCALES as SIZES
    from gridtnp.reproduce.stations import stations
    from gridtnp.reproduce.weather import scale_of

    scale = scale_of(SIZES, options.scale, options.tests, **_recipe(options))
    rich = options.table == "stations-rich"
    _run_weather(stations(scale, options.data, options.stations, rich=rich), options, plan, console)


def _run_wind(options: argparse.Namespace, plan: Plan, console: Console) -> None:
    from gridtnp.reproduce.weather import scale_of
    from gridtnp.reproduce.wind import SCALES as SIZES
    from gridtnp.reproduce.wind import wind

    scale = scale_of(SIZES, options.scale, options.tests, **_recipe(options))
    _run_weather(wind(scale, options.data), options, plan, console)


def _run_weather(
    experiment: Any, options: argparse.Namespace, plan: Plan, console: Console
) -> None:
    from gridtnp.reproduce.weather_report import write_report

    rows = list(experiment.rows) if options.rows is None else options.rows
    for row in rows:
        require_known(row, experiment.rows, "row")
    for row in rows:
        run_row(experiment, row, plan, console)
    if make_accelerator().is_main_process:
        for path in write_report(experiment, plan.out, plan.command, console):
            console.print(f"wrote {path}", highlight=False)


if __name__ == "__main__":
    main()
