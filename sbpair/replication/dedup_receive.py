"""Receiving from both namespaces, and settling each copy on its side, as steps.

Invariant: a copy is given to the application, held, or settled, and always settled by the SDK receiver that it came
from. A side that fails backs off while the other goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import MessageLockLostError

from sbpair.azure.data_errors import UNREADABLE_HINT, is_answer, is_unused
from sbpair.errors import UnreadableMessage
from sbpair.failover.failures import both_failed, describe_error, is_transient
from sbpair.failover.side_connections import close_quietly
from sbpair.failover.steps import Call, Gather, Pause, Steps, Work
from sbpair.model.backoff import Backoff
from sbpair.replication.events import DuplicateCompleted, NoKey, Redelivered, SideBack, SideLost
from sbpair.replication.keys import Copies, LockedMessage, Verdict

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.side_connections import SdkAction
    from sbpair.replication.bulk_removal import DuplicateKey, Removed
    from sbpair.replication.events import ReplicationReporter, Side
    from sbpair.replication.keys import KeyRule, Store

TURN_SECONDS = 0.5
"""How long to wait for one side before it is the other's turn."""

REST_TURNS = 4
"""A side without messages is left out for so many turns while the other one has some."""

SETTLE_SECONDS = 30.0

MAX_HELD = 1_000
"""No more messages are received while so many copies are held for others to be settled."""

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


