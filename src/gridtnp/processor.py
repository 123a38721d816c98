"""The processor: what it says of itself, and whether products in bfloat16 survive on it.

Some virtual machines show a processor's matrix instructions (AMX) and do not allow them. PyTorch
takes them for products in bfloat16, and Python dies of an illegal instruction. So such a product is
tried in another process, once, and what came of it is kept in the user's cache folder. Nothing is
tried before someone asks. This module does without torch.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

VARIABLE, SAFE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""What oneDNN, which multiplies for PyTorch, looks at first, and its best without AMX."""
PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
TRIAL = [sys.executable, "-P", "-c", PRODUCT]
FAULTS = (signal.SIGILL, signal.SIGSEGV)


def why_not_bfloat16() -> str | None:
    """Why there can be no products in bfloat16 on this processor, if so.

    The first time that anyone asks takes as long as importing torch.
    """
    fault = _fault(os.environ.get(VARIABLE))
    return None if fault is None else f"products in bfloat16 end Python on this processor ({fault})"


def way_out() -> str:
    """What helps where they end Python, unless it is done already."""
    done = os.environ.get(VARIABLE) == SAFE
    return "" if done else f"set {VARIABLE}={SAFE} before Python starts"


def require_bfloat16() -> None:
    """Raise, in a sentence, where a product in bfloat16 would end Python."""
    reason = why_not_bfloat16()
    if reason is not None:
        ways = [way for way in (way_out(), 'train with precision="float32"') if way]
        raise ValueError(f"{reason[0].upper()}{reason[1:]}: {' or '.join(ways)}.")


def safe_settings() -> dict[str, str]:
    """What to add to the environment for products in bfloat16 to survive: nothing where they do, or
    where someone has decided already.
    """
    return {} if VARIABLE in os.environ or why_not_bfloat16() is None else {VARIABLE: SAFE}


@functools.cache
def _fault(limit: str | None) -> str | None:
    """The signal that ended a product in another process, from the cache folder if it is known."""
    about = (*TRIAL[1:], metadata.version("torch"), platform.release(), description(), str(limit))
    key = hashlib.sha256("\n".join(about).encode()).hexdigest()
    path = cache_folder() / f"bfloat16-{key[:16]}.txt"
    try:
        return path.read_text() or None
    except OSError:
        pass
    try:
        code = subprocess.run(TRIAL, capture_output=True, check=False).returncode
    except OSError:
        return None
    fault = signal.Signals(-code).name if -code in FAULTS else None
    if code == 0 or fault is not None:  # anything else says nothing about the processor
        _keep(path, fault or "")
    return fault


def _keep(path: Path, text: str) -> None:
    """Whole or not at all, whoever else does the same; where nothing can be written, not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(text)
            os.replace(written, path)
    except OSError:
        return


def description() -> str:
    """What it can do, as far as the system tells."""
    if sys.platform == "linux":
        flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in line]
        return platform.machine() + (flags[0] if flags else "")
    return platform.platform() + platform.processor()


def cache_folder() -> Path:
    """The user's, for what is found out or made for this machine."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gridtnp"
