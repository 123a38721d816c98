"""The command line: `gridtnp inspect · init · fit · evaluate · predict · sample · export · doctor ·
reproduce`.

Nothing heavy is imported before a command runs, so that `--help` answers at once. What people did
wrong is told in a sentence: exit code 1, or 2 where the command itself was mistyped; 130 after
Ctrl-C. `--debug` shows where it happened.
"""

from __future__ import annotations

import json as json_text
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from gridtnp import __version__

if TYPE_CHECKING:
    from gridtnp.cli.experiment import Experiment
    from gridtnp.data.dataset import Dataset
    from gridtnp.estimator import GriddedTNP
    from gridtnp.evaluation.results import Evaluation
    from gridtnp.inference.queries import Places

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
Json = Annotated[bool, Parameter(negative="", help="Print JSON for machines.")]
Run = Annotated[Path, Parameter(help="Folder of a run.")]
Given = Annotated[
    list[str] | None,
    Parameter(consume_multiple=True, negative="", help="Fresh sources, name=path; else the run's."),
]
Statics = Annotated[
    list[str] | None,
    Parameter(consume_multiple=True, negative="", help="Static fields, name=path; else the run's."),
]
At = Annotated[
    str, Parameter(help="A file of places or a grid, or lat=37:41,lon=-109:-102,step=0.1.")
]
Times = Annotated[
    list[str] | None, Parameter(consume_multiple=True, negative="", help="Times to predict at.")
]
Out = Annotated[Path, Parameter(name=["--output", "-o"], help="Where to write.")]
FLAGS = {"resume=True or": "--resume or", "pass overwrite=True": "pass --overwrite"}
"""What sentences of the library advise, on the command line."""
Overwrite = Annotated[bool, Parameter(negative="", help="Replace what is there.")]


@app.command
def inspect(files: Files, /, *, json: Json = False) -> None:
    """Say what files hold: sources, variables, units, spans, and what is wrong with them."""
    from gridtnp.cli.first_experiment import looked_at, told
    from gridtnp.data.description import record_of

    found = looked_at(files)
    record = {
        name: record_of(source) | {"notes": [str(note) for note in notes]}
        for name, (source, notes) in found.items()
    }
    _say(json, record, told(found))


