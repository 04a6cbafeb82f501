"""The backlog's side of the engine: receives raw messages from a queue, and settles them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import AmqpClient, lock_token
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED, dead_letter
from sbpair.errors import SbpairError
from sbpair.model.message_key import NO_KEY
from sbpair.move.interface import PeekedHeader
from sbpair.move.message import envelope
from sbpair.move.message.decode import Decoder
from sbpair.move.service_clock import Now, ServiceClock

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp.performatives import Outcome
    from sbpair.amqp_client.raw_links import RawReceiver
    from sbpair.model.message_key import Key
    from sbpair.move.interface import Failures, ReceivedMessage
    from sbpair.move.message.decode import Content
    from sbpair.move.message.route import Facts

_MAX_RENEW = 100
_PAGE = 100
_id_of = attrgetter("id")
_payload_of, _delivery_of = attrgetter("payload"), attrgetter("delivery")
_number_of = attrgetter("sequence_number")

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RawReceivedMessage:
    """`content` is None for an undecodable payload; `facts` have the reason.

    `payload` is the raw message, if the source keeps payloads.
    """

    facts: Facts
    lock_until: float
    delivery: Delivery
    content: Content | None
    ordinal: int
    partition_key: str | None = None
    key: Key = NO_KEY
    payload: bytes = b""


class RawSource:
    def __init__(
        self, wire: AmqpClient, receiver: RawReceiver, queue: str, now: Now = time.time, *, keeps_payload: bool = False
    ) -> None:
        self.queue = queue
        self._keeps_payload = keeps_payload
        self._wire = wire
        self._receiver = receiver
        self._clock = ServiceClock(now)
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(queue)

    @classmethod
    async def open(cls, wire: AmqpClient, queue: str, *, keeps_payload: bool = False) -> RawSource:
        """Open a receiver on `queue`. With `keeps_payload`, messages keep their raw payload."""
        return cls(wire, await wire.receiver(queue), queue, keeps_payload=keeps_payload)

    @property
    def clock_ahead_ms(self) -> int:
        return self._clock.ahead_ms

    @property
    def service_ms(self) -> int | None:
        return self._clock.service_ms

    @property
    def error(self) -> SbpairError | None:
        return self._receiver.error

    @property
    def broken(self) -> SbpairError | None:
        return self._wire.error

    async def wait_lost(self) -> None:
        await self._wire.lost()

    def abort(self, error: SbpairError) -> None:
        self._wire.abort(error)

    def grant(self, limit: int) -> None:
        # Each grant costs a frame: none is needed while half of the credit is left.
        if not limit // 2 < self._receiver.credit < limit:
            self._receiver.grant(limit)

    async def reopen(self) -> bool:
        if not self._receiver.detached_idle:
            return False
        self._receiver.close()
        self._receiver = await self._wire.receiver(self.queue)
        return True

    def interrupt(self) -> None:
        self._receiver.interrupt()

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:
        deliveries = await self._receiver.take(limit, seconds=seconds)
        self._clock.sample()
        return self._messages(deliveries)

    async def stop(self) -> None:
        left = await self._receiver.stop()
        while left:
            try:
                await self._receiver.settle(left, RELEASED)
            except SbpairError as error:
                log.info("%d messages of %s were not released: %s", len(left), self.queue, error)
            # Messages still in transit must not overtake released ones. After this disposition nothing more comes.
            left = self._receiver.take_remaining()

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self._settle(messages, ACCEPTED)

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self._settle(messages, RELEASED)

    async def dead_letter(self, message: ReceivedMessage, reason: str, description: str) -> None:
        for _, error in await self._settle([message], dead_letter(reason, description)):
            raise error

    async def renew(self, messages: Sequence[ReceivedMessage]) -> None:
        mine = cast("Sequence[RawReceivedMessage]", messages)
        for start in range(0, len(mine), _MAX_RENEW):
            chunk = mine[start : start + _MAX_RENEW]
            tokens = [lock_token(message.delivery.tag) for message in chunk]
            until = await self._wire.renew_locks(self.queue, tokens)
            self._clock.sample()
            for message, until_ms in zip(chunk, until, strict=False):
                message.lock_until = self._clock.local_time(until_ms)

    def peek_pages(self) -> AsyncIterator[list[PeekedHeader]]:
        return peek_queue(self._wire, self.queue)

    async def _settle(self, messages: Sequence[ReceivedMessage], outcome: Outcome) -> Failures:
        mine = cast("Sequence[RawReceivedMessage]", messages)
        # In delivery order: one disposition settles a contiguous range.
        deliveries = sorted(map(_delivery_of, mine), key=_id_of)
        failures = await self._receiver.settle_each(deliveries, outcome)
        by_delivery = {message.delivery.id: message for message in mine} if failures else {}
        return [(by_delivery[delivery.id], error) for delivery, error in failures]

    def _messages(self, deliveries: list[Delivery]) -> list[RawReceivedMessage]:
        if not deliveries:
            return []
        payloads = list(map(_payload_of, deliveries))
        facts, contents, partition_keys, locks = zip(*self._decoder.decode(payloads), strict=True)
        lock_ends = map(self._clock.local_times(locks).__getitem__, locks)
        ordinals = map(_number_of, facts)
        messages = list(map(RawReceivedMessage, facts, lock_ends, deliveries, contents, ordinals, partition_keys))
        for delivery in deliveries:
            delivery.payload = b""
        if self._keeps_payload:
            for message, payload in zip(messages, payloads, strict=True):
                message.payload = payload
        if not all(contents):
            for message in messages:
                if message.content is None:
                    message.facts = message.facts._replace(message_id=f"delivery {message.delivery.tag.hex()}")
        return messages


async def peek_queue(wire: AmqpClient, queue: str) -> AsyncIterator[list[PeekedHeader]]:
    """Peek all messages of a queue, locked ones included, page by page."""
    start = 0
    while payloads := await wire.peek(queue, start, _PAGE):
        page = [_header_of(Sections.split(payload)) for payload in payloads]
        yield page
        start = page[-1].sequence_number + 1


def _header_of(sections: Sections) -> PeekedHeader:
    return PeekedHeader(
        envelope.sequence_number(sections), envelope.enqueued_at(sections), envelope.is_deferred(sections)
    )
