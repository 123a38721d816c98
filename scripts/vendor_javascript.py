"""Fetch the JavaScript libraries of the report into src/gridtnp/report/vendor/, with licences.

    $ python scripts/vendor_javascript.py

npm downloads the packages; an archive that differs from the checksum below is refused. Of d3-array,
which d3-geo needs, only the three functions that it uses are kept. checksums.txt lists what was
written, and a test compares the files with it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "src" / "gridtnp" / "report" / "vendor"
PACKAGES = {
    "d3-array@3.2.5": "90139c20a9a7678badb0ddeb9aafd504c935dc24f5a53c3e61ccf866e4479572",
    "d3-geo@3.1.2": "e0ffa43f5a2134cf03d2797e985025250d8d3608b1d90336938c9dd4d4b97dc7",
    "uplot@1.6.32": "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
}
"""SHA-256 of the archives."""
FILES = {
    "d3-geo@3.1.2": {"dist/d3-geo.min.js": "d3-geo.min.js", "LICENSE": "d3-geo.LICENSE"},
    "uplot@1.6.32": {
        "dist/uPlot.iife.min.js": "uplot.min.js",
        "dist/uPlot.min.css": "uplot.min.css",
        "LICENSE": "uplot.LICENSE",
    },
    "d3-array@3.2.5": {"LICENSE": "d3-array.LICENSE"},
}
PARTS = ("class Adder", "function* flatten", "function merge", "function range")
"""What d3-geo uses of d3-array."""


def fetch(package: str, into: Path) -> tarfile.TarFile:
    """The archive of a package, checked."""
    command = ["npm", "pack", "--silent", package]
    done = subprocess.run(command, cwd=into, check=True, capture_output=True, text=True)
    path = into / done.stdout.strip().splitlines()[-1]
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != PACKAGES[package]:
        raise ValueError(f"{package} has checksum {found}, but {PACKAGES[package]} is expected.")
    return tarfile.open(path)


def read(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(f"package/{name}")
    assert file is not None
    return file.read().decode("utf-8")


def parts_of_d3_array(text: str) -> str:
    """Three functions of d3-array as the global `d3`, which d3-geo adds to."""
    header = text.partition("\n")[0]
    blocks = []
    for start in PARTS:
        found = re.search(rf"^{re.escape(start)}\b.*?^\}}$", text, re.MULTILINE | re.DOTALL)
        assert found is not None, start
        blocks.append(found[0])
    body = "\n".join(blocks)
    return f"{header}\nvar d3 = (function () {{\n{body}\nreturn {{Adder, merge, range}};\n}})();\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    made: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for package, files in FILES.items():
            with fetch(package, Path(folder)) as archive:
                made |= {new: read(archive, name) for name, new in files.items()}
                if package.startswith("d3-array"):
                    made["d3-array-parts.js"] = parts_of_d3_array(
                        read(archive, "dist/d3-array.mjs")
                    )
    lines = []
    for name, text in sorted(made.items()):
        (FOLDER / name).write_text(text, encoding="utf-8")
        lines.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n")
    (FOLDER / "checksums.txt").write_text("".join(lines), encoding="utf-8")
    print(f"wrote {len(made)} files and checksums.txt to {FOLDER}")


if __name__ == "__main__":
    main()
