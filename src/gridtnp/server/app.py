"""The application: every address of the server, and what answers it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path as FilePath
from typing import Annotated, Any

import xarray as xr
from edr_pydantic.capabilities import ConformanceModel, LandingPageModel
from edr_pydantic.collections import Collection as EDRCollection
from edr_pydantic.collections import Collections as EDRCollections
from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response

from gridtnp import __version__
from gridtnp.errors import require_known
from gridtnp.inference.prediction import predict
from gridtnp.inference.queries import column
from gridtnp.inference.running import Output
from gridtnp.network.model import PIECE
from gridtnp.server import edr, queries, wkt
from gridtnp.server.coverages import ENDINGS, MEDIA, encode, georeference
from gridtnp.server.guard import Guard
from gridtnp.server.jobs import Job, Jobs
from gridtnp.server.openapi import (
    ANSWERS,
    REFUSALS,
    Coords,
    Datetime,
    F,
    Failure,
    Health,
    Ignored,
    JobStatus,
    ParameterName,
    describe,
    json_body,
)
from gridtnp.server.page import LivePage
from gridtnp.server.queries import Format, Observations, Prediction, Question
from gridtnp.server.refusals import handle_errors
from gridtnp.server.served import Served
from gridtnp.server.tiles import Tiles
from gridtnp.server.work import Found, Limits, Refused, Result, Ticket, Workers


def require_parameters(request: Request) -> None:
    """Raise for parameters that the route does not know."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name != "token":
            require_known(name, known, "parameter")


