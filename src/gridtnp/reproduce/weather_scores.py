"""Scores of test tasks, group by group, and baselines with the same scores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from gridtnp.baselines.interpolation import RawTask
from gridtnp.evaluation.baselines import TRAINING_TASKS, BaselineTraining, fit_baseline
from gridtnp.evaluation.scores import crps, inside, log_density, normalised_log_density
from gridtnp.files import write_text
from gridtnp.reproduce.rows import same_tests
from gridtnp.tasks.sampling import Sampler
from gridtnp.tasks.selection import Rest
from gridtnp.training.run_folder import commit

if TYPE_CHECKING:
    from gridtnp.reproduce.weather import Weather

LEVEL = 0.9
"""Probability of the interval whose coverage is in the tables."""
Values = Float[np.ndarray, "n dy"]


@dataclass
class Tally:
    """Scores by task of every group of targets, in the units of the data.

    `std` are those that values are normalised by: the log-likelihood, a sum over variables, is that
    of normalised values, and `paper_rmse` is what the paper's table calls RMSE: the root of all
    normalised squared errors, times the mean of the standard deviations.
    """

    std: Float[np.ndarray, " dy"]
    groups: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def add(
        self, truth: Values, mean: Values, std: Values, groups: Mapping[str, np.ndarray]
    ) -> None:
        """Add a task; without groups, all targets are one."""
        everything = np.ones(len(truth), bool)
        for name, rows in ({"all": everything} | dict(groups)).items():
            if rows.any():
                self._add(name, truth[rows], mean[rows], std[rows])

    def _add(self, group: str, truth: Values, mean: Values, std: Values) -> None:
        squared = (truth - mean) ** 2
        found: dict[str, Any] = {
            "targets": len(truth),
            "log_likelihood": (log_density(truth, mean, std) + np.log(self.std)).sum(1).mean(),
            "squared_error": squared.mean(0).tolist(),
            "paper_rmse": np.sqrt((squared / self.std**2).mean()) * self.std.mean(),
            "crps": crps(truth, mean, std).mean(0).tolist(),
            "inside": inside(truth, mean, std, LEVEL).mean(),
            "normalised": normalised_log_density(truth, mean, std).mean(),
        }
        own = self.groups.setdefault(group, {key: [] for key in found})
        for key, value in found.items():
            own[key].append(value if isinstance(value, list | int) else float(value))


@dataclass(frozen=True, eq=False)
class _TrainingTasks(BaselineTraining):
    """Baselines are fitted to the experiment's own tasks, with targets that are not observed."""

    sampler: Sampler | None = None
    number: int = TRAINING_TASKS

    def tasks(self) -> Iterator[RawTask]:
        assert self.sampler is not None
        assert self.sampler.times is not None
        times = np.random.default_rng(self.seed).permutation(self.sampler.times)
        for raw in self.sampler.raw_batches(times[: self.number]):
            yield from RawTask.each(self.data, self.spec, raw)


def run_baselines(experiment: Weather, out: Path, command: str, console: Console) -> None:
    """Fit and score every baseline on the rows' test tasks, if it is not in the folder yet."""
    train, _, test = experiment.parts
    sampler = experiment.sampler(train, 1, 0, targets=Rest(experiment.targets))
    number = min(TRAINING_TASKS, experiment.scale.fitted)
    training = _TrainingTasks(experiment.spec, train, sampler=sampler, number=number)
    for name in experiment.baselines:
        path = out / "baselines" / f"{name.partition(':')[0]}.json"
        if path.exists() and same_tests(json.loads(path.read_text()), experiment):
            continue
        fitted = fit_baseline(name, training, test)
        tally = Tally(experiment.normaliser.scale(experiment.target))
        for _, raw in experiment.tests():
            for raw_task in RawTask.each(test, experiment.spec, raw):
                found = fitted.predict(raw_task)
                groups = experiment.groups(raw)
                tally.add(raw_task.truth, found.mean, found.std, groups)
        result = {
            "row": path.stem,
            **experiment.about(),
            "groups": tally.groups,
            "commit": commit(),
            "command": command,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(result) + "\n")
        console.print(f"wrote {path}", highlight=False)
