"""The processor: its features, and whether bfloat16 matrix products work on it.

Some virtual machines advertise matrix instructions (AMX) that they do not allow. PyTorch uses them
for bfloat16 products, and the process dies of an illegal instruction. Such a product is therefore
tried once in a child process, on demand, and the result is kept in the user's cache folder. This
module does not import torch.
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
"""The environment variable that limits oneDNN's instruction set, and its best value without AMX."""
PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
TRIAL = [sys.executable, "-P", "-c", PRODUCT]
FAULTS = (signal.SIGILL, signal.SIGSEGV)


def why_not_bfloat16() -> str | None:
    """Why bfloat16 products do not work on this processor, or None.

    The first call takes as long as importing torch.
    """
    fault = _fault(os.environ.get(VARIABLE))
    return None if fault is None else f"bfloat16 products crash on this processor ({fault})"


def way_out() -> str:
    """What to do about it, unless it is done already."""
    done = os.environ.get(VARIABLE) == SAFE
    return "" if done else f"set {VARIABLE}={SAFE} before Python starts"


def require_bfloat16() -> None:
    """Raise where a bfloat16 product would crash the process."""
    reason = why_not_bfloat16()
    if reason is not None:
        ways = [way for way in (way_out(), 'train with precision="float32"') if way]
        raise ValueError(f"{reason[0].upper()}{reason[1:]}: {' or '.join(ways)}.")


def safe_settings() -> dict[str, str]:
    """Environment variables that make bfloat16 products work: none if they do, or if the variable
    is set already.
    """
    return {} if VARIABLE in os.environ or why_not_bfloat16() is None else {VARIABLE: SAFE}


@functools.cache
def _fault(limit: str | None) -> str | None:
    """The signal that killed a product in a child process; cached on disk."""
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
    if code == 0 or fault is not None:  # other failures say nothing about the processor
        _keep(path, fault or "")
    return fault


def _keep(path: Path, text: str) -> None:
    """Write atomically; ignore folders that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(text)
            os.replace(written, path)
    except OSError:
        return


def description() -> str:
    """The features of the processor, as far as the system tells."""
    if sys.platform == "linux":
        flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in line]
        return platform.machine() + (flags[0] if flags else "")
    return platform.platform() + platform.processor()


def cache_folder() -> Path:
    """Where results that belong to this machine are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gridtnp"
