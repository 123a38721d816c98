"""A first experiment for some files, to be edited: sources, target, split and features.

A grid without times is a static field, everything else a source. The target is the only variable
of the point sources; of several, one must be named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gridtnp.cli.experiment import Experiment, Sources, Split
from gridtnp.cli.wind import COMPONENTS, wind_components
from gridtnp.data.description import describe_source
from gridtnp.design.models import ModelOptions
from gridtnp.design.windows import Windows, choose_windows
from gridtnp.errors import require_known
from gridtnp.sources.coordinates import NAMES, plain
from gridtnp.sources.quality import Note
from gridtnp.sources.reading import open_data, read_source
from gridtnp.sources.source import Panel, Source
from gridtnp.sources.times import duration

FEW_STATIONS = 20
FEW_TIMES = 20
"""Fewer leave no time for validation after a gap."""
DAY = np.timedelta64(1, "D")
UNITS = {name: duration(f"1{name}") for name in ("D", "h", "min", "s", "ms")}
ELEVATION = (*NAMES["elevation"], "height")
"""Names of columns that hold the height of a station."""
SHOWN = 8
"""Most variables in a message."""


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
    files: Sequence[str], target: str | None, folder: Path, wind: str | None = None
) -> tuple[Experiment, tuple[str, ...]]:
    """An experiment whose paths are relative to `folder`, and the reasons for what is in it.

    `wind` names the speed and the direction, such as "stations.speed,direction"; their components
    u and v are then the target, unless another one is given.
    """
    paths = name_files(files)
    inspected = inspect_files(files)
    found = {name: source for name, (source, _) in inspected.items()}
    winds = {} if wind is None else _parse_wind(wind, found)
    for name, columns in winds.items():
        found[name], _ = read_source(name, wind_components(open_data(paths[name]), *columns))
    static_grids = {n: s for n, s in found.items() if _is_static_grid(s) and len(found) > 1}
    sources = {n: s for n, s in found.items() if n not in static_grids} or found
    reasons = []
    targets = (target,) if target else tuple(f"{n}.{c}" for n in winds for c in COMPONENTS)
    if not targets:
        targets = (_only_target(sources),)
        reasons.append(f"target {targets[0]}: the only variable that could be meant")
    owner, _, variable = targets[0].partition(".")
    require_known(owner, sources, "source", "in --target")
    if variable:
        sources[owner].variable(variable)
    reasons += [f"wind {n}: {' and '.join(c)} become u and v" for n, c in winds.items()]
    static = {v: _relative(paths[n], folder) for n, s in static_grids.items() for v in s.names}
    if static:
        reasons.append(f"static {', '.join(static)}: on a grid without times")
    others = [name for name in sources if name != owner]
    for column in sources[owner].columns:
        if plain(column) not in ELEVATION or any(plain(name) in ELEVATION for name in static):
            continue
        without = [n for n in others if not any(plain(c) in ELEVATION for c in sources[n].columns)]
        if without:
            reasons.append(
                f"static {column}: left out, because {without[0]} has none; give it as a field"
            )
            continue
        static[column] = f"{owner}.{column}"
        reasons.append(f"static {column}: a column of {owner}; maps need it as a field, too")
    missing: dict[float, str] = {
        note.sentinel: note.source
        for _, notes in inspected.values()
        for note in notes
        if note.sentinel is not None
    }
    reasons += [
        f"missing values {value:g}: in {name}, far from all other values"
        for value, name in missing.items()
    ]
    windows = choose_windows(sources[owner])
    reasons += [f"time window {windows.window}: {windows.reason}"] * bool(windows.reason)
    split, features = _split(sources[owner], windows, reasons), _features(sources[owner])
    data = Sources(
        sources={name: _relative(paths[name], folder) for name in sources},
        target=targets[0] if len(targets) == 1 else targets,
        static=static,
        features=features,
        na_values=tuple(missing),
        wind=winds,
    )
    model = ModelOptions(
        context_window=windows.window, target_window=windows.window, every=windows.every
    )
    if winds and target is None:
        model = model.model_copy(update={"likelihood": "bivariate-gaussian"})
        reasons.append("likelihood bivariate-gaussian: u and v are correlated")
    return Experiment(data=data, split=split, model=model), tuple(reasons)


def _parse_wind(text: str, sources: Mapping[str, Source]) -> dict[str, tuple[str, str]]:
    """Speed and direction by source, from "source.speed,direction"."""
    owner, _, columns = text.partition(".")
    names = columns.split(",")
    require_known(owner, sources, "source", "in --wind")
    if len(names) != 2:
        raise ValueError(
            f"--wind {text}: must name a source, its speed and its direction, such as "
            f"{owner}.speed,direction."
        )
    return {owner: (names[0], names[1])}


def _only_target(sources: Mapping[str, Source]) -> str:
    """The only variable of the point sources or, without any, of all; raises if there are more."""
    points = {n: s for n, s in sources.items() if not _is_grid(s)} or sources
    found = [f"{name}.{variable}" for name, source in points.items() for variable in source.names]
    if len(found) != 1:
        raise ValueError(
            f"Several variables could be the target: {', '.join(found[:SHOWN])}"
            f"{', …' if len(found) > SHOWN else ''}; name one: --target {found[0]}."
        )
    return found[0]


def _is_grid(source: Source) -> bool:
    return isinstance(source, Panel) and source.shape is not None


def _is_static_grid(source: Source) -> bool:
    return _is_grid(source) and source.times is None


def _split(source: Source, windows: Windows, reasons: list[str]) -> Split:
    """Hold out later times and some stations, if there are enough of them."""
    stations = 0 if source.labels is None else len(np.unique(source.labels))
    held = 0.2 if stations >= FEW_STATIONS else None
    time, gap = None, "0h"
    if source.times is not None and len(times := np.unique(source.times)) >= 10:
        a, b = (times[int(share * len(times))] for share in (0.8, 0.9))
        time = (str(a.astype("datetime64[s]")), str(b.astype("datetime64[s]")))
        gap = _gap(times, windows.every)
    if time or held:
        parts = [f"times from {time[0]}" if time else "", "a fifth of the stations" * bool(held)]
        between = f", with a gap of {gap}" if gap != "0h" else ""
        reasons.append(f"split: {' and '.join(p for p in parts if p)} held out{between}")
    return Split(time=time, gap=gap, hold_out_stations=held)


def _gap(times: np.ndarray, window: str | None) -> str:
    """A time after which weather is another one, or else a window or step; none for a few times."""
    step = np.median(np.diff(times))
    days = max(7, int(np.ceil(step / DAY)))
    for choice in (f"{days}D", "1D"):
        if np.timedelta64(int(choice[:-1]), "D") <= (times[-1] - times[0]) / 50:
            return choice
    if len(times) < FEW_TIMES:
        return "0h"
    if window is not None:
        return window
    return next(f"{int(step / unit)}{name}" for name, unit in UNITS.items() if not step % unit)


def _features(source: Source) -> tuple[str, ...]:
    """Season and time of day, if the data span several months and resolve the day."""
    if source.times is None or len(times := np.unique(source.times)) < 2:
        return ()
    step, span = np.median(np.diff(times)), times[-1] - times[0]
    season = ("month" if step > 20 * DAY else "day_of_year",) if span > 90 * DAY else ()
    return (*season, *(("local_hour",) if step < DAY else ()))


def _relative(path: str, folder: Path) -> str:
    return path if "://" in path else os.path.relpath(Path(path).resolve(), folder.resolve())
