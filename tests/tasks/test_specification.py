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


def test_more_columns_in_later_data_change_nothing(data: Dataset) -> None:
    spec, normaliser = TaskSpec.of(data), Normaliser.fit(data)
    rows = data.sources["gauges"]
    assert rows.loaded is not None
    table = pd.DataFrame(rows.loaded.astype(float), columns=list(rows.names))
    index = np.arange(rows.size)
    places = rows.places(index)
    table = table.assign(lat=rows.lat[places], lon=rows.lon[places], time=rows.times_of(index))
    later = [
        Dataset({"gauges": t}, target="gauges.rain") for t in (table, table.assign(checked=1.0))
    ]
    before, after = (spec.sampler(d, normaliser).draw(0).context["gauges"] for d in later)
    assert before.y is not None
    assert after.y is not None
    assert torch.equal(before.y, after.y)
