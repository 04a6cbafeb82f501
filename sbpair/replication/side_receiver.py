"""The receivers of one side, and its back-off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbpair.azure.data_errors import UNREADABLE_HINT, is_answer
from sbpair.errors import UnreadableMessage
from sbpair.failover.side_connections import close_quietly
from sbpair.failover.steps import Call, Steps
from sbpair.model.backoff import Backoff

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.side_connections import SdkAction
    from sbpair.replication.bulk_removal import DuplicateKey, Removed
    from sbpair.replication.sides import Side

OPEN_SECONDS = 10.0

BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)
"""Pause after a first failure of a side, doubled for each further one, and its maximum."""

BACKOFF_FACTOR = 4
"""The pause is at least so many times as long as the failure took: the other side gets most of the time."""

MIN_WAIT_SECONDS = 0.05
"""A receive that returns nothing sooner has not waited."""


MIN_STREAK, MAX_STREAK = 2, 256
"""So many receives in a row bring nothing but duplicates, before those are removed in bulk."""

MIN_BULK = 50
"""Fewer duplicates are not worth another connection: the next attempt comes after twice as many receives."""


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

    def receive(self, limit: int, seconds: float, now: Callable[[], float]) -> Steps[tuple[Any, list[Any]]]:
        """Return the receiver and its messages."""
        if self._receiver is None:
            self._receiver = self._make(self.side)
            # Both kinds of receivers connect when they are entered.
            enter = getattr(self._receiver, "__aenter__", None) or self._receiver.__enter__
            yield Call(lambda *_: enter(), self._receiver, OPEN_SECONDS)
        receiver, started = self._receiver, now()
        found = yield Call(
            lambda sdk, _: sdk.receive_messages(max_message_count=limit, max_wait_time=seconds),
            receiver,
            seconds + OPEN_SECONDS,
        )
        if not found and now() < started + MIN_WAIT_SECONDS < started + seconds:
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

    def back_off(self, error: Exception, now: float, took_seconds: float) -> bool:
        """Pause this side. Returns whether this is its first failure."""
        self.error = error
        self.failures += 1
        self.backs_off_until = now + max(BACKOFF.seconds(self.failures), took_seconds * BACKOFF_FACTOR)
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


def complete_action(message: ServiceBusReceivedMessage) -> SdkAction:
    return lambda receiver, _: receiver.complete_message(message)


def abandon_action(message: ServiceBusReceivedMessage) -> SdkAction:
    """Release a message, which counts as a delivery."""
    return lambda receiver, _: receiver.abandon_message(message)


def renew_action(message: ServiceBusReceivedMessage) -> SdkAction:
    return lambda receiver, _: receiver.renew_message_lock(message)
