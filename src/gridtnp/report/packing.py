"""Arrays for the page: 16-bit integers, compressed, as text; and JSON that is safe inside HTML."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np

MISSING = 2**16 - 1
"""The code of NaN."""


def pack(values: np.ndarray) -> dict[str, Any]:
    """An array as integers from 0 to 65534, between its least and its largest value.

    Differences along the last axis, first all low and then all high bytes, compress best.
    """
    flat = np.atleast_1d(np.asarray(values, np.float64))
    known = np.isfinite(flat)
    low, high = (flat[known].min(), flat[known].max()) if known.any() else (0.0, 0.0)
    step = float((high - low) / (MISSING - 1)) or 1.0
    codes = np.where(known, np.rint((np.where(known, flat, low) - low) / step), MISSING)
    codes = codes.astype(np.uint16)
    change = codes.copy()
    change[..., 1:] -= codes[..., :-1]  # modulo 2^16
    pairs = np.ascontiguousarray(change, "<u2").view(np.uint8).reshape(-1, 2)
    data = gzip.compress(pairs.T.tobytes(), 9, mtime=0)
    return {
        "shape": list(flat.shape),
        "low": float(low),
        "step": step,
        "data": base64.b64encode(data).decode("ascii"),
    }


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """What the page makes of a packed array."""
    data = np.frombuffer(gzip.decompress(base64.b64decode(packed["data"])), np.uint8)
    pairs = np.ascontiguousarray(data.reshape(2, -1).T).view("<u2").reshape(packed["shape"])
    codes = np.cumsum(pairs, -1, dtype=np.uint16)
    return np.where(codes == MISSING, np.nan, packed["low"] + packed["step"] * codes)


def json_in_html(value: Any) -> str:
    """JSON that can stand in a `<script>` element: it has no `<`, `>` or `&`."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
