"""The live page: the report's map in a browser, with observations that are dropped on it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from gridtnp import __version__
from gridtnp.evaluation.evaluate import evaluate
from gridtnp.inference.conditioning import Conditioner, Context
from gridtnp.inference.forecasts import above
from gridtnp.inference.queries import column
from gridtnp.report import maps, sections
from gridtnp.report.packing import json_in_html
from gridtnp.report.page import SHARED_SCRIPTS, STYLES, assemble, coastline, read, template
from gridtnp.report.series import NO_STATIONS, series
from gridtnp.server.edr import COLLECTION
from gridtnp.server.served import Served
from gridtnp.server.work import Abandoned, Ticket
from gridtnp.sources.quality import collecting
from gridtnp.sources.source import unit_symbol
from gridtnp.sources.times import show

HERE = Path(__file__).parent
MAP_TIMES = 12
MAP_POINTS = 8_000
STATION_TIMES = 36
"""Times at which held-out stations are predicted, evenly spaced."""


class LivePage:
    """The page, and the data that its map draws."""

    def __init__(self, served: Served, report: bool = False) -> None:
        self.served, self.report = served, report
        self._own: dict[str, Any] | None = None
        self.lock = Lock()
        self.prepared = Ticket(float("inf"))

    @cached_property
    def document(self) -> tuple[str, str]:
        """The page as text, and its content security policy."""
        served = self.served
        script = "\n".join(
            [*(read(name) for name in SHARED_SCRIPTS), (HERE / "live.js").read_text("utf-8")]
        )
        style = "\n".join(
            [*(read(name) for name in STYLES), (HERE / "live.css").read_text("utf-8")]
        )
        policy, parts = assemble(script, style, connect="'self'")
        spec = served.model.spec
        sources = sorted({held.source for held in spec.contexts.values()} | {spec.target_source})
        options = {"source": spec.target_source, "keep": list(served.fresh.sources)}
        text = template("live.html", HERE).render(
            **parts,
            policy=policy,
            options=parts["safe"](json_in_html(options)),
            title=", ".join(served.variables),
            name=served.name,
            **self._evaluated(),
            columns=["lat", "lon", *(["time"] if served.times is not None else []),
                     *served.variables, *spec.given_statics],
            collection=COLLECTION,
            sources=[spec.target_source, *(n for n in sources if n != spec.target_source)],
            report=self.report,
            has_fields=True,
            has_chances=True,  # where there is none, the script hides it
            has_times=served.times is not None,
            labels=[""],
            first=0,
            live=True,
            stations={"names": []},
            reasons={},
            version=__version__,
        )  # fmt: skip
        return text, policy

    def _evaluated(self) -> dict[str, Any]:
        """Headline, calibration and scores, as in the report, if the model was evaluated."""
        served, scores = self.served, self.served.scores
        if scores is None or scores.variables != served.variables:
            plain = [{"name": name, "unit": self._unit(name)} for name in served.variables]
            return {"evaluated": False, "calibrated": False, "variables": plain}
        found = sections.scored(scores.rows, scores.split, scores.calibration)
        return {
            "evaluated": True,
            "calibrated": bool(scores.calibration),
            "variables": found,
            "split": scores.split,
            "notes": scores.notes,
        }

    def _unit(self, name: str) -> str:
        spec = self.served.model.spec
        return unit_symbol(spec.units.get(f"{spec.target_source}.{name}"))

    def prepare(self) -> None:
        """Make the map before anyone asks for it."""
        with suppress(Abandoned, ValueError), collecting():
            self.own(self.prepared)

    # ---- what the map draws ----------------------------------------------------------------------

    def own(self, ticket: Ticket) -> dict[str, Any]:
        """The map of the run's own observations, with held-out stations; made once."""
        with self.lock:
            if self._own is None:
                self._own = self._make(ticket)
        return self._own

    def _make(self, ticket: Ticket) -> dict[str, Any]:
        served, times, stations = self.served, None, NO_STATIONS
        if served.times is not None:
            times = served.times[-MAP_TIMES:]
        exceed: dict[str, float] = {}
        if served.data.held_out or not all(one.is_normal for one in served.model.config.likelihood):
            found = evaluate(served.model, served.data, [], limit=STATION_TIMES)
            exceed = maps.thresholds(found)
            ticket.advance(0)
            if served.data.held_out:
                stations = series(served.model, served.data, found, MAP_TIMES)
                if found.time is not None:
                    times = np.unique(found.time)[-MAP_TIMES:]
        return self._data(served.conditioner, times, stations, exceed, ticket)

    def of(self, context: Context, ticket: Ticket) -> dict[str, Any]:
        """The map of other observations, at their last times."""
        assert isinstance(context, Conditioner)
        times = context.data.times()
        shown = None if times is None else times[-MAP_TIMES:]
        own = {one["name"]: one["threshold"] for one in self.own(ticket)["variables"]}
        exceed = {name: level for name, level in own.items() if level is not None}
        return self._data(context, shown, NO_STATIONS, exceed, ticket)

    def _data(
        self,
        context: Conditioner,
        times: np.ndarray | None,
        stations: dict[str, Any],
        exceed: Mapping[str, float],
        ticket: Ticket,
    ) -> dict[str, Any]:
        served = self.served
        region = served.region
        grid = region.grid(served.model, MAP_POINTS)
        data = context.data
        return {
            "variables": [
                {
                    "name": name,
                    "unit": self._unit(name),
                    "threshold": exceed.get(name),
                    "chance": column(name, above(exceed[name])) if name in exceed else None,
                }
                for name in served.variables
            ],
            "region": {**vars(region), "around": region.around},
            "ramps": maps.RAMPS,
            "coastline": coastline(region),
            "times": None if times is None else times.astype("datetime64[s]").astype(int).tolist(),
            "labels": [""] if times is None else [show(time) for time in times],
            "first": 0 if times is None else len(times) // 2,
            "stations": stations,
            "context": maps.observations(served.model, data, times),
            "fields": maps.fields(served.model, context, grid, times, exceed, ticket.advance),
            "samples": None,
        }
