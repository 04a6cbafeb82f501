"""The deduplicating receiver, for programs that block and for asyncio: it receives from both namespaces.

Invariant: a copy is given to the application, held, or settled, and always settled by the SDK receiver that it came
from. A side that fails backs off while the other goes on. The docstring of the class states the guarantees and the
remaining risks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageLockLostError

from sbpair.azure.data_plane import is_unused
from sbpair.backlog import check_path
from sbpair.errors import UsageError
from sbpair.failover.events import EventReporter
from sbpair.failover.failures import both_failed, describe_error, is_transient, joins_sdk_errors
from sbpair.failover.side_connections import AsyncClosable, BothSides, SyncClosable
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.pair import SIDES, Side
from sbpair.replication.copies import Copies, LockedMessage, Verdict
from sbpair.replication.events import (
    DuplicateCompleted,
    NoKey,
    OnEvent,
    Redelivered,
    ReplicationReporter,
    SideBack,
    SideLost,
)
from sbpair.replication.keys import DAY_SECONDS, KEYS, KeyOf, KeyRule, KeyStore, Window
from sbpair.replication.side_receiver import MIN_WAIT_SECONDS, OPEN_SECONDS, SideReceiver, remove_duplicates
from sbpair.sync_async import Action, Call, Gather, Pause, Steps, Work, awaiting, blocking, drive, drive_async

if TYPE_CHECKING:
    from datetime import datetime

    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.model.pair import Pair

MEMORY = "memory"
RECEIVE_SECONDS = 60.0
"""Default wait of a receive, as in the SDK."""

TURN_SECONDS = 0.5
"""How long to wait for one side before it is the other's turn."""

REST_TURNS = 4
"""A side without messages is left out for so many turns while the other one has some."""

SETTLE_SECONDS = 30.0

MAX_HELD = 1_000
"""No more messages are received while so many copies are held for others to be settled."""


