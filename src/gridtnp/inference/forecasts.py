"""`Forecaster`: what answers the regions of a query, be it a model or a baseline.

It knows the columns of an answer, their attributes and times before anything is predicted, so that
a store can be laid out for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

import numpy as np
import xarray as xr

from gridtnp.inference.context_reader import ContextReader
from gridtnp.inference.queries import Answer, Query, attributes_of, column
from gridtnp.inference.regions import Regions
from gridtnp.inference.stores import hash_text
from gridtnp.sources.source import Variable
from gridtnp.sources.times import duration
from gridtnp.tasks.specification import TaskSpec

Advance = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Forecaster(ABC):
    """Answers queries with `quantiles`, and with probabilities of more than `exceed`."""

    quantiles: tuple[float, ...]
    exceed: Mapping[str, tuple[float, ...]]

    @property
    @abstractmethod
    def spec(self) -> TaskSpec: ...

    @property
    @abstractmethod
    def reader(self) -> ContextReader: ...

    @abstractmethod
    def columns(self, query: Query, advance: Advance) -> dict[str, np.ndarray]:
        """All columns at the points of a query; `advance` is told how many are done."""

    @abstractmethod
    def fresh(self) -> Forecaster:
        """The same, with counts of its own; several can be used at once."""

    def for_regions(self, regions: Regions) -> Forecaster:  # noqa: ARG002
        """The same, to answer regions; raises if it cannot."""
        return self

    @abstractmethod
    def counts(self) -> Any:
        """What could not be predicted so far; counts of several can be added up."""

    @abstractmethod
    def require_points(self, counts: Any) -> None:
        """Raise if no point at all could be predicted."""

    @abstractmethod
    def warn(self, counts: Any, stacklevel: int) -> None:
        """Warn of what could not be predicted."""

    @contextmanager
    def ready(self) -> Iterator[None]:
        """While it answers."""
        yield

    # ---- answers ---------------------------------------------------------------------------------

    @property
    def statistics(self) -> dict[str, list[str | float]]:
        """What is predicted of every target variable."""
        return {
            name: ["mean", "std", *self.quantiles, *map(above, levels), "support"]
            for name, levels in self.exceed.items()
        }

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.about())

    def about(self) -> dict[str, dict[str, Any]]:
        """CF attributes of every column."""
        return {
            column(name, statistic): attributes(self.reader, name, statistic)
            for name, own in self.statistics.items()
            for statistic in own
        }

    def answer(self, query: Query, advance: Advance) -> Answer:
        """The answer to a query, in its form."""
        with self.ready():
            found = query.answer(self.columns(query, advance), self.about())
        if isinstance(found, xr.Dataset):
            return with_times(found, self.reader, timed=query.time is not None)
        return found

    def outline(self, regions: Regions) -> xr.Dataset:
        """The answer to all regions without its columns."""
        return with_times(regions.coordinates(), self.reader, timed=regions.timed)

    def settings(self) -> dict[str, Any]:
        """What decides the numbers of an answer besides its coordinates; hashes, or text."""
        identity = self.reader.data.identity()
        return {
            "columns": self.names,
            "context": hash_text(repr(sorted(identity.items())).encode()),
        }


def with_times(answer: xr.Dataset, reader: ContextReader, *, timed: bool) -> xr.Dataset:
    """Add the valid time, unless the query has times, and the reference time of a forecast."""
    spec = reader.spec
    lead = duration(spec.lead)
    task_time = None if timed else reader.task_time
    if task_time is not None and "time" not in answer.variables:
        answer = answer.assign_coords(time=((), task_time + lead, {"standard_name": "time"}))
    if lead and "time" in answer.coords:
        about = {"standard_name": "forecast_reference_time"}
        init = (answer["time"].dims, answer["time"].values - lead, about)
        answer = answer.assign_coords(init_time=init)
        answer.attrs["lead_time"] = spec.lead
    return answer


def read_levels(exceed: Any) -> tuple[float, ...]:
    """The thresholds of a variable: some numbers, or one."""
    levels = exceed.tolist() if isinstance(exceed, np.ndarray) else exceed
    levels = [levels] if isinstance(levels, Real) else levels
    if not isinstance(levels, list | tuple) or not all(isinstance(t, Real) for t in levels):
        raise ValueError(
            f"exceed={exceed!r}: must be thresholds in the units of the data, such as [1, 10]."
        )
    return cast(tuple[float, ...], tuple(levels))


def above(threshold: float) -> str:
    """The name of the statistic P(Y > threshold)."""
    return f"above_{threshold:.10g}"


def attributes(reader: ContextReader, name: str, statistic: str | float) -> dict[str, Any]:
    """CF attributes of a statistic of a predicted variable."""
    if statistic == "support":
        return {"long_name": f"{name}: distance to the nearest observation", "units": "km"}
    source = reader.data.sources.get(reader.spec.target_source)
    if isinstance(statistic, str) and statistic.startswith("above_"):
        own = reader.spec.units.get(f"{reader.spec.target_source}.{name}")
        text = f"{statistic.removeprefix('above_')} {own or ''}".rstrip()
        return {"long_name": f"probability of {name} > {text}", "units": "1"}
    units = reader.spec.units.get(f"{reader.spec.target_source}.{name}")
    variable = Variable(name, units)
    if source is not None and name in source.names:
        observed = source.variable(name)
        variable = Variable(name, units or observed.units, observed.attributes)
    return attributes_of(variable, statistic)
