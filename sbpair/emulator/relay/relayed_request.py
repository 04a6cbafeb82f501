"""An HTTP request on its way through a listener, and the answer on its way back, in constant memory.

A small request goes over the control channel, any other over a rendezvous connection. The listener may answer over
either. Invariant: a request gets one answer, from the listener that got the request, or a refusal.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import hdrs, web
from websockets.frames import Opcode

from sbpair.emulator.relay.frame_connection import FrameConnection, FrameUser, Handshake, cut_off, remote_endpoint
from sbpair.emulator.relay.relay_messages import (
    NOT_RELAYED,
    MessageInvalid,
    RelayRefused,
    RelayTarget,
    ResponseHead,
    joined_headers,
    read_message,
    read_response,
    response_invalid,
)

if TYPE_CHECKING:
    from websockets.frames import Frame

    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.relay.listener_channel import ListenerChannel

RESPONSE_MS: Final = 60_000
NOT_ANSWERED: Final = (
    504,
    "GatewayTimeout",
    "The request was routed to the listener but the listener did not respond in the required time.",
)
MAX_INLINE: Final = 64 * 1024
MAX_HEAD: Final = 256 * 1024
MAX_WAITING: Final = 256 * 1024
"""Bytes of an answer that wait for the sender, before the listener is held back."""


class BodyStream(asyncio.StreamReader):
    """The body of an answer. It holds its connection back while the sender reads too slowly."""

    def __init__(self, connection: FrameConnection) -> None:
        super().__init__(limit=MAX_WAITING // 2, loop=asyncio.get_running_loop())
        self.set_transport(cast("asyncio.Transport", connection))
        self._is_complete = False

    def feed(self, data: bytes, *, is_last: bool) -> None:
        self.feed_data(data)
        if is_last:
            self._is_complete = True
            self.feed_eof()

    def fail(self, error: Exception) -> None:
        """Let `read` raise an error, unless the body is complete."""
        if not self._is_complete:
            self.set_exception(error)


class RelayedRequest:
    """One request of a sender. `sent_inline` is its body, if it goes over the control channel."""

    def __init__(
        self, namespace: Namespace, request: web.BaseRequest, target: RelayTarget, identity: str, path: str
    ) -> None:
        self.path = path
        self._request = request
        self._target = target
        self._identity = identity
        self._via = f"1.1 {namespace.name.lower()}.servicebus.windows.net"
        self._points = namespace.fault_points
        self._answer: asyncio.Future[tuple[ResponseHead, bytes | BodyStream]]
        self._answer = asyncio.get_running_loop().create_future()
        self._document: dict[str, Any] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._rendezvous: Rendezvous | None = None
        self._body: BodyStream | None = None
        self._deadline = namespace.deadline(RESPONSE_MS, self._on_deadline)

    # To the listener

    async def relay(
        self, channel: ListenerChannel, body: bytes | None, *, without: frozenset[str]
    ) -> web.StreamResponse:
        """Pass the request on, and return the answer. `body` is None for one that needs a rendezvous."""
        address = channel.rendezvous(self._target.with_query, "request", self._identity)
        document = self._described(body != b"", without)
        if body is not None:
            channel.requests[self._identity] = self
            channel.send({"request": {"address": address, **document}}, body or None)
        else:
            self._document = document
            channel.send({"request": {"address": address}})
        try:
            head, answer = await self._answer
            return await self._respond(head, answer)
        finally:
            self._deadline.cancel()
            channel.requests.pop(self._identity, None)
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.gather(self._sending, return_exceptions=True)
            if self._rendezvous is not None:
                self._rendezvous.connection.close()
                # It refers back: the garbage collector would have to find it.
                self._rendezvous = None

    def _described(self, has_body: bool, without: frozenset[str]) -> dict[str, Any]:
        headers = joined_headers(self._request.headers.items(), NOT_RELAYED | without)
        name = next((name for name in headers if name.lower() == "via"), hdrs.VIA)
        headers[name] = f"{headers[name]}, {self._via}" if name in headers else self._via
        return {
            "id": self._identity,
            "requestTarget": self._target.with_query,
            "method": self._request.method,
            "remoteEndpoint": remote_endpoint(self._request),
            "requestHeaders": headers,
            "body": has_body,
        }

    async def _send_body(self, connection: FrameConnection) -> None:
        """Send the body to the listener's rendezvous connection."""
        opcode = Opcode.BINARY
        try:
            async for part in self._request.content.iter_any():
                await connection.drain()
                connection.send(opcode, part, fin=False)
                opcode = Opcode.CONT
                self._deadline.postpone()
            connection.send(opcode, b"")
        except (ConnectionError, web.RequestPayloadError):
            # Either end has gone. The listener's body stays incomplete: it must not take it for the whole.
            connection.abort()

    # From the listener

    def meet(self, handshake: Handshake) -> None:
        """Answer the listener's handshake for a rendezvous connection."""
        self._rendezvous = Rendezvous(self, handshake)
        if self._document is not None:
            connection = self._rendezvous.connection
            connection.send(Opcode.TEXT, json.dumps({"request": self._document}).encode())
            # Not in a task group: it would wrap a refusal.
            self._sending = asyncio.create_task(self._send_body(connection), name="send a relayed request's body")

    def check_id(self, head: ResponseHead) -> None:
        """Raise MessageInvalid if a response is one to another request."""
        if head.request_id != self._identity:
            raise MessageInvalid("requestId is not that of the request")

    @property
    def is_met(self) -> bool:
        return self._rendezvous is not None or self._answer.done()

    def respond(self, head: ResponseHead, body: bytes | BodyStream) -> None:
        """Take the listener's answer; another one is dropped, as is one that a fault swallows."""
        if self._answer.done():
            return
        if self._points.hit("relay-swallow-response", self.path) is not None:
            return
        if isinstance(body, BodyStream):
            self._body = body
        self._deadline.postpone()
        self._answer.set_result((head, body))

    def fail(self, error: RelayRefused) -> None:
        """Refuse the request, or end the answer that has begun without completing it."""
        if not self._answer.done():
            self._answer.set_exception(error)
        elif self._body is not None:
            self._body.fail(error)

    def break_off(self) -> None:
        """End the sender's connection without an answer."""
        cut_off(self._request)
        self.fail(RelayRefused(*NOT_ANSWERED))

    def _on_deadline(self) -> None:
        if self._answer.done():
            # The sender may be the one that is silent: it does not read.
            cut_off(self._request)
        self.fail(RelayRefused(*NOT_ANSWERED))

    # To the sender

    async def _respond(self, head: ResponseHead, body: bytes | BodyStream) -> web.StreamResponse:
        has_body = self._request.method != "HEAD" and head.status not in (204, 304)
        response: web.StreamResponse
        if has_body and isinstance(body, bytes):
            # aiohttp writes the head and the body of this kind at once.
            response = web.Response(status=head.status, reason=head.reason, body=body)
        else:
            response = web.StreamResponse(status=head.status, reason=head.reason)
        for name, value in head.headers:
            if name.lower() != "content-length":
                response.headers.add(name, value)
            elif value.isascii() and value.isdigit() and len(value) < 16 and not isinstance(response, web.Response):
                response.content_length = int(value)
        if self._points.hit("relay-without-via", self.path) is None:
            before = response.headers.popall(hdrs.VIA, [])
            response.headers[hdrs.VIA] = ", ".join([*before, self._via])
        await response.prepare(self._request)
        if has_body and isinstance(body, BodyStream):
            try:
                await self._write(response, body)
            except RelayRefused:
                # The answer has begun: only a broken connection tells the sender that it is not complete.
                cut_off(self._request)
        elif has_body:
            await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, body: BodyStream) -> None:
        """Write the body. Raises RelayRefused if it is incomplete, or is not of its declared length."""
        size = 0
        while part := await body.read(MAX_INLINE):
            size += len(part)
            self._deadline.postpone()
            await response.write(part)
            self._deadline.postpone()
        if response.content_length not in (None, size):
            raise response_invalid("its body is not of the declared length")


