"""The engine that moves bytes: our own AMQP client on both sides."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from sbpair.errors import InDoubt, ProtocolError, SbpairError
from sbpair.move import envelope
from sbpair.move.route import Facts
from sbpair.wire.client import Wire, connect, lock_token
from sbpair.wire.links import ACCEPTED, ANSWER_SECONDS, RELEASED, Sender, dead_letter

if TYPE_CHECKING:
    from sbpair.amqp.events import Delivery
    from sbpair.amqp.message import Sections
    from sbpair.amqp.performatives import Outcome
    from sbpair.model import Endpoint
    from sbpair.move.engine import Arrival
    from sbpair.move.route import Send
    from sbpair.wire.client import GetToken
    from sbpair.wire.links import Receiver

LOCK_SECONDS = 60.0
"""A backlog queue's lock, assumed where the service's answer makes no sense by this machine's clock."""

SENDERS_MOST = 200
"""How many links to the primary a lane keeps open."""

_RENEW_MOST = 100

log = logging.getLogger(__name__)

Now = Callable[[], float]


@dataclass(slots=True, eq=False)
class WireArrival:
    """`sections` is None for a delivery that is no message at all; its facts say so."""

    facts: Facts
    lock_until: float
    delivery: Delivery
    sections: Sections | None


class WireSource:
    def __init__(self, wire: Wire, receiver: Receiver, queue: str, now: Now = time.time) -> None:
        self.queue = queue
        self._wire = wire
        self._receiver = receiver
        self._now = now
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, wire: Wire, queue: str) -> WireSource:
        return cls(wire, await wire.receiver(queue), queue)

    @property
    def error(self) -> SbpairError | None:
        return self._receiver.error

    def grant(self, most: int) -> None:
        self._receiver.grant(most)

    def interrupt(self) -> None:
        self._receiver.interrupt()

    async def take(self, most: int, *, seconds: float) -> list[WireArrival]:
        return [self._arrival(delivery) for delivery in await self._receiver.take(most, seconds=seconds)]

    async def stop(self) -> None:
        left = await self._receiver.stop()
        try:
            await self._receiver.settle(left, RELEASED)
        except SbpairError as error:
            log.info("%d messages of %s were not released: %s", len(left), self.queue, error)

    async def complete(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, ACCEPTED)

    async def release(self, arrivals: Sequence[Arrival]) -> None:
        await self._settle(arrivals, RELEASED)

    async def dead_letter(self, arrival: Arrival, reason: str, description: str) -> None:
        await self._settle([arrival], dead_letter(reason, description))

    async def renew(self, arrivals: Sequence[Arrival]) -> None:
        mine = cast("Sequence[WireArrival]", arrivals)
        for start in range(0, len(mine), _RENEW_MOST):
            chunk = mine[start : start + _RENEW_MOST]
            tokens = [lock_token(arrival.delivery.tag) for arrival in chunk]
            moments = await self._wire.renew_locks(self.queue, tokens)
            for arrival, until_ms in zip(chunk, moments, strict=False):
                arrival.lock_until = self._loop_time(until_ms)

    async def _settle(self, arrivals: Sequence[Arrival], outcome: Outcome) -> None:
        mine = cast("Sequence[WireArrival]", arrivals)
        await self._receiver.settle([arrival.delivery for arrival in mine], outcome)

    def _arrival(self, delivery: Delivery) -> WireArrival:
        try:
            sections, facts = envelope.facts_of(self.queue, delivery.payload)
        except ProtocolError as error:
            # It has no id of its own, and yet is not the same as the next such.
            name = f"delivery {delivery.tag.hex()}"
            facts = Facts(self.queue, 0, 0, name, None, size=len(delivery.payload), flaw=error.message)
            return WireArrival(facts, self._loop.time() + LOCK_SECONDS, delivery, None)
        return WireArrival(facts, self._loop_time(envelope.locked_until(sections)), delivery, sections)

    def _loop_time(self, until_ms: int) -> float:
        left = until_ms / 1000 - self._now()
        # The service's clock and ours may differ: more than the usual is not believed, nor is nothing at all.
        return self._loop.time() + (left if 1.0 <= left <= LOCK_SECONDS else LOCK_SECONDS)


class WirePrimary:
    """The primary's side of a lane: a connection that is made anew when it has gone, and a sender a destination."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        get_token: GetToken | None = None,
        now: Now = time.time,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._connect = partial(connect, endpoint, get_token=get_token)
        self._now = now
        self._answer_seconds = answer_seconds
        self._wire: Wire | None = None
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._senders: dict[str, Sender] = {}

    async def ready(self, destination: str) -> None:
        sender = await self._sender(destination)
        await sender.ready(seconds=self._answer_seconds)

    async def send(self, arrival: Arrival, order: Send) -> None:
        sections = cast("WireArrival", arrival).sections
        assert sections is not None  # noqa: S101  what is no message has a flaw, and no Send
        payload = envelope.restored(sections, order, int(self._now() * 1000))
        sender = await self._sender(order.destination)
        try:
            await sender.send(payload, seconds=self._answer_seconds)
        except InDoubt:
            # Whatever the peer still makes of it: the next try is on a link of its own.
            sender.close()
            raise

    async def check(self) -> None:
        """Connect and sign in, if that is still to be done. Raises AccessError, Unavailable."""
        await self._connected()

    async def close(self) -> None:
        await self._open.aclose()

    async def _sender(self, destination: str) -> Sender:
        # Service Bus compares paths without regard to case: one link serves every spelling.
        name = destination.lower()
        wire = await self._connected()
        sender = self._senders.pop(name, None)
        if sender is None or sender.error is not None:
            self._make_room()
            sender = await wire.sender(destination)
        self._senders[name] = sender
        return sender

    def _make_room(self) -> None:
        """Let go of the sender that was used least recently, where there are many."""
        if len(self._senders) >= SENDERS_MOST:
            name = next((name for name, sender in self._senders.items() if sender.idle), None)
            if name is not None:
                self._senders.pop(name).close()

    async def _connected(self) -> Wire:
        # Without a turn of the loop where there is nothing to do: see `Destination.ready`.
        if self._wire is not None and self._wire.error is None:
            return self._wire
        async with self._opening:
            if self._wire is None or self._wire.error is not None:
                self._senders.clear()
                self._wire = None
                await self._open.aclose()
                self._wire = await self._open.enter_async_context(self._connect())
            return self._wire
