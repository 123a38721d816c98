"""Which examples hypothesis tries: the same ones for everyone, or fresh ones and many more."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import exploring
import pytest
from exploring import USUAL, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@contextmanager
def loaded(profile: str) -> Iterator[None]:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        yield
    finally:
        settings.load_profile(before)


def tried() -> list[float]:
    """What hypothesis tries, in its order."""
    found: list[float] = []

    @settings(max_examples=300)
    @given(st.floats(0, 1e9))
    def note(number: float) -> None:
        found.append(number)

    note()
    return found


def test_every_process_has_the_profile_that_was_asked_for(request: pytest.FixtureRequest) -> None:
    asked_for = request.config.getoption("--hypothesis-profile") or "same"
    assert settings.get_current_profile_name() == asked_for


@pytest.mark.parametrize("profile", ["same", "explore"])
def test_no_profile_depends_on_the_speed_of_the_machine(profile: str) -> None:
    assert settings.get_profile(profile).deadline is None
    assert HealthCheck.too_slow in settings.get_profile(profile).suppress_health_check


def test_the_same_examples_every_time_whatever_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "full_of_numbers.py"
    path.write_text(f"NUMBERS = {[k + 0.125 for k in range(500)]}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    with loaded("same"):
        assert settings.default.database is None
        assert examples(60) == 30
        before = tried()
        monkeypatch.setitem(sys.modules, path.stem, importlib.util.module_from_spec(spec))
        assert tried() == before


def test_fresh_examples_and_twenty_times_as_many() -> None:
    with loaded("explore"):
        assert settings.default.max_examples == 10 * USUAL
        assert settings.default.print_blob
        assert examples(60) == 600
        assert tried() != tried()


def test_no_test_sets_a_deadline_or_a_number_that_does_not_grow() -> None:
    for path in Path(exploring.__file__).parent.rglob("test_*.py"):
        if path.name != Path(__file__).name:
            text = path.read_text()
            assert "deadline=None" not in text, path.name
            assert text.count("max_examples=") == text.count("max_examples=examples("), path.name
