"""`gridtnp serve` from end to end, and its errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import small

from gridtnp.cli.commands import main
from gridtnp.server import run as running
from gridtnp.server.work import Limits

FEW = ["--train.steps", "2", "--train.batch", "2", "--model.dim", "8", "--model.heads", "2"]


def error(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 1
    return capsys.readouterr().err.strip()


def test_a_run_that_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = error(capsys, "serve", str(tmp_path / "nothing"), "--port", "0")
    assert "nothing" in text
    assert "\n" not in text


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = error(capsys, "serve", str(tmp_path), "--port", str(port))
    assert text == f"Port {port} of 127.0.0.1 is in use; pass --port 0 for any free port."
    assert "must be from 0" in error(capsys, "serve", str(tmp_path), "--port", "99999")
    text = error(capsys, "serve", str(tmp_path), "--host", "no.such.host.invalid")
    assert text.startswith("Cannot serve on 'no.such.host.invalid', port 8000")


def test_a_limit_that_is_impossible(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = error(capsys, "serve", str(tmp_path), "--points", "0")
    assert "must be positive" in text
    with pytest.raises(ValueError, match=r"^workers=0: must be positive\.$"):
        Limits(workers=0)


def test_an_extra_that_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    text = error(capsys, "serve", str(tmp_path))
    assert text == (
        "The server needs fastapi, which is not installed: pip install 'gridtnp[serve]'."
    )


def test_addresses() -> None:
    with running.bind("127.0.0.1", 0) as made:
        assert running.address_of(made).startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_a_run_is_served_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small.table().to_csv("stations.csv", index=False)
    small.heights().to_netcdf("relief.nc")
    main(["init", "stations.csv", "relief.nc", "-o", "exp.yaml"])
    main(["fit", "exp.yaml", *FEW])
    (tmp_path / "runs" / "exp" / "report.html").write_text("<p>report</p>")
    command = [sys.executable, "-m", "gridtnp", "serve", "runs/exp", "--port", "0", "--json"]
    environment = {**os.environ, "GRIDTNP_TOKEN": "s3cret"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        try:
            with urllib.request.urlopen(f"{address}health", timeout=900) as answer:
                assert json.load(answer)["status"] == "ok"
            for path in ("report", "collections", "tiles/5/15/10.png"):
                where = f"{address}{path}?token=s3cret"
                with urllib.request.urlopen(where, timeout=900) as answer:
                    assert answer.status == 200
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
