"""A first experiment for some files: what is in them, and what to do with them, to be edited.

A grid without times is static, everything else a source; the target is a variable of a source of
points if there is one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gridtnp.cli.experiment import Experiment, Judging, Sources, Split
from gridtnp.data.description import describe_source
from gridtnp.data.quality import Note
from gridtnp.data.reading import read_source
from gridtnp.data.sources import Panel, Records, Source
from gridtnp.errors import require_known

FEW_STATIONS = 20
DAY = np.timedelta64(1, "D")


def named(files: Sequence[str]) -> dict[str, str]:
    """`stations=a.csv` or plain paths, which are called after the file."""
    found: dict[str, str] = {}
    for file in files:
        name, equals, path = file.partition("=")
        if not equals:
            path = file
            stem = Path(file.rstrip("/")).name.split(".")[0]
            name = "".join(c if c.isalnum() else "_" for c in stem).strip("_") or "source"
        if name in found:
            raise ValueError(
                f"Every file must have a name of its own, but {found[name]!r} and {path!r} are "
                f"both called {name!r}; name them: other={path}."
            )
        found[name] = path
    return found


def looked_at(files: Sequence[str]) -> dict[str, tuple[Source, list[Note]]]:
    """What every file holds."""
    return {name: read_source(name, path) for name, path in named(files).items()}


def told(found: Mapping[str, tuple[Source, list[Note]]]) -> str:
    """The same in words."""
    lines = []
    for source, notes in found.values():
        lines += describe_source(source)
        lines += [f"  {note}" for note in notes]
    return "\n".join(lines)


def first_experiment(
    files: Sequence[str], target: str | None, folder: Path
) -> tuple[Experiment, tuple[str, ...]]:
    """With paths relative to the folder that it will be in, and the reasons for its choices."""
    paths = named(files)
    found = {name: source for name, (source, _) in looked_at(files).items()}
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
    rivals = ("nearest", "idw", "kriging-drift" if static else "kriging")
    made = Experiment(data=data, split=split, evaluate=Judging(baselines=rivals))
    return made, tuple(reasons)


def _is_static_grid(source: Source) -> bool:
    return isinstance(source, Panel) and source.shape is not None and source.times is None


def _split(source: Source, reasons: list[str]) -> Split:
    """Later times and other stations, where there are enough of them."""
    stations = 0 if source.labels is None else len(np.unique(source.labels))
    held = 0.2 if stations >= FEW_STATIONS else None
    time = None
    if source.times is not None and len(moments := np.unique(source.times)) >= 10:
        a, b = (moments[int(share * len(moments))] for share in (0.8, 0.9))
        time = (str(a.astype("datetime64[s]")), str(b.astype("datetime64[s]")))
    if time or held:
        parts = [f"times from {time[0]} on" if time else "", "a fifth of the stations" * bool(held)]
        reasons.append(f"split: {' and '.join(p for p in parts if p)} are kept apart")
    return Split(time=time, hold_out_stations=held)


def _features(source: Source) -> tuple[str, ...]:
    """Season and time of day, where the data are long and fine enough to show them."""
    if source.times is None or len(moments := np.unique(source.times)) < 2:
        return ()
    step, span = np.median(np.diff(moments)), moments[-1] - moments[0]
    season = ("month" if step > 20 * DAY else "day_of_year",) if span > 90 * DAY else ()
    return (*season, *(("local_hour",) if step < DAY else ()))


def _relative(path: str, folder: Path) -> str:
    return path if "://" in path else os.path.relpath(Path(path).resolve(), folder.resolve())
