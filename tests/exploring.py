"""How many examples hypothesis tries: half of what a test says, or ten times as many to explore."""

from hypothesis import settings

USUAL = 100
"""Examples of a test that does not say."""


def examples(number: int) -> int:
    """So many, times what the profile tries more than usual."""
    return number * settings.default.max_examples // USUAL
