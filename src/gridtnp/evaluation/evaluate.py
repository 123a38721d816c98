"""Evaluation of a model on a part of the data, next to its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.progress import track

from gridtnp.baselines.interpolation import RawTask
from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.data.description import places_in_words
from gridtnp.distributions.marginals import (
    Marginal,
    Scaled,
    concatenate,
    of_readings,
    outputs_of,
)
from gridtnp.evaluation.baselines import (
    BaselineTraining,
    FittedBaseline,
    default_baselines,
    fit_baseline,
)
from gridtnp.evaluation.bootstrap import place_blocks
from gridtnp.evaluation.results import MODEL, Evaluation, Prediction
from gridtnp.inference.regions import share
from gridtnp.sources.times import show
from gridtnp.tasks.area import area, targets_outside
from gridtnp.tasks.sampling import RawBatch, Sampler
from gridtnp.tasks.selection import Selection
from gridtnp.tasks.specification import TaskSpec

MISSED = 0.05
"""Largest fraction of the points that a default baseline may miss."""


def evaluate(
    model: ModelContents,
    test: Dataset,
    baselines: Sequence[str] | None = None,
    *,
    train: Dataset | None = None,
    selection: Mapping[str, Selection] | None = None,
    limit: int | None = None,
    block: str | None = None,
    batch: int = 8,
    seed: int = 0,
    part: tuple[int, int] | None = None,
) -> Evaluation:
    """See `GriddedTNP.evaluate`."""
    spec, grid = model.spec, model.network.grid
    _require_same_target(spec, test)
    spec.warn_outside([test], grid, stacklevel=3)
    notes = _outside_notes(model, test)
    train = train or test.training
    test = spec.aligned(test, grid)
    train = None if train is None else spec.aligned(train, grid)
    training = BaselineTraining(spec, train, grid, test.held_out, selection, seed)
    if baselines is None:
        gaussian = all(one.is_normal for one in model.config.likelihood)
        fitted, refused = _fit_defaults(training, test, gaussian=gaussian)
        notes += refused
    else:
        names = [baselines] if isinstance(baselines, str) else dict.fromkeys(baselines)
        fitted = {name: fit_baseline(name, training, test) for name in names}
    sampler = model.sampler(test, selection, batch=batch, seed=seed)
    times = _limited(sampler.times, limit)
    if times is None:
        sampler = replace(sampler, batch=1)
    number = 1 if times is None else -(-len(times) // sampler.batch)
    numbers = range(number)
    if part is not None:
        numbers = share(number, part, "batches of times", "a smaller batch=")
    raw_tasks: list[RawTask] = []
    predictions: dict[str, list[Prediction]] = {name: [] for name in [MODEL, *fitted]}
    console = Console(stderr=True)
    batches = track(
        sampler.raw_batches(times, numbers),
        "evaluating",
        len(numbers),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    for raw in batches:
        predictions[MODEL] += _predict(model, sampler, raw)
        for raw_task in RawTask.each(test, spec, raw):
            raw_tasks.append(replace(raw_task, context={}))
            for name, baseline in fitted.items():
                predictions[name].append(baseline.predict(raw_task))
    if not sum(len(raw_task.truth) for raw_task in raw_tasks):
        raise ValueError(
            f"Part {test.part!r} has no values of {list(spec.target)} to predict; evaluate on "
            "another part."
        )
    notes += dict.fromkeys(note for one in fitted.values() for note in one.baseline.notes())
    if times is not None and sampler.times is not None and len(times) < len(sampler.times):
        notes.append(f"{len(times):,} of {len(sampler.times):,} times, evenly spaced")
    forecasts = {name: _concatenate(pieces) for name, pieces in predictions.items()}
    if baselines is None:
        kept, partial = _without_partial(forecasts)
        if part is not None and partial:
            raise ValueError(
                f"{partial[0].capitalize()} in part {part[0]}, but parts must have the same "
                f"baselines; name them: baselines={[name for name in kept if name != MODEL]}."
            )
        forecasts, notes = kept, notes + partial
    found = _evaluation(spec, test, raw_tasks, forecasts, notes, block, seed)
    if part is None:
        return found
    split = _describe_split(test, _target_stations(test), times)
    return replace(found, part=part, place=_place_groups(test, found), split=split)


def _fit_defaults(
    training: BaselineTraining, test: Dataset, *, gaussian: bool
) -> tuple[dict[str, FittedBaseline], list[str]]:
    """The default baselines, and notes about those that cannot be fitted."""
    trained = training.train is not None
    fitted, notes = {}, []
    for name in default_baselines(training.spec, test, trained=trained, gaussian=gaussian):
        try:
            fitted[name] = fit_baseline(name, training, test)
        except ValueError as error:
            why = str(error).rstrip(".").removesuffix("; leave it out")
            notes.append(f"left out: {name}, because {why[:1].lower()}{why[1:]}")
    return fitted, notes


def _without_partial(
    forecasts: dict[str, Prediction],
) -> tuple[dict[str, Prediction], list[str]]:
    """Without baselines that miss many points, which would be left out for all others."""
    known = {name: np.isfinite(f.mean).all(1) for name, f in forecasts.items()}
    number = max(int(known[MODEL].sum()), 1)
    missed = {name: (known[MODEL] & ~there).sum() / number for name, there in known.items()}
    notes = [
        f"left out: {name}, which predicts {1 - share:.0%} of the points"
        for name, share in missed.items()
        if share > MISSED
    ]
    return {name: f for name, f in forecasts.items() if missed[name] <= MISSED}, notes


def _predict(model: ModelContents, sampler: Sampler, raw: RawBatch) -> list[Prediction]:
    """The model's predictions of a batch, in the units of the data; NaN outside of its grid."""
    task = sampler.assemble(raw).to(model.device)
    with model.inference():
        distribution = of_readings(model.network(task), task.target.error)
    mean, std = (t.double().cpu().numpy() for t in (distribution.mean, distribution.stddev))
    if task.target.mask is not None:
        outside = ~task.target.mask.cpu().numpy()
        mean[outside] = std[outside] = np.nan
    target, normaliser = model.spec.target, model.normaliser
    scale, outputs = normaliser.scale(target), outputs_of(distribution)
    return [
        Prediction(
            normaliser.restore(target, mean[i, : len(o.rows)]),
            std[i, : len(o.rows)] * scale,
            marginals=_marginals(model, outputs, i, len(o.rows)),
        )
        for i, o in enumerate(raw.target)
    ]