class DedupReceiverBase(BothSides):
    """Receives from an entity of both namespaces, and gives the application the first copy of each message.

    Messages are under lock (peek-lock), and are settled with this receiver, on the side that they came from. While the
    application has one, further copies are held. Once it is completed, they are completed too (event
    `DuplicateCompleted`), in bulk if they are many. If it is abandoned or dead-lettered, or loses its lock, the next
    copy is given instead: no copy is removed before another one was completed. If a completion was not answered, or the
    process ended during one, a further copy is given and reported by the event `Redelivered`.

    `entity` is a queue, or a topic with its `subscription_name`. `key` identifies copies: "id", "subject",
    "property:NAME" (an application property), or a function of the message. A message without a key is given (event
    `NoKey`). `store` holds completed keys: "memory", or the path of a file that outlives the process, for one receiver
    at a time. It holds the last `window_count` keys for `window_seconds`; None means no such limit, and one limit is
    required. A side that fails backs off while the other goes on (`SideLost`, `SideBack`).

    Raises UsageError and NameInvalid for invalid arguments, LeaseHeld for a file in use, StateRefused for a file of
    another entity or key. RECEIVE_AND_DELETE is refused, because its copies are gone before anything is completed. The
    service refuses entities that require sessions: a session's lock and state are in one namespace.

    Remaining risks:

    - A copy that arrives after its key left the window is given again, as is one that another process receives: all
      copies must come through one receiver.
    - Messages come in the order of their first copies, which may differ from the order of both sides.
    - Of different messages with the same key, only the first is given: choose a key that is unique.
    - While the application has the first copy for longer than a lock lasts, further copies are delivered repeatedly,
      which raises their delivery count: `renew_message_lock` renews all of their locks.
    - While one side stalls, a blocking receiver may wait 30 s for its connection, and then for the other side alone for
      two minutes: the SDK gives up a connection no sooner.
    """

    _noun = "receiver"

    def __init__(
        self,
        pair: Pair,
        entity: str,
        *,
        subscription_name: str | None = None,
        key: str | KeyOf = "id",
        store: str | Path = MEMORY,
        window_seconds: float | None = DAY_SECONDS,
        window_count: int | None = KEYS,
        receive_mode: ServiceBusReceiveMode | str = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: float | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        path = checked_source(entity, subscription_name)
        if ServiceBusReceiveMode(receive_mode) is not ServiceBusReceiveMode.PEEK_LOCK:
            raise UsageError(
                "a DedupReceiver cannot receive and delete: a copy is removed only after another one is completed",
                hint="omit receive_mode, and complete processed messages",
            )
        super().__init__(pair, path, OPEN_SECONDS)
        self._max_wait = None if max_wait_time is None else _checked_wait(max_wait_time)
        rule, window = KeyRule(key), Window(window_seconds, window_count)
        about = {
            "primary": pair.primary.authority.lower(),
            "secondary": pair.secondary.authority.lower(),
            "entity": path.lower(),
            "key": rule.name,
        }
        self._rule = rule
        self._store = KeyStore(None if store == MEMORY else Path(store), window, about)
        self._copies = Copies(self._store)
        self._clock = NamespaceClock()  # of both sides, by the locks of their messages
        self._report: ReplicationReporter = EventReporter("replication", on_event)
        self._sides = {
            side: SideReceiver(side, self._receiver, partial(remove_duplicates, pair, endpoint, path))
            for side, endpoint in zip(SIDES, (pair.primary, pair.secondary), strict=True)
        }
        self._turns = list(reversed(self._sides.values()))
        self._received: deque[LockedMessage] = deque()
        self._duplicates: deque[LockedMessage] = deque()
        self._given: dict[int, LockedMessage] = {}
        self._removed_at = float("-inf")

    def side_of(self, message: ServiceBusReceivedMessage) -> Side:
        """Return "primary" or "secondary" for a message that is not settled. Raises MessageLockLostError."""
        return self._locked(message).side

    def _receiver(self, side: Side) -> Any:
        """Return an SDK receiver in peek-lock mode. Queues and subscriptions are received from alike, by path."""
        # Without prefetch, only requested messages are locked.
        client = self._clients[side]
        return client.get_queue_receiver(self.entity_name, prefetch_count=0, timeout=SETTLE_SECONDS / 2)

    # Procedures of the public methods

    def _poll(self, limit: int, seconds: float | None) -> Callable[[], Steps[list[ServiceBusReceivedMessage] | None]]:
        """Return the procedure to repeat until it has a result. Raises ValueError, as the SDK does."""
        if limit < 1:
            raise ValueError("max_message_count must be at least 1")
        self._open()
        wait = self._max_wait if seconds is None else _checked_wait(seconds)
        return partial(self._poll_once, limit, time.monotonic(), RECEIVE_SECONDS if wait is None else wait)

    # Their errors are of two classes, one of `sbpair.errors` and one of the SDK.

    @joins_sdk_errors("settling a message of")
    def _complete_message(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        """Complete a message and then its held copies. Raises MessageLockLostError, and other errors of the SDK."""
        self._open()
        locked = self._locked(message)
        self._copies.completing(locked, self._clock.now())
        yield from self._settle_given(locked, _complete_action(message))
        self._duplicates.extend(self._copies.completed(locked, self._clock.now()))
        yield from self._complete_duplicates()

    @joins_sdk_errors("settling a message of")
    def _abandon_message(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        """Release a message, so that it or a copy is delivered again. Raises MessageLockLostError and SDK errors."""
        return self._settle(message, _abandon_action(message))

    @joins_sdk_errors("settling a message of")
    def _dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> Steps[None]:
        """Dead-letter a message on its side. A copy is delivered. Raises MessageLockLostError and SDK errors."""

        def dead_letter_action(receiver: Any, _seconds: float) -> Any:
            return receiver.dead_letter_message(message, reason=reason, error_description=error_description)

        return self._settle(message, dead_letter_action)

    @joins_sdk_errors("renewing a lock of")
    def _renew_message_lock(self, message: ServiceBusReceivedMessage) -> Steps[datetime]:
        """Renew the locks of a message and its held copies. Returns the new expiry time. Raises SDK errors."""
        self._open()
        locked = self._locked(message)
        until: datetime = yield Call(_renew_action(message), locked.receiver, SETTLE_SECONDS)
        for each in self._copies.held_with(locked):
            yield from self._try_settle(each, _renew_action(each.message))
        return until

    def _closing(self) -> Steps[None]:
        if not self._closed:
            yield from super()._closing()

    def _close_sides(self) -> Steps[None]:
        """Release messages that the application was not given, and close everything."""
        for locked in [*self._copies.waiting, *self._received, *self._duplicates]:
            yield from self._try_settle(locked, _abandon_action(locked.message))
        self._given.clear()
        yield Gather(tuple(each.close() for each in self._sides.values()))
        self._store.close()

    # Receiving

    @joins_sdk_errors("receiving from")
    def _poll_once(self, limit: int, since: float, seconds: float) -> Steps[list[ServiceBusReceivedMessage] | None]:
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
                receiver.note_received(count, duplicates, time.monotonic() + REST_TURNS * TURN_SECONDS)
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
        return max(since, self._removed_at) + seconds - time.monotonic()

    def _next_receivers(self) -> list[SideReceiver]:
        """Return the sides whose turn it is; those that rest only if all do."""
        if len(self._copies.waiting) >= MAX_HELD:
            return []
        self._turns.reverse()
        now = time.monotonic()
        usable = [each for each in self._turns if each.backs_off_until <= now]
        return [each for each in usable if each.rests_until <= now] or usable

    def _receive_from(self, receiver: SideReceiver, limit: int, left: float) -> Steps[int]:
        """Return how many messages were received."""
        seconds = min(TURN_SECONDS, max(left, 2 * MIN_WAIT_SECONDS))
        started = time.monotonic()
        yield from receiver.close(self._needed())
        try:
            sdk_receiver, found = yield from receiver.receive(limit, seconds)
        except BaseException as error:
            goes_on = is_unused(error) or (yield from receiver.has_next_key(error))
            receiver.failed(error)
            if goes_on:
                return 0
            if not isinstance(error, Exception) or not is_transient(error):
                raise
            self._back_off(receiver, error, time.monotonic() - started)
            return 0
        if receiver.recover():
            self._report(SideBack(self.entity_name, receiver.side))
        self._received.extend(self._lock(receiver.side, each, sdk_receiver) for each in found)
        return len(found)

    def _remove_duplicates(self, receiver: SideReceiver) -> Steps[None]:
        removed = yield Work(partial(receiver.remove_duplicates, self._duplicate_key))
        receiver.note_removed(removed)
        for key, number in removed.duplicates:
            self._report(DuplicateCompleted(self.entity_name, receiver.side, key, number))
            self._removed_at = time.monotonic()

    def _duplicate_key(self, message: ServiceBusReceivedMessage) -> str | None:
        key = self._rule.of(message)
        return key if key is not None and self._copies.is_duplicate(key, self._clock.now()) else None

    def _lock(self, side: Side, message: ServiceBusReceivedMessage, receiver: Any) -> LockedMessage:
        reason = "the message has no value for it"
        try:
            key = self._rule.of(message)
        except Exception as error:  # noqa: BLE001  a user's function; the message is under lock, and must go on
            key, reason = None, describe_error(error)
        if key is None:
            self._report(NoKey(self.entity_name, side, message.sequence_number or 0, f"{self._rule.name}: {reason}"))
        locked = LockedMessage(side, message, receiver, key)
        self._clock.observe_lock(locked.until)
        return locked

    def _give(self, limit: int) -> list[ServiceBusReceivedMessage]:
        """Return first copies for the application. Awaits nothing, so no message is lost on the way."""
        now = self._clock.now()
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
                        again = verdict is Verdict.GIVE_AGAIN
                        reason = verdict.value if again else "the lock of the earlier copy expired"
                        key = locked.key or ""
                        self._report(Redelivered(self.entity_name, locked.side, key, locked.number, reason))
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
        errors: dict[str, Exception] = {each.side: each.error for each in self._sides.values() if each.error}
        if len(errors) == len(self._sides):
            text = f"nothing can be received from {self.entity_name!r} in either namespace"
            raise both_failed(text, errors, "try again once one of them is available")

    # Settling

    def _locked(self, message: ServiceBusReceivedMessage) -> LockedMessage:
        """Return the lock of a message given to the application. Raises MessageLockLostError if there is none."""
        found = self._given.get(id(message))
        if found is None:
            raise MessageLockLostError(
                message="the message is settled, its lock has expired, or it is not from this receiver"
            )
        return found

    def _settle(self, message: ServiceBusReceivedMessage, action: Action) -> Steps[None]:
        """Settle a message in a way that is not completion."""
        self._open()
        locked = self._locked(message)
        yield from self._settle_given(locked, action)
        self._copies.release(locked)

    def _settle_given(self, locked: LockedMessage, action: Action) -> Steps[None]:
        try:
            yield Call(action, locked.receiver, SETTLE_SECONDS)
        except MessageLockLostError:
            self._given.pop(id(locked.message), None)
            self._copies.release(locked, lock_lost=True)
            raise
        except BaseException as error:
            self._sides[locked.side].failed(error, locked.receiver)
            raise
        self._given.pop(id(locked.message), None)

    def _complete_duplicates(self) -> Steps[None]:
        while self._duplicates:
            locked = self._duplicates.popleft()
            done = yield from self._try_settle(locked, _complete_action(locked.message))
            if done:
                self._removed_at = time.monotonic()
                self._report(DuplicateCompleted(self.entity_name, locked.side, locked.key or "", locked.number))

    def _try_settle(self, locked: LockedMessage, action: Action) -> Steps[bool]:
        """Settle a copy that the application was not given. If that fails, the service delivers it again."""
        receiver = self._sides[locked.side]
        if receiver.backs_off_until > time.monotonic() or locked.until <= self._clock.now():
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
        if receiver.back_off(error, time.monotonic(), took_seconds):
            self._report(SideLost(self.entity_name, receiver.side, describe_error(error)))

    def _needed(self) -> frozenset[int]:
        """Return the `id` of each receiver with messages that are still to be settled."""
        unsettled = (*self._given.values(), *self._copies.waiting, *self._received, *self._duplicates)
        return frozenset(id(each.receiver) for each in unsettled)


class DedupReceiver(DedupReceiverBase, SyncClosable):
    __doc__ = DedupReceiverBase.__doc__
    complete_message = blocking(DedupReceiverBase._complete_message)
    abandon_message = blocking(DedupReceiverBase._abandon_message)
    dead_letter_message = blocking(DedupReceiverBase._dead_letter_message)
    renew_message_lock = blocking(DedupReceiverBase._renew_message_lock)

    def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Return first copies, up to `max_message_count`, or [] if none arrived within `max_wait_time` (60 s).

        Removing duplicates counts as activity: the wait begins again.

        Raises BothFailed if neither side could be received from in that time, and the SDK's errors.
        """
        poll = self._poll(max_message_count, max_wait_time)
        while True:
            with self._turn:
                found = drive(poll())
            if found is not None:
                return found

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        """Yield messages. Ends if none arrives within the receiver's `max_wait_time`, if it has one."""
        while (found := self.receive_messages()) or self._max_wait is None:
            yield from found


class AsyncDedupReceiver(DedupReceiverBase, AsyncClosable):
    __doc__ = DedupReceiverBase.__doc__
    complete_message = awaiting(DedupReceiverBase._complete_message)
    abandon_message = awaiting(DedupReceiverBase._abandon_message)
    dead_letter_message = awaiting(DedupReceiverBase._dead_letter_message)
    renew_message_lock = awaiting(DedupReceiverBase._renew_message_lock)

    async def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        poll = self._poll(max_message_count, max_wait_time)
        while True:
            async with self._turn:
                found = await drive_async(poll())
            if found is not None:
                return found

    receive_messages.__doc__ = DedupReceiver.receive_messages.__doc__

    async def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        """Yield messages. Ends if none arrives within the receiver's `max_wait_time`, if it has one."""
        while (found := await self.receive_messages()) or self._max_wait is None:
            for message in found:
                yield message


def checked_source(entity: str, subscription: str | None) -> str:
    """Return the path to receive from. Raises NameInvalid."""
    check_path(entity, shorten="give the queue or topic a shorter name")
    if subscription is None:
        return entity
    check_path(subscription, shorten="give the subscription a shorter name")
    return f"{entity}/Subscriptions/{subscription}"


def _checked_wait(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError("max_wait_time must be greater than 0")
    return seconds


def _complete_action(message: ServiceBusReceivedMessage) -> Action:
    return lambda receiver, _: receiver.complete_message(message)


def _abandon_action(message: ServiceBusReceivedMessage) -> Action:
    """Release a message, which counts as a delivery."""
    return lambda receiver, _: receiver.abandon_message(message)


def _renew_action(message: ServiceBusReceivedMessage) -> Action:
    return lambda receiver, _: receiver.renew_message_lock(message)
