"""A spec is taken from data once and makes the same tasks of later data."""

import numpy as np
import pandas as pd
import pytest
import torch

from gridtnp.data.dataset import Dataset
from gridtnp.data.normalisation import Normaliser
from gridtnp.tasks.specification import TaskSpec


@pytest.fixture
def data() -> Dataset:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "station": np.tile([f"S{i}" for i in range(12)], 6),
            "time": np.repeat(pd.date_range("2000-01-01", periods=6, freq="1D"), 12),
            "lat": np.tile(rng.uniform(40, 50, 12), 6),
            "lon": np.tile(rng.uniform(0, 10, 12), 6),
            "rain": rng.normal(size=72),
            "wind": rng.normal(size=72),
        }
    )
    return Dataset({"gauges": table}, target="gauges.rain", units={"gauges.rain": "mm"})


def test_a_specification_survives_json_and_makes_the_same_tasks(data: Dataset) -> None:
    spec = TaskSpec.of(data, coordinates=("time", "lat", "lon"), window="(-2D, 0h]")
    again = TaskSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert (spec.target_source, spec.target_names) == ("gauges", ("rain",))
    assert spec.units["gauges.rain"] == "mm"
    normaliser = Normaliser.fit(data)
    first, second = (s.sampler(data, normaliser, seed=3).draw(5) for s in (spec, again))
    assert torch.equal(first.context["gauges"].x, second.context["gauges"].x)
    assert first.context["gauges"].y.shape[-1] == 2  # rain and wind
    assert first.target.y is not None
    assert first.target.y.shape[-1] == 1


def test_a_single_variable_is_asked_for_by_name(data: Dataset) -> None:
    one = TaskSpec.of(data).contexts["gauges"].model_copy(update={"variables": ("wind",)})
    assert one.of == "gauges.wind"
