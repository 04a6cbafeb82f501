"""The source's side of the engine: receives raw messages from a queue, and settles them.

Of a source with sessions, one after the other is locked, and its messages are received and settled in order. Invariant:
the lock of a session belongs to its link. When that ends, all its unsettled messages are unlocked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Self, cast

from sbpair.amqp.link import Delivery
from sbpair.amqp.message import Sections
from sbpair.amqp.performatives import Outcome
from sbpair.amqp_client.client import AmqpClient, SessionReceiver, lock_token
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED, RawReceiver, dead_letter
from sbpair.errors import MessageLockLost, SbpairError, SessionLockLost, TimedOut, Unavailable, Unreachable
from sbpair.model.namespace_clock import ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS, NamespaceClock
from sbpair.move.filter import UndecodedMessages
from sbpair.move.interface import Failures, KeptMessage, PeekedHeader, ReceivedMessage, get_lock_until
from sbpair.move.message import envelope
from sbpair.move.message.decode import Content, Decoder
from sbpair.move.message.route import BACKLOG, Facts, MessageForm, field_getter
from sbpair.runs.journal import NO_KEY, Key

_MAX_RENEW = 100
_PAGE = 100
_id_of = attrgetter("id")
_payload_of, _delivery_of = attrgetter("payload"), attrgetter("delivery")
_number_of = field_getter(Facts, "sequence_number")

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""How long a receive waits for messages of a session before it asks the service whether there are more."""

_CLOSED = Unreachable("the session's link is closed", hint="the next run goes on")

MIN_LOCK_SECONDS = 5.0
"""The shortest lock of Service Bus."""


