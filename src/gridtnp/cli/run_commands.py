"""Commands that predict: `gridtnp predict`, `status`, `sample`, `serve` and `interpolate`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gridtnp.cli.arguments import (
    draw_map,
    load_run,
    load_served,
    read_context,
    read_covariates,
    read_part,
    read_places,
    read_sizes,
    require_free,
    status_text,
)
from gridtnp.cli.options import (
    At,
    FreshSources,
    Json,
    Out,
    Overwrite,
    Run,
    StaticFields,
    Thresholds,
    Times,
    print_record,
)


def predict(
    run: Run,
    /,
    *,
    at: At,
    output: Out,
    context: FreshSources = None,
    static: StaticFields = None,
    times: Times = None,
    quantiles: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")] = (
        0.05,
        0.95,
    ),
    exceed: Thresholds = (),
    derive: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative="",
            help="Of wind components: speed, direction.",
        ),
    ] = (),
    layout: Annotated[
        bool, Parameter(negative="", help="Only lay out the Zarr store, for parts to fill.")
    ] = False,
    part: Annotated[
        str | None, Parameter(help="i/n: predict part i of n, counted from 0, of a Zarr store.")
    ] = None,
    resume: Annotated[
        bool, Parameter(negative="", help="Do what is not done yet of a Zarr store.")
    ] = False,
    regions: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="Sizes of the regions of a Zarr store, such as time=24.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        Parameter(help="Dask scheduler to predict a Zarr store on, tcp://HOST:PORT or local:4."),
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Predict anywhere, into .nc, .zarr, .parquet or .csv; a Zarr store also in parts."""
    shared = part is not None or resume
    require_free(output, overwrite or shared)
    which, sizes = read_part(part), read_sizes(regions)
    from gridtnp.inference.cluster import open_client

    model, experiment = load_run(run)
    data = read_context(model, experiment, context, static)
    with open_client(scheduler) if scheduler is not None else nullcontext() as client:
        path = model.predict(
            data,
            read_places(at),
            quantiles=quantiles,
            exceed=exceed,
            derive=derive,
            times=times,
            to=None if layout else output,
            overwrite=overwrite,
            layout=output if layout else None,
            part=which,
            resume=resume,
            regions=sizes,
            client=client,
            progress=not json,
        )
    if not (layout or shared or scheduler):
        print_record(json, {"wrote": str(path)}, f"wrote {path}")
        return
    from gridtnp.inference.stores import prediction_status

    found = prediction_status(path)
    print_record(json, {"wrote": str(path)} | found, status_text(found))


def status(
    store: Annotated[Path, Parameter(help="Zarr store of a prediction in parts.")],
    /,
    *,
    json: Json = False,
) -> None:
    """Tell how much of a prediction in parts is done."""
    from gridtnp.inference.stores import prediction_status

    found = prediction_status(store)
    print_record(json, found, status_text(found))


def sample(
    run: Run,
    /,
    *,
    at: At,
    output: Out,
    number: Annotated[int, Parameter(name=["--number", "-n"], help="Number of samples.")] = 10,
    context: FreshSources = None,
    static: StaticFields = None,
    times: Times = None,
    subset: Annotated[int, Parameter(help="Points sampled autoregressively.")] = 128,
    seed: int = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw joint samples of whole fields, into .nc, .zarr, .parquet or .csv."""
    require_free(output, overwrite)
    model, experiment = load_run(run)
    data = read_context(model, experiment, context, static)
    path = model.sample(
        number,
        data,
        read_places(at),
        times=times,
        subset=subset,
        seed=seed,
        to=output,
        overwrite=overwrite,
        progress=not json,
    )
    print_record(json, {"wrote": str(path)}, f"wrote {path}")


def serve(
    run: Run,
    /,
    *,
    host: Annotated[str, Parameter(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port to listen on; 0 for any free one.")] = 8000,
    token: Annotated[
        str | None,
        Parameter(env_var="GRIDTNP_TOKEN", help="Secret that every request must have."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        Parameter(consume_multiple=True, negative="", help="Other pages that may ask, as origins."),
    ] = None,
    points: Annotated[int, Parameter(help="Most points of an answer; more are a job.")] = 50_000,
    body: Annotated[int, Parameter(help="Most bytes of a body.")] = 10_000_000,
    seconds: Annotated[float, Parameter(help="Most seconds of an answer.")] = 60.0,
    workers: Annotated[
        int | None, Parameter(help="Predictions at once (default: the number of cores).")
    ] = None,
    json: Json = False,
) -> None:
    """Serve a live map, OGC EDR and map tiles of a run, until Ctrl-C."""
    from gridtnp.server.run import address_of, bind, require_server, serve

    require_server()
    from gridtnp.server.work import Limits

    chosen = {} if workers is None else {"workers": workers}
    limits = Limits(points=points, body=body, seconds=seconds, **chosen)
    with bind(host, port) as listening:  # before the run is read
        served = load_served(run)
        address = address_of(listening)
        serve(
            served,
            listening,
            limits=limits,
            token=token,
            origins=allow_origin or (),
            report=run / "report.html" if (run / "report.html").is_file() else None,
            ready=lambda: _announce(json, run, address),
        )


def _announce(json: bool, run: Path, address: str) -> None:
    record = {"run": str(run), "address": address}
    print_record(json, record, f"serving {run} on {address} (Ctrl-C stops)")
    sys.stdout.flush()


def interpolate(
    observations: Annotated[str, Parameter(help="File of observations with one variable.")],
    /,
    *,
    at: At,
    output: Out,
    value: Annotated[
        str | None, Parameter(help="Column to interpolate, if there are more.")
    ] = None,
    covariates: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=True,
            negative="",
            help="Columns of observations and locations, or a file with fields.",
        ),
    ] = None,
    error: Annotated[
        float | str | None,
        Parameter(help="Standard deviation of reading errors: a number, or a column."),
    ] = None,
    quantiles: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")] = (
        0.05,
        0.95,
    ),
    exceed: Thresholds = (),
    samples: Annotated[int, Parameter(help="Number of joint samples.")] = 0,
    seed: int = 0,
    plot: Annotated[
        bool, Parameter(negative="", help="Also draw a map, as .png beside the output.")
    ] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Interpolate observations at once, without training, into .nc, .zarr, .parquet or .csv."""
    require_free(output, overwrite)
    picture = output.with_suffix(".png")
    if plot:
        require_free(picture, overwrite)
    from gridtnp.inference.writers import write
    from gridtnp.interpolation.interpolate import interpolate
    from gridtnp.sources.reading import open_data

    data = open_data(observations)
    found = interpolate(
        data,
        read_places(at),
        value=value,
        covariates=read_covariates(covariates),
        error=error,
        quantiles=quantiles,
        exceed=exceed,
        samples=samples,
        seed=seed,
    )
    assert not isinstance(found, dict)  # locations are a table or a grid here
    write(found, output, overwrite=overwrite)
    wrote = [str(output)]
    if plot:
        draw_map(found, data, picture)
        wrote.append(str(picture))
    print_record(json, {"wrote": wrote}, f"wrote {' and '.join(wrote)}")
