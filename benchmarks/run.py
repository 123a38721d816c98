"""All benchmarks, each in a fresh process, into a folder of `benchmarks/results/`: `make bench`.

There is a folder for each width of vectors, as C and PyTorch differ in what they gain from it. With
one thread, times are those of the processor, which other work on the machine changes little.

python benchmarks/run.py [models | ops | sizes | profile] [--only TEXT] [--minutes M]

repeats some of them and merges the results into the existing files. After 20 minutes no more cases
are started; those left out are named.

python benchmarks/run.py --against FOLDER [--only TEXT]

times another implementation in turns with this one; see `against.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import against
import torch

import gridtnp as gt
from gridtnp import ops, processor
from gridtnp.ops import native
from gridtnp.reproduce.gp import commit

HERE = Path(__file__).parent
# The research code of the paper's authors at batch size 1, on two idle cores with products at
# 300 GFLOP/s: seconds of a forward pass, seconds of a training step, GB of a training process.
AUTHORS = {
    "gp/swin-tnp-pt-64x64": (0.279, 1.018, 0.81),
    "gp/swin-tnp-pt-32x32": (0.140, 0.376, 0.38),
    "gp/swin-tnp-ki-64x64": (0.218, 0.584, 0.60),
    "gp/swin-tnp-avg-64x64": (0.209, 0.595, 0.62),
    "gp/vitnp-pt-32x32": (0.138, 0.390, 0.30),
    "gp/vitnp-pt-64x64-to-32x32": (0.186, 0.508, 0.45),
    "gp/convcnp-64x64": (0.313, 0.787, 0.32),
    "gp/pt-tnp-256": (0.212, 0.654, 0.35),
    "gp/cnp": (0.028, 0.069, 0.11),
    "stations/swin-tnp-pt-64x128": (1.286, 2.977, 2.55),
    "stations/swin-tnp-ki-64x128": (1.352, 2.699, 2.25),
    "stations/vitnp-pt-48x96": (1.480, 4.289, 2.01),
    "stations/swin-tnp-pt-192x384": (4.937, 12.26, 6.46),
    "wind/swin-tnp-multi-pt-24x60": (4.604, 16.95, 9.70),
    "wind/swin-tnp-single-pt-24x60": (4.296, 12.69, 9.26),
    "wind/swin-tnp-multi-ki-24x60": (4.105, 13.33, 9.00),
    "wind/vitnp-multi-pt-12x30": (3.975, 11.11, 8.44),
    "wind/swin-tnp-multi-pt-48x120": (5.840, 20.32, 13.0),
}
AUTHORS_SGEMM = 300.0


DEADLINE = [math.inf]
"""When no more cases are started, on the clock of `time.monotonic`."""


def measure(*case: str) -> dict[str, Any] | None:
    """Result of one case in a fresh process, or its error; None if there is no time left."""
    if time.monotonic() > DEADLINE[0]:
        print(f"  {' '.join(case):<70} left out")
        return None
    command = [sys.executable, str(HERE / "cases.py"), *case]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"  {' '.join(case):<70} {time.perf_counter() - start:6.1f} s", flush=True)
    if done.returncode == 0:
        return json.loads(done.stdout.strip().splitlines()[-1])
    lines = done.stderr.strip().splitlines()
    return {"failed": lines[-1] if lines else f"ended by signal {-done.returncode}"}


def models(only: str) -> dict[str, Any]:
    results: dict[str, Any] = {}
    names = [n for n in gt.PRESETS if only in n]
    for name in sorted(names, key=lambda n: n not in AUTHORS):
        repeats = "3" if name in AUTHORS else "1"
        row = measure("model", name, repeats)
        if row is None:
            continue
        if name in AUTHORS and "failed" not in row:
            times = zip(AUTHORS[name][:2], (row["forward"], row["step"]), strict=True)
            row["times_faster_than_authors"] = [
                their * AUTHORS_SGEMM / ours["gflops_sgemm"] / ours["seconds"]
                for their, ours in times
            ]
            row["memory_of_authors"] = row["step"]["gb"] / AUTHORS[name][2]
        results[name] = row
        write(
            f"{folder()}/models.json", {name: row}
        )  # so that an interrupted run keeps its results
    return results


def operations(only: str) -> dict[str, Any]:
    cases: dict[str, tuple[str, ...]] = {}
    for name, table in ops.BACKENDS.items():
        for size in ("gp", "stations", "wind"):
            for backend in (b.name for b in table if b.name not in ("reference", "recomputed")):
                cases[f"{name}/{size}/{backend}"] = ("op", name, backend, size)
    for backend in ("native", "segment"):
        for crowd in ("0", "0.1"):
            cases[f"crowding/{backend}/{crowd}"] = ("encoder", "100000", crowd, backend)
    for n in (10**4, 10**5, 10**6, 10**7):
        cases[f"encode/{n}"] = ("encode", str(n), "0")
    cases["targets/1000000"] = ("targets", "1000000")
    cases["loop/1000"] = ("loop", "1000")
    return all_of(cases, only)


def all_of(cases: dict[str, tuple[str, ...]], only: str) -> dict[str, Any]:
    """Results by name of the cases whose name contains `only`."""
    found = {name: measure(*case) for name, case in cases.items() if only in name}
    return {name: row for name, row in found.items() if row is not None}


def sizes(only: str) -> dict[str, Any]:
    """Ratios of PyTorch's time to that of C by rows and width, for the default back-end."""
    return all_of({width: ("sizes", width) for width in ("32", "64", "128", "256")}, only)


