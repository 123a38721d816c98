"""Figures of the weather experiments, in the paper's layout.

Maps of errors and histograms of normalised errors for three models side by side, arrows of wind
errors coloured by direction, the wind itself, and the density of stations.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gridtnp import demo
from gridtnp.evaluation.scores import CALIBRATED
from gridtnp.reproduce.figures import new_figure
from gridtnp.reproduce.rows import Result
from gridtnp.reproduce.weather import MAIN, Weather
from gridtnp.sources.coordinates import wrap

if TYPE_CHECKING:  # full names, so that annotations can be resolved
    import matplotlib.axes
    import matplotlib.figure

BESIDE = ("convcnp", "pt-tnp")
"""Models that the paper's figures show beside its own."""
UNITED_STATES = (-130.0, -62.0), (23.0, 51.0)
MOST = 15
"""Stations of a patch at which the colours of the density end, as in the paper."""
Example = dict[str, np.ndarray]


def draw_figures(experiment: Weather, results: list[Result], out: Path) -> list[Path]:
    """All figures for which there are examples in the folder."""
    found = {
        experiment.label(r["row"]): dict(np.load(out / r["row"] / "example.npz"))
        for r in _shown(results, MAIN[experiment.table])
        if (out / r["row"] / "example.npz").exists()
    }
    if not found:
        return []
    if experiment.table == "wind":
        names = [n[1:].lstrip("_") for n in experiment.parts[0].target_names[::2]]
        pairs = [slice(2 * i, 2 * i + 2) for i in range(len(names))]
        levels = [f"{n} hPa" if n.isdigit() and int(n) > 100 else f"{n} m" for n in names]
        drawn = {
            "wind": _wind(next(iter(found.values())), levels),
            "errors": _arrows(found, levels),
            "histograms": _histograms(found, pairs, levels),
        }
    else:
        assert experiment.sites is not None
        lat, lon = experiment.sites
        drawn = {
            "errors": _error_maps(found, None),
            "histograms": _histograms(found, [slice(None)], [""]),
            "density": _density(lat, wrap(lon)),
        }
        one = next(iter(found.values()))
        if _inside(one["lat"], wrap(one["lon"])).sum() > 20:
            drawn["errors-us"] = _error_maps(found, UNITED_STATES)
    paths = []
    for name, figure in drawn.items():
        figure.savefig(out / f"{name}.png")
        paths.append(out / f"{name}.png")
    return paths


def _shown(results: list[Result], main: str) -> list[Result]:
    """The rows of the paper's figures, from left to right, as far as there are any of them."""
    first = [r for r in results if not r["seed"]]
    chosen = [r for r in first if r["row"] == main]
    for family in BESIDE:
        chosen += [r for r in first if r["row"].startswith(family)][:1]
    return chosen or first[:3]


def _coast(ax: matplotlib.axes.Axes) -> None:
    from matplotlib.collections import LineCollection

    ax.add_collection(LineCollection(demo.coastline(), colors="0.4", linewidths=0.5, zorder=1))  # pyright: ignore[reportArgumentType]
    ax.set(xticks=[], yticks=[])


def _error_maps(found: dict[str, Example], box: Any) -> matplotlib.figure.Figure:
    """Errors of the predictive means at all stations; those of the context are black."""
    rows, columns = (1, len(found)) if box else (len(found), 1)
    figure, axes = new_figure(rows, columns, (4.2, 2.7) if box else (7.5, 3.6))
    errors = [e["mean"][:, 0] - e["truth"][:, 0] for e in found.values()]
    limit = float(np.quantile(np.abs(np.concatenate(errors)), 0.98))
    points = None
    for ax, (name, e), error in zip(axes.ravel(), found.items(), errors, strict=True):
        _coast(ax)
        lon, order = wrap(e["lon"]), np.argsort(np.abs(error))
        points = ax.scatter(
            lon[order],
            e["lat"][order],
            14 if box else max(6.0, 12_000 / len(lon)),
            error[order],
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            zorder=2,
            linewidths=0,
        )
        mark = {"marker": "x", "s": 18} if box else {"marker": ".", "s": 9}
        ax.scatter(
            wrap(e["context_lon"]), e["context_lat"], c="black", zorder=3, linewidths=0.7, **mark
        )
        west, south = lon.min(), e["lat"].min()
        limits = box or ((west - 1, lon.max() + 1), (south - 1, e["lat"].max() + 1))
        ax.set(xlim=limits[0], ylim=limits[1], aspect="auto" if box is None else 1.25)
        ax.set_title(f"{name}: error", fontsize=9)
    assert points is not None
    figure.colorbar(points, ax=axes, shrink=0.8, label="predicted − true, K", extend="both")
    figure.suptitle(str(next(iter(found.values()))["time"])[:16].replace("T", " "), fontsize=9)
    return figure


