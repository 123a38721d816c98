"""Hostile requests: each is answered with a 4xx and one sentence, and the server lives on."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psutil
import pytest
from serving import HERE, LIMITS, NOON, Server, observations, running, served

from gridtnp.server.work import Limits

AT = {"lat": [51.0], "lon": [0.0]}


@pytest.fixture(autouse=True)
def _lives(server: Server) -> Iterator[None]:
    """After every test the server answers, and does nothing any more."""
    yield
    server.wait(lambda: server.ask("/health").json["running"] == 0)
    assert server.ask("/health").json == {"status": "ok", "running": 0, "waiting": 0, "jobs": 0}


def assert_sentence(text: str) -> None:
    assert re.match(r"^[^\n]{10,1000}[.?]$", text), text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("position?coords=POINT(nan 51)", 400, "must be 2 numbers"),
        ("position?coords=POINT(1e999 51)", 400, "too large"),
        ("position?coords=POINT(0 510)", 400, "outside latitudes"),
        ("position?coords=POINT(0 51 3)", 400, "must be 2 numbers"),
        ("position?coords=POINTZ(0 51 3)", 400, "leave Z out"),
        ("position?coords=PIONT(0 51)", 400, "did you mean 'POINT'"),
        ("position?coords=POINT((0 51))", 400, "brackets"),
        ("position?coords=((((((((", 400, "is not well-known text"),
        ("position", 400, "'coords' is missing"),
        ("position?coords=POINT(0 51)&datetme=2019", 400, "did you mean 'datetime'"),
        ("position?coords=POINT(0 51)&datetime=yesterday", 400, "not a date"),
        ("position?coords=POINT(0 51)&datetime=1900/1901", 404, "There is no time"),
        ("position?coords=POINT(0 51)&parameter-name=t2m_maen", 400, "did you mean 't2m_mean'"),
        ("position?coords=POINT(0 51)&parameter-name=t2m_q00", 400, "Unknown parameter"),
        ("position?coords=POINT(0 51)&f=GRIB", 400, "f='GRIB'"),
        ("position?coords=POINT(0 51)&crs=EPSG:3857", 400, "CRS84"),
        ("position?coords=POINT(0 51)&z=850", 400, "no vertical levels"),
        ("position?coords=POINT(100 -51)", 400, "Nothing can be predicted"),
        ("cube?bbox=1,2,3", 400, "four numbers"),
        ("cube?bbox=nan,nan,nan,nan", 400, "is not west,south,east,north"),
        ("cube?bbox=-2,49,2,52&resolution-x=99999&resolution-y=99999", 413, "9,999,800,001 points"),
        ("cube?bbox=-2,49,2,52&resolution-x=1000000000", 400, "resolution-x"),
        ("cube?bbox=-2,49,2,52&resolution-x=55&resolution-y=60", 413, "f=netCDF"),
        ("area?coords=POLYGON((0 0,1 1,0 1,0 0),)", 400, "brackets"),
        ("trajectory?coords=LINESTRINGM(0 51 1e300,1 52 1e300)", 400, "seconds since 1970"),
        ("locations/..%2f..%2fetc%2fpasswd", 404, "There is no location"),
        ("locations/nowhere", 404, "There is no location 'nowhere'"),
    ],
)  # fmt: skip
def test_wrong_queries(server: Server, query: str, status: int, words: str) -> None:
    found = server.ask(f"{HERE}/{query.replace(' ', '%20')}")
    assert found.status == status
    assert words in found.sentence
    assert_sentence(found.sentence)


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/report", "/static/../app.py", "//etc",
        "/collections/..%2f..%2f", "/jobs/..%2f..%2fetc", "/tiles/0/0/..%2f0.png",
        "/tiles/99/0/0.png", "/tiles/-1/0/0.png", "/tiles/a/b/c.png", "/docs", "/jobs/x/results",
    ],
)  # fmt: skip
def test_path_tricks(server: Server, path: str) -> None:
    found = server.ask(path)
    assert found.status in (400, 404)
    assert_sentence(found.sentence)


WIDE_NAMES = [f"c{i}" for i in range(15_000)]
WIDE = f"\n{','.join(WIDE_NAMES)}\n{','.join('1' * 15_000)}\n"
CSV = "lat,lon,time,elevation,t2m\n51,0,2019-03-01T12:00,10,{}\n"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe\x00", 400, "not JSON"),
        (b"[]", 400, "The body: "),
        (b"[" * 150_000, 400, "not JSON"),
        (b'{"at":' * 5_000, 400, "not JSON"),
        (b'{"at":' * 20_000, 400, "more than 10,000 keys"),
        (b'{"at" \n:' * 20_000, 400, "more than 10,000 keys"),
        (b'{"at": {"lat": [NaN], "lon": [0]}}', 400, "at"),
        (b'{"at": {"lat": [1e999], "lon": [0]}}', 400, "at"),
        ({"att": AT}, 400, "did you mean 'at'"),
        ({}, 400, "Give either at"),
        ({"at": AT, "grid": {"lat": [1, 2], "lon": [1, 2], "step": 1}}, 400, "Give either at"),
        ({"at": {"lat": [51.0], "lon": [0.0, 1.0]}, "times": [NOON]}, 400, "differ in length"),
        ({"at": {"lat": ["x"], "lon": [0.0]}, "times": [NOON]}, 400, "must be numbers"),
        ({"at": {"lat": [], "lon": []}}, 400, "no rows"),
        ({"at": AT, "times": ["now"]}, 400, "not a date"),
        ({"at": AT, "times": []}, 400, "times"),
        ({"at": AT}, 400, "choose one"),
        ({"at": AT, "times": [NOON], "quantiles": [2]}, 400, "not between 0 and 1"),
        ({"at": AT, "exceed": [1] * 100}, 400, "exceed: List should have at most 99"),
        ({"at": AT, "exceed": {"t2m": [1] * 100}}, 400, "exceed.t2m: List should have at most 99"),
        ({"at": AT, "times": [NOON], "f": "pickle"}, 400, "CoverageJSON"),
        ({"grid": {"lat": [-90, 90], "lon": [-180, 180], "step": 1e-3}}, 413, "64,800,540,001"),
        ({"grid": {"lat": [-90, 90], "lon": [-180, 180], "step": 1e-300}}, 413, "points"),
        ({"grid": {"lat": [0, 1], "lon": [0, 1], "step": -1}}, 400, "greater than 0"),
        ({"at": AT, "times": [NOON], "observations": {"stations": "/etc/passwd"}}, 400, "no rows"),
        ({"at": AT, "observations": {"stations": "file:///etc/passwd"}}, 400, "no rows"),
        ({"at": AT, "observations": {"stations": ""}}, 400, "is empty"),
        ({"at": AT, "observations": {"ships": CSV.format(1)}}, 400, "Unknown source 'ships'"),
        ({"at": AT, "observations": {"stations": CSV.format("=1+1")}}, 400, "=1+1"),
        ({"at": AT, "observations": {"stations": CSV.format("=cmd|' /C calc'!A0")}}, 400, "cmd"),
        ({"at": AT, "observations": {"stations": CSV.format("1,2,3")}}, 400, "fields"),
        ({"at": AT, "observations": {"stations": "a,b\n1,2\n"}}, 400, "latitude"),
        ({"at": AT, "observations": {"stations": "lat,lon\n1,2\n"}}, 400, ""),
        ({"at": AT, "observations": {"stations": WIDE}}, 400, "has 15,000 columns"),
        ({"at": AT, "observations": {"stations": {c: [1] for c in WIDE_NAMES[:300]}}}, 400, "200"),
        ({"at": {c: [1] for c in WIDE_NAMES[:300]}}, 400, "200"),
        (dict.fromkeys(WIDE_NAMES, 1), 400, "more than 10,000 keys"),
        ({"at": AT, "keep": ["stations"]}, 400, "there are none"),
    ],
)  # fmt: skip
def test_wrong_bodies(server: Server, body: Any, status: int, words: str) -> None:
    found = server.ask("/predict", body=body)
    assert found.status == status, found.body
    assert words in found.sentence
    assert_sentence(found.sentence)
    if not isinstance(body, bytes) and "observations" in body:
        assert server.ask("/map", body={"observations": body["observations"]}).status == status


def test_more_observations_than_allowed(server: Server) -> None:
    text = "lat,lon,t2m\n" + "51,0,1\n" * (LIMITS.observations + 1)
    found = server.ask("/predict", body={"at": AT, "observations": {"stations": text}})
    assert found.status == 413
    assert "at most 2,000 are allowed" in found.sentence


def _send_chunks(connection: socket.socket, number: int) -> None:
    for _ in range(number):
        connection.sendall(b"2710\r\n" + b" " * 10_000 + b"\r\n")


def test_huge_and_compressed_bodies(server: Server) -> None:
    found = server.ask("/predict", body=b" " * (LIMITS.body + 1))
    assert found.status == 413
    assert "larger than 200,000 bytes" in found.sentence
    bomb = gzip.compress(b" " * 10_000_000)
    found = server.ask("/predict", body=bomb, headers={"Content-Encoding": "gzip"})
    assert found.status == 415
    assert "Compressed bodies are not read" in found.sentence
    found = server.ask("/predict", body=bomb)
    assert found.status == 400
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
        )
        connection.sendall(b"\r\n\r\n")
        with pytest.raises(OSError, match=r"[Rr]eset|[Bb]roken|[Pp]ipe"):
            _send_chunks(connection, 10_000)  # 100 MB


def test_a_slow_body() -> None:
    with (
        running(served(), Limits(body_seconds=0.4)) as server,
        socket.create_connection(("127.0.0.1", server.port), 10) as connection,
    ):
        head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"was not complete within 0.4 s" in answer


def test_other_hosts_origins_and_methods(server: Server) -> None:
    found = server.ask("/health", headers={"Host": "evil.example"})
    assert found.status == 421
    assert "is not called 'evil.example'" in found.sentence
    for origin in ("https://evil.example", "null"):
        found = server.ask("/predict", body={"at": AT}, headers={"Origin": origin})
        assert found.status == 403
        assert "access-control-allow-origin" not in found.headers
    found = server.ask("/health", headers={"Origin": server.address.rstrip("/")})
    assert found.status == 200
    assert "access-control-allow-origin" not in found.headers
    found = server.ask("/predict", method="PUT")
    assert found.status == 405
    assert_sentence(found.sentence)


def test_a_token_and_an_allowed_origin() -> None:
    origin = "https://maps.example"
    with running(served(), token="s3cret", origins=[origin]) as server:
        assert server.ask("/health").status == 200
        found = server.ask("/collections")
        assert found.status == 401
        assert "needs its token" in found.sentence
        for wrong in ("", "wrong", "é"):
            assert server.ask("/collections", {"token": wrong}).status == 401
        bearer = {"Authorization": "Bearer s3cret"}
        assert server.ask("/collections", headers=bearer).status == 200
        assert server.ask("/tiles/0/0/0.png", {"token": "s3cret"}).status == 200
        page = server.ask("/", {"token": "s3cret"})
        assert page.status == 303
        assert page.headers["location"] == "/"
        cookie = page.headers["set-cookie"].partition(";")[0]
        assert "HttpOnly; SameSite=Strict" in page.headers["set-cookie"]
        assert server.ask("/", headers={"Cookie": cookie}).status == 200
        found = server.ask("/collections", headers={**bearer, "Origin": origin})
        assert found.headers["access-control-allow-origin"] == origin


def test_a_client_that_leaves_frees_its_work(server: Server) -> None:
    """Its answer would take minutes; the worker is free at the next piece."""
    slow, release = threading.Event(), threading.Event()

    def work(ticket: Any) -> None:
        slow.set()
        while not release.wait(0.01):
            ticket.advance(1)

    original, page = served().predict, server.app
    assert page is not None

    class Slow:
        def __call__(self, *arguments: Any) -> Any:
            work(arguments[3])
            return original(*arguments)

    object.__setattr__(served(), "predict", Slow())
    try:
        connection = socket.create_connection(("127.0.0.1", server.port), 10)
        path = f"{HERE}/position?coords=POINT(0%2051)&datetime={NOON}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert slow.wait(20)
        assert server.ask("/health").json["running"] == 1
        connection.close()
        server.wait(lambda: server.ask("/health").json["running"] == 0)
        assert not release.is_set()
    finally:
        release.set()
        object.__delattr__(served(), "predict")


@contextmanager
def stuck(release: threading.Event) -> Iterator[None]:
    """Predictions do not end before they are released."""

    def predict(_: Any, __: Any, ___: Any, ticket: Any, *____: Any) -> None:
        while not release.wait(0.01):
            ticket.advance(0)
        raise ValueError("released")

    object.__setattr__(served(), "predict", predict)
    try:
        yield
    finally:
        release.set()
        object.__delattr__(served(), "predict")


QUESTION = {"coords": "POINT(0 51)", "datetime": NOON}


def test_an_answer_that_takes_too_long() -> None:
    with running(served(), Limits(seconds=0.2)) as server, stuck(threading.Event()):
        found = server.ask(f"{HERE}/position", QUESTION)
    assert found.status == 408
    assert "took longer than 0.2 s" in found.sentence


def test_too_many_questions_at_once() -> None:
    release, answers = threading.Event(), []

    def ask() -> None:
        answers.append(server.ask(f"{HERE}/position", QUESTION).status)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    with running(served(), Limits(workers=1, waiting=1)) as server, stuck(release):
        for thread, busy in zip(threads, ({"running": 1}, {"waiting": 1}), strict=True):
            thread.start()
            server.wait(lambda busy=busy: server.ask("/health").json.items() >= busy.items())
        found = server.ask(f"{HERE}/position", QUESTION)
        assert found.status == 429
        assert "1 requests wait already; try again" in found.sentence
        release.set()
        for thread in threads:
            thread.join()
    assert answers == [400, 400]


def test_silent_clients_do_not_keep_others_out() -> None:
    with running(served(), Limits(connections=4, head_seconds=2)) as server:
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        with ExitStack() as stack:

            def connect(first: bytes) -> socket.socket:
                one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
                one.sendall(first)
                return one

            served_before = connect(head + b"\r\n")
            assert served_before.recv(100)
            served_before.sendall(head)  # silent after an answer
            silent = [served_before, connect(head), connect(b""), connect(b"")]
            server.wait(lambda: server.ask("/health").status == 200)
            for one in silent:
                wait_until_closed(one)
        assert server.ask("/health").status == 200


def wait_until_closed(client: socket.socket) -> None:
    """Read until the server closes the connection, which resets it if bytes are still unread."""
    with suppress(ConnectionResetError):
        while client.recv(1000):
            pass


def test_more_connections_than_allowed_are_refused() -> None:
    with running(served(), Limits(connections=2)) as server:
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            server.wait(lambda: server.ask("/health").status == 503)
        server.wait(lambda: server.ask("/health").status == 200)


def test_jobs_are_limited_and_can_be_dismissed(server: Server) -> None:
    body = {"grid": {"lat": [48, 54], "lon": [-3, 3], "step": 0.05}, "times": [NOON], "f": "CSV"}
    with stuck(threading.Event()):
        found = [server.ask("/predict", body=body) for _ in range(4)]
        accepted = [f.json["id"] for f in found if f.status == 202]
        assert 0 < len(accepted) < 4
        assert all("jobs are unfinished" in f.sentence for f in found if f.status != 202)
        for job in accepted:
            assert server.ask(f"/jobs/{job}/results").status == 409
            assert server.ask(f"/jobs/{job}", method="DELETE").status == 200
    server.wait(lambda: server.ask("/health").json["jobs"] == 0)


def test_memory_is_bounded(server: Server) -> None:
    table = observations()
    columns = {k: table[k].tolist() for k in table.columns}
    body = {"observations": {"stations": columns}, "at": AT, "times": [NOON]}
    huge = json.dumps({"grid": {"lat": [-90, 90], "lon": [-180, 180], "step": 1e-4}}).encode()
    for _ in range(3):
        server.ask("/predict", body=body)
    before = psutil.Process().memory_info().rss
    for _ in range(15):
        assert server.ask("/predict", body=body).status == 200
        assert server.ask("/predict", body=huge).status == 413
        assert server.ask("/predict", body=b" " * (LIMITS.body + 1)).status == 413
    assert psutil.Process().memory_info().rss - before < 60_000_000
