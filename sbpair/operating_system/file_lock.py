"""Locks of files, held until the descriptor is closed or the process ends: no lock is stale.

POSIX locks the file by flock. Windows locks one byte beyond the content, because its locks keep others from reading.
"""

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
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


def take_name(name: str) -> socket.socket | None:
    """Take a name of this user and machine, which no other process can have until the socket is closed.

    It depends on no directory and no variable; processes in another network namespace have names of their own. Returns
    None where the system has no such names. Raises BlockingIOError if it is taken, OSError if names are forbidden.
    """
    if sys.platform != "linux":
        return None
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        taken.bind(_abstract(name))
        taken.listen(8)
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        raise
    return taken


def holder_of_name(name: str) -> int | None:
    """Return the process that has taken a name; None if the system does not report it."""
    with suppress(OSError), closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as asking:
        asking.setblocking(False)
        asking.connect(_abstract(name))
        process, _user, _group = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(process)
    return None


def _abstract(name: str) -> bytes:
    return f"\0sbpair-{os.getuid()}-{sha256(name.encode()).hexdigest()}".encode()


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
