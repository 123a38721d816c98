"""Messages of the library in terms of the command line: `resume=True` becomes `--resume`.

A keyword argument becomes the flag of the same name. Where a command has none and it is a key of
the experiment, it becomes an option of `fit`, `--split.blocks 5`, or for other commands an entry of
the file, `split.blocks: 5 in experiment.yaml`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from functools import cache

RENAMED = {"to": "output", "n": "number", "client": "scheduler"}
"""Keyword arguments whose flag has another name."""
PLACEHOLDERS = {"static": "FILE", "times": "TIME", "units": "UNIT"}
"""What `...` stands for in the value of a keyword argument."""
_QUOTED = r"'[^']*'|\"[^\"]*\""
_KEYWORD = re.compile(
    r"(?<![\w.'\"/-])(?<!\w\()"  # not in a path, a quoted text or a call such as ds.isel(time=0)
    rf"(?P<name>[a-z_]+)=(?P<value>\[[^]]*\]|\{{[^}}]*\}}|{_QUOTED}|[+-]?\w(?:[\w.+-]*\w)?|)"
)
_CALLS: tuple[tuple[str, str], ...] = (
    (r"(?:model\.)?fit\(.*?resume=True\)", "gridtnp fit EXPERIMENT --resume"),
    (r"(?:model\.)?evaluate\(.*?train=\w+\)", "a split in the experiment"),
    (r"give the test part: .*?data\.split\(\.\.\.\)", "set a split in the experiment"),
    (r"load it with (?:gt\.)?GriddedTNP\.load", "repeat the options that it began with"),
    (r",? or pass the data of all times, without \.at\(\.\.\.\)", ""),
    (rf"(?:\w+)?\.at\((?P<time>{_QUOTED}|\.\.\.)\)", r"times=[\g<time>]"),
)
"""Advice that is a call, with what to say instead; applied before keyword arguments."""


def in_flags(message: str, command: str, flags: Collection[str]) -> str:
    """A message of the library for the user of a command that has these flags."""
    for call, instead in _CALLS:
        message = re.sub(call, instead, message)
    where = " in experiment.yaml"

    def replace(found: re.Match[str]) -> str:
        nonlocal where
        name, value = found["name"], found["value"]
        flag = RENAMED.get(name, name)
        if flag in flags:
            return " ".join([f"--{flag}", *_words(name, value)])
        key = _experiment_keys().get(name)
        if key is None:
            return found[0]
        if command == "fit":
            return _option(key, name, value)
        entry = (f"{key}: {_yaml(name, value)}" if value else key) + where
        where = ""  # once is enough
        return entry

    return _KEYWORD.sub(replace, message)


@cache
def _experiment_keys() -> dict[str, str]:
    """Keyword arguments that are keys of an experiment, with their sections."""
    from gridtnp.cli.experiment import Scoring, Sources, Split, Training
    from gridtnp.design.models import ModelOptions
    from gridtnp.recipes import Recipe

    sections = {
        "data": Sources.model_fields,
        "train": {**Training.model_fields, **Recipe.__dataclass_fields__},
        "split": Split.model_fields,
        "model": ModelOptions.model_fields,
        "evaluate": Scoring.model_fields,
    }
    keys = {"out": "out"}
    for section, fields in sections.items():
        for name in fields:
            keys.setdefault(name, f"{section}.{name}")
    return keys


def _words(name: str, value: str) -> list[str]:
    """A value as the arguments of a flag: lists one by one, mappings as key=value."""
    if value == "True":
        return []
    return [shlex.quote(item.replace(": ", "=")) for item in _items(name, value)]


def _option(key: str, name: str, value: str) -> str:
    """A key of the experiment as `fit` takes it."""
    if value in ("", "True"):
        return f"--{key}" + (" true" if value else "")
    inner, _, rest = "".join(_items(name, value)).partition(": ")
    if value.startswith("{") and "." not in inner:
        return f"--{key}.{inner} {rest}"
    return f"--{key} {shlex.quote(_yaml(name, value))}"


def _yaml(name: str, value: str) -> str:
    """A value as YAML writes it, on one line."""
    text = ", ".join(_items(name, value))
    return f"{value[0]}{text}{value[-1]}" if value[0] in "[{" else text


def _items(name: str, value: str) -> list[str]:
    """The items of a Python value without quotes, `...` replaced by what belongs there."""
    inner = value[1:-1] if value[:1] in ("[", "{") else value
    plain = [re.sub(r"['\"]", "", item.strip()) for item in inner.split(",")]
    return [item.replace("...", PLACEHOLDERS.get(name, "...")) for item in plain if item]
