"""AMQP over WebSocket: the handshake, and the frames between the socket and an AMQP connection.

Invariant: AMQP is the stream of all payloads. It does not depend on where frames and messages begin and end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from websockets.frames import CloseCode, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sbpair.amqp_server.admission import HEAD_SECONDS, TOO_SLOW
from sbpair.amqp_server.server_connection import CLOSE_SECONDS, MAX_OUTPUT, MAX_READ, AnsweringTransport

if TYPE_CHECKING:
    from websockets.http11 import Request, Response

logger = logging.getLogger(__name__)

SUBPROTOCOLS: Final = (Subprotocol("AMQPWSB10"), Subprotocol("amqp"))
"""The name in drafts of the AMQP WebSocket binding, and the registered one. The first is preferred."""

MAX_MESSAGE: Final = 4_194_304
MAX_PAYLOAD: Final = 65_536
"""Payload of one frame sent. Several clients limit the size of a message that they accept."""

_quiet = logging.getLogger(f"{__name__}.frames")
# The library logs headers and payloads, and they could hold a token or a key.
_quiet.setLevel(logging.CRITICAL)


class WebSocketFrontend(AnsweringTransport, asyncio.Protocol):
    """The protocol of the socket's transport and, after the handshake, the transport of an AMQP connection.

    `refusal_of` returns why a web page may have sent a handshake, from its values of `Host` and `Origin`.
    """

    def __init__(
        self,
        amqp: asyncio.Protocol,
        refusal_of: Callable[[Sequence[str], Sequence[str]], str] = lambda _hosts, _origins: "",
    ) -> None:
        super().__init__()
        self._amqp = amqp
        self._refusal_of = refusal_of
        self._above: asyncio.Protocol | None = None
        self._frames = ServerProtocol(subprotocols=SUBPROTOCOLS, max_size=MAX_MESSAGE, logger=_quiet)
        self._held: list[bytes] | None = None

    # Protocol of the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.max_size = MAX_READ  # type: ignore[attr-defined]
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(HEAD_SECONDS, self._send, [TOO_SLOW, b""])

    def data_received(self, data: bytes) -> None:
        if self._above is None:
            self._handshake(data)
            return
        if self._held is not None:
            self._held.append(data)
            return
        frames = self._frames
        was_open = frames.state is State.OPEN
        frames.receive_data(data)
        payloads = []
        received: list[Any] = frames.events_received()
        for frame in received:
            if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
                payloads.append(frame.data)
            elif frame.opcode is Opcode.TEXT:
                frames.fail(CloseCode.UNSUPPORTED_DATA, "AMQP needs binary frames")
                break
        if answers := frames.data_to_send():
            self._send(answers)
            if self._transport.get_write_buffer_size() > MAX_OUTPUT:
                # The client sends pings and reads no pongs. The AMQP connection resumes with `resume_writing`.
                self._transport.pause_reading()
        if payloads and was_open:
            self._above.data_received(b"".join(payloads))

    def _handshake(self, data: bytes) -> None:
        frames = self._frames
        frames.receive_data(data)
        events, answer = frames.events_received(), frames.data_to_send()
        if len(events) == 1 and not answer:
            frames.send_response(self._answer(cast("Request", events[0])))
            answer = frames.data_to_send()
        elif events or answer == [b""]:
            # Frames came before the answer, or invalid HTTP, to which the library has no answer.
            answer = [frames.reject(HTTPStatus.BAD_REQUEST, "This is not a WebSocket handshake.\n").serialize(), b""]
        self._send(answer)
        if frames.state is State.OPEN:
            self._deadline.cancel()
            self._above = self._amqp
            self._above.connection_made(self)
        elif answer:
            logger.info("Refused a WebSocket with status %s.", answer[0].split(b" ", 2)[1].decode())

    def _answer(self, request: Request) -> Response:
        headers = request.headers
        reason = self._refusal_of(headers.get_all("Host"), headers.get_all("Origin"))
        if not reason:
            return self._frames.accept(request)
        refusal = self._frames.reject(HTTPStatus.FORBIDDEN, f"{reason}\n")
        refusal.reason_phrase = reason
        return refusal

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        if self._above is not None:
            self._above.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    def _send(self, pieces: list[bytes]) -> None:
        """Write pieces of output; an empty one, the last, ends the connection."""
        self._transport.write(b"".join(pieces))
        if pieces and not pieces[-1]:
            self._transport.close()
            self._limit_close()

    def _limit_close(self) -> None:
        self._deadline.cancel()
        self._deadline = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    # Transport of the connection

    def write(self, data: Any) -> None:
        frames = self._frames
        if frames.state is State.OPEN:
            rest = memoryview(data)
            while rest:
                frames.send_binary(rest[:MAX_PAYLOAD])
                rest = rest[MAX_PAYLOAD:]
                self._transport.write(b"".join(frames.data_to_send()))

    def close(self) -> None:
        """Send a close frame; the client's ends the connection, or the time for it."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._send(self._frames.data_to_send())
            self._transport.resume_reading()
            self._limit_close()

    def is_closing(self) -> bool:
        return self._frames.state is not State.OPEN or self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    # For faults

    def drop(self) -> None:
        self._transport.close()

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        held, self._held = self._held, None
        self.data_received(b"".join(held or []))
