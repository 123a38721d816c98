"""The folder of a training run.

config.yaml      model, tasks and recipe, with all defaults; hashes of the data
data.json        what the data are, rows dropped and why
environment.txt  versions, device, commit, seed
model/           the fitted model, self-contained
checkpoints/     last/, previous/ and best/
metrics.jsonl    one line per report
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

import gridtnp
from gridtnp import __version__
from gridtnp.data.dataset import Dataset
from gridtnp.files import OURS, replace_file, write_text
from gridtnp.training.checkpoints import CheckpointFiles

PACKAGES = ("torch", "accelerate", "numpy", "pandas", "xarray", "scipy", "safetensors", "pydantic")
FORMAT = 2
"""Of config.yaml. Increased when older versions can no longer read what is written.

1: "setting" instead of "task". 2: the current one.
"""


@dataclass(frozen=True)
class RunFolder:
    """A training run on disk."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def files(self) -> CheckpointFiles:
        folders = [self.path / "checkpoints" / name for name in ("last", "previous", "best")]
        return CheckpointFiles(*(folder / "checkpoint.safetensors" for folder in folders))

    @property
    def is_vacant(self) -> bool:
        """Whether nothing is there, apart from what a killed process may have left."""
        if not self.path.is_dir():
            return not self.path.exists()
        return all(entry.name.startswith(OURS) for entry in self.path.iterdir())

    @classmethod
    def new(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a new run; it must be empty or not exist."""
        run = cls(Path(path))
        if run.config.exists():
            raise ValueError(
                f"{run.path} already holds a run; continue it with resume=True or choose another "
                "folder."
            )
        nearest = next(p for p in (run.path, *run.path.absolute().parents) if p.exists())
        if not nearest.is_dir():
            raise ValueError(
                f"Cannot create {run.path}: {nearest} is a file; choose another folder."
            )
        if not run.is_vacant:
            raise ValueError(f"{run.path} is not empty; choose another folder for the run.")
        return run

    @classmethod
    def existing(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that was started before."""
        run = cls(Path(path))
        if not run.config.is_file():
            what = "has no config.yaml" if run.path.exists() else "does not exist"
            raise ValueError(f"No such run: {run.path} {what}; give the `out` folder of `fit`.")
        return run

    @classmethod
    def opened(cls, path: str | os.PathLike[str], *, resume: bool) -> tuple[RunFolder, bool]:
        """The folder of a run to start or to resume, and whether it is resumed."""
        if resume and not cls(Path(path)).is_vacant:
            return cls.existing(path), True
        return cls.new(path), False

    def begin(self, config: Mapping[str, Any], seed: int) -> None:
        """Start the run with one file, which has all that resuming needs."""
        header = {"format": FORMAT, "gridtnp": __version__, "seed": seed}
        text = yaml.safe_dump(header | dict(config), sort_keys=False, allow_unicode=True)
        self.new(self.path)  # no other process may have started one meanwhile
        write_text(self.config, text)

    def describe(self, data: Dataset, seed: int) -> None:
        """Record data and environment, for people, unless that was done before."""
        log, text = self.path / "data.json", self.path / "environment.txt"
        if not log.exists():
            replace_file(log, data.write_log)
        if not text.exists():
            write_text(text, environment(seed))

    def read_config(self) -> dict[str, Any]:
        """What `begin` wrote."""
        try:
            found = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"Cannot read {self.config} as YAML: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise ValueError(f"{self.config} has no format number; was it written by `fit`?")
        if found["format"] > FORMAT:
            raise ValueError(
                f"{self.config} has format {found['format']}, but this version reads formats up to "
                f"{FORMAT}; update gridtnp."
            )
        if found["format"] == 1:
            found["task"] = found.pop("setting")
        return found

    def require_same_fingerprint(self, data: Dataset) -> None:
        """Raise if the run was started with data of another fingerprint."""
        path = self.path / "data.json"
        before = json.loads(path.read_text(encoding="utf-8"))["fingerprint"]
        now = data.fingerprint()
        if before != now:
            raise ValueError(
                f"The data have fingerprint {now}, but {path} has {before}; resume with the data "
                "that the run started with, or train into another folder."
            )

    def add_metrics(self, values: Mapping[str, Any]) -> None:
        """Append a line of metrics."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(values)) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines of metrics."""
        if not self.metrics.exists():
            return []
        lines = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:  # the process was killed while writing it
                continue
        return lines

    def drop_metrics_after(self, step: int) -> None:
        """Remove the metrics of steps that a resumed run will repeat."""
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))


def environment(seed: int) -> str:
    """Versions, platform, device, seed and command line, as text."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    lines = [f"gridtnp {__version__} ({commit()})", f"python {platform.python_version()}"]
    lines += [f"{name} {metadata.version(name)}" for name in PACKAGES]
    lines += [
        f"platform {platform.platform()}",
        f"device {device}, {torch.get_num_threads()} threads of {os.cpu_count()} cores",
        f"seed {seed}",
        f"command {' '.join(sys.argv)}",
    ]
    return "\n".join(lines) + "\n"


def commit(package: Path = Path(gridtnp.__file__).parent) -> str:
    """Git commit of the package's repository or "unknown"; "-dirty" with uncommitted changes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "gridtnp" != package.resolve():
            return "unknown"
        name = git("describe", "--always") or "unknown"
        return f"{name}-dirty" if git("status", "--porcelain", ".") else name
    except OSError:  # git is not installed
        return "unknown"
