"""This library and another implementation, timed in turns in one run: `run.py --against FOLDER`.

The folder has a file `implementation.py` with two functions, `forward(name)` and `step(name)`. Each
prepares a preset by its name, with random data of the sizes that `cases.task_for` makes, and
returns a function without arguments: one forward pass without gradients, or one training step. It
raises `NotImplementedError` for presets that it does not have.

Either side has a process of its own for each preset. While one computes, the other waits.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TURNS = 5


class Side:
    """A process that runs one pass whenever it is told to."""

    def __init__(self, folder: Path | None, what: str, preset: str) -> None:
        command = [sys.executable, __file__, str(folder or ""), what, preset]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)

    def turn(self) -> dict[str, Any]:
        """Seconds of one pass, and the peak of memory above that of the imports in GB."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"ended with exit status {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Medians of both sides for each preset that the other one has."""
    if not (folder / "implementation.py").is_file():
        raise SystemExit(f"{folder} has no file implementation.py; see the top of {__file__}.")
    results: dict[str, Any] = {}
    for name in names:
        row: dict[str, Any] = {}
        for what in ("forward", "step"):
            sides = {"ours": Side(None, what, name), "theirs": Side(folder, what, name)}
            try:
                turns = [{s: side.turn() for s, side in sides.items()} for _ in range(TURNS + 1)]
            except RuntimeError as reason:
                print(f"  {name}: {reason}")
                break
            finally:
                for side in sides.values():
                    side.end()
            row[what] = {
                s: {k: statistics.median(t[s][k] for t in turns[1:]) for k in ("seconds", "gb")}
                for s in sides
            }
        else:
            results[name] = row
    return results


def show(results: dict[str, Any]) -> None:
    print(f"\n{'preset':<38}{'forward s':>20}{'times':>7}{'step s':>20}{'times':>7}{'memory':>8}")
    for name, row in results.items():
        line = f"{name:<38}"
        for what in ("forward", "step"):
            ours, theirs = (row[what][side]["seconds"] for side in ("ours", "theirs"))
            line += f"{f'{theirs:.3f} / {ours:.3f}':>20}{theirs / ours:>7.1f}"
        ours, theirs = (row["step"][side]["gb"] for side in ("ours", "theirs"))
        print(line + (f"{ours / theirs:>8.2f}" if theirs else ""))


def prepared(folder: str, what: str, name: str) -> Callable[[], Any]:
    if folder:
        sys.path.insert(0, folder)
        return getattr(importlib.import_module("implementation"), what)(name)
    import cases
    import torch

    import gridtnp as gt

    network, task = gt.build_model(gt.preset(name)), cases.task_for(name)
    if what == "step":
        return cases.training_step(network, task)
    return torch.no_grad()(lambda: network(task))


def main(folder: str, what: str, name: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever the other one prints
    import torch
    from cases import peak_gb

    torch.manual_seed(0)
    before = peak_gb()
    run = prepared(folder, what, name)
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        record = {"seconds": time.perf_counter() - start, "gb": peak_gb() - before}
        print(json.dumps(record), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
