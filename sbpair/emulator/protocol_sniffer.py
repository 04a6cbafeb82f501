"""One port for everything: the first bytes of a connection say which door it wants, and the door takes it over.

A peer that says nothing, says it too slowly, or says something else loses its own connection and nothing more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable

Door: TypeAlias = Literal["amqp", "http", "tls"]

SILENCE_LIMIT_SECONDS: Final = 30.0
OPENINGS: Final[dict[bytes, Door]] = {
    b"AMQP": "amqp",
    b"GET ": "http",
    b"PUT ": "http",
    b"POST": "http",
    b"DELE": "http",
    b"HEAD": "http",
    b"PATC": "http",
    b"OPTI": "http",
}


TLS_HANDSHAKE: Final = b"\x16\x03"


def may_be_a_door(first: bytes) -> bool:
    """Whether something that starts so can still turn out to be for one of the doors."""
    return TLS_HANDSHAKE.startswith(first[:2]) or any(opening.startswith(first[:4]) for opening in OPENINGS)


def door_of(first: bytes) -> Door | None:
    return "tls" if first.startswith(TLS_HANDSHAKE) else OPENINGS.get(first[:4])


class ProtocolSniffer(asyncio.Protocol):
    """Reads just enough to know the door, then hands it the transport and all that was read.

    `open_door` makes the door's own protocol, or None where it is closed: the namespace is down, there is no TLS.
    """

    def __init__(
        self,
        open_door: Callable[[Door], asyncio.Protocol | None],
        connected: Callable[[asyncio.Transport], None],
        *,
        limit_seconds: float = SILENCE_LIMIT_SECONDS,
    ) -> None:
        self._open_door = open_door
        self._connected = connected
        self._limit_seconds = limit_seconds
        self._seen = b""
        self._transport: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # a stream server makes no other
        self._transport = transport
        self._connected(transport)
        self._limit = asyncio.get_running_loop().call_later(self._limit_seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if len(self._seen) < 4 and may_be_a_door(self._seen):
            return
        self._end_limit()
        door = door_of(self._seen)
        self._hand_over(None if door is None else self._open_door(door))

    def _hand_over(self, protocol: asyncio.Protocol | None) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if protocol is None:
            transport.abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        # A fault may have put itself in front of the door.
        cast("asyncio.Protocol", transport.get_protocol()).data_received(self._seen)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._end_limit()
        self._transport = None

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
