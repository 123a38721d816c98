"""Embeddings against independent formulas, and what they must and must not distinguish."""

import math

import numpy as np
import pytest
import torch
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import roots_legendre, sph_harm_y

from gridtnp.grid import Axis, Grid
from gridtnp.network.embeddings import (
    CellEmbedding,
    FourierEmbedding,
    InputEmbedding,
    RawEmbedding,
    SphericalHarmonics,
)

SETTINGS = settings(max_examples=examples(60))


# ---- Fourier -------------------------------------------------------------------------------------


def fourier(x: np.ndarray, per_column: int, shortest: float, longest: float) -> np.ndarray:
    """Column by column, sines of all wavelengths, then cosines."""
    half = per_column // 2
    ratio = (longest / shortest) ** (1 / max(half - 1, 1))
    wavelengths = [shortest * ratio**i for i in range(half)]
    parts = []
    for column in np.moveaxis(x, -1, 0):
        parts += [np.sin(2 * np.pi * column / w) for w in wavelengths]
        parts += [np.cos(2 * np.pi * column / w) for w in wavelengths]
    return np.stack(parts, -1)


@SETTINGS
@given(
    st.integers(1, 3), st.integers(1, 8), st.floats(0.01, 2.0), st.floats(1.1, 500.0), st.integers()
)
def test_fourier_features_follow_the_formula(
    columns: int, pairs: int, shortest: float, factor: float, seed: int
) -> None:
    x = np.random.default_rng(abs(seed)).uniform(-5, 5, (4, 3, columns))
    longest = shortest * factor
    embed = FourierEmbedding(columns, per_column=2 * pairs, shortest=shortest, longest=longest)
    got = embed(torch.tensor(x))
    assert embed.features == columns * 2 * pairs
    assert got.shape == (4, 3, embed.features)
    assert got.dtype == torch.float64
    expected = fourier(x, 2 * pairs, shortest, longest)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-10)


def test_fourier_columns_are_sines_then_cosines_from_the_shortest_wavelength() -> None:
    embed = FourierEmbedding(2, per_column=6, shortest=1.0, longest=16.0)
    quarter = embed(torch.tensor([0.25, 0.0], dtype=torch.float64))
    angles = [math.pi / 2, math.pi / 8, math.pi / 32]
    expected = [*map(math.sin, angles), *map(math.cos, angles), 0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(quarter.numpy(), expected, atol=1e-12)


def test_fourier_features_of_hours_since_1970_are_precise() -> None:
    """Half a million hours at wavelengths of a day to a year, minutes apart."""
    hours = 5e5 + np.arange(0, 48, 1 / 60)[:, None]
    embed = FourierEmbedding(1, per_column=8, shortest=24.0, longest=8766.0)
    got = embed(torch.tensor(hours))
    np.testing.assert_allclose(got.numpy(), fourier(hours, 8, 24.0, 8766.0), atol=1e-9)
    day = embed(torch.tensor(hours + 24.0))
    np.testing.assert_allclose(got[:, 0].numpy(), day[:, 0].numpy(), atol=1e-9)


def test_fourier_features_are_reduced_before_they_lose_precision() -> None:
    """Single precision holds 524288.5 exactly, but not 2π times it: the phase must."""
    x = torch.tensor([[524288.5], [524288.25], [-300000.75]])
    embed = FourierEmbedding(1, per_column=4, shortest=1.0, longest=24.0)
    got = embed(x)
    assert got.dtype == torch.float32
    exact = fourier(x.double().numpy(), 4, 1.0, 24.0)
    np.testing.assert_allclose(got.numpy(), exact, atol=2e-6)


def test_half_precision_coordinates_get_single_precision_features() -> None:
    embed = FourierEmbedding(1, per_column=4, shortest=1.0, longest=4.0)
    x = torch.tensor([[0.25], [1.5]])
    got = embed(x.bfloat16())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, embed(x))


