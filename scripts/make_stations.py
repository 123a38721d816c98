"""Make src/gridtnp/demo/stations.csv.gz: the sites of the world's airport weather stations.

They are the stations with METAR reports in the Python package `avwx-engine` (MIT):

    $ pip install --no-deps --target avwx avwx-engine==1.9.10
    $ python scripts/make_stations.py avwx/avwx/data/files/stations.json
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "src" / "gridtnp" / "demo" / "stations.csv.gz"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("input", type=Path, help="stations.json of avwx-engine")
    listed = json.loads(parser.parse_args().input.read_text(encoding="utf-8"))
    rows = [
        (code, f"{site['latitude']:.4f}", f"{site['longitude']:.4f}", site["elevation_m"])
        for code, site in sorted(listed.items())
        if site["reporting"]
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("station", "lat", "lon", "elevation"), *rows])
    OUTPUT.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))  # reproducible bytes
    print(f"{OUTPUT}: {len(rows)} stations, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
