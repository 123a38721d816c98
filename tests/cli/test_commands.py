"""The command line: every command from end to end, one-line errors, closed pipes, fast help."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import small
import xarray as xr
import yaml
from fitting_cases import PATIENCE, wait_for

from gridtnp.cli.arguments import add_part, load_run, read_context, read_places
from gridtnp.cli.commands import main
from gridtnp.cli.experiment import read_experiment
from gridtnp.estimator import GriddedTNP
from gridtnp.evaluation.saved import SavedScores

GRID = "lat=48:54,lon=-4:4,step=1"
NOON = "2019-03-01T12:00"
SHIPS = f"--times {NOON} --context ships=stations.csv"
BARE = f"--times {NOON} --context stations=bare.csv --static"
FEW = ["--train.steps", "3", "--train.batch", "2", "--model.dim", "8", "--model.heads", "2"]


def files(folder: Path) -> Path:
    small.table().to_csv(folder / "stations.csv", index=False)
    small.heights().to_netcdf(folder / "relief.nc")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, an experiment and its run."""
    path = files(tmp_path_factory.mktemp("commands"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        main(["init", "stations.csv", "relief.nc", "-o", "exp.yaml"])
        main(["fit", "exp.yaml", *FEW])
    return path


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def output(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    main(command)
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], code: int, *command: str) -> str:
    """The message that a command ends with."""
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.strip()


# ---- commands ------------------------------------------------------------------------------------


def test_inspect_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "inspect", "stations.csv", "heights=relief.nc")
    assert text.startswith("stations: 217 observations at 40 stations")
    assert "heights: grid of 13 × 17" in text
    record = json.loads(output(capsys, "inspect", "stations.csv", "--json"))
    assert record["stations"]["variables"]["t2m"]["missing"] > 0


def test_init_writes_what_fit_reads(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "init", "stations.csv", "-o", "other.yaml", "--target", "stations.t2m")
    assert text.splitlines()[-1] == "wrote other.yaml; next: gridtnp fit other.yaml"
    assert yaml.safe_load(Path("other.yaml").read_text())["out"] == "runs/other"
    output(capsys, "init", "stations.csv", "-o", "other.yaml", "--overwrite")


def test_fit_leaves_a_run_behind(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs/exp")
    expected = {"config.yaml", "data.json", "environment.txt", "experiment.yaml", "metrics.jsonl"}
    assert expected | {"model", "checkpoints"} <= {p.name for p in run.iterdir()}
    assert yaml.safe_load((run / "experiment.yaml").read_text())["train"]["steps"] == 3
    assert "--resume" in error(capsys, 1, "fit", "exp.yaml", *FEW)
    record = json.loads(output(capsys, "fit", "exp.yaml", *FEW, "--resume", "--json"))
    assert record == {"run": "runs/exp"}


def test_fit_says_what_it_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "fit", "exp.yaml", *FEW, "--train.optimiser=adamw", "--out", "runs/adamw")
    assert re.search("recipe .* 3 steps of 2 tasks, adamw", text)
    assert "for 3 steps" in text
    assert "600 steps" not in text


def test_report_writes_one_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    few = ("--points", "60", "--samples", "0", "--baselines", "nearest")
    assert output(capsys, "report", "runs/exp", *few) == "wrote runs/exp/report.html\n"
    assert "Tested on</strong>" in Path("runs/exp/report.html").read_text(encoding="utf-8")
    sentence = error(capsys, 1, "report", "runs/exp", *few)
    assert sentence == "'runs/exp/report.html' already exists; pass --overwrite to replace it."
    record = json.loads(output(capsys, "report", "runs/exp", *few, "--overwrite", "--json"))
    assert record == {"wrote": "runs/exp/report.html"}
    assert "No such folder" in error(capsys, 1, "report", "runs/exp", "-o", "missing/a.html")
    assert "No such model: runs/none" in error(capsys, 1, "report", "runs/none")
    run = Path(shutil.copytree("runs/exp", tmp_path / "run"))
    settings = yaml.safe_load((run / "experiment.yaml").read_text()) | {"split": {}}
    (run / "experiment.yaml").write_text(yaml.safe_dump(settings))
    sentence = error(capsys, 1, "report", str(run), "--overwrite")
    assert sentence.startswith("Part 'all' may have been trained on")
    assert sentence.endswith("set a split in the experiment.")


