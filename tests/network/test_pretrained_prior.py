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
from gridtnp.exporting import Flat, inputs, traceable
from gridtnp.network.kriging import KrigedNetwork
from gridtnp.network.pretrained import SHARE
from gridtnp.recipes import Recipe


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


def test_a_covariate_far_from_the_context_does_not_carry_it_away() -> None:
    """Ten stations in a plain say nothing of mountains: a slope per metre of their noise does."""
    one, made = task(10), network()
    seen, target = one.context["stations"], one.target
    assert seen.features is not None
    plain = replace(seen, features=1.0 + 1e-5 * seen.features)
    one = Task({"stations": plain}, target)
    with torch.no_grad():
        made.share.fill_(0.0)
        alone = made(one)
        made.share.fill_(0.25)
        blended = made(one)
    assert (blended.mean - alone.mean).abs().max() < 2.0
    assert (blended.stddev < 5 * alone.stddev).all()


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


def test_it_stays_on_the_cpu_in_its_own_precision() -> None:
    made = network()
    before = {k: v.dtype for k, v in made.pretrained.state_dict().items()}  # pyright: ignore
    made.to(torch.bfloat16)
    assert made.pretrained is not None
    assert {k: v.dtype for k, v in made.pretrained.state_dict().items()} == before
    assert made.share.dtype == torch.bfloat16


ROWS = small.table(16)


def fitted(validate: bool = True, **options: str) -> GriddedTNP:
    data = small.dataset(ROWS)
    model = GriddedTNP.for_data(data, dim=16, heads=2, layers=1, quiet=True, **options)  # pyright: ignore
    return model.fit(data, data if validate else None, recipe=Recipe(2, 2, 1e-3), quiet=True)


def test_a_quarter_of_a_fitted_model_is_the_pretrained_process(tmp_path: Path) -> None:
    data, model = small.dataset(ROWS), fitted()
    assert isinstance(model.network, KrigedNetwork)
    assert model.config.prior is not None
    assert model.config.prior.pretrained
    assert model.network.share.tolist() == [SHARE]
    names = [name for name, _ in model.network.named_parameters()]
    assert not any(name.startswith("pretrained") for name in names)  # which is not trained
    once = data.at(small.TIMES[2])
    places = ROWS[["station", "lat", "lon", "elevation"]].drop_duplicates("station")
    before = model.predict(once, at=places, progress=False)
    again = GriddedTNP.load(model.save(tmp_path / "model"))
    assert isinstance(again.network, KrigedNetwork)
    assert again.network.share.tolist() == [SHARE]
    after = again.predict(once, at=places, progress=False)
    np.testing.assert_array_equal(before["t2m_mean"], after["t2m_mean"])
    again.fit(data, recipe=Recipe(2, 2, 1e-3), quiet=True)  # trained without it, again
    assert again.network.share.tolist() == [SHARE]


def test_kriging_alone_is_a_start_too() -> None:
    model = fitted(validate=False, start="kriging")
    assert isinstance(model.network, KrigedNetwork)
    assert model.network.pretrained is None
    assert "share" not in model.network.state_dict()


def test_an_exported_graph_leaves_it_out_and_says_so() -> None:
    made, one = network(), task()
    made.share.fill_(1.0)
    with pytest.warns(UserWarning, match="leaves out the pretrained process"):
        alone = traceable(made)
    with torch.no_grad():
        torch.testing.assert_close(alone(one).mean, network(False)(one).mean)
    assert made.pretrained is not None  # the model itself keeps it
    assert traceable(alone) is alone


def test_it_is_not_compiled() -> None:
    with pytest.raises(ValueError, match="cannot be compiled or exported; fit one with start="):
        torch.export.export(Flat(network()), inputs(network(), 11, 7, torch.Generator()))


def test_where_it_cannot_start_from_it_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    data = small.dataset()
    GriddedTNP.for_data(data)
    assert "start          kriging and pretrained: 25%" in capsys.readouterr().out
    GriddedTNP.for_data(data, context_window="(-12h, 0h]")
    assert "start          kriging: the contexts have several times" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"because the network corrects no kriging \(as given\)"):
        GriddedTNP.for_data(data, prior="none", start="pretrained", quiet=True)
    with pytest.raises(ValueError, match="because the contexts have several times"):
        GriddedTNP.for_data(data, context_window="(-12h, 0h]", start="pretrained", quiet=True)
