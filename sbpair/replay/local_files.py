"""Durable files on a local disk: written beside their place, synced, then renamed."""

from __future__ import annotations

import errno
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.operating_system import require_posix
from sbpair.operating_system.files import open_new, open_to_append, sync_directory

if TYPE_CHECKING:
    import pyarrow as pa


def check_system() -> None:
    """Raise MachineLacks on Windows: it cannot sync a directory, nor replace a file that another process reads."""
    require_posix("an archive on a disk of this machine", "name a URL with --archive, such as s3://bucket/backlog")


def make_directories(root: Path, directory: Path) -> None:
    """Create the directories missing below `root` and sync their parents.

    Raises FileNotFoundError without `root`, and MachineLacks.
    """
    check_system()
    if directory.exists():
        return
    missing = [each for each in (directory, *directory.parents) if each.is_relative_to(root) and not each.exists()]
    for each in reversed(missing):
        if each == root:
            raise FileNotFoundError(errno.ENOENT, "the run's directory is missing")
        each.mkdir(mode=0o700, exist_ok=True)
        sync_directory(each.parent)


def write_file(path: Path, data: bytes | pa.Buffer, *, sync: bool) -> None:
    """Write a whole file or none. Raises OSError."""
    beside = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with os.fdopen(open_new(beside), "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


def append_file(path: Path, data: bytes) -> None:
    """Append to an existing file, without a sync. Raises OSError."""
    with os.fdopen(open_to_append(path), "wb") as file:
        file.write(data)


def find_irregular(directory: Path) -> Path | None:
    """Return a symbolic link, a pipe or a device below a directory; None without one.

    Files may come and go meanwhile.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if (found := find_irregular(Path(entry.path))) is not None:
                    return found
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                return Path(entry.path)
    return None


def is_in_memory(url: str) -> bool:
    """Return whether a restart of this machine would lose an archive there, as far as Linux shows."""
    if "://" in url and not url.startswith("file:"):
        return False
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:  # not Linux
        return False
    return filesystem_type(Path(url.removeprefix("file:")).resolve(), mounts) in ("tmpfs", "ramfs")


def filesystem_type(path: Path, mounts: str) -> str:
    """Return the filesystem type of an absolute path, from the text of /proc/self/mounts; "" if unknown."""
    found, depth = "", 0
    for line in mounts.splitlines():
        _device, place, kind, *_options = line.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        # A later mount at the same place hides the earlier one.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = kind, len(point.parts)
    return found
