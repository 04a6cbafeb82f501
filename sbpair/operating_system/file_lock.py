"""Locks of files, held until the descriptor is closed or the process ends: no lock is stale.

POSIX locks the file by flock. Windows locks one byte beyond the content, because its locks keep others from reading.
"""

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

LOCKED_BYTE = 0x4000_0000
TRIES = 10
RETRY_SECONDS = 0.01

_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)


def open_lock_file(path: Path, *, create: bool) -> int:
    """Open a file to lock it, never through a symbolic link. Returns its descriptor. Raises OSError."""
    return os.open(path, (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | _NO_FOLLOW, 0o600)


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file. Raises BlockingIOError if another process holds its lock, OSError for other failures."""
    if sys.platform == "win32":
        import msvcrt

        _at_locked_byte(descriptor, lambda: msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1))
        return
    import fcntl

    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _at_locked_byte(descriptor: int, lock_byte: Callable[[], None]) -> None:
    """Lock a byte, which the C library of Windows does without shared locks: a check of a lock holds it for moments."""
    for remaining in reversed(range(TRIES)):
        os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        try:
            lock_byte()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EDEADLK):
                raise
            if not remaining:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
            time.sleep(RETRY_SECONDS)
        else:
            return
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
