"""Wind speed and direction from predicted components, by sampling their joint distribution.

A quantile of the speed is not the speed of quantiles: the components are correlated, and calm air
is in the middle. The samples are the same at every point (a scrambled Sobol sequence), so that maps
are smooth and answers do not change from call to call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from gridtnp.contents import ModelContents
from gridtnp.distributions.marginals import correlations_of
from gridtnp.errors import require_known
from gridtnp.inference.forecasts import above
from gridtnp.inference.queries import column

DERIVED = ("speed", "direction")
SAMPLES = 1024
PIECE = 2048
"""Points whose samples are held at once."""


@dataclass(frozen=True, eq=False)
class Wind:
    """What to derive from the components number `first` and `first + 1`, eastward and northward."""

    model: ModelContents
    first: int
    wanted: tuple[str, ...]
    quantiles: tuple[float, ...]
    exceed: tuple[float, ...]

    @classmethod
    def of(
        cls,
        model: ModelContents,
        wanted: Sequence[str],
        quantiles: Sequence[float],
        exceed: Sequence[float],
    ) -> Wind | None:
        """None if nothing is wanted; raises if the model predicts no wind."""
        if isinstance(wanted, str):
            raise ValueError(f"derive={wanted!r}: must be a list, such as [{wanted!r}].")
        for name in wanted:
            require_known(name, DERIVED, "derived variable")
        if exceed and "speed" not in wanted:
            raise ValueError(
                "exceed= has thresholds of 'speed', which is not derived; give derive=['speed']."
            )
        for level in exceed:
            if not 0 <= level < math.inf:
                raise ValueError(
                    f"exceed={level:g}: a speed is never negative, nor infinite; give a threshold "
                    "from 0 on."
                )
        if not wanted:
            return None
        spec = model.spec
        kinds = [one.kind for one in model.config.likelihood]
        firsts = [i for i, kind in enumerate(kinds) if kind == "bivariate-gaussian"][::2]
        if len(firsts) != 1:
            raise ValueError(
                f"derive={list(wanted)} needs one pair of wind components, but the model has "
                f"{len(firsts)}; train it with likelihood='bivariate-gaussian' for an eastward and "
                "a northward component."
            )
        pair = spec.target[firsts[0] : firsts[0] + 2]
        units = [spec.units.get(name) for name in pair]
        if units[0] != units[1]:
            raise ValueError(
                f"The components {list(pair)} are in {units[0]!r} and {units[1]!r}; convert one of "
                "them to derive the wind."
            )
        taken = sorted(set(wanted) & set(spec.target_names))
        if taken:
            raise ValueError(f"The model predicts {taken} itself; leave them out of derive=.")
        return cls(model, firsts[0], tuple(dict.fromkeys(wanted)), tuple(quantiles), tuple(exceed))

    def columns(self) -> dict[str, dict[str, Any]]:
        """The columns of an answer, and their CF attributes."""
        found: dict[str, dict[str, Any]] = {}
        units = self.model.spec.units.get(self.model.spec.target[self.first])
        if "speed" in self.wanted:
            own: dict[str, Any] = {} if units is None else {"units": units}
            kinds = {"mean": "mean", "std": "standard deviation"}
            names = [(column("speed", k), text) for k, text in kinds.items()]
            names += [(column("speed", q), f"{100 * q:g} % quantile") for q in self.quantiles]
            for name, text in names:
                found[name] = {"long_name": f"wind speed: predicted {text}", **own}
                if not name.endswith("_std"):
                    found[name]["standard_name"] = "wind_speed"
            for level in self.exceed:
                text = f"probability of wind speed > {level:g} {units or ''}".rstrip()
                found[column("speed", above(level))] = {"long_name": text, "units": "1"}
        if "direction" in self.wanted:
            found["direction_mean"] = {
                "long_name": "wind direction: circular mean",
                "standard_name": "wind_from_direction",
                "units": "degree",
            }
            found["direction_spread"] = {
                "long_name": "wind direction: circular standard deviation",
                "units": "degree",
            }
        return found

    def at(self, predicted: Distribution) -> Mapping[str, np.ndarray]:
        """All columns at the points of a batch of one."""
        number = predicted.mean.shape[1]
        pieces = [
            self._piece(predicted, slice(i, i + PIECE)) for i in range(0, max(number, 1), PIECE)
        ]
        return {k: torch.cat([piece[k] for piece in pieces]).numpy() for k in pieces[0]}

    def _piece(self, predicted: Distribution, some: slice) -> dict[str, Tensor]:
        u, v = self._samples(predicted, some)
        found: dict[str, Tensor] = {}
        if "speed" in self.wanted:
            speed = torch.hypot(u, v)
            found[column("speed", "mean")] = speed.mean(0)
            found[column("speed", "std")] = speed.std(0)
            for q in self.quantiles:
                found[column("speed", q)] = torch.quantile(speed, q, dim=0)
            for level in self.exceed:
                found[column("speed", above(level))] = (speed > level).double().mean(0)
        if "direction" in self.wanted:
            angle = torch.atan2(-u, -v)  # where the wind comes from, clockwise from north
            east, north = angle.sin().mean(0), angle.cos().mean(0)
            length = torch.hypot(east, north).clamp(1e-12, 1.0)
            mean = torch.rad2deg(torch.atan2(east, north)) % 360
            found["direction_mean"] = torch.where(mean >= 360, 0.0, mean)
            found["direction_spread"] = torch.rad2deg((-2 * length.log()).sqrt())
        return found

    def _samples(self, predicted: Distribution, some: slice) -> tuple[Tensor, Tensor]:
        """Both components in the units of the data, `(samples, points)` each."""
        pair = slice(self.first, self.first + 2)
        mean, std = (t[0, some, pair].double().cpu() for t in (predicted.mean, predicted.stddev))
        correlation = correlations_of(predicted)[self.first + 1][0, some].double().cpu()
        normaliser, names = self.model.normaliser, self.model.spec.target[pair]
        centre = torch.tensor([normaliser.mean[name] for name in names])
        scale = torch.tensor([normaliser.std[name] for name in names])
        mean, std = mean * scale + centre, std * scale
        first, second = _normal_samples().unbind(-1)
        second = correlation * first[:, None] + (1 - correlation**2).sqrt() * second[:, None]
        return mean[:, 0] + std[:, 0] * first[:, None], mean[:, 1] + std[:, 1] * second


def _normal_samples() -> Tensor:
    """Pairs of standard normal numbers, evenly spread."""
    uniform = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(
        SAMPLES, dtype=torch.float64
    )
    return torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
