"""Joint samples: beside an exact Gaussian process they have its variogram, spread and mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small
import torch
import xarray as xr
from exploring import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal

from gridtnp.config import ModelConfig
from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.data.places import latlon_grid
from gridtnp.estimator import GriddedTNP
from gridtnp.files import read_tensors
from gridtnp.inference.joint_samples import farthest_points
from gridtnp.network.build import build_model
from gridtnp.network.model import NeuralProcess, Signature
from gridtnp.reproduce import gp
from gridtnp.sources.quality import DataWarning
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.processes import GaussianProcess, draw_at
from gridtnp.task import PointSet
from gridtnp.tasks.specification import TaskSpec

NOON = "2019-03-01T12:00"
MEAN, STD = 280.0, 5.0
KERNEL, NOISE = SquaredExponential(0.5), 0.1


class ExactProcess(NeuralProcess):
    """A Gaussian process on a small piece of the plane, conditioned exactly."""

    def __init__(self, length: float, noise: float = 0.05, smooth: bool = True) -> None:
        super().__init__(Signature(("lat", "lon"), (), {"stations": 1}, 1))
        self.length, self.noise, self.smooth = length, noise, smooth

    def covariance(self, a: Tensor, b: Tensor) -> Tensor:
        apart = torch.cdist(a.double(), b.double()) / self.length
        return torch.exp(-0.5 * apart**2) if self.smooth else torch.exp(-apart)

    def encode(self, context: Mapping[str, PointSet]) -> Any:
        points = context["stations"]
        assert points.y is not None
        own = self.covariance(points.x, points.x)
        own = own + self.noise**2 * torch.eye(points.n, dtype=torch.float64)
        root = torch.linalg.cholesky(own)
        return points.x, root, torch.linalg.solve_triangular(root, points.y.double(), upper=False)

    def decode(self, encoding: Any, target: PointSet) -> Normal:
        x, root, values = encoding
        across = torch.linalg.solve_triangular(root, self.covariance(x, target.x), upper=False)
        variance = 1 + self.noise**2 - across.square().sum(-2)[..., None]
        return Normal(across.mT @ values, variance.sqrt())


def exact(length: float, rows: pd.DataFrame | None = None, smooth: bool = True) -> GriddedTNP:
    """Near the equator, where a degree is one in every direction."""
    rows = stations(3) if rows is None else rows
    data = Dataset({"stations": rows}, target="stations.t2m")
    normaliser = Normaliser({"stations.t2m": MEAN}, {"stations.t2m": STD})
    config = small.model().config  # describes another network; nothing here looks at it
    return GriddedTNP(config, TaskSpec.of(data), normaliser, ExactProcess(length, smooth=smooth))


def stations(number: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "station": [f"S{i}" for i in range(number)],
            "lat": rng.uniform(-1, 1, number),
            "lon": rng.uniform(-1, 1, number),
            "t2m": rng.normal(MEAN, STD, number),
        }
    )


GRID = latlon_grid(lat=(-1.0, 1.0), lon=(-1.0, 1.0), step=0.1)


def variogram(fields: np.ndarray, lag: int) -> float:
    """Half the mean squared difference at so many steps along both axes."""
    across = (fields[..., lag:] - fields[..., :-lag]) ** 2
    along = (fields[..., lag:, :] - fields[..., :-lag, :]) ** 2
    return 0.5 * float(np.mean([across.mean(), along.mean()]))


def posterior(model: GriddedTNP, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the noise-free field on the grid, in normalised units."""
    network = model.network
    assert isinstance(network, ExactProcess)
    lat, lon = np.meshgrid(GRID.lat, GRID.lon, indexing="ij")
    x = torch.from_numpy(np.stack([lat.ravel(), lon.ravel()], -1))
    seen = torch.tensor(rows[["lat", "lon"]].to_numpy())
    own = network.covariance(seen, seen) + network.noise**2 * torch.eye(len(seen))
    gain = torch.linalg.solve(own.double(), network.covariance(seen, x)).mT
    y = torch.tensor(((rows.t2m - MEAN) / STD).to_numpy())
    covariance = network.covariance(x, x) - gain @ network.covariance(seen, x)
    return (gain @ y).numpy(), covariance.numpy()


def expected_variogram(mean: np.ndarray, covariance: np.ndarray, lag: int) -> float:
    """Of the field's distribution on a square: what samples of it have on average."""
    side = round(len(mean) ** 0.5)
    index = np.arange(side * side).reshape(side, side)
    pairs = [(index[:, lag:], index[:, :-lag]), (index[lag:], index[:-lag])]
    found = []
    for a, b in pairs:
        a, b = a.ravel(), b.ravel()
        spread = covariance[a, a] + covariance[b, b] - 2 * covariance[a, b]
        found.append(np.mean(spread + (mean[a] - mean[b]) ** 2))
    return 0.5 * float(np.mean(found))