def test_a_folder_in_use_is_refused_first_and_left_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = Path("runs/exp/experiment.yaml").read_text()
    for options, finding in (
        (["--train.steps", "9"], "runs/exp.*--resume"),
        (["--train.steps", "9", "--resume"], "runs/exp.*another recipe.*steps"),
        (["--out", "exp.yaml/sub"], "exp.yaml.*is a file"),
        (["--out", "exp.yaml", "--resume"], "exp.yaml"),
    ):
        with pytest.raises(SystemExit):
            main(["fit", "exp.yaml", *FEW, *options])
        printed = capsys.readouterr()
        assert re.search(finding, printed.err)
        assert "--resume" in options or printed.out == ""
    assert Path("runs/exp/experiment.yaml").read_text() == before


def test_a_refused_resume_leaves_the_experiment_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also where the run has none yet."""
    run = Path(shutil.copytree("runs/exp", tmp_path / "run"))
    before = (run / "experiment.yaml").read_text()
    command = ("fit", "exp.yaml", *FEW, "--out", str(run), "--resume", "--split.seed", "1")
    sentence = error(capsys, 1, *command)
    assert (
        "places of source 'stations' of the training part differs from that of the run" in sentence
    )
    assert (run / "experiment.yaml").read_text() == before
    (run / "experiment.yaml").unlink()
    error(capsys, 1, *command)
    assert not (run / "experiment.yaml").exists()
    output(capsys, *command[:-2])
    assert (run / "experiment.yaml").exists()


def test_evaluate_prints_and_keeps_scores(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "evaluate", "runs/exp", "--baselines", "nearest", "--limit", "3")
    assert "CRPS" in text
    assert "nearest" in text
    assert "idw" not in text
    assert text.splitlines()[-1] == "wrote runs/exp/eval and runs/exp/plots"
    pictures = {"training", "errors", "pit", "coverage", "spread_skill"}
    assert {p.stem for p in Path("runs/exp/plots").glob("*.png")} == pictures
    assert len(pd.read_csv("runs/exp/eval/scores.csv")) == 2
    command = ("evaluate", "runs/exp", "--baselines", "nearest", "--limit", "2", "--json")
    record = json.loads(output(capsys, *command))
    assert (record["wrote"], record["pictures"]) == ("runs/exp/eval", ["runs/exp/plots"])


def test_scores_are_printed_even_if_they_cannot_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = Path(shutil.copytree("runs/exp", tmp_path / "run"))
    shutil.rmtree(run / "eval", ignore_errors=True)
    command = ("evaluate", str(run), "--baselines", "nearest", "--limit", "2")
    (run / "eval").write_text("in the way")  # root may write where others may not
    with pytest.raises(SystemExit) as left:
        main(command)
    told = capsys.readouterr()
    assert left.value.code == 1
    assert "CRPS" in told.out
    assert "wrote" not in told.out
    assert told.err.startswith(f"Cannot write {run / 'eval' / 'scores.csv'} (")
    with pytest.raises(SystemExit):
        main([*command, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert (record["wrote"], record["pictures"]) == (None, [])
    assert record["scores"]
    (run / "eval").unlink()
    shutil.rmtree(run / "plots", ignore_errors=True)
    (run / "plots").write_text("in the way")
    with pytest.raises(SystemExit):
        main(command)
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == f"wrote {run / 'eval'}"
    assert "Cannot write" in told.err


def test_evaluate_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("evaluate", "runs/exp", "--baselines", "nearest", "--part")
    many = int(json.loads(output(capsys, *command, "0/1", "--json"))["scores"][0]["points"])
    assert many > 0
    assert "wrote runs/exp/eval/parts/0-of-1.parquet; 1 of 1 parts" in output(
        capsys, *command, "0/1"
    )
    saved = SavedScores.read("runs/exp")
    assert saved is not None
    assert saved.rows[0]["points"] == many


def test_parts_of_other_weights_data_or_times_are_missing(tmp_path: Path) -> None:
    def add(index: int, weights: str = "a", data: str = "b", **changes: object) -> list[int]:
        record = json.dumps({"sha256": {"model.safetensors": weights}})
        (tmp_path / "model" / "config.json").write_text(record)
        _, added = add_part(small.evaluation(part=(index, 2), **changes), tmp_path, data)
        return added.missing

    (tmp_path / "model").mkdir()
    assert add(0) == [1]
    assert add(1) == []
    assert add(0, weights="c") == [1]
    assert add(1, weights="c") == []
    assert add(0, data="c", weights="c") == [1]
    assert add(1, data="c", weights="c", split="5 stations") == [0]


def test_predict_writes_files(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(
        capsys,
        *("predict", "runs/exp", "--at", GRID, "--times", NOON, "2019-03-01T18:00"),
        *("--quantiles", "0.1", "0.5", "--exceed", "273.15", "280", "-o", "out.nc"),
    )
    assert text == "wrote out.nc\n"
    with xr.open_dataset("out.nc") as made:
        assert made.sizes == {"time": 2, "lat": 7, "lon": 9}
        assert {"t2m_q10", "t2m_q50", "t2m_support"} <= set(made)
        assert {"t2m_above_273.15", "t2m_above_280"} <= set(made)
    pd.DataFrame({"lat": [50.0], "lon": [1.0], "time": [NOON]}).to_csv("at.csv", index=False)
    fresh = ("--context", "stations=stations.csv", "--static", "elevation=relief.nc")
    output(capsys, "predict", "runs/exp", *fresh, "--at", "at.csv", "-o", "out.csv")
    parts = (
        "predict",
        "runs/exp",
        "--at",
        GRID,
        "--times",
        NOON,
        "2019-03-01T18:00",
        "-o",
        "p.zarr",
    )
    parts += ("--regions", "time=1")
    laid = output(capsys, *parts, "--layout")
    assert "p.zarr: 0 of 2 regions done (1 time × " in laid
    assert "missing: 0 to 1" in laid
    assert "p.zarr: 1 of 2 regions done" in output(capsys, *parts, "--part", "1/2")
    assert json.loads(output(capsys, "status", "p.zarr", "--json"))["missing"] == [[0, 0]]
    assert output(capsys, *parts, "--resume").rstrip().endswith("each); complete")
    assert "2 of 2 regions done" in output(capsys, "status", "p.zarr")
    assert "t2m_mean" in pd.read_csv("out.csv")


def test_sample_writes_joint_samples(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--times", NOON, "-n", "3", "--subset", "8", "--context", "stations=stations.csv")
    output(capsys, "sample", "runs/exp", "--at", GRID, *options, "-o", "fields.zarr", "--json")
    with xr.open_zarr("fields.zarr") as made:
        assert made.t2m.sizes == {"sample": 3, "time": 1, "lat": 7, "lon": 9}


@pytest.mark.slow
@pytest.mark.compiled
def test_export_writes_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "export", "runs/exp", "-o", "model.pt2") == "wrote model.pt2\n"
    assert Path("model.pt2").stat().st_size > 10_000


def test_doctor_knows_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert "C back-end" in output(capsys, "doctor")
    found = json.loads(output(capsys, "doctor", "--json"))
    assert found["extras"]["io"]["missing"] == []
    assert found["memory_gb"]["free"] < found["memory_gb"]["total"]


def test_reproduce_hands_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["reproduce", "gp", "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: gridtnp reproduce")
    assert "Unknown row 'swin'; did" in error(capsys, 1, "reproduce", "gp", "--rows", "swin")


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "command", "finding"),
    [
        (2, "prdict runs/exp", 'Unknown command "prdict". Did you mean "predict"'),
        (2, "predict runs/exp -o a.nc", "--at"),
        (1, "inspect none.csv", "none.csv"),
        (1, "inspect stations.csv a/stations.csv", "both called 'stations'; give one another name"),
        (1, "init stations.csv -o a.yaml --target ship.t2m", "Unknown source 'ship' in --target"),
        (1, "init stations.csv -o none/exp.yaml", "No such folder: 'none'; create it first"),
        (1, "fit none.yaml", "No such file: 'none.yaml'; write an experiment with `gridtnp init"),
        (1, "fit exp.yaml --resme", "Unknown option '--resme'; did you mean '--resume'?"),
        (1, "fit exp.yaml --train.stps 3", "Unknown key 'stps' in train of exp.yaml; did you"),
        (1, "fit exp.yaml", "--resume"),
        (1, "fit exp.yaml --out runs/b --split.gap 6h --split.hold_out_stations 0.3", "--split.ti"),
        (1, "evaluate runs", "runs"),
        (1, "evaluate runs/exp --baselines nearst", "Unknown baseline 'nearst'; did you mean"),
        (1, "evaluate runs/exp --limit -1", "--limit -1"),
        (1, "evaluate runs/exp/model", "'runs/exp/model' has no experiment.yaml, which `gridtnp"),
        (1, "predict runs/exp --at lat=1,lon=2 -o a.nc", "Not a grid: 'lat=1,lon=2'; write it"),
        (1, "predict runs/exp --at none.nc -o a.nc", "none.nc"),
        (1, f"predict runs/exp --at {GRID} -o a.zarr --part 1", "Not a part: '1'; write it like"),
        (1, f"predict runs/exp --at {GRID} -o a.zarr --regions time", "Not a size: 'time'; write"),
        (1, "status none.zarr", "No such store: 'none.zarr'."),
        (1, f"predict runs/exp --at {GRID} -o a.nc --static a=b", "pass --context as well"),
        (1, f"predict runs/exp --at {GRID} -o a.nc", "one, --times '2019-03-02 06:00', or several"),
        (1, f"sample runs/exp --at {GRID} -o a.nc", "one, --times '2019-03-02 06:00', or several"),
        (
            1,
            f"predict runs/exp --at {GRID} {SHIPS} -o a.nc",
            "Unknown source 'ships' for this model",
        ),
        (1, f"predict runs/exp --at {GRID} {BARE} -o a.nc", "--static elevation=FILE"),
        (1, f"sample runs/exp --at {GRID} {BARE} -o a.nc", "--static elevation=FILE"),
        (
            1,
            f"predict runs/exp --at at.csv --times {NOON} -o a.csv",
            "--times is given, but the query has times",
        ),
        (1, "export runs/exp -o model.onnx", ".pt2"),
    ],
)
def test_errors_are_one_sentence(
    capsys: pytest.CaptureFixture[str], code: int, command: str, finding: str
) -> None:
    pd.DataFrame({"lat": [50.0], "lon": [1.0], "time": [NOON]}).to_csv("at.csv", index=False)
    small.table().drop(columns="elevation").to_csv("bare.csv", index=False)
    text = error(capsys, code, *command.split())
    assert finding in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "command",
    [
        f"predict runs/exp --at {GRID} --times {NOON} -o relief.nc",
        f"sample runs/exp --at {GRID} --times {NOON} -o relief.nc",
        "export runs/exp -o relief.nc",
        "init stations.csv -o relief.nc",
    ],
)
def test_an_existing_output_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def loaded(*_: object) -> None:
        pytest.fail("loaded before the output was checked")

    monkeypatch.setattr(GriddedTNP, "load", loaded)
    monkeypatch.setattr("gridtnp.cli.first_experiment.inspect_files", loaded)
    before = Path("relief.nc").read_bytes()
    text = error(capsys, 1, *command.split())
    assert text == "'relief.nc' already exists; pass --overwrite to replace it."
    assert Path("relief.nc").read_bytes() == before


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file: 'none.yaml'"):
        main(["fit", "none.yaml", "--debug"])


def test_warnings_are_notes(tmp_path: Path) -> None:
    code = (
        "import warnings; warnings.simplefilter('default')\n"
        "from gridtnp.cli.commands import main\n"
        f"main(['predict', 'runs/exp', '--at', 'lat=40:54,lon=-4:4,step=1', '--times', '{NOON}', "
        f"'-o', {str(tmp_path / 'a.nc')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("note: ")
    assert "are NaN" in done.stderr
    assert "warnings.warn" not in done.stderr


# ---- fresh processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["--help"], ["fit", "--help"], ["--version"]])
def test_help_needs_nothing_heavy(command: list[str]) -> None:
    """So that it answers at once; of the few modules that it loads there were 227 at first."""
    code = (
        "import sys\n"
        "from gridtnp.cli.commands import main\n"
        "try:\n"
        f"    main({command!r})\n"
        "except SystemExit as left:\n"
        "    assert not left.code\n"
        "heavy = {'torch', 'numpy', 'pandas', 'xarray', 'pydantic', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert len(sys.modules) < 450\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def fresh(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gridtnp", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("inspect wide.csv", 3),  # more than a pipe holds: writing fails
        ("inspect stations.csv", 0),  # less than a buffer holds: flushing fails
        ("--help", 0),
        pytest.param("reproduce gp --help", 0, marks=pytest.mark.slow),
    ],
)
def test_a_closed_pipe_ends_quietly(
    tmp_path: Path, command: str, lines: int, unbuffered: str
) -> None:
    table = pd.read_csv(files(tmp_path) / "stations.csv")
    if "wide.csv" in command:
        columns = {f"a_variable_with_a_long_name_{i:04d}": table.t2m for i in range(1500)}
        pd.concat([table, pd.DataFrame(columns)], axis=1).to_csv(tmp_path / "wide.csv", index=False)
    running = subprocess.Popen(
        [sys.executable, "-m", "gridtnp", *command.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running:
        assert running.stdout is not None
        assert running.stderr is not None
        read = [running.stdout.readline() for _ in range(lines)]
        running.stdout.close()
        message = running.stderr.read()
    assert message == ""
    assert running.returncode == 141
    assert all(read)


def test_a_broken_connection_is_an_error_like_any_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("gridtnp.cli.first_experiment.inspect_files", broken)
    assert "Broken pipe" in error(capsys, 1, "inspect", "stations.csv")


@pytest.mark.slow
def test_every_command_in_a_fresh_process(tmp_path: Path) -> None:
    """On the stations of Colorado."""
    from gridtnp import demo

    table, terrain = demo.load()
    table[table.time >= "1990"].drop(columns=["tmin", "precipitation"]).to_csv(
        tmp_path / "stations.csv", index=False
    )
    terrain.to_netcdf(tmp_path / "terrain.nc")
    at = ("--at", "lat=37:41,lon=-109:-102,step=0.5", "--times", "1996-07-01")
    for command, wrote in (
        (("inspect", "stations.csv", "terrain.nc"), None),
        (("init", "stations.csv", "terrain.nc", "-o", "exp.yaml"), "exp.yaml"),
        (("fit", "exp.yaml", "--train.steps", "4"), "runs/exp/model/model.safetensors"),
        (("evaluate", "runs/exp", "--limit", "2"), "runs/exp/eval/scores.csv"),
        (("predict", "runs/exp", *at, "-o", "map.nc"), "map.nc"),
        (("sample", "runs/exp", *at, "-n", "2", "--subset", "8", "-o", "s.zarr"), "s.zarr"),
        (("export", "runs/exp", "-o", "model.pt2"), "model.pt2"),
        (("doctor",), None),
        (("reproduce", "gp", "--help"), None),
    ):
        done = fresh(tmp_path, *command)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout
        if wrote is not None:
            assert "wrote" in done.stdout
            assert (tmp_path / wrote).exists()


HELD = """
import runpy, time
from pathlib import Path
from torch.nn.modules.module import register_module_forward_pre_hook
def hold(*_):
    while Path("runs/exp/metrics.jsonl").exists() and not Path("go on").exists():
        time.sleep(0.01)