def create_app(
    served: Served,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    origins: Collection[str] = (),
    hosts: Collection[str] | None = None,
    report: FilePath | None = None,
) -> FastAPI:
    """The server of a model; `report` is an HTML file to show beside it."""
    limits = limits or Limits()
    workers, jobs = Workers(limits), Jobs(limits)
    tiles, page = Tiles(served), LivePage(served, report is not None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        jobs.pool.submit(page.prepare)
        yield
        page.prepared.cancelled = True
        workers.close()
        jobs.close()

    app = FastAPI(
        title=f"gridtnp: {', '.join(served.variables)}",
        version=__version__,
        description="Predictions with uncertainty, as OGC API – Environmental Data Retrieval.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        dependencies=[Depends(require_parameters)],
        responses=REFUSALS,
    )
    app.state.workers, app.state.jobs = workers, jobs

    # ---- working ---------------------------------------------------------------------------------

    async def run(request: Request, work: Callable[[Ticket], Result]) -> Found[Result]:
        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        return await workers.run(work, gone)

    async def answer(
        request: Request, ask: Callable[[], tuple[Question, Any]], f: Format
    ) -> Response:
        """The predictions that a question asks for, now or as a job."""

        def work(ticket: Ticket) -> bytes | Job:
            question, context = ask()
            if queries.require_affordable(question.points, limits, f):
                return jobs.submit(
                    lambda own, path: _write(question, context, own, path),
                    question.points,
                    ENDINGS[f],
                )
            found = served.predict(question.at, question.times, question.what, ticket, context)
            if question.inside is not None:
                found = found.where(question.inside)
            return encode(found, f)

        found = await run(request, work)
        if isinstance(found.result, Job):
            status = _status(found.result, str(request.base_url))
            where = {"Location": f"{request.base_url}jobs/{found.result.id}"}
            return JSONResponse(status.model_dump(), 202, where)
        headers = {"Content-Disposition": f'inline; filename="{edr.COLLECTION}{ENDINGS[f]}"'}
        return Response(found.result, 200, headers | _notes(found.notes), MEDIA[f])

    def _write(question: Question, context: Any, ticket: Ticket, path: FilePath) -> None:
        predict(
            served.model,
            served.conditioner if context is None else context,
            question.at,
            quantiles=question.what.quantiles,
            exceed=question.what.exceed,
            times=question.times,
            chunk=PIECE,
            output=Output(path, progress=ticket.advance),
        )
        if path.suffix == ENDINGS["netCDF"]:
            georeference(path)

    # ---- pages and metadata ----------------------------------------------------------------------

    @app.get(
        "/",
        response_model=LandingPageModel,
        response_model_exclude_none=True,
        responses={200: {"content": {"text/html": {}}}},
    )
    async def landing(
        request: Request, f: Annotated[str | None, Query(pattern="^(html|json)$")] = None
    ) -> Any:
        """The live map for browsers, the landing page for machines."""
        wants = f == "html" or (f is None and "text/html" in request.headers.get("accept", ""))
        if wants:
            text, policy = page.document
            headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
            return Response(text, 200, headers, "text/html; charset=utf-8")
        return edr.landing(served, str(request.base_url))

    @app.get("/health")
    async def health() -> Health:
        """Whether the server answers, and what it is doing."""
        unfinished = sum(not job.over for job in list(jobs.jobs.values()))
        return Health(
            status="ok", running=workers.running, waiting=workers.waiting, jobs=unfinished
        )

    @app.get("/conformance", response_model_exclude_none=True)
    async def conformance() -> ConformanceModel:
        """The parts of the standards that are here."""
        return edr.conformance()

    @app.get("/collections", response_model_exclude_none=True)
    async def collections(request: Request) -> EDRCollections:
        """All collections: one."""
        return edr.collections(served, str(request.base_url))

    @app.get("/collections/{collection}", response_model_exclude_none=True)
    async def collection(request: Request, collection: str) -> EDRCollection:
        """Parameters, extents and queries."""
        _require_collection(collection)
        return edr.collection(served, str(request.base_url))

    if report is not None:

        @app.get("/report", include_in_schema=False)
        async def the_report() -> Response:
            """The report of the run, if there is one; it brings its own policy."""
            return FileResponse(
                report, headers={"Content-Security-Policy": "frame-ancestors 'none'"}
            )

    # ---- EDR queries -----------------------------------------------------------------------------

    def question(
        at: xr.Dataset,
        datetime: str | None,
        names: str | None,
        crs: str | None,
        z: str | None,
        inside: xr.DataArray | None = None,
    ) -> Question:
        queries.require_plane(crs, z)
        timed = "time" in at.coords
        if timed and datetime is not None:
            raise ValueError("The line has times already; leave datetime out.")
        times = None if timed else queries.times_of(served, datetime)
        return Question(at, times, served.statistics(queries.names_of(names)), inside)

    @app.get("/collections/{collection}/position", responses=ANSWERS, response_class=Response)
    async def position(
        request: Request,
        collection: str,
        coords: Coords,
        datetime: Datetime = None,
        names: ParameterName = None,
        crs: Ignored = None,
        z: Ignored = None,
        f: F = "CoverageJSON",
    ) -> Response:
        """Predictions at a POINT or a MULTIPOINT."""
        _require_collection(collection)

        def ask() -> tuple[Question, None]:
            at = queries.position(wkt.parse(coords, "POINT", "MULTIPOINT"))
            return question(at, datetime, names, crs, z), None

        return await answer(request, ask, f)

    @app.get("/collections/{collection}/trajectory", responses=ANSWERS, response_class=Response)
    async def trajectory(
        request: Request,
        collection: str,
        coords: Coords,
        datetime: Datetime = None,
        names: ParameterName = None,
        crs: Ignored = None,
        z: Ignored = None,
        f: F = "CoverageJSON",
    ) -> Response:
        """Predictions along a LINESTRING; of LINESTRINGM, the measures are seconds since 1970."""
        _require_collection(collection)

        def ask() -> tuple[Question, None]:
            at = queries.trajectory(wkt.parse(coords, "LINESTRING", "MULTILINESTRING"))
            return question(at, datetime, names, crs, z), None

        return await answer(request, ask, f)

    @app.get("/collections/{collection}/cube", responses=ANSWERS, response_class=Response)
    async def cube(
        request: Request,
        collection: str,
        bbox: Annotated[str, Query(description="west,south,east,north")],
        datetime: Datetime = None,
        names: ParameterName = None,
        nx: Annotated[int | None, Query(alias="resolution-x", ge=1, le=100_000)] = None,
        ny: Annotated[int | None, Query(alias="resolution-y", ge=1, le=100_000)] = None,
        crs: Ignored = None,
        z: Ignored = None,
        f: F = "CoverageJSON",
    ) -> Response:
        """Predictions on a grid over a box."""
        _require_collection(collection)

        def ask() -> tuple[Question, None]:
            ends = _numbers(bbox)
            at = queries.box(served, *ends, resolution=(nx, ny), most=limits.job_points)
            return question(at, datetime, names, crs, z), None

        return await answer(request, ask, f)

    @app.get("/collections/{collection}/area", responses=ANSWERS, response_class=Response)
    async def area(
        request: Request,
        collection: str,
        coords: Coords,
        datetime: Datetime = None,
        names: ParameterName = None,
        nx: Annotated[int | None, Query(alias="resolution-x", ge=1, le=100_000)] = None,
        ny: Annotated[int | None, Query(alias="resolution-y", ge=1, le=100_000)] = None,
        crs: Ignored = None,
        z: Ignored = None,
        f: F = "CoverageJSON",
    ) -> Response:
        """Predictions on a grid over a POLYGON or MULTIPOLYGON; missing outside of it."""
        _require_collection(collection)

        def ask() -> tuple[Question, None]:
            found = wkt.parse(coords, "POLYGON", "MULTIPOLYGON")
            ends = found.lon.min(), found.lat.min(), found.lon.max(), found.lat.max()
            at = queries.box(served, *map(float, ends), resolution=(nx, ny), most=limits.points)
            lat, lon = (at[k].to_numpy() for k in ("lat", "lon"))
            shape = (len(lat), len(lon))
            inside = found.contains(lon[None].repeat(len(lat), 0).ravel(), lat.repeat(len(lon)))
            mask = xr.DataArray(inside.reshape(shape), {"lat": lat, "lon": lon}, ("lat", "lon"))
            made = question(at, datetime, names, crs, z, mask)
            if made.points > limits.points:
                raise Refused(
                    413,
                    f"The area has {made.points:,} points, but at most {limits.points:,} are "
                    "allowed; ask for fewer times, a smaller area, or for a cube.",
                )
            return made, None

        return await answer(request, ask, f)

    @app.get("/collections/{collection}/locations")
    async def locations(request: Request, collection: str) -> dict[str, Any]:
        """The stations, as GeoJSON."""
        _require_collection(collection)
        base = str(request.base_url)
        return (await run(request, lambda _: edr.locations(served, base))).result

    @app.get(
        "/collections/{collection}/locations/{location:path}",
        responses=ANSWERS,
        response_class=Response,
    )
    async def location(
        request: Request,
        collection: str,
        location: str,
        datetime: Datetime = None,
        names: ParameterName = None,
        crs: Ignored = None,
        f: F = "CoverageJSON",
    ) -> Response:
        """Predictions at a station."""
        _require_collection(collection)

        def ask() -> tuple[Question, None]:
            at = queries.location(served, location)
            return question(at, datetime, names, crs, None), None

        return await answer(request, ask, f)

    # ---- tiles, fresh observations, the map ------------------------------------------------------

    @app.get(
        "/tiles/{z}/{x}/{y}.png",
        responses={200: {"content": {"image/png": {}}, "description": "A tile."}, **REFUSALS},
        response_class=Response,
    )
    async def tile(
        request: Request,
        z: Annotated[int, Path(ge=0, le=30)],
        x: Annotated[int, Path(ge=0, le=2**30)],
        y: Annotated[int, Path(ge=0, le=2**30)],
        datetime: Datetime = None,
        name: Annotated[str | None, Query(alias="parameter-name")] = None,
    ) -> Response:
        """A map tile of a column (by default the mean) at a time (by default the last)."""

        def work(ticket: Ticket) -> bytes:
            times = queries.times_of(served, datetime)
            time = None if times is None else times[-1]
            return tiles.draw(z, x, y, name or column(served.variables[0], "mean"), time, ticket)

        found = await run(request, work)
        return Response(found.result, 200, {"Cache-Control": "max-age=300"}, "image/png")

    @app.post(
        "/predict",
        responses=ANSWERS,
        response_class=Response,
        openapi_extra=json_body(Prediction),
    )
    async def post_predict(request: Request) -> Response:
        """Predictions from observations in the body, or from the run's own."""
        content = await request.body()
        body = (await run(request, lambda _: queries.read_body(Prediction, content))).result

        def ask() -> tuple[Question, Any]:
            context = _fresh(served, body, limits)
            return queries.question_of(served, body, limits), context

        return await answer(request, ask, body.f)

    @app.get("/map", include_in_schema=False)
    async def own_map(request: Request) -> Response:
        """What the live map draws of the run's own observations."""
        return await draw(request, page.own)

    @app.post("/map", include_in_schema=False)
    async def fresh_map(request: Request) -> Response:
        """What the live map draws of observations in the body."""
        content = await request.body()

        def work(ticket: Ticket) -> dict[str, Any]:
            context = _fresh(served, queries.read_body(Observations, content), limits)
            return page.own(ticket) if context is None else page.of(context, ticket)

        return await draw(request, work)

    async def draw(request: Request, make: Callable[[Ticket], dict[str, Any]]) -> Response:
        found = await run(request, make)
        return JSONResponse({**found.result, "notes": list(found.notes)})

    # ---- jobs ------------------------------------------------------------------------------------

    @app.get("/jobs/{job}")
    async def job_status(request: Request, job: str) -> JobStatus:
        """How far a job is."""
        return _status(jobs.find(job), str(request.base_url))

    @app.delete("/jobs/{job}")
    async def dismiss(request: Request, job: str) -> JobStatus:
        """Stop a job and forget its result."""
        return _status(jobs.dismiss(job), str(request.base_url))

    @app.get(
        "/jobs/{job}/results",
        responses={**{k: v for k, v in ANSWERS.items() if k != 202}, 409: {"model": Failure}},
        response_class=Response,
    )
    async def job_result(job: str) -> Response:
        """The file that a job has written."""
        found = jobs.find(job)
        if found.status != "successful":
            raise Refused(409, f"The job is {found.status}, so it has no result to give.")
        kind = next(MEDIA[f] for f, ending in ENDINGS.items() if found.path.suffix == ending)
        name = f"{edr.COLLECTION}{found.path.suffix}"
        return FileResponse(found.path, media_type=kind, filename=name, headers=_notes(found.notes))

    handle_errors(app)
    describe(app)
    app.add_middleware(Guard, limits=limits, token=token, origins=origins, hosts=hosts)  # pyright: ignore[reportArgumentType]
    return app


def _fresh(served: Served, body: Observations, limits: Limits) -> Any:
    """The context of a body; None for the run's own."""
    if body.observations is None:
        if body.keep or body.time:
            raise ValueError("keep and time go with observations, but there are none.")
        return None
    return served.context(queries.tables_of(body.observations, limits), body.keep, body.time)


def _require_collection(name: str) -> None:
    if name != edr.COLLECTION:
        raise Refused(404, f"There is no collection {name!r}; there is {edr.COLLECTION!r}.")


def _numbers(bbox: str) -> tuple[float, float, float, float]:
    try:
        found = [float(number) for number in bbox.split(",")]
        west, south, east, north = found
    except ValueError:
        raise ValueError(
            f"bbox={bbox[:60]!r} must be four numbers; write bbox=-109,37,-102,41."
        ) from None
    return west, south, east, north


def _notes(notes: tuple[str, ...]) -> dict[str, str]:
    """Notes about the data as a header, which holds ASCII only."""
    text = " ".join(" ".join(notes).split())
    return {"Gridtnp-Note": text.encode("ascii", "replace").decode()[:1000]} if text else {}


def _status(job: Job, base: str) -> JobStatus:
    links = [{"rel": "self", "href": f"{base}jobs/{job.id}"}]
    if job.status == "successful":
        links.append({"rel": "results", "href": f"{base}jobs/{job.id}/results"})
    return JobStatus(
        id=job.id,
        status=job.status,
        progress=job.progress,
        message=job.message,
        notes=list(job.notes),
        links=links,
    )
