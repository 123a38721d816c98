"""Results of the model in the box: `gt.interpolate`, which was never trained on what it is given.

python experiments/in_the_box.py synthetic           scores per kind and number of observations
python experiments/in_the_box.py real --data FOLDER  the data sets and splits of the leaderboard
python experiments/in_the_box.py tuned --data FOLDER trained on, beside networks from random weights
python experiments/in_the_box.py scaling             scores by size of the network and pretraining

Finished parts are kept in `experiments/results/in-the-box`, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from leaderboard import CASES, TIMES

import gridtnp as gt
from gridtnp.amortised.weights import load, pretrained
from gridtnp.evaluation.baselines import default_baselines
from gridtnp.files import write_text
from gridtnp.pretrain.__main__ import main as pretrain
from gridtnp.pretrain.held_out import TEST_SEED, references, scores
from gridtnp.training.run_folder import commit

RESULTS, RUNS = Path("experiments/results/in-the-box"), Path("runs/in-the-box")
SAO = ("sao-temperature", "sao-dew-point", "sao-pressure")
REAL = ("colorado-tmax", "colorado-tmin", "noaa-tmax", "noaa-dew-point", *SAO, "era5-uk")

TUNED: dict[str, tuple[float, dict[str, Any]]] = {
    "pretrained-1min": (1, {"start": "pretrained"}),
    "random-10min": (10, {"prior": "none"}),
}
"""Minutes of training and options of `for_data`."""

SIZES = {"small": ("--dim", "16", "--layers", "1"), "packaged": ("--dim", "64", "--layers", "2")}
SCALING = ("--fresh", "--ema", "0.98", "--validate-every", "50", "--steps")
"""Arguments of `python -m gridtnp.pretrain`."""


def synthetic(observed: list[int], tasks: int) -> None:
    """Log-likelihoods beside the fitted process and the exact posterior, 64 tasks of each kind."""
    for n in observed:
        known = references(TEST_SEED, [n], tasks, RESULTS / f"references-{n}.jsonl")
        found = scores(pretrained(), TEST_SEED, known)
        rows = []
        for kind in dict.fromkeys(r.kind for r in known):
            own = [(r, s) for r, s in zip(known, found, strict=True) if r.kind == kind]
            gaps = [s - r.fitted for r, s in own]
            exact = [r.exact - s for r, s in own if r.exact == r.exact]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
            rows.append(
                {
                    "kind": kind,
                    "observations": n,
                    "tasks": len(own),
                    "log_likelihood": statistics.mean(s for _, s in own),
                    "fitted": statistics.mean(r.fitted for r, _ in own),
                    "gain": statistics.mean(gaps),
                    "gain_standard_error": error,
                    "median_gain": statistics.median(gaps),
                    "exact_gap": statistics.mean(exact) if exact else None,
                }
            )
            print(
                f"{n:5d} {kind:20s} {rows[-1]['gain']:+.3f} ± {error:.3f} against fitted "
                f"(median {rows[-1]['median_gain']:+.3f}), "
                f"{rows[-1]['exact_gap'] or 0:.3f} to exact",
                flush=True,
            )
        _write(f"synthetic-{n}.json", rows)


def real(folder: Path, names: list[str]) -> None:
    """Scores beside kriging that was fitted to the training part."""
    for name in names:
        try:
            case = CASES[name](folder)
        except FileNotFoundError as error:
            print(f"{name}: left out, {error.filename or error}")
            continue
        train, _, test = case.data.split(**case.split)
        model = gt.GriddedTNP.for_data(
            train, "tiny", quiet=True
        )  # untrained: says what the task is
        rivals = [r for r in default_baselines(model.spec, test) if r != "bilinear"]
        table: Any = model.evaluate(test, ["pretrained", *rivals], limit=TIMES).to_dataframe()
        table = table[table["forecast"] != "model"]
        rows = json.loads(table.to_json(orient="records"))
        for row in rows:
            print(
                f"{name:16s} {row['forecast']:20s} CRPS {row['crps']:.4f} RMSE {row['rmse']:.4f} "
                f"log-likelihood {row['log_likelihood']:.3f} 90 % hold {row['coverage_90']:.3f}",
                flush=True,
            )
        _write(f"{name}.json", rows)


def tuned(folder: Path, names: list[str], shared: float) -> None:
    """A minute from the pretrained process beside ten from random weights, without kriging.

    `shared` is how many times as long the clock takes as the processor, if others use it, too.
    """
    for name in names:
        case = CASES[name](folder)
        train, val, test = case.data.split(**case.split)
        for what, (minutes, options) in TUNED.items():
            path = f"tuned/{name}-{what}.json"
            if (RESULTS / path).exists():
                continue
            out, clock = RUNS / f"{name}-{what}", (time.perf_counter(), time.process_time())
            model = gt.GriddedTNP.for_data(train, "tiny", quiet=True, **options)
            model.fit(
                train, val, minutes=shared * minutes, out=out, resume=out.exists(), quiet=True
            )
            spent = (time.perf_counter() - clock[0], time.process_time() - clock[1])
            table: Any = model.evaluate(test, [], limit=TIMES).to_dataframe()
            rows = json.loads(table.to_json(orient="records"))
            print(f"{name:16s} {what:16s} CRPS {rows[0]['crps']:.4f}, {spent[0]:.0f} s", flush=True)
            _write(path, rows, seconds=spent[0], processor_seconds=spent[1])


def scaling(steps: int) -> None:
    """Gains on held-out tasks during pretraining from random weights."""
    rows = []
    for name, size in SIZES.items():
        out = RUNS / f"scaling-{name}"
        pretrain(["--out", str(out), *SCALING, str(steps), *size])
        rows += [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    _write("scaling.json", rows)


def _write(name: str, rows: list[dict[str, Any]], **facts: float) -> None:
    about = load()[1]
    origin = {
        "commit": commit(),
        "weights": {k: about[k] for k in ("steps", "held_out", "commit") if k in about},
        "machine": f"{platform.machine()} {platform.system()}",
        "threads": torch.get_num_threads(),
    }
    write_text(RESULTS / name, json.dumps(origin | facts | {"rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=["synthetic", "real", "tuned", "scaling"])
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the other data")
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(REAL))
    parser.add_argument("--observations", nargs="*", type=int, default=[20, 60, 200, 600])
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=600, help="of each size, for scaling")
    parser.add_argument(
        "--shared", type=float, default=1.0, help="minutes of the clock by the processor's"
    )
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.part == "synthetic":
        synthetic(options.observations, options.tasks)
    elif options.part == "real":
        real(options.data, options.only)
    elif options.part == "tuned":
        tuned(options.data, options.only, options.shared)
    else:
        scaling(options.steps)


if __name__ == "__main__":
    main()