def _marginals(
    model: ModelContents, outputs: Sequence[Marginal], task: int, number: int
) -> tuple[Marginal | None, ...]:
    """Distributions of one task in the units of the data; None for normal ones."""
    if all(output.is_gaussian for output in outputs):
        return ()
    constants = model.normaliser
    return tuple(
        None
        if output.is_gaussian
        else Scaled(
            output.map(lambda t: t[task, :number].double().cpu()),
            constants.mean[name],
            constants.std[name],
        )
        for name, output in zip(model.spec.target, outputs, strict=True)
    )


def _require_same_target(spec: TaskSpec, test: Dataset) -> None:
    found = tuple(f"{test.target_source}.{name}" for name in test.target_names)
    if found != spec.target:
        raise ValueError(
            f"The data have target {list(found)}, but the model predicts {list(spec.target)}; make "
            "the Dataset with the model's target."
        )
    for name, variable in zip(spec.target, test.target, strict=True):
        units = spec.units.get(name)
        if units != variable.units:
            raise ValueError(
                f"{name} is in {variable.units!r}, but the model was trained in {units!r}; convert "
                f"the data, or give units={{{name!r}: ...}}."
            )


def _outside_notes(model: ModelContents, test: Dataset) -> list[str]:
    grid = model.network.grid
    count = None if grid is None else targets_outside(model.spec.aligned(test), grid)
    if grid is None or count is None:
        return []
    return [f"left out as targets: {count} outside of {area(grid)}"]