@app.command
def init(
    files: Files,
    /,
    *,
    output: Out = Path("exp.yaml"),
    target: Annotated[str | None, Parameter(help="source.variable to predict.")] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a first experiment for files, to be edited and given to fit."""
    from gridtnp.cli.first_experiment import first_experiment

    if output.exists() and not overwrite:
        raise FileExistsError(f"{str(output)!r} must not be there yet; --overwrite replaces it.")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"The folder to write to must exist, but {str(output.parent)!r} does not."
        )
    made, reasons = first_experiment(files, target, output.parent)
    made = made.model_copy(update={"out": f"runs/{output.stem}"})
    made.write(output)
    lines = [*reasons, f"wrote {output}; go on with: gridtnp fit {output}"]
    _say(json, {"wrote": str(output), "reasons": list(reasons)}, "\n".join(lines))


@app.command
def fit(
    experiment: Annotated[Path, Parameter(help="The YAML file of an experiment.")],
    /,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    resume: Annotated[bool, Parameter(negative="", help="Go on with the run.")] = False,
    json: Json = False,
) -> None:
    """Train a model. Any key can be replaced: --train.lr 1e-3 --model.size small --out runs/b."""
    from gridtnp.cli.experiment import NAME, read_experiment
    from gridtnp.estimator import GriddedTNP
    from gridtnp.training.distributed import processes
    from gridtnp.training.run_folder import RunFolder

    for token in overrides:
        _require_option(token)
    wanted = read_experiment(experiment, overrides)
    out, training = Path(wanted.out), wanted.train
    run, _ = RunFolder.opened(out, resume=resume)
    train, val, _ = wanted.parts()
    first = processes().is_main_process  # of several, one speaks and writes
    quiet = json or not first
    model = GriddedTNP.from_options(train, wanted.options(), seed=training.seed, quiet=quiet)
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
        again = f"gridtnp fit {experiment} {' '.join(overrides)} --resume"
        raise KeyboardInterrupt(
            f"Stopped; a checkpoint is in {out}. Go on with: {' '.join(again.split())}"
        ) from None
    finally:
        if first and run.config.exists() and not (out / NAME).exists():  # that of the run stays
            wanted.write(out / NAME)
    if first:
        wanted.write(out / NAME)
        _say(json, {"run": str(out)}, f"wrote {out}; go on with: gridtnp evaluate {out}")


@app.command
def evaluate(
    run: Run,
    /,
    *,
    baselines: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=True, negative="", help="To compare with; else the experiment's."
        ),
    ] = None,
    limit: Annotated[int | None, Parameter(help="So many times at most.")] = None,
    json: Json = False,
) -> None:
    """Score a model on the test part of its data, beside baselines."""
    model, wanted = _run(run)
    train, _, test = wanted.parts()
    rivals = wanted.evaluate.baselines if baselines is None else baselines
    some = wanted.evaluate.limit if limit is None else limit
    found = model.evaluate(test, list(rivals), train=train, limit=some)
    places = [str(found.save(run)), *_pictures(found, run)]
    record = json_text.loads(found.to_json()) | {"wrote": places[0], "pictures": places[1:]}
    _say(json, record, f"{found}\nwrote {' and '.join(places)}")


@app.command
def predict(
    run: Run,
    /,
    *,
    at: At,
    output: Out,
    context: Given = None,
    static: Statics = None,
    times: Times = None,
    quantiles: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")] = (
        0.05,
        0.95,
    ),
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Predict anywhere, into .nc, .zarr, .parquet or .csv."""
    model, wanted = _run(run)
    data, fields = _context(wanted, context, static)
    path = model.predict(
        data,
        _places(at),
        quantiles=quantiles,
        times=times,
        static=fields,
        to=output,
        overwrite=overwrite,
        progress=not json,
    )
    _say(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
def sample(
    run: Run,
    /,
    *,
    at: At,
    output: Out,
    number: Annotated[int, Parameter(name=["--number", "-n"], help="How many fields.")] = 10,
    context: Given = None,
    static: Statics = None,
    times: Times = None,
    subset: Annotated[int, Parameter(help="Points that are drawn one after the other.")] = 128,
    seed: int = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Draw whole fields that could have been, into .nc, .zarr, .parquet or .csv."""
    model, wanted = _run(run)
    data, fields = _context(wanted, context, static)
    path = model.sample(
        number,
        data,
        _places(at),
        times=times,
        static=fields,
        subset=subset,
        seed=seed,
        to=output,
        overwrite=overwrite,
        progress=not json,
    )
    _say(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
def export(run: Run, /, *, output: Out = Path("model.pt2"), json: Json = False) -> None:
    """Write the network as a graph for torch.export, checked against the model."""
    from gridtnp.estimator import GriddedTNP

    path = GriddedTNP.load(run).export(output)
    _say(json, {"wrote": str(path)}, f"wrote {path}")


@app.command
def doctor(*, json: Json = False) -> None:
    """Say what is installed and what this machine can do."""
    from gridtnp.cli.doctor import examine, report

    found = examine()
    _say(json, found, report(found))


@app.command(help_flags=[])
def reproduce(*tokens: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> None:
    """Repeat an experiment of the paper: reproduce gp; its options: reproduce gp --help."""
    from gridtnp.reproduce.__main__ import main as again

    again(list(tokens) or ["--help"], program="gridtnp reproduce")


# ---- what commands share -------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [token for token in given if token != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _note
            app(given, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _leave(2, f"{error}", debug)
    except KeyboardInterrupt as stopped:
        _leave(130, str(stopped) or "Stopped.", debug)
    except (ValueError, OSError, ImportError) as error:
        _leave(1, str(error) or type(error).__name__, debug)


def _leave(code: int, sentence: str, debug: bool) -> None:
    if debug:
        raise
    for python, flag in FLAGS.items():
        sentence = sentence.replace(python, flag)
    print(sentence, file=sys.stderr)
    sys.exit(code)


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning without the line of code that it comes from."""
    print(f"note: {message}", file=sys.stderr)


def _say(json: bool, record: dict[str, Any], text: str) -> None:
    print(json_text.dumps(record, ensure_ascii=False) if json else text)


def _require_option(token: str) -> None:
    """A flag that was mistyped is not taken for a key."""
    from gridtnp.errors import require_known

    if token.startswith("--") and "." not in token and token.partition("=")[0] != "--out":
        known = ("--resume", "--json", "--out", "--debug")
        require_known(token, known, "option")


def _run(folder: Path) -> tuple[GriddedTNP, Experiment]:
    """The model of a run, and the experiment that made it."""
    from gridtnp.cli.experiment import NAME, read_experiment
    from gridtnp.estimator import GriddedTNP

    model = GriddedTNP.load(folder)
    path = folder / NAME
    if not path.exists():
        raise ValueError(
            f"A run must have its {NAME}, which `gridtnp fit` writes, but {folder} has none; use "
            "the model from Python: gt.GriddedTNP.load."
        )
    return model, read_experiment(path)


def _pictures(found: Evaluation, run: Path) -> list[str]:
    """Where they are, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return []
    from gridtnp.plots import album

    return [str(album(found, run))]


def _context(
    wanted: Experiment, context: list[str] | None, static: list[str] | None
) -> tuple[Dataset | dict[str, str], dict[str, str] | None]:
    """The run's own data, or fresh ones with the run's static fields."""
    from gridtnp.cli.first_experiment import named

    if context is None:
        if static is not None:
            raise ValueError("Static fields belong to fresh data; give --context too.")
        return wanted.dataset(), None
    fields = wanted.data.static if static is None else named(static)
    return dict(named(context)), fields or None


def _places(at: str) -> Places:
    """A file, or a grid in words."""
    from gridtnp.data.places import latlon_grid
    from gridtnp.data.reading import open_data

    if "=" not in at:
        return open_data(at)
    given: dict[str, str] = {}
    for part in at.split(","):
        key, _, value = part.partition("=")
        given[key.strip()] = value
    try:
        (south, north), (west, east) = (map(float, given[k].split(":")) for k in ("lat", "lon"))
        return latlon_grid(lat=(south, north), lon=(west, east), step=float(given["step"]))
    except (KeyError, ValueError):
        raise ValueError(
            f"A grid in words must be like lat=37:41,lon=-109:-102,step=0.1, got {at!r}."
        ) from None
