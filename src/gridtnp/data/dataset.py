"""`Dataset`: named sources, the variables to predict, static and computed features.

Sources are pandas tables, xarray datasets or files. They are cleaned, and what was dropped is
reported. `gridtnp.tasks.sampling` draws tasks from a dataset.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Shaped

from gridtnp.data.coast import LAND, Coast
from gridtnp.data.description import describe_source, places_in_words, record_of, unit_conflicts
from gridtnp.data.features import COMPUTED, StaticFeature, static_features
from gridtnp.data.splits import Period, hold_out, periods, show_period
from gridtnp.errors import require_known
from gridtnp.sources.coordinates import western_edge
from gridtnp.sources.quality import Note, read_errors, warn, write_log
from gridtnp.sources.reading import Data, read_source
from gridtnp.sources.source import Panel, Source, Variable, hash_arrays
from gridtnp.sources.times import duration, show, to_time


class Dataset:
    """Named sources, and the variables to predict.

    `target` is `"source.variable"`, a list of variables of one source, or `"source"` for all its
    variables. `static` are fields that do not change with time, by name or as one dataset; a point
    source with a column of the same name uses its own values, and `"source.column"` stands for a
    column alone. `features` are names of computed features, see `gridtnp.data.features.COMPUTED`.
    `units` are those that the data lack. `na_values` are numbers or texts that stand for missing,
    and `crs` are the projections of sources whose coordinates are not in degrees, by source, as
    EPSG codes for example. `error` is the standard deviation of reading errors, in the units of the
    variable: a number, or the name of a column, by `"source"` or `"source.variable"`, or alone if
    there is one source. A field with more than `memory` bytes of values, and Parquet files of a
    larger table, are read lazily.
    """

    def __init__(
        self,
        sources: Mapping[str, Data],
        *,
        target: str | Sequence[str],
        static: Mapping[str, Data] | Data | None = None,
        features: Sequence[str] = (),
        units: Mapping[str, str] | None = None,
        na_values: Sequence[float | str] = (),
        crs: Mapping[str, str] | None = None,
        error: Mapping[str, float | str] | float | str | None = None,
        memory: int = 2**30,
    ) -> None:
        require_names(sources, "sources", "stations")
        if not sources:
            raise ValueError("sources is empty: a dataset needs at least one source.")
        if isinstance(na_values, str):
            raise ValueError(f"na_values={na_values!r}: must be a list, e.g. [{na_values!r}].")
        for name in crs or {}:
            require_known(name, sources, "source", "in crs")
        notes: list[Note] = []
        self.sources: dict[str, Source] = {}
        for name, data in sources.items():
            if not name or not name.isprintable() or {".", "/"} & set(name):
                raise ValueError(
                    f"Source name {name!r}: must be printable, without dots and slashes; rename it."
                )
            system = (crs or {}).get(name)
            self.sources[name], found = read_source(name, data, memory, na_values, system)
            notes += found
        self.errors = read_errors(self.sources, error)
        self._set_units(units or {})
        self.target_source, self.target_names = self._resolve(target, notes)
        self.computed = tuple(features)
        for name in self.computed:
            require_known(name, COMPUTED, "feature")
        self.statics, found = static_features(static, self.sources, na_values)
        notes += found
        self._static = {name: self._static_values(s) for name, s in self.sources.items()}
        self._land: dict[str, Float[np.ndarray, "n 1"]] = {}
        notes += self._unknown_statics()
        notes += [] if isinstance(target, str) else self._incomplete_targets()
        notes += unit_conflicts(self.sources)
        self.notes = tuple(notes)
        self.west = self._western_edge()
        self.part = "all"
        self.period: Period | None = None
        self.task_time: np.datetime64 | None = None
        self.context_places: dict[str, np.ndarray] = {}
        self.target_places: np.ndarray | None = None
        self.training: Dataset | None = None  # the training part of the same split
        warn(notes, stacklevel=2)

    # ---- contents --------------------------------------------------------------------------------

    @property
    def target(self) -> tuple[Variable, ...]:
        source = self.sources[self.target_source]
        return tuple(source.variable(name) for name in self.target_names)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of a task's features, in order."""
        return (*self.statics, *(c for name in self.computed for c in COMPUTED[name][0]))

    @property
    def contexts(self) -> tuple[str, ...]:
        """Default context sets: one per source, or one per variable if some values are missing."""
        names: list[str] = []
        for name in self.sources:
            source, own = self.variables_of(name)
            separate = len(own) > 1 and any(source.variable(v).missing for v in own)
            names += [f"{name}.{v}" for v in own] if separate else [name]
        return tuple(names)

    @property
    def held_out(self) -> bool:
        """Whether the targets of this part are at locations that are never in its context."""
        kept, wanted = self.context_places.get(self.target_source), self.target_places
        return kept is not None and wanted is not None and not bool((kept & wanted).any())

    def variables_of(self, name: str) -> tuple[Source, tuple[str, ...]]:
        """The source and the variables that `"source"` or `"source.variable"` stands for."""
        source, _, variable = name.partition(".")
        require_known(source, self.sources, "source")
        found = self.sources[source]
        if variable:
            return found, (found.variable(variable).name,)
        columns = {e for k, e in self.errors.items() if k.partition(".")[0] == source}
        return found, tuple(v for v in found.names if v not in columns)

    def static_at(self, source: str) -> Float[np.ndarray, "n df"]:
        """Static features at the locations of a source."""
        return self._static[source]

    def features_at(
        self,
        lat: Float[np.ndarray, " n"],
        lon: Float[np.ndarray, " n"],
        time: Shaped[np.ndarray, " n"] | None = None,
        known: Mapping[str, Float[np.ndarray, " n"]] | None = None,
    ) -> Float[np.ndarray, "n df"]:
        """All features at any locations and times.

        `known` are static features there, which take precedence over the fields unless NaN.
        """
        own = known or {}
        static = [f.at(lat, lon, own.get(name))[:, None] for name, f in self.statics.items()]
        return np.concatenate([*static, self.compute(time, lat, lon)], -1)

    def compute(
        self,
        time: Shaped[np.ndarray, " n"] | None,
        lat: Float[np.ndarray, " n"],
        lon: Float[np.ndarray, " n"],
    ) -> Float[np.ndarray, "n df"]:
        """The computed features at any locations and times."""
        if not self.computed:
            return np.zeros((len(lat), 0), np.float32)
        if time is None:
            raise ValueError(
                f"Features {list(self.computed)} need times, but there are none; leave them out."
            )
        if len(time) > 1 and (time == time[0]).all():
            time = time[:1]  # features that depend on time alone are computed once
        made = [COMPUTED[name][1](time, lat, lon) for name in self.computed]
        return np.concatenate([np.broadcast_to(m, (len(lat), m.shape[-1])) for m in made], -1)

    def with_land_fraction(self) -> Dataset:
        """The same data with the share of land as another static feature; see `land_fraction`."""
        made = copy.copy(self)
        land = StaticFeature(LAND, Coast(), LAND)
        if not self._land:  # computed once for all parts
            self._land.update({name: land.of(s)[:, None] for name, s in self.sources.items()})
        made.statics = {**self.statics, LAND: land}
        made._static = {k: np.concatenate([v, self._land[k]], -1) for k, v in self._static.items()}
        return made

    # ---- parts -----------------------------------------------------------------------------------

    def split(
        self,
        time: Sequence[Any] | None = None,
        *,
        hold_out_stations: float | Sequence[str] | None = None,
        blocks: float | None = None,
        gap: Any = "0h",
        rows: float | None = None,
        seed: int = 0,
    ) -> tuple[Dataset, Dataset, Dataset]:
        """Split into train, validation and test.

        `time=[a, b]` trains before a, validates from a to b and tests from b; the data of a `gap`
        after a and after b are left out. `hold_out_stations` is a fraction of the stations, half of
        them for validation and half for the test, or the names of the test stations; 0 holds out
        none. What any point source observes there is never in a context, and a target only in
        validation and test. With `blocks`, the stations or grid points of a block of this many
        degrees are held out together. A part of a split is split among its own stations.
        """
        if isinstance(hold_out_stations, int | float) and hold_out_stations == 0:
            hold_out_stations = None
        if rows is not None:
            raise ValueError(
                f"rows={rows}: a random split of rows leaks, because training has the same "
                "station's rows just before and after; hold out stations (hold_out_stations=0.2), "
                "blocks of stations (blocks=5 in addition) or later times (time=[...])."
            )
        if time is None and hold_out_stations is None:
            raise ValueError(
                "Nothing to split by; give dates (time=['2018', '2019']), a fraction of the "
                "stations (hold_out_stations=0.2), or both."
            )
        if hold_out_stations is None and blocks is not None:
            raise ValueError(
                f"blocks={blocks:g} has no effect without hold_out_stations; give the fraction to "
                "hold out, e.g. hold_out_stations=0.2."
            )
        if time is None and duration(gap) != np.timedelta64(0, "ms"):
            raise ValueError(f"gap={gap!r} has no effect without time; give time=[...] as well.")
        source = self.sources[self.target_source]
        spans = [self.period] * 3 if time is None else periods(time, gap, self.period)
        if time is not None and source.times is None:
            raise ValueError(f"Source {source.name!r} has no times to split by.")
        roles = None
        if hold_out_stations is not None:
            among = self.target_places
            roles = hold_out(self.sources, source, hold_out_stations, blocks, seed, among)
            if time is None and not (roles[source.name] == 1).any():
                raise ValueError(
                    "No stations are left for validation, because named stations are all for the "
                    "test; give time=[...] as well, or a fraction of the stations."
                )
        parts = []
        for number, name in enumerate(("train", "val", "test")):
            part = copy.copy(self)
            part.part, part.period = name, spans[number]
            if roles is not None:
                role, before = roles[source.name], self.context_places
                kept = {key: (value == 0) & before.get(key, True) for key, value in roles.items()}
                part.context_places = {**before, **kept}
                part.target_places = role == (number if (role == number).any() else 0)
                if self.target_places is not None:
                    part.target_places &= self.target_places
            part.require_targets()
            parts.append(part)
            part.training = parts[0]
        return parts[0], parts[1], parts[2]

    def at(self, time: Any) -> Dataset:
        """The same data, for a task at one time."""
        if self.sources[self.target_source].times is None:
            raise ValueError(f"Source {self.target_source!r} has no times to choose from.")
        part = copy.copy(self)
        part.task_time = to_time(time)
        return part

    def times(self) -> np.ndarray | None:
        """The times of the target in this part, sorted."""
        source = self.sources[self.target_source]
        if source.times is not None and self.task_time is not None:
            return np.array([self.task_time])
        times = source.times_at(self.target_places)
        if times is not None and self.period is not None:
            times = times[(times >= self.period[0]) & (times < self.period[1])]
        return times

    def require_targets(self) -> None:
        """Raise if this part has no observations of the target's source."""
        times = self.times()
        if times is not None and not len(times):
            source = self.sources[self.target_source]
            assert source.times is not None
            span = "" if self.period is None else f" {show_period(self.period)}"
            raise ValueError(
                f"Part {self.part!r} has no observations of {self.target_source!r}{span}; they "
                f"range from {show(source.times[0])} to {show(source.times[-1])}."
            )

    # ---- description -----------------------------------------------------------------------------

    def describe(self) -> None:
        """Print sources, features, and what was dropped or masked."""
        print(self)

    def __repr__(self) -> str:
        wanted = ", ".join(f"{self.target_source}.{name}" for name in self.target_names)
        if len(self.target_names) > 4:
            wanted = f"{len(self.target_names)} variables of {self.target_source}"
        lines = [f"Dataset ({self.part}) to predict {wanted}"]
        if self.period is not None:
            lines[0] += f", {show_period(self.period)}"
        if self.held_out:
            lines[0] += ", at held-out locations"
        if self.period is not None or self.target_places is not None:
            lines.append(f"  targets {self._targets()}, of these sources:")
        for source in self.sources.values():
            lines += [f"  {line}" for line in describe_source(source)]
        if self.feature_names:
            lines.append(f"  features: {', '.join(self.feature_names)}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def _targets(self) -> str:
        """How many places and times the targets of this part have."""
        source, times = self.sources[self.target_source], self.times()
        ids = np.arange(len(source.lat)) if source.labels is None else source.labels
        used = ids if self.target_places is None else ids[self.target_places]
        every = places_in_words(len(np.unique(ids)), source)
        text = f"at {len(np.unique(used)):,} of {every}"
        return text if times is None else f"{text} and {len(times):,} times"

    def fingerprint(self) -> str:
        """A hash of the data; values that stay on disk are not read."""
        digest = hashlib.blake2b(digest_size=16)
        for name, source in self.sources.items():
            digest.update(repr((name, source.names, source.size)).encode())
            for array in source.arrays:
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def identity(self) -> dict[str, str]:
        """All that decides what a model learns from this part, by name: hashes, or text."""
        found = {f"source {name!r}": source.digest for name, source in self.sources.items()}
        for i, name in enumerate(self.statics):
            values = [self._static[source][:, i] for source in self.sources]
            found[f"static feature {name!r}"] = hash_arrays(*values)
        found["time span"] = "all" if self.period is None else show_period(self.period)
        if self.task_time is not None:
            found["time span"] = show(self.task_time)
        for name in self.sources:
            kept = self.context_places.get(name)
            found[f"set of context places of source {name!r}"] = _show_places(kept)
        found["set of target places"] = _show_places(self.target_places)
        if self.errors:
            found["errors"] = repr(self.errors)
        return found

    def write_log(self, path: str | os.PathLike[str]) -> None:
        """Write `data.json`: sources, features, a fingerprint, and what was dropped or masked."""
        about = {
            "fingerprint": self.fingerprint(),
            "target": [f"{self.target_source}.{name}" for name in self.target_names],
            "features": list(self.feature_names),
            "sources": {name: record_of(source) for name, source in self.sources.items()},
        }
        write_log(path, self.notes, about)

    # ---- construction ----------------------------------------------------------------------------

    def _resolve(
        self, target: str | Sequence[str], notes: Sequence[Note]
    ) -> tuple[str, tuple[str, ...]]:
        wanted = [target] if isinstance(target, str) else list(target)
        for name in wanted:
            owner, _, variable = name.partition(".")
            for note in notes:
                left_out = note.source == owner and f"column {variable!r} " in note.why
                if left_out and variable not in self.sources[owner].names:
                    example = f" (for example {note.example})" if note.example else ""
                    raise ValueError(
                        f"Variable {variable!r} of source {owner!r} is not used: "
                        f"{note.why}{example}."
                    )
            having = [s.name for s in self.sources.values() if name in s.names]
            if owner not in self.sources and having:
                raise ValueError(
                    f"Target {name!r} has no source; did you mean '{having[0]}.{name}'?"
                )
        found = [self.variables_of(name) for name in wanted]
        owners = list(dict.fromkeys(source.name for source, _ in found))
        if len(owners) != 1:
            raise ValueError(f"The targets are of sources {owners}; they must be of one source.")
        return owners[0], tuple(name for _, names in found for name in names)

    def _western_edge(self) -> float:
        """That of all sources, or of those that are the target's or not gridded: a global field has
        no gap, but the stations of a region have one.
        """
        west = western_edge(np.concatenate([s.lon for s in self.sources.values()]))
        if west != -180.0:
            return west
        points = [s for s in self.sources.values() if not isinstance(s, Panel) or s.shape is None]
        held = {s.name: s.lon for s in (*points, self.sources[self.target_source])}
        return western_edge(np.concatenate(list(held.values())))

    def _set_units(self, units: Mapping[str, str]) -> None:
        for name, unit in units.items():
            source, variables = self.variables_of(name)
            changed = tuple(
                replace(v, units=unit, attributes={**v.attributes, "units": unit})
                if v.name in variables
                else v
                for v in source.variables
            )
            self.sources[source.name] = replace(source, variables=changed)

    def _static_values(self, source: Source) -> np.ndarray:
        columns = [feature.of(source) for feature in self.statics.values()]
        made = np.stack(columns, -1) if columns else np.zeros((len(source.lat), 0))
        return made.astype(np.float32)

    def _unknown_statics(self) -> list[Note]:
        notes = []
        for name, values in self._static.items():
            unknown = int(np.isnan(values).any(-1).sum())
            if unknown:
                why = f"no value of {list(self.statics)} there"
                notes.append(Note(name, "masked", why, unknown, len(values)))
        return notes

    def _incomplete_targets(self) -> list[Note]:
        """Rows with some of several target variables; those of values on disk are not counted."""
        source = self.sources[self.target_source]
        if source.loaded is None:
            return []
        wanted = source.values(0, source.size)[:, source.index(self.target_names)]
        known = np.isfinite(wanted)
        some = int((known.any(1) & ~known.all(1)).sum())
        why = "as targets: only some of the target variables are observed (context has them)"
        return [Note(source.name, "masked", why, some, source.size)] if some else []


def require_names(given: object, what: str, name: str) -> None:
    """Raise if one source came without a mapping from its name."""
    if isinstance(given, pd.DataFrame | xr.Dataset | str | os.PathLike):
        raise ValueError(
            f"{what} is one {type(given).__name__}: must give every source a name, e.g. "
            f"{{{name!r}: ...}}."
        )


def _show_places(kept: np.ndarray | None) -> str:
    """Number and hash of the locations that are used."""
    return "all" if kept is None else f"{kept.sum()} of {len(kept)}, {hash_arrays(kept)}"
