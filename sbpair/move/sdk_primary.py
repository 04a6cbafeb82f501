"""The primary's side of the engine on azure-servicebus: a sender a destination, one batch at a time on each.

The law: a sender on which something went wrong is not used again, so that what goes wrong on one was sent, or refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sbpair.bus import decoded
from sbpair.bus.data_plane import DestinationSender, added, open_sender
from sbpair.errors import (
    AccessError,
    EntityMissing,
    InDoubt,
    QuotaExceeded,
    SbpairError,
    ServiceRefused,
    Throttled,
    TimedOut,
    Unavailable,
    Unreachable,
)
from sbpair.move.patience import Patience

if TYPE_CHECKING:
    from sbpair.bus.decoded import Batch, Outgoing
    from sbpair.model import Endpoint
    from sbpair.move.engine import Order, Parcel
    from sbpair.move.sdk_source import SdkArrival

SENDERS_MOST = 50
"""How many senders a lane keeps open: each has its own connection."""

IDLE_SECONDS = 240.0
"""A sender that was not used for so long is opened anew: the service may have let go of it, and nobody noticed."""

PROBE = "sbpair-probe"

Now = Callable[[], float]


@dataclass(slots=True)
class SdkParcel:
    """`refusal` is why it cannot leave at all."""

    count: int
    content: Batch | Outgoing | None
    refusal: SbpairError | None = None


@dataclass(eq=False)
class _Way:
    """An open sender. `closing` closes it."""

    sender: DestinationSender
    closing: AsyncExitStack
    used_at: float
    spent: bool = False
    users: int = 0


@dataclass
class SdkAnswer:
    """The SDK sends and waits in one: the parcel leaves when somebody waits for the answer."""

    primary: SdkPrimary
    way: _Way
    parcel: SdkParcel

    async def outcome(self) -> None:
        assert self.parcel.content is not None  # noqa: S101  what cannot leave is not posted
        self.way.users += 1
        try:
            await self.primary.sent(self.way.sender, self.parcel.content)
        except (ServiceRefused, QuotaExceeded, Throttled):
            raise
        except BaseException:
            self.way.spent = True
            raise
        finally:
            self.way.users -= 1
            self.way.used_at = asyncio.get_running_loop().time()


class SdkLink:
    """The way to one destination for one round, with an empty batch for it."""

    room = 1

    def __init__(self, primary: SdkPrimary, way: _Way, batch: Batch, now: Now) -> None:
        self._primary = primary
        self._way = way
        self._batch = batch
        self._now = now

    def pack(self, orders: Sequence[Order]) -> SdkParcel:
        now_ms = int(self._now() * 1000)
        first: Outgoing | None = None
        for count, order in enumerate(orders):
            message = _restored(order, now_ms)
            try:
                fits = added(self._batch, message)
            except ServiceRefused as error:
                return self._packed(count, first) if count else SdkParcel(1, None, error)
            if not fits:
                return self._packed(max(1, count), first or message)
            first = first or message
        return self._packed(len(orders), first)

    def post(self, parcel: Parcel) -> SdkAnswer:
        mine = cast("SdkParcel", parcel)
        if mine.refusal is not None:
            raise mine.refusal
        return SdkAnswer(self._primary, self._way, mine)

    def _packed(self, count: int, first: Outgoing | None) -> SdkParcel:
        return SdkParcel(count, first if count == 1 else self._batch)


def _restored(order: Order, now_ms: int) -> Outgoing:
    send = order.send
    message = cast("SdkArrival", order.arrival).message
    return decoded.restored(
        message, session_id=send.session_id, ttl_ms=send.ttl_ms, scheduled_at=send.scheduled_at, now_ms=now_ms
    )


class SdkPrimary:
    """The primary's side of a lane. Nothing is connected before there is something to send, or `check` is called.

    A connection that is lost is noticed when it is used.
    """

    def __init__(self, endpoint: Endpoint, now: Now = time.time) -> None:
        self._endpoint = endpoint
        self._now = now
        self._ways: dict[str, _Way] = {}
        self._left: list[_Way] = []
        self._opening = asyncio.Lock()
        self._patience = Patience()
        self._gone = asyncio.Event()
        self.broken: SbpairError | None = None

    async def ready(self, destination: str) -> SdkLink:
        async with self._patience.waiting():
            with self._noticing():
                way = await self._way(destination)
            try:
                return SdkLink(self, way, await way.sender.batch(), self._now)
            except SbpairError:
                way.spent = True
                raise

    async def sent(self, sender: DestinationSender, content: Batch | Outgoing) -> None:
        """Returns once the primary has accepted it."""
        if self._patience.over is not None:
            raise self._patience.over
        try:
            async with self._patience.waiting():
                with self._noticing():
                    await sender.send(content)
        except Unavailable as error:
            if error is self._patience.over:
                raise InDoubt(f"no answer was waited for any more: {error.message}", hint=error.hint) from error
            raise

    async def check(self) -> None:
        """See that there is a Service Bus, and not only at first. Raises Unavailable.

        The SDK connects for an entity only, and nobody knows one yet: one that is missing, or forbidden, is an answer.
        """
        async with self._patience.waiting():
            with suppress(EntityMissing, AccessError, ServiceRefused):
                async with open_sender(self._endpoint, PROBE):
                    pass
        self.broken = None
        self._gone.clear()

    async def lost(self) -> None:
        await self._gone.wait()

    def break_off(self, error: SbpairError) -> None:
        self._patience.end(error)

    async def close(self) -> None:
        ways = [*self._ways.values(), *self._left]
        self._ways.clear()
        self._left.clear()
        await asyncio.gather(*(way.closing.aclose() for way in ways))

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """See what it means for the connection where it did not work."""
        try:
            yield
        except (Unreachable, TimedOut, InDoubt) as error:
            self.broken = error
            self._gone.set()
            raise

    async def _way(self, destination: str) -> _Way:
        # Service Bus compares paths without regard to case: one sender serves every spelling.
        name = destination.lower()
        async with self._opening:
            way = self._ways.pop(name, None)
            if way is not None and not self._is_good(way):
                await self._leave(way)
                way = None
            if way is None:
                await self._make_room()
                way = await self._open(destination)
            self._ways[name] = way
        way.used_at = asyncio.get_running_loop().time()
        return way

    async def _open(self, destination: str) -> _Way:
        async with AsyncExitStack() as stack:
            sender = await stack.enter_async_context(open_sender(self._endpoint, destination))
            return _Way(sender, stack.pop_all(), 0.0)

    async def _leave(self, way: _Way) -> None:
        if way.users:
            self._left.append(way)
        else:
            await way.closing.aclose()

    async def _make_room(self) -> None:
        """Let go of the sender that was used least recently, where there are many."""
        if len(self._ways) >= SENDERS_MOST:
            name = next((name for name, way in self._ways.items() if not way.users), None)
            if name is not None:
                await self._ways.pop(name).closing.aclose()

    def _is_good(self, way: _Way) -> bool:
        idle = asyncio.get_running_loop().time() - way.used_at
        return not way.spent and (way.users > 0 or idle < IDLE_SECONDS)
