"""The differences between operating systems; no other package asks on which one it runs.

The tests run on Linux. They reach the branches of macOS and Windows with fakes only.
"""

import errno
import os
import socket
import sys
import time

from sbpair.errors import MachineLacks

_SOCKET_ERRORS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset by peer",
    errno.ECONNABORTED: "software caused connection abort",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
    errno.ETIMEDOUT: "connection timed out",
}
"""The words of POSIX: those of Windows depend on its language."""


UNIX_SOCKETS: int = getattr(socket, "AF_UNIX", 0)
"""The address family; 0 on Windows, whose Python has none."""


def is_windows() -> bool:
    return sys.platform == "win32"


def has_system_proxy() -> bool:
    """Return whether a proxy can be set elsewhere than in the environment."""
    return sys.platform == "win32" or sys.platform == "darwin"


def require_posix(subject: str, hint: str) -> None:
    """Raise MachineLacks on Windows, for a subject that needs durable directories, fork or the signals of POSIX."""
    if sys.platform == "win32":
        raise MachineLacks(f"{subject} needs Linux or macOS, and this is Windows", hint=hint)


def uptime() -> float:
    """Return seconds since boot, including sleep."""
    if sys.platform == "win32":
        return time.monotonic()
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def error_text(number: int) -> str:
    """Return the words of POSIX for an error number, in lower case."""
    text = _SOCKET_ERRORS.get(number) if sys.platform == "win32" else None
    return text or os.strerror(number).lower()


def rebind_at_once(listening: socket.socket) -> None:
    """Let a restarted program bind the port of a socket at once, but no second program while it listens."""
    # On Windows, SO_REUSEADDR would let several programs listen on one port.
    option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
    listening.setsockopt(socket.SOL_SOCKET, option, 1)
