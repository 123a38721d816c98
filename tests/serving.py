"""A server of a small model in this process, and requests to it over real sockets."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import small
import uvicorn
import xarray as xr
from report_cases import SOURCE, UNITS, fitted, parts

import gridtnp as gt
from gridtnp.evaluation.results import Evaluation
from gridtnp.evaluation.saved import SavedScores
from gridtnp.server.app import create_app
from gridtnp.server.connections import configure
from gridtnp.server.run import LOCAL, bind
from gridtnp.server.served import Fresh, Served
from gridtnp.server.work import Limits
from gridtnp.sources.quality import collecting

LIMITS = Limits(
    body=200_000,
    points=3_000,
    job_points=20_000,
    observations=2_000,
    workers=2,
    jobs=2,
)
NOON = "2019-03-01T12:00:00"
HERE = "/collections/predictions"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def sentence(self) -> str:
        """The description of an error."""
        assert set(self.json) == {"code", "description"}, self.json
        return self.json["description"]


@dataclass(frozen=True)
class Server:
    """Where a server listens, and what it serves."""

    port: int
    app: Any

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self,
        path: str,
        query: dict[str, Any] | None = None,
        *,
        method: str | None = None,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        where = path if query is None else f"{path}?{urlencode(query)}"
        try:
            connection.request(method, where, body, headers or {})
            found = connection.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())
        finally:
            connection.close()

    def wait(self, condition: Any, seconds: float = 900.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)


@contextmanager
def running(served: Served, limits: Limits = LIMITS, **options: Any) -> Iterator[Server]:
    listening = bind("127.0.0.1", 0)
    app = create_app(served, limits, hosts=LOCAL, **options)
    server = uvicorn.Server(configure(app, limits))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Server(listening.getsockname()[1], app)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


@cache
def model_and_parts() -> tuple[gt.GriddedTNP, gt.Dataset, gt.Dataset]:
    """A model whose data try to run scripts, with its training and test part."""
    _, test = parts()
    source = test.sources["stations"]
    assert source.labels is not None
    assert test.target_places is not None
    train, test = parts(str(source.labels[test.target_places][0]), UNITS)
    return fitted(train), train, test


@cache
def served() -> Served:
    model, _, test = model_and_parts()
    fresh = Fresh(
        {"stations": small.table(), SOURCE: small.field()}, {"elevation": small.heights()}
    )
    return Served(model.contents, test, fresh, "small", saved(evaluated()))


@cache
def evaluated() -> Evaluation:
    model, _, test = model_and_parts()
    return model.evaluate(test, ["nearest"])


def saved(evaluation: Evaluation) -> SavedScores | None:
    """What a run keeps of an evaluation."""
    with TemporaryDirectory() as folder:
        evaluation.save(folder)
        return SavedScores.read(folder)


@cache
def rainy() -> tuple[gt.GriddedTNP, Served]:
    """A model of rain and temperature with its scores; no station is held out."""
    rng = np.random.default_rng(0)
    sites = pd.DataFrame({"lat": rng.uniform(45, 50, 20), "lon": rng.uniform(5, 10, 20)})
    rows = sites.assign(station=[f"S{i}" for i in range(20)]).merge(
        pd.DataFrame({"time": pd.date_range("2020", periods=12)}), how="cross"
    )
    rows["rain"] = np.maximum(3 * rng.normal(size=len(rows)), 0)
    rows["tmax"] = 10 * np.sin(rows["lat"]) + rng.normal(size=len(rows))
    units = {"s.rain": "mm", "s.tmax": "degC"}
    data = gt.Dataset({"s": rows}, target=["s.rain", "s.tmax"], units=units)
    train, _, test = data.split(time=["2020-01-07", "2020-01-09"])
    model = fitted(train)
    scores = saved(model.evaluate(test, ["nearest"]))
    return model, Served(model.contents, test, name="rain", scores=scores)


def observations(number: int = 30) -> pd.DataFrame:
    """Fresh observations of one time."""
    table = small.table(number, seed=3)
    table = table[table["time"] == NOON].dropna()
    table["time"] = NOON
    return table.reset_index(drop=True)


def expected_of(table: pd.DataFrame, at: xr.Dataset) -> xr.Dataset:
    """What `predict` makes of fresh observations beside the field of the run."""
    model, _, _ = model_and_parts()
    sources = {"stations": table, SOURCE: small.field()}
    static = {"elevation": small.heights()}
    with collecting():  # the units of the model try to run a script
        return model.predict(sources, at, times=[NOON], static=static, progress=False)


def values_of(answer: Answer, name: str) -> np.ndarray:
    """A column of CoverageJSON."""
    found = answer.json["ranges"][name]
    values = np.array([np.nan if v is None else v for v in found["values"]], np.float64)
    return values.reshape(found["shape"])