@dataclass(eq=False, repr=False)
class DedupReceive:
    """The receiving of one application. `now` is in seconds since 1970, `clock` is monotonic."""

    receivers: dict[Side, SideReceiver]
    entity: str
    rule: KeyRule
    store: Store
    report: ReplicationReporter
    now: Callable[[], float]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._copies = Copies(self.store)
        self._received: deque[LockedMessage] = deque()
        self._duplicates: deque[LockedMessage] = deque()
        self._given: dict[int, LockedMessage] = {}
        self._turns = list(reversed(self.receivers.values()))
        self._removed_at = float("-inf")

    def poll(self, limit: int, since: float, seconds: float) -> Steps[list[ServiceBusReceivedMessage] | None]:
        """Receive once from each side. Returns first copies, or None to be called again.

        Returns [] if nothing came and no duplicate was removed for `seconds`, counted from `since` of the clock. Raises
        BothFailed instead if neither side can be received from, and the SDK's permanent errors.
        """
        yield from self._complete_duplicates()
        if given := self._give(limit):
            return given
        receivers = self._next_receivers()
        for receiver in receivers:
            if not receiver.has_more_duplicates:
                count = yield from self._receive_from(receiver, limit, self._left(since, seconds))
                given = self._give(limit)
                duplicates = 0 if given else len(self._duplicates)
                receiver.note_received(count, duplicates, self.clock() + REST_TURNS * TURN_SECONDS)
                if given:
                    return given
                yield from self._complete_duplicates()
            if receiver.expects_duplicates:
                yield from self._remove_duplicates(receiver)
        left = self._left(since, seconds)
        if left > 0:
            if not receivers:
                yield Pause(min(TURN_SECONDS, left))
            return None
        self._check_reachable()
        return []

    def _left(self, since: float, seconds: float) -> float:
        return max(since, self._removed_at) + seconds - self.clock()

    def _next_receivers(self) -> list[SideReceiver]:
        """Return the sides whose turn it is; those that rest only if all do."""
        if len(self._copies.waiting) >= MAX_HELD:
            return []
        self._turns.reverse()
        now = self.clock()
        usable = [each for each in self._turns if each.backs_off_until <= now]
        return [each for each in usable if each.rests_until <= now] or usable

    def _receive_from(self, receiver: SideReceiver, limit: int, left: float) -> Steps[int]:
        """Return how many messages were received."""
        seconds = min(TURN_SECONDS, max(left, 2 * MIN_WAIT_SECONDS))
        started = self.clock()
        yield from receiver.close(self._needed())
        try:
            sdk_receiver, found = yield from receiver.receive(limit, seconds, self.clock)
        except BaseException as error:
            receiver.failed(error)
            if is_unused(error):
                return 0
            if not isinstance(error, Exception) or not is_transient(error):
                raise
            self._back_off(receiver, error, self.clock() - started)
            return 0
        if receiver.recover():
            self.report(SideBack(self.entity, receiver.side))
        self._received.extend(self._locked(receiver.side, each, sdk_receiver) for each in found)
        return len(found)

    def _remove_duplicates(self, receiver: SideReceiver) -> Steps[None]:
        removed = yield Work(partial(receiver.remove_duplicates, self._duplicate_key))
        receiver.note_removed(removed)
        for key, number in removed.duplicates:
            self.report(DuplicateCompleted(self.entity, receiver.side, key, number))
            self._removed_at = self.clock()

    def _duplicate_key(self, message: ServiceBusReceivedMessage) -> str | None:
        key = self.rule.of(message)
        return key if key is not None and self._copies.is_duplicate(key, self.now()) else None

    def _locked(self, side: Side, message: ServiceBusReceivedMessage, receiver: Any) -> LockedMessage:
        reason = "the message has no value for it"
        try:
            key = self.rule.of(message)
        except Exception as error:  # noqa: BLE001  a user's function; the message is under lock, and must go on
            key, reason = None, describe_error(error)
        if key is None:
            self.report(NoKey(self.entity, side, message.sequence_number or 0, f"{self.rule.name}: {reason}"))
        return LockedMessage(side, message, receiver, key)

    def _give(self, limit: int) -> list[ServiceBusReceivedMessage]:
        """Return first copies for the application. Awaits nothing, so no message is lost on the way."""
        now = self.now()
        self._copies.expire(now)
        self._given = {key: each for key, each in self._given.items() if each.until > now}
        given: list[ServiceBusReceivedMessage] = []
        while len(given) < limit and (found := self._next_copy(now)):
            locked, lock_lost = found
            match self._copies.admit(locked, now):
                case Verdict.DUPLICATE:
                    self._duplicates.append(locked)
                case Verdict.HOLD:
                    pass
                case verdict:
                    self._given[id(locked.message)] = locked
                    given.append(locked.message)
                    if lock_lost or verdict is Verdict.GIVE_AGAIN:
                        lost = "the lock of the earlier copy expired"
                        reason = verdict.value if verdict is Verdict.GIVE_AGAIN else lost
                        self.report(Redelivered(self.entity, locked.side, locked.key or "", locked.number, reason))
        return given

    def _next_copy(self, now: float) -> tuple[LockedMessage, bool] | None:
        if found := self._copies.next(now):
            return found
        while self._received:
            locked = self._received.popleft()
            if locked.until > now:
                return locked, False
        return None

    def _check_reachable(self) -> None:
        errors: dict[str, Exception] = {each.side: each.error for each in self.receivers.values() if each.error}
        if len(errors) == len(self.receivers):
            text = f"nothing can be received from {self.entity!r} in either namespace"
            raise both_failed(text, errors, "try again once one of them is available")

    def complete(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        locked = self.locked(message)
        self._copies.completing(locked, self.now())
        yield from self._settle_given(locked, complete_action(message))
        self._duplicates.extend(self._copies.completed(locked, self.now()))
        yield from self._complete_duplicates()

    def settle(self, message: ServiceBusReceivedMessage, action: SdkAction) -> Steps[None]:
        """Settle a message in a way that is not completion."""
        locked = self.locked(message)
        yield from self._settle_given(locked, action)
        self._copies.release(locked)

    def renew(self, message: ServiceBusReceivedMessage) -> Steps[Any]:
        """Renew the lock of a message, and those of its held copies."""
        locked = self.locked(message)
        until = yield Call(renew_action(message), locked.receiver, SETTLE_SECONDS)
        for each in self._copies.held_with(locked):
            yield from self._try_settle(each, renew_action(each.message))
        return until

    def close(self) -> Steps[None]:
        """Release messages that the application was not given, and close everything."""
        for locked in [*self._copies.waiting, *self._received, *self._duplicates]:
            yield from self._try_settle(locked, abandon_action(locked.message))
        self._given.clear()
        yield Gather(tuple(each.close() for each in self.receivers.values()))
        self.store.close()

    def locked(self, message: ServiceBusReceivedMessage) -> LockedMessage:
        """Return the lock of a message given to the application. Raises MessageLockLostError if there is none."""
        found = self._given.get(id(message))
        if found is None:
            raise MessageLockLostError(
                message="the message is settled, its lock has expired, or it is not from this receiver"
            )
        return found

    def _settle_given(self, locked: LockedMessage, action: SdkAction) -> Steps[None]:
        try:
            yield Call(action, locked.receiver, SETTLE_SECONDS)
        except MessageLockLostError:
            self._given.pop(id(locked.message), None)
            self._copies.release(locked, lock_lost=True)
            raise
        except BaseException as error:
            self.receivers[locked.side].failed(error, locked.receiver)
            raise
        self._given.pop(id(locked.message), None)

    def _complete_duplicates(self) -> Steps[None]:
        while self._duplicates:
            locked = self._duplicates.popleft()
            done = yield from self._try_settle(locked, complete_action(locked.message))
            if done:
                self._removed_at = self.clock()
                self.report(DuplicateCompleted(self.entity, locked.side, locked.key or "", locked.number))

    def _try_settle(self, locked: LockedMessage, action: SdkAction) -> Steps[bool]:
        """Settle a copy that the application was not given. If that fails, the service delivers it again."""
        receiver = self.receivers[locked.side]
        if receiver.backs_off_until > self.clock() or locked.until <= self.now():
            return False
        try:
            yield Call(action, locked.receiver, SETTLE_SECONDS)
        except Exception as error:  # noqa: BLE001  the copy is delivered again
            receiver.failed(error, locked.receiver)
            if is_transient(error):
                self._back_off(receiver, error, 0.0)
            return False
        return True

    def _back_off(self, receiver: SideReceiver, error: Exception, took_seconds: float) -> None:
        if receiver.back_off(error, self.clock(), took_seconds):
            self.report(SideLost(self.entity, receiver.side, describe_error(error)))

    def _needed(self) -> frozenset[int]:
        """Return the `id` of each receiver with messages that are still to be settled."""
        unsettled = (*self._given.values(), *self._copies.waiting, *self._received, *self._duplicates)
        return frozenset(id(each.receiver) for each in unsettled)
