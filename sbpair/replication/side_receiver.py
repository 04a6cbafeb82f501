"""One side of a deduplicating receiver: its SDK receivers, its back-off, and the removal of its duplicates in bulk.

Duplicates in bulk are received without an SDK, and completed in ranges. Invariant: a message that is not a duplicate is
then released at once, which leaves its delivery count as it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from azure.servicebus import ServiceBusReceivedMessage

from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED
from sbpair.azure.credentials import open_tokens
from sbpair.azure.data_plane import UNREADABLE_HINT, is_answer
from sbpair.errors import SbpairError, UnreadableMessage
from sbpair.failover.side_connections import close_quietly, has_next_key
from sbpair.model.retries import Backoff
from sbpair.sync_async import Call, Steps

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.amqp_client.client import AmqpClient
    from sbpair.amqp_client.raw_links import RawReceiver
    from sbpair.model.pair import Endpoint, Pair, Side

log = logging.getLogger(__name__)

OPEN_SECONDS = 10.0

SIDE_BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)
"""Pause after a first failure of a side, doubled for each further one, and its maximum."""

BACKOFF_FACTOR = 4
"""The pause is at least so many times as long as the failure took: the other side gets most of the time."""

MIN_WAIT_SECONDS = 0.05
"""A receive that returns nothing sooner has not waited."""

MIN_STREAK, MAX_STREAK = 2, 256
"""So many receives in a row bring nothing but duplicates, before those are removed in bulk."""

MIN_BULK = 50
"""Fewer duplicates are not worth another connection: the next attempt comes after twice as many receives."""

BATCH = 250
"""Messages received at once: so many that are not duplicates may be released."""

BULK_SECONDS = 2.0
"""How long duplicates of one side are removed before it is the other's turn."""

BULK_WAIT_SECONDS = 0.3
"""How long to wait for a message before the rest counts as removed."""

DuplicateKey = Callable[[ServiceBusReceivedMessage], str | None]
"""Returns the key of a message if it is a duplicate, else None."""


class Removed(NamedTuple):
    """Completed duplicates as (key, sequence number). `more`: the turn ended before the duplicates did."""

    duplicates: list[tuple[str, int]]
    more: bool


class SideReceiver:
    """One side's receivers: the current one, and broken ones whose messages are still to be settled.

    `remove_duplicates` removes those of this side in bulk; `has_more_duplicates` is whether it has not finished.
    """

    def __init__(
        self, side: Side, make: Callable[[Side], Any], remove_duplicates: Callable[[DuplicateKey], Removed]
    ) -> None:
        self.side = side
        self.remove_duplicates = remove_duplicates
        self.has_more_duplicates = False
        self.rests_until = 0.0
        self._streak, self._min_streak = 0, MIN_STREAK
        self._make = make
        self._receiver: Any = None
        self._broken: list[Any] = []
        self.failures = 0
        self.backs_off_until = 0.0
        self.error: Exception | None = None

    def receive(self, limit: int, seconds: float) -> Steps[tuple[Any, list[Any]]]:
        """Return the receiver and its messages."""
        if self._receiver is None:
            self._receiver = self._make(self.side)
            # Both kinds of receivers connect when they are entered.
            enter = getattr(self._receiver, "__aenter__", None) or self._receiver.__enter__
            yield Call(lambda *_: enter(), self._receiver, OPEN_SECONDS)
        receiver, started = self._receiver, time.monotonic()
        found = yield Call(
            lambda sdk, _: sdk.receive_messages(max_message_count=limit, max_wait_time=seconds),
            receiver,
            seconds + OPEN_SECONDS,
        )
        if not found and time.monotonic() < started + MIN_WAIT_SECONDS < started + seconds:
            # The SDK reports no error for some messages that it cannot decode, and receives nothing afterwards.
            raise UnreadableMessage(
                f"receiving from the {self.side}: azure-servicebus receives nothing any more", hint=UNREADABLE_HINT
            )
        return receiver, found

    @property
    def expects_duplicates(self) -> bool:
        """Whether duplicates are to be removed in bulk now."""
        return self.has_more_duplicates or self._streak >= self._min_streak

    def note_received(self, messages: int, duplicates: int, rests_until: float) -> None:
        """Record a receive. Without messages, the side rests for a while."""
        self.rests_until = 0.0 if messages else rests_until
        if messages:
            self._streak = self._streak + 1 if duplicates == messages else 0

    def note_removed(self, removed: Removed) -> None:
        self.has_more_duplicates = removed.more
        self._streak = 0
        few = len(removed.duplicates) < MIN_BULK
        self._min_streak = min(2 * self._min_streak, MAX_STREAK) if few else MIN_STREAK

    def failed(self, error: BaseException, receiver: Any = None) -> None:
        """Replace a receiver that failed without an answer. Its messages are still settled with it."""
        if self._receiver is not None and receiver in (None, self._receiver) and not is_answer(error):
            self._broken.append(self._receiver)
            self._receiver = None

    def has_next_key(self, error: BaseException) -> Steps[bool]:
        """Return whether an error of `receive` refuses a key that has been replaced since."""
        return has_next_key(self._receiver, error)

    def back_off(self, error: Exception, now: float, took_seconds: float) -> bool:
        """Pause this side. Returns whether this is its first failure."""
        self.error = error
        self.failures += 1
        self.backs_off_until = now + max(SIDE_BACKOFF.seconds(self.failures), took_seconds * BACKOFF_FACTOR)
        return self.failures == 1

    def recover(self) -> bool:
        """Record an answer. Returns whether the side had failed before."""
        had_failed, self.failures, self.error = self.failures > 0, 0, None
        return had_failed

    def close(self, needed: frozenset[int] | None = None) -> Steps[None]:
        """Close broken receivers, because an open link may be given messages; all receivers if `needed` is None.

        `needed` are the `id` of receivers that still have messages to settle.
        """
        if needed is None and self._receiver is not None:
            self._broken.append(self._receiver)
            self._receiver = None
        idle = [each for each in self._broken if needed is None or id(each) not in needed]
        self._broken = [each for each in self._broken if each not in idle]
        for receiver in idle:
            yield from close_quietly(receiver)


