"""A model's predictions of a part that it has not seen, beside those of its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch.distributions import Normal

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.data.times import show
from gridtnp.evaluation.baselines import rival
from gridtnp.evaluation.interpolation import Scene
from gridtnp.evaluation.results import MODEL, Evaluation, Prediction
from gridtnp.network.model import NeuralProcess
from gridtnp.tasks.sampling import Choice, Sampler
from gridtnp.tasks.selection import Pick
from gridtnp.tasks.specification import Setting


def evaluate(
    network: NeuralProcess,
    setting: Setting,
    normaliser: Normaliser,
    test: Dataset,
    baselines: Sequence[str] = (),
    *,
    train: Dataset | None = None,
    picks: Mapping[str, Pick] | None = None,
    limit: int | None = None,
    block: str | None = None,
    batch: int = 8,
    seed: int = 0,
) -> Evaluation:
    """Scores at every time of `test`, or at `limit` times that are evenly spread over it.

    Baselines learn from `train`; without it, from the training part of the split that made `test`.
    `picks` choose the context, as in `Setting.sampler`. `block` is the length of the blocks of time
    that intervals are made of, such as `"30D"`.
    """
    names = [baselines] if isinstance(baselines, str) else list(dict.fromkeys(baselines))
    _check(setting, test)
    train = train or test.training
    rivals = {name: rival(name, setting, normaliser, test, train, picks, seed) for name in names}
    sampler = setting.sampler(test, normaliser, picks, batch=batch, seed=seed)
    times = _some(sampler.times, limit)
    if times is None:
        sampler = replace(sampler, batch=1)
    number = 1 if times is None else -(-len(times) // batch)
    scenes: list[Scene] = []
    made: dict[str, list[Prediction]] = {name: [] for name in [MODEL, *rivals]}
    console = Console(stderr=True)
    steps = track(
        sampler.choices(times),
        "evaluating",
        number,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    for choice in steps:
        made[MODEL] += _predict(network, setting, normaliser, sampler, choice)
        for scene in Scene.each(test, setting, choice):
            scenes.append(replace(scene, context={}))
            for name, other in rivals.items():
                made[name].append(other.predict(scene))
    if not sum(len(scene.truth) for scene in scenes):
        raise ValueError(
            f"The part to evaluate on must hold values of {list(setting.target)}, but part "
            f"{test.part!r} has none to predict."
        )
    notes = [note for other in rivals.values() for note in other.baseline.notes()]
    notes = list(dict.fromkeys(notes))
    if times is not None and sampler.times is not None and len(times) < len(sampler.times):
        notes.append(f"{len(times):,} of {len(sampler.times):,} times, evenly spread")
    joined = {name: _joined(predictions) for name, predictions in made.items()}
    return _evaluation(setting, test, scenes, joined, tuple(notes), block, seed)


# ---- the model -----------------------------------------------------------------------------------


@torch.no_grad()
def _predict(
    network: NeuralProcess,
    setting: Setting,
    normaliser: Normaliser,
    sampler: Sampler,
    choice: Choice,
) -> list[Prediction]:
    """For every task of a batch, in the units of the data."""
    task = sampler.assemble(choice).to(next(network.parameters()).device)
    was_training = network.training
    answer = network.eval()(task)
    network.train(was_training)
    if not isinstance(answer, Normal):
        raise TypeError(
            "Scores are in closed form for normal distributions, but the model predicts "
            f"{type(answer).__name__}; use a model with a Gaussian likelihood."
        )
    mean, std = (t.double().cpu().numpy() for t in (answer.mean, answer.stddev))
    scale = normaliser.scale(setting.target)
    made = []
    for i, chosen in enumerate(choice.target):
        n = len(chosen.rows)
        centre = normaliser.restore(setting.target, mean[i, :n])
        made.append(Prediction(centre, std[i, :n] * scale))
    return made


# ---- putting it together -------------------------------------------------------------------------


def _check(setting: Setting, test: Dataset) -> None:
    found = tuple(f"{test.target_source}.{name}" for name in test.target_names)
    if found != setting.target:
        raise ValueError(
            f"The data must be made with the model's target, {list(setting.target)}, got "
            f"{list(found)}."
        )
    for name, variable in zip(setting.target, test.target, strict=True):
        if setting.units.get(name) != variable.units:
            raise ValueError(
                f"{name} must be in the units that the model was trained with, "
                f"{setting.units.get(name)!r}, got {variable.units!r}; convert the data or say "
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
    setting: Setting,
    test: Dataset,
    scenes: list[Scene],
    made: dict[str, Prediction],
    notes: tuple[str, ...],
    block: str | None,
    seed: int,
) -> Evaluation:
    """On the points that all of them predict."""
    truth = np.concatenate([scene.truth for scene in scenes])
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
    for v, name in enumerate(setting.target_names):
        if np.ptp(truth[used, v]) == 0:
            notes = (
                *notes,
                f"{name} is {truth[used, v][0]:g} at every point, so skill says little",
            )
    station, lat, lon = (
        np.concatenate([getattr(scene.asked, name) for scene in scenes])[used]
        for name in ("station", "lat", "lon")
    )
    time = _times([scene.asked.time for scene in scenes])
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
