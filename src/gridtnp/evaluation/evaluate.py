"""A model's predictions of a part that it has not seen, beside those of its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.progress import track
from torch.distributions import Normal

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.data.times import show
from gridtnp.evaluation.baselines import fit_baseline
from gridtnp.evaluation.interpolation import RawTask
from gridtnp.evaluation.results import MODEL, Evaluation, Prediction
from gridtnp.tasks.sampling import RawBatch, Sampler
from gridtnp.tasks.selection import Selection
from gridtnp.tasks.specification import TaskSpec


def evaluate(
    model: ModelContents,
    test: Dataset,
    baselines: Sequence[str] = (),
    *,
    train: Dataset | None = None,
    selection: Mapping[str, Selection] | None = None,
    limit: int | None = None,
    block: str | None = None,
    batch: int = 8,
    seed: int = 0,
) -> Evaluation:
    """Scores at every time of `test`, or at `limit` times that are evenly spread over it.

    Baselines learn from `train`; without it, from the training part of the split that made `test`.
    `selection` is that of `TaskSpec.sampler`. `block` is the length of the blocks of time that are
    resampled for intervals, such as `"30D"`.
    """
    names = [baselines] if isinstance(baselines, str) else list(dict.fromkeys(baselines))
    spec = model.spec
    _check(spec, test)
    train = train or test.training
    rivals = {name: fit_baseline(name, model, test, train, selection, seed) for name in names}
    sampler = model.sampler(test, selection, batch=batch, seed=seed)
    times = _some(sampler.times, limit)
    if times is None:
        sampler = replace(sampler, batch=1)
    number = 1 if times is None else -(-len(times) // batch)
    raw_tasks: list[RawTask] = []
    made: dict[str, list[Prediction]] = {name: [] for name in [MODEL, *rivals]}
    console = Console(stderr=True)
    steps = track(
        sampler.raw_batches(times),
        "evaluating",
        number,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    for raw in steps:
        made[MODEL] += _predict(model, sampler, raw)
        for raw_task in RawTask.each(test, spec, raw):
            raw_tasks.append(replace(raw_task, context={}))
            for name, other in rivals.items():
                made[name].append(other.predict(raw_task))
    if not sum(len(raw_task.truth) for raw_task in raw_tasks):
        raise ValueError(
            f"The part to evaluate on must hold values of {list(spec.target)}, but part "
            f"{test.part!r} has none to predict."
        )
    notes = [note for other in rivals.values() for note in other.baseline.notes()]
    notes = list(dict.fromkeys(notes))
    if times is not None and sampler.times is not None and len(times) < len(sampler.times):
        notes.append(f"{len(times):,} of {len(sampler.times):,} times, evenly spread")
    joined = {name: _joined(predictions) for name, predictions in made.items()}
    return _evaluation(spec, test, raw_tasks, joined, tuple(notes), block, seed)


# ---- the model -----------------------------------------------------------------------------------


def _predict(model: ModelContents, sampler: Sampler, raw: RawBatch) -> list[Prediction]:
    """For every task of a batch, in the units of the data; NaN outside of the model's grid."""
    task = sampler.assemble(raw).to(model.device)
    with model.inference():
        distribution = model.network(task)
    if not isinstance(distribution, Normal):
        raise TypeError(
            f"The model predicts {type(distribution).__name__}, but scores are in closed form for "
            "normal distributions; use a model with a Gaussian likelihood."
        )
    mean, std = (t.double().cpu().numpy() for t in (distribution.mean, distribution.stddev))
    if task.target.mask is not None:
        outside = ~task.target.mask.cpu().numpy()
        mean[outside] = std[outside] = np.nan
    target, normaliser = model.spec.target, model.normaliser
    scale = normaliser.scale(target)
    return [
        Prediction(
            normaliser.restore(target, mean[i, : len(o.rows)]), std[i, : len(o.rows)] * scale
        )
        for i, o in enumerate(raw.target)
    ]


# ---- putting it together -------------------------------------------------------------------------


