"""Kriging inside a network: Gaussian-process regression on the context, corrected by a network.

The posterior of a Gaussian process given the context has a closed form. `KrigedNetwork` adds it to
the features of every point, and its network predicts what is left, in units of the posterior's
standard deviation. Fresh weights correct nothing, so training starts from kriging. All of it is in
double precision, which autocast leaves alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from numpy.polynomial.hermite_e import hermegauss
from scipy.spatial import KDTree
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from gridtnp.amortised.neighbours import without_self
from gridtnp.amortised.network import Interpolator
from gridtnp.amortised.weights import frozen
from gridtnp.config import GriddedField
from gridtnp.distributions.marginals import Product, correlations_of, outputs_of
from gridtnp.kriging.gaussian_process import Inputs, KrigingProcess, Posterior
from gridtnp.kriging.persistent import PersistentPosterior
from gridtnp.network.fields import Raster, rasters, sample
from gridtnp.network.model import NeuralProcess, Signature
from gridtnp.network.pretrained import NOT_COMPILED, Interpolated
from gridtnp.task import PointSet

EXACT = 512
"""Larger contexts are not factorised as a whole: each target uses its nearest observations."""
NEAREST = 24
"""Nearest observations per target in large contexts."""
ENTRIES = 2**18
"""Entries of a covariance matrix that are held at once."""
PIECE = 512
"""Targets that are predicted from their nearest observations at once."""
NODES = 16
"""Nodes of the quadrature over powers of values."""
UNSURE = 3.0
"""The pretrained process loses its share where it is more than so many times as uncertain."""
LEAST_SPREAD = 0.1
"""Lowest standard deviation of values whose powers are kriged, in normalised units."""
SPHERE = {"lat", "lon"}
"""Coordinates that become unit vectors."""
COLUMNS = ("kriging_mean", "kriging_log_std", "kriging_residual")
"""Features added for each output: posterior mean, log σ, and the standardised residual of an
observation given all others."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Observations of one output."""

    inputs: Inputs
    y: Float[Tensor, "batch n"]
    mask: Bool[Tensor, "batch n"]


@dataclass(frozen=True, eq=False)
class Encoding:
    """The context as kriging and the network see it.

    `given` holds, for each output, its posterior, its observations if they are too many to
    factorise, or None if it is not observed; `persistent`, what other tasks say of its places.
    """

    fields: list[Raster]
    given: list[Posterior | Observations | None]
    persistent: list[PersistentPosterior | None]
    inner: object
    pretrained: list[Interpolated | None]
    """Where an answer is blended with that of the pretrained process."""


