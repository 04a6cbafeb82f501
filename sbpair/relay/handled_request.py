"""Requests of senders for the handlers of a listener: HTTP requests and their answers, WebSockets and their acceptance.

A small answer goes over the control channel. One that is large or slow, and one whose channel has ended, goes over a
rendezvous connection. Invariant: an accepted request is answered, or its answer is reported as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp
from websockets.exceptions import ConnectionClosed, WebSocketException

from sbpair.errors import AccessError, EntityMissing, SbpairError, Unavailable, Unreachable, UsageError
from sbpair.model.connect_errors import CONNECT_SECONDS
from sbpair.model.pair import Side
from sbpair.relay.body_parts import BodyParts
from sbpair.relay.control_messages import (
    MAX_INLINE,
    Body,
    RelayAnswer,
    RelayMessageInvalid,
    RequestMessage,
    read_control,
    renewal_message,
    response_head,
    response_message,
)
from sbpair.relay.events import RelayAnswerLost, RelayRequestFailed
from sbpair.relay.relay_connections import (
    LOST,
    RelayClock,
    TimeLimit,
    http_options,
    one_line,
    open_frames,
    open_socket,
    send_message,
)
from sbpair.relay.relay_endpoint import RelayEndpoint, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from websockets.asyncio.client import ClientConnection

    from sbpair.relay.control_messages import AcceptMessage
    from sbpair.relay.events import RelayReporter

BUFFER_SECONDS: Final = 2.0
"""How long a streamed answer is collected for the control channel."""

ANSWER_SECONDS: Final = 60.0
"""Time of a handler, and of a pause within a streamed answer: the service waits no longer."""

FRAGMENT: Final = 64 * 1024
MAX_WHOLE: Final = 256 * 1024
"""Larger bodies are sent in fragments."""

CONFIRM_SECONDS: Final = 0.05
"""How long answers wait for the ping that all of them share."""

REJECTED: Final = 410
"""The service's answer to a listener that rejects: it has worked."""

log = logging.getLogger(__name__)


