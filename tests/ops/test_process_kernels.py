"""Gaussian processes in C beside PyTorch: covariances, and predictions of left-out points."""

from __future__ import annotations

import pytest
import torch

from gridtnp.amortised import process, profile
from gridtnp.amortised.process import Places, Shape
from gridtnp.ops import native

pytestmark = pytest.mark.skipif(isinstance(native.library(), str), reason="no C compiler")


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def places(number: int, batch: int, d: int, trends: int, seed: int) -> Places:
    one = [double(batch, number, seed=seed + i) + 0.3 for i in range(3)]
    x, latent = double(batch, number, d, seed=seed + 3), double(batch, number, 2, seed=seed + 4)
    trend = double(batch, number, trends, seed=seed + 5)
    return Places(9 * x, one[0], one[1], latent, one[2], trend)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 300), (70, 256), (300, 5), (3, 0)])
@pytest.mark.parametrize(("batch", "d", "trends"), [(1, 2, 3), (3, 3, 6), (2, 1, 2)])
def test_covariances_are_those_of_pytorch(n: int, m: int, batch: int, d: int, trends: int) -> None:
    weights = double(batch, 6)
    shape = Shape(weights / weights.sum(1, keepdim=True), 0.1 + 0.8 * double(batch, seed=1))
    a, b = places(n, batch, d, trends, 10), places(m, batch, d, trends, 20)
    if m:
        far = b.x.clone()
        far[:, -1] = 1e6  # beyond the table
        far[:, 0] = a.x[:, 0]  # coincident
        b = Places(far, *list(b)[1:])
    found = process._covariance_in_c(a, b, shape)
    expected = process._covariance_in_passes(a, b, shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("groups", [1, 8, 9, 128])
@pytest.mark.parametrize("points", [2, 13])
def test_points_are_left_out_as_by_pytorch(groups: int, points: int) -> None:
    x, y = 4 * double(groups, points, 2), double(groups, points, seed=1)
    row, column = torch.tril_indices(points, points)
    x = x.permute(1, 2, 0)
    given = (profile._kernels(x[row] - x[column]), y.mT.contiguous())
    which, noises = (torch.tensor(part) for part in zip(*profile._candidates(), strict=True))
    found = profile._in_c(*given, which, noises.double())
    expected = profile._on_long_vectors(*given, which, noises.double())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