def _inside(lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
    (west, east), (south, north) = UNITED_STATES
    return (lon > west) & (lon < east) & (lat > south) & (lat < north)


def _histograms(
    found: dict[str, Example], parts: list[slice], names: list[str]
) -> matplotlib.figure.Figure:
    """Normalised errors over a standard normal, and their mean log-density."""
    figure, axes = new_figure(len(parts), len(found), (3.4, 2.6), sharey=True, sharex=True)
    x = np.linspace(-4.5, 4.5, 301)
    for line, (part, level) in enumerate(zip(parts, names, strict=True)):
        for ax, (name, e) in zip(axes[line], found.items(), strict=True):
            z = ((e["truth"] - e["mean"]) / e["std"])[:, part]
            ax.hist(
                list(np.clip(z, -4.49, 4.49).T),
                np.arange(-4.5, 4.51, 0.25),
                density=True,
                histtype="stepfilled",
                alpha=0.5,
                label=["u", "v"][: z.shape[1]] if z.shape[1] > 1 else None,
            )
            ax.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color="black", linewidth=1.2)
            density = float((-0.5 * z**2 - 0.5 * np.log(2 * np.pi)).mean())
            text = f"{density:.3f}\n({CALIBRATED:.3f})".replace("-", "−")
            ax.text(0.03, 0.95, text, transform=ax.transAxes, va="top", fontsize=8)
            if line == 0:
                ax.set_title(name, fontsize=9)
            if z.shape[1] > 1:
                ax.legend(fontsize=7, frameon=False)
        axes[line][0].set_ylabel(level)
    for ax in axes[-1]:
        ax.set_xlabel("normalised error")
    return figure


def _density(lat: np.ndarray, lon: np.ndarray) -> matplotlib.figure.Figure:
    """Number of stations in patches of 1° × 1°."""
    figure, axes = new_figure(1, 1, (9.0, 4.4))
    ax = axes[0][0]
    edges = np.arange(-180, 181.0), np.arange(-90, 91.0)
    count = np.histogram2d(lon, lat, edges)[0].T
    picture = ax.pcolormesh(
        *edges, np.where(count > 0, count, np.nan), vmax=MOST, cmap="viridis", zorder=2
    )
    _coast(ax)
    low = (max(-180, lon.min() - 2), min(180, lon.max() + 2))
    ax.set(xlim=low, ylim=(max(-90, lat.min() - 2), min(90, lat.max() + 2)))
    extend = "max" if count.max() > MOST else "neither"
    figure.colorbar(picture, ax=ax, shrink=0.8, label="stations in a patch of 1°", extend=extend)
    return figure


def _colours(u: np.ndarray, v: np.ndarray, largest: float) -> np.ndarray:
    """Hue from direction, saturation and brightness from length."""
    from matplotlib.colors import hsv_to_rgb

    hue = (np.arctan2(v, u) / (2 * np.pi)) % 1
    length = np.clip(np.hypot(u, v) / largest, 0, 1)
    return hsv_to_rgb(np.stack([hue, length, 0.35 + 0.65 * length], -1))


def _panel(ax: Any, e: Example, u: np.ndarray, v: np.ndarray, largest: float) -> None:
    _coast(ax)
    lon = e["lon"]
    ax.quiver(
        lon,
        e["lat"],
        u,
        v,
        color=_colours(u, v, largest),
        scale=largest / max(np.ptp(lon) / 30, 1e-6),
        scale_units="x",
        angles="xy",
        width=0.003,
        zorder=2,
    )
    ax.set(xlim=(lon.min() - 1, lon.max() + 1), ylim=(e["lat"].min() - 1, e["lat"].max() + 1))


def _wind(e: Example, levels: list[str]) -> matplotlib.figure.Figure:
    """The true wind at every level."""
    figure, axes = new_figure(1, len(levels), (4.6, 2.9))
    for k, (ax, level) in enumerate(zip(axes[0], levels, strict=True)):
        u, v = e["truth"][:, 2 * k], e["truth"][:, 2 * k + 1]
        _panel(ax, e, u, v, float(np.quantile(np.hypot(u, v), 0.98)))
        ax.set_title(level, fontsize=9)
    figure.suptitle(str(e["time"])[:16].replace("T", " "), fontsize=9)
    return figure


def _arrows(found: dict[str, Example], levels: list[str]) -> matplotlib.figure.Figure:
    """Errors of the wind: a row per level, a column per model, the same scale in a row."""
    figure, axes = new_figure(len(levels), len(found), (4.6, 2.7))
    for k, level in enumerate(levels):
        errors = [(e["mean"] - e["truth"])[:, 2 * k : 2 * k + 2] for e in found.values()]
        largest = float(np.quantile(np.hypot(*np.concatenate(errors).T), 0.98))
        for ax, (name, e), error in zip(axes[k], found.items(), errors, strict=True):
            _panel(ax, e, error[:, 0], error[:, 1], largest)
            if k == 0:
                ax.set_title(f"{name}: error", fontsize=9)
        axes[k][0].set_ylabel(f"{level} (full colour: {largest:.1f} m/s)", fontsize=8)
    return figure
