"""The command line: every verb from end to end, sentences instead of tracebacks, fast help."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import small
import xarray as xr
import yaml

from gridtnp.cli.commands import main

GRID = "lat=48:54,lon=-4:4,step=1"
NOON = "2019-03-01T12:00"
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


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    main(command)
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], code: int, *command: str) -> str:
    """The sentence that a command ends with."""
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.strip()


# ---- verbs ---------------------------------------------------------------------------------------


def test_inspect_says_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "inspect", "stations.csv", "heights=relief.nc")
    assert text.startswith("stations: 217 observations at 40 stations")
    assert "heights: grid of 13 × 17" in text
    record = json.loads(said(capsys, "inspect", "stations.csv", "--json"))
    assert record["stations"]["variables"]["t2m"]["missing"] > 0


def test_init_writes_what_fit_reads(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "init", "stations.csv", "-o", "other.yaml", "--target", "stations.t2m")
    assert text.splitlines()[-1] == "wrote other.yaml; go on with: gridtnp fit other.yaml"
    assert yaml.safe_load(Path("other.yaml").read_text())["out"] == "runs/other"
    sentence = refused(capsys, 1, "init", "stations.csv", "-o", "other.yaml")
    assert sentence == "'other.yaml' must not be there yet; --overwrite replaces it."
    assert "'none' does not" in refused(capsys, 1, "init", "stations.csv", "-o", "none/exp.yaml")


def test_fit_leaves_a_run_behind(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs/exp")
    expected = {"config.yaml", "data.json", "environment.txt", "experiment.yaml", "metrics.jsonl"}
    assert expected | {"model", "checkpoints"} <= {p.name for p in run.iterdir()}
    assert yaml.safe_load((run / "experiment.yaml").read_text())["train"]["steps"] == 3
    assert "holds one already" in refused(capsys, 1, "fit", "exp.yaml", *FEW)
    record = json.loads(said(capsys, "fit", "exp.yaml", *FEW, "--resume", "--json"))
    assert record == {"run": "runs/exp"}


def test_fit_says_what_it_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "fit", "exp.yaml", *FEW, "--train.optimiser=adamw", "--out", "runs/told")
    assert "recipe         as given: 3 steps of 2 tasks, adamw" in text
    assert "for 3 steps" in text
    assert "600 steps" not in text


def test_a_folder_that_is_taken_is_refused_before_anything_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And what is in it stays as it was."""
    before = Path("runs/exp/experiment.yaml").read_text()
    for other, sentence in (
        (["--train.steps", "9"], "holds one already"),
        (["--train.steps", "9", "--resume"], "another recipe (steps differ)"),
        (["--out", "exp.yaml/sub"], "A new run needs a folder"),
        (["--out", "exp.yaml", "--resume"], "A run must be a folder that `fit` has made"),
    ):
        with pytest.raises(SystemExit):
            main(["fit", "exp.yaml", *FEW, *other])
        told = capsys.readouterr()
        assert sentence in told.err
        assert "--resume" in other or told.out == ""
    assert Path("runs/exp/experiment.yaml").read_text() == before


def test_evaluate_prints_and_keeps_scores(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "evaluate", "runs/exp", "--baselines", "nearest", "--limit", "3")
    assert "CRPS" in text
    assert "nearest" in text
    assert "idw" not in text
    assert text.splitlines()[-1] == "wrote runs/exp/eval and runs/exp/plots"
    pictures = {"training", "errors", "pit", "coverage", "spread_skill"}
    assert {p.stem for p in Path("runs/exp/plots").glob("*.png")} == pictures
    assert len(pd.read_csv("runs/exp/eval/scores.csv")) == 2
    command = ("evaluate", "runs/exp", "--baselines", "nearest", "--limit", "2", "--json")
    record = json.loads(said(capsys, *command))
    assert (record["wrote"], record["pictures"]) == ("runs/exp/eval", ["runs/exp/plots"])


