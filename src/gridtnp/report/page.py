"""The page: a model, its evaluation and its maps as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from gridtnp import __version__, demo
from gridtnp.contents import ModelContents, describe
from gridtnp.data.dataset import Dataset
from gridtnp.errors import require_installed
from gridtnp.evaluation.evaluate import evaluate
from gridtnp.evaluation.results import Evaluation
from gridtnp.files import write_text
from gridtnp.report import maps, sections
from gridtnp.report.ablation import Ablation, ablation
from gridtnp.report.packing import json_in_html, pack
from gridtnp.report.series import series, shown_stations
from gridtnp.sources.source import unit_symbol
from gridtnp.sources.times import show
from gridtnp.training.run_folder import environment

FOLDER = Path(__file__).parent
SHARED_SCRIPTS = (
    "vendor/d3-array-parts.js", "vendor/d3-geo.min.js", "vendor/uplot.min.js",
    "unpack.js", "elements.js", "colours.js", "map.js", "series.js", "explorer.js",
)  # fmt: skip
"""What draws the map, in the report and on the live page of a server."""
SCRIPTS = (*SHARED_SCRIPTS, "samples.js", "page.js")
STYLES = ("vendor/uplot.min.css", "style.css")
LICENCES = ("d3-array", "d3-geo", "uplot")
ABLATION_TIMES = 24
MOST_VALUES = 1_500_000
"""Values of all fields and samples, so that the file stays below 5 MB."""


def write_report(
    model: ModelContents,
    test: Dataset,
    path: str | os.PathLike[str],
    *,
    evaluation: Evaluation | None = None,
    baselines: Sequence[str] | None = None,
    train: Dataset | None = None,
    times: int = 12,
    points: int = 12_000,
    samples: int = 6,
    overwrite: bool = False,
) -> Path:
    """See `GriddedTNP.report`."""
    place = Path(path)
    _require_free(place, overwrite)
    require_unseen(test)
    for name, number in (("times", times), ("points", points)):
        if number < 1:
            raise ValueError(f"{name}={number}: must be at least 1.")
    if samples < 0:
        raise ValueError(f"samples={samples}: must not be negative.")
    require_installed("jinja2", "report", "A report")
    if evaluation is None:
        evaluation = evaluate(model, test, baselines, train=train)
    _require_same_variables(model, evaluation)
    data = browser_data(model, test, evaluation, times, points, samples)
    without = ablation(model, test, limit=ABLATION_TIMES, seed=evaluation.seed)
    write_text(place, render(model, test, evaluation, without, data))
    return place


def _require_free(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder; give the name of a file.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{str(path)!r} already exists; pass overwrite=True to replace it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"No such folder: {str(path.parent)!r}; create it to write there.")


def require_unseen(test: Dataset | object) -> None:
    """Raise unless this is a part of a dataset that no model was trained on."""
    if not isinstance(test, Dataset):
        raise TypeError(
            f"test is a {type(test).__name__}: must be the test part of a Dataset, from "
            "data.split(...)."
        )
    if test.part in ("all", "train"):
        raise ValueError(
            f"Part {test.part!r} may have been trained on, which a report must not show as a "
            "test; give the test part: train, val, test = data.split(...)."
        )


def _require_same_variables(model: ModelContents, evaluation: Evaluation) -> None:
    if tuple(evaluation.variables) != model.spec.target_names:
        raise ValueError(
            f"The evaluation is of {list(evaluation.variables)}, but the model predicts "
            f"{list(model.spec.target_names)}; evaluate this model."
        )


# ---- what the browser draws ----------------------------------------------------------------------


def browser_data(
    model: ModelContents,
    test: Dataset,
    evaluation: Evaluation,
    times: int,
    points: int,
    samples: int,
) -> dict[str, Any]:
    """Fields, samples, observations and series, as plain data."""
    known = None if evaluation.time is None else np.unique(evaluation.time)
    shown = None if known is None else known[-times:]
    first = 0 if shown is None else len(shown) // 2
    region = maps.Region.of(model, test)
    most = affordable_points(len(evaluation.variables), 1 if shown is None else len(shown), samples)
    grid, exceed = region.grid(model, min(points, most)), maps.thresholds(evaluation)
    found: dict[str, Any] = {
        "variables": [
            {
                "name": name,
                "unit": unit_symbol(units),
                "threshold": exceed.get(name),
            }
            for name, units in evaluation.variables.items()
        ],
        "region": {**vars(region), "around": region.around},
        "ramps": maps.RAMPS,
        "coastline": coastline(region),
        "times": None if shown is None else shown.astype("datetime64[s]").astype(int).tolist(),
        "labels": [""] if shown is None else [show(time) for time in shown],
        "first": first,
        "stations": series(model, test, evaluation, times),
        "context": maps.observations(model, test, shown),
        "fields": None,
        "samples": None,
        "reasons": {},
    }
    try:
        found["fields"] = maps.fields(model, test, grid, shown, exceed)
    except ValueError as error:  # such as a static feature that is known at stations only
        found["reasons"] = {"fields": str(error), "samples": str(error)}
        return found
    if samples:
        time = None if shown is None else shown[first]
        try:
            found["samples"] = maps.joint_samples(model, test, grid, time, samples)
        except ValueError as error:
            found["reasons"]["samples"] = str(error)
    return found


def affordable_points(variables: int, times: int, samples: int) -> int:
    """The most grid points that a map can have."""
    return max(MOST_VALUES // (variables * ((len(maps.STATISTICS) + 1) * times + samples)), 100)


def coastline(region: maps.Region) -> dict[str, Any]:
    """The coastlines of the package in a region, as detailed as can be seen, packed."""
    lines = [line for ring in demo.coastline() for line in region.lines(ring)]
    lon, lat = np.concatenate([np.zeros((0, 2)), *lines]).T
    return {"lon": pack(lon), "lat": pack(lat), "sizes": [len(line) for line in lines]}


# ---- HTML ----------------------------------------------------------------------------------------


def render(
    model: ModelContents,
    test: Dataset,
    evaluation: Evaluation,
    without: Ablation,
    data: dict[str, Any],
) -> str:
    """The whole page."""
    script = "\n".join(read(name) for name in SCRIPTS)
    style = "\n".join(read(name) for name in STYLES)
    policy, parts = assemble(script, style)
    safe = parts["safe"]
    names = dict(zip(shown_stations(evaluation), data["stations"]["names"], strict=True))
    variables = sections.scored(
        sections.rows_of(evaluation), evaluation.split, evaluation.calibration()
    )
    left_out = sections.rows_of(without.evaluation)
    for own in variables:
        lost = [row for row in left_out if row["variable"] == own["name"]]
        own["losses"] = sections.losses(lost) if len(lost) > 1 else None
        own["worst"] = sections.worst_cases(evaluation, own["name"], names)
    return template("page.html").render(
        **parts,
        policy=policy,
        live=False,
        data=safe(json_in_html(data)),
        title=", ".join(evaluation.variables),
        split=evaluation.split,
        notes=evaluation.notes,
        variables=variables,
        losses_on=without.evaluation.split,
        losses_notes=without.notes,
        card=sections.data_card(test, evaluation.split),
        reasons=data["reasons"],
        has_fields=data["fields"] is not None,
        has_chances=any(one["threshold"] is not None for one in data["variables"]),
        has_samples=data["samples"] is not None,
        has_times=data["times"] is not None,
        labels=data["labels"],
        first=data["first"],
        stations=data["stations"],
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        model=describe(model),
        environment=environment(evaluation.seed),
        fingerprint=test.fingerprint(),
        licences={name: read(f"vendor/{name}.LICENSE") for name in LICENCES},
    )


def assemble(script: str, style: str, connect: str = "'none'") -> tuple[str, dict[str, Any]]:
    """A content security policy for a page with this script and style, and both for a template.

    `connect` are the addresses that the script may ask.
    """
    from markupsafe import Markup

    assert "</script" not in script.lower()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    return policy, {"script": Markup(script), "style": Markup(style), "safe": Markup}


def template(name: str, *folders: Path) -> Any:
    """A template in one of these folders or of the report, in which all texts are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([*folders, FOLDER], encoding="utf-8")
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return made.get_template(name)


def read(name: str) -> str:
    """A file of the report."""
    return (FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of a content security policy that admits this text."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
