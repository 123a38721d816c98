"""Files and folders that are written whole or not at all: staged beside their place, then renamed.

Staging folders are called `.gridtnp-<host>-<process>-…`; those of killed processes are removed by
the next write to the same folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

OURS = ".gridtnp-"
"""How the names of staging folders, and of all other hidden files, begin."""
ABSENT = 10
"""Looks that do not find a folder until it is missing."""
CLEARING = 20
"""Attempts to remove a staging folder."""
CHECKSUM = "checksum"
"""Key of the header of a tensor file."""
Result = TypeVar("Result")


class DamagedFile(ValueError):
    """A file that was cut short or changed."""


# ---- files of one kind ---------------------------------------------------------------------------


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    about: dict[str, str],
    previous: Path | None = None,
) -> None:
    """Write a safetensors file atomically, with `about` and a checksum in its header.

    With `previous`, the file that is replaced is moved there.
    """
    contiguous = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    header = about | {CHECKSUM: _checksum(contiguous, about)}
    with replacing(path) as new:
        save_file(contiguous, new, metadata=header)
        if previous is not None:
            previous.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, previous)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a safetensors file; they must match its checksum, if any."""
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            tensors, about = {k: file.get_tensor(k) for k in names}, file.metadata() or {}
    except (SafetensorError, OSError, RuntimeError) as error:
        raise DamagedFile(f"{path} was cut short or changed ({error})") from error
    plain = {k: v for k, v in about.items() if k != CHECKSUM}
    if CHECKSUM in about and about[CHECKSUM] != _checksum(tensors, plain):
        raise DamagedFile(f"{path} was changed (its checksum differs)")
    return tensors, about


def tensor_shapes(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type (`"F32"`, …) and shape of every tensor in a safetensors file; no values are read."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {k: (s.get_dtype(), tuple(s.get_shape())) for k, s in slices.items()}
    except (SafetensorError, OSError, RuntimeError) as error:
        raise DamagedFile(f"{path} was cut short or changed ({error})") from error


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    replace_file(path, lambda new: Path(new).write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[str], Any]) -> None:
    """Replace a file atomically by what `write` writes to the path that it is given."""
    with replacing(path) as new:
        write(str(new))


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# ---- holding a folder ----------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; the system releases it when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{OURS}lock"
    descriptor = _acquire(path)
    try:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        with suppress(OSError):  # a full disk: the lock holds, but does not say whose it is
            os.truncate(descriptor, 0)
            os.write(descriptor, holder.encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """An open and locked file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(descriptor, path.parent)
        except ValueError:
            os.close(descriptor)
            raise
        if _identity(descriptor) == _identity(path):
            return descriptor
        os.close(descriptor)  # its last holder has just removed it


def _lock(descriptor: int, folder: Path) -> None:
    try:
        if fcntl is None:
            raise OSError("this system has no flock")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 1000).decode(errors="replace") or "another process"
        raise ValueError(
            f"{folder} is in use by {holder}; wait for it to end, or use another folder."
        ) from None
    except OSError as error:
        warnings.warn(
            f"{folder} cannot be locked ({error}); make sure that no other process uses it.",
            stacklevel=2,
        )


# ---- replacing files and folders -----------------------------------------------------------------


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path for a new file or folder, which replaces `path` in one step when the block ends.

    If anything fails, whatever was there before stays. The block must do nothing but write.
    """
    with staged(path) as new, reporting(path):
        yield new


@contextmanager
def staged(path: str | os.PathLike[str], *, replace: bool = True) -> Iterator[Path]:
    """As `replacing`, for a block that also does other things; it writes under `reporting`.

    Without `replace`, a folder that another process has put there meanwhile stays.
    """
    place = Path(os.path.realpath(path))
    with reporting(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        recover(place.parent)
        staging = Path(tempfile.mkdtemp(prefix=f"{OURS}{_host()}-{os.getpid()}-", dir=place.parent))
    try:
        new = staging / "new" / place.name
        with reporting(path):
            new.parent.mkdir()
        yield new
        with reporting(path):
            if new.is_file():
                (staging / "plain").touch()  # some writers make files private
                os.chmod(new, (staging / "plain").stat().st_mode)
            _move(new, place, replace)
    finally:
        _clear(staging)


@contextmanager
def reporting(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of errors which file could not be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"Cannot write {path} ({error}), any previous version is unchanged; check disk space "
            "and permissions."
        ) from error


def read_folder(path: Path, read: Callable[[Path], Result]) -> Result:
    """What `read` finds in a folder, again and again until it is not replaced meanwhile."""
    while True:
        exists, pin = _settle(path), None
        with suppress(OSError):
            pin = os.open(path, os.O_RDONLY)  # its inode number is not reused while it is open
        before = _identity(path)
        try:
            found = read(path)
            if _identity(path) == before:
                return found
        except (ValueError, OSError):
            vanished = exists and before is None
            if _identity(path) == before and not vanished:
                raise
        finally:
            if pin is not None:
                os.close(pin)


def recover(folder: Path) -> None:
    """Clear up after processes that were killed while they wrote to a folder."""
    for staging in folder.glob(f"{OURS}*"):
        if _is_dead(staging.name):
            _clear(staging)


def _settle(path: Path) -> bool:
    """Wait while a folder is being replaced in two steps; whether it exists then."""
    absent = 0  # in a row: a quick writer can replace it between two looks
    while not path.exists():
        recover(path.parent)
        absent = 0 if any(path.parent.glob(f"{OURS}*/old/{path.name}")) else absent + 1
        if absent == ABSENT:
            return False
        time.sleep(0.001)
    return True


def _move(new: Path, place: Path, replace: bool) -> None:
    """Put a new file or folder in its place; an old folder becomes part of the staging folder."""
    for file in new.rglob("*") if new.is_dir() else (new,):
        if file.is_file():
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())
    if not replace:
        try:
            os.rename(new, place)  # fails if there is a folder with files
        except OSError:
            if not place.is_dir():
                raise
        return
    if new.is_dir() and place.exists():
        if _exchange(new, place):
            return
        old = new.parent.with_name("old") / place.name
        old.parent.mkdir()
        os.replace(place, old)  # `_clear` puts it back unless the next line succeeds
    os.replace(new, place)


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two paths in one step; False if the system or the file system cannot do that."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


def _clear(staging: Path) -> None:
    """Remove a staging folder; an old folder in it that was not replaced returns to its place."""
    for old in (staging / "old").glob("*"):
        place = staging.parent / old.name
        if not place.exists():
            os.replace(old, place)
    failed = sys.exc_info()[0] is not None
    for _ in range(CLEARING):  # a thread of a writer that failed may still be adding a file
        shutil.rmtree(staging, ignore_errors=True)
        if not failed and not staging.exists():
            return
        time.sleep(0.05)
        if not staging.exists():
            return


def _identity(path: Path | int) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_dead(staging: str) -> bool:
    """Whether the process that made a staging folder of this name, on this host, has ended."""
    made = re.fullmatch(rf"{re.escape(OURS + _host())}-(\d+)-\w+", staging)
    return made is not None and not psutil.pid_exists(int(made[1]))


def _host() -> str:
    return re.sub(r"\W", "_", socket.gethostname())
