"""A first experiment for some files, to be edited: sources, target, split and features.

A grid without times is a static field, everything else a source. The target is the first variable
of a point source, if there is one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gridtnp.cli.experiment import Experiment, Sources, Split
from gridtnp.data.description import describe_source
from gridtnp.data.quality import Note
from gridtnp.data.reading import read_source
from gridtnp.data.sources import Panel, Records, Source
from gridtnp.errors import require_known

FEW_STATIONS = 20
DAY = np.timedelta64(1, "D")


def name_files(files: Sequence[str]) -> dict[str, str]:
    """Paths by name, from `name=path` or from paths alone, which get the name of the file.

    A file that exists is that file, even if its name contains "=".
    """
    found: dict[str, str] = {}
    for file in files:
        name, equals, path = file.partition("=")
        if not equals or os.path.exists(file):
            path = file
            stem = Path(file.rstrip("/")).name.split(".")[0]
            name = "".join(c if c.isalnum() else "_" for c in stem).strip("_") or "source"
        if name in found:
            raise ValueError(
                f"{found[name]!r} and {path!r} are both called {name!r}; give one another name: "
                f"other={path}."
            )
        found[name] = path
    return found


def inspect_files(files: Sequence[str]) -> dict[str, tuple[Source, list[Note]]]:
    """The source in each file, and what was done to read it."""
    return {name: read_source(name, path) for name, path in name_files(files).items()}


def describe_files(found: Mapping[str, tuple[Source, list[Note]]]) -> str:
    """Text about the sources that `inspect_files` found."""
    lines = []
    for source, notes in found.values():
        lines += describe_source(source)
        lines += [f"  {note}" for note in notes]
    return "\n".join(lines)


def first_experiment(
    files: Sequence[str], target: str | None, folder: Path
) -> tuple[Experiment, tuple[str, ...]]:
    """An experiment whose paths are relative to `folder`, and the reasons for what is in it."""
    paths = name_files(files)
    found = {name: source for name, (source, _) in inspect_files(files).items()}
    static_grids = {n: s for n, s in found.items() if _is_static_grid(s) and len(found) > 1}
    sources = {n: s for n, s in found.items() if n not in static_grids} or found
    reasons = []
    if target is None:
        points = [n for n, s in sources.items() if isinstance(s, Records)]
        owner = (points or list(sources))[0]
        target = f"{owner}.{sources[owner].names[0]}"
        others = [f"{n}.{v}" for n, s in sources.items() for v in s.names if f"{n}.{v}" != target]
        more = f"; others: {', '.join(others[:8])}" if others else ""
        reasons.append(f"target {target}: the first variable of {owner}{more}")
    owner, _, variable = target.partition(".")
    require_known(owner, sources, "source", "in --target")
    if variable:
        sources[owner].variable(variable)
    static = {v: _relative(paths[n], folder) for n, s in static_grids.items() for v in s.names}
    if static:
        reasons.append(f"static {', '.join(static)}: on a grid without times")
    split, features = _split(sources[owner], reasons), _features(sources[owner])
    data = Sources(
        sources={name: _relative(paths[name], folder) for name in sources},
        target=target,
        static=static,
        features=features,
    )
    experiment = Experiment(data=data, split=split)
    return experiment, tuple(reasons)


def _is_static_grid(source: Source) -> bool:
    return isinstance(source, Panel) and source.shape is not None and source.times is None


def _split(source: Source, reasons: list[str]) -> Split:
    """Hold out later times and some stations, if there are enough of them."""
    stations = 0 if source.labels is None else len(np.unique(source.labels))
    held = 0.2 if stations >= FEW_STATIONS else None
    time = None
    if source.times is not None and len(times := np.unique(source.times)) >= 10:
        a, b = (times[int(share * len(times))] for share in (0.8, 0.9))
        time = (str(a.astype("datetime64[s]")), str(b.astype("datetime64[s]")))
    if time or held:
        parts = [f"times from {time[0]}" if time else "", "a fifth of the stations" * bool(held)]
        reasons.append(f"split: {' and '.join(p for p in parts if p)} held out")
    return Split(time=time, hold_out_stations=held)


def _features(source: Source) -> tuple[str, ...]:
    """Season and time of day, if the data span several months and resolve the day."""
    if source.times is None or len(times := np.unique(source.times)) < 2:
        return ()
    step, span = np.median(np.diff(times)), times[-1] - times[0]
    season = ("month" if step > 20 * DAY else "day_of_year",) if span > 90 * DAY else ()
    return (*season, *(("local_hour",) if step < DAY else ()))


def _relative(path: str, folder: Path) -> str:
    return path if "://" in path else os.path.relpath(Path(path).resolve(), folder.resolve())