@pytest.mark.parametrize(
    ("length", "smooth", "subset", "tolerance"),
    [(0.5, True, 64, 0.08), (0.25, True, 128, 0.08), (1.0, False, 128, 0.1)],
)
def test_samples_have_the_variogram_of_the_process(
    length: float, smooth: bool, subset: int, tolerance: float
) -> None:
    rows = stations(3)
    model = exact(length, rows, smooth)
    made = model.sample(150, {"stations": rows}, GRID, subset=subset, seed=1)
    assert isinstance(made, xr.Dataset)
    fields = (made.t2m.values - MEAN) / STD
    mean, covariance = posterior(model, rows)
    for lag in (1, 2, 4, 8):
        wanted = expected_variogram(mean, covariance, lag)
        assert variogram(fields, lag) == pytest.approx(wanted, rel=tolerance), lag


def test_independent_points_would_not_have_it() -> None:
    """The test above can fail: drawn point by point, a field is rough."""
    rows = stations(3)
    model = exact(0.5, rows)
    point = model.predict({"stations": rows}, GRID)
    assert isinstance(point, xr.Dataset)
    noise = np.random.default_rng(0).standard_normal((60, *point.t2m_mean.shape))
    fields = ((point.t2m_mean.values + point.t2m_std.values * noise) - MEAN) / STD
    wanted = expected_variogram(*posterior(model, rows), 2)
    assert variogram(fields, 2) > 3 * wanted


def test_samples_of_a_trained_network_have_the_variogram_of_its_process() -> None:
    """The network in the box, with as many observations as it was trained with.

    From the space between drawn points on, whole fields are within 3 % of the exact posterior, and
    what differs from sample to sample, noise and all, within a quarter: so few samples vary that
    much. Closer together, noise is smooth by design, and all else is the process's.
    """
    config, network = trained_on_the_sphere()
    draw = draw_at(GaussianProcess(((-3, 3),) * 2, 2500, 1, kernel=KERNEL), 5, 0, 1)
    seen = draw.task.context["observations"]
    assert seen.y is not None
    x, y = seen.x[0].double(), seen.y[0, :, 0].double()
    rows = pd.DataFrame({"lat": x[:, 0], "lon": x[:, 1], "y": y})
    data = Dataset({"observations": rows}, target="observations.y")
    plain = Normaliser({"observations.y": 0.0}, {"observations.y": 1.0})
    model = GriddedTNP(config, TaskSpec.of(data), plain, network)
    square = latlon_grid(lat=(-1.5, 1.5), lon=(-1.5, 1.5), step=0.125)
    made = model.sample(4, data, square, subset=36, progress=False)
    assert isinstance(made, xr.Dataset)
    mean, covariance = exact_posterior(x, y, square)
    for lag in (4, 6, 8, 12):  # drawn points are about four steps apart
        wanted = expected_variogram(mean, covariance, lag) + NOISE**2
        assert variogram(made.y.values, lag) == pytest.approx(wanted, rel=0.03), lag
        wanted = expected_variogram(0 * mean, covariance, lag) + NOISE**2
        found = variogram((made.y - made.y.mean("sample")).values, lag) * 4 / 3
        assert found == pytest.approx(wanted, rel=0.25), lag
    for lag in (1, 2):
        bare = expected_variogram(mean, covariance, lag)
        assert 0.97 * bare < variogram(made.y.values, lag) < 1.03 * (bare + NOISE**2)


def trained_on_the_sphere() -> tuple[ModelConfig, NeuralProcess]:
    """The same weights under the names of coordinates on the earth; at the equator it is flat."""
    _, about = read_tensors(Path(gp.__file__).parent / "gp-0.5.safetensors")
    config = about["config"].replace('"x1"', '"lat"').replace('"x2"', '"lon"')
    named = ModelConfig.model_validate_json(config)
    network = build_model(named)
    network.load_state_dict(gp.trained(0.5).state_dict())
    return named, network.eval()


