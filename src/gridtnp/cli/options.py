"""The command `gridtnp`, and the options that several of its subcommands take."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from gridtnp import __version__

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
Thresholds = Annotated[
    tuple[float, ...],
    Parameter(
        consume_multiple=True,
        negative="",
        help="Thresholds whose probability of being exceeded to predict.",
    ),
]
Out = Annotated[Path, Parameter(name=["--output", "-o"], help="File to write.")]
Overwrite = Annotated[bool, Parameter(negative="", help="Replace an existing file.")]


def print_record(json: bool, record: dict[str, Any], text: str) -> None:
    print(json_text.dumps(record, ensure_ascii=False) if json else text)