class ServiceClock:
    """`ahead_ms` is how far the service's clock is ahead of the local one, by the first lock."""

    def __init__(
        self, lock_seconds: float | None = ASSUMED_LOCK_SECONDS, namespace: NamespaceClock | None = None
    ) -> None:
        """Sample both clocks. A lock whose expiry makes no sense by the local clock lasts `lock_seconds`.

        Without it, each lasts as long as the first one by the local clock. The time goes to the clock of the
        `namespace`, too.
        """
        self._namespace, self._known_seconds = namespace, lock_seconds
        self.ahead_ms = 0
        self._lock_seconds = lock_seconds
        self._loop = asyncio.get_running_loop()
        self._known = False
        self._offset_ms = -math.inf
        self.sample()

    def sample(self) -> None:
        """Sample both clocks before lock expiry times are interpreted."""
        self._loop_time, self._wall = self._loop.time(), time.time()

    @property
    def service_ms(self) -> int | None:
        """The service's time in ms since 1970, independent of the local clock; None before the first lock.

        Rather too early than too late: by the duration of a response.
        """
        return int(1000 * self._loop.time() + self._offset_ms) if self._offset_ms > -math.inf else None

    def local_time(self, until_ms: int) -> float:
        """Convert a lock's expiry to the loop's clock. Assumes a whole lock for none, or for a longer one."""
        left = until_ms / 1000 - self._wall
        if self._lock_seconds is None:
            self._lock_seconds = min(max(float(round(left)), MIN_LOCK_SECONDS), MAX_LOCK_SECONDS)
        lock_seconds = self._lock_seconds
        if until_ms and not self._known:
            self._known = True
            self.ahead_ms = int(until_ms - 1000 * (lock_seconds + self._wall))
        if until_ms:
            # A lock's expiry is some time in transit: the latest of all estimates is nearest to the truth.
            self._offset_ms = max(self._offset_ms, until_ms - 1000 * (lock_seconds + self._loop_time))
            if self._namespace is not None:
                self._namespace.observe_lock(until_ms / 1000, self._known_seconds)
        return self._loop_time + (left if 1.0 <= left <= lock_seconds else lock_seconds)

    def local_times(self, locks: Sequence[int]) -> dict[int, float]:
        """Convert each distinct expiry: messages received together have few of them."""
        return {until_ms: self.local_time(until_ms) for until_ms in dict.fromkeys(locks)}


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
    """One source: receives messages under lock, and settles them."""

    def __init__(
        self,
        wire: AmqpClient,
        receiver: RawReceiver,
        queue: str,
        *,
        keeps_payload: bool = False,
        form: MessageForm = BACKLOG,
        lock_seconds: float | None = ASSUMED_LOCK_SECONDS,
    ) -> None:
        self.queue = queue
        self._keeps_payload = keeps_payload
        self._wire = wire
        self._receiver = receiver
        self._lock_seconds = lock_seconds
        self._clock = ServiceClock(lock_seconds, wire.endpoint.clock)
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(queue, form)
        self._facts_needed = False
        self.returned = 0
        """Messages that were prefetched and never received: `stop` released them."""

    @classmethod
    async def open(
        cls,
        wire: AmqpClient,
        queue: str,
        *,
        keeps_payload: bool = False,
        form: MessageForm = BACKLOG,
        lock_seconds: float | None = ASSUMED_LOCK_SECONDS,
    ) -> Self:
        """Open a receiver on `queue`. With `keeps_payload`, messages keep their raw payload.

        `lock_seconds` is the lock duration of the queue; None if unknown.
        """
        receiver = await cls._open_receiver(wire, queue)
        return cls(wire, receiver, queue, keeps_payload=keeps_payload, form=form, lock_seconds=lock_seconds)

    @classmethod
    async def _open_receiver(cls, wire: AmqpClient, queue: str) -> RawReceiver:
        return await wire.receiver(queue)

    @property
    def clock_ahead_ms(self) -> int:
        """How far the service's clock is ahead of the local one, by the first lock; 0 before it."""
        return self._clock.ahead_ms

    @property
    def service_ms(self) -> int | None:
        """The service's time in ms since 1970, by locks or else by other answers; None before any."""
        by_locks = self._clock.service_ms
        return self._wire.endpoint.clock.known_ms() if by_locks is None else by_locks

    @property
    def error(self) -> SbpairError | None:
        """Why no more messages can be received or settled; None while they can."""
        return self._receiver.error

    @property
    def broken(self) -> SbpairError | None:
        """Why the connection is lost; None while connected."""
        return self._wire.error

    async def wait_lost(self) -> None:
        await self._wire.lost()

    def abort(self, error: SbpairError) -> None:
        """End the connection for good: pending calls raise `error`."""
        self._wire.abort(error)

    def grant(self, limit: int) -> None:
        """Prefetch at most so many messages."""
        # Each grant costs a frame: none is needed while half of the credit is left.
        if not limit // 2 < self._receiver.credit < limit:
            self._receiver.grant(limit)

    async def reopen(self) -> bool:
        """Open the link again if the service closed it as unused. Return False if it was closed for another reason."""
        if not self._receiver.detached_idle:
            return False
        self._receiver.close()
        self._receiver = await self._wire.receiver(self.queue)
        return True

    def interrupt(self) -> None:
        self._receiver.interrupt()

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:
        """Receive messages, waiting up to `seconds` for the first; [] without any. Raises Unavailable."""
        return self._messages(await self._take(limit, seconds))

    async def receive_for_filter(self, limit: int, *, seconds: float) -> Sequence[ReceivedMessage]:
        """Receive messages as `receive` does, undecoded if their numbers can be read without that.

        Once a filter has asked for the facts of a message, all are decoded at once, which costs less than one by one.
        """
        if self._facts_needed:
            return await self.receive(limit, seconds=seconds)
        deliveries = await self._take(limit, seconds)
        undecoded = self._undecoded(deliveries)
        return self._messages(deliveries) if undecoded is None else undecoded

    async def _take(self, limit: int, seconds: float) -> list[Delivery]:
        deliveries = await self._receiver.take(limit, seconds=seconds)
        self._clock.sample()
        return deliveries

    def _undecoded(self, deliveries: list[Delivery]) -> UndecodedMessages | None:
        payloads = list(map(_payload_of, deliveries))
        numbers = self._decoder.read_numbers(payloads)
        # One without a number is kept by its tag.
        if numbers is None or 0 in numbers.sequence_numbers:
            return None
        for delivery in deliveries:
            delivery.payload = b""
        lock_ends = list(map(self._clock.local_times(numbers.locked_until).__getitem__, numbers.locked_until))
        return UndecodedMessages(numbers, lock_ends, deliveries, payloads, self._made, self._need_facts)

    def _need_facts(self) -> None:
        self._facts_needed = True

    async def stop(self) -> None:
        left = await self._receiver.stop()
        while left:
            try:
                await self._receiver.settle(left, RELEASED)
                self.returned += len(left)
            except SbpairError as error:
                log.info("%d messages of %s were not released: %s", len(left), self.queue, error)
            # Messages still in transit must not overtake released ones. After this disposition nothing more comes.
            left = self._receiver.take_remaining()
        if self._receiver.lost and self._wire.error is None:
            await self.unlock(self._receiver.lost)
            self._receiver.lost.clear()

    @property
    def lost(self) -> Sequence[Delivery]:
        """Prefetched messages that a lost connection left locked. Complete after `stop`."""
        return self._receiver.lost

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self._settle(messages, ACCEPTED)

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self._settle(messages, RELEASED)

    def keep(self, messages: Sequence[ReceivedMessage]) -> list[KeptMessage]:
        """Return all that has to be kept of messages until they are released."""
        mine = cast("Sequence[RawReceivedMessage]", messages)
        # Bytes that are not a message have no number.
        numbers = [each.facts.sequence_number or -int.from_bytes(each.delivery.tag) for each in mine]
        times = [each.facts.enqueued_at for each in mine]
        return list(map(KeptMessage, numbers, times, map(get_lock_until, mine), map(_delivery_of, mine)))

    async def release_kept(self, messages: Sequence[KeptMessage]) -> int:
        """Unlock messages, with their delivery count unchanged. Return how many failed."""
        deliveries = sorted(map(_delivery_of, messages), key=_id_of)
        return len(await self._receiver.settle_each(deliveries, RELEASED))

    async def dead_letter(self, message: ReceivedMessage, reason: str, description: str) -> None:
        for _, error in await self._settle([message], dead_letter(reason, description)):
            raise error

    async def renew(self, messages: Sequence[RawReceivedMessage | KeptMessage]) -> None:
        for start in range(0, len(messages), _MAX_RENEW):
            chunk = messages[start : start + _MAX_RENEW]
            tokens = [lock_token(message.delivery.tag) for message in chunk]
            until = await self._wire.renew_locks(self.queue, tokens)
            self._clock.sample()
            for message, until_ms in zip(chunk, until, strict=False):
                message.lock_until = self._clock.local_time(until_ms)

    async def delete(self, count: int, before_ms: int) -> int:
        """Delete up to `count` messages of before a time, unseen; return how many. Raises as `delete_batch` does."""
        return await self._wire.delete_batch(self.queue, count, before_ms)

    def peek_pages(self) -> AsyncIterator[list[PeekedHeader]]:
        return peek_queue(self._wire, self.queue)

    async def peek(self, start: int, count: int = _PAGE) -> list[PeekedHeader]:
        """Peek messages from a sequence number on; [] if there are none."""
        return await peek_headers(self._wire, self.queue, start, count)

    async def settle_by_token(self, messages: Sequence[ReceivedMessage], outcome: Outcome) -> Failures:
        """Settle messages whose link has ended, also one of an earlier connection, while they are locked.

        The service has no released here: RELEASED abandons. Returns failures as `complete` does.
        """
        mine = cast("Sequence[RawReceivedMessage]", messages)
        failed = await self._settle_tags([message.delivery.tag for message in mine], outcome)
        return [(message, failed[message.delivery.tag]) for message in mine if message.delivery.tag in failed]

    async def unlock(self, deliveries: Sequence[Delivery]) -> None:
        """Unlock deliveries of a lost link that were never received from it; best effort."""
        failed = await self._settle_tags([delivery.tag for delivery in deliveries], RELEASED)
        if deliveries:
            log.info("%s: %d of %d prefetched messages stay locked", self.queue, len(failed), len(deliveries))

    async def _settle_tags(self, tags: Sequence[bytes], outcome: Outcome) -> dict[bytes, SbpairError]:
        """Return the tags that were not settled."""
        failed: dict[bytes, SbpairError] = {}
        for start in range(0, len(tags), _MAX_RENEW):
            failed |= await self._settle_some(tags[start : start + _MAX_RENEW], outcome)
        return failed

    async def _settle_some(self, tags: Sequence[bytes], outcome: Outcome) -> dict[bytes, SbpairError]:
        try:
            await self._wire.settle_locked(self.queue, list(map(lock_token, tags)), outcome, self._session_for(tags))
        except MessageLockLost as error:
            # One lost lock refuses all: halves find it.
            half = len(tags) // 2
            if not half:
                return {tags[0]: error}
            return await self._settle_some(tags[:half], outcome) | await self._settle_some(tags[half:], outcome)
        except SbpairError as error:
            return dict.fromkeys(tags, error)
        return {}

    def _session_for(self, tags: Sequence[bytes]) -> SessionReceiver | None:  # noqa: ARG002  # of deferred messages
        """Return the session whose lock the tags need."""
        return None

    async def _settle(self, messages: Sequence[ReceivedMessage], outcome: Outcome) -> Failures:
        mine = cast("Sequence[RawReceivedMessage]", messages)
        # In delivery order: one disposition settles a contiguous range.
        deliveries = sorted(map(_delivery_of, mine), key=_id_of)
        failures = await self._receiver.settle_each(deliveries, outcome)
        if not failures:
            return []
        by_delivery = {message.delivery.id: message for message in mine}
        if self._receiver.error is not None and self._wire.error is None:
            # Locks outlive their link.
            left = [by_delivery[delivery.id] for delivery, error in failures if isinstance(error, Unavailable)]
            unsettled = await self.settle_by_token(left, outcome)
            lost = [(each, error) for each, error in failures if not isinstance(error, Unavailable)]
            return unsettled + [(by_delivery[delivery.id], error) for delivery, error in lost]
        return [(by_delivery[delivery.id], error) for delivery, error in failures]

    def _messages(self, deliveries: list[Delivery]) -> list[RawReceivedMessage]:
        payloads = list(map(_payload_of, deliveries))
        for delivery in deliveries:
            delivery.payload = b""
        return self._made(deliveries, payloads)

    def _made(
        self, deliveries: list[Delivery], payloads: list[bytes], lock_ends: Sequence[float] = ()
    ) -> list[RawReceivedMessage]:
        """Return decoded messages. Without `lock_ends`, these follow from the messages."""
        if not deliveries:
            return []
        facts, contents, partition_keys, locks = self._decoder.decode_columns(payloads)
        lock_ends = lock_ends or list(map(self._clock.local_times(locks).__getitem__, locks))
        ordinals = map(_number_of, facts)
        messages = list(map(RawReceivedMessage, facts, lock_ends, deliveries, contents, ordinals, partition_keys))
        if self._keeps_payload:
            for message, payload in zip(messages, payloads, strict=True):
                message.payload = payload
        if not all(contents):
            for message in messages:
                if message.content is None:
                    message.facts = message.facts._replace(message_id=f"delivery {message.delivery.tag.hex()}")
        return messages


