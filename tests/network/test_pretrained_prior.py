"""Networks that start from kriging beside the pretrained process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small
import torch
from test_kriged_network import config

import gridtnp as gt
from gridtnp import GriddedTNP, PointSet, Task, build_model
from gridtnp.config import Kriging
from gridtnp.exporting import export
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.recipes import Recipe
from gridtnp.training.calibration import calibrate_network


def network(pretrained: bool = True) -> KrigedNetwork:
    prior = Kriging(of=(("stations", 0),), drift=("elevation",), pretrained=pretrained)
    torch.manual_seed(0)
    found = build_model(config(sources={"stations": 1}, prior=prior))
    assert isinstance(found, KrigedNetwork)
    return found.eval()


def points(n: int, seed: int, batch: int = 2) -> PointSet:
    """Of a smooth field that depends on elevation."""
    g = torch.Generator().manual_seed(seed)
    x = torch.tensor([40.5, 0.5]) + 7 * torch.rand(batch, n, 2, generator=g)
    elevation = torch.randn(batch, n, 1, generator=g)
    y = torch.sin(x[..., :1]) + torch.cos(x[..., 1:]) - 0.5 * elevation
    return PointSet(x, y + 0.1 * torch.randn(y.shape, generator=g), None, elevation)


def task(n: int = 50, m: int = 80) -> Task:
    return Task({"stations": points(n, 1)}, points(m, 2))


def test_without_a_share_it_is_the_network_alone() -> None:
    with torch.no_grad():
        torch.testing.assert_close(network()(task()).mean, network(False)(task()).mean)


def test_with_all_of_the_share_it_is_what_interpolate_gives() -> None:
    one, made = task(), network()
    made.share.fill_(1.0)
    with torch.no_grad():
        found = made(one)
    for b in range(2):
        tables = []
        for some in (one.context["stations"], one.target):
            assert some.features is not None
            assert some.y is not None
            columns = torch.cat([some.x[b], some.features[b], some.y[b]], -1).double().numpy()
            tables.append(pd.DataFrame(columns, columns=["lat", "lon", "elevation", "t"]))
        expected = gt.interpolate(
            tables[0], tables[1].drop(columns="t"), value="t", covariates="elevation"
        )
        assert isinstance(expected, pd.DataFrame)
        np.testing.assert_allclose(found.mean[b, :, 0], expected["t_mean"], atol=2e-3)
        width = (expected["t_q95"] - expected["t_q05"]) / (2 * 1.6448536)
        np.testing.assert_allclose(found.stddev[b, :, 0], width, rtol=5e-3)


def test_a_share_blends_means_and_log_standard_deviations() -> None:
    one, made, found = task(), network(), []
    with torch.no_grad():
        for share in (0.0, 0.25, 1.0):
            made.share.fill_(share)
            found.append(made(one))
    low, some, high = found
    torch.testing.assert_close(some.mean, low.mean.lerp(high.mean, 0.25))
    expected = low.stddev.log().lerp(high.stddev.log(), 0.25)
    torch.testing.assert_close(some.stddev.log(), expected)


def test_contexts_that_say_nothing_leave_kriging_alone() -> None:
    context = points(50, 1)
    mask = torch.stack([torch.arange(50) < 2, torch.arange(50) < 30])  # two observations; thirty
    one = Task({"stations": replace(context, mask=mask)}, points(9, 2))
    made = network()
    with torch.no_grad():
        before = made(one)
        made.share.fill_(1.0)
        after = made(one)
        empty = made(Task({}, points(9, 2)))
    torch.testing.assert_close(after.mean[0], before.mean[0])
    assert (after.mean[1] - before.mean[1]).abs().max() > 1e-3
    assert empty.mean.isfinite().all()


def test_the_share_is_chosen_on_validation_tasks() -> None:
    made, one = network(), task(m=200)
    with torch.no_grad():
        alone = made(one)
        made.share.fill_(1.0)
        other = made(one)
        g = torch.Generator().manual_seed(0)
        for share in (0.0, 0.5, 1.0):
            y, std = alone.mean.lerp(other.mean, share), alone.stddev.lerp(other.stddev, share)
            y = y + std * torch.randn(y.shape, generator=g)
            calibrate_network(made, [Task(one.context, replace(one.target, y=y))])
            assert made.share.item() == share


def test_it_is_fitted_saved_loaded_and_predicts_in_tiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = small.table(16)
    data = small.dataset(rows)
    options = {"dim": 16, "heads": 2, "layers": 1, "start": "pretrained"}
    model = GriddedTNP.for_data(data, **options)
    assert "blended with the pretrained process" in " ".join(capsys.readouterr().out.split())
    names = [name for name, _ in model.network.named_parameters()]
    assert not any(name.startswith("pretrained") for name in names)  # which is not trained
    model.fit(data, data, recipe=Recipe(2, 2, 1e-3))
    assert "of the pretrained process" in " ".join(capsys.readouterr().out.split())
    assert isinstance(model.network, KrigedNetwork)
    model.network.share.fill_(0.5)
    once = data.at(small.TIMES[2])
    places = rows[["station", "lat", "lon", "elevation"]].drop_duplicates("station")
    before = model.predict(once, at=places, progress=False)
    again = GriddedTNP.load(model.save(tmp_path / "model"))
    assert isinstance(again.network, KrigedNetwork)
    assert again.network.share.item() == 0.5
    after = again.predict(once, at=places, progress=False)
    np.testing.assert_array_equal(before["t2m_mean"], after["t2m_mean"])
    with pytest.raises(ValueError, match="cannot be exported or compiled; fit one with start="):
        export(again.network, tmp_path / "graph.pt2")


def test_where_it_cannot_start_from_it_says_why() -> None:
    data = small.dataset()
    with pytest.raises(ValueError, match=r"because the network corrects no kriging \(as given\)"):
        GriddedTNP.for_data(data, prior="none", start="pretrained", quiet=True)
    with pytest.raises(ValueError, match="because the contexts have several times"):
        GriddedTNP.for_data(data, context_window="(-12h, 0h]", start="pretrained", quiet=True)
