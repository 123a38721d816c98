"""Choosing the distribution of every target variable from its values in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import RUN, pieces
from gridtnp.distributions.kinds import Kind, Likelihood, second_of_pairs
from gridtnp.errors import require_known
from gridtnp.sources.source import NEAR_ZERO, Variable
from gridtnp.tasks.specification import TaskSpec

Asked = str | Likelihood | Mapping[str, str | Likelihood] | None
"""What was asked for: one likelihood for all targets, or some by the name of the target."""
RANGES: dict[str, float] = {"%": 100.0, "percent": 100.0, "1": 1.0, "fraction": 1.0, "okta": 8.0}
"""Units of variables with an upper limit, and the limit."""
MAX_COUNT = 1000
"""Higher whole numbers are not modelled as counts, unless asked for."""
ENDS = 0.005
"""Share of both 0 and 1 by which a variable without units is recognised as a fraction."""
RARE, FAR = 0.01, 10.0
"""Zeros are no limit of a variable if they are fewer than this share, and so many standard
deviations below all other values.
"""
POSITIVE = ("lognormal", "bernoulli-gamma", "censored-gamma")
INTEGER = ("bernoulli", "categorical", "poisson", "negative-binomial")


@dataclass(frozen=True)
class Values:
    """The values of a target variable, as far as the choice depends on them."""

    name: str
    units: str | None
    low: float
    high: float
    mean: float
    std: float
    zeros: float
    """Shares of zeros and of ones, and the number of negative values."""
    ones: float
    negative: int
    integer: bool
    isolation: float
    """Of zeros from all other values, in standard deviations of these."""

    @classmethod
    def of(cls, name: str, units: str | None, values: Float[np.ndarray, " n"]) -> Values:
        y = values[np.isfinite(values)].astype(np.float64)
        if not len(y):
            raise ValueError(f"Target {name!r} has no values in this part; choose other times.")
        others = y[y != 0]
        spread = float(others.std()) if len(others) else 0.0
        return cls(
            name=name,
            units=units,
            low=float(y.min()),
            high=float(y.max()),
            mean=float(y.mean()),
            std=float(y.std()),
            zeros=float((y == 0).mean()),
            ones=float((y == 1).mean()),
            negative=int((y < 0).sum()),
            integer=bool((y == np.floor(y)).all()),
            isolation=float(others.min()) / spread if spread else 0.0,
        )

    @property
    def limit(self) -> float:
        """The upper limit of a fraction: 1, 100 or 8, by its units or its values."""
        return RANGES.get(self._units) or (1.0 if self.high <= 1 else 100.0)

    @property
    def is_fraction(self) -> bool:
        ends = self.high == 1 and min(self.zeros, self.ones) >= ENDS
        return self.high <= self.limit and (self._units in RANGES or ends)

    @property
    def is_temperature(self) -> bool:
        return Variable(self.name.partition(".")[2], self.units).in_degrees

    @property
    def is_direction(self) -> bool:
        named = Variable(self.name.partition(".")[2]).is_direction
        return named and 180 < self.high <= 360

    @property
    def _units(self) -> str:
        return (self.units or "").lower().rstrip("s")


@dataclass(frozen=True)
class Choice:
    """The likelihood of a target, why, and the scale that keeps its zero, if it must be kept."""

    likelihood: Likelihood
    reason: str
    scale: float | None


def choose_likelihoods(train: Dataset, spec: TaskSpec, asked: Asked) -> dict[str, Choice]:
    """The likelihood of every target variable, as asked for or from the training part."""
    wanted = _by_target(spec, asked)
    found = {}
    for name, values in target_values(train, spec).items():
        if values.low == values.high:
            raise ValueError(
                f"Target {name!r} is {values.low:g} everywhere in the training part; choose a "
                "target that varies."
            )
        given = wanted.get(name)
        if given is None:
            kind, reason = _automatic(values)
            likelihood = Likelihood(kind=kind)
        else:
            likelihood, reason = _completed(given, values), "as given"
            require_possible(likelihood, values)
        found[name] = Choice(likelihood, reason, _scale(likelihood, values))
    _require_order(train.target, [choice.likelihood for choice in found.values()])
    return found


def target_values(data: Dataset, spec: TaskSpec) -> dict[str, Values]:
    """The values of all targets at the locations and times of a part; some of those on disk."""
    source = data.sources[spec.target_source]
    columns, allowed = source.index(spec.target_names), data.target_places
    found = []
    for first, values in pieces(data, source):
        kept = slice(None)
        if allowed is not None:
            kept = allowed[source.places(np.arange(first, first + len(values)))]
        chosen = values[kept][:, columns]
        step = 1 if source.loaded is not None else -(-len(chosen) // RUN)
        found.append(chosen[:: max(1, step)].copy())
    table = np.concatenate(found) if found else np.zeros((0, len(columns)))
    names = zip(spec.target, table.T, strict=True)
    return {name: Values.of(name, spec.units.get(name), column) for name, column in names}


def require_possible(likelihood: Likelihood, values: Values) -> None:
    """Raise if a likelihood gives some of the values no probability."""
    kind, name = likelihood.kind, values.name
    bounded = kind in (*POSITIVE, *INTEGER, "spiked-beta")
    if bounded and values.negative:
        raise ValueError(
            f"Target {name!r} has {values.negative:,} negative values (the lowest is "
            f"{values.low:g}), which a {kind} likelihood cannot have; correct the data, or use "
            "'gaussian'."
        )
    if kind == "lognormal" and values.zeros:
        raise ValueError(
            f"Target {name!r} has {_percent(values.zeros)} zeros, which a lognormal likelihood "
            "cannot have; use 'bernoulli-gamma'."
        )
    if kind == "spiked-beta" and values.high > values.limit:
        raise ValueError(
            f"Target {name!r} reaches {values.high:g}, but a spiked-beta likelihood ends at "
            f"{values.limit:g}; give units such as '%', or use 'bernoulli-gamma'."
        )
    if kind in INTEGER and not values.integer:
        raise ValueError(
            f"Target {name!r} has values that are not whole numbers, which a {kind} likelihood "
            "cannot have; round them, or use another likelihood."
        )
    highest = {"bernoulli": 1, "categorical": likelihood.size - 1}.get(kind, np.inf)
    if values.high > highest:
        raise ValueError(
            f"Target {name!r} reaches {values.high:g}, but the highest value of its {kind} "
            f"likelihood is {highest}; number the classes from 0."
        )


def _require_order(targets: Sequence[Variable], likelihoods: Sequence[Likelihood]) -> None:
    """Raise if the northward component of a pair comes before the eastward one."""
    for i, is_second in enumerate(second_of_pairs(likelihoods)):
        if is_second and _north_first(*targets[i - 1 : i + 1]):
            north, east = (target.name for target in targets[i - 1 : i + 1])
            raise ValueError(
                f"Target {north!r}, a northward component, comes before the eastward {east!r}; "
                "swap them in target=."
            )


def _north_first(first: Variable, second: Variable) -> bool:
    """By CF standard names, or by names that differ by v and u."""
    a, b = (str(v.attributes.get("standard_name", v.name)).lower() for v in (first, second))
    if a.startswith("northward"):
        return b.startswith("eastward")
    return len(a) == len(b) and {(x, y) for x, y in zip(a, b, strict=True) if x != y} == {
        ("v", "u")
    }


def _by_target(spec: TaskSpec, asked: Asked) -> dict[str, str | Likelihood]:
    if not isinstance(asked, Mapping):
        return {} if asked is None else dict.fromkeys(spec.target, asked)
    short = dict(zip(spec.target_names, spec.target, strict=True))
    for name in asked:
        require_known(short.get(name, name), spec.target, "target", "in likelihood=")
    return {short.get(name, name): given for name, given in asked.items()}


def _completed(given: str | Likelihood, values: Values) -> Likelihood:
    """A likelihood by its name, with the number of classes from the data."""
    if isinstance(given, Likelihood):
        return given
    require_known(given, get_args(Kind), "likelihood")
    if given == "categorical":
        return Likelihood(kind="categorical", components=max(int(min(values.high, 999)) + 1, 2))
    return Likelihood.model_validate({"kind": given})


def _automatic(values: Values) -> tuple[Kind, str]:
    """A likelihood for some values, and the reason."""
    zeros, ones = _percent(values.zeros), _percent(values.ones)
    if values.negative:
        return "gaussian", f"{values.negative:,} values are negative"
    if values.integer and values.high == 1:
        return "bernoulli", f"only 0 and 1, of which {ones} are 1"
    if values.is_fraction:
        return "spiked-beta", f"from 0 to {values.limit:g}, {zeros} zeros"
    if values.is_direction:
        way = "better predict the components of the wind (docs/likelihoods.md)"
        return "gaussian", f"a direction, of which 0 and 360 are the same; {way}"
    if values.is_temperature:
        return "gaussian", "a temperature, which 0 does not limit"
    off = values.low / values.std
    if off >= NEAR_ZERO:
        return "gaussian", f"the lowest value is {off:.1f} standard deviations above 0"
    if values.zeros < RARE and values.isolation >= FAR:
        far = f"{values.isolation:.0f} standard deviations below all other values"
        return "gaussian", f"{zeros} zeros, {far}; if they stand for missing ones: na_values=[0]"
    ratio = values.std**2 / values.mean
    if values.integer and values.units is None and values.high <= MAX_COUNT and ratio > 0.8:
        kind: Literal["poisson", "negative-binomial"] = "poisson"
        if ratio > 1.2:
            kind = "negative-binomial"
        return kind, f"counts whose variance is {ratio:.2g} times their mean"
    if values.zeros:
        return "bernoulli-gamma", f"{zeros} zeros, never negative"
    return "lognormal", "always positive, and near zero"


def _scale(likelihood: Likelihood, values: Values) -> float | None:
    if likelihood.kind in INTEGER:
        return 1.0
    if likelihood.kind == "spiked-beta":
        return values.limit
    return values.std if likelihood.kind in POSITIVE else None


def describe(choices: Mapping[str, Choice]) -> list[tuple[str, str, str]]:
    """Rows of a design: what was chosen for which target, and why."""
    return [
        ("likelihood", f"{name.partition('.')[2]} {choice.likelihood.kind}", choice.reason)
        for name, choice in choices.items()
    ]


def require_possible_values(
    likelihoods: Sequence[Likelihood], spec: TaskSpec, parts: Sequence[Dataset]
) -> None:
    """Raise if some values of the targets have no probability."""
    if all(one.kind == "gaussian" for one in likelihoods):
        return
    for data in parts:
        pairs = zip(likelihoods, target_values(data, spec).values(), strict=True)
        for likelihood, values in pairs:
            require_possible(likelihood, values)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.2g} %"