def test_fourier_features_have_gradients() -> None:
    x = torch.tensor([[0.3]], dtype=torch.float64, requires_grad=True)
    FourierEmbedding(1, per_column=2, shortest=2.0, longest=4.0)(x)[..., 0].sum().backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(math.pi * math.cos(math.pi * 0.3))


@pytest.mark.parametrize("per_column", [0, 1, 3, -2])
def test_fourier_features_come_in_pairs(per_column: int) -> None:
    message = f"per_column={per_column}: Fourier features come in pairs of sine and cosine"
    with pytest.raises(ValueError, match=message):
        FourierEmbedding(1, per_column=per_column, shortest=1.0, longest=2.0)


@pytest.mark.parametrize(
    ("shortest", "longest"), [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0)]
)
def test_wavelengths_are_positive_and_increase(shortest: float, longest: float) -> None:
    message = f"Wavelengths from {shortest} to {longest} are not positive and increasing"
    with pytest.raises(ValueError, match=message):
        FourierEmbedding(1, per_column=4, shortest=shortest, longest=longest)


# ---- spherical harmonics -------------------------------------------------------------------------


def real_harmonics(lat: np.ndarray, lon: np.ndarray, degrees: int) -> np.ndarray:
    """From scipy's complex ones: real, orthonormal, without the Condon-Shortley phase."""
    polar, azimuth = np.deg2rad(90 - lat), np.deg2rad(lon)
    columns = []
    for degree in range(degrees):
        for m in range(-degree, degree + 1):
            y = sph_harm_y(degree, abs(m), polar, azimuth) * (-1) ** m
            columns.append(y.real if m == 0 else np.sqrt(2) * (y.imag if m < 0 else y.real))
    return np.stack(columns, -1)


def places(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    lat = np.concatenate([[90, -90, 0, 0, 89.999], rng.uniform(-90, 90, n - 5)])
    lon = np.concatenate([[10, 20, 0, 90, -180], rng.uniform(-180, 180, n - 5)])
    return lat, lon


@pytest.mark.parametrize("degrees", [1, 2, 3, 10, 40])
def test_harmonics_are_those_of_scipy(degrees: int) -> None:
    lat, lon = places(200)
    embed = SphericalHarmonics(degrees)
    got = embed(torch.tensor(np.stack([lat, lon], -1)))
    assert embed.features == degrees**2
    assert got.shape == (200, degrees**2)
    assert got.dtype == torch.float64
    assert np.abs(got.numpy() - real_harmonics(lat, lon, degrees)).max() < 1e-12


def test_harmonics_in_single_precision_stay_close() -> None:
    lat, lon = places(200)
    x = torch.tensor(np.stack([lat, lon], -1))
    embed = SphericalHarmonics(30)
    single = embed(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), embed(x.float().double()), atol=1e-4, rtol=0)
    assert embed(x.bfloat16()).dtype == torch.float32


def test_the_first_harmonics_are_a_constant_and_the_three_directions() -> None:
    """Order m = -1, 0, 1 is y, z, x."""
    lat, lon = places(50)
    got = SphericalHarmonics(2)(torch.tensor(np.stack([lat, lon], -1))).numpy()
    phi, lam = np.deg2rad(lat), np.deg2rad(lon)
    y, z, x = np.cos(phi) * np.sin(lam), np.sin(phi), np.cos(phi) * np.cos(lam)
    np.testing.assert_allclose(got[:, 0], np.full(50, math.sqrt(1 / (4 * math.pi))))
    np.testing.assert_allclose(
        got[:, 1:], math.sqrt(3 / (4 * math.pi)) * np.stack([y, z, x], -1), atol=1e-14
    )


@pytest.mark.parametrize("degrees", [6, 20])
def test_harmonics_are_orthonormal(degrees: int) -> None:
    """Gauss-Legendre in sin(latitude) times equal steps of longitude integrates them exactly."""
    z, weight = roots_legendre(degrees)
    lon = np.arange(2 * degrees) * 360 / (2 * degrees)
    lat = np.rad2deg(np.arcsin(z))
    x = np.stack(np.meshgrid(lat, lon, indexing="ij"), -1).reshape(-1, 2)
    area = np.repeat(weight, len(lon)) * 2 * np.pi / len(lon)
    harmonics = SphericalHarmonics(degrees)(torch.tensor(x)).numpy()
    gram = harmonics.T @ (area[:, None] * harmonics)
    np.testing.assert_allclose(gram, np.eye(degrees**2), atol=1e-12)


