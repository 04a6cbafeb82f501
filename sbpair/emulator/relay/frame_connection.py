"""WebSocket connections, frame by frame: taken over from the HTTP server, with back-pressure both ways.

Frames keep their boundaries, so that a message of any length passes in constant memory. Pings are answered here.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from sbpair.emulator.relay.relay_messages import url_invalid

if TYPE_CHECKING:
    from aiohttp import web
    from websockets.http11 import Response

MAX_FRAME: Final = 128 * 1024 * 1024
CLOSE_SECONDS: Final = 10.0
ABNORMAL: Final = 1006
NO_STATUS: Final = 1005
_MAX_PONGS: Final = 256 * 1024
_MAX_UNWRITTEN: Final = 64 * 1024
_PROTOCOL_HEADER: Final = "Sec-WebSocket-Protocol"

_quiet = logging.getLogger(f"{__name__}.frames")
# The library logs headers and payloads, and they could hold a token or a key.
_quiet.setLevel(logging.CRITICAL)


class FrameUser(ABC):
    """The receiver of a connection's frames: those of text and binary messages, and their continuations."""

    @abstractmethod
    def on_frame(self, frame: Frame) -> None: ...

    @abstractmethod
    def on_end(self, code: int, reason: str) -> None:
        """React to the end, once: the peer's close code, or ABNORMAL where it sent none."""

    def on_writable(self, *, writable: bool) -> None:  # noqa: B027  # most wait for `drain`
        """React to the send buffer being full (False), and to it having room again."""


class Handshake:
    """A WebSocket handshake that has not been answered yet."""

    def __init__(self, request: web.BaseRequest, max_message: int | None = None) -> None:
        """Check a handshake. Raises RelayRefused if it is not valid."""
        self.request = request
        # Open from the start: its parser would read the handshake itself otherwise.
        self._protocol = ServerProtocol(state=State.OPEN, max_size=(max_message, MAX_FRAME), logger=_quiet)
        headers = Headers(request.headers.items())
        self._response: Response = self._protocol.accept(Request(request.raw_path, headers, request.method))
        if self._response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            raise url_invalid("The request is not a WebSocket handshake of version 13.")
        self.protocols = [
            each.strip() for value in request.headers.getall(_PROTOCOL_HEADER, ()) for each in value.split(",")
        ]

    @property
    def is_waiting(self) -> bool:
        """Whether the peer still waits for the answer."""
        transport = self.request.transport
        return transport is not None and not transport.is_closing()

    def accept(self, user: FrameUser, subprotocol: str | None = None) -> FrameConnection:
        """Answer the handshake, and take the connection over from the HTTP server."""
        if subprotocol:
            self._response.headers[_PROTOCOL_HEADER] = subprotocol
        transport, early = take_over(self.request)
        self._protocol.writes.append(self._response.serialize())
        connection = FrameConnection(self._protocol, transport, user)
        transport.set_protocol(connection)
        if early:
            # Before anything that is read from now on.
            asyncio.get_running_loop().call_soon(connection.data_received, early)
        transport.resume_reading()
        return connection


def take_over(request: web.BaseRequest) -> tuple[asyncio.Transport, bytes]:
    """Return the transport of a request, and what came after its head.

    The HTTP server forgets the connection, as if it was lost. Raises ConnectionResetError if it was lost.
    """
    http = request.protocol
    if http.transport is None:
        raise ConnectionResetError
    transport = http.transport
    # aiohttp keeps it for upgrades of its own.
    early: bytes = getattr(http, "_message_tail", b"")
    http.transport = None
    http.connection_lost(None)
    return transport, early


def cut_off(request: web.BaseRequest) -> None:
    """End the connection of a request without an answer."""
    if request.transport is not None:
        request.transport.abort()


def remote_endpoint(request: web.BaseRequest) -> dict[str, Any]:
    """Return the address of a request's sender, as messages to listeners have it."""
    peer = (request.transport and request.transport.get_extra_info("peername")) or ("", 0)
    return {"address": peer[0], "port": peer[1]}


class LostTransport(asyncio.Transport):
    """The transport of a connection that was lost: nothing has an effect.

    asyncio's own fails if it is aborted after a flush closed it, and would be kept by whatever keeps the connection.
    """

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None: ...
    def close(self) -> None: ...
    def resume_reading(self) -> None: ...


class FrameConnection(asyncio.Protocol):
    """An open WebSocket. What is sent in one turn of the event loop is written at its end, at once."""

    def __init__(self, frames: ServerProtocol, transport: asyncio.Transport, user: FrameUser) -> None:
        self.user = user
        self._frames = frames
        self._transport = transport
        self._limit: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._unwritten = 1
        self._has_ended = False
        # The answer to the handshake waits.
        asyncio.get_running_loop().call_soon(self._flush)

    @property
    def is_open(self) -> bool:
        return self._frames.state is State.OPEN and not self._transport.is_closing()

    # Sending

    def send(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> None:
        """Send a frame; one for a connection that is closing is dropped."""
        if not self.is_open:
            return
        self._frames.send_frame(Frame(opcode, data, fin))
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unwritten += len(data) + 1
        if self._unwritten > _MAX_UNWRITTEN:
            self._flush()

    async def drain(self) -> None:
        """Wait until the send buffer has room. Raises ConnectionResetError if the connection ends."""
        if self.is_open:
            await self._writable.wait()
        if not self.is_open:
            raise ConnectionResetError

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Send a close frame. The peer's answer ends the connection, or the time for it."""
        if not self.is_open:
            return
        if code == NO_STATUS:
            self._frames.send_close()
        else:
            self._frames.send_close(code, reason.encode()[:123].decode(errors="ignore"))
        self._flush()
        self._transport.resume_reading()
        self._limit_close()

    def abort(self) -> None:
        """End the connection without a close frame."""
        self._flush()
        self._transport.abort()

    def pause_reading(self) -> None:
        """Stop reading: the peer feels it."""
        if self.is_open:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _flush(self) -> None:
        self._unwritten = 0
        pieces = self._frames.data_to_send()
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))
            if not pieces[-1]:
                self._end_stream()

    def _end_stream(self) -> None:
        """End the stream after a close frame. The peer still has time to read it: unread input would reset it."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
            self._limit_close()
        else:
            self._transport.close()

    def _limit_close(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            # The peer's close frame has come; what follows is dropped.
            return
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            frame = cast("Frame", event)
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self.user.on_frame(frame)
            elif frame.opcode is Opcode.PING and self._transport.get_write_buffer_size() > _MAX_PONGS:
                # The peer sends pings and reads no pongs.
                self._transport.abort()
        self._flush()
        if self._frames.close_rcvd is not None:
            self._end(self._frames.close_rcvd.code, self._frames.close_rcvd.reason)
        elif self._frames.parser_exc is not None:
            self._end(ABNORMAL, "")

    def connection_lost(self, exc: BaseException | None) -> None:
        del exc
        self._transport = LostTransport()
        if self._limit is not None:
            self._limit.cancel()
        self._end(ABNORMAL, "")
        # Both refer back.
        del self.user
        self._frames.parser.close()
        self._writable.set()

    def _end(self, code: int, reason: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.user.on_end(code, reason)

    def pause_writing(self) -> None:
        self._writable.clear()
        self.user.on_writable(writable=False)

    def resume_writing(self) -> None:
        self._writable.set()
        self.user.on_writable(writable=True)
