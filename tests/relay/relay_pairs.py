"""An emulated pair of relay endpoints, listeners and clients on it, and virtual time for both."""

import asyncio
import heapq
import inspect
import itertools
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sbpair.model.pair import SasKey, Side
from sbpair.relay import aio
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.handled_request import RelayOffer, RelayRequest
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair
from sbpair.testing import Emulator, EmulatorOptions, ManualClock

NAMESPACES: dict[Side, str] = {"primary": "contoso", "secondary": "contoso-dr"}
PATHS: dict[Side, str] = {"primary": "service-east", "secondary": "service-west"}


@dataclass(order=True)
class VirtualTimer:
    due: float
    number: int
    callback: Callable[[], object] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """A clock that moves only by `advance`, together with the emulator's."""

    def __init__(self, now: Callable[[], float], move: Callable[[float], object]) -> None:
        self.now = self.latest = now
        self._move = move
        self._timers: list[VirtualTimer] = []
        self._numbers = itertools.count()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> VirtualTimer:
        timer = VirtualTimer(self.now() + max(seconds, 0), next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    @property
    def waits(self) -> list[float]:
        """The seconds until each timer that is set."""
        return sorted(round(each.due - self.now(), 3) for each in self._timers if not each.cancelled)

    def advance(self, seconds: float) -> None:
        end = self.now() + seconds
        while self._timers and self._timers[0].due <= end:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self._move(max(timer.due - self.now(), 0))
                timer.callback()
        self._move(max(end - self.now(), 0))


def manual_clock() -> VirtualClock:
    """Return a clock without an emulator."""
    time = [1_767_225_600.0]

    def move(seconds: float) -> None:
        time[0] += seconds

    return VirtualClock(lambda: time[0], move)


@dataclass
class RelayPairBench:
    """An emulator with the endpoints of `PATHS`, and all that `listen` and `client` opened."""

    emulator: Emulator
    pair: RelayPair
    clock: VirtualClock
    stack: AsyncExitStack
    events: list[Any] = field(default_factory=list)
    handled: list[tuple[Side, str, str, bytes]] = field(default_factory=list)

    async def listen(self, handler: Any = None, *, side: Side | None = None, **options: Any) -> aio.RelayListener:
        """Listen with a handler, async or not; without one, echo."""

        async def handle(request: RelayRequest) -> Any:
            answer = (handler or self.echo)(request)
            return await answer if inspect.isawaitable(answer) else answer

        where = self.pair if side is None else self.pair[side]
        listener = aio.RelayListener(where, handle, clock=self.clock, on_event=self.events.append, **options)
        self.stack.push_async_callback(listener.close, 0)
        await listener.start()
        return listener

    async def served(self, handler: Any = None, **options: Any) -> aio.RelayClient:
        """Listen as `listen` does, and return a client."""
        await self.listen(handler, **options)
        return await self.client()

    async def client(self, pair: RelayPair | None = None, **options: Any) -> aio.RelayClient:
        options = {"first": "primary", **options}
        made = aio.RelayClient(pair or self.pair, clock=self.clock, on_event=self.events.append, **options)
        return await self.stack.enter_async_context(made)

    async def echo(self, request: RelayRequest) -> RelayAnswer:
        """Note a request, and answer with its body."""
        body = await request.read()
        self.handled.append((request.side, request.method, request.target, body))
        return RelayAnswer(200, {"X-Side": request.side}, body)

    def namespace(self, side: Side) -> str:
        return NAMESPACES[side]

    def kinds(self, *names: str) -> list[str]:
        """Return the kinds of events so far, of these kinds only if any are named."""
        found = [type(each).__name__.removeprefix("Relay") for each in self.events]
        return [each for each in found if not names or each in names]


class Gate:
    """A handler that waits, once started, until it is opened, and then answers."""

    def __init__(self, answer: RelayAnswer | None = None) -> None:
        self._answer = answer or RelayAnswer()
        self.started, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, _request: RelayRequest) -> RelayAnswer:
        self.started.set()
        await self.opened.wait()
        return self._answer


async def echo_socket(offer: RelayOffer) -> None:
    """Accept a WebSocket, and return each message."""
    socket = await offer.accept()
    async for message in socket:
        if isinstance(message.data, str):
            await socket.send_str(message.data)
        else:
            await socket.send_bytes(message.data)


def endpoint_of(emulator: Emulator, side: Side, **changes: Any) -> RelayEndpoint:
    namespace = emulator.namespaces[NAMESPACES[side]]
    rule = namespace.keys[0]
    values = {
        "namespace": namespace.authority,
        "path": PATHS[side],
        "credential": SasKey(rule.key_name, rule.primary_key),
        "tls": False,
        **changes,
    }
    return RelayEndpoint(**values)


@asynccontextmanager
async def open_pair(**options: Any) -> AsyncIterator[RelayPairBench]:
    names = [(name, 0) for name in NAMESPACES.values()]
    async with Emulator(names, clock=ManualClock(), options=EmulatorOptions(**options)) as emulator:
        for side, path in PATHS.items():
            emulator.namespaces[NAMESPACES[side]].hybrid_connections.create(path)
        clock = VirtualClock(
            lambda: emulator.clock.now_ms() / 1000, lambda seconds: emulator.advance(math.ceil(seconds * 1000))
        )
        pair = RelayPair(endpoint_of(emulator, "primary"), endpoint_of(emulator, "secondary"))
        async with AsyncExitStack() as stack:
            yield RelayPairBench(emulator, pair, clock, stack)