def exact_posterior(x: Tensor, y: Tensor, square: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Of the function without noise."""
    lat, lon = np.meshgrid(square.lat, square.lon, indexing="ij")
    at = torch.from_numpy(np.stack([lat.ravel(), lon.ravel()], -1))
    own = KERNEL.covariance(x, x) + NOISE**2 * torch.eye(len(x))
    gain = torch.linalg.solve(own, KERNEL.covariance(x, at)).mT
    covariance = KERNEL.covariance(at, at) - gain @ KERNEL.covariance(x, at)
    return (gain @ y).numpy(), covariance.numpy()


@pytest.mark.parametrize("subset", [4, 64])
def test_samples_have_the_spread_and_mean_of_predictions(subset: int) -> None:
    rows = stations(5)
    model = exact(0.4, rows)
    made = model.sample(400, {"stations": rows}, GRID, subset=subset)
    point = model.predict({"stations": rows}, GRID)
    assert isinstance(made, xr.Dataset)
    assert isinstance(point, xr.Dataset)
    ratio = made.t2m.std("sample") / point.t2m_std
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.04)
    assert float(ratio.min()) > 0.8
    assert float(ratio.max()) < 1.2
    error = (made.t2m.mean("sample") - point.t2m_mean) / point.t2m_std
    assert float(np.abs(error).max()) < 4.5 / np.sqrt(400)


# ---- what comes back -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> GriddedTNP:
    return small.model()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return small.dataset()


def grid() -> xr.Dataset:
    return latlon_grid(lat=(47.5, 55.5), lon=(-4.5, 4.5), step=1.0)


def test_samples_come_in_the_form_of_the_question(model: GriddedTNP, data: Dataset) -> None:
    made = model.sample(3, data.at(NOON), grid(), subset=16)
    assert isinstance(made, xr.Dataset)
    assert made.t2m.dims == ("sample", "lat", "lon")
    assert made.t2m.attrs["units"] == "K"
    assert made.time == np.datetime64(NOON)
    rows = pd.DataFrame({"lat": [50.0, 51.0], "lon": [1.0, 2.0]}, index=["a", "b"])
    table = model.sample(2, data.at(NOON), rows, subset=16)
    assert isinstance(table, pd.DataFrame)
    assert list(table) == ["lat", "lon", "t2m_sample0", "t2m_sample1"]
    assert list(table.index) == ["a", "b"]
    arrays = model.sample(4, data, ([50.0, 51.0], [1.0, 2.0]), times=small.TIMES[:3], subset=2)
    assert isinstance(arrays, dict)
    assert arrays["t2m"].shape == (4, 3, 2)


def test_a_seed_and_a_sample_s_number_decide(model: GriddedTNP, data: Dataset) -> None:
    part, places = data.at(NOON), ([50.0, 51.0, 52.0], [1.0, 2.0, 3.0])
    few, many = (model.sample(n, part, places)["t2m"] for n in (2, 40))  # type: ignore[index]
    other = model.sample(2, part, places, seed=1)["t2m"]  # type: ignore[index]
    np.testing.assert_allclose(few, many[:2], atol=1e-4)
    assert np.abs(few - other).min() > 1e-3
    assert np.abs(many[0] - many[1]).min() > 1e-3


def test_samples_go_to_disk(model: GriddedTNP, data: Dataset, tmp_path: Path) -> None:
    path = model.sample(2, data, grid(), times=small.TIMES[:2], subset=8, to=tmp_path / "s.nc")
    made = model.sample(2, data, grid(), times=small.TIMES[:2], subset=8)
    assert isinstance(made, xr.Dataset)
    with xr.open_dataset(path) as stored:  # type: ignore[arg-type]
        np.testing.assert_array_equal(stored.t2m, made.t2m)
        assert stored.t2m.dims == ("sample", "time", "lat", "lon")


def test_points_outside_of_the_grid_are_missing(model: GriddedTNP, data: Dataset) -> None:
    wide = latlon_grid(lat=(44.5, 57.5), lon=(-4.5, 4.5), step=1.0)
    with pytest.warns(DataWarning, match="30 of 140 points lie outside of the model's grid"):
        made = model.sample(2, data.at(NOON), wide, subset=16)
    assert isinstance(made, xr.Dataset)
    there = np.isfinite(made.t2m)
    assert there.all(("sample", "lon")).values.tolist() == [False] * 2 + [True] * 11 + [False]
    with pytest.raises(ValueError, match=r"^Nothing can be predicted: 1 of 1 points lie outside"):
        model.sample(2, data.at(NOON), ([57.0], [0.0]))


def test_samples_that_cannot_be(data: Dataset) -> None:
    model = small.model()
    with pytest.raises(ValueError, match=r"^n=0: must be at least 1\.$"):
        model.sample(0, data.at(NOON), grid())
    with pytest.raises(ValueError, match=r"^subset=0: must be at least 1\.$"):
        model.sample(1, data.at(NOON), grid(), subset=0)
    ahead = model.spec.model_copy(update={"lead": "6h"})
    model.contents = replace(model.contents, spec=ahead)
    with pytest.raises(ValueError, match=r"^Joint samples need a model without lead time, but"):
        model.sample(1, data.at(NOON), grid())
    rows = small.table().assign(wind=1.0, t2m=280.0)
    both = TaskSpec.of(small.dataset(rows))
    assert both.contexts["stations"].variables == ("t2m", "wind")
    model.contents = replace(model.contents, spec=both)
    with pytest.raises(ValueError, match=r"but \['t2m'\] of source 'stations' share theirs with"):
        model.sample(1, small.dataset(rows).at(NOON), grid())


@settings(max_examples=examples(50))
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 40))
def test_farthest_points_take_the_farthest_place_next(seed: int, n: int, number: int) -> None:
    places = np.random.default_rng(seed).integers(0, 6, (n, 2)).astype(float)
    order, width = farthest_points(places, number)
    assert len(order) == len(set(order.tolist())) == min(n, number)
    for i in range(1, len(order)):
        rest = np.setdiff1d(np.arange(n), order[:i])
        near = np.linalg.norm(places[rest][:, None] - places[order[:i]], axis=-1).min(1)
        assert near.max() == near[rest == order[i]]
        if i == len(order) - 1:
            assert width == near.max()
