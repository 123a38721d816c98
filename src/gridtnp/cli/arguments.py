"""Arguments of commands: the run, sources, locations and output files that they stand for.

Imports are inside the functions, so that `--help` needs none of them.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridtnp.cli.experiment import Experiment
    from gridtnp.data.dataset import Dataset
    from gridtnp.estimator import GriddedTNP
    from gridtnp.evaluation.results import Evaluation
    from gridtnp.evaluation.sums import ScoreSums
    from gridtnp.inference.queries import Places
    from gridtnp.server.served import Served


def require_free(output: Path, overwrite: bool) -> None:
    """Refuse an output that exists, or has no folder, before anything is loaded."""
    if output.exists() and not overwrite:
        raise FileExistsError(f"{str(output)!r} already exists; pass --overwrite to replace it.")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"No such folder: {str(output.parent)!r}; create it first.")


def require_option(token: str) -> None:
    """Refuse a mistyped flag, which would be taken for a key of the experiment."""
    from gridtnp.errors import require_known

    if token.startswith("--") and "." not in token and token.partition("=")[0] != "--out":
        known = ("--resume", "--json", "--out", "--debug")
        require_known(token, known, "option")


def load_run(folder: Path) -> tuple[GriddedTNP, Experiment]:
    """The model of a run, and its experiment."""
    from gridtnp.cli.experiment import FILE_NAME, read_experiment
    from gridtnp.estimator import GriddedTNP

    model = GriddedTNP.load(folder)
    path = folder / FILE_NAME
    if not path.exists():
        raise ValueError(
            f"{str(folder)!r} has no {FILE_NAME}, which `gridtnp fit` writes; use this model from "
            "Python: gt.GriddedTNP.load."
        )
    return model, read_experiment(path)


def load_served(folder: Path) -> Served:
    """The model of a run with the test part of its data, as `report` shows it, and its scores."""
    from gridtnp.evaluation.saved import SavedScores
    from gridtnp.server.served import Fresh, Served
    from gridtnp.sources.reading import open_data

    model, experiment = load_run(folder)
    data, known = experiment.data, set(experiment.data.sources)
    static = {
        name: where if where.partition(".")[0] in known else open_data(where)
        for name, where in data.static.items()
    }
    fresh = Fresh(data.opened(), static or None, data.na_values, data.crs)
    _, _, test = experiment.parts()
    scores = SavedScores.read(folder)
    return Served(model.contents, test, fresh, folder.resolve().name, scores)


def plot_evaluation(found: Evaluation, run: Path) -> list[str]:
    """Plot an evaluation if matplotlib is installed; the folder of the plots."""
    if find_spec("matplotlib") is None:
        return []
    from gridtnp.plots import album

    return [str(album(found, run))]


def add_part(found: Evaluation, run: Path, data: str) -> tuple[Path, ScoreSums]:
    """Write the scores of a part to the run, and add up those that are there.

    Those of other weights, of data with another fingerprint than `data`, or of other times do not
    count. When all are there, the table of scores is written as well.
    """
    from dataclasses import replace

    from gridtnp.evaluation.saved import weights_of_run
    from gridtnp.evaluation.sums import ScoreSums

    assert found.part is not None
    index, parts = found.part
    folder = run / "eval" / "parts"
    own = replace(found.sums(), fingerprint=f"{weights_of_run(run)} {data}")
    path = own.save(folder / f"{index}-of-{parts}.parquet")
    there = [ScoreSums.read(file) for file in sorted(folder.glob(f"*-of-{parts}.parquet"))]
    same = [s for s in there if (s.fingerprint, s.split) == (own.fingerprint, own.split)]
    added = ScoreSums.add_up(same)
    if not added.missing:
        added.save_scores(run / "eval")
    return path, added


def read_context(
    model: GriddedTNP,
    experiment: Experiment,
    context: list[str] | None,
    static: list[str] | None,
) -> Dataset:
    """The run's own data, or fresh sources with their static fields (default: the run's).

    Missing values, projections and components of the wind are those of the run.
    """
    from gridtnp.cli.first_experiment import name_files
    from gridtnp.inference.context_reader import dataset_of

    if context is None:
        if static is not None:
            raise ValueError(
                "--static is for fresh sources and there are none; pass --context as well."
            )
        return experiment.dataset()
    data = experiment.data
    fields = data.static if static is None else name_files(static)
    sources = data.with_components(name_files(context))
    return dataset_of(model.spec, sources, fields or None, na_values=data.na_values, crs=data.crs)


def read_covariates(names: list[str] | None) -> Any:
    """Names of columns, or the fields of a file."""
    from gridtnp.sources.reading import open_data

    if names is None or len(names) > 1 or not Path(names[0]).exists():
        return names
    return open_data(names[0])


def draw_map(found: Any, observations: Any, path: Path) -> None:
    """Map an interpolated grid and its observations."""
    import pandas as pd
    import xarray as xr

    from gridtnp.plots import maps

    if not isinstance(found, xr.Dataset) or not {"lat", "lon"} <= set(map(str, found.dims)):
        raise ValueError("Only a grid of latitudes and longitudes can be drawn; leave plot out.")
    (variable,) = [str(v).removesuffix("_mean") for v in found if str(v).endswith("_mean")]
    time = None
    if "time" in found.dims:
        time = found["time"].to_numpy()[-1]
    stations = observations if isinstance(observations, pd.DataFrame) else None
    figure = maps(found, variable, stations=stations, time=time)
    if stations is not None:
        figure.axes[2].set_title("misfit at the observations used")
    figure.savefig(path)


def read_places(at: str) -> Places:
    """Locations from a file, or the grid that `lat=…,lon=…,step=…` describes."""
    from gridtnp.data.places import latlon_grid
    from gridtnp.sources.reading import open_data

    if "=" not in at or Path(at).exists():
        return open_data(at)
    given: dict[str, str] = {}
    for part in at.split(","):
        key, _, value = part.partition("=")
        given[key.strip()] = value
    try:
        (south, north), (west, east) = (map(float, given[k].split(":")) for k in ("lat", "lon"))
        return latlon_grid(lat=(south, north), lon=(west, east), step=float(given["step"]))
    except (KeyError, ValueError):
        raise ValueError(
            f"Not a grid: {at!r}; write it like lat=37:41,lon=-109:-102,step=0.1."
        ) from None


def read_part(text: str | None) -> tuple[int, int] | None:
    """Part `i/n`."""
    if text is None:
        return None
    index, _, parts = text.partition("/")
    if not (index.isdecimal() and parts.isdecimal()):
        raise ValueError(f"Not a part: {text!r}; write it like 0/8 for the first of eight.")
    return int(index), int(parts)


def read_sizes(texts: list[str] | None) -> dict[str, int] | None:
    """Sizes by dimension, such as `time=24`."""
    if texts is None:
        return None
    pairs = [text.partition("=") for text in texts]
    for text, (_, _, size) in zip(texts, pairs, strict=True):
        if not size.isdecimal():
            raise ValueError(f"Not a size: {text!r}; write it like time=24.")
    return {dim: int(size) for dim, _, size in pairs}


def status_text(status: dict[str, Any]) -> str:
    """How much of a prediction in parts is done, in a few lines."""
    done, regions = status["done"], status["regions"]
    sizes = " × ".join(f"{size:,} {dim}" for dim, size in status["sizes"].items())
    text = f"{status['path']}: {done:,} of {regions:,} regions done ({sizes} each)"
    if status["complete"]:
        return f"{text}; complete"
    runs = [f"{a}" if a == b else f"{a} to {b}" for a, b in status["missing"]]
    more = f" and {len(runs) - 8:,} more runs" if len(runs) > 8 else ""
    return f"{text}; missing: {', '.join(runs[:8])}{more}"