class KrigedNetwork(NeuralProcess):
    """A network that corrects the posterior of one Gaussian process per output.

    `outputs` holds the context set and the column where each output is observed, if any; `features`
    are the columns of features that the mean is linear in, of which the first `drifts` are a drift.
    `trust`, from 0 to 1, scales the network's correction, and `log_spread` the standard deviation,
    of outputs that are `gaussian`; both are chosen on validation tasks. `powers` are those of the
    values that are kriged, such as 1/2 for rain, whose roots are nearly normal. `share` is the part
    that a `pretrained` process has in the answer. What persists is kept of up to `places` places;
    training `forgets` (1 or 0) those of its targets.
    """

    def __init__(
        self,
        signature: Signature,
        network: NeuralProcess,
        outputs: Sequence[tuple[str, int] | None],
        features: Sequence[int],
        fields: Sequence[GriddedField] = (),
        *,
        drifts: int,
        length: float,
        hours: float,
        gaussian: Sequence[bool] | None = None,
        powers: Sequence[float] = (),
        pretrained: Interpolator | None = None,
        places: int = 0,
    ) -> None:
        super().__init__(signature, network.grid)
        self.gaussian = (True,) * len(outputs) if gaussian is None else tuple(gaussian)
        self.powers = tuple(powers) or (1.0,) * len(outputs)
        self.network = network
        self.outputs, self.features, self.fields = tuple(outputs), list(features), tuple(fields)
        self.drifts = drifts
        sampled = sum(len(field.columns) for field in self.fields)
        self.processes = nn.ModuleList(
            KrigingProcess(
                len(self.features) + sampled,
                dimensions=_dimensions(signature.coordinates),
                drifts=drifts + sampled,
                distances=drifts,
                timed="time" in signature.coordinates,
                length=length,
                hours=hours,
                places=places,
            )
            for _ in self.outputs
        )
        self.trust: Tensor
        self.register_buffer("trust", torch.ones(len(self.outputs)))
        self.log_spread: Tensor
        self.register_buffer("log_spread", torch.zeros(len(self.outputs)))
        self.forgets: Tensor
        self.register_buffer("forgets", torch.zeros(len(self.outputs)), persistent=places > 0)
        self.pretrained = pretrained
        self.share: Tensor
        self.register_buffer(
            "share", torch.zeros(len(self.outputs)), persistent=pretrained is not None
        )

    def encode(self, context: Mapping[str, PointSet]) -> Encoding:
        fields = rasters(self.fields, context)
        sampled = {k: sample(fields, v.x, skip=k) for k, v in context.items()}
        seen = [
            None if of is None else self.observed(j, context[of[0]], of[1], sampled[of[0]])
            for j, of in enumerate(self.outputs)
        ]
        known = [self.posterior(j, found) for j, found in enumerate(seen)]
        given, persistent = [one for one, _ in known], [persistent for _, persistent in known]
        extended = {
            name: _extended(
                points, self._at_context(name, points, seen, given, persistent), sampled[name]
            )
            for name, points in context.items()
        }
        blended = [self._interpolated(j, found) for j, found in enumerate(seen)]
        return Encoding(fields, given, persistent, self.network.encode(extended), blended)

    def decode(self, encoding: Encoding, target: PointSet) -> Distribution:
        sampled = sample(encoding.fields, target.x)
        at = self._inputs(target, sampled)
        known = zip(encoding.given, encoding.persistent, strict=True)
        found = [
            self.kriged(j, given, at, persistent) for j, (given, persistent) in enumerate(known)
        ]
        mean, std = (torch.stack([pair[i] for pair in found], -1) for i in range(2))
        columns = torch.stack([mean, std.log(), torch.zeros_like(mean)], -1).flatten(-2)
        rest = self.network.decode(encoding.inner, _extended(target, columns, sampled))
        mean, std = self._back(mean, std)
        mean, std = mean.to(rest.mean.dtype), std.to(rest.mean.dtype)
        moments = mean + std * rest.mean * self.trust, std * rest.stddev.pow(self.trust)
        found, spread = self._blended(encoding, at, *moments)
        corrected = Normal(found, spread * self.log_spread.exp(), validate_args=False)
        if all(self.gaussian) and not correlations_of(rest):
            return corrected
        return self._partly(corrected, rest, mean, std)

    def _partly(
        self, corrected: Distribution, rest: Distribution, mean: Tensor, std: Tensor
    ) -> Product:
        """Outputs that are not normal correct the posterior in their own way."""
        pairs = zip(outputs_of(corrected), outputs_of(rest), self.gaussian, strict=True)
        outputs = [
            own if normal else other.corrects(mean[..., j], std[..., j])
            for j, (own, other, normal) in enumerate(pairs)
        ]
        return Product(outputs, correlations_of(rest))

    def blend(self, share: Sequence[float] | None) -> None:
        """Blend each output with the pretrained process, which has this share; None: no more."""
        self.pretrained = None if share is None else frozen()
        parts = torch.zeros_like(self.trust) if share is None else self.trust.new_tensor(share)
        self.register_buffer("share", parts, persistent=share is not None)

    def _interpolated(self, j: int, seen: Observations | None) -> Interpolated | None:
        """The pretrained process given the observations of an output, if it has a share."""
        if self.pretrained is None or seen is None:
            return None
        if torch.compiler.is_compiling():
            raise ValueError(NOT_COMPILED)
        if not self.share[j] > 0:
            return None
        drifts = len(self.process(j).drift)
        return Interpolated.of(self.pretrained, seen.inputs, seen.y, seen.mask, drifts)

    def _blended(
        self, encoding: Encoding, at: Inputs, mean: Tensor, std: Tensor
    ) -> tuple[Float[Tensor, "batch m dy"], Float[Tensor, "batch m dy"]]:
        """Means and log standard deviations, blended with those of the pretrained process.

        Its share fades where it is far less sure, as it is where covariates are beyond the context.
        """
        for j, given in enumerate(encoding.pretrained):
            if given is None or not mean.shape[1]:
                continue
            mean, std, rows = mean.clone(), std.clone(), given.usable
            own, width = mean[rows, :, j], std[rows, :, j]
            other, spread = (v.to(mean) for v in given.predict(at))
            share = self.share[j].to(mean) * (UNSURE * width / spread).clamp_max(1).square()
            mean[rows, :, j] = own.lerp(other, share)
            std[rows, :, j] = width.log().lerp(spread.log(), share).exp()
        return mean, std

    def _back(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the values from those of their powers."""
        if all(power == 1 for power in self.powers):
            return mean, std
        nodes, weights = (mean.new_tensor(a) for a in hermegauss(NODES))
        means, stds = list(mean.unbind(-1)), list(std.unbind(-1))
        for j, power in enumerate(self.powers):
            if power != 1:
                drawn = (means[j][..., None] + stds[j][..., None] * nodes).clamp_min(0)
                values, weight = drawn.pow(1 / power), weights / weights.sum()
                means[j] = (values * weight).sum(-1)
                spread = ((values - means[j][..., None]).square() * weight).sum(-1)
                stds[j] = spread.clamp_min(LEAST_SPREAD**2).sqrt()
        return torch.stack(means, -1), torch.stack(stds, -1)

    @property
    def knows_places(self) -> bool:
        """Whether it knows how places deviate from the regression in all tasks."""
        return any(self._knows_places(j) for j in range(len(self.outputs)))

    def knows_targets(self, j: int) -> bool:
        """Whether an output is to be predicted at places that training knows."""
        return self._knows_places(j) and not self.forgets[j] > 0

    def _knows_places(self, j: int) -> bool:
        field = self.process(j).persistent
        return field is not None and field.known

    # ---- kriging ---------------------------------------------------------------------------------

    def process(self, j: int) -> KrigingProcess:
        return cast(KrigingProcess, self.processes[j])

    def observed(self, j: int, points: PointSet, column: int, sampled: Tensor) -> Observations:
        """Observations of output `j` in a column of some points."""
        assert points.y is not None
        y = points.y[..., column].double()
        if self.powers[j] != 1:
            y = y.clamp_min(0).pow(self.powers[j])
        mask = torch.ones_like(y, dtype=torch.bool) if points.mask is None else points.mask
        inputs = self._inputs(points, sampled)
        if points.error is not None and self.powers[j] == 1:
            inputs = replace(inputs, error=points.error[..., column].double().square())
        return Observations(inputs, y, mask)

    def _persistent(self, j: int, seen: Observations | None) -> PersistentPosterior | None:
        """What other tasks say of the places of an output.

        For predictions at places that training knows nothing of, training tasks know the places of
        their context only.
        """
        field = self.process(j).persistent
        if field is None or not field.known:
            return None
        if not self.training or not self.forgets[j] > 0:
            return field.posterior()
        if seen is None:
            return field.posterior(field.places[None, :0])
        context = self.process(j).coordinates(seen.inputs)
        return field.posterior(context.masked_fill(~seen.mask[..., None], torch.inf))

    def _with_persistent(
        self, j: int, at: Inputs, persistent: PersistentPosterior | None
    ) -> Inputs:
        """Points that know how far their places deviate in other tasks."""
        process = self.process(j)
        if persistent is None or process.persistent is None or at.persistent is not None:
            return at
        return replace(at, persistent=process.persistent.at(process.coordinates(at), persistent))

    def posterior(
        self, j: int, seen: Observations | None
    ) -> tuple[Posterior | Observations | None, PersistentPosterior | None]:
        """An output given its observations, and what other tasks say of its places.

        Observations that are too many to factorise stay as they are.
        """
        persistent = self._persistent(j, seen)
        if seen is None:
            return None, persistent
        seen = replace(seen, inputs=self._with_persistent(j, seen.inputs, persistent))
        if not torch.compiler.is_compiling() and seen.y.shape[1] > EXACT:
            return seen, persistent
        return self.process(j).condition_robustly(seen.inputs, seen.y, seen.mask), persistent

    def _at_context(
        self,
        name: str,
        points: PointSet,
        seen: Sequence[Observations | None],
        given: Sequence[Posterior | Observations | None],
        persistent: Sequence[PersistentPosterior | None],
    ) -> Float[Tensor, "batch n c"]:
        """The features of a context set: leave-one-out for outputs that it observes, else zeros."""
        columns = []
        for j, (of, found, posterior) in enumerate(zip(self.outputs, seen, given, strict=True)):
            if of is None or found is None or of[0] != name:
                columns += [points.x.new_zeros(points.x.shape[:2]).double()] * len(COLUMNS)
                continue
            error, std = self._leave_one_out(j, posterior, persistent[j])
            columns += [found.y - error, std.log(), error / std]
        return torch.stack(columns, -1)

    def _leave_one_out(
        self, j: int, given: Posterior | Observations | None, persistent: PersistentPosterior | None
    ) -> tuple[Tensor, Tensor]:
        if isinstance(given, Posterior):
            error, std = self.process(j).leave_one_out(given)
            return error, std * self.process(j).local_spread(given)
        assert given is not None
        mean, std = self._from_nearest(j, given, given.inputs, persistent, itself=False)
        return given.y - mean, std

    def kriged(
        self,
        j: int,
        given: Posterior | Observations | None,
        at: Inputs,
        persistent: PersistentPosterior | None,
    ) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of an output at some points, given what `posterior` says."""
        if isinstance(given, Observations):
            return self._from_nearest(j, given, at, persistent)
        if torch.compiler.is_compiling():
            return self.process(j).predict(given, self._with_persistent(j, at, persistent))
        each = 1 if given is None else given.mask.numel()
        each = max(each, 0 if persistent is None else len(at.place) * persistent.weights.shape[1])
        size = max(ENTRIES // max(each, 1), 1)
        found = []
        for i in range(0, max(at.place.shape[1], 1), size):
            some = self._with_persistent(j, at[:, i : i + size], persistent)
            found.append(self.process(j).predict(given, some))
        return torch.cat([m for m, _ in found], 1), torch.cat([s for _, s in found], 1)

    def _from_nearest(
        self,
        j: int,
        given: Observations,
        at: Inputs,
        persistent: PersistentPosterior | None,
        itself: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Every target from its own nearest observations, or from those other than `itself`."""
        process, means, stds = self.process(j), [], []
        seen, asked = process.points(given.inputs), process.points(at)
        for b in range(len(given.y)):
            places = process.scaled(seen)[b], process.scaled(asked)[b]
            index = _nearest(*places, given.mask[b], NEAREST if itself else NEAREST + 1)
            index = index if itself else without_self(index[None])[0]
            for i in range(0, max(len(index), 1), PIECE):
                some = index[i : i + PIECE]
                y = given.y[b][some]
                near = process.condition_robustly(seen[b, some], y, torch.ones_like(y) > 0)
                part = at[b : b + 1, i : i + PIECE]
                part = self._with_persistent(j, part, persistent and persistent.of(b))
                mean, std = process.predict(near, process.points(part)[0, :, None])
                means.append(mean[:, 0])
                stds.append(std[:, 0])
        shape = at.place.shape[:2]
        return torch.cat(means).view(shape), torch.cat(stds).view(shape)

    def _inputs(self, points: PointSet, sampled: Float[Tensor, "batch n c"]) -> Inputs:
        """Unit vectors in degrees for latitudes and longitudes, plain coordinates otherwise."""
        names = self.signature.coordinates
        columns = {name: points.x[..., i].double() for i, name in enumerate(names)}
        time = columns.pop("time", None)
        if set(columns) >= SPHERE:
            phi, turn = torch.deg2rad(columns["lat"]), torch.deg2rad(columns["lon"])
            place = torch.stack([phi.cos() * turn.cos(), phi.cos() * turn.sin(), phi.sin()], -1)
            place = torch.rad2deg(place)
        else:
            place = torch.stack(list(columns.values()), -1)
        known = (
            points.x[..., :0] if points.features is None else points.features[..., self.features]
        )
        drift, others = known[..., : self.drifts], known[..., self.drifts :]
        return Inputs(place, time, torch.cat([drift, sampled, others], -1).double())


def _nearest(
    observed: Float[Tensor, "n d"], at: Float[Tensor, "m d"], mask: Bool[Tensor, " n"], number: int
) -> Int[Tensor, "m k"]:
    """The observations where `mask` is true that are nearest to each point, nearest first."""
    rows = torch.nonzero(mask)[:, 0]
    if not len(rows):
        return rows.expand(len(at), 0)
    tree, number = KDTree(observed[rows].cpu().numpy()), min(number, len(rows))
    _, index = tree.query(at.cpu().numpy(), number)
    return rows[torch.from_numpy(index.reshape(len(at), number)).to(rows.device)]


def _dimensions(coordinates: Sequence[str]) -> int:
    """Cartesian coordinates of a place."""
    places = set(coordinates) - {"time"}
    return len(places) + (places >= SPHERE)


def _extended(points: PointSet, *columns: Tensor) -> PointSet:
    """With more features."""
    features = points.x[..., :0] if points.features is None else points.features
    dtype = torch.promote_types(points.x.dtype, features.dtype)
    joined = torch.cat([features.to(dtype), *(c.to(dtype) for c in columns)], -1)
    return replace(points, features=joined)
