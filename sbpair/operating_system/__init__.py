"""The differences between operating systems; no other package asks on which one it runs.

The tests run on Linux. INSTALL.md lists what is unverified on macOS and Windows.
"""

from __future__ import annotations

import errno
import os
import sys
import time
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from sbpair.errors import MachineLacks, PortInUse, UsageError
from sbpair.operating_system.shortages import shortage_of

if TYPE_CHECKING:
    import socket

BACKLOG = 1024
"""Connections that wait in the kernel until they are accepted."""


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


@cache
def boot_id() -> str:
    """Return the name of this boot of the machine, whose `uptime` goes on; where that is not known, of this process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # not Linux
        return uuid.uuid4().hex


def open_file_limit() -> int:
    """Return how many files and sockets this process may have open at once."""
    if sys.platform == "win32":
        return 8192  # of the C library; sockets have none
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def unix_socket_family() -> int:
    """Return the address family; 0 on Windows, whose Python has none."""
    import socket

    return getattr(socket, "AF_UNIX", 0)


def listen(host: str, port: int, port_option: str = "", address_option: str = "") -> socket.socket:
    """Return a socket that listens, for an event loop. Errors name the options, if any.

    Raises UsageError for an unknown address, and MachineLacks if the port cannot be opened; PortInUse is one.
    """
    import socket  # here, and above: short commands need none, and it takes longer to load than this package

    where = f"{port_option}: port {port} on {host}" if port_option else f"port {port} on {host}"
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        if (lack := shortage_of(error, where)) is not None:
            raise lack from error
        number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
        if number == errno.EADDRINUSE:
            hint = "stop the process that uses it, or choose another port; 0 is any free one"
            raise PortInUse(f"{where} is in use", hint=hint) from error
        if number is None or number == errno.EADDRNOTAVAIL:
            what = f"{address_option}: {host!r}" if address_option else repr(host)
            hint = "leave it out to serve this machine only; 0.0.0.0 serves others, too"
            raise UsageError(f"{what} is not an address of this machine", hint=hint) from error
        raise MachineLacks(f"{where}: {os.strerror(number)}", hint="choose a port above 1023") from error
    listening.setblocking(False)
    # Accepted sockets inherit it. asyncio sets it only on sockets whose protocol is given, which is not so here.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def can_be_redrawn(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that obeys escape sequences, as those of POSIX do."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown") and not is_windows()


def discard(stream: TextIO) -> None:
    """Redirect a stream to nowhere: Python flushes it again at exit, and would report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_of_input() -> str:
    """Return the keys that end the input from a terminal."""
    return "Ctrl-Z and Enter" if is_windows() else "Ctrl-D"