def embedded(*x: tuple[float, float], degrees: int = 6) -> torch.Tensor:
    return SphericalHarmonics(degrees)(torch.tensor(x, dtype=torch.float64))


def test_north_and_south_differ() -> None:
    """Defect 14."""
    for lat in (1.0, 30.0, 60.0, 90.0):
        north, south = embedded((lat, 40.0), (-lat, 40.0))
        assert (north - south).abs().max() > 1e-2


def test_the_pole_is_one_place() -> None:
    for lat in (90.0, -90.0):
        around = embedded((lat, 0.0), (lat, 90.0), (lat, -135.0), (lat, 359.0))
        torch.testing.assert_close(around, around[:1].expand_as(around), atol=1e-14, rtol=0)


def test_the_equator_is_many_places() -> None:
    around = embedded(*((0.0, lon) for lon in range(-180, 180, 5)))
    apart = torch.cdist(around, around) + torch.eye(len(around)) * 9
    assert apart.min() > 1e-2


def test_longitudes_are_the_same_in_either_range() -> None:
    places = [(lat, lon) for lat in (-60.0, 0.0, 45.0) for lon in (-180.0, -179.5, -90.0, -0.25)]
    here = embedded(*places, degrees=20)
    there = embedded(*((lat, lon + 360) for lat, lon in places), degrees=20)
    torch.testing.assert_close(here, there, atol=1e-12, rtol=0)


def test_harmonics_have_finite_gradients_at_the_poles() -> None:
    x = torch.tensor([[90.0, 0.0], [-90.0, 10.0], [0.0, 180.0]], requires_grad=True)
    SphericalHarmonics(12)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("degrees", [0, -1])
def test_at_least_one_degree_is_needed(degrees: int) -> None:
    with pytest.raises(ValueError, match=f"degrees={degrees}: must be at least 1"):
        SphericalHarmonics(degrees)


# ---- within the cell -----------------------------------------------------------------------------

GLOBE = Grid(
    (
        Axis.span("time", 0.0, 24.0, 5),
        Axis.cells("lat", -90.0, 90.0, 8),
        Axis.circle("lon", -180.0, 360.0, 16),
    ),
    "sphere",
)


@SETTINGS
@given(st.tuples(*[st.integers(-7, 7)] * 2), st.tuples(st.integers(0, 7), st.integers(-40, 40)))
def test_points_shifted_by_whole_cells_look_the_same(
    inside: tuple[int, int], cell: tuple[int, int]
) -> None:
    """From the first cell to any other, and any number of times around the seam."""
    embed = CellEmbedding(GLOBE, ["lat", "lon"], per_column=8)
    step = torch.tensor([22.5, 22.5], dtype=torch.float64)
    node = torch.tensor([-78.75, -180.0], dtype=torch.float64)
    x = node + step * torch.tensor(inside) / 16
    shifted = x + step * torch.tensor(cell)
    torch.testing.assert_close(embed(shifted), embed(x), atol=1e-12, rtol=0)


def test_the_same_place_looks_the_same_from_both_sides_of_the_seam() -> None:
    embed = CellEmbedding(GLOBE, ["lon"], per_column=8)
    places = torch.tensor([[179.0], [-181.0], [539.0]], dtype=torch.float64)
    west = embed(places)
    torch.testing.assert_close(west, west[:1].expand_as(west), atol=1e-12, rtol=0)
    border = embed(torch.tensor([[168.75], [-191.25], [146.25]], dtype=torch.float64))
    torch.testing.assert_close(border, border[:1].expand_as(border), atol=1e-12, rtol=0)


