"""The command line: `gridtnp inspect`, `init`, `fit`, `evaluate`, `interpolate` and others.

Nothing heavy is imported before a command runs, so that `--help` answers at once. Errors are one
sentence on standard error. Exit codes: 1 for an error, 2 for a mistyped command, 130 after Ctrl-C,
141 if the reader of a pipe has gone. `--debug` shows the traceback.
"""

from __future__ import annotations

import json as json_text
import os
import select
import sys
import warnings
from collections.abc import Sequence
from inspect import Parameter as Argument
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from gridtnp import __version__
from gridtnp.cli.arguments import (
    draw_map,
    load_run,
    plot_evaluation,
    read_context,
    read_places,
    require_free,
    require_option,
)

CLOSED_PIPE = 141
"""Exit code of a process that SIGPIPE ends: 128 + 13."""
app = App(
    name="gridtnp",
    help="Observations anywhere, predictions with uncertainty anywhere.",
    version=__version__,
    help_format="plaintext",
    end_of_options_delimiter="",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)

Files = Annotated[list[str], Parameter(help="Paths, or name=path.")]
Json = Annotated[bool, Parameter(negative="", help="Print JSON.")]
Run = Annotated[Path, Parameter(help="Folder of a run.")]
Baselines = Annotated[
    list[str] | None,
    Parameter(
        consume_multiple=True,
        negative="",
        help="Baselines to compare with (default: the experiment's).",
    ),
]
FreshSources = Annotated[
    list[str] | None,
    Parameter(
        consume_multiple=True,
        negative="",
        help="Sources to predict from, as name=path (default: the run's own).",
    ),
]
StaticFields = Annotated[
    list[str] | None,
    Parameter(
        consume_multiple=True,
        negative="",
        help="Static fields of these sources, as name=path (default: the run's own).",
    ),
]
At = Annotated[
    str, Parameter(help="A file with locations or a grid, or lat=37:41,lon=-109:-102,step=0.1.")
]
Times = Annotated[
    list[str] | None, Parameter(consume_multiple=True, negative="", help="Times to predict at.")
]
Out = Annotated[Path, Parameter(name=["--output", "-o"], help="File to write.")]
Overwrite = Annotated[bool, Parameter(negative="", help="Replace an existing file.")]


@app.command
def inspect(files: Files, /, *, json: Json = False) -> None:
    """Describe files: sources, variables, units, extents and problems."""
    from gridtnp.cli.first_experiment import describe_files, inspect_files
    from gridtnp.data.description import record_of

    found = inspect_files(files)
    record = {
        name: record_of(source) | {"notes": [str(note) for note in notes]}
        for name, (source, notes) in found.items()
    }
    _print(json, record, describe_files(found))


