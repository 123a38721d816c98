"""Report on Gaussian processes: a table of all rows with the exact posterior, and figures."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import torch

from gridtnp.reproduce.conclusions import judge
from gridtnp.reproduce.figures import Mark, new_figure, tradeoff
from gridtnp.reproduce.gp import GP, NAMES, configuration, scale_of, unseen
from gridtnp.reproduce.rows import Result, load_row, measure_times
from gridtnp.reproduce.tables import made_by, markdown, mean_and_error, number, paired
from gridtnp.synthetic.processes import SOURCE, SyntheticBatch
from gridtnp.task import PointSet, Task

CHECKPOINT = "checkpoint.safetensors"


def write_report(out: Path) -> list[Path]:
    """Write `table.md` from the results in a folder, and figures if matplotlib is installed.

    Forward passes of all rows are timed first.
    """
    results = measure_times(out, GP.of)
    larger = [json.loads(p.read_text()) for p in sorted(out.glob("*/larger-*.json"))]
    table = out / "table.md"
    table.write_text(_table(results, larger))
    if find_spec("matplotlib") is None:
        return [table]
    paths = [table]
    for data in sorted({r["data"] for r in results}):
        rows = [r for r in results if r["data"] == data]
        suffix = "" if data == "exact" else f"-{data}"
        paths.append(_tradeoff(rows, out / f"tradeoff{suffix}.png"))
        paths += _fields(rows, out, suffix)
    return paths


def gap(result: Result) -> tuple[float, float]:
    """Mean difference to the exact posterior in log-likelihood, and its standard error."""
    return paired(result["oracle"], result["log_likelihood"])


def label(result: Result) -> str:
    """The model of a result, and its seed if it is not the first."""
    return NAMES[result["row"]] + f", seed {result['seed']}" * bool(result.get("seed"))


def _score(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.3f}"


def _table(results: list[Result], larger: list[Result]) -> str:
    lines = []
    for data, length_scale in sorted({(r["data"], r["length_scale"]) for r in results}):
        rows = [r for r in results if (r["data"], r["length_scale"]) == (data, length_scale)]
        scale = scale_of(rows[0])
        lines += [
            f"ℓ = {length_scale:g}, {data} samples, {scale.context:,} context points on "
            f"[-{scale.half:g}, {scale.half:g}]², {scale.tests} test tasks:",
            "",
        ]
        heads = ["model", "log-likelihood", "gap to exact", "forward, ms", "parameters", "minutes"]
        body = [["exact posterior", number(*mean_and_error(rows[0]["oracle"])), "0", *[""] * 3]]
        for r in sorted(rows, key=gap):
            found = number(*mean_and_error(r["log_likelihood"]))
            own = [f"{r['forward_ms']:.0f}", f"{r['parameters'] / 1e6:.2f} M"]
            body.append([label(r), found, number(*gap(r)), *own, f"{r['minutes']:.0f}"])
        lines += [*markdown(heads, body), ""]
        lines += [
            "The paper's conclusions, by differences in log-likelihood on the same tasks:",
            "",
        ]
        lines += [*judge("gp", rows, [r["log_likelihood"] for r in rows]), ""]
        tried = [r for r in rows if r.get("rates")]
        if tried:
            lines += ["Learning rates, by the log-likelihood of validation tasks:", ""]
            rates = sorted({rate for r in tried for rate in r["rates"]}, key=float)
            scores = [
                [label(r), *(_score(r["rates"].get(rate)) for rate in rates)]
                for r in tried
                if not r["seed"]
            ]
            lines += [*markdown(["model", *rates], scores), ""]
    if larger:
        lines += ["Trained as above, used on larger squares without training again:", ""]
        heads = ["model", "ℓ", "square", "context points", "log-likelihood", "exact", "gap"]
        body = []
        for r in sorted(larger, key=lambda r: (r["row"], -r["length_scale"], r["half"])):
            gaps = gap(r)
            alone = len(r["oracle"]) == 1
            where = [f"{r['length_scale']:g}", f"[-{r['half']:g}, {r['half']:g}]²"]
            means = [f"{mean_and_error(r[k])[0]:.3f}" for k in ("log_likelihood", "oracle")]
            found = f"{gaps[0]:.3f} (one task)" if alone else number(*gaps)
            body.append([NAMES[r["row"]], *where, f"{r['context']:,}", *means, found])
        lines += [*markdown(heads, body), ""]
    return "\n".join([*lines, *made_by([*results, *larger])])


def _tradeoff(results: list[Result], path: Path) -> Path:
    """Gap to the exact posterior against forward time, smallest gaps on top."""
    scales = sorted({r["length_scale"] for r in results}, reverse=True)
    panels = {
        f"ℓ = {length_scale:g}": [
            Mark(r["row"], f"{gap(r)[0]:.3f}  {label(r)}", r["forward_ms"], *gap(r))
            for r in sorted(results, key=gap)
            if r["length_scale"] == length_scale
        ]
        for length_scale in scales
    }
    return tradeoff(panels, "gap to the exact posterior, nats", path, gaps=True)


@torch.no_grad()
def _fields(results: list[Result], out: Path, suffix: str) -> list[Path]:
    """Predictive means and standard deviations on one test task, the exact ones first."""
    paths = []
    for length_scale in sorted({r["length_scale"] for r in results}):
        rows = [r for r in results if r["length_scale"] == length_scale and not r.get("seed")]
        rows = [r for r in rows if (out / GP.of(r).name_of(r["row"]) / CHECKPOINT).exists()]
        if not rows or rows[0]["data"] != "exact":
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
        figure, axes = new_figure(2, len(panels), (3.2, 3.1))
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
        figure.savefig(path)
        paths.append(path)
    return paths
