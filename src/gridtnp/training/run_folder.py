"""The folder that a run leaves behind, and what is in it.

config.yaml      resolved, every default written out
data.json        fingerprint of the inputs, rows dropped and why
environment.txt  versions, device, commit, seed
model/           the fitted model, self-contained
checkpoints/     last/ and best/
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

from gridtnp import __version__
from gridtnp.data.dataset import Dataset
from gridtnp.files import write_text
from gridtnp.training.checkpoints import Files

PACKAGES = ("torch", "accelerate", "numpy", "pandas", "xarray", "scipy", "safetensors", "pydantic")
FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """A run on disk."""

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
    def files(self) -> Files:
        folder = self.path / "checkpoints"
        name = "checkpoint.safetensors"
        return Files(folder / "last" / name, folder / "best" / name)

    @classmethod
    def new(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A folder for a run that begins; one that holds a run already is refused."""
        run = cls(Path(path))
        if run.config.exists():
            raise ValueError(
                f"A new run needs a folder of its own, but {run.path} holds one already; go on "
                "with resume=True or choose another name."
            )
        there = next(place for place in (run.path, *run.path.absolute().parents) if place.exists())
        if not there.is_dir():
            raise ValueError(
                f"A new run needs a folder, but {there} is a file; choose another name."
            )
        if there == run.path and any(run.path.iterdir()):
            raise ValueError(
                f"A new run needs an empty folder, but {run.path} holds something else; choose "
                "another name."
            )
        return run

    @classmethod
    def existing(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run that was begun before."""
        run = cls(Path(path))
        if not run.config.is_file():
            what = "it has no config.yaml" if run.path.exists() else "there is none"
            raise ValueError(
                f"A run must be a folder that `fit` has made, but at {run.path} {what}; check the "
                "name."
            )
        return run

    @classmethod
    def opened(cls, path: str | os.PathLike[str], *, resume: bool) -> tuple[RunFolder, bool]:
        """The folder of a run to begin or to go on with, and whether it was begun before."""
        if resume and os.path.exists(path):
            return cls.existing(path), True
        return cls.new(path), False

    def begin(self, settings: Mapping[str, Any], data: Dataset, seed: int) -> None:
        """Write down all that the run starts from. `config.yaml` is last: it makes it a run."""
        self.path.mkdir(parents=True, exist_ok=True)
        data.write_log(self.path / "data.json")
        write_text(self.path / "environment.txt", environment(seed))
        header = {"format": FORMAT, "gridtnp": __version__, "seed": seed}
        text = yaml.safe_dump(header | dict(settings), sort_keys=False, allow_unicode=True)
        write_text(self.config, text)

    def read_config(self) -> dict[str, Any]:
        """What `begin` wrote."""
        try:
            found = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(
                f"{self.config} must be YAML, but it cannot be read: {error}"
            ) from None
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise ValueError(
                f"{self.config} must be what `fit` wrote, but it has no format number."
            )
        if found["format"] > FORMAT:
            raise ValueError(
                f"{self.config} must be of format {FORMAT} or older, but it is of "
                f"{found['format']}; update gridtnp."
            )
        return found

    def require_same_data(self, data: Dataset) -> None:
        """Raise if the run began with other data."""
        path = self.path / "data.json"
        before = json.loads(path.read_text(encoding="utf-8"))["fingerprint"]
        now = data.fingerprint()
        if before != now:
            raise ValueError(
                f"A run goes on with the data that it began with, but their fingerprint is {now} "
                f"and that in {path} is {before}; train into another folder."
            )

    def note(self, values: Mapping[str, Any]) -> None:
        """Add a line of metrics."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(values)) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines."""
        if not self.metrics.exists():
            return []
        lines = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:  # a kill in the middle of a line
                continue
        return lines

    def forget_after(self, step: int) -> None:
        """Drop metrics of steps that will be done again."""
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))


def environment(seed: int) -> str:
    """Versions, machine, commit and command, to read."""
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


def commit() -> str:
    """Of the source tree, if there is one; "dirty" if the package is not as it was committed."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        done = subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    name = git("describe", "--always") or "unknown"
    return f"{name}-dirty" if git("status", "--porcelain", ".") else name
