"""What is served: a model, the observations that it predicts from, and where and when it may."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from gridtnp.contents import ModelContents
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_known
from gridtnp.evaluation.saved import SavedScores
from gridtnp.inference.conditioning import Conditioner, Context, Encodings
from gridtnp.inference.context_reader import Static, dataset_of
from gridtnp.inference.forecasts import above, attributes
from gridtnp.inference.prediction import predict, thresholds
from gridtnp.inference.queries import column
from gridtnp.inference.running import Output
from gridtnp.network.model import PIECE
from gridtnp.report.maps import Region
from gridtnp.server.work import Ticket
from gridtnp.sources.coordinates import recognise
from gridtnp.sources.reading import Data
from gridtnp.sources.source import Panel

KEPT_TIMES = 16
"""Times whose contexts stay encoded."""
NATIVE_POINTS = 12_000
"""About as many grid points has the whole region, unless a query says otherwise."""
USUAL: tuple[str | float, ...] = ("mean", "std", 0.05, 0.95, "support")
LISTED: tuple[str | float, ...] = ("mean", "std", 0.05, 0.25, 0.5, 0.75, 0.95, "support")


@dataclass(frozen=True, eq=False)
class Fresh:
    """How fresh observations become data: the run's own sources, static fields and conventions."""

    sources: Mapping[str, Data] = field(default_factory=dict)
    static: Static = None
    na_values: Sequence[float | str] = ()
    crs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Columns of an answer, with the quantiles and thresholds that they need."""

    columns: tuple[str, ...]
    quantiles: tuple[float, ...]
    exceed: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Served:
    """A model with its data; `fresh` says how other observations are read.

    `scores` are those of an evaluation of this model, if there was one.
    """

    model: ModelContents
    data: Dataset
    fresh: Fresh = field(default_factory=Fresh)
    name: str = "model"
    scores: SavedScores | None = None

    def __post_init__(self) -> None:
        self.model.network.eval()  # once, since predictions run at the same time

    @cached_property
    def conditioner(self) -> Conditioner:
        found = Conditioner.of(self.model, self.data)
        return replace(found, encodings=Encodings(KEPT_TIMES))

    @property
    def variables(self) -> tuple[str, ...]:
        return self.model.spec.target_names

    # ---- where and when --------------------------------------------------------------------------

    @cached_property
    def times(self) -> np.ndarray | None:
        """The times of the target in the data."""
        return self.data.times()

    @cached_property
    def region(self) -> Region:
        return Region.of(self.model, self.data)

    @cached_property
    def grid(self) -> xr.Dataset:
        """The region at its native resolution."""
        return self.region.grid(self.model, NATIVE_POINTS)

    @property
    def spacing(self) -> tuple[float, float]:
        """Degrees of latitude and of longitude between grid points."""
        lat, lon = self.grid["lat"].to_numpy(), self.grid["lon"].to_numpy()
        return float(lat[1] - lat[0]), float(lon[1] - lon[0])

    @cached_property
    def stations(self) -> pd.DataFrame | None:
        """Named places of the target's source, with static features; None on grids and ships."""
        source = self.data.sources[self.data.target_source]
        if source.labels is None:
            return None
        table = pd.DataFrame(
            {"station": source.labels.astype(str), "lat": source.lat, "lon": source.lon}
        )
        known = self.data.static_at(source.name)
        for i, name in enumerate(self.data.statics):
            table[name] = known[:, i].astype(np.float64)
        held = self.data.target_places if self.data.held_out else None
        table["held_out"] = False if held is None else held
        if not isinstance(source, Panel):
            places = table.groupby("station")[["lat", "lon"]].nunique()
            if (places > 1).to_numpy().any():  # ships
                return None
            table = table.drop_duplicates("station")
        return table.sort_values("station").set_index("station")

    # ---- what ------------------------------------------------------------------------------------

    def statistics(self, names: Sequence[str] | None) -> Statistics:
        """What to predict for these columns; by default what `predict` does."""
        if names is None:
            names = [column(variable, what) for variable in self.variables for what in USUAL]
        quantiles: dict[float, None] = {}
        exceed: dict[str, dict[float, None]] = {name: {} for name in self.variables}
        for name in names:
            variable, what = self._parse(name)
            if not isinstance(what, str):
                quantiles[what] = None
            elif what.startswith("above_"):
                exceed[variable][float(what.removeprefix("above_"))] = None
        levels = {name: tuple(found) for name, found in exceed.items()}
        thresholds(self.model.spec, levels)
        return Statistics(tuple(dict.fromkeys(names)), tuple(quantiles), levels)

    def _parse(self, name: str) -> tuple[str, str | float]:
        """The variable and the statistic that a column stands for."""
        for variable in sorted(self.variables, key=len, reverse=True):
            what = name.removeprefix(f"{variable}_")
            if what == name:
                continue
            if what in ("mean", "std", "support"):
                return variable, what
            if re.fullmatch(r"q\d{2,6}", what) and int(what[1:]):
                level = float(f"0.{what[1:]}")
                if column(variable, level) == name:
                    return variable, level
            number = re.fullmatch(r"above_(-?\d+(?:\.\d+)?(?:e[-+]\d+)?)", what)
            if number and above(float(number[1])) == what:
                return variable, what
        listed = [column(variable, what) for variable in self.variables for what in LISTED]
        require_known(name, listed, "parameter", "of this collection")
        raise AssertionError

    def about(self, name: str) -> dict[str, Any]:
        """CF attributes of a column."""
        variable, what = self._parse(name)
        return attributes(self.conditioner.reader, variable, what)

    # ---- predictions -----------------------------------------------------------------------------

    def context(
        self, sources: Mapping[str, pd.DataFrame], keep: Sequence[str], time: Any
    ) -> Context:
        """Fresh observations by source, with sources of the run that are kept.

        Observations without times are of `time`.
        """
        known = {held.source for held in self.model.spec.contexts.values()}
        known.add(self.model.spec.target_source)
        for name in (*sources, *keep):
            require_known(name, known, "source", "for this model")
        for name in keep:
            require_known(name, self.fresh.sources, "source", "of the run")
        for name, table in sources.items():
            self._require_numbers(name, table)
        timed = {
            name: table.assign(time=time)
            if time is not None and "time" not in recognise({str(c): {} for c in table.columns})
            else table
            for name, table in sources.items()
        }
        own = {name: self.fresh.sources[name] for name in keep if name not in sources}
        data = dataset_of(
            self.model.spec,
            {**own, **timed},
            self.fresh.static,
            na_values=self.fresh.na_values,
            crs=self.fresh.crs,
        )
        return Conditioner.of(self.model, data)

    def _require_numbers(self, name: str, table: pd.DataFrame) -> None:
        """Raise for texts among the values of a source, such as formulas."""
        spec = self.model.spec
        wanted = {
            v for held in spec.contexts.values() if held.source == name for v in held.variables
        }
        for column_name in wanted & set(table.columns):
            values = table[column_name]
            if pd.api.types.is_numeric_dtype(values):
                continue
            missing = values.isna() | values.isin(list(self.fresh.na_values))
            numbers = np.asarray(pd.to_numeric(values, errors="coerce"), np.float64)
            wrong = np.flatnonzero(~missing.to_numpy() & np.isnan(numbers))
            if len(wrong):
                raise ValueError(
                    f"Column {column_name!r} of {name!r} holds {values.iloc[wrong[0]]!r} in row "
                    f"{wrong[0]}, which is not a number; correct it or leave it empty."
                )

    def predict(
        self,
        at: xr.Dataset,
        times: np.ndarray | None,
        what: Statistics,
        ticket: Ticket,
        context: Context | None = None,
    ) -> xr.Dataset:
        """`GriddedTNP.predict`, in pieces between which the work can be stopped."""
        found = predict(
            self.model,
            self.conditioner if context is None else context,
            at,
            quantiles=what.quantiles,
            exceed=what.exceed,
            times=times,
            chunk=PIECE,
            output=Output(progress=ticket.advance),
        )
        assert isinstance(found, xr.Dataset)
        return found[list(what.columns)]