def profiles(only: str) -> dict[str, Any]:
    """Profiles of the presets in docs/performance.md."""
    names = ("gp/swin-tnp-pt-64x64", "stations/swin-tnp-pt-64x128", "wind/swin-tnp-multi-pt-24x60")
    return all_of({name: ("profile", name) for name in names}, only)


def folder() -> str:
    """The folder of this processor's results."""
    return {256: "avx2", 512: "avx512"}.get(native.vector_bits() or 0, "other")


def write(name: str, results: dict[str, Any]) -> dict[str, Any]:
    path = HERE / "results" / name
    before = json.loads(path.read_text())["results"] if path.exists() else {}
    merged = before | {key: {**row, "commit": commit()} for key, row in results.items()}
    record = {
        "made_by": f"python benchmarks/{Path(sys.argv[0]).name}",
        "machine": f"{processor.name()} ({platform.machine()}), {torch.get_num_threads()} threads, "
        f"{native.vector_bits()}-bit vectors, torch {torch.__version__}",
        "results": dict(sorted(merged.items())),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record["results"]


def show_models(results: dict[str, Any]) -> None:
    print(
        f"\n{'preset':<38}{'forward s':>10}{'share':>7}{'step s':>9}{'share':>7}{'GB':>6}   "
        "against the authors' code (times scaled by matrix-multiply speed)"
    )
    for name, row in results.items():
        if "failed" in row:
            print(f"{name:<38}  failed: {row['failed']}")
            continue
        f, s = row["forward"], row["step"]
        line = f"{name:<38}"
        for part, width in ((f, 10), (s, 9)):
            line += f"{part['seconds']:>{width}.3f}{part['share']:>7.0%}"
        line += f"{s['gb']:>6.2f}"
        if "times_faster_than_authors" in row:
            fast, trained = row["times_faster_than_authors"]
            memory = row["memory_of_authors"]
            line += f"   {fast:.1f}x forward, {trained:.1f}x step, {memory:.2f} of the memory"
        print(line)


def show_operations(results: dict[str, Any]) -> None:
    print(f"\n{'op':<44}{'ms':>10}{'with backward':>15}{'GB':>7}{'padded takes':>20}")
    for name, row in results.items():
        if "failed" in row:
            print(f"{name:<44}  failed: {row['failed']}")
            continue
        backward = row.get("seconds_with_backward")
        both = f"{backward * 1e3:>15.2f}" if backward else " " * 15
        memory = f"{row['gb']:>7.2f}" if "gb" in row else " " * 7
        padded = results.get(name.rpartition("/")[0] + "/padded", {})
        more = [
            padded[key] / row[key]
            for key in ("seconds", "seconds_with_backward")
            if key in padded and not name.endswith("/padded")
        ]
        ratio = f"{more[0]:>10.1f}x {more[1]:>7.1f}x" if more else ""
        print(f"{name:<44}{row['seconds'] * 1e3:>10.2f}{both}{memory}{ratio}")
    sizes = [n for n in (10**4, 10**5, 10**6, 10**7) if "seconds" in results.get(f"encode/{n}", {})]
    for small, large in itertools.pairwise(sizes):
        a, b = (results[f"encode/{n}"] for n in (small, large))
        work = b["seconds"] * b["gflops_sgemm"] / a["seconds"] / a["gflops_sgemm"]
        print(f"growth from {small:.0e} to {large:.0e} points: exponent {math.log10(work):.2f}")


def show_sizes(results: dict[str, Any]) -> None:
    print(f"\n{'width/steps/rows':<44}{'inference':>10}{'training':>10}   times as fast in C")
    for width, row in results.items():
        for name, ratio in row.items():
            if isinstance(ratio, dict):
                print(f"{f'{width}/{name}':<44}{ratio['inference']:>10}{ratio['training']:>10}")


def show_profiles(results: dict[str, Any]) -> None:
    for name, row in results.items():
        if "failed" in row:
            print(f"{name}  failed: {row['failed']}")
            continue
        print(f"\n{name:<44}{'forward':>10}{'step':>10}")
        for part, share in row["forward"].items():
            print(f"  {part:<42}{share:>10.0%}{row['step'][part]:>10.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=["models", "ops", "sizes", "profile"], help="default: all"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--minutes", type=float, default=20.0, help="start no case after these")
    parser.add_argument("--against", type=Path, help="a folder with another implementation")
    arguments = parser.parse_args()
    DEADLINE[0] = time.monotonic() + 60 * arguments.minutes
    if arguments.against:
        names = [n for n in AUTHORS if arguments.only in n]
        rows = against.compare(arguments.against, names)
        against.show(write(f"{folder()}/against.json", rows))
        return
    what = [arguments.what] if arguments.what else ["models", "ops", "sizes", "profile"]
    if "profile" in what:
        show_profiles(write(f"{folder()}/profile.json", profiles(arguments.only)))
    if "ops" in what:
        show_operations(write(f"{folder()}/ops.json", operations(arguments.only)))
    if "sizes" in what:
        show_sizes(write(f"{folder()}/sizes.json", sizes(arguments.only)))
    if "models" in what:
        show_models(write(f"{folder()}/models.json", models(arguments.only)))


if __name__ == "__main__":
    main()
