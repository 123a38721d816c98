"""The type checker behind `--check-shapes`:

A whole number is a fine float, as everywhere in Python.
"""

from importlib.util import find_spec
from pathlib import Path

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def annotated_modules() -> list[str]:
    """The modules with shapes in their annotations; checking the others would only take time."""
    spec = find_spec("gridtnp")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    found = []
    for path in sorted(package.rglob("*.py")):
        if "from jaxtyping import" in path.read_text(encoding="utf-8"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found
