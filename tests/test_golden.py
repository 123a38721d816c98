"""Golden numbers: predictions, losses and gradients stay what they were, whatever is refactored.

`tests/golden.py` makes them. A change on purpose is listed in the changelog under *Changed models*,
and `tests/golden.json` is written again in the same commit.
"""

import json
from pathlib import Path

import pytest
from golden import fit_numbers, preset_numbers

import gridtnp as gt

EXPECTED = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
FAST = {"gp/cnp", "gp/swin-tnp-pt-32x32", "gp/vitnp-pt-16x16", "gp/convcnp-32x32", "wind/pt-tnp-64"}
"""One preset of every kind; the others take minutes."""


def test_every_preset_has_golden_numbers() -> None:
    assert set(EXPECTED) == {*gt.PRESETS, "fit"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in gt.PRESETS]
)
def test_presets_compute_the_golden_numbers(name: str) -> None:
    found, expected = preset_numbers(name), EXPECTED[name]
    if found["gradient"] != pytest.approx(expected["gradient"], rel=1e-4, abs=1e-5):
        # where rounding decides on which side of its kink a ReLU is, double precision decides
        found["gradient"] = preset_numbers(name, double=True)["gradient"]
    for what, value in expected.items():
        assert found[what] == pytest.approx(value, rel=1e-4, abs=1e-5), what


def test_twenty_steps_of_fit_compute_the_golden_numbers() -> None:
    found = fit_numbers()
    for what, value in EXPECTED["fit"].items():
        assert found[what] == pytest.approx(value, rel=1e-3), what
