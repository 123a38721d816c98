"""The network: it infers a Gaussian process from the observations, and corrects its posterior.

    observations → likelihood profile → covariance: length-scales, smoothness, noise, anisotropy
                 → tokens → neighbour attention → local amplitude, length-scale, noise, latents
    both → refined by the likelihood → posterior at the targets → corrected by a mixture of normals

The network sees distances, not coordinates, so it works in every unit, place and dimension; only
the anisotropy of the covariance depends on directions, and it turns with the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gridtnp.amortised.attention import Attended, NeighbourBlock
from gridtnp.amortised.constants import Constants, stretch
from gridtnp.amortised.neighbours import (
    NEIGHBOURS,
    Index,
    Near,
    Units,
    units_of,
    without_self,
)
from gridtnp.amortised.posterior import ExactPosterior, TaskPosteriors, condition, differentiable
from gridtnp.amortised.process import FUNCTIONS, Places, Shape
from gridtnp.amortised.profile import (
    CANDIDATES,
    DIRECTED,
    DIRECTIONS,
    LENGTHS,
    NOISES,
    PLAIN,
    RANKS,
    Profile,
    profile,
)
from gridtnp.amortised.refinement import refine
from gridtnp.distributions.continuous import NormalMixture
from gridtnp.task import PointSet, Task

SOURCE = "observations"
LATENTS = 2
COMPONENTS = 3
FLOOR = 1e-6
"""Smallest variance of the noise, in units of the values' own."""
COUNTED = 1000
"""More observations than this say no more about the covariance, for the network."""
UNEXPLAINED = 0.05
"""Part of the noise, at least, that known errors of readings do not explain."""
COEFFICIENT = 0.5
"""Prior standard deviation of the coefficients of standardised covariates, around regression's."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """A context: units, tokens, and the Gaussian process that it implies."""

    units: Units
    index: Index
    y: Float[Tensor, "batch n"]
    mask: Bool[Tensor, "batch n"]
    attended: Attended
    summary: Float[Tensor, "batch dz"]
    constants: Constants
    observed: Places

    def posterior(self) -> ExactPosterior | TaskPosteriors:
        """The process given the observations."""
        return condition(self.observed, self.y, self.mask, self.constants.shape)


class Interpolator(nn.Module):
    """Interpolates any observations; see the module.

    Covariates are features of the observations and targets: standardised, and with the residuals of
    a regression on them as values.
    """

    def __init__(self, dim: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.settings = {"dim": dim, "heads": heads, "layers": layers}
        inputs = 4 * PLAIN + 4 * len(DIRECTED) + 5
        self.summarise = nn.Sequential(
            *(nn.Linear(inputs, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, 2 * dim), nn.SiLU()),
            nn.Linear(2 * dim, dim),
        )
        self.constants = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 7 + FUNCTIONS)
        )
        self.sharpness = nn.Parameter(torch.tensor(-0.7))
        self.anisotropy = nn.Sequential(
            nn.Linear(dim + 4 * len(DIRECTED), dim), nn.SiLU(), nn.Linear(dim, 1)
        )
        self.embed = nn.Linear(2 * CANDIDATES + 5, dim)
        self.blocks = nn.ModuleList(NeighbourBlock(dim, heads) for _ in range(layers))
        self.decoder = NeighbourBlock(dim, heads)
        self.start = nn.Linear(dim, dim)
        self.fields = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3 + LATENTS))
        self.own_noise = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1))
        self.correct = nn.Sequential(
            nn.Linear(2 * dim + 3, dim), nn.SiLU(), nn.Linear(dim, 3 * COMPONENTS)
        )
        for part in (self.constants, self.anisotropy, self.fields, self.own_noise, self.correct):
            last = part[-1]
            assert isinstance(last, nn.Linear)
            nn.init.normal_(last.weight, std=0.01)  # training starts from the best candidates
            nn.init.zeros_(last.bias)

    def forward(self, task: Task) -> NormalMixture:
        return self.decode(self.encode(task.context), task.target)

    def encode(self, context: Mapping[str, PointSet]) -> Encoding:
        points = context[SOURCE]
        assert points.y is not None
        x, y, mask = points.x.double(), points.y[..., 0].double(), points.mask
        mask = torch.ones_like(y, dtype=torch.bool) if mask is None else mask
        units = units_of(x, y, mask)
        x, y = units.places(x), units.values(y) * mask
        number = max(RANKS[-1], NEIGHBOURS) + 1
        order = y.argsort(1).argsort(1)
        index = Index(x, mask)
        distance, nearest = index.nearest(x, number, order)
        others = without_self(nearest)[..., : RANKS[-1]]
        found = profile(x, y, mask, others)
        summary, directions = self._summary(found, x, mask, distance)
        constants = self._constants(summary, directions, found, mask, x)
        near = Near.of(distance, nearest)
        tokens = self._tokens(found, y, summary, near)
        attended = self.decoder.attended(self.start(summary)[:, None], tokens)
        read = _reading_variance(points, units, mask)
        constants = replace(constants, noise=_unexplained(read, mask, constants.noise))
        places, _ = self._places(constants, attended, x, near, points.features)
        own = _limited(self.own_noise(tokens)[..., 0].double(), 0.0, 6.0)
        places = replace(places, noise=places.noise * torch.exp(own) + read)
        if not torch.is_grad_enabled():
            change = refine(places, y, mask, read, constants.shape)
            constants, places = change.constants(constants), change.places(places, read)
        return Encoding(units, index, y, mask, attended, summary, constants, places)

    def decode(
        self,
        encoding: Encoding,
        target: PointSet,
        given: ExactPosterior | TaskPosteriors | None = None,
    ) -> NormalMixture:
        """`given` is the encoding's posterior, if it is needed more than once."""
        places, tokens = self.places(encoding, target)
        if torch.is_grad_enabled():
            e = encoding
            found = differentiable(e.observed, e.y, e.mask, places, e.constants.shape)
        else:
            found = (encoding.posterior() if given is None else given).predict(places)
        return self.corrected(encoding, tokens, places, *found)

    def places(self, encoding: Encoding, target: PointSet) -> tuple[Places, Tensor]:
        """Local properties of the process at the targets, and their tokens."""
        e = encoding
        x = e.units.places(target.x.double())
        near = Near.of(*e.index.nearest(x, NEIGHBOURS + 1))
        return self._places(e.constants, e.attended, x, near, target.features)

    def corrected(
        self,
        encoding: Encoding,
        tokens: Float[Tensor, "batch m dz"],
        places: Places,
        mean: Float[Tensor, "batch m"],
        rest: Float[Tensor, "batch m"],
    ) -> NormalMixture:
        """The predictive distribution (batch, m, 1), in the units of the data."""
        units, prior, noise = encoding.units, places.variance, places.noise
        std = (rest + noise).sqrt()
        columns = torch.stack([rest.log() - prior.log(), noise.log() - rest.log(), std.log()], -1)
        summary = encoding.summary[:, None].expand(-1, tokens.shape[1], -1)
        out = self.correct(torch.cat([tokens, summary, columns.float() / 3], -1)).double()
        shift, spread, logit = out.unflatten(-1, (3, COMPONENTS)).unbind(-2)
        base = torch.linspace(-0.3, 0.5, COMPONENTS, dtype=shift.dtype, device=shift.device)
        scale = units.scale[:, None, None]
        loc = mean[..., None] + std[..., None] * 2 * torch.tanh(shift / 2)
        loc = loc * scale + units.centre[:, None, None]
        spread = std[..., None] * torch.exp(base + 3 * torch.tanh(spread / 3)) * scale
        log_weight = (logit - base.abs()).log_softmax(-1)
        return NormalMixture(log_weight[:, :, None], loc[:, :, None], spread[:, :, None])

    def _summary(
        self, p: Profile, x: Tensor, mask: Tensor, distance: Tensor
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
        """A description of the task, and the scores of opposite directional candidates."""
        number = mask.sum(1, keepdim=True).to(p.score.dtype).clamp_min(1)
        count = number.clamp_max(COUNTED)
        used = mask[..., None].to(p.score.dtype)
        plain = p.score[:, :PLAIN]
        best = plain.amax(1, keepdim=True)
        relative = plain - best
        tails = (p.error[..., :PLAIN].abs() * used).sum(1) / number / p.log_scale[:, :PLAIN].exp()
        directed = (p.score[:, PLAIN:] - best).unflatten(1, (len(DIRECTED), DIRECTIONS))
        mean = directed.mean(-1)
        apart = directed - mean[..., None]
        apart = torch.stack([apart * 5, (count[..., None] * apart / 5).clamp(-3, 3)], -1)
        first, second = (apart[:, :, i] - apart[:, :, i + 1] for i in (0, 2))
        strength = (first.square() + second.square() + 1e-8).sqrt().flatten(1)
        flat = apart.transpose(1, 2).flatten(2).unbind(1)
        low = torch.where(mask[..., None], x, math.inf).amin(1)
        high = torch.where(mask[..., None], x, -math.inf).amax(1)
        diagonal = (high - low).square().sum(-1, keepdim=True).clamp_min(1e-6).sqrt().float()
        gap = torch.where(mask[..., None], distance[..., 1:2].float(), 0.0)
        gaps = ((gap + 0.01).log() * used).sum(1) / number
        same = ((gap < 1e-6) * used).sum(1) / number
        inputs = [
            *(relative.clamp_min(-4), (count * relative / 5).clamp_min(-4)),
            *(p.log_scale[:, :PLAIN], 4 * (tails - 0.8)),
            *(mean.clamp_min(-4), (count * mean / 5).clamp_min(-4), strength.clamp_max(4)),
            *(best, count.log() / 3, diagonal.log() - 0.5 * number.log(), gaps, same),
        ]
        return self.summarise(torch.cat(inputs, -1)), ((flat[0], flat[1]), (flat[2], flat[3]))

    def _constants(
        self,
        summary: Tensor,
        directions: tuple[tuple[Tensor, Tensor], ...],
        p: Profile,
        mask: Tensor,
        x: Tensor,
    ) -> Constants:
        """Those of the best candidates, corrected by the network."""

        def odd(a: Tensor, b: Tensor) -> Tensor:
            """Changes its sign if the two directions are exchanged."""
            forward = self.anisotropy(torch.cat([summary, a, b], -1))
            return (forward - self.anisotropy(torch.cat([summary, b, a], -1)))[:, 0].double()

        out = self.constants(summary).double()
        length, amplitude, noise, level, slope, share, shrink = out[:, :7].unbind(-1)
        count = mask.sum(1, keepdim=True).clamp(1, 300)
        chosen = (p.score[:, :PLAIN] * count * self.sharpness.exp()).softmax(-1).double()
        log_length, log_noise, rough = (chosen @ _candidates().to(chosen)).unbind(-1)
        log_amplitude = (chosen * p.log_scale[:, :PLAIN]).sum(-1)
        plane = stretch(odd(*directions[0]), odd(*directions[1]))
        dim = x.shape[-1]
        transform = torch.eye(dim, dtype=out.dtype, device=out.device).repeat(len(out), 1, 1)
        transform[:, :2, :2] = plane
        scale = torch.exp(-log_length - _limited(length, 0.0, 4.0))
        smooth = torch.stack([rough - 0.5, 0 * rough, 0.5 - rough, 0.5 - rough], -1)
        short, long = (out[:, 7:11] + 4 * smooth).softmax(-1), out[:, 11:].softmax(-1)
        share = torch.sigmoid(share - 2)[:, None]
        shape = Shape(
            torch.cat([short * (1 - share), long * share], -1),
            torch.exp(-1.5 + 1.4 * torch.tanh(shrink)),
        )
        squares = (x * mask[..., None]).square().sum((1, 2)) / mask.sum(1).clamp_min(1)
        level, slope = _limited(level, -0.5, 3.0), _limited(slope, -3.0, 4.0)
        trend = torch.stack([level, slope - 0.5 * squares.clamp_min(1e-6).log()], -1).exp()
        log_noise = 2 * (log_amplitude + log_noise / 2 + _limited(noise, 0.0, 3.0))
        log_amplitude = log_amplitude + _limited(amplitude, 0.0, 3.0)
        transform = transform * scale[:, None, None]
        return Constants(transform, log_amplitude.exp(), log_noise.exp() + FLOOR, trend, shape)

    def _tokens(self, p: Profile, y: Tensor, summary: Tensor, near: Near) -> Tensor:
        """A token for every observation, from its own errors and its neighbourhood's."""
        error = torch.asinh(p.error / p.log_scale.exp()[:, None])
        value = torch.asinh(y.float())[..., None]
        chosen = (p.score * 20).softmax(-1)[:, None]
        own = (chosen * error).sum(-1, keepdim=True)
        std = (chosen * p.log_std).sum(-1, keepdim=True)
        error, log_std = _undirected(error), _undirected(p.log_std)
        columns = [error, log_std, value, own, own.abs(), std, own.square().clamp_max(9) - 1]
        z = self.embed(torch.cat(columns, -1)) + summary[:, None]
        for block in self.blocks:
            assert isinstance(block, NeighbourBlock)
            z = block(z, near)
        return z

    def _places(
        self,
        c: Constants,
        attended: Attended,
        x: Tensor,
        near: Near,
        covariates: Tensor | None,
    ) -> tuple[Places, Tensor]:
        token = self.decoder.at(attended, near)
        out = self.fields(token).double()
        log_amplitude, log_stretch, log_noise = (1.5 * torch.tanh(out[..., :3])).unbind(-1)
        level, slope = c.trend.unsqueeze(-1).unbind(1)
        trend = [level[:, None].expand(-1, x.shape[1], 1), slope[:, None] * x]
        if covariates is not None:
            trend.append(COEFFICIENT * covariates.double())
        places = Places(
            x @ c.transform,
            c.amplitude[:, None] * torch.exp(log_amplitude),
            torch.exp(0.7 * log_stretch),
            out[..., 3:],
            c.noise[:, None] * torch.exp(log_noise),
            torch.cat(trend, -1),
        )
        return places, token


def _reading_variance(
    points: PointSet, units: Units, mask: Bool[Tensor, "batch n"]
) -> Float[Tensor, "batch n"]:
    """Of the known errors of readings, in the units of the network."""
    if points.error is None:
        return torch.zeros_like(mask, dtype=torch.float64)
    return (points.error[..., 0].double() / units.scale[:, None]).square() * mask


def _unexplained(
    read: Float[Tensor, "batch n"], mask: Bool[Tensor, "batch n"], noise: Float[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """The noise that known errors of readings leave unexplained: values imply their sum."""
    mean = read.sum(1) / mask.sum(1).clamp_min(1)
    return torch.maximum(noise - mean, UNEXPLAINED * noise)


def _undirected(columns: Float[Tensor, "batch n c"]) -> Float[Tensor, "batch n c"]:
    """With the mean over directions in place of each directional candidate."""
    directed = columns[..., PLAIN:].unflatten(-1, (len(DIRECTED), DIRECTIONS))
    mean = directed.mean(-1, keepdim=True).expand_as(directed).flatten(-2)
    return torch.cat([columns[..., :PLAIN], mean], -1)


def _candidates() -> Float[Tensor, "c 3"]:
    """Log length-scale, log relative noise, and roughness (1 for Matérn 1/2) of the candidates."""
    every = [
        (math.log(length), math.log(noise), rough)
        for length in LENGTHS
        for rough in (1.0, 0.0)
        for noise in NOISES
    ]
    return torch.tensor(every, dtype=torch.float64)


def _limited(value: Tensor, centre: float, most: float) -> Tensor:
    """Around `centre`, at most `most` away."""
    return centre + most * torch.tanh(value / most)