async def settle_left(
    source: RawSource, accepted: Sequence[ReceivedMessage], others: Sequence[ReceivedMessage]
) -> list[ReceivedMessage]:
    """Complete accepted messages that a lost connection left locked, and release others. Return those completed.

    The locks of those that cannot be settled expire by themselves.
    """
    now = asyncio.get_running_loop().time()
    completed: list[ReceivedMessage] = []
    for messages, outcome in ((accepted, ACCEPTED), (others, RELEASED)):
        locked = [each for each in messages if each.lock_until > now]
        failed = {id(each) for each, _ in await source.settle_by_token(locked, outcome)}
        if locked:
            settled = len(locked) - len(failed)
            log.info("%s: %d of %d messages settled over a new connection", source.queue, settled, len(locked))
        if outcome is ACCEPTED:
            completed = [each for each in locked if id(each) not in failed]
    return completed


class _UnlockedWithLink(RawSource):
    """A source with sessions: what is locked ends with its link, and is never settled over another one."""

    @property
    def lost(self) -> Sequence[Delivery]:
        return ()

    async def unlock(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: the lock of a session ends with its link."""

    async def settle_by_token(self, messages: Sequence[ReceivedMessage], outcome: Outcome) -> Failures:  # noqa: ARG002
        return [(message, _CLOSED) for message in messages]


class SessionsSource(_UnlockedWithLink):
    """A source with sessions, before one is locked: it can be peeked, and gives the next session."""

    @classmethod
    async def _open_receiver(cls, wire: AmqpClient, queue: str) -> RawReceiver:  # noqa: ARG003
        return cast("RawReceiver", None)

    async def next_session(self, seconds: float) -> SessionSource | None:
        """Lock the next session that has messages; None if none is free within `seconds`. Raises Unavailable."""
        try:
            receiver = await self._wire.next_session(self.queue, seconds)
        except TimedOut:
            if self._wire.error is not None:
                raise
            return None
        session = SessionSource(
            self._wire, receiver, self.queue, keeps_payload=self._keeps_payload, lock_seconds=self._lock_seconds
        )
        session._decoder = self._decoder  # the messages of most sessions are alike
        return session

    @property
    def error(self) -> SbpairError | None:
        return self._wire.error

    def interrupt(self) -> None:
        """Do nothing: no receive waits."""

    async def stop(self) -> None:
        """Do nothing: nothing was received."""


class SessionSource(_UnlockedWithLink):
    """One locked session: an empty receive means that it has no more messages now."""

    _receiver: SessionReceiver

    def close(self) -> None:
        self._receiver.close()

    async def reopen(self) -> bool:
        return False

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:
        """Receive messages; [] if the session has none now. Raises Unavailable."""
        messages = await super().receive(limit, seconds=min(seconds, GATHER_SECONDS))
        if messages:
            return messages
        await self._receiver.drain()
        return await super().receive(limit, seconds=0.0)

    async def renew(self, messages: Sequence[RawReceivedMessage | KeptMessage]) -> None:
        try:
            until_ms = await self._wire.renew_session(self._receiver)
        except SessionLockLost as error:
            raise MessageLockLost(error.message, hint=error.hint) from error
        self._clock.sample()
        for message in messages:
            message.lock_until = self._clock.local_time(until_ms)


async def peek_queue(wire: AmqpClient, queue: str) -> AsyncGenerator[list[PeekedHeader]]:
    """Peek all messages of a queue, locked ones included, page by page."""
    start = 0
    while page := await peek_headers(wire, queue, start):
        yield page
        highest = max(each.sequence_number for each in page)
        if highest < start:
            return  # an unreadable message hides the ones after it
        start = highest + 1


async def peek_headers(wire: AmqpClient, queue: str, start: int, count: int = _PAGE) -> list[PeekedHeader]:
    """Peek messages from a sequence number on, without their bodies; [] if there are none."""
    return [_header_of(Sections.split(payload)) for payload in await wire.peek(queue, start, count, bodies=False)]


def _header_of(sections: Sections) -> PeekedHeader:
    state = envelope.message_state(sections)
    return PeekedHeader(
        envelope.sequence_number(sections),
        envelope.enqueued_at(sections),
        active=state not in (envelope.DEFERRED, envelope.SCHEDULED),
        deferred=state == envelope.DEFERRED,
    )
