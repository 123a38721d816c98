"""Divergence is explained by the value that is out of range."""

import torch

from gridtnp.task import PointSet, Task
from gridtnp.training.diagnostics import explain_divergence

COLUMNS = {"a": ("rain", "wind"), "target": ("rain",), "features": ("elevation",)}


def task(size: float, feature: float = 1.0) -> Task:
    y = torch.tensor([[[0.5, -size], [1.0, 0.0]]])
    features = torch.full((1, 2, 1), feature)
    return Task(
        {"a": PointSet(torch.zeros(1, 2, 2), y, None, features)},
        PointSet(torch.zeros(1, 1, 2), torch.ones(1, 1, 1), None, torch.zeros(1, 1, 1)),
    )


def test_the_largest_value_is_named_by_source_and_variable() -> None:
    found = explain_divergence(task(999.0), COLUMNS, 0.1)
    assert found.startswith("variable 'wind' of source 'a' reaches 999 after normalisation")
    found = explain_divergence(task(1.0, 5e3), COLUMNS, 0.1)
    assert found.startswith("feature 'elevation' of source 'a' reaches 5e+03")
    assert "variable number 1 of source 'a'" in explain_divergence(task(999.0), {}, 0.1)


def test_where_nothing_is_out_of_range_the_rate_is_blamed() -> None:
    found = explain_divergence(task(2.0), COLUMNS, 0.1)
    assert found.startswith("no value of the batch is out of range")
    assert found.endswith("try a learning rate lower than 0.1.")
