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

from sbpair.azure.data_errors import is_unused
from sbpair.failover.failures import describe_error, is_transient
from sbpair.failover.steps import Call, Gather, Pause, Steps, Work
from sbpair.replication.copies import Copies, LockedMessage, Verdict
from sbpair.replication.events import DuplicateCompleted, NoKey, Redelivered, SideBack, SideLost
from sbpair.replication.side_receiver import (
    MIN_WAIT_SECONDS,
    SideReceiver,
    abandon_action,
    complete_action,
    renew_action,
)
from sbpair.replication.sides import Side, both_failed

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.side_connections import SdkAction
    from sbpair.replication.events import ReplicationReporter
    from sbpair.replication.keys import KeyRule, Store

TURN_SECONDS = 0.5
"""How long to wait for one side before it is the other's turn."""

REST_TURNS = 4
"""A side without messages is left out for so many turns while the other one has some."""

SETTLE_SECONDS = 30.0

MAX_HELD = 1_000
"""No more messages are received while so many copies are held for others to be settled."""


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
