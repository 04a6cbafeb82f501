"""Taking messages out of an outbox: to the primary as they were given, or into the backlog, whichever there is.

The law: one entity's messages leave in their order, each only after those in front of it are accepted, and are removed
from the file only then. What was sent without an answer is sent again, and named, also by the next process.

Their time to live goes on in the outbox, by this machine's clock. One that has outlived it is delivered with 1 ms left:
the entity does with it what it does with all that is too old.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp import splice
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    MESSAGE_ANNOTATIONS,
    Properties,
    Sections,
    batch_of,
    encode_map,
)
from sbpair.amqp.types import Described, Long, Symbol
from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import token_getter_for
from sbpair.backlog import TICKS_PER_MS, TIME_TO_LIVE, TIMESPAN
from sbpair.errors import InDoubt, SbpairError, ServiceRefused
from sbpair.failover.failures import as_sdk
from sbpair.move.message.envelope import PARTITION_KEY, partition_key, read_facts, restore
from sbpair.move.message.route import Send, route, waited_ms

if TYPE_CHECKING:
    from sbpair.amqp_client.raw_links import RawSender
    from sbpair.failover.failover_state import FailoverState, SendTarget
    from sbpair.failover.outbox import Outbox, OutboxMessage
    from sbpair.model.pair import Pair

ROUND_MESSAGES, ROUND_BYTES = 500, 2 * 1024 * 1024
"""So much is read from the file at a time."""

TURN_SECONDS = 10.0
"""After so long another entity, or a ping, has its turn."""

MIN_LIFE_MS = 1
ENVELOPE_BYTES, MEMBER_BYTES = 1_024, 8


class Outgoing(NamedTuple):
    """A message of the outbox as it leaves. `key` is (session id, partition key)."""

    kept: OutboxMessage
    message_id: str
    key: tuple[str | None, str | None]
    expired: bool
    payload: bytes


class Deliveries:
    """Of one client. `counts` tells which errors, in the SDK's words, say that an entity is away."""

    def __init__(
        self,
        pair: Pair,
        known: FailoverState,
        outbox: Outbox,
        counts: Callable[[Exception], bool],
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pair = pair
        self._known = known
        self._outbox = outbox
        self._counts = counts
        self._now = now
        self._clock = clock

    async def run(self, entity: str) -> None:
        """Deliver what there is of an entity, for as long as a side takes it. Raises nothing of its own."""
        known, now = self._known, self._now
        until, error = now() + TURN_SECONDS, None
        place = known.place_for(entity, None, now())
        while place is not None and now() < until:
            try:
                await self._through(entity, place, until)
                error = None
            except SbpairError as caught:
                error = self._failed(entity, place, caught)
            if not self._outbox.holds(entity):
                known.emptied(entity)
                break
            before, place = place, known.place_for(entity, place.path, now())
            if error is not None and place == before:
                break
        if self._outbox.holds(entity):
            known.held(entity, error, place, now())

    def _failed(self, entity: str, place: SendTarget, error: SbpairError) -> Exception:
        meant = as_sdk(error)
        if place.side == "backlog":
            if not isinstance(error, ServiceRefused):
                self._known.queue_failed(place.path, meant, self._now())
        elif self._counts(meant):
            self._known.failed(entity, meant, self._now())
        return meant

    async def _through(self, entity: str, place: SendTarget, until: float) -> None:
        """Deliver to one place, while there is something, and time, and it is the one to turn to."""
        endpoint = self._pair.primary if place.side == "primary" else self._pair.secondary
        async with (
            token_getter_for(endpoint.credential, endpoint.name) as get_token,
            connect(endpoint, get_token=get_token) as wire,
        ):
            link = await wire.sender(place.path)
            alone = 0
            while rows := await asyncio.to_thread(self._outbox.first, entity, ROUND_MESSAGES, ROUND_BYTES):
                if self._now() >= until or self._known.place_for(entity, place.path, self._now()) != place:
                    return
                batch = _batch([self._made(row, place) for row in rows], link.max_batch_size)
                if alone:
                    batch, alone = batch[:1], alone - 1
                try:
                    await self._send(entity, link, batch)
                except ServiceRefused as error:
                    if len(batch) == 1 and place.side == "backlog":
                        raise
                    if len(batch) == 1:
                        self._refused(entity, batch[0], error)
                    alone = len(batch) if len(batch) > 1 else alone
                else:
                    self._accepted(entity, place)

    async def _send(self, entity: str, link: RawSender, batch: Sequence[Outgoing]) -> None:
        """Send, and remove what was accepted. What is not answered for stays marked."""
        rows = [each.kept for each in batch]
        if doubtful := tuple(each.message_id for each in batch if each.kept.tried):
            self._known.in_doubt(entity, doubtful, InDoubt("an earlier delivery was never answered"))
        if expired := tuple(each.message_id for each in batch if each.expired):
            self._known.expired(entity, expired)
        await asyncio.to_thread(self._outbox.mark, rows, tried=True)
        try:
            payload, kind = _parcel(batch)
            await link.send(payload, message_format=kind)
        except InDoubt:
            raise
        except SbpairError:
            await asyncio.to_thread(self._outbox.mark, [each for each in rows if not each.tried], tried=False)
            raise
        await asyncio.to_thread(self._outbox.remove, entity, rows)

    def _accepted(self, entity: str, place: SendTarget) -> None:
        if place.side == "primary":
            self._known.sent(entity, self._now())
        else:
            self._known.queue_took(place.path, self._now())

    def _refused(self, entity: str, one: Outgoing, error: SbpairError) -> None:
        self._outbox.refuse(entity, one.kept)
        self._known.refused(entity, (one.message_id,), as_sdk(error))

    def _made(self, kept: OutboxMessage, place: SendTarget) -> Outgoing:
        now_ms = int(self._clock() * 1000)
        return made(kept, now_ms, for_primary=place.side == "primary")


def made(kept: OutboxMessage, now_ms: int, *, for_primary: bool) -> Outgoing:
    """The message as it leaves now."""
    sections, facts = read_facts("", kept.message)
    send = route(facts)
    if not isinstance(send, Send):
        # It was written by this package, for an entity whose path was checked.
        raise ServiceRefused("a message of the outbox cannot be read", condition="amqp:decode-error")
    left_ms, expired = None, False
    if send.ttl_ms is not None:
        left_ms = send.ttl_ms - waited_ms(facts._replace(enqueued_at=kept.at_ms), now_ms)
        left_ms, expired = max(MIN_LIFE_MS, left_ms), left_ms <= 0
    if for_primary:
        payload = restore(sections, send._replace(ttl_ms=left_ms), now_ms)
    else:
        payload = kept.message if left_ms is None else _with_life(sections, left_ms)
    key = (send.session_id if for_primary else None), partition_key(sections)
    return Outgoing(kept, facts.message_id or "", key, expired, payload)


def _with_life(sections: Sections, left_ms: int) -> bytes:
    """A backlog's message that has so much of its time to live left."""
    kept = splice.without(sections.application_properties, lambda key: key == TIME_TO_LIVE)
    life = {TIME_TO_LIVE: Described(TIMESPAN, Long(left_ms * TICKS_PER_MS))}
    sections.application_properties = splice.with_pairs(kept, APPLICATION_PROPERTIES, life)
    return sections.join()


def _batch(messages: Sequence[Outgoing], max_bytes: int) -> list[Outgoing]:
    """The first ones that may be in one batch: of one key, for queues in partitions take nothing else."""
    _, same = next(groupby(messages, lambda each: each.key))
    batch: list[Outgoing] = []
    left = max_bytes - ENVELOPE_BYTES
    for each in same:
        left -= len(each.payload) + MEMBER_BYTES
        if batch and left < 0:
            break
        batch.append(each)
    return batch


def _parcel(batch: Sequence[Outgoing]) -> tuple[bytes, int]:
    """What is sent, and its message-format."""
    if len(batch) == 1:
        return batch[0].payload, 0
    session_id, key = batch[0].key
    envelope = b""
    if session_id is not None:
        envelope = Properties(group_id=session_id).encode()
    elif key is not None:
        envelope = encode_map(MESSAGE_ANNOTATIONS, {Symbol(PARTITION_KEY): key})
    return batch_of([each.payload for each in batch], envelope), BATCH_FORMAT
