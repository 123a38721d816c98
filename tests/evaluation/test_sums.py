"""Scores in parts: sums that add up to the evaluation of all points."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import small

from gridtnp.data.dataset import Dataset
from gridtnp.estimator import GriddedTNP
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.sums import ScoreSums


@pytest.fixture(scope="module")
def parts() -> tuple[Dataset, Dataset, Dataset]:
    return small.dataset().split(hold_out_stations=0.5)


@pytest.fixture(scope="module")
def model(parts: tuple[Dataset, Dataset, Dataset]) -> GriddedTNP:
    return small.model(parts[0])


def evaluate(model: GriddedTNP, test: Dataset, part: tuple[int, int] | None = None) -> Evaluation:
    return model.evaluate(test, ["nearest", "climatology"], batch=2, block="12h", part=part)


def assert_same(a: ScoreSums | Evaluation, b: ScoreSums | Evaluation) -> None:
    pd.testing.assert_frame_equal(a.to_dataframe(), b.to_dataframe(), rtol=1e-10, atol=1e-12)


def test_parts_add_up_to_the_whole(
    model: GriddedTNP, parts: tuple[Dataset, Dataset, Dataset], tmp_path: Path
) -> None:
    whole = evaluate(model, parts[2])
    found = [evaluate(model, parts[2], (i, 3)) for i in range(3)]
    assert sum(len(one.observed) for one in found) == len(whole.observed)
    added = ScoreSums.add_up([one.sums() for one in reversed(found)])
    assert not added.missing
    assert_same(added, whole)
    assert str(added) == str(whole)
    assert added.summaries() == whole.summaries()
    files = [one.sums().save(tmp_path / f"{i}.parquet") for i, one in enumerate(found)]
    assert_same(ScoreSums.add_up(files), whole)
    some = ScoreSums.add_up(files[1:])
    assert some.missing == [0]
    assert "2 of 3 parts; missing: [0]" in str(some)


def test_rows_of_one_time_and_place_are_one() -> None:
    found = small.evaluation()
    rows = found.sums()
    assert_same(rows, found)
    twice = small.evaluation(time=None).sums()
    assert len(twice.points) == small.STATIONS
    assert twice.points.tolist() == [small.DAYS] * small.STATIONS
    assert_same(twice, small.evaluation(time=None))


def test_parts_that_do_not_fit(
    model: GriddedTNP, parts: tuple[Dataset, Dataset, Dataset], tmp_path: Path
) -> None:
    first = evaluate(model, parts[2], (0, 3)).sums()
    with pytest.raises(ValueError, match=r"^Part 0 of 3 is given twice; leave one out\.$"):
        ScoreSums.add_up([first, first])
    other = model.evaluate(parts[2], ["nearest"], batch=2, block="12h", part=(1, 3)).sums()
    with pytest.raises(ValueError, match=r"^Part 1 was evaluated with other spreads than part 0"):
        ScoreSums.add_up([first, other])
    limited = model.evaluate(
        parts[2], ["nearest", "climatology"], batch=1, block="12h", part=(1, 3), limit=4
    )
    with pytest.raises(ValueError, match=r"^Part 1 was evaluated with other split than part 0"):
        ScoreSums.add_up([first, limited.sums()])
    with pytest.raises(ValueError, match=r"^There are no parts to add up"):
        ScoreSums.add_up([])
    with pytest.raises(ValueError, match=r"^part=\(0, 9\): there are 3 batches of times, and two"):
        evaluate(model, parts[2], (0, 9))
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet' does not hold the scores of a part"):
        ScoreSums.read(tmp_path / "a.parquet")
