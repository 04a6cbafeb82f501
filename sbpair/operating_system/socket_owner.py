"""The users whose programs have opened the TCP sockets of this machine, as Linux knows them; see sock_diag(7)."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

_REQUEST: Final = struct.Struct("=IHHII BBBBI")
"""Head of a netlink message, and family, protocol, extensions, padding and states of `inet_diag_req_v2`."""

_ADDRESSES: Final = struct.Struct("!HH16s16s")
_ANSWER: Final = struct.Struct("=IHHII BB 62x I")
"""The same head, and family, state and user of `inet_diag_msg`."""

_BY_FAMILY: Final = 20
_SOCK_DIAG: Final = 4
_ESTABLISHED: Final = 1
_ANY_STATE: Final = (1 << 32) - 1
_ANY_COOKIE: Final = bytes(4) + b"\xff" * 8
"""Any interface, and any cookie."""


class SocketAddress(NamedTuple):
    """An end of a connection; of an IPv4 address in IPv6, the former."""

    host: IPv4Address | IPv6Address
    port: int


class KnownSocket(NamedTuple):
    """A socket that Linux knows. The `user` of one that is not `open` may be root in place of its own."""

    user: int
    open: bool

    @property
    def is_own(self) -> bool:
        """Whether it is a socket of this process's user."""
        return sys.platform != "win32" and self.user == os.geteuid()


def find_socket(local: SocketAddress, remote: SocketAddress) -> KnownSocket | None:
    """Return the socket with these ends; None if it does not exist, or the system does not know it."""
    if sys.platform != "linux":
        return None
    family = socket.AF_INET if local.host.version == 4 else socket.AF_INET6
    size = _REQUEST.size + _ADDRESSES.size + len(_ANY_COOKIE)
    request = _REQUEST.pack(size, _BY_FAMILY, 1, 0, 0, family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
    request += _ADDRESSES.pack(local.port, remote.port, local.host.packed, remote.host.packed) + _ANY_COOKIE
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
        asking.setblocking(False)  # the answer is there once the request is sent
        asking.send(request)
        answer = asking.recv(4096)
        if len(answer) >= _ANSWER.size:
            _, kind, _, _, _, _, state, user = _ANSWER.unpack_from(answer)
            return KnownSocket(user, state == _ESTABLISHED) if kind == _BY_FAMILY else None
    return None