@app.command
def init(
    files: Files,
    /,
    *,
    output: Out = Path("exp.yaml"),
    target: Annotated[str | None, Parameter(help="source.variable to predict.")] = None,
    wind: Annotated[
        str | None, Parameter(help="source.speed,direction to turn into components u and v.")
    ] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a first experiment for some files, to edit and pass to fit."""
    require_free(output, overwrite)
    from gridtnp.cli.first_experiment import first_experiment

    experiment, reasons = first_experiment(files, target, output.parent, wind)
    experiment = experiment.model_copy(update={"out": f"runs/{output.stem}"})
    experiment.write(output)
    lines = [*reasons, f"wrote {output}; next: gridtnp fit {output}"]
    _print(json, {"wrote": str(output), "reasons": list(reasons)}, "\n".join(lines))


@app.command
def fit(
    experiment: Annotated[Path, Parameter(help="YAML file of an experiment.")],
    /,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    resume: Annotated[bool, Parameter(negative="", help="Continue the run.")] = False,
    json: Json = False,
) -> None:
    """Train a model. Options replace keys of the experiment: --train.lr 1e-3 --out runs/b."""
    from gridtnp.cli.experiment import FILE_NAME, read_experiment
    from gridtnp.estimator import GriddedTNP
    from gridtnp.training.distributed import make_accelerator
    from gridtnp.training.run_folder import RunFolder

    for token in overrides:
        require_option(token)
    config = read_experiment(experiment, overrides)
    out, training = Path(config.out), config.train
    RunFolder.opened(out, resume=resume)  # raises before the data are read
    train, val, _ = config.parts()
    main_process = make_accelerator().is_main_process
    quiet = json or not main_process
    model = GriddedTNP.from_options(train, config.options(), seed=training.seed, quiet=quiet)
    try:
        model.fit(
            train,
            val,
            recipe=model.recipe,
            minutes=training.minutes,
            out=out,
            resume=resume,
            seed=training.seed,
            workers=training.workers,
            quiet=quiet,
        )
    except KeyboardInterrupt:
        words = ["gridtnp", "fit", str(experiment), *overrides, "--resume"]
        raise KeyboardInterrupt(
            f"Stopped; a checkpoint is in {out}. Continue with: {' '.join(words)}"
        ) from None
    if main_process:
        config.write(out / FILE_NAME)
        _print(json, {"run": str(out)}, f"wrote {out}; next: gridtnp evaluate {out}")


@app.command
def evaluate(
    run: Run,
    /,
    *,
    baselines: Baselines = None,
    limit: Annotated[int | None, Parameter(help="Maximum number of times.")] = None,
    json: Json = False,
) -> None:
    """Score a model on the test part of its data, beside baselines."""
    model, experiment = load_run(run)
    train, _, test = experiment.parts()
    names = experiment.evaluate.baselines if baselines is None else baselines
    times = experiment.evaluate.limit if limit is None else limit
    found = model.evaluate(test, names, train=train, limit=times)
    wrote, failure = [], None
    try:
        wrote.append(str(found.save(run)))
        wrote += plot_evaluation(found, run)
    except (OSError, ValueError, ImportError) as error:
        failure = error
    record = {"wrote": wrote[0] if wrote else None, "pictures": wrote[1:]}
    where = f"\nwrote {' and '.join(wrote)}" if wrote else ""
    _print(json, json_text.loads(found.to_json()) | record, f"{found}{where}")
    if failure is not None:  # after the scores, which took the time
        raise failure


@app.command
def report(
    run: Run,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="File to write (default: report.html in the run)."),
    ] = None,
    baselines: Baselines = None,
    times: Annotated[int, Parameter(help="How many of the last times are on the map.")] = 12,
    points: Annotated[int, Parameter(help="About how many grid points the map has.")] = 12_000,
    samples: Annotated[int, Parameter(help="Number of joint samples.")] = 6,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a report of a run as one HTML file: maps, calibration, scores."""
    path = run / "report.html" if output is None else output
    require_free(path, overwrite)
    model, experiment = load_run(run)
    train, _, test = experiment.parts()
    names = experiment.evaluate.baselines if baselines is None else baselines
    found = None
    if test is not train:  # which the report would refuse
        found = model.evaluate(test, names, train=train, limit=experiment.evaluate.limit)
    path = model.report(
        test,
        path,
        evaluation=found,
        times=times,
        points=points,
        samples=samples,
        overwrite=overwrite,
    )
    _print(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
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
    exceed: Annotated[
        tuple[float, ...],
        Parameter(
            consume_multiple=True,
            negative="",
            help="Thresholds whose probability of being exceeded to predict.",
        ),
    ] = (),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Predict anywhere, into .nc, .zarr, .parquet or .csv."""
    require_free(output, overwrite)
    model, experiment = load_run(run)
    data = read_context(model, experiment, context, static)
    path = model.predict(
        data,
        read_places(at),
        quantiles=quantiles,
        exceed=exceed,
        times=times,
        to=output,
        overwrite=overwrite,
        progress=not json,
    )
    _print(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
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
    _print(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
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
    quantiles: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")] = (
        0.05,
        0.95,
    ),
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
    from gridtnp.cli.arguments import read_covariates
    from gridtnp.data.reading import open_data
    from gridtnp.inference.writers import write
    from gridtnp.interpolation.interpolate import interpolate

    data = open_data(observations)
    found = interpolate(
        data,
        read_places(at),
        value=value,
        covariates=read_covariates(covariates),
        quantiles=quantiles,
        samples=samples,
        seed=seed,
    )
    assert not isinstance(found, dict)  # locations are a table or a grid here
    write(found, output, overwrite=overwrite)
    wrote = [str(output)]
    if plot:
        draw_map(found, data, picture)
        wrote.append(str(picture))
    _print(json, {"wrote": wrote}, f"wrote {' and '.join(wrote)}")


@app.command
def export(
    run: Run,
    /,
    *,
    output: Out = Path("model.pt2"),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write the network as a torch.export graph, checked against the model."""
    require_free(output, overwrite)
    from gridtnp.estimator import GriddedTNP

    path = GriddedTNP.load(run).export(output)
    _print(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
def doctor(*, json: Json = False) -> None:
    """Report what is installed and what this machine can do."""
    from gridtnp.cli.doctor import examine, report

    found = examine()
    _print(json, found, report(found))


@app.command(help_flags=[])
def reproduce(*tokens: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> None:
    """Reproduce an experiment of the paper; options: reproduce gp --help."""
    from gridtnp.reproduce.__main__ import main as run_experiment

    run_experiment(list(tokens) or ["--help"], program="gridtnp reproduce")


# ---- running a command ---------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [token for token in given if token != "--debug"]

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"note: {_in_flags(str(message), given)}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = note
            app(given, exit_on_error=False, print_error=False)
        sys.stdout.flush()  # a closed pipe can be handled here, but not at exit
    except CycloptsError as error:
        _exit(2, str(error), debug)
    except KeyboardInterrupt as stopped:
        _exit(130, str(stopped) or "Stopped.", debug)
    except (ValueError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and _discard_closed_streams():
            sys.exit(CLOSED_PIPE)
        _exit(1, _in_flags(str(error) or type(error).__name__, given), debug)
    except Exception as error:
        words = " ".join([f"{type(error).__name__}:", *map(str, error.args)]).split()
        _exit(1, f"{' '.join(words).rstrip(':')}; --debug shows where it happened.", debug)
    except SystemExit as left:
        by_rich = isinstance(left.__context__, BrokenPipeError)  # it exits with code 1
        if by_rich or _discard_closed_streams():
            left.code = CLOSED_PIPE
        raise


def _discard_closed_streams() -> bool:
    """Whether the reader of an output has gone, as in `gridtnp … | head`.

    What is left in the buffer then goes nowhere at exit, instead of raising again.
    """
    closed = [stream for stream in (sys.stdout, sys.stderr) if _reader_gone(stream)]
    for stream in closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return bool(closed)


def _reader_gone(stream: Any) -> bool:
    try:
        stream.flush()
        errors = select.poll()
        errors.register(stream.fileno(), 0)
        return bool(errors.poll(0))
    except BrokenPipeError:
        return True
    except (OSError, AttributeError):  # not a file, or no poll on this system
        return False


def _exit(code: int, message: str, debug: bool) -> None:
    if debug:
        raise
    print(message, file=sys.stderr)
    _discard_closed_streams()
    sys.exit(code)


def _in_flags(message: str, given: Sequence[str]) -> str:
    """Advice about arguments in Python, as advice about the flags of the command."""
    from gridtnp.cli.flags import in_flags

    command = given[0] if given else ""
    return in_flags(message, command, flags_of(command))


def flags_of(command: str) -> set[str]:
    """Names of the flags of a command."""
    if command not in app:
        return set()
    function = app[command].default_command
    arguments = () if function is None else signature(function).parameters.values()
    return {a.name for a in arguments if a.kind is Argument.KEYWORD_ONLY}


def _print(json: bool, record: dict[str, Any], text: str) -> None:
    print(json_text.dumps(record, ensure_ascii=False) if json else text)
