"""Every Python example in the README and in docs/ runs as it stands, each page from top to
bottom.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LONG = (
    *("tutorial.md", "training.md", "likelihoods.md"),
    *("prediction.md", "evaluation.md", "report.md"),
)
"""Pages whose examples take ten seconds and more."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(page: Path) -> str:
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in LONG))
        for page in PAGES[1:]
    ],
)
def test_examples_run(page: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(examples(page), str(page), "exec"), namespace)


@pytest.mark.slow
def test_the_quick_start_is_as_good_as_its_best_baseline(tmp_path: Path) -> None:
    """The README as it stands, as a newcomer runs it: at stations and times never seen."""
    checks = """
assert field["tmax_mean"].sizes == terrain["elevation"].sizes
print("\\n" + scores.to_dataframe().set_index("forecast")["crps"].to_json())
"""
    script = tmp_path / "quick_start.py"
    script.write_text(examples(ROOT / "README.md") + checks, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    crps = json.loads(done.stdout.splitlines()[-1])
    assert {"model", "kriging-drift", "regression-kriging"} <= set(crps)
    assert crps.pop("model") < 1.03 * min(crps.values())


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs").glob("*/*.md"))], ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
