"""The processor: its features, and whether bfloat16 matrix products work on it.

Some virtual machines advertise matrix instructions (AMX) that they do not allow. PyTorch uses them
for bfloat16 products, and the process dies of an illegal instruction. Such a product is therefore
tried once in a child process, on demand, and the result is kept in the user's cache folder. This
module does not import torch.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
import shutil
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
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_text(text)
            os.replace(written, path)
    except OSError:
        return


FEATURES = {
    *("flags", "features", "isa"),  # x86, ARM and s390, RISC-V
    *("vendor_id", "cpu family", "model", "model name", "cpu", "uarch"),
    *("cpu implementer", "cpu architecture", "cpu variant", "cpu part"),
}
"""The entries of /proc/cpuinfo that decide for which processor `-march=native` compiles."""


def description() -> str:
    """The features of the processor and of each kind of its cores, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    found = {line for line in lines if line.partition(":")[0].strip().lower() in FEATURES}
    return "\n".join([platform.machine(), *sorted(found)])


def name() -> str:
    """The name of the processor for people."""
    lines = description().splitlines()
    named = [x.partition(":")[2].strip() for x in lines if x.lower().startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def cache_folder() -> Path:
    """Where results that belong to this machine are kept: for this user alone to write.

    Where there is none, a private temporary folder that is removed when Python ends.
    """
    return _private(os.environ.get("XDG_CACHE_HOME"))[0]


def why_not_cached() -> str | None:
    """Why the folder is a temporary one, or None."""
    return _private(os.environ.get("XDG_CACHE_HOME"))[1]


@functools.cache
def _private(base: str | None) -> tuple[Path, str | None]:
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "gridtnp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if others_may_write(folder) and folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode & ~0o022)
        if os.access(folder, os.W_OK) and not others_may_write(folder):
            return folder, None
        reason = f"{folder} can be written by others, or not by you"
    except (OSError, RuntimeError) as error:  # no home
        reason = str(error)
    temporary = tempfile.mkdtemp(prefix="gridtnp-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary), reason


def others_may_write(path: Path) -> bool:
    """Whether other users than this one and root can change a file or folder."""
    if not hasattr(os, "getuid"):
        return False
    found = path.lstat()
    return found.st_uid not in (0, os.getuid()) or bool(found.st_mode & 0o022)
