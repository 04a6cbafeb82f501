"""A service that listens on both endpoints of a pair at once, for asyncio: the control channels and their tokens.

Invariant: the sides are independent. A failure of one is an event, is retried, and never ends the other. A request that
came over a channel outlives it: its answer is sent to its rendezvous address.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from websockets.exceptions import ConnectionClosed

from sbpair.errors import AccessError, EntityMissing, SbpairError, Unreachable, UsageError
from sbpair.failover.events import EventReporter
from sbpair.model.pair import SIDES, Side
from sbpair.model.retries import StepBackoff
from sbpair.relay.answer_verdicts import TRACKING
from sbpair.relay.control_messages import (
    TOKEN_HEADER,
    AcceptMessage,
    RelayAnswer,
    RelayMessageInvalid,
    RequestMessage,
    read_control,
)
from sbpair.relay.events import (
    OnRelayEvent,
    RelayReporter,
    RelayRequestFailed,
    RelaySideDown,
    RelaySideUp,
    RelayTokenNotRenewed,
)
from sbpair.relay.handled_request import ControlChannel, HandledRequest, RelayHandler, RelayOffer, RelayRequest
from sbpair.relay.relay_connections import (
    MAX_MESSAGE_BYTES,
    RENEW_SECONDS,
    RelayClock,
    RelayTokens,
    TimeLimit,
    close_session,
    one_line,
    open_frames,
    open_session,
    sleep,
)
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair

if TYPE_CHECKING:
    import aiohttp
    from websockets.asyncio.client import ClientConnection

    from sbpair.model.signature import Token

CONNECT_BACKOFF: Final = StepBackoff((0.0, 1.0, 2.0, 5.0, 10.0, 30.0))
SLOW_SECONDS: Final = 60.0
"""Pause after a refusal that only a change of the endpoint or its keys can end."""

STEADY_SECONDS: Final = 30.0
"""A channel that lives this long has worked: the next failure is a first one."""

WAITING_PER_REQUEST: Final = 10
"""Requests that wait for each one that is handled. More are answered with 503."""

CLOSE_SECONDS: Final = 30.0
CONNECTING_SECONDS: Final = 1.0
"""Time for a handshake that has begun. The requests of a channel that is given up meanwhile would be in doubt."""

STOP_SECONDS: Final = 5.0
"""Time for the last messages of control channels that are closing."""

SocketHandler: TypeAlias = Callable[[RelayOffer], Awaitable[None]]

log = logging.getLogger(__name__)


class ListenerSide:
    """The listener on one side. `run` connects again and again until `stop`."""

    def __init__(self, listener: AsyncRelayListener, side: Side, endpoint: RelayEndpoint) -> None:
        self.side = side
        self.endpoint = endpoint
        self.listener = listener
        self.is_up = False
        self.is_connecting = False
        self.contacted = asyncio.Event()
        """Set after the first attempt."""

        self._clock = listener._clock
        self._report = listener._report
        self._tokens = RelayTokens(endpoint, listener._clock)
        self._id = str(uuid.uuid4())
        self._stopping = asyncio.Event()
        self._channel: ControlChannel | None = None
        self._last_reason = ""

    async def run(self) -> None:
        """Connect and listen, again and again, until `stop`."""
        failures = 0
        try:
            while not self._stopping.is_set():
                began = self._clock.now()
                error = await self._listen()
                lived = self._clock.now() - began
                failures = 1 if self._last_reason == "" and lived >= STEADY_SECONDS else failures + 1
                if self._stopping.is_set():
                    return
                slow = isinstance(error, (AccessError, EntityMissing, UsageError))
                seconds = SLOW_SECONDS if slow else CONNECT_BACKOFF.seconds(failures)
                # The text of the service has an id of its own in each refusal.
                reason = error.message.partition(TRACKING)[0]
                if reason != self._last_reason:
                    self._last_reason = reason
                    self._report(RelaySideDown(self.endpoint.path, self.side, error.message, seconds))
                self.contacted.set()
                await self._pause(seconds)
        finally:
            self.contacted.set()
            await self._tokens.close()

    async def stop(self) -> None:
        """End the channel: the service sends no more requests. Those that it has sent are still read."""
        self._stopping.set()
        if self._channel is not None:
            await self._channel.socket.close(1001, "the listener is closing")

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await sleep(self._clock, seconds, until=self._stopping)

    async def _listen(self) -> SbpairError:
        """Open one channel and read from it. Returns why it has ended, or why none could be opened."""
        try:
            token, socket = await self._tokens.spend(self._open)
        except SbpairError as error:
            return error
        except Exception as error:
            log.exception("a relay listener could not connect")
            return Unreachable(f"{self.endpoint}: unexpected {type(error).__name__}")
        finally:
            self.is_connecting = False
        channel = self._channel = ControlChannel(
            socket, self.side, self.endpoint, self._clock, self._report, self.listener._spawn
        )
        self.is_up, self._last_reason = True, ""
        self._report(RelaySideUp(self.endpoint.path, self.side))
        self.contacted.set()
        renewing = asyncio.create_task(self._renew(channel, token.expires_at, token.renewable), name="renew a token")
        try:
            if self._stopping.is_set():
                # Beside the reading: the service may have sent more requests by now than the socket keeps.
                self.listener._spawn(self.stop())
            return await self._read(channel)
        finally:
            self.is_up, self._channel = False, None
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await socket.close()
            await channel.leave()

    async def _open(self, token: Token) -> tuple[Token, ClientConnection]:
        headers, url = {TOKEN_HEADER: token.value}, self.endpoint.listen_url(self._id)
        self.is_connecting = True
        return token, await open_frames(url, self.endpoint, self._clock, headers, is_control=True)

    async def _read(self, channel: ControlChannel) -> SbpairError:
        """Read messages until the channel ends. Returns why it has ended."""
        socket = channel.socket
        try:
            while True:
                message = read_control(_text(await socket.recv()))
                if isinstance(message, AcceptMessage):
                    self.listener._begin_offer(message, self)
                elif message is not None:
                    body = _binary(await socket.recv()) if message.has_body else b""
                    self.listener._spawn(self.listener._serve_request(message, body, channel))
        except ConnectionClosed as closed:
            received = closed.rcvd
            reason = f"code {received.code:d} {one_line(received.reason)}".rstrip() if received else "no close frame"
            return Unreachable(f"the service ended the control channel: {reason}", hint="the listener connects again")
        except RelayMessageInvalid as error:
            await socket.close(1002, "invalid message")
            return Unreachable(f"the service sent a message that cannot be read: {error}", hint="check the namespace")

    async def _renew(self, channel: ControlChannel, expires_at: float, renewable: bool) -> None:
        """Send a new token before the current one expires, again and again."""
        with suppress(ConnectionClosed):
            while renewable:
                left = expires_at - self._clock.now()
                await sleep(self._clock, max(left - RENEW_SECONDS, min(left / 2, RENEW_SECONDS), 1.0))
                try:
                    token = await self._tokens.get()
                except SbpairError as error:
                    self._report_not_renewed(error.message)
                    continue
                except Exception as error:
                    log.exception("a relay listener could not renew its token")
                    self._report_not_renewed(f"unexpected {type(error).__name__}")
                    continue
                if token.expires_at > expires_at:
                    await channel.renew(token.value)
                expires_at, renewable = token.expires_at, token.renewable

    def _report_not_renewed(self, reason: str) -> None:
        self._report(RelayTokenNotRenewed(self.endpoint.path, self.side, reason))


def _text(message: str | bytes) -> str:
    if isinstance(message, bytes):
        raise RelayMessageInvalid("a body without its message")
    return message


def _binary(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise RelayMessageInvalid("a message without its body")
    return message


class AsyncRelayListener:
    """A listener on one relay endpoint, or on both of a pair.

    `handler(request)` returns a RelayAnswer to an HTTP request. `on_websocket(offer)` accepts or rejects a WebSocket
    and serves it; when it returns, the socket is closed. Without a handler, senders get 501. A handler that fails
    costs its request a 500, or a WebSocket a 502. At most `max_requests` are handled at once; ten times as many wait,
    and further ones get 503. More than `max_sockets` WebSockets are rejected with 503.

    `start` returns after the first attempt on each side, and raises nothing: events report what is up, down, and why.
    A side that fails is connected to again after 0, 1, 2, 5, 10, then 30 seconds; one that does not exist, or refuses
    the key, after 60. `close` ends the control channels and finishes accepted requests. Raises UsageError for limits
    that are not positive, and for a listener that was closed.
    """

    def __init__(
        self,
        where: RelayPair | RelayEndpoint,
        handler: RelayHandler | None = None,
        *,
        on_websocket: SocketHandler | None = None,
        on_event: OnRelayEvent | None = None,
        max_requests: int = 100,
        max_sockets: int = 5_000,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: RelayClock | None = None,
    ) -> None:
        if max_requests < 1 or max_sockets < 1 or max_message_bytes < 0:
            raise UsageError("expected limits of 1 or more", hint="leave them out for the defaults")
        self._endpoints: dict[Side, RelayEndpoint]
        if isinstance(where, RelayEndpoint):
            self._endpoints = {"primary": where}
        else:
            self._endpoints = {side: where[side] for side in SIDES}
        self._handler = handler or _no_handler
        self._on_websocket = on_websocket or _no_websockets
        self._report: RelayReporter = EventReporter("a relay listener", on_event)
        self._max_requests, self._max_sockets = max_requests, max_sockets
        self._max_message_bytes = max_message_bytes
        self._clock = clock or RelayClock()
        self._sides: dict[Side, ListenerSide] = {}
        self._runs: list[asyncio.Task[None]] = []
        self._work: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._offers: set[RelayOffer] = set()
        self._session: aiohttp.ClientSession | None = None
        self.is_closed = False

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # without the block there is no __aexit__
            await self.close(0)
            raise
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()

    @property
    def up_sides(self) -> tuple[Side, ...]:
        """The sides that are connected now."""
        return tuple(side for side, each in self._sides.items() if each.is_up)

    async def start(self) -> None:
        """Begin to listen, and wait for the first attempt on each side. Raises UsageError after `close`."""
        if self.is_closed:
            raise UsageError("the listener has been closed", hint="make another one")
        if self._runs:
            return
        self._session = open_session()
        self._turn = asyncio.Semaphore(self._max_requests)
        for side, endpoint in self._endpoints.items():
            made = self._sides[side] = ListenerSide(self, side, endpoint)
            self._runs.append(asyncio.create_task(made.run(), name=f"listen on the {side}"))
        for each in self._sides.values():
            await each.contacted.wait()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Take no more requests, and finish accepted ones and open WebSockets within `seconds`. Others are reported."""
        self.is_closed = True
        await self._end_runs()
        try:
            if seconds > 0:
                async with TimeLimit(self._clock, seconds):
                    while self._work:
                        await asyncio.wait(self._work)
        except TimeoutError:
            pass
        finally:
            await self._close_sockets()
            for task in self._work:
                task.cancel()
            await asyncio.gather(*self._work, return_exceptions=True)
            if self._session is not None:
                await close_session(self._session)

    async def _end_runs(self) -> None:
        """End the control channels, and connections that are not open in time."""
        await asyncio.gather(*(each.stop() for each in self._sides.values()), return_exceptions=True)
        connecting = [run for side, run in zip(self._sides.values(), self._runs, strict=True) if side.is_connecting]
        if connecting:
            # The service may have accepted the channel by now, and be sending requests.
            await asyncio.wait(connecting, timeout=CONNECTING_SECONDS)
        for side, run in zip(self._sides.values(), self._runs, strict=True):
            if side.is_connecting:
                run.cancel()
        if self._runs:
            await asyncio.wait(self._runs, timeout=STOP_SECONDS)
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    async def _close_sockets(self) -> None:
        """Close the WebSockets that are still open. A cancelled handler could only break them off."""
        open_sockets = [each.socket for each in self._offers if each.socket is not None and not each.socket.closed]
        if open_sockets:
            closing = [
                asyncio.create_task(each.close(code=1001), name="close a relayed socket") for each in open_sockets
            ]
            await asyncio.wait(closing, timeout=STOP_SECONDS)
            for task in closing:
                task.cancel()
            await asyncio.gather(*closing, return_exceptions=True)

    # Work

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="serve a relayed connection")
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _serve_request(self, message: RequestMessage, body: bytes, channel: ControlChannel) -> None:
        handled = HandledRequest(message, body, channel)
        if self._requests >= self._max_requests * (1 + WAITING_PER_REQUEST):
            await handled.refuse(503, "the listener is busy")
            return
        self._requests += 1
        try:
            async with self._turn:
                await handled.handle(self._handler)
        finally:
            self._requests -= 1

    def _begin_offer(self, message: AcceptMessage, side: ListenerSide) -> None:
        if self._session is not None:
            limit = self._max_message_bytes
            offer = RelayOffer(message, side.side, side.endpoint, self._session, self._clock, limit)
            self._spawn(self._serve_offer(offer))

    async def _serve_offer(self, offer: RelayOffer) -> None:
        if len(self._offers) >= self._max_sockets:
            await self._reject(offer, 503, "the listener is busy")
            return
        self._offers.add(offer)
        status, reason, code = 400, "Rejected by user code", 1000
        try:
            await self._on_websocket(offer)
        except SbpairError as error:
            status, reason, code = 502, "The listener failed", 1011
            self._report_offer(offer, error.message)
        except asyncio.CancelledError:
            code = 1001
            raise
        except Exception as error:
            log.exception("the WebSocket handler of a relay listener failed")
            status, reason, code = 502, "The listener failed", 1011
            self._report_offer(offer, f"the handler failed with {type(error).__name__}")
        finally:
            self._offers.discard(offer)
            if offer.socket is not None:
                await offer.socket.close(code=1001 if self.is_closed else code)
        if not offer.is_decided:
            await self._reject(offer, status, reason)

    async def _reject(self, offer: RelayOffer, status: int, reason: str) -> None:
        try:
            await offer.reject(status, reason)
        except SbpairError as error:
            self._report_offer(offer, error.message)

    def _report_offer(self, offer: RelayOffer, reason: str) -> None:
        self._report(RelayRequestFailed(self._endpoints[offer.side].path, offer.side, offer.offer_id, 502, reason))


async def _no_handler(_request: RelayRequest) -> RelayAnswer:
    return RelayAnswer(501)


async def _no_websockets(offer: RelayOffer) -> None:
    await offer.reject(501, "The listener serves no WebSockets")