def test_predict_writes_files(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(
        capsys,
        *("predict", "runs/exp", "--at", GRID, "--times", NOON, "2019-03-01T18:00"),
        *("--quantiles", "0.1", "0.5", "-o", "out.nc"),
    )
    assert text == "wrote out.nc\n"
    with xr.open_dataset("out.nc") as made:
        assert made.sizes == {"time": 2, "lat": 7, "lon": 9}
        assert {"t2m_q10", "t2m_q50", "t2m_support"} <= set(made)
    pd.DataFrame({"lat": [50.0], "lon": [1.0], "time": [NOON]}).to_csv("at.csv", index=False)
    fresh = ("--context", "stations=stations.csv", "--static", "elevation=relief.nc")
    said(capsys, "predict", "runs/exp", *fresh, "--at", "at.csv", "-o", "out.csv")
    assert "t2m_mean" in pd.read_csv("out.csv")


def test_sample_writes_fields(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--times", NOON, "-n", "3", "--subset", "8", "--context", "stations=stations.csv")
    said(capsys, "sample", "runs/exp", "--at", GRID, *options, "-o", "fields.zarr", "--json")
    with xr.open_zarr("fields.zarr") as made:
        assert made.t2m.sizes == {"sample": 3, "time": 1, "lat": 7, "lon": 9}


@pytest.mark.slow
@pytest.mark.compiled
def test_export_writes_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "export", "runs/exp", "-o", "model.pt2") == "wrote model.pt2\n"
    assert Path("model.pt2").stat().st_size > 10_000


def test_doctor_knows_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert "C back-end" in said(capsys, "doctor")
    found = json.loads(said(capsys, "doctor", "--json"))
    assert found["extras"]["io"]["missing"] == []
    assert found["memory_gb"]["free"] < found["memory_gb"]["total"]


def test_reproduce_hands_over(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["reproduce", "gp", "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("usage: gridtnp reproduce")
    assert "model families" in refused(capsys, 1, "reproduce", "gp", "--rows", "swin")


# ---- what people do wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "command", "sentence"),
    [
        (2, "prdict runs/exp", 'Unknown command "prdict". Did you mean "predict"'),
        (2, "predict runs/exp -o a.nc", "--at"),
        (1, "fit none.yaml", "make one with `gridtnp init FILES -o exp.yaml`"),
        (1, "fit exp.yaml --resme", "got '--resme'; did you mean '--resume'"),
        (1, "fit exp.yaml --train.stps 3", "got 'stps'; did you mean 'steps'"),
        (1, "evaluate runs", "runs"),
        (1, "evaluate runs/exp --baselines nearst", "did you mean 'nearest'"),
        (1, "predict runs/exp --at lat=1,lon=2 -o a.nc", "A grid in words must be like lat=37:41"),
        (1, "predict runs/exp --at none.nc -o a.nc", "A path must lead to a file or a store"),
        (1, f"predict runs/exp --at {GRID} -o a.nc --static a=b", "give --context too"),
        (1, f"predict runs/exp --at {GRID} -o a.nc", "A prediction must have a time"),
        (1, "fit exp.yaml", "holds one already; go on with --resume or choose another name"),
        (
            1,
            f"predict runs/exp --at {GRID} --times {NOON} -o relief.nc",
            "'relief.nc' already exists; pass --overwrite to replace it.",
        ),
        (
            1,
            f"predict runs/exp --at {GRID} --context ships=stations.csv -o a.nc",
            "A source must be one that the model was trained with, one of ['stations'], got 's",
        ),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    capsys: pytest.CaptureFixture[str], code: int, command: str, sentence: str
) -> None:
    assert sentence in refused(capsys, code, *command.split())


def test_a_run_without_its_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, 1, "evaluate", "runs/exp/model")
    assert "A run must have its experiment.yaml, which `gridtnp fit` writes" in sentence


def test_debug_shows_where() -> None:
    with pytest.raises(FileNotFoundError, match="An experiment must be a YAML file"):
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
    code = (
        "import sys\n"
        "from gridtnp.cli.commands import main\n"
        "try:\n"
        f"    main({command!r})\n"
        "except SystemExit as left:\n"
        "    assert not left.code\n"
        "heavy = {'torch', 'numpy', 'pandas', 'xarray', 'pydantic', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_help_answers_at_once() -> None:
    """Seconds of work, without those of waiting for a busy machine; the fastest of some tries."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "gridtnp", "--help"]
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 0.3 for _ in range(12))


def fresh(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gridtnp", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_every_command_in_a_process_of_its_own(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on(tmp_path: Path) -> None:
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
        [sys.executable, "-m", "gridtnp", "fit", "exp.yaml", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "runs" / "exp" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert err.strip().endswith(f"Go on with: gridtnp fit exp.yaml {' '.join(options)} --resume")
    last = tmp_path / "runs" / "exp" / "checkpoints" / "last" / "checkpoint.safetensors"
    assert last.exists()
    done = fresh(tmp_path, "fit", "exp.yaml", *options, "--resume")
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 300
