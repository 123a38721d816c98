"""Report of the experiment: a table of all rows with the exact posterior, and figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gridtnp.reproduce.gp import NAMES, configuration, load_row, measure_times, scale_of, unseen
from gridtnp.synthetic.processes import SOURCE, SyntheticBatch
from gridtnp.task import PointSet, Task

MARKS = {"swin": "s", "vitnp": "^", "convcnp": "D"}
"""Marker of each model family in a figure."""


def write_report(out: Path) -> list[Path]:
    """Write `table.md` from the results in a folder, and figures if matplotlib is installed.

    Forward passes of all rows are timed first.
    """
    measure_times(out)
    results = [json.loads(p.read_text()) for p in sorted(out.glob("*/result.json"))]
    if not results:
        raise ValueError(f"No results in {str(out)!r}; train a row first.")
    larger = [json.loads(p.read_text()) for p in sorted(out.glob("*/larger-*.json"))]
    table = out / "table.md"
    table.write_text(_table(results, larger))
    try:
        import matplotlib
    except ImportError:
        return [table]
    matplotlib.use("Agg")
    paths = [table]
    for data in sorted({r["data"] for r in results}):
        rows = [r for r in results if r["data"] == data]
        suffix = "" if data == "exact" else f"-{data}"
        paths.append(_tradeoff(rows, out / f"tradeoff{suffix}.png"))
        paths += _fields(rows, out, suffix)
    return paths


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over tasks, and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def gap(result: dict[str, Any]) -> tuple[float, float]:
    """Mean difference to the exact posterior in log-likelihood, and its standard error."""
    pairs = zip(result["oracle"], result["log_likelihood"], strict=True)
    return mean_and_error([best - found for best, found in pairs])


def _table(results: list[dict[str, Any]], larger: list[dict[str, Any]]) -> str:
    lines = []
    for data, length_scale in sorted({(r["data"], r["length_scale"]) for r in results}):
        rows = [r for r in results if (r["data"], r["length_scale"]) == (data, length_scale)]
        scale = scale_of(rows[0])
        lines += [
            f"ℓ = {length_scale:g}, {data} samples, {scale.context:,} context points on "
            f"[-{scale.half:g}, {scale.half:g}]², {scale.tests} test tasks:",
            "",
            "| model | log-likelihood | gap to exact | forward, ms | parameters | minutes |",
            "| --- | --- | --- | --- | --- | --- |",
            "| exact posterior | {:.3f} ± {:.3f} | 0 | | | |".format(
                *mean_and_error(rows[0]["oracle"])
            ),
        ]
        for r in sorted(rows, key=gap):
            found, gaps = mean_and_error(r["log_likelihood"]), gap(r)
            lines.append(
                f"| {NAMES[r['row']]} | {found[0]:.3f} ± {found[1]:.3f} | "
                f"{gaps[0]:.3f} ± {gaps[1]:.3f} | {r['forward_ms']:.0f} | "
                f"{r['parameters'] / 1e6:.2f} M | {r['minutes']:.0f} |"
            )
        lines.append("")
    if larger:
        lines += [
            "Trained as above, used on larger squares without training again:",
            "",
            "| model | ℓ | square | context points | log-likelihood | exact | gap |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for r in sorted(larger, key=lambda r: (r["row"], -r["length_scale"], r["half"])):
            gaps = gap(r)
            lines.append(
                f"| {NAMES[r['row']]} | {r['length_scale']:g} | [-{r['half']:g}, {r['half']:g}]² | "
                f"{r['context']:,} | {mean_and_error(r['log_likelihood'])[0]:.3f} | "
                f"{mean_and_error(r['oracle'])[0]:.3f} | {gaps[0]:.3f}"
                + (f" ± {gaps[1]:.3f} |" if len(r["oracle"]) > 1 else " (one task) |")
            )
        lines.append("")
    commands = sorted({f"{r['command']} (at {r['commit']})" for r in [*results, *larger]})
    return "\n".join([*lines, "Made by:", "", *(f"- `{c}`" for c in commands), ""])


def _tradeoff(results: list[dict[str, Any]], path: Path) -> Path:
    """Gap to the exact posterior against forward time, smallest gaps on top."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

    scales = sorted({r["length_scale"] for r in results}, reverse=True)
    figure, axes = plt.subplots(
        1, len(scales), figsize=(7.5 * len(scales), 4.2), squeeze=False, layout="constrained"
    )
    for ax, length_scale in zip(axes[0], scales, strict=True):
        rows = sorted((r for r in results if r["length_scale"] == length_scale), key=gap)
        for number, r in enumerate(rows):
            found, error = gap(r)
            ax.errorbar(
                r["forward_ms"],
                found,
                2 * error,
                fmt=MARKS.get(r["row"].split("-")[0], "o"),
                color=f"C{number}",
                markersize=8,
                label=f"{found:.3f}  {NAMES[r['row']]}",
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.invert_yaxis()
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_locator(NullLocator())
        ax.margins(0.1)
        ax.set_title(f"ℓ = {length_scale:g}")
        ax.set_xlabel("forward pass, ms")
        ax.set_ylabel("gap to the exact posterior, nats")
        ax.grid(alpha=0.3, which="both")
        ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


@torch.no_grad()
def _fields(results: list[dict[str, Any]], out: Path, suffix: str) -> list[Path]:
    """Predictive means and standard deviations on one test task, the exact ones first."""
    import matplotlib.pyplot as plt

    paths = []
    for length_scale in sorted({r["length_scale"] for r in results}):
        rows = [r for r in results if r["length_scale"] == length_scale]
        if rows[0]["data"] != "exact":
            continue
        scale = scale_of(rows[0])
        (test,) = unseen(scale.process(length_scale, "exact"), 1)
        size = 96
        axis = torch.linspace(-scale.half, scale.half, size)
        at = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).flatten(0, 1)
        task = Task(test.task.context, PointSet(at.unsqueeze(0)))
        panels = [("exact posterior", SyntheticBatch(task, test.kernels, test.noise).posterior())]
        for r in sorted(rows, key=gap)[:3]:
            folder = out / f"{r['row']}-{length_scale:g}-exact"
            model = load_row(configuration(r["row"], scale), folder)
            panels.append((NAMES[r["row"]], model(task)))
        figure, axes = plt.subplots(
            2, len(panels), figsize=(3.2 * len(panels), 6.2), squeeze=False, layout="constrained"
        )
        edge = (-scale.half, scale.half) * 2
        context = test.task.context[SOURCE]
        std = panels[0][1].stddev
        limits = {
            "mean": (-2.5, 2.5),
            "std": (0.0, float(torch.quantile(std, 0.98)) * 1.5),
        }
        for column, (name, predicted) in enumerate(panels):
            values = {"mean": predicted.mean, "std": predicted.stddev}
            for line, (what, value) in enumerate(values.items()):
                ax = axes[line][column]
                low, high = limits[what]
                picture = ax.imshow(
                    value.view(size, size).T.numpy(),
                    origin="lower",
                    extent=edge,
                    vmin=low,
                    vmax=high,
                    cmap="RdBu_r" if what == "mean" else "viridis",
                )
                ax.set_xticks([])
                ax.set_yticks([])
                if line == 0:
                    ax.set_title(name, fontsize=9)
                if column == 0:
                    ax.set_ylabel(f"predictive {what}")
                if column == len(panels) - 1:
                    figure.colorbar(picture, ax=axes[line], shrink=0.8)
        axes[1][0].plot(*context.x[0].T.numpy(), ".", color="white", markersize=0.6, alpha=0.5)
        path = out / f"fields-{length_scale:g}{suffix}.png"
        figure.savefig(path, dpi=150)
        plt.close(figure)
        paths.append(path)
    return paths