def _check(spec: TaskSpec, test: Dataset) -> None:
    found = tuple(f"{test.target_source}.{name}" for name in test.target_names)
    if found != spec.target:
        raise ValueError(
            f"The data must be made with the model's target, {list(spec.target)}, got "
            f"{list(found)}."
        )
    for name, variable in zip(spec.target, test.target, strict=True):
        if spec.units.get(name) != variable.units:
            raise ValueError(
                f"{name} must be in the units that the model was trained with, "
                f"{spec.units.get(name)!r}, got {variable.units!r}; convert the data or say "
                f"units={{{name!r}: ...}}."
            )


def _some(times: np.ndarray | None, limit: int | None) -> np.ndarray | None:
    if limit is not None and limit < 1:
        raise ValueError(f"At least one time must be evaluated, got limit={limit}.")
    if times is None or limit is None or limit >= len(times):
        return times
    return times[np.linspace(0, len(times) - 1, limit).round().astype(int)]


def _joined(predictions: list[Prediction]) -> Prediction:
    mean, std = (np.concatenate([getattr(p, k) for p in predictions]) for k in ("mean", "std"))
    return Prediction(mean, std, predictions[0].spread)


def _evaluation(
    spec: TaskSpec,
    test: Dataset,
    raw_tasks: list[RawTask],
    made: dict[str, Prediction],
    notes: tuple[str, ...],
    block: str | None,
    seed: int,
) -> Evaluation:
    """On the points that all of them predict."""
    truth = np.concatenate([raw_task.truth for raw_task in raw_tasks])
    finite = [np.isfinite(p.mean) & np.isfinite(p.std) for p in made.values()]
    used = np.all(finite, axis=(0, 2))
    if not used.any():
        never = [name for name, known in zip(made, finite, strict=True) if not known.any()]
        raise ValueError(
            f"All must predict some of the same points, but {never or list(made)} have none in "
            "common with the others; leave them out."
        )
    if not used.all():
        each = {n: int((~known.all(1)).sum()) for n, known in zip(made, finite, strict=True)}
        who = ", ".join(f"{n} {k:,}" for n, k in each.items() if k)
        notes = (
            *notes,
            f"{int((~used).sum()):,} of {len(used):,} points left out: not all predict "
            f"them ({who})",
        )
    if test.part in ("all", "train"):
        notes = (*notes, f"part {test.part!r} may have been trained on, which flatters the model")
    for v, name in enumerate(spec.target_names):
        if np.ptp(truth[used, v]) == 0:
            notes = (
                *notes,
                f"{name} is {truth[used, v][0]:g} at every point, so skill says little",
            )
    station, lat, lon = (
        np.concatenate([getattr(raw_task.asked, name) for raw_task in raw_tasks])[used]
        for name in ("station", "lat", "lon")
    )
    time = _times([raw_task.asked.time for raw_task in raw_tasks])
    time = None if time is None else time[used]
    return Evaluation(
        variables={v.name: v.units for v in test.target},
        time=time,
        station=station,
        lat=lat,
        lon=lon,
        observed=truth[used],
        forecasts={n: replace(p, mean=p.mean[used], std=p.std[used]) for n, p in made.items()},
        split=_words(test, len(np.unique(station)), time),
        notes=notes,
        block=block,
        seed=seed,
    )


def _times(pieces: list[np.ndarray | None]) -> np.ndarray | None:
    known = [piece for piece in pieces if piece is not None]
    return np.concatenate(known) if len(known) == len(pieces) else None


def _words(test: Dataset, number: int, times: np.ndarray | None) -> str:
    """What the scores are of, such as `38 stations never seen, 36 times from 1995-01-01 to …`."""
    gridded = test.sources[test.target_source].labels is None
    said = f"{number:,} {'grid point' if gridded else 'station'}{'s' * (number != 1)}"
    said += " never seen" * test.held_out
    if times is None:
        return said
    first, last, count = show(times.min()), show(times.max()), len(np.unique(times))
    said += f", {count:,} times from {first} to {last}" if count > 1 else f" at {first}"
    train = test.training
    if train is not None and train.period is not None and test.period is not None:
        said += ", all after the training part" * bool(train.period[1] <= test.period[0])
    return said
