"""The relay's listener and client for programs that block: the asyncio ones, in an event loop of a thread.

Invariant: nothing is decided here. Handlers run in threads of their own, so that they may block.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import wraps
from inspect import get_annotations, signature
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from aiohttp import ClientWebSocketResponse

from sbpair.errors import Unreachable
from sbpair.relay.body_parts import is_blocking, pulled
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.handled_request import RelayOffer, RelayRequest
from sbpair.relay.relay_client import TIMEOUT_SECONDS, AsyncRelayClient, AsyncRelayResponse
from sbpair.relay.relay_connections import MAX_MESSAGE_BYTES
from sbpair.relay.relay_listener import CLOSE_SECONDS, AsyncRelayListener
from sbpair.sync_async import LoopThread

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from sbpair.model.pair import Side
    from sbpair.relay.events import OnRelayEvent
    from sbpair.relay.relay_connections import RelayClock
    from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_SOCKETS: Final = 100
"""Default of WebSockets at once, each of which has a thread."""

_ABNORMAL: Final = 1006


class InLoop(Generic[T]):
    """The blocking form of an asyncio object, whose coroutines run in the event loop of a thread.

    Attributes that a subclass annotates are those of the object when it is wrapped.
    """

    def __init__(self, wrapped: T, thread: LoopThread) -> None:
        self._wrapped = wrapped
        self._thread = thread
        for name in get_annotations(type(self)):
            setattr(self, name, getattr(wrapped, name))

    def _parts(self: InLoop[AsyncIterable[bytes]]) -> Iterator[bytes]:
        """Iterate over the parts of a body."""
        parts = aiter(self._wrapped)

        async def take() -> bytes | None:
            return await anext(parts, None)

        while (part := self._thread.run(take())) is not None:
            yield part


def in_loop(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    form: Callable[[T, LoopThread], R],
) -> Callable[Concatenate[InLoop[Any], P], R]:
    """Return a method that calls an async method of the wrapped object, blocks until it ends, and forms its result."""

    @wraps(method)
    def blocking(self: InLoop[Any], /, *arguments: P.args, **options: P.kwargs) -> R:
        return form(self._thread.run(method(self._wrapped, *arguments, **options)), self._thread)

    if isinstance(form, type):
        blocking.__signature__ = signature(method).replace(return_annotation=form.__name__)  # type: ignore[attr-defined]
    return blocking


def as_it_is(result: T, _thread: LoopThread) -> T:
    return result


class _ClosedAfterBlock(InLoop[T]):
    close: Callable[..., None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class RelaySocket(_ClosedAfterBlock[ClientWebSocketResponse]):
    """A WebSocket for programs that block. Iterate over it for the messages until it is closed."""

    protocol: str | None

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

    side: Side
    status: int
    reason: str
    headers: Mapping[str, str]

    __iter__ = InLoop._parts
    read = in_loop(AsyncRelayResponse.read, as_it_is)
    close = in_loop(AsyncRelayResponse.close, as_it_is)


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

    request = in_loop(AsyncRelayClient.request, RelayResponse)
    connect = in_loop(AsyncRelayClient.connect, RelaySocket)

    def close(self) -> None:
        """Close all connections, also those of WebSockets."""
        if not self._wrapped.is_closed:
            self._thread.run(self._wrapped.close())
            self._thread.end()


class BlockingRelayRequest(InLoop[RelayRequest]):
    """An HTTP request for a handler. Iterate over it for the body, or `read` it whole."""

    side: Side
    request_id: str
    method: str
    target: str
    headers: Mapping[str, str]
    remote: str

    __iter__ = InLoop._parts
    read = in_loop(RelayRequest.read, as_it_is)


class BlockingRelayOffer(InLoop[RelayOffer]):
    """A WebSocket that a sender wants to open. A handler accepts or rejects it once, within 20 seconds."""

    side: Side
    target: str
    headers: Mapping[str, str]
    protocols: tuple[str, ...]
    remote: str

    accept = in_loop(RelayOffer.accept, RelaySocket)
    reject = in_loop(RelayOffer.reject, as_it_is)


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
            if isinstance(answer, RelayAnswer) and is_blocking(body):
                return replace(answer, body=pulled(body, self._requests))
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

    start = in_loop(AsyncRelayListener.start, as_it_is)

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


async def _in_thread(executor: Executor, function: Any, argument: object) -> Any:
    return await asyncio.get_running_loop().run_in_executor(executor, function, argument)