class RelayRequest:
    """An HTTP request for a handler. Iterate over it for the body, or `read` it whole.

    `target` has path and query of the sender, with the path of the endpoint. Values of a repeated header are joined.
    """

    def __init__(self, message: RequestMessage, side: Side, body: bytes | AsyncIterator[bytes]) -> None:
        self.side = side
        self.request_id = message.request_id
        self.method = message.method
        self.target = message.target
        self.headers: Mapping[str, str] = message.headers
        self.remote = message.remote
        self._body = body

    @property
    def is_streamed(self) -> bool:
        """Whether the body arrives in parts; otherwise all of it is here."""
        return not isinstance(self._body, bytes)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the parts of the body. Raises Unreachable if it ends too soon."""
        if isinstance(self._body, bytes):
            if self._body:
                yield self._body
        else:
            async for part in self._body:
                yield part

    async def read(self) -> bytes:
        """Return the whole body. Raises Unreachable if it ends too soon."""
        return b"".join([part async for part in self])


RelayHandler = Callable[[RelayRequest], Awaitable[RelayAnswer]]


class ControlChannel:
    """One control channel. Answers that the service has not confirmed by a pong go by rendezvous when it ends."""

    def __init__(
        self,
        socket: ClientConnection,
        side: Side,
        endpoint: RelayEndpoint,
        clock: RelayClock,
        report: RelayReporter,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.socket = socket
        self.side = side
        self.endpoint = endpoint
        self.clock = clock
        self.report = report
        self._spawn = spawn
        self._turn = asyncio.Lock()
        self._unconfirmed: dict[str, tuple[RequestMessage, str, bytes]] = {}
        self._confirming: asyncio.Task[None] | None = None

    async def send_answer(self, request: RequestMessage, text: str, body: bytes) -> bool:
        return await asyncio.shield(asyncio.ensure_future(self._send_answer(request, text, body)))

    async def _send_answer(self, request: RequestMessage, text: str, body: bytes) -> bool:
        """Send head and body as neighbours, whatever becomes of the caller."""
        async with self._turn:
            try:
                await send_message(self.socket, text, body)
            except ConnectionClosed:
                return False
        self._unconfirmed[request.request_id] = (request, text, body)
        if self._confirming is None or self._confirming.done():
            self._confirming = asyncio.create_task(self._confirm(), name="confirm answers of a relay listener")
        return True

    async def _confirm(self) -> None:
        """Forget answers when the pong to a ping behind them has come."""
        with suppress(ConnectionClosed):
            while self._unconfirmed:
                await asyncio.sleep(CONFIRM_SECONDS)
                sent = list(self._unconfirmed)
                async with self._turn:
                    pong = await self.socket.ping()
                await pong
                for request_id in sent:
                    self._unconfirmed.pop(request_id, None)

    async def renew(self, token: str) -> None:
        async with self._turn:
            await self.socket.send(renewal_message(token))

    async def meet(self, address: str) -> ClientConnection:
        """Open a rendezvous connection. Raises SbpairError."""
        if self.endpoint.tls and not address.startswith("wss:"):
            raise Unreachable("a rendezvous address has no TLS", hint="check the service")
        return await open_frames(address, self.endpoint, self.clock)

    def report_lost(self, request_id: str, reason: str) -> None:
        self.report(RelayAnswerLost(self.endpoint.path, self.side, request_id, reason))

    async def leave(self) -> None:
        """Send the answers again that may not have arrived. The service drops one that has."""
        if self._confirming is not None:
            self._confirming.cancel()
            await asyncio.gather(self._confirming, return_exceptions=True)
        for request, text, body in list(self._unconfirmed.values()):
            self._spawn(self._send_again(request, text, body))
        self._unconfirmed.clear()

    async def _send_again(self, request: RequestMessage, text: str, body: bytes) -> None:
        try:
            meeting = await self.meet(request.address)
        except (AccessError, EntityMissing):
            # The address is used up: the service has the answer, or gave it up.
            return
        except SbpairError as error:
            self.report_lost(request.request_id, error.message)
            return
        try:
            await send_message(meeting, text, body)
        except WebSocketException as error:
            self.report_lost(request.request_id, one_line(str(error)))
        finally:
            await meeting.close()


class HandledRequest:
    """One request on its way."""

    def __init__(self, message: RequestMessage, body: bytes, channel: ControlChannel) -> None:
        self._message = message
        self._body = body
        self._channel = channel
        self._meeting: ClientConnection | None = None
        self._sent_body: AsyncIterator[bytes] | None = None

    async def handle(self, handler: RelayHandler) -> None:
        """Give the request to the handler, and send its answer."""
        try:
            body: bytes | AsyncIterator[bytes] = self._body
            if not self._message.method:
                body = await self._fetch()
            answer, head = await self._answer_of(handler, RelayRequest(self._message, self._channel.side, body))
            await self._send(head, answer.body)
        except (SbpairError, RelayMessageInvalid, WebSocketException, OSError) as error:
            self._report_lost(str(error) or type(error).__name__)
        except asyncio.CancelledError:
            self._report_lost("the listener was closed")
            raise
        finally:
            await self._leave()

    async def refuse(self, status: int, reason: str) -> None:
        """Answer without a handler."""

        async def refusal(_request: RelayRequest) -> RelayAnswer:
            return RelayAnswer(status, {"Content-Type": "text/plain"}, reason.encode())

        await self.handle(refusal)
        self._report_failed(status, reason)

    def _report_failed(self, status: int, reason: str) -> None:
        channel = self._channel
        channel.report(
            RelayRequestFailed(channel.endpoint.path, channel.side, self._message.request_id, status, reason)
        )

    def _report_lost(self, reason: str) -> None:
        self._channel.report_lost(self._message.request_id, reason)

    async def _fetch(self) -> bytes | AsyncIterator[bytes]:
        """Fetch the request from its address. Raises SbpairError, RelayMessageInvalid, WebSocketException."""
        address = self._message.address
        self._meeting = await self._channel.meet(address)
        async with TimeLimit(self._channel.clock, ANSWER_SECONDS):
            text = await self._meeting.recv(decode=True)
        message = read_control(text)
        if not isinstance(message, RequestMessage) or not message.method:
            raise RelayMessageInvalid("the rendezvous address has no request")
        self._message = message
        if not message.has_body:
            return b""
        self._sent_body = self._parts(self._meeting)
        return self._sent_body

    async def _parts(self, connection: ClientConnection) -> AsyncIterator[bytes]:
        try:
            async for part in connection.recv_streaming(decode=False):
                if part:
                    yield part
        except ConnectionClosed:
            hint = "answer with an error: the request is not complete"
            raise Unreachable("the body of the request ended too soon", hint=hint) from None

    async def _answer_of(self, handler: RelayHandler, request: RelayRequest) -> tuple[RelayAnswer, dict[str, Any]]:
        """Return the handler's answer, or one for its failure, and the head of it."""
        try:
            async with TimeLimit(self._channel.clock, ANSWER_SECONDS):
                answer = await handler(request)
            return answer, response_head(checked_answer(answer))
        except TimeoutError:
            return self._failed(504, f"the handler returned no answer within {ANSWER_SECONDS:g} s")
        except UsageError as error:
            return self._failed(500, error.message)
        except Exception as error:
            log.exception("the handler of a relay listener failed")
            return self._failed(500, f"the handler failed with {type(error).__name__}")

    def _failed(self, status: int, reason: str) -> tuple[RelayAnswer, dict[str, Any]]:
        self._report_failed(status, reason)
        answer = RelayAnswer(status)
        return answer, response_head(answer)

    # The answer

    async def _send(self, head: dict[str, Any], body: Body) -> None:
        if isinstance(body, bytes):
            await self._send_bytes(head, body)
            return
        parts = BodyParts(body.__aiter__())
        collected: list[bytes] = []
        try:
            if await self._collect(parts, collected):
                await self._send_bytes(head, b"".join(collected))
            else:
                async with aclosing(self._in_time(collected, parts)) as fragments:
                    await self._send_over_rendezvous(head, fragments)
        except Exception as error:
            if error is not parts.error and isinstance(error, (SbpairError, WebSocketException, OSError)):
                raise
            log.exception("the body of an answer failed")
            reason = f"its body failed with {type(error).__name__}"
            if self._meeting is None:
                _, failure = self._failed(500, reason)
                await self._send_bytes(failure, b"")
            else:
                self._report_lost(reason)
        finally:
            await parts.close()

    async def _collect(self, parts: BodyParts, collected: list[bytes]) -> bool:
        """Return True if the whole body has come in time and is small. Raises the errors of its source."""
        size = 0
        try:
            async with TimeLimit(self._channel.clock, BUFFER_SECONDS):
                while size <= MAX_INLINE:
                    part = await parts.next()
                    if part is None:
                        return True
                    collected.append(part)
                    size += len(part)
        except TimeoutError:
            if parts.error is not None:
                raise parts.error from None
        return False

    async def _send_bytes(self, head: dict[str, Any], body: bytes) -> None:
        if self._meeting is None:
            text = response_message(self._message.request_id, head, has_body=bool(body))
            if len(text) + len(body) <= MAX_INLINE and await self._channel.send_answer(self._message, text, body):
                return
        await self._send_over_rendezvous(head, body)

    async def _send_over_rendezvous(self, head: dict[str, Any], body: bytes | AsyncIterator[bytes]) -> None:
        """Send an answer over the connection of its request, or a new one. Raises SbpairError, WebSocketException."""
        if self._meeting is None:
            self._meeting = await self._channel.meet(self._message.address)
        text = response_message(self._message.request_id, head, has_body=body != b"")
        if isinstance(body, bytes) and len(body) <= MAX_WHOLE:
            await send_message(self._meeting, text, body)
        else:
            await self._meeting.send(text)
            await self._meeting.send(_fragments(body) if isinstance(body, bytes) else body)

    async def _in_time(self, collected: list[bytes], parts: BodyParts) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a body in fragments. A pause of the handler fails it."""
        if not collected:
            # The message has to begin, even if no part comes.
            yield b""
        part: bytes | None = b"".join(collected)
        collected.clear()
        while part is not None:
            for fragment in _fragments(part):
                yield fragment
            async with TimeLimit(self._channel.clock, ANSWER_SECONDS):
                part = await parts.next()

    async def _leave(self) -> None:
        if self._meeting is None:
            return
        # The service's close comes behind what the handler has not read of the body.
        discarding = asyncio.create_task(self._discard(), name="discard the rest of a request")
        try:
            await self._meeting.close()
        except asyncio.CancelledError:
            self._meeting.transport.abort()
            raise
        finally:
            discarding.cancel()
            await asyncio.gather(discarding, return_exceptions=True)

    async def _discard(self) -> None:
        if self._sent_body is not None:
            async for _ in self._sent_body:
                pass


def checked_answer(answer: object) -> RelayAnswer:
    """Return the answer of a handler. Raises UsageError if it is none."""
    if isinstance(answer, RelayAnswer) and (isinstance(answer.body, bytes) or hasattr(answer.body, "__aiter__")):
        return answer
    hint = "return RelayAnswer(200, {}, b'...')"
    raise UsageError("a handler returned no RelayAnswer whose body is bytes or an async iterator", hint=hint)


def _fragments(body: bytes) -> Iterator[bytes]:
    return (body[start : start + FRAGMENT] for start in range(0, len(body), FRAGMENT))


class RelayOffer:
    """A WebSocket that a sender wants to open. A handler accepts or rejects it once, within 20 seconds.

    `target` has path and query of the sender, with the path of the endpoint. `headers` are those of its handshake.
    """

    def __init__(
        self,
        message: AcceptMessage,
        side: Side,
        endpoint: RelayEndpoint,
        session: aiohttp.ClientSession,
        clock: RelayClock,
        max_message_bytes: int,
    ) -> None:
        self.side = side
        self.offer_id = message.offer_id
        self.target = target_of(message.address)
        self.headers: Mapping[str, str] = message.headers
        self.protocols = message.protocols
        self.remote = message.remote
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.is_decided = False
        self._address = message.address
        self._endpoint = endpoint
        self._session = session
        self._clock = clock
        self._max_message_bytes = max_message_bytes

    async def accept(self, protocol: str | None = None) -> aiohttp.ClientWebSocketResponse:
        """Open the WebSocket. `protocol` is one of the sender's; by default its first one, "" is none.

        Raises UsageError for another protocol, or after a decision; Unavailable if the sender has gone.
        """
        if protocol and protocol not in self.protocols:
            raise UsageError(f"the sender does not offer {protocol[:40]!r}", hint="choose one of `protocols`")
        self._decide()
        chosen = next(iter(self.protocols), None) if protocol is None else protocol
        try:
            self.socket = await self._meet(self._address, (chosen,) if chosen else ())
        except LOST as error:
            raise self._gone(error) from None
        return self.socket

    async def reject(self, status: int = 400, reason: str = "Rejected by user code") -> None:
        """Refuse the WebSocket: the sender gets `status`, from 400 to 599, and `reason` with its handshake.

        Raises UsageError for another status, or after a decision; Unavailable if the sender has gone.
        """
        if isinstance(status, bool) or not isinstance(status, int) or not 400 <= status <= 599:
            raise UsageError(f"expected a status from 400 to 599, got {str(status)[:40]!r}", hint="400 is the default")
        self._decide()
        text = quote(one_line(reason), safe="")
        join = "&" if "?" in self._address else "?"
        address = f"{self._address}{join}sb-hc-statusCode={status}&sb-hc-statusDescription={text}"
        try:
            socket = await self._meet(address, ())
        except aiohttp.WSServerHandshakeError as error:
            if error.status != REJECTED:
                raise self._gone(error) from None
        except LOST as error:
            raise self._gone(error) from None
        else:
            await socket.close()

    def _decide(self) -> None:
        if self.is_decided:
            raise UsageError("the WebSocket was accepted or rejected before", hint="decide once")
        self.is_decided = True

    async def _meet(self, address: str, protocols: tuple[str, ...]) -> aiohttp.ClientWebSocketResponse:
        options = http_options(self._endpoint) | {"protocols": protocols, "max_msg_size": self._max_message_bytes}
        async with TimeLimit(self._clock, CONNECT_SECONDS):
            return await open_socket(self._session, address, **options)

    def _gone(self, error: Exception) -> Unavailable:
        status = f" ({error.status})" if isinstance(error, aiohttp.WSServerHandshakeError) else ""
        return Unavailable(
            f"{self._endpoint}: the sender of a WebSocket is not there any more{status}",
            hint="accept within 20 seconds",
        )
