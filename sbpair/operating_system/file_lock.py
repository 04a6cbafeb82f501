"""Locks of files, held until the descriptor is closed or the process ends: no lock is stale.

POSIX locks the file by flock. Windows locks one byte beyond the content, because its locks keep others from reading.
"""

import errno
import os
import socket
import struct
import sys
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

from sbpair.operating_system.files import open_new

LOCKED_BYTE = 0x4000_0000

_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)


def open_lock_file(path: Path, *, create: bool) -> int:
    """Open a file to lock it, never through a symbolic link. Returns its descriptor. Raises OSError."""
    if create:
        with suppress(FileExistsError):
            return open_new(path)
    return os.open(path, (os.O_RDWR | os.O_CREAT if create else os.O_RDONLY) | _NO_FOLLOW, 0o600)


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file. Raises BlockingIOError if another process holds its lock, OSError for other failures."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
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
        taken.bind(_abstract(name, os.getuid()))
        taken.listen(8)
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        raise
    return taken


def holder_of_name(name: str) -> tuple[int, int | None] | None:
    """Return the process that has taken a name, and its user if it is another one; None if Linux does not report it."""
    if sys.platform != "linux":
        return None
    with suppress(OSError), closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as asking:
        asking.setblocking(False)
        asking.connect(_abstract(name, os.getuid()))
        process, user, _group = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(process), None if user == os.getuid() else int(user)
    return None


def _abstract(name: str, user: int) -> bytes:
    return f"\0sbpair-{user}-{sha256(name.encode()).hexdigest()}".encode()
