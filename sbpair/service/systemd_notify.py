"""Messages to systemd: a datagram for each, to the socket that the environment names.

See sd_notify(3) and sd_watchdog_enabled(3). Invariant: nothing here raises or waits, also if the socket is full.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Final

from sbpair.operating_system import UNIX_SOCKETS

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

REPORT_SECONDS: Final = 10.0
"""Time between reports to a unit without a watchdog, or with a slow one."""


class SystemdNotifier:
    """`interval` is the seconds between two reports. `has_watchdog` is whether the unit expects them."""

    def __init__(self, address: str, watchdog_seconds: float | None = None) -> None:
        self.has_watchdog = watchdog_seconds is not None
        # systemd recommends half of the time.
        self.interval = REPORT_SECONDS if watchdog_seconds is None else min(watchdog_seconds / 2, REPORT_SECONDS)
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._failed = False

    def send(self, **assignments: object) -> bool:
        """Send assignments such as `READY=1` in one datagram. Return whether it was taken; a failure is logged once.

        A full queue of the socket is one: send it again.
        """
        text = "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in assignments.items())
        try:
            if self._socket is None:
                self._socket = socket.socket(UNIX_SOCKETS, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(text.encode(errors="replace"), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("systemd was not notified at NOTIFY_SOCKET: %s", error.strerror or error)
            self._failed = True
            return False
        self._failed = False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def systemd_notifier(environ: Mapping[str, str], pid: int) -> SystemdNotifier | None:
    """Return a notifier for the process with this id; None if it is not a service that notifies."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    if address[0] not in "/@" or not UNIX_SOCKETS:
        log.warning("NOTIFY_SOCKET is not the path of a socket, and is ignored")
        return None
    return SystemdNotifier(address, _watchdog_seconds(environ, pid))


def _watchdog_seconds(environ: Mapping[str, str], pid: int) -> float | None:
    text, meant_for = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (text.isascii() and text.isdecimal() and int(text)) or meant_for not in ("", str(pid)):
        return None
    return int(text) / 1_000_000
