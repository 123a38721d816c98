"""The site of the documentation, by Sphinx: `make docs`. It is built and read without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring

import gridtnp

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import gallery  # noqa: E402  the script that runs the examples also knows their format

project = "gridtnp"
author = "The gridtnp developers"
project_copyright = author
release = version = gridtnp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build", "conf.py"]
source_suffix = {".md": "markdown", ".py": "example"}
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp"

html_theme = "furo"
html_title = f"gridtnp {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
pygments_style, pygments_dark_style = "tango", "monokai"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

HOMES = {f"gridtnp.{home}.{name}": name for name, home in gridtnp._HOME_OF.items()}
"""Where names of the package are defined; the reference has them as `gridtnp.name`."""


class ExampleParser(MystParser):
    """Examples of the gallery are Python files with their text in comments."""

    supported = ("example",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        path = Path(document.settings.env.doc2path(document.settings.env.docname))
        super().parse(gallery.page(path, inputstring), document)


def docstring(
    _app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Docstrings to reStructuredText: code between single backticks, and Google's sections."""

    def code(match: re.Match[str]) -> str:
        before, text, after = match.groups()
        known = text in gridtnp.__all__ and text[0].isupper()
        made = f":py:obj:`~gridtnp.{text}`" if known else f"``{text}``"
        return (before and before + "\\ ") + made + (after and "\\ " + after)

    for number, line in enumerate(lines):
        lines[number] = re.sub(r"(\w?)`([^`]+)`(\w?)", code, line)
    if what not in ("attribute", "data", "property"):  # there it takes "shape: text" for a type
        lines[:] = str(GoogleDocstring(lines, Config(napoleon_use_rtype=False), what=what)).split(
            "\n"
        )


def results(_app: Sphinx, _name: str, text: list[str]) -> None:
    """Results of experiments are not part of the site: their links become paths."""
    text[0] = re.sub(r"(?<!!)\[([^\]]+)\]\(\.\./(experiments/[^)]+)\)", _path, text[0])


def _path(match: re.Match[str]) -> str:
    text, path = match.groups()
    return f"`{path}`" if text == path else f"{text}: `{path}`"


def skip(
    _app: Sphinx, what: str, name: str, item: object, skipped: bool, _options: object
) -> bool | None:
    """What `gridtnp` itself has is described once, on the first page of the reference."""
    if what != "module" or skipped:
        return None
    return True if getattr(gridtnp, name, None) is item and name in gridtnp.__all__ else None


def resolve(
    app: Sphinx, environment: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Links to names by where they are defined."""
    name = HOMES.get(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or name is None:
        return None
    return environment.domains.python_domain.resolve_xref(
        environment, node["refdoc"], app.builder, "obj", f"gridtnp.{name}", node, content
    )


def downloads(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for path in gallery.examples():
            gallery.write_downloads(path, Path(app.outdir) / "gallery")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_source_parser(ExampleParser)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("source-read", results)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", resolve)
    app.connect("build-finished", downloads)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
