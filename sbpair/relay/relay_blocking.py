"""The relay's listener and client for programs that block: the asyncio ones, in an event loop of a thread.

Invariant: nothing is decided here. Handlers run in threads of their own, so that they may block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from sbpair.errors import Unreachable, UsageError
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.relay_client import TIMEOUT_SECONDS, AsyncRelayClient, AsyncRelayResponse
from sbpair.relay.relay_connections import MAX_MESSAGE_BYTES
from sbpair.relay.relay_listener import CLOSE_SECONDS, AsyncRelayListener

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from aiohttp import ClientWebSocketResponse

    from sbpair.relay.control_messages import Headers
    from sbpair.relay.events import OnRelayEvent
    from sbpair.relay.handled_request import RelayRequest
    from sbpair.relay.relay_clock import RelayClock
    from sbpair.relay.relay_decisions import Reissue
    from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair, Side
    from sbpair.relay.socket_offer import RelayOffer

T = TypeVar("T")

MAX_SOCKETS: Final = 100
"""Default of WebSockets at once, each of which has a thread."""


class RelayThread:
    """A thread with an event loop, for calls from other threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result. Raises UsageError after `close`, or in the loop."""
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("this object has been closed, or is used by its own event loop", hint="make another one")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop. Its tasks are cancelled."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class _ClosedAfterBlock:
    """A context manager that is closed after its block."""

    close: Callable[..., None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class RelaySocket(_ClosedAfterBlock):
    """A WebSocket for programs that block. Iterate over it for the messages until it is closed."""

    def __init__(self, socket: ClientWebSocketResponse, thread: RelayThread) -> None:
        self._socket = socket
        self._thread = thread
        self.protocol = socket.protocol

    @property
    def close_code(self) -> int | None:
        """The code with which the connection was closed; None while it is open."""
        return self._socket.close_code

    def send(self, message: str | bytes) -> None:
        """Send a text or binary message. Raises Unreachable if the connection has ended."""
        send = self._socket.send_str if isinstance(message, str) else self._socket.send_bytes
        try:
            self._thread.call(send(message))  # type: ignore[arg-type]
        except (ConnectionError, RuntimeError):
            raise Unreachable("the WebSocket has ended", hint="open another one") from None

    def receive(self) -> str | bytes | None:
        """Return the next message, or None after the end. Raises Unreachable if the connection was lost."""
        message = self._thread.call(self._socket.receive())
        data = message.data
        if isinstance(data, (str, bytes)):
            return data
        if self._socket.close_code == _ABNORMAL or isinstance(data, Exception):
            raise Unreachable("the WebSocket was lost", hint="open another one")
        return None

    def __iter__(self) -> Iterator[str | bytes]:
        while (message := self.receive()) is not None:
            yield message

    def close(self, code: int = 1000) -> None:
        self._thread.call(_closed(self._socket, code))


class RelayResponse(_ClosedAfterBlock):
    """The answer of a listener. Read it whole, or iterate over it; then, or to abandon it, close it."""

    def __init__(self, response: AsyncRelayResponse, thread: RelayThread) -> None:
        self.side = response.side
        self.status = response.status
        self.reason = response.reason
        self.headers = response.headers
        self._response = response
        self._thread = thread

    def read(self) -> bytes:
        """Return the whole body. Raises InDoubt if it ends too soon."""
        return self._thread.call(self._response.read())

    def __iter__(self) -> Iterator[bytes]:
        return _iterate(self._response.__aiter__(), self._thread)

    def close(self) -> None:
        self._thread.call(self._response.close())


class RelayClient(_ClosedAfterBlock):
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
        self._client = AsyncRelayClient(
            pair, first=first, chance=chance, timeout=timeout, on_event=on_event, clock=clock
        )
        self._thread = RelayThread("sbpair relay client")

    @property
    def active(self) -> Side:
        """The side that requests go to first."""
        return self._client.active

    def swap_roles(self) -> None:
        """Swap the roles, as after a failure of the active side."""
        self._client.swap_roles()

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
        asking = self._client.request(
            method,
            suffix,
            headers=headers,
            body=sent,
            reissue=reissue,
            timeout=timeout,
        )
        return RelayResponse(self._thread.call(asking), self._thread)

    def connect(
        self,
        suffix: str = "",
        *,
        protocols: Iterable[str] = (),
        headers: Headers | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        timeout: float | None = None,
    ) -> RelaySocket:
        opening = self._client.connect(
            suffix, protocols=protocols, headers=headers, max_message_bytes=max_message_bytes, timeout=timeout
        )
        return RelaySocket(self._thread.call(opening), self._thread)

    request.__doc__ = AsyncRelayClient.request.__doc__
    connect.__doc__ = AsyncRelayClient.connect.__doc__

    def close(self) -> None:
        """Close all connections, also those of WebSockets."""
        if not self._client.is_closed:
            self._thread.call(self._client.close())
            self._thread.close()


class BlockingRelayRequest:
    """An HTTP request for a handler. Iterate over it for the body, or `read` it whole."""

    def __init__(self, request: RelayRequest, thread: RelayThread) -> None:
        self.side = request.side
        self.request_id = request.request_id
        self.method = request.method
        self.target = request.target
        self.headers: Mapping[str, str] = request.headers
        self.remote = request.remote
        self._request = request
        self._thread = thread

    def read(self) -> bytes:
        """Return the whole body. Raises Unreachable if it ends too soon."""
        return self._thread.call(self._request.read())

    def __iter__(self) -> Iterator[bytes]:
        return _iterate(self._request.__aiter__(), self._thread)


class BlockingRelayOffer:
    """A WebSocket that a sender wants to open. A handler accepts or rejects it once, within 20 seconds."""

    def __init__(self, offer: RelayOffer, thread: RelayThread) -> None:
        self.side = offer.side
        self.target = offer.target
        self.headers: Mapping[str, str] = offer.headers
        self.protocols = offer.protocols
        self.remote = offer.remote
        self._offer = offer
        self._thread = thread

    def accept(self, protocol: str | None = None) -> RelaySocket:
        """Open the WebSocket with one of `protocols`. Raises UsageError; Unavailable if the sender has gone."""
        return RelaySocket(self._thread.call(self._offer.accept(protocol)), self._thread)

    def reject(self, status: int = 400, reason: str = "Rejected by user code") -> None:
        """Refuse the WebSocket with a status from 400 to 599. Raises UsageError; Unavailable if the sender has gone."""
        self._thread.call(self._offer.reject(status, reason))


class RelayListener(_ClosedAfterBlock):
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
        self._handler, self._on_websocket = handler, on_websocket
        self._listener = AsyncRelayListener(
            where,
            None if handler is None else self._handle,
            on_websocket=None if on_websocket is None else self._serve,
            on_event=on_event,
            max_requests=max_requests,
            max_sockets=max_sockets,
            max_message_bytes=max_message_bytes,
            clock=clock,
        )
        self._requests = ThreadPoolExecutor(max_requests, "sbpair relay request")
        self._sockets = ThreadPoolExecutor(max_sockets, "sbpair relay socket")
        self._thread = RelayThread("sbpair relay listener")

    @property
    def up_sides(self) -> tuple[Side, ...]:
        """The sides that are connected now."""
        return self._listener.up_sides

    def start(self) -> None:
        """Begin to listen, and wait for the first attempt on each side. Raises UsageError after `close`."""
        self._thread.call(self._listener.start())

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Take no more requests, and finish accepted ones and open WebSockets within `seconds`. Others are reported."""
        if not self._listener.is_closed:
            self._thread.call(self._listener.close(seconds))
            self._thread.close()
            self._requests.shutdown(wait=False, cancel_futures=True)
            self._sockets.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    async def _handle(self, request: RelayRequest) -> RelayAnswer:
        assert self._handler is not None  # noqa: S101  # it was given
        work = partial(self._handler, BlockingRelayRequest(request, self._thread))
        answer = await asyncio.get_running_loop().run_in_executor(self._requests, work)
        body: object = getattr(answer, "body", None)
        if isinstance(answer, RelayAnswer) and hasattr(body, "__iter__") and not isinstance(body, (str, *_BYTES)):
            parts = _pulled(iter(body), self._requests)
            return RelayAnswer(answer.status, answer.headers, parts, answer.reason)
        return answer

    async def _serve(self, offer: RelayOffer) -> None:
        assert self._on_websocket is not None  # noqa: S101  # it was given
        work = partial(self._on_websocket, BlockingRelayOffer(offer, self._thread))
        await asyncio.get_running_loop().run_in_executor(self._sockets, work)


_ABNORMAL: Final = 1006
_BYTES: Final = (bytes, bytearray, memoryview)
_END: Final = object()


async def _pulled(parts: Iterator[bytes], executor: Executor | None) -> AsyncIterator[bytes]:
    """Iterate over a source that may block, in another thread."""
    loop = asyncio.get_running_loop()
    while (part := await loop.run_in_executor(executor, next, parts, _END)) is not _END:
        yield part  # type: ignore[misc]


def _iterate(parts: AsyncIterator[bytes], thread: RelayThread) -> Iterator[bytes]:
    async def take() -> bytes | None:
        return await anext(parts, None)

    while (part := thread.call(take())) is not None:
        yield part


async def _closed(socket: ClientWebSocketResponse, code: int) -> None:
    await socket.close(code=code)
