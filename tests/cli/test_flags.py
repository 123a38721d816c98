"""Messages of the library advise the flags of the command line, whatever command raised them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gridtnp
from gridtnp import Dataset, GriddedTNP, Recipe
from gridtnp.cli.commands import app, flags_of
from gridtnp.cli.flags import in_flags

SOURCES = Path(gridtnp.__file__).parent
EDGES = ("cli", "ops", "network", "plots", "reproduce", "synthetic", "testing.py", "demo")
"""Not used by these commands, or written for the command line."""
COMMANDS = ("inspect", "init", "fit", "evaluate", "predict", "status", "sample", "export", "report")
COMMANDS += ("serve", "interpolate")
ONLY_IN_PYTHON = {"block", "chunk", "config", "memory", "progress", "quiet", "rows", "selection"}
ONLY_IN_PYTHON |= {"shard", "trackers", "train", "val"}
"""Arguments that users of a command do not pass, so that no message can be about theirs."""


@pytest.mark.parametrize(
    ("command", "message", "shown"),
    [
        ("predict", "overwrite=True replaces it.", "--overwrite replaces it."),
        ("sample", "pass overwrite=True to replace it.", "pass --overwrite to replace it."),
        ("fit", "go on with resume=True or", "go on with --resume or"),
        ("evaluate", "fit(..., out='runs/a', resume=True)", "gridtnp fit EXPERIMENT --resume"),
        ("fit", "give out='runs/...'.", "give --out runs/...."),
        (
            "predict",
            "choose one, data.at('2019-03-02'), or several, times=[...].",
            "choose one, --times 2019-03-02, or several, --times TIME.",
        ),
        ("sample", "data.at('2019-03-02 06:00')", "--times '2019-03-02 06:00'"),
        ("predict", "times=[] is empty; give", "--times is empty; give"),
        ("predict", "or leave out times=.", "or leave out --times."),
        (
            "predict",
            "ask for other times, or pass the data of all times, without .at(...).",
            "ask for other times.",
        ),
        ("predict", "give static={'elevation': ...}, or", "give --static elevation=FILE, or"),
        ("predict", "static= is for fresh sources", "--static is for fresh sources"),
        ("fit", "a field: static={'elevation': ...}.", "a field: --data.static.elevation FILE."),
        ("evaluate", "static=, features=.", "data.static in experiment.yaml, data.features."),
        (
            "evaluate",
            "say units={'stations.t2m': ...}.",
            "say data.units: {stations.t2m: UNIT} in experiment.yaml.",
        ),
        ("predict", "na_values=['M'] masks it", "data.na_values: [M] in experiment.yaml masks it"),
        ("fit", "projection: crs={'obs': 'EPSG:1'}.", "projection: --data.crs.obs EPSG:1."),
        (
            "fit",
            "say units={'stations.t2m': ...}.",
            "say --data.units '{stations.t2m: UNIT}'.",
        ),
        (
            "fit",
            "later times (time=['2018', '2019']), stations (hold_out_stations=0.2), or both.",
            "later times (--split.time '[2018, 2019]'), stations (--split.hold_out_stations 0.2), "
            "or both.",
        ),
        ("fit", "hold out blocks of it: blocks=5 (degrees).", "--split.blocks 5 (degrees)."),
        ("fit", "steps=0: must be at least 1.", "--train.steps 0: must be at least 1."),
        ("fit", 'needs optimiser="adamw", got', "needs --train.optimiser adamw, got"),
        ("fit", 'train it with positions="relative".', "--model.positions relative."),
        ("evaluate", "got limit=-1.", "got --limit -1."),
        ("evaluate", "give them: evaluate(test, ..., train=train).", "a split in the experiment."),
        ("fit", "load it with GriddedTNP.load or", "repeat the options that it began with or"),
        # what has no flag, and what only looks like an argument, stays
        ("fit", "choose one, e.g. ds.isel(time=0).", "choose one, e.g. ds.isel(time=0)."),
        ("fit", "such as 'out=a.csv' or runs/time=3", "such as 'out=a.csv' or runs/time=3"),
        ("predict", "write it like lat=37:41,lon=1:2", "write it like lat=37:41,lon=1:2"),
    ],
)
def test_arguments_become_flags(command: str, message: str, shown: str) -> None:
    assert shown in in_flags(message, command, flags_of(command))


def test_no_message_advises_python_where_there_is_a_flag() -> None:
    """Every text in the library, as every command would print it."""
    methods = (Dataset, Dataset.split, GriddedTNP.for_data, GriddedTNP.fit, GriddedTNP.evaluate)
    methods += (GriddedTNP.predict, GriddedTNP.sample, GriddedTNP.report, Recipe)
    known = {name for method in methods for name in inspect.signature(method).parameters}
    names = "|".join(sorted(known - {"self", "test"} - ONLY_IN_PYTHON))
    python = re.compile(rf"(?<![\w.'-])(?<!\w\()({names})=|(\.at)\(|(GriddedTNP\.load)")
    found = {text for path in _modules() for text in _texts(path) if python.search(text)}
    assert len(found) > 10
    for text in found:
        shown = {c: in_flags(text, c, flags_of(c)) for c in COMMANDS}
        left = {c: {m[0] for m in python.finditer(text)} for c, text in shown.items()}
        assert not set.intersection(*left.values()), f"no command has a flag for: {text}"
        for command, arguments in left.items():
            own = arguments & {f"{flag}=" for flag in flags_of(command)}
            assert not own, f"{command}: {shown[command]}"


def test_all_commands_are_covered() -> None:
    names = {name for name in app if not name.startswith("-")}
    assert names == {*COMMANDS, "doctor", "reproduce"}


def _modules() -> Iterator[Path]:
    for path in sorted(SOURCES.rglob("*.py")):
        if path.relative_to(SOURCES).parts[0] not in EDGES:
            yield path


def _texts(path: Path) -> Iterator[str]:
    """All texts of a module but docstrings, with 'x' for what is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr | ast.JoinedStr):
            skipped |= {id(child) for child in ast.iter_child_nodes(node)}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in skipped:
                yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value)
                if isinstance(part, ast.Constant)
                else "'x'"
                if isinstance(part, ast.FormattedValue) and part.conversion == ord("r")
                else "x"
                for part in node.values
            )
