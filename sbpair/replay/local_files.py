"""Files of an archive on a disk of this machine: written whole or not at all, and synced."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from sbpair.operating_system import require_posix
from sbpair.operating_system.files import make_directories as make_private
from sbpair.operating_system.files import open_new, sync_directory


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
    if not root.exists():
        raise FileNotFoundError(errno.ENOENT, "the run's directory is missing")
    for each in make_private(directory):
        sync_directory(each.parent)


def write_all(file: Any, data: bytes | pa.Buffer | IO[bytes]) -> None:
    """Write bytes, or all that is left to read of a file."""
    if isinstance(data, bytes | pa.Buffer):
        file.write(data)
    else:
        shutil.copyfileobj(data, file)


def write_file(path: Path, data: bytes | pa.Buffer | IO[bytes], *, sync: bool) -> None:
    """Write a whole file or none. Raises OSError."""
    beside = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with os.fdopen(open_new(beside), "wb") as file:
            write_all(file, data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


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
