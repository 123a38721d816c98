"""Every Python example in the README and in docs/ runs as it stands, each page from top to
bottom.
"""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(page: Path) -> str:
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )


def run(page: Path) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(examples(page), str(page), "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    run(page)


def test_the_quick_start_beats_its_baselines() -> None:
    """The README as it stands: at stations and times never seen, by a clear margin."""
    made = run(ROOT / "README.md")
    crps = made["scores"].to_dataframe().set_index("forecast")["crps"]
    assert set(crps.index) == {"model", "nearest", "idw", "kriging"}
    assert crps["model"] < 0.75 * crps.drop("model").min()
    assert made["field"]["tmax_mean"].sizes == made["terrain"]["elevation"].sizes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
