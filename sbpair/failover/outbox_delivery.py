"""Delivery of an outbox: to an entity as the messages were given, or to the backlog.

Invariant: an entity's messages leave in order. Each is sent after the earlier ones are accepted, and removed from the
file once it is accepted. A message sent without an answer is sent again and reported, also by the next process.

A time to live continues in the outbox: by the seconds that pass while the process lives, and by the service's time, or
else this machine's, after that. A message that has expired is delivered with 1 ms left, so that the entity treats it
like any expired message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp import splice
from sbpair.amqp.message import APPLICATION_PROPERTIES, Sections
from sbpair.amqp.types import Described, Long
from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import signed_in
from sbpair.backlog import TIME_TO_LIVE, TIMESPAN
from sbpair.errors import Exhausted, InDoubt, SbpairError, ServiceRefused
from sbpair.failover.events import OutboxExpired, OutboxRefused, SendInDoubt
from sbpair.failover.failures import describe_error, to_sdk_error
from sbpair.move.message.batches import BatchKey, batches, encode_batch
from sbpair.move.message.envelope import partition_key, read_facts, restore
from sbpair.move.message.route import Send, route, waited_ms
from sbpair.timespan import TICKS_PER_MS

if TYPE_CHECKING:
    from sbpair.amqp_client.raw_links import RawSender
    from sbpair.failover.outbox import Outbox, OutboxMessage
    from sbpair.failover.shared_state import FailoverState, SendTarget
    from sbpair.model.pair import Pair

ROUND_MESSAGES, ROUND_BYTES = 500, 2 * 1024 * 1024
"""How much is read from the file at a time."""

TURN_SECONDS = 10.0
"""How long one entity is delivered before the next timer task has its turn."""

MIN_LIFE_MS = 1


class PreparedMessage(NamedTuple):
    """A message of the outbox, encoded for its target."""

    stored: OutboxMessage
    message_id: str
    key: BatchKey
    expired: bool
    payload: bytes


@dataclass(eq=False, repr=False)
class OutboxDelivery:
    """Delivers the outbox of one client. `counts(sdk_error)` returns whether it counts as unavailability."""

    pair: Pair
    state: FailoverState
    outbox: Outbox
    counts: Callable[[Exception], bool]
    now: Callable[[], float] = time.monotonic

    async def run(self, entity: str) -> None:
        """Deliver an entity's messages while a side accepts them. Reports errors to the failover state."""
        state, now = self.state, self.now
        until, error = now() + TURN_SECONDS, None
        target = state.target_for(entity, None, now())
        while target is not None and now() < until:
            try:
                await self._deliver_to(entity, target, until)
                error = None
            except SbpairError as caught:
                error = self._failed(entity, target, caught)
            if not self.outbox.holds(entity):
                state.outbox_emptied(entity)
                if self.outbox.holds(entity):
                    # A thread put a message between the two: it took this delivery for the one that delivers it.
                    state.outbox_stored(entity, None, now())
                return
            before, target = target, state.target_for(entity, target.path, now())
            if error is not None and target == before:
                break
        if self.outbox.holds(entity):
            state.outbox_remains(entity, error, target, now())

    def _failed(self, entity: str, target: SendTarget, error: SbpairError) -> Exception:
        sdk_error = to_sdk_error(error)
        if target.side == "backlog":
            if not isinstance(error, ServiceRefused | Exhausted):
                self.state.queue_failed(target.path, sdk_error, self.now())
        elif target.side == "primary" and self.counts(sdk_error):
            self.state.primary_failed(entity, sdk_error, self.now())
        return sdk_error

    async def _deliver_to(self, entity: str, target: SendTarget, until: float) -> None:
        """Deliver to one target while messages and time remain and the target does not change."""
        endpoint = self.pair.primary if target.side == "primary" else self.pair.secondary
        async with signed_in(connect, endpoint) as client:
            link = await client.sender(target.path)
            alone = 0
            while rows := await asyncio.to_thread(self.outbox.peek, entity, ROUND_MESSAGES, ROUND_BYTES):
                if self.now() >= until or self.state.target_for(entity, target.path, self.now()) != target:
                    return
                now_ms, restored = endpoint.clock.now_ms(), target.side != "backlog"
                prepared = [prepare_delivery(row, now_ms, restored=restored) for row in rows]
                batch = next(batches(prepared, link.max_batch_size))
                if alone:
                    batch, alone = batch[:1], alone - 1
                try:
                    await self._send(entity, link, batch)
                except ServiceRefused as error:
                    if len(batch) == 1 and target.side == "backlog":
                        raise
                    if len(batch) == 1:
                        self.outbox.refuse(entity, batch[0].stored)
                        reason = describe_error(to_sdk_error(error))
                        self.state.publish(OutboxRefused(entity, (batch[0].message_id,), reason))
                    alone = len(batch) if len(batch) > 1 else alone
                else:
                    self._accepted(entity, target)

    async def _send(self, entity: str, link: RawSender, batch: Sequence[PreparedMessage]) -> None:
        """Send a batch, and remove it once it is accepted. After an unanswered attempt it stays marked."""
        rows = [each.stored for each in batch]
        if doubtful := tuple(each.message_id for each in batch if each.stored.tried):
            error = InDoubt("an earlier delivery was never answered")
            self.state.publish(SendInDoubt(entity, doubtful, describe_error(error)))
        if expired := tuple(each.message_id for each in batch if each.expired):
            self.state.publish(OutboxExpired(entity, expired))
        await asyncio.to_thread(self.outbox.mark, rows, tried=True)
        try:
            payload, kind = encode_batch(batch)
            await link.send(payload, message_format=kind)
        except InDoubt:
            raise
        except SbpairError:
            await asyncio.to_thread(self.outbox.mark, [each for each in rows if not each.tried], tried=False)
            raise
        await asyncio.to_thread(self.outbox.remove, entity, rows)

    def _accepted(self, entity: str, target: SendTarget) -> None:
        if target.side == "primary":
            self.state.primary_accepted(entity, self.now())
        elif target.side == "backlog":
            self.state.queue_accepted(target.path, self.now())


def prepare_delivery(stored: OutboxMessage, now_ms: int, *, restored: bool) -> PreparedMessage:
    """Return the message as it is sent now: `restored` as it was given, or for a backlog queue."""
    sections, facts = read_facts("", stored.message)
    send = route(facts)
    if not isinstance(send, Send):
        # Unexpected: this package wrote it, for an entity whose path was checked.
        raise ServiceRefused("a message of the outbox cannot be read", condition="amqp:decode-error")
    left_ms, expired = None, False
    if send.ttl_ms is not None:
        left_ms = send.ttl_ms - waited_ms(facts._replace(enqueued_at=now_ms - stored.waited_ms), now_ms)
        left_ms, expired = max(MIN_LIFE_MS, left_ms), left_ms <= 0
    if restored:
        payload = restore(sections, send._replace(ttl_ms=left_ms), now_ms)
    else:
        payload = stored.message if left_ms is None else _with_remaining_ttl(sections, left_ms)
    key = BatchKey(send.session_id if restored else None, partition_key(sections))
    return PreparedMessage(stored, facts.message_id or "", key, expired, payload)


def _with_remaining_ttl(sections: Sections, left_ms: int) -> bytes:
    """Return the message for the backlog with the remaining time to live."""
    others = splice.without(sections.application_properties, lambda key: key == TIME_TO_LIVE)
    ttl = {TIME_TO_LIVE: Described(TIMESPAN, Long(left_ms * TICKS_PER_MS))}
    sections.application_properties = splice.with_pairs(others, APPLICATION_PROPERTIES, ttl)
    return sections.join()
