"""The engine that moves bytes: our own AMQP client on both sides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from sbpair.errors import InDoubt, ProtocolError
from sbpair.move import envelope
from sbpair.move.route import Facts
from sbpair.wire.client import Wire, connect, lock_token
from sbpair.wire.links import ACCEPTED, RELEASED, Sender, dead_letter

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

_RENEW_MOST = 100

Now = Callable[[], float]


@dataclass(slots=True)
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

    def grant(self, credit: int) -> None:
        self._receiver.grant(credit)

    def interrupt(self) -> None:
        self._receiver.interrupt()

    async def take(self, most: int, *, seconds: float) -> list[WireArrival]:
        return [self._arrival(delivery) for delivery in await self._receiver.take(most, seconds=seconds)]

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
            facts = Facts(self.queue, 0, 0, None, None, size=len(delivery.payload), flaw=error.message)
            return WireArrival(facts, self._loop.time() + LOCK_SECONDS, delivery, None)
        return WireArrival(facts, self._loop_time(envelope.locked_until(sections)), delivery, sections)

    def _loop_time(self, until_ms: int) -> float:
        left = until_ms / 1000 - self._now()
        # The service's clock and ours may differ, and a lock lasts at most five minutes.
        return self._loop.time() + (left if 1.0 <= left <= 300.0 else LOCK_SECONDS)


class WirePrimary:
    """The primary's side of a lane: a connection that is made anew when it has gone, and a sender a destination."""

    def __init__(
        self, endpoint: Endpoint, *, get_token: GetToken | None = None, now: Now = time.time, send_seconds: float = 60.0
    ) -> None:
        self._connect = partial(connect, endpoint, get_token=get_token)
        self._now = now
        self._send_seconds = send_seconds
        self._wire: Wire | None = None
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._senders: dict[str, Sender] = {}

    async def send(self, arrival: Arrival, order: Send) -> None:
        mine = cast("WireArrival", arrival)
        if mine.sections is None:
            raise ProtocolError("what is no message cannot be sent")
        payload = envelope.restored(mine.sections, order, int(self._now() * 1000))
        sender = await self._sender(order.destination)
        try:
            async with asyncio.timeout(self._send_seconds):
                await sender.send(payload)
        except TimeoutError:
            # A late answer must not be taken for that of another message: the link goes with the doubt.
            sender.close()
            raise InDoubt(
                f"sending to {order.destination!r}: no answer within {self._send_seconds:g} s", hint="it is tried again"
            ) from None

    async def check(self) -> None:
        """Connect and sign in, if that is still to be done. Raises AccessError, Unavailable."""
        await self._connected()

    async def close(self) -> None:
        await self._open.aclose()

    async def _sender(self, destination: str) -> Sender:
        # Service Bus compares paths without regard to case: one link serves every spelling.
        wire = await self._connected()
        sender = self._senders.get(destination.lower())
        if sender is None or sender.error is not None:
            sender = await wire.sender(destination)
            self._senders[destination.lower()] = sender
        return sender

    async def _connected(self) -> Wire:
        async with self._opening:
            if self._wire is None or self._wire.error is not None:
                self._senders.clear()
                self._wire = None
                await self._open.aclose()
                self._wire = await self._open.enter_async_context(self._connect())
            return self._wire
