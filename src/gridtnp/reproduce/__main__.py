"""The command `python -m gridtnp.reproduce`.

python -m gridtnp.reproduce gp --scale cpu --rows swin-tnp-pt cnp --length-scale 0.5

trains the rows one after the other, continuing interrupted ones, and writes scores, a table and
figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from gridtnp.errors import require_known
from gridtnp.reproduce.gp import (
    NAMES,
    PACKAGED,
    SCALES,
    configuration,
    keep,
    load_row,
    on_square,
    run_larger,
    run_row,
    scale_for,
    trained,
)
from gridtnp.reproduce.report import write_report


def main(
    arguments: Sequence[str] | None = None, program: str = "python -m gridtnp.reproduce"
) -> None:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Train rows of the paper's table, continuing interrupted ones, and write "
        "scores, a table and figures.",
    )
    parser.add_argument("experiment", choices=["gp"])
    parser.add_argument("--scale", choices=list(SCALES), default="cpu")
    parser.add_argument("--rows", nargs="*", default=list(NAMES), metavar="ROW")
    parser.add_argument("--length-scale", nargs="+", type=float, default=[0.5, 0.1])
    parser.add_argument("--data", choices=["exact", "rank-limited"], default="exact")
    parser.add_argument("--out", type=Path, default=Path("runs/gp"))
    parser.add_argument("--steps", type=int, help="training steps (default: the scale's)")
    parser.add_argument("--batch", type=int, help="tasks per step (default: the scale's)")
    parser.add_argument("--threads", type=int, help="default: the number of cores")
    parser.add_argument(
        "--larger",
        nargs="*",
        type=float,
        default=[],
        metavar="HALF",
        help="also predict on the squares [-HALF, HALF]² with rows that have relative positions; "
        "after an empty --rows, with the trained models of the package",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="also write the weights of rows with relative positions into this folder",
    )
    options = parser.parse_args(arguments)
    for row in options.rows:
        require_known(row, NAMES, "row")
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console()
    out = options.out / options.scale
    recipe = {k: v for k in ("steps", "batch") if (v := getattr(options, k)) is not None}
    for length_scale in options.length_scale:
        scale = scale_for(options.scale, length_scale, **recipe)
        for row in options.rows:
            run_row(row, scale, length_scale, options.data, out, console)
            folder = out / f"{row}-{length_scale:g}-exact"
            for half in options.larger if row.endswith("relative") else ():
                model = load_row(on_square(configuration(row, scale), half), folder)
                run_larger(model, row, scale, length_scale, half, folder)
            if options.keep is not None and row.endswith("relative"):
                keep(row, scale, length_scale, out, options.keep)
        for half in () if options.rows else options.larger:
            folder = out / f"{PACKAGED}-{length_scale:g}-exact"
            model = trained(length_scale, half)
            run_larger(model, PACKAGED, scale, length_scale, half, folder)
            console.print(f"wrote {folder}/larger-{half:g}.json", highlight=False)
    for path in write_report(out) if options.rows else ():
        console.print(f"wrote {path}", highlight=False)


if __name__ == "__main__":
    main()