register_module_forward_pre_hook(hold)
runpy.run_module("gridtnp", run_name="__main__", alter_sys=True)
"""
"""`python -m gridtnp` that waits after its first report, on however fast a machine."""


@pytest.mark.slow
def test_ctrl_c_saves_and_resume_continues(tmp_path: Path) -> None:
    files(tmp_path)
    assert fresh(tmp_path, "init", "stations.csv", "relief.nc", "-o", "exp.yaml").returncode == 0
    options = [
        "--train.steps",
        "300",
        "--train.batch",
        "2",
        "--model.dim",
        "8",
        "--model.heads",
        "2",
    ]
    running = subprocess.Popen(
        [sys.executable, "-c", HELD, "fit", "exp.yaml", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "runs" / "exp" / "metrics.jsonl"
    wait_for(metrics, running)
    os.kill(running.pid, signal.SIGINT)
    (tmp_path / "go on").touch()
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert err.strip().endswith(f"Continue with: gridtnp fit exp.yaml {' '.join(options)} --resume")
    last = tmp_path / "runs" / "exp" / "checkpoints" / "last" / "checkpoint.safetensors"
    assert last.exists()
    done = fresh(tmp_path, "fit", "exp.yaml", *options, "--resume")
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 300


# ---- files with odd names and contents -----------------------------------------------------------


def test_a_file_that_exists_is_neither_a_name_nor_a_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small.table().to_csv("eq=1.csv", index=False)
    small.table().to_csv("a[1].csv", index=False)
    assert output(capsys, "inspect", "eq=1.csv").startswith("eq_1: 217 observations")
    assert output(capsys, "inspect", "b=eq=1.csv", "a[1].csv").startswith("b: 217 observations")
    assert isinstance(read_places("eq=1.csv"), pd.DataFrame)


def test_init_never_chooses_a_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = small.table()
    table.assign(obs=range(len(table)), index=range(len(table)), lat2=0).rename(
        columns={"lat2": "latitude"}
    ).to_csv("stations.csv")
    main(["init", "stations.csv"])
    assert yaml.safe_load(Path("exp.yaml").read_text())["data"]["target"] == "stations.t2m"
    capsys.readouterr()
    text = output(capsys, "inspect", "stations.csv")
    for column in ("Unnamed: 0", "obs", "index", "latitude"):
        assert f"left out: column {column!r}" in text


def test_an_experiment_names_missing_values_and_projections(tmp_path: Path) -> None:
    table = small.table().fillna({"t2m": -9999.0}).rename(columns={"lon": "x", "lat": "y"})
    table.to_csv(tmp_path / "stations.csv", index=False)
    data = {"sources": {"obs": "stations.csv"}, "target": "obs.t2m"}
    data |= {"na_values": [-9999], "crs": {"obs": "EPSG:4258"}}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump({"data": data}))
    made = read_experiment(tmp_path / "exp.yaml").dataset()
    assert made.sources["obs"].variable("t2m").missing > 0
    assert made.sources["obs"].lat.min() > 47


def test_fresh_sources_have_the_missing_values_and_projection_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree("runs/exp", run)
    made = yaml.safe_load((run / "experiment.yaml").read_text())
    made["data"] |= {"na_values": ["M"], "crs": {"stations": "EPSG:4258"}}
    (run / "experiment.yaml").write_text(yaml.safe_dump(made))
    table = small.table().rename(columns={"lon": "x", "lat": "y"})
    fresh = tmp_path / "fresh.csv"
    table.assign(t2m=table.t2m.astype(object).fillna("M")).to_csv(fresh, index=False)
    data = read_context(*load_run(run), [f"stations={fresh}"], None)
    assert data.sources["stations"].variable("t2m").missing > 0
    assert data.sources["stations"].lat.min() > 47


@pytest.mark.parametrize(
    "kind", [RuntimeError, TypeError, KeyError, IndexError, RecursionError, MemoryError]
)
def test_what_nobody_thought_of_is_a_sentence_too(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[str]) -> None:
        raise kind("deep inside\nand more")

    monkeypatch.setattr("gridtnp.cli.first_experiment.inspect_files", fail)
    text = error(capsys, 1, "inspect", "stations.csv")
    assert text == f"{kind.__name__}: deep inside and more; --debug shows where it happened."
    with pytest.raises(kind):
        main(["inspect", "stations.csv", "--debug"])
    monkeypatch.setattr("gridtnp.cli.first_experiment.inspect_files", lambda _: next(iter(())))
    text = error(capsys, 1, "inspect", "stations.csv")
    assert text == "StopIteration; --debug shows where it happened."
