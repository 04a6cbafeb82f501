"""The users whose programs may connect: this one, root, and those that are allowed.

Root is admitted since it can read the key, and this process, in any case. Where the system does not know the user of a
peer, as on macOS, on Windows and in some sandboxes, the key alone decides.

Invariant: a peer that is not on the loopback address, or whose user is known and not admitted, is refused.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from sbpair.failover.events import Event
from sbpair.operating_system.socket_owner import SocketAddress, find_socket

ROOT: Final = 0


class PeerUserUnknown(Event, text="the user of a connection is not known here: its key alone decides"):
    """The first connection whose user the system does not know."""


class PeerUsers:
    """Admits peers of this user, of root and of the `allowed` users, by their ids.

    `on_unknown` is called once, at the first peer whose user is unknown: it is admitted.
    """

    def __init__(self, allowed: frozenset[int], on_unknown: Callable[[], object]) -> None:
        self._allowed = allowed | {ROOT}
        self._on_unknown = on_unknown
        self._reported = False

    def admits(self, connection: socket.socket) -> bool:
        """Return whether an accepted connection may stay. Never raises."""
        try:
            own, peer = _end(connection.getsockname()), _end(connection.getpeername())
        except OSError:  # it has ended
            return False
        if not peer.host.is_loopback:
            return False
        found = find_socket(peer, own)
        if found is not None and found.open:
            return found.is_own or found.user in self._allowed
        if found is not None or find_socket(own, peer) is not None:  # users are known here: the peer has closed it
            return False
        if not self._reported:
            self._reported = True
            self._on_unknown()
        return True


def _end(found: tuple[str, int]) -> SocketAddress:
    host = ip_address(found[0])
    return SocketAddress(getattr(host, "ipv4_mapped", None) or host, found[1])
