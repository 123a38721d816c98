"""Recipes: plain data with names; the paper's among them."""

import re
from dataclasses import asdict

import pytest

from gridtnp.recipes import RECIPES, Recipe, read_recipe, recipe


@pytest.mark.parametrize(("step", "rate"), [(0, 0.01), (9, 0.1), (104, 0.05), (199, 0.0)])
def test_cosine_warms_up_and_falls_to_zero(step: int, rate: float) -> None:
    found = Recipe(200, rate=0.1, schedule="cosine").rate_at(step)
    assert found == pytest.approx(rate, abs=0.004)
    assert Recipe(200, rate=0.1).rate_at(step) == 0.1


def test_the_warm_up_can_be_longer() -> None:
    slow = Recipe(200, rate=0.1, schedule="cosine", warm_up=0.5)
    assert slow.rate_at(49) == pytest.approx(0.05)
    assert slow.rate_at(99) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "steps"), [("gp", 500_000), ("stations", 300_000), ("wind", 300_000)]
)
def test_the_papers_settings_have_names(name: str, steps: int) -> None:
    r = recipe(name)
    assert (r.steps, r.batch, r.rate, r.clip, r.weight_decay) == (steps, 8, 5e-4, 0.5, 0.01)
    assert (r.schedule, r.optimiser, r.ema, r.patience) == ("constant", "adamw", 0.0, 0)


def test_recipes_survive_plain_values() -> None:
    for r in RECIPES.values():
        assert read_recipe(asdict(r)) == r


def test_bad_recipes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown recipe 'quik'; did you mean 'quick'"):
        recipe("quik")
    with pytest.raises(ValueError, match=r"Unknown setting 'rat' of a recipe; did you mean 'rate'"):
        read_recipe({"steps": 5, "rat": 1.0})
    for wrong in ({"steps": 0}, {"steps": 5, "ema": 1.0}, {"steps": 5, "optimiser": "sgd"}):
        with pytest.raises(ValueError, match=re.escape(list(wrong)[-1])):
            Recipe(**wrong)


def test_differences_are_named() -> None:
    assert Recipe(5).differences(Recipe(6, rate=1.0)) == ["steps", "rate"]
