"""Protocol detection: the first bytes of a connection select AMQP, HTTP or TLS on one shared port.

A peer that sends nothing, sends too slowly or sends anything else loses its own connection only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable

WireProtocol: TypeAlias = Literal["amqp", "http", "tls"]

SILENCE_LIMIT_SECONDS: Final = 30.0
OPENINGS: Final[dict[bytes, WireProtocol]] = {
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


def may_be_known(first: bytes) -> bool:
    """Return whether more bytes could still make `first` a known opening."""
    return TLS_HANDSHAKE.startswith(first[:2]) or any(opening.startswith(first[:4]) for opening in OPENINGS)


def protocol_of(first: bytes) -> WireProtocol | None:
    return "tls" if first.startswith(TLS_HANDSHAKE) else OPENINGS.get(first[:4])


class ProtocolSniffer(asyncio.Protocol):
    """Detector of a connection's protocol, which then passes the transport and the bytes read to its frontend.

    `make_frontend` returns the frontend, or None to refuse: the namespace is down, or TLS is not enabled.
    """

    def __init__(
        self,
        make_frontend: Callable[[WireProtocol], asyncio.Protocol | None],
        on_connected: Callable[[asyncio.Transport], None],
        *,
        limit_seconds: float = SILENCE_LIMIT_SECONDS,
    ) -> None:
        self._make_frontend = make_frontend
        self._on_connected = on_connected
        self._limit_seconds = limit_seconds
        self._seen = b""
        self._transport: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # a stream server makes no other
        self._transport = transport
        self._on_connected(transport)
        self._limit = asyncio.get_running_loop().call_later(self._limit_seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if len(self._seen) < 4 and may_be_known(self._seen):
            return
        self._end_limit()
        protocol = protocol_of(self._seen)
        self._hand_over(None if protocol is None else self._make_frontend(protocol))

    def _hand_over(self, frontend: asyncio.Protocol | None) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if frontend is None:
            transport.abort()
            return
        transport.set_protocol(frontend)
        frontend.connection_made(transport)
        # A fault may have inserted itself before the frontend.
        cast("asyncio.Protocol", transport.get_protocol()).data_received(self._seen)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._end_limit()
        self._transport = None

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