def remove_duplicates(pair: Pair, endpoint: Endpoint, path: str, duplicate_key: DuplicateKey) -> Removed:
    """Remove duplicates up to the first other message, for a turn. Blocks. Raises nothing but programming errors."""
    removal = _BulkRemoval(pair, endpoint, path, duplicate_key)
    # In a thread of its own: the caller's may have an event loop that is running.
    with ThreadPoolExecutor(1, thread_name_prefix="sbpair") as thread:
        return thread.submit(asyncio.run, removal.run()).result()


class _BulkRemoval:
    def __init__(self, pair: Pair, endpoint: Endpoint, path: str, duplicate_key: DuplicateKey) -> None:
        self._pair, self._endpoint, self._path = pair, endpoint, path
        self._duplicate_key = duplicate_key
        self._removed: list[tuple[str, int]] = []

    async def run(self) -> Removed:
        more = False
        try:
            async with (
                open_tokens() as get_token,
                connect(self._endpoint, get_token=get_token) as client,
            ):
                more = await self._remove(client)
        except SbpairError as error:
            log.info("duplicates in %s of %s stay for now: %s", self._path, self._endpoint.name, error.message)
        return Removed(self._removed, more)

    async def _remove(self, client: AmqpClient) -> bool:
        """Return whether more duplicates may follow."""
        receiver = await client.receiver(self._path)
        loop, is_last = asyncio.get_running_loop(), False
        until = loop.time() + BULK_SECONDS
        try:
            while not is_last and loop.time() < until:
                receiver.grant(BATCH)
                deliveries = await receiver.take(BATCH, seconds=BULK_WAIT_SECONDS)
                is_last = await self._settle(receiver, deliveries)
        finally:
            left = await receiver.stop()
            while left:
                await receiver.settle_each(left, RELEASED)
                left = receiver.take_remaining()
        return not is_last

    async def _settle(self, receiver: RawReceiver, deliveries: list[Delivery]) -> bool:
        """Complete duplicates and release the others. Return whether these were the last duplicates."""
        duplicates: dict[int, tuple[str, int]] = {}
        for delivery in deliveries:
            if found := self._judge(delivery):
                duplicates[delivery.id] = found
        others = [each for each in deliveries if each.id not in duplicates]
        await receiver.settle_each(others, RELEASED)
        failures = await receiver.settle_each([each for each in deliveries if each.id in duplicates], ACCEPTED)
        for delivery, _ in failures:
            del duplicates[delivery.id]  # it is delivered again
        self._removed += duplicates.values()
        return not duplicates or bool(others or failures)

    def _judge(self, delivery: Delivery) -> tuple[str, int] | None:
        try:
            message = ServiceBusReceivedMessage.from_bytes(delivery.payload)
            key = self._duplicate_key(message)
        except Exception as error:  # noqa: BLE001  a user's function, or a message that only the SDK's receiver reports
            log.debug("%s: no key: %s", self._path, type(error).__name__)
            return None
        return None if key is None else (key, message.sequence_number or 0)
