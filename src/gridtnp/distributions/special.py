"""Special functions of distributions in double precision, with derivatives in every argument.

PyTorch has no derivative of the incomplete gamma function with respect to its shape, and no
incomplete beta function. Derivatives are central differences, which in double precision are exact
to about ten digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

STEP = 1e-5
"""Relative step of the differences."""
TINY = 1e-300
"""Probabilities below count as this one, so that their logarithm is finite."""


def scipy_values(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """A function of SciPy, element by element, on the device of its arguments."""
    first = arguments[0]
    values = function(*(a.detach().double().cpu().numpy() for a in arguments))
    return torch.from_numpy(np.asarray(values, np.float64)).to(first.device)


class _Differenced(torch.autograd.Function):
    """A function of SciPy with central differences as derivatives."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *arguments: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*arguments)
        return scipy_values(function, *arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        arguments, found = list(ctx.saved_tensors), []
        for i, argument in enumerate(arguments):
            if not ctx.needs_input_grad[i + 1]:
                found.append(None)
                continue
            step = STEP * argument.abs().clamp_min(1e-8)
            ends = [
                scipy_values(ctx.function, *arguments[:i], argument + s * step, *arguments[i + 1 :])
                for s in (1, -1)
            ]
            found.append(gradients[0] * (ends[0] - ends[1]) / (2 * step))
        return None, *found


def gammainc(shape: Tensor, x: Tensor) -> Tensor:
    """The regularised incomplete gamma function P(shape, x): the CDF of a gamma variable.

    It is part of moments, and so of compiled graphs: these are operations of PyTorch only.
    """
    shape, x = torch.broadcast_tensors(shape.double(), x.double())
    fixed, positive = shape.detach(), torch.where(x > 0, x, 1.0)
    level = torch.special.gammainc(fixed, positive)
    if torch.is_grad_enabled() and shape.requires_grad:
        at, step = positive.detach(), STEP * fixed
        rise = torch.special.gammainc(fixed + step, at) - torch.special.gammainc(fixed - step, at)
        level = level + (shape - fixed) * rise / (2 * step)
    return torch.where(x > 0, level, 0.0)


def betainc(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """The regularised incomplete beta function I_x(a, b): the CDF of a beta variable."""
    return _differenced(special.betainc, a, b, x)


def student_cdf(freedom: Tensor, x: Tensor) -> Tensor:
    """The CDF of Student's t distribution."""
    return _differenced(special.stdtr, freedom, x)


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    """The logarithm of the beta function."""
    return a.lgamma() + b.lgamma() - (a + b).lgamma()


def _differenced(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    wide = torch.broadcast_tensors(*(a.double() for a in arguments))
    return _Differenced.apply(function, *wide)  # pyright: ignore[reportReturnType]
