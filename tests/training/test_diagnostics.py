"""What is out of range is named."""

import torch

from gridtnp.task import PointSet, Task
from gridtnp.training.diagnostics import suspect

COLUMNS = {"a": ("rain", "wind"), "target": ("rain",), "features": ("elevation",)}


def task(size: float, feature: float = 1.0) -> Task:
    y = torch.tensor([[[0.5, -size], [1.0, 0.0]]])
    features = torch.full((1, 2, 1), feature)
    return Task(
        {"a": PointSet(torch.zeros(1, 2, 2), y, None, features)},
        PointSet(torch.zeros(1, 1, 2), torch.ones(1, 1, 1), None, torch.zeros(1, 1, 1)),
    )


def test_the_largest_value_is_named_by_source_and_variable() -> None:
    found = suspect(task(999.0), COLUMNS, 0.1)
    assert "variable 'wind' of source 'a' reaches 999" in found
    assert "feature 'elevation' of source 'a' reaches 5e+03" in suspect(
        task(1.0, 5e3), COLUMNS, 0.1
    )
    assert "variable number 1 of source 'a'" in suspect(task(999.0), {}, 0.1)


def test_where_nothing_is_out_of_range_the_rate_is_blamed() -> None:
    assert "a lower learning rate than 0.1" in suspect(task(2.0), COLUMNS, 0.1)
