"""The command `python -m gridtnp.pretrain`.

python -m gridtnp.pretrain --out runs/pretrain

trains the model in the package further, or the run in the folder if there is one. It can be stopped
at any moment and continued on another machine with the folder, or with the package's weights alone.
Progress is measured on held-out tasks and kept in `history.jsonl`; the best weights are written to
`weights.safetensors` in the folder, to be copied into the package. `--fresh --dim 128` starts a
network of another size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from gridtnp.amortised.network import Interpolator
from gridtnp.amortised.weights import WEIGHTS, keep, load
from gridtnp.files import read_tensors
from gridtnp.pretrain.fields import training_tasks
from gridtnp.pretrain.held_out import VALIDATION_SEED, InterpolatorProcess, references, tasks_of
from gridtnp.recipes import Recipe
from gridtnp.training.checkpoints import CheckpointFiles, weights_of
from gridtnp.training.loop import Progress, train
from gridtnp.training.run_folder import commit

VALIDATED = ((20, 3), (60, 3), (200, 3), (600, 1))
"""Numbers of observations, and tasks of each kind, to validate on."""


def main(
    arguments: Sequence[str] | None = None, program: str = "python -m gridtnp.pretrain"
) -> None:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Pretrain the model that interpolates without training, on synthetic fields.",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/pretrain"))
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--schedule", choices=["constant", "cosine"], default="constant")
    parser.add_argument("--ema", type=float, default=0.998)
    parser.add_argument("--validate-every", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="of the training tasks")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="start from random weights")
    parser.add_argument("--dim", type=int, default=64, help="width of tokens, if fresh")
    parser.add_argument("--layers", type=int, default=2, help="layers of attention, if fresh")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    fresh = Interpolator(options.dim, layers=options.layers) if options.fresh else None
    network, before = _start(options.out, fresh)
    parameters = sum(p.numel() for p in network.parameters())
    recipe = Recipe(
        options.steps,
        rate=options.rate,
        schedule=options.schedule,
        optimiser="muon",
        ema=options.ema,
        validate_every=options.validate_every,
    )
    console, files = Console(), CheckpointFiles.in_folder(options.out)
    known = [
        r
        for observed, number in VALIDATED
        for r in references(VALIDATION_SEED, [observed], number, options.out / "validation.jsonl")
    ]
    fitted = statistics.mean(r.fitted for r in known)
    gain = statistics.mean(r.exact - r.fitted for r in known if r.exact == r.exact)

    def report(p: Progress) -> None:
        line = f"{p.step:>7,}  loss {p.loss:7.3f}  {p.seconds / 60:6.1f} min"
        if p.validation is not None:
            line += (
                f"  held-out {p.validation:.3f}: {p.validation - fitted:+.3f} against the fitted "
                f"process (exact posterior, where known: {gain:+.3f})"
            )
            about = {"steps": before + p.step, "minutes": p.seconds / 60, "parameters": parameters}
            scores = {"held_out": p.validation, "against_fitted": p.validation - fitted}
            with (options.out / "history.jsonl").open("a") as file:
                print(json.dumps(about | scores), file=file)
            if p.validation == p.best:
                held = weights_of(read_tensors(files.best)[0])
                tensors = {name.removeprefix("network."): held[name] for name in held}
                facts = {
                    "steps": str(before + p.step),
                    "held_out": f"{p.validation:.4f}",
                    "against_fitted": f"{p.validation - fitted:+.4f}",
                    "commit": commit(),
                    "command": " ".join([program, *sys.argv[1:]]),
                }
                keep(options.out / "weights.safetensors", network, tensors, facts)
        console.print(line, highlight=False, soft_wrap=True)

    train(
        InterpolatorProcess(network),
        lambda start: training_tasks(options.seed, start + before),
        recipe,
        files,
        validation=[tasks_of(VALIDATION_SEED, r.kind, r.observed, r.number).task for r in known],
        report=report,
        report_every=100,
        save_every=100,
    )


def _start(folder: Path, fresh: Interpolator | None) -> tuple[Interpolator, int]:
    """The network to train, and the steps that it had before this run, which the folder keeps."""
    network, before, record = fresh or Interpolator(), 0, folder / "steps_before.txt"
    if WEIGHTS.exists() and fresh is None:
        network, about = load()
        network.requires_grad_(True)
        before = int(about["steps"])
    if record.exists():
        return network, int(record.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    record.write_text(f"{before}\n")
    return network, before


if __name__ == "__main__":
    main()
