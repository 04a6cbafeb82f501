"""A service that listens on both endpoints of a pair at once, for asyncio.

Invariant: the sides are independent. A failure of one is an event, is retried, and never ends the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from sbpair.errors import SbpairError, UsageError
from sbpair.relay.control_messages import AcceptMessage, RelayAnswer, RequestMessage
from sbpair.relay.events import OnRelayEvent, RelayReporter, RelayRequestFailed, relay_reporter
from sbpair.relay.handled_request import HandledRequest, RelayHandler, RelayRequest
from sbpair.relay.listener_side import ControlChannel, ListenerSide, ListenerTasks
from sbpair.relay.relay_clock import RelayClock, TimeLimit
from sbpair.relay.relay_connections import MAX_MESSAGE_BYTES, close_session, open_session
from sbpair.relay.relay_endpoint import SIDES, RelayEndpoint, RelayPair, Side
from sbpair.relay.socket_offer import RelayOffer

if TYPE_CHECKING:
    import aiohttp

WAITING_PER_REQUEST: Final = 10
"""Requests that wait for each one that is handled. More are answered with 503."""

CLOSE_SECONDS: Final = 30.0
CONNECTING_SECONDS: Final = 1.0
"""Time for a handshake that has begun. The requests of a channel that is given up meanwhile would be in doubt."""

STOP_SECONDS: Final = 5.0
"""Time for the last messages of control channels that are closing."""

SocketHandler: TypeAlias = Callable[[RelayOffer], Awaitable[None]]

log = logging.getLogger(__name__)


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
        self._report: RelayReporter = relay_reporter("a relay listener", on_event)
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
        await self.start()
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
            tasks = ListenerTasks(self._begin_request, partial(self._begin_offer, side), self._spawn)
            made = self._sides[side] = ListenerSide(side, endpoint, self._clock, tasks, self._report)
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

    def _begin_request(self, message: RequestMessage, body: bytes, channel: ControlChannel) -> None:
        self._spawn(self._serve_request(message, body, channel))

    async def _serve_request(self, message: RequestMessage, body: bytes, channel: ControlChannel) -> None:
        path = self._endpoints[channel.side].path
        handled = HandledRequest(message, body, channel, self._clock, path, self._report)
        if self._requests >= self._max_requests * (1 + WAITING_PER_REQUEST):
            await handled.refuse(503, "the listener is busy")
            return
        self._requests += 1
        try:
            async with self._turn:
                await handled.handle(self._handler)
        finally:
            self._requests -= 1

    def _begin_offer(self, side: Side, message: AcceptMessage) -> None:
        if self._session is not None:
            offer = RelayOffer(
                message, side, self._endpoints[side], self._session, self._clock, self._max_message_bytes
            )
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
        path = self._endpoints[offer.side].path
        self._report(RelayRequestFailed(path, offer.side, offer.offer_id, 502, reason))


async def _no_handler(_request: RelayRequest) -> RelayAnswer:
    return RelayAnswer(501)


async def _no_websockets(offer: RelayOffer) -> None:
    await offer.reject(501, "The listener serves no WebSockets")
