"""The relay's listener and client for programs that block: the asyncio ones, in an event loop of a thread.

Invariant: nothing is decided here. Handlers run in threads of their own, so that they may block.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from aiohttp import ClientWebSocketResponse

from sbpair.errors import Unreachable
from sbpair.failover.background import LoopThread
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.handled_request import RelayRequest
from sbpair.relay.relay_client import TIMEOUT_SECONDS, AsyncRelayClient, AsyncRelayResponse
from sbpair.relay.relay_connections import MAX_MESSAGE_BYTES
from sbpair.relay.relay_listener import CLOSE_SECONDS, AsyncRelayListener
from sbpair.relay.socket_offer import RelayOffer

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from sbpair.relay.control_messages import Headers
    from sbpair.relay.events import OnRelayEvent
    from sbpair.relay.relay_clock import RelayClock
    from sbpair.relay.relay_decisions import Reissue
    from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair, Side

P = ParamSpec("P")
T = TypeVar("T")

MAX_SOCKETS: Final = 100
"""Default of WebSockets at once, each of which has a thread."""

_ABNORMAL: Final = 1006


class InLoop(Generic[T]):
    """The blocking form of an asyncio object, whose coroutines run in the event loop of a thread."""

    def __init__(self, wrapped: T, thread: LoopThread) -> None:
        self._wrapped = wrapped
        self._thread = thread


def in_loop(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[InLoop[Any], P], T]:
    """Return a method that calls an async method of the wrapped object, and blocks until it ends."""

    @wraps(method)
    def blocking(self: InLoop[Any], /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._thread.run(method(self._wrapped, *arguments, **options))

    return blocking


class _ClosedAfterBlock(InLoop[T]):
    """A context manager that is closed after its block."""

    close: Callable[..., None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class RelaySocket(_ClosedAfterBlock[ClientWebSocketResponse]):
    """A WebSocket for programs that block. Iterate over it for the messages until it is closed."""

    def __init__(self, socket: ClientWebSocketResponse, thread: LoopThread) -> None:
        super().__init__(socket, thread)
        self.protocol = socket.protocol

    @property
    def close_code(self) -> int | None:
        """The code with which the connection was closed; None while it is open."""
        return self._wrapped.close_code

    def send(self, message: str | bytes) -> None:
        """Send a text or binary message. Raises Unreachable if the connection has ended."""
        send = self._wrapped.send_str if isinstance(message, str) else self._wrapped.send_bytes
        try:
            self._thread.run(send(message))  # type: ignore[arg-type]
        except (ConnectionError, RuntimeError):
            raise Unreachable("the WebSocket has ended", hint="open another one") from None

    def receive(self) -> str | bytes | None:
        """Return the next message, or None after the end. Raises Unreachable if the connection was lost."""
        data = self._thread.run(self._wrapped.receive()).data
        if isinstance(data, (str, bytes)):
            return data
        if self._wrapped.close_code == _ABNORMAL or isinstance(data, Exception):
            raise Unreachable("the WebSocket was lost", hint="open another one")
        return None

    def __iter__(self) -> Iterator[str | bytes]:
        while (message := self.receive()) is not None:
            yield message

    def close(self, code: int = 1000) -> None:
        async def close() -> None:
            await self._wrapped.close(code=code)

        self._thread.run(close())


class RelayResponse(_ClosedAfterBlock[AsyncRelayResponse]):
    """The answer of a listener. Read it whole, or iterate over it; then, or to abandon it, close it."""

    def __init__(self, response: AsyncRelayResponse, thread: LoopThread) -> None:
        super().__init__(response, thread)
        self.side = response.side
        self.status = response.status
        self.reason = response.reason
        self.headers = response.headers

    read = in_loop(AsyncRelayResponse.read)

    def __iter__(self) -> Iterator[bytes]:
        return _iterate(aiter(self._wrapped), self._thread)

    def close(self) -> None:
        self._thread.run(self._wrapped.close())


class RelayClient(_ClosedAfterBlock[AsyncRelayClient]):
    __doc__ = AsyncRelayClient.__doc__

    def __init__(
        self,
        pair: RelayPair,
        *,
        first: Side | None = None,
        chance: random.Random | None = None,
        timeout: float = TIMEOUT_SECONDS,
        on_event: OnRelayEvent | None = None,
        clock: RelayClock | None = None,
    ) -> None:
        client = AsyncRelayClient(pair, first=first, chance=chance, timeout=timeout, on_event=on_event, clock=clock)
        super().__init__(client, LoopThread("sbpair relay client"))

    @property
    def active(self) -> Side:
        """The side that requests go to first."""
        return self._wrapped.active

    def swap_roles(self) -> None:
        """Swap the roles, as after a failure of the active side."""
        self._wrapped.swap_roles()

    def request(
        self,
        method: str,
        suffix: str = "",
        *,
        headers: Headers | None = None,
        body: bytes | Iterable[bytes] | None = None,
        reissue: Reissue = "safe",
        timeout: float | None = None,
    ) -> RelayResponse:
        sent = body if body is None or isinstance(body, (bytes, bytearray, str)) else _pulled(iter(body), None)
        asking = self._wrapped.request(method, suffix, headers=headers, body=sent, reissue=reissue, timeout=timeout)
        return RelayResponse(self._thread.run(asking), self._thread)

    def connect(
        self,
        suffix: str = "",
        *,
        protocols: Iterable[str] = (),
        headers: Headers | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timeout: float | None = None,
    ) -> RelaySocket:
        opening = self._wrapped.connect(
            suffix, protocols=protocols, headers=headers, max_message_bytes=max_message_bytes, timeout=timeout
        )
        return RelaySocket(self._thread.run(opening), self._thread)

    request.__doc__ = AsyncRelayClient.request.__doc__
    connect.__doc__ = AsyncRelayClient.connect.__doc__

    def close(self) -> None:
        """Close all connections, also those of WebSockets."""
        if not self._wrapped.is_closed:
            self._thread.run(self._wrapped.close())
            self._thread.end()


class BlockingRelayRequest(InLoop[RelayRequest]):
    """An HTTP request for a handler. Iterate over it for the body, or `read` it whole."""

    def __init__(self, request: RelayRequest, thread: LoopThread) -> None:
        super().__init__(request, thread)
        self.side = request.side
        self.request_id = request.request_id
        self.method = request.method
        self.target = request.target
        self.headers: Mapping[str, str] = request.headers
        self.remote = request.remote

    read = in_loop(RelayRequest.read)

    def __iter__(self) -> Iterator[bytes]:
        return _iterate(aiter(self._wrapped), self._thread)


class BlockingRelayOffer(InLoop[RelayOffer]):
    """A WebSocket that a sender wants to open. A handler accepts or rejects it once, within 20 seconds."""

    def __init__(self, offer: RelayOffer, thread: LoopThread) -> None:
        super().__init__(offer, thread)
        self.side = offer.side
        self.target = offer.target
        self.headers: Mapping[str, str] = offer.headers
        self.protocols = offer.protocols
        self.remote = offer.remote

    def accept(self, protocol: str | None = None) -> RelaySocket:
        """Open the WebSocket with one of `protocols`. Raises UsageError; Unavailable if the sender has gone."""
        return RelaySocket(self._thread.run(self._wrapped.accept(protocol)), self._thread)

    reject = in_loop(RelayOffer.reject)


class RelayListener(_ClosedAfterBlock[AsyncRelayListener]):
    __doc__ = AsyncRelayListener.__doc__

    def __init__(
        self,
        where: RelayPair | RelayEndpoint,
        handler: Callable[[BlockingRelayRequest], RelayAnswer] | None = None,
        *,
        on_websocket: Callable[[BlockingRelayOffer], object] | None = None,
        on_event: OnRelayEvent | None = None,
        max_requests: int = 100,
        max_sockets: int = MAX_SOCKETS,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: RelayClock | None = None,
    ) -> None:
        async def handle(request: RelayRequest) -> RelayAnswer:
            answer: RelayAnswer = await _in_thread(self._requests, handler, BlockingRelayRequest(request, self._thread))
            body: object = getattr(answer, "body", None)
            if isinstance(answer, RelayAnswer) and hasattr(body, "__iter__") and not isinstance(body, (str, *_BYTES)):
                parts = _pulled(iter(body), self._requests)
                return RelayAnswer(answer.status, answer.headers, parts, answer.reason)
            return answer

        async def serve(offer: RelayOffer) -> None:
            await _in_thread(self._sockets, on_websocket, BlockingRelayOffer(offer, self._thread))

        listener = AsyncRelayListener(
            where,
            handler and handle,
            on_websocket=on_websocket and serve,
            on_event=on_event,
            max_requests=max_requests,
            max_sockets=max_sockets,
            max_message_bytes=max_message_bytes,
            clock=clock,
        )
        self._requests = ThreadPoolExecutor(max_requests, "sbpair relay request")
        self._sockets = ThreadPoolExecutor(max_sockets, "sbpair relay socket")
        super().__init__(listener, LoopThread("sbpair relay listener"))

    @property
    def up_sides(self) -> tuple[Side, ...]:
        """The sides that are connected now."""
        return self._wrapped.up_sides

    start = in_loop(AsyncRelayListener.start)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Take no more requests, and finish accepted ones and open WebSockets within `seconds`. Others are reported."""
        if not self._wrapped.is_closed:
            self._thread.run(self._wrapped.close(seconds))
            self._thread.end()
            self._requests.shutdown(wait=False, cancel_futures=True)
            self._sockets.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        self.start()
        return self


_BYTES: Final = (bytes, bytearray, memoryview)
_END: Final = object()


async def _in_thread(executor: Executor, function: Any, argument: object) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, function, argument)


async def _pulled(parts: Iterator[bytes], executor: Executor | None) -> AsyncIterator[bytes]:
    """Iterate over a source that may block, in another thread."""
    loop = asyncio.get_running_loop()
    while (part := await loop.run_in_executor(executor, next, parts, _END)) is not _END:
        yield part  # type: ignore[misc]


def _iterate(parts: AsyncIterator[bytes], thread: LoopThread) -> Iterator[bytes]:
    async def take() -> bytes | None:
        return await anext(parts, None)

    while (part := thread.run(take())) is not None:
        yield part
