"""AMQP over WebSocket: the handshake, and the frames between a socket and the protocol of a stream.

Invariant: AMQP is the stream of all payloads. It does not depend on where frames and messages begin and end.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from sbpair.errors import NetworkRefused, SbpairError, Unreachable
from sbpair.http_tunnel import open_connection
from sbpair.model.connect_errors import DOCTOR_HINT

if TYPE_CHECKING:
    from ssl import SSLContext

    from sbpair.model.pair import Endpoint

PATH = "/$servicebus/websocket"
SUBPROTOCOL = Subprotocol("AMQPWSB10")
MAX_MESSAGE = 16 * 1024 * 1024
MAX_PAYLOAD = 65_536
"""Payload of one frame sent: a server may limit messages to the size of an AMQP frame."""

_quiet = logging.getLogger(f"{__name__}.frames")
# The library logs headers and payloads, and they could hold a token or a key.
_quiet.setLevel(logging.CRITICAL)


async def open_websocket(
    endpoint: Endpoint, stream: asyncio.Protocol, context: SSLContext | None, name: str | None
) -> None:
    """Connect, through a proxy if the endpoint has one, and give the stream its transport after the handshake.

    Raises OSError, Unreachable, NetworkRefused; UsageError for a malformed proxy.
    """
    _, writer = await open_connection(endpoint.host, endpoint.amqp_port, endpoint.amqp_proxy(), context, name)
    socket = WebSocket(endpoint, stream, writer)
    try:
        # The server sends nothing before the handshake: the reader holds no bytes.
        writer.transport.set_protocol(socket)
        socket.connection_made(writer.transport)
        await socket.opened
    except BaseException:
        writer.transport.abort()
        raise


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """The protocol of the socket's transport and, after the handshake, the transport of a stream."""

    def __init__(self, endpoint: Endpoint, stream: asyncio.Protocol, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        scheme = "wss" if endpoint.tls else "ws"
        uri = parse_uri(f"{scheme}://{endpoint.authority}{PATH}")
        self._frames = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=MAX_MESSAGE, logger=_quiet)
        self._address = endpoint.amqp_address
        self._stream = stream
        self._writer = writer  # it closes the transport when it is deleted
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # Protocol of the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # The library keeps what it has not parsed in one buffer: a small one costs less.
        self._transport.max_size = MAX_PAYLOAD  # type: ignore[attr-defined]
        request = self._frames.connect()
        request.headers["User-Agent"] = "sbpair"
        self._frames.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        self._on_events()

    def eof_received(self) -> None:
        self._frames.receive_eof()
        self._on_events()

    def _on_events(self) -> None:
        frames, size = self._frames, 0
        payloads: list[bytes | bytearray | memoryview] = []
        for event in frames.events_received():
            if not isinstance(event, Frame):
                self._on_response()
            elif event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                payloads.append(event.data)
                size += len(event.data)
                if size >= MAX_PAYLOAD:
                    self._pass_on(payloads)
                    size = 0
            elif event.opcode is Opcode.TEXT:
                frames.fail(CloseCode.UNSUPPORTED_DATA, "AMQP needs binary frames")
        self._pass_on(payloads)
        self._flush()
        if frames.state > State.OPEN or frames.handshake_exc is not None:
            self._transport.close()

    def _pass_on(self, payloads: list[bytes | bytearray | memoryview]) -> None:
        """Give the payloads to the stream: small ones together, and no copy of a large one."""
        if payloads:
            self._stream.data_received(bytes(payloads[0]) if len(payloads) == 1 else b"".join(payloads))
            payloads.clear()

    def _on_response(self) -> None:
        if self._frames.state is State.OPEN and not self.opened.done():
            self.opened.set_result(None)
            self._stream.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(exc or _handshake_error(self._address, self._frames.handshake_exc))
            return
        closed = self._frames.close_rcvd
        if exc is None and closed is not None and closed.code != CloseCode.NORMAL_CLOSURE:
            exc = ConnectionError(f"the server ended the WebSocket with code {closed.code:d}")
        self._stream.connection_lost(exc)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    def _flush(self) -> None:
        pieces = self._frames.data_to_send()
        # Large pieces are not joined: to allocate their sum takes longer than to write them.
        if len(pieces) > 1 and sum(map(len, pieces)) <= MAX_PAYLOAD:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            if piece and not self._transport.is_closing():
                self._transport.write(piece)

    # Transport of the stream

    def write(self, data: Any) -> None:
        if self._frames.state is State.OPEN:
            view = memoryview(data)
            for start in range(0, len(data), MAX_PAYLOAD):
                self._frames.send_binary(view[start : start + MAX_PAYLOAD])
            self._flush()

    def close(self) -> None:
        """Send a close frame, and close the socket without waiting for the server's."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._frames.state is not State.OPEN or self._transport.is_closing()


def _handshake_error(address: str, error: Exception | None) -> SbpairError:
    if not isinstance(error, InvalidStatus):
        ended = isinstance(getattr(error, "__cause__", None), EOFError)
        problem = "closed the connection during the handshake" if ended else "does not speak AMQP"
        return Unreachable(f"the WebSocket server at {address} {problem}", hint=_HINT)
    status = error.response.status_code
    known = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    what = f"the server at {address} refuses WebSockets: {status} {known}".rstrip()
    refused = status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    return NetworkRefused(what, hint=_HINT) if refused else Unreachable(what, hint=_HINT)


_HINT = f"check the namespace's address and firewall, and the proxy, if any{DOCTOR_HINT}"