class Rendezvous(FrameUser):
    """A listener's connection for one request: it carries the request, if that is large, and the answer."""

    def __init__(self, request: RelayedRequest, handshake: Handshake) -> None:
        self._request = request
        self._parts: list[bytes] = []
        self._size = 0
        self._body: BodyStream | None = None
        self._has_head = False
        self.connection = handshake.accept(self, next(iter(handshake.protocols), None))

    # FrameUser

    def on_frame(self, frame: Frame) -> None:
        if not self._has_head:
            self._take_head(frame)
        elif self._body is not None and frame.opcode is Opcode.TEXT:
            self._refuse("the body of the response is missing")
        elif self._body is not None:
            self._body.feed(bytes(frame.data), is_last=frame.fin)
            if frame.fin:
                # A connection carries one response: what follows is dropped.
                self._body = None

    def _take_head(self, frame: Frame) -> None:
        self._parts.append(bytes(frame.data))
        self._size += len(frame.data)
        if self._size > MAX_HEAD or frame.opcode is Opcode.BINARY:
            self._refuse("a response message is expected")
        elif frame.fin:
            try:
                head = read_response(read_message(b"".join(self._parts)).get("response"))
                self._request.check_id(head)
            except MessageInvalid as error:
                self._refuse(str(error))
                return
            self._parts.clear()
            self._has_head = True
            body: bytes | BodyStream = b""
            if head.has_body:
                body = self._body = BodyStream(self.connection)
            self._request.respond(head, body)

    def _refuse(self, text: str) -> None:
        self._has_head, self._body = True, None
        self._request.fail(response_invalid(text))
        self.connection.close(1008, f"The message of the listener is not valid: {text}.")

    def on_end(self, code: int, reason: str) -> None:
        del code, reason
        # Without effect after a complete answer.
        self._request.fail(response_invalid("the rendezvous connection ended before its end"))


async def read_inline(request: web.BaseRequest, header_bytes: int) -> bytes | None:
    """Return the body of a request that is small enough for the control channel, or None."""
    await _continue(request)
    length, content = request.content_length, request.content
    if not request.body_exists:
        return b""
    if length is not None:
        if header_bytes + length > MAX_INLINE:
            return None
        return await content.readexactly(length)
    # Chunked: small enough if all of it is there already.
    return content.read_nowait() if content.is_eof() and content.total_bytes + header_bytes <= MAX_INLINE else None


async def _continue(request: web.BaseRequest) -> None:
    """Ask the sender for the body, if it waits to be asked."""
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