def _limited(times: np.ndarray | None, limit: int | None) -> np.ndarray | None:
    """All times, or `limit` evenly spaced ones."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1.")
    if times is None or limit is None or limit >= len(times):
        return times
    return times[np.linspace(0, len(times) - 1, limit).round().astype(int)]


def _concatenate(pieces: list[Prediction]) -> Prediction:
    mean, std = (np.concatenate([getattr(p, k) for p in pieces]) for k in ("mean", "std"))
    each = zip(*(p.marginals for p in pieces), strict=True)
    marginals = tuple(None if m[0] is None else concatenate(m) for m in each)
    return Prediction(mean, std, pieces[0].spread, marginals)


def _evaluation(
    spec: TaskSpec,
    test: Dataset,
    raw_tasks: list[RawTask],
    forecasts: dict[str, Prediction],
    notes: list[str],
    block: str | None,
    seed: int,
) -> Evaluation:
    """The evaluation on the points that all forecasts predict."""
    truth = np.concatenate([raw_task.truth for raw_task in raw_tasks])
    finite = {n: (np.isfinite(f.mean) & np.isfinite(f.std)).all(1) for n, f in forecasts.items()}
    used = np.all(list(finite.values()), axis=0)
    if not used.any():
        never = [name for name, known in finite.items() if not known.any()]
        raise ValueError(
            f"{never or list(forecasts)} predict no point that all others predict; leave them out."
        )
    if not used.all():
        counts = {name: int((~known).sum()) for name, known in finite.items()}
        each = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
        lost = f"{int((~used).sum()):,} of {len(used):,} points"
        notes.append(f"left out: {lost} that not all forecasts predict (missing: {each})")
    if test.part in ("all", "train"):
        notes.append(f"part {test.part!r} may have been trained on, which flatters the model")
    for v, name in enumerate(spec.target_names):
        if np.ptp(truth[used, v]) == 0:
            notes.append(f"{name} is {truth[used, v][0]:g} at every point; skill says little")
        marginal = forecasts[MODEL].marginals[v] if forecasts[MODEL].marginals else None
        low, high = (-np.inf, np.inf) if marginal is None else marginal.limits
        impossible = int(((truth[used, v] < low) | (truth[used, v] > high)).sum())
        if impossible:
            notes.append(
                f"{impossible:,} observations of {name} are outside of {low:g} to {high:g}, which "
                "its likelihood cannot have"
            )
    station, lat, lon = (
        np.concatenate([getattr(raw_task.targets, name) for raw_task in raw_tasks])[used]
        for name in ("station", "lat", "lon")
    )
    time = _times([raw_task.targets.time for raw_task in raw_tasks])
    time = None if time is None else time[used]
    return Evaluation(
        variables={v.name: v.units for v in test.target},
        time=time,
        station=station,
        lat=lat,
        lon=lon,
        observed=truth[used],
        forecasts={name: forecast.at(used) for name, forecast in forecasts.items()},
        split=_describe_split(test, len(np.unique(station)), time),
        notes=tuple(notes),
        block=block,
        seed=seed,
    )


def _target_stations(test: Dataset) -> int:
    return len(np.unique(_target_places(test)[0]))


def _target_places(test: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stations, latitudes and longitudes of all that can be targets in a part of the data."""
    source = test.sources[test.target_source]
    labels = np.arange(len(source.lat)) if source.labels is None else source.labels
    kept = slice(None) if test.target_places is None else test.target_places
    return labels[kept], source.lat[kept], source.lon[kept]


def _place_groups(test: Dataset, found: Evaluation) -> np.ndarray:
    """The group of every point, the same in all parts: its station if there are few."""
    labels, lat, lon = _target_places(test)
    groups = place_blocks(labels, lat, lon)
    names, first = np.unique(labels, return_index=True)
    if len(np.unique(groups)) == len(names):
        return found.station
    return groups[first][np.searchsorted(names, found.station)]


def _times(pieces: list[np.ndarray | None]) -> np.ndarray | None:
    known = [piece for piece in pieces if piece is not None]
    return np.concatenate(known) if len(known) == len(pieces) else None


def _describe_split(test: Dataset, number: int, times: np.ndarray | None) -> str:
    """The points of an evaluation, such as `38 stations never seen, 36 times from 1995-01-01 …`."""
    text = places_in_words(number, test.sources[test.target_source])
    text += " never seen" * test.held_out
    if times is None:
        return text
    first, last, count = show(times.min()), show(times.max()), len(np.unique(times))
    text += f", {count:,} times from {first} to {last}" if count > 1 else f" at {first}"
    train = test.training
    if train is not None and train.period is not None and test.period is not None:
        text += ", all after the training part" * bool(train.period[1] <= test.period[0])
    return text
