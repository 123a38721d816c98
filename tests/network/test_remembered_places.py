"""Networks that know how their places deviate from the regression: fitted, forgotten, saved."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_kriged_network import GRID, config

from gridtnp import (
    Dataset,
    GriddedTNP,
    ModelConfig,
    PointSet,
    Task,
    build_model,
    testing,
)
from gridtnp.config import Kriging
from gridtnp.network import kriging
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.recipes import Recipe
from gridtnp.training.fit import _task_maker

PLACES = 6


def remembering() -> ModelConfig:
    prior = Kriging(of=(("stations", 0),), drift=("elevation",), length_scale=2.0, places=PLACES)
    return config(sources={"stations": 1}, prior=prior)


def stations(n: int, seed: int) -> PointSet:
    g = torch.Generator().manual_seed(seed)
    place = torch.tensor([40.5, 0.5]) + 7 * torch.rand(1, n, 2, generator=g)
    y = torch.randn(1, n, 1, generator=g)
    return PointSet(place, y, None, torch.randn(1, n, 1, generator=g))


def knowing(at: PointSet) -> KrigedNetwork:
    """A network that knows deviations of the places of some points."""
    network = build_model(remembering())
    assert isinstance(network, KrigedNetwork)
    field = network.process(0).persistent
    assert field is not None
    x = network.process(0).coordinates(network._inputs(at, at.x[..., :0]))[0]
    field.amplitude.fill_(-0.5)
    field.own.fill_(-1.0)
    field.length.fill_(1.0)
    field.places[: len(x)] = x
    field.value[: len(x)] = torch.linspace(-2, 2, len(x))
    field.error.copy_(0.01 * torch.eye(PLACES))
    field.used[: len(x)] = 1.0
    return network.eval()


def test_known_places_are_predicted_with_their_deviations() -> None:
    at = stations(PLACES, 0)
    network, plain = knowing(at), build_model(remembering()).eval()
    nothing = Task({}, at)
    with torch.no_grad():
        known, unknown = network(nothing), plain(nothing)
    wanted = torch.linspace(-2, 2, PLACES)[None, :, None]
    assert (known.mean - unknown.mean - wanted).abs().max().item() < 0.15
    far = Task({}, replace(stations(5, 3), x=stations(5, 3).x))
    assert (network(far).mean - plain(far).mean).abs().max().item() > 0.05


def test_kriging_from_the_nearest_knows_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    at = stations(PLACES, 0)
    network, task = knowing(at), Task({"stations": stations(20, 1)}, at)
    with torch.no_grad():
        whole = network(task)
        monkeypatch.setattr(kriging, "EXACT", 5)
        near = network(task)
    torch.testing.assert_close(near.mean, whole.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(near.stddev, whole.stddev, rtol=1e-3, atol=1e-3)


def test_training_for_other_places_knows_those_of_the_context_only() -> None:
    at = stations(PLACES, 0)
    half = PointSet(at.x[:, :3], at.y[:, :3], None, at.features[:, :3])  # pyright: ignore
    network, fewer = knowing(at), knowing(half)
    fewer.load_state_dict(network.state_dict())
    field = fewer.process(0).persistent
    assert field is not None
    field.used[3:] = 0.0
    network.forgets.fill_(1.0)
    task = Task({"stations": half}, at)
    with torch.no_grad():
        all_known = network(task).mean
        network.train()
        torch.testing.assert_close(network(task).mean, fewer(task).mean)
        assert (network(task).mean - all_known).abs().max().item() > 0.1
        assert torch.isfinite(network(Task({}, at)).mean).all()


def test_contract() -> None:
    made = knowing(stations(PLACES, 0))
    testing.check_neural_process(partial(copy.deepcopy, made), GRID)


# ---- from data -----------------------------------------------------------------------------------


def table() -> pd.DataFrame:
    """Weather that changes from day to day, at stations that deviate from it every day."""
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(45, 50, 40), rng.uniform(0, 6, 40)
    own = rng.normal(0, 2, 40)
    rows = []
    for day in pd.date_range("2020-01-01", periods=60):
        north, east = rng.normal(0, 1, 2)
        t = 10 + north * (lat - 47) + east * (lon - 3) + own + rng.normal(0, 0.3, 40)
        rows.append(pd.DataFrame({"time": day, "lat": lat, "lon": lon, "t": t}))
    made = pd.concat(rows, ignore_index=True)
    made["station"] = made["lat"].round(6).astype(str)
    return made


@pytest.fixture(scope="module")
def fitted() -> tuple[GriddedTNP, Dataset, Dataset]:
    data = Dataset({"stations": table()}, target="stations.t")
    train, val, test = data.split(time=["2020-02-05", "2020-02-15"])
    model = GriddedTNP.for_data(train, dim=16, heads=2, layers=1, quiet=True)
    model.fit(train, val, recipe=Recipe(2, 2, 1e-3), quiet=True)
    return model, train, test


def test_stations_that_training_knows_are_predicted_better(
    fitted: tuple[GriddedTNP, Dataset, Dataset], tmp_path: Path
) -> None:
    model, _, test = fitted
    assert isinstance(model.network, KrigedNetwork)
    assert model.network.knows_places
    assert not model.network.forgets.any()
    scores = model.evaluate(test, ["kriging"]).to_dataframe()
    own, kriging = (scores[scores["forecast"] == f]["crps"].item() for f in ("model", "kriging"))
    assert own < 0.5 * kriging
    again = GriddedTNP.load(model.save(tmp_path / "model"))
    places = table()[["lat", "lon"]].drop_duplicates()
    once = test.at("2020-02-20")
    pd.testing.assert_frame_equal(
        again.predict(once, at=places, progress=False),
        model.predict(once, at=places, progress=False),
    )


def test_tasks_of_a_network_that_knows_its_places_are_not_shifted(
    fitted: tuple[GriddedTNP, Dataset, Dataset],
) -> None:
    model, train, _ = fitted
    contents = model.contents
    sampler = contents.sampler(train, batch=2, seed=0)
    drawn = _task_maker(contents, sampler, 0, 0, 1)(3)
    torch.testing.assert_close(drawn.target.x, sampler.draw(3).target.x)


def test_stations_that_move_or_were_seen_once_are_not_remembered() -> None:
    ships = table().assign(lat=lambda t: t["lat"] + 1e-3 * np.arange(len(t)))
    made = GriddedTNP.for_data(Dataset({"stations": ships}, target="stations.t"), quiet=True)
    assert made.config.prior is not None
    assert made.config.prior.places == 0


@pytest.mark.slow
def test_a_resumed_run_trains_on_the_tasks_that_it_would_have_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table()
    rows = rows[rows["time"] >= "2020-01-21"]
    data = Dataset({"stations": rows}, target="stations.t")
    train, val, _ = data.split(time=["2020-02-05", "2020-02-15"])

    def fit(out: str, *, resume: bool = False) -> GriddedTNP:
        torch.manual_seed(0)
        model = GriddedTNP.for_data(train, dim=16, heads=2, layers=1, quiet=True)
        recipe = Recipe(4, 2, 1e-3, validate_every=1)
        return model.fit(train, val, recipe=recipe, out=tmp_path / out, resume=resume, quiet=True)

    def interrupted(make: Callable[[int], Task], start: int, workers: int) -> Iterator[Task]:
        assert (start, workers) == (0, 1)
        yield from map(make, range(2))
        raise KeyboardInterrupt

    whole = fit("whole")
    assert isinstance(whole.network, KrigedNetwork)
    field = whole.network.process(0).persistent
    assert field is not None
    assert field.known
    with monkeypatch.context() as patched:
        patched.setattr("gridtnp.training.fit.prefetch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit("cut")
    again = fit("cut", resume=True)
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], weight), name