def test_in_single_precision_all_cells_look_alike_near_the_origin_of_a_circle() -> None:
    """The fine grids of weather: cells of 0.25°, coordinates of a few degrees."""
    step = 0.25
    circle = CellEmbedding(Grid((Axis.circle("lon", -180.0, 360.0, 1440),)), ["lon"], per_column=8)
    line = CellEmbedding(Grid((Axis.span("lon", -180.0, 180.0, 1441),)), ["lon"], per_column=8)
    x = torch.linspace(-0.12, 0.12, 25)[:, None] + step * torch.arange(-8, 9)[None, :]
    x = x.unsqueeze(-1)
    torch.testing.assert_close(circle(x), line(x), atol=1e-5, rtol=0)


def test_different_places_inside_a_cell_look_different() -> None:
    embed = CellEmbedding(GLOBE, ["lat"], per_column=8)
    inside = torch.arange(-8, 8)[:, None] / 16  # the upper border belongs to the next cell
    features = embed(11.25 + 22.5 * inside)
    apart = torch.cdist(features, features) + torch.eye(16) * 9
    assert apart.min() > 0.1


def test_cell_features_are_fourier_features_of_the_offset_in_cells() -> None:
    """The columns are those of the named axes, in the order of the names."""
    embed = CellEmbedding(GLOBE, ["lon", "time"], per_column=6)
    assert embed.features == 12
    x = torch.tensor([[-180.0 + 2.25, 6.0 - 1.5], [0.0, 12.0]], dtype=torch.float64)
    offset = np.array([[0.1, -0.25], [0.0, 0.0]])
    got = embed(x)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.numpy(), fourier(offset, 6, 0.5, 4.0), atol=1e-12)


# ---- several -------------------------------------------------------------------------------------


def test_raw_features_are_the_numbers_themselves() -> None:
    x = torch.randn(2, 3, 4)
    embed = RawEmbedding(4)
    assert embed.features == 4
    assert embed(x) is x


def mixed_like_identity(embed: InputEmbedding) -> InputEmbedding:
    torch.nn.init.eye_(embed.mix.weight)
    torch.nn.init.zeros_(embed.mix.bias)
    return embed


def test_every_part_sees_its_own_columns_in_its_own_order() -> None:
    waves = FourierEmbedding(1, per_column=4, shortest=1.0, longest=10.0)
    harmonics = SphericalHarmonics(3)
    parts = [((3, 0), RawEmbedding(2)), ((2,), waves), ((1, 0), harmonics), ((), RawEmbedding(0))]
    embed = mixed_like_identity(InputEmbedding(parts, dim=2 + 4 + 9))
    x = torch.randn(2, 5, 4)
    got = embed(x)
    assert got.shape == (2, 5, 15)
    torch.testing.assert_close(got[..., :2], x[..., [3, 0]])
    torch.testing.assert_close(got[..., 2:6], waves(x[..., 2:3]))
    torch.testing.assert_close(got[..., 6:], harmonics(torch.stack([x[..., 1], x[..., 0]], -1)))


def test_columns_that_no_part_asks_for_change_nothing() -> None:
    embed = InputEmbedding([((1,), RawEmbedding(1))], dim=3)
    x = torch.randn(2, 5, 3)
    other = x.clone()
    other[..., [0, 2]] = 99.0
    assert torch.equal(embed(x), embed(other))
    other[..., 1] += 1
    assert not torch.equal(embed(x), embed(other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_features_are_mixed_by_one_linear_map_in_the_precision_of_its_weights(
    dtype: torch.dtype,
) -> None:
    """Coordinates come in double precision; only their features are cast to the model's."""
    waves = FourierEmbedding(1, per_column=4, shortest=24.0, longest=8766.0)
    embed = InputEmbedding([((0,), waves)], dim=3).to(dtype)
    x = 5e5 + torch.rand(2, 5, 1, dtype=torch.float64)
    got = embed(x)
    assert got.dtype == dtype
    assert torch.equal(got, torch.nn.functional.linear(waves(x).to(dtype), *embed.parameters()))
    assert [name for name, _ in embed.named_parameters()] == ["mix.weight", "mix.bias"]
