"""The command line: `gridtnp inspect`, `init`, `fit`, `evaluate`, `report` and others.

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

from cyclopts import CycloptsError, Parameter

from gridtnp.cli import run_commands
from gridtnp.cli.arguments import (
    add_part,
    load_run,
    plot_evaluation,
    read_part,
    require_free,
    require_option,
)
from gridtnp.cli.options import Baselines, Files, Json, Out, Overwrite, Run, app, print_record

CLOSED_PIPE = 141
"""Exit code of a process that SIGPIPE ends: 128 + 13."""


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
    print_record(json, record, describe_files(found))


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
    print_record(json, {"wrote": str(output), "reasons": list(reasons)}, "\n".join(lines))


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
        print_record(json, {"run": str(out)}, f"wrote {out}; next: gridtnp evaluate {out}")


@app.command
def evaluate(
    run: Run,
    /,
    *,
    baselines: Baselines = None,
    limit: Annotated[int | None, Parameter(help="Maximum number of times.")] = None,
    part: Annotated[
        str | None, Parameter(help="i/n: part i of n, counted from 0; the last prints all scores.")
    ] = None,
    json: Json = False,
) -> None:
    """Score a model on the test part of its data, beside baselines."""
    which = read_part(part)
    model, experiment = load_run(run)
    train, _, test = experiment.parts()
    names = experiment.evaluate.baselines if baselines is None else baselines
    times = experiment.evaluate.limit if limit is None else limit
    found = model.evaluate(test, names, train=train, limit=times, part=which)
    if which is not None:
        file, added = add_part(found, run, test.fingerprint())
        record: dict[str, Any] = {"wrote": str(file), "missing": added.missing}
        text = f"wrote {file}; {len(added.done)} of {added.parts} parts are done"
        if not added.missing:
            record["scores"] = [
                {k: None if v != v else v for k, v in row.items()} for row in added.rows
            ]
            text = f"{added}\n{text}"
        print_record(json, record, text)
        return
    wrote, failure = [], None
    try:
        wrote.append(str(found.save(run)))
        wrote += plot_evaluation(found, run)
    except (OSError, ValueError, ImportError) as error:
        failure = error
    record = {"wrote": wrote[0] if wrote else None, "pictures": wrote[1:]}
    where = f"\nwrote {' and '.join(wrote)}" if wrote else ""
    print_record(json, json_text.loads(found.to_json()) | record, f"{found}{where}")
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
    if output is not None or run.is_dir():  # else, loading says what a run is
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
    print_record(json, {"wrote": str(path)}, f"wrote {path}")


for command in (
    run_commands.predict,
    run_commands.status,
    run_commands.sample,
    run_commands.serve,
    run_commands.interpolate,
):
    app.command(command)


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
    print_record(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
def doctor(*, json: Json = False) -> None:
    """Report what is installed and what this machine can do."""
    from gridtnp.cli.doctor import examine, report

    found = examine()
    print_record(json, found, report(found))


@app.command(help_flags=[])
def reproduce(*tokens: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> None:
    """Reproduce an experiment of the paper: gp, stations or wind."""
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
