"""`Dataset`: named sources, what to predict, and what is known everywhere, understood and cleaned.

It takes what scientists hold (pandas, xarray, files) and says what it made of it. Tasks for a model
are drawn from it by `gridtnp.tasks.sampling`.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from gridtnp.data.coordinates import western_edge
from gridtnp.data.description import clashes, describe_source, record_of
from gridtnp.data.features import COMPUTED, static_features
from gridtnp.data.quality import Note, warn, write_log
from gridtnp.data.reading import Data, understand
from gridtnp.data.sources import Loaded, Panel, Records, Source, Variable
from gridtnp.data.splits import Period, hold_out, periods, show_period
from gridtnp.data.times import duration, show, to_time
from gridtnp.errors import require_known


class Dataset:
    """Sources by name, in pandas, xarray or files, and the variables to predict.

    `target` is `"source.variable"`, several of one source, or `"source"` for all of them. `static`
    are fields that never change (by name, or a dataset of them); a point source with a column of
    that name uses its own values, and `"source.column"` names a column itself. `features` are
    computed by name: see `gridtnp.data.features.COMPUTED`. `units` tells those that the data
    do not. A source with more than `memory` bytes of values is read piece by piece.
    """

    def __init__(
        self,
        sources: Mapping[str, Data],
        *,
        target: str | Sequence[str],
        static: Mapping[str, Data] | Data | None = None,
        features: Sequence[str] = (),
        units: Mapping[str, str] | None = None,
        memory: int = 2**30,
    ) -> None:
        if not sources:
            raise ValueError("A dataset must have at least one source, got none.")
        notes: list[Note] = []
        self.sources: dict[str, Source] = {}
        for name, data in sources.items():
            if not name or "." in name:
                raise ValueError(f"A source's name must not be empty or contain a dot: {name!r}.")
            self.sources[name], found = understand(name, data, memory)
            notes += found
        self._set_units(units or {})
        self.target_source, self.target_names = self._resolve(target)
        self.computed = tuple(features)
        for name in self.computed:
            require_known(name, COMPUTED, "feature")
        self.statics, found = static_features(static, self.sources)
        notes += found
        self._still = {name: self._static_at(source) for name, source in self.sources.items()}
        notes += self._unknown_places()
        notes += clashes(self.sources)
        self.notes = tuple(notes)
        self.west = western_edge(np.concatenate([s.lon for s in self.sources.values()]))
        self.part = "all"
        self.period: Period | None = None
        self.task_time: np.datetime64 | None = None
        self.context_places: dict[str, np.ndarray] = {}
        self.target_places: np.ndarray | None = None
        self.training: Dataset | None = None  # the training part of the same split
        warn(notes, stacklevel=2)

    # ---- what is in it ---------------------------------------------------------------------------

    @property
    def target(self) -> tuple[Variable, ...]:
        source = self.sources[self.target_source]
        return tuple(source.variable(name) for name in self.target_names)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of a task's features, in their order."""
        return (*self.statics, *(c for name in self.computed for c in COMPUTED[name][0]))

    @property
    def contexts(self) -> tuple[str, ...]:
        """Context sets by default: a source with all its variables, or each variable by itself
        where some are missing while others are there.
        """
        names: list[str] = []
        for name, source in self.sources.items():
            apart = len(source.variables) > 1 and any(v.missing for v in source.variables)
            names += [f"{name}.{v}" for v in source.names] if apart else [name]
        return tuple(names)

    @property
    def held_out(self) -> bool:
        """Whether the targets of this part are at places that its context never has."""
        kept, wanted = self.context_places.get(self.target_source), self.target_places
        return kept is not None and wanted is not None and not bool((kept & wanted).any())

    def variables_of(self, name: str) -> tuple[Source, tuple[str, ...]]:
        """The source and the variables behind `"source"` or `"source.variable"`."""
        source, _, variable = name.partition(".")
        require_known(source, self.sources, "source")
        found = self.sources[source]
        return found, (found.variable(variable).name,) if variable else found.names

    def still_at(self, source: str) -> Float[np.ndarray, "n df"]:
        """Static features at the places of a source, (places, features)."""
        return self._still[source]

    def features_at(
        self,
        lat: Float[np.ndarray, " n"],
        lon: Float[np.ndarray, " n"],
        time: Shaped[np.ndarray, " n"] | None = None,
        known: Mapping[str, Float[np.ndarray, " n"]] | None = None,
    ) -> Float[np.ndarray, "n df"]:
        """All features at any places and times, (points, features).

        `known` are values of static features there, NaN where a field is to tell.
        """
        own = known or {}
        still = [f.at(lat, lon, own.get(name))[:, None] for name, f in self.statics.items()]
        return np.concatenate([*still, self.compute(time, lat, lon)], -1)

    def compute(
        self,
        time: Shaped[np.ndarray, " n"] | None,
        lat: Float[np.ndarray, " n"],
        lon: Float[np.ndarray, " n"],
    ) -> Float[np.ndarray, "n df"]:
        """The computed features, (points, columns)."""
        if not self.computed:
            return np.zeros((len(lat), 0), np.float32)
        if time is None:
            raise ValueError(
                f"Features {list(self.computed)} need times, but there are none; leave them out."
            )
        if len(time) > 1 and (time == time[0]).all():
            time = time[:1]  # what depends on time alone is computed once
        made = [COMPUTED[name][1](time, lat, lon) for name in self.computed]
        return np.concatenate([np.broadcast_to(m, (len(lat), m.shape[-1])) for m in made], -1)

    # ---- parts of it -----------------------------------------------------------------------------

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
        """Train, validation and test, kept apart honestly.

        `time=[a, b]` trains before a, validates from a, tests from b on, and leaves `gap` out after
        each. `hold_out_stations` is a share of the stations, half of it to validate and half to
        test at (or the names of those to test at): nothing observed there, by any point source, is
        ever seen in training, and later only as targets. With `blocks`, all stations or grid points
        of a block of so many degrees go together.
        """
        if rows is not None:
            raise ValueError(
                "Random rows must not be held out, because the same station's rows just before and "
                "after would give them away; hold out stations (hold_out_stations=0.2), blocks "
                "(blocks=5) or later times (time=[...])."
            )
        if time is None and hold_out_stations is None:
            raise ValueError(
                "A split must say what is kept apart: later times (time=['2018', '2019']), "
                "stations (hold_out_stations=0.2), or both."
            )
        if hold_out_stations is None and blocks is not None:
            raise ValueError(
                f"Blocks say how stations are held out; give a share of them too: "
                f"hold_out_stations=0.2, blocks={blocks:g}."
            )
        if time is None and duration(gap) != np.timedelta64(0, "ms"):
            raise ValueError(f"A gap of {gap!r} is left between times; give time=[...] too.")
        source = self.sources[self.target_source]
        spans = [self.period] * 3 if time is None else periods(time, gap, self.period)
        if time is not None and source.times is None:
            raise ValueError(f"Source {source.name!r} has no times to split by.")
        roles = None
        if hold_out_stations is not None:
            roles = hold_out(self.sources, source, hold_out_stations, blocks, seed)
            if time is None and not (roles[source.name] == 1).any():
                raise ValueError(
                    "Named stations are all tested at, so that validation needs times of its own; "
                    "give time=[...] too, or a share of the stations."
                )
        parts = []
        for number, name in enumerate(("train", "val", "test")):
            part = copy.copy(self)
            part.part, part.period = name, spans[number]
            if roles is not None:
                role = roles[source.name]
                part.context_places = {key: value == 0 for key, value in roles.items()}
                part.target_places = role == (number if (role == number).any() else 0)
            part.require_targets()
            parts.append(part)
            part.training = parts[0]
        return parts[0], parts[1], parts[2]

    def at(self, time: Any) -> Dataset:
        """The same data, to predict at one time."""
        if self.sources[self.target_source].times is None:
            raise ValueError(f"Source {self.target_source!r} has no times to choose from.")
        part = copy.copy(self)
        part.task_time = to_time(time)
        return part

    def times(self) -> np.ndarray | None:
        """All times of the target in this part, in order."""
        source = self.sources[self.target_source]
        if source.times is None:
            return None
        if self.task_time is not None:
            return np.array([self.task_time])
        times = source.times
        if isinstance(source, Records) and self.target_places is not None:
            times = times[self.target_places]
        times = np.unique(times)
        if self.period is not None:
            times = times[(times >= self.period[0]) & (times < self.period[1])]
        return times

    def require_targets(self) -> None:
        times = self.times()
        if times is not None and not len(times):
            source = self.sources[self.target_source]
            assert source.times is not None
            span = "" if self.period is None else f" {show_period(self.period)}"
            raise ValueError(
                f"Part {self.part!r} must hold observations of {self.target_source!r}, but there "
                f"are none{span}; they go from {show(source.times[0])} to "
                f"{show(source.times[-1])}."
            )

    # ---- said about it ---------------------------------------------------------------------------

    def describe(self) -> None:
        """Print what was understood."""
        print(self)

    def __repr__(self) -> str:
        wanted = ", ".join(f"{self.target_source}.{name}" for name in self.target_names)
        if len(self.target_names) > 4:
            wanted = f"{len(self.target_names)} variables of {self.target_source}"
        lines = [f"Dataset ({self.part}) to predict {wanted}"]
        if self.period is not None:
            lines[0] += f", {show_period(self.period)}"
        if self.held_out:
            lines[0] += ", at places that the context never holds"
        for source in self.sources.values():
            lines += [f"  {line}" for line in describe_source(source)]
        if self.feature_names:
            lines.append(f"  features: {', '.join(self.feature_names)}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def fingerprint(self) -> str:
        """The same for the same data; values that stay on disk are not looked at."""
        digest = hashlib.blake2b(digest_size=16)
        for name, source in self.sources.items():
            digest.update(repr((name, source.names, source.size)).encode())
            arrays = [source.lat, source.lon, source.times]
            if isinstance(source, Records):
                arrays.append(source.table)
            elif isinstance(source, Panel) and isinstance(source.store, Loaded):
                arrays.append(source.store.array)
            for array in arrays:
                if array is not None:
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def write_log(self, path: str | os.PathLike[str]) -> None:
        """`data.json`: what was understood, a fingerprint, and all that was dropped or masked."""
        about = {
            "fingerprint": self.fingerprint(),
            "target": [f"{self.target_source}.{name}" for name in self.target_names],
            "features": list(self.feature_names),
            "sources": {name: record_of(source) for name, source in self.sources.items()},
        }
        write_log(path, self.notes, about)

    # ---- how it is made --------------------------------------------------------------------------

    def _resolve(self, target: str | Sequence[str]) -> tuple[str, tuple[str, ...]]:
        wanted = [target] if isinstance(target, str) else list(target)
        found = [self.variables_of(name) for name in wanted]
        owners = list(dict.fromkeys(source.name for source, _ in found))
        if len(owners) != 1:
            raise ValueError(f"All targets must be of one source, got {owners}.")
        return owners[0], tuple(name for _, names in found for name in names)

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

    def _static_at(self, source: Source) -> np.ndarray:
        columns = [feature.of(source) for feature in self.statics.values()]
        made = np.stack(columns, -1) if columns else np.zeros((len(source.lat), 0))
        return made.astype(np.float32)

    def _unknown_places(self) -> list[Note]:
        notes = []
        for name, values in self._still.items():
            unknown = int(np.isnan(values).any(-1).sum())
            if unknown:
                why = f"no value of {list(self.statics)} there"
                notes.append(Note(name, "masked", why, unknown, len(values)))
        return notes
