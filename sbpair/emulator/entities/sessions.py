"""Sessions: the messages of one session id, locked as a whole by one receiver at a time, and the session's state.

One lock covers a session and everything received from it: its messages have tokens, and no deadlines of their own. A
session without messages, state and holder costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from sbpair.emulator.entities.message_order import Deadlines
from sbpair.emulator.entities.partitions import PartitionedMessages
from sbpair.emulator.entities.session_queues import SessionReadyQueues, SessionState, session_lock_lost
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.service_errors import (
    MessageNotFound,
    NotAllowed,
    ServiceError,
    SessionCannotBeLocked,
    SessionLockExpired,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sbpair.emulator.entities.consumers import Consumer
    from sbpair.emulator.entities.stored_message import StoredMessage


class SessionWaiter(Protocol):
    """A receiver that waits for any session. Compared and hashed by identity."""

    def on_session_locked(self, held: HeldSession) -> None:
        """Take over a session that was locked. Call only its `receive` now."""


class SessionMessages(SubQueue):
    """The messages of an entity that requires sessions. They are received through a session that is held."""

    _last_hold = 0

    def _reset(self) -> None:
        super()._reset()
        self._ready = self._sessions = SessionReadyQueues()
        self._waiters: OrderedDict[SessionWaiter, None] = OrderedDict()
        self._holds: dict[int, HeldSession] = {}
        self._hold_ends = Deadlines(self._is_valid_hold_end)

    @property
    def has_consumers(self) -> bool:
        return bool(self._waiters or self._holds)

    # Session locks

    def accept(self, session_id: str) -> HeldSession:
        """Lock this session, with or without messages. Raises SessionCannotBeLocked if another receiver holds it."""
        now = self.advance_if_due()
        session = self._sessions.session(session_id)
        if session.holder is not None:
            raise SessionCannotBeLocked(f"The requested session '{session_id}' cannot be accepted: it is locked.")
        return self._hold(session, now)

    def accept_next(self, waiter: SessionWaiter) -> HeldSession | None:
        """Lock the session that has been available for longest; if there is none, the waiter waits for one."""
        now = self.advance_if_due()
        session = None if self._waiters else self._next_available()
        if session is not None:
            return self._hold(session, now)
        self._waiters[waiter] = None
        return None

    def remove_waiter(self, waiter: SessionWaiter) -> None:
        self._waiters.pop(waiter, None)

    def _next_available(self) -> SessionState | None:
        available = self._sessions.available
        while available:
            session = available.popitem(last=False)[0]
            if len(session.ready):
                return session
            self._sessions.forget_if_idle(session)
        return None

    def _hold(self, session: SessionState, now: int) -> HeldSession:
        self._sessions.available.pop(session, None)
        self.accessed_at_ms = now
        self._last_hold += 1
        held = session.holder = HeldSession(self, session, self._last_hold)
        self._holds[held.number] = held
        self._extend_lock(held, now)
        return held

    def _extend_lock(self, held: HeldSession, now: int) -> None:
        held.locked_until_ms = now + self._locks.duration_ms
        self._hold_ends.add(held.locked_until_ms, held.number)
        for message in held.session.locked.values():
            message.locked_until_ms = held.locked_until_ms
        self._advance_by(held.locked_until_ms)

    def renew_session(self, held: HeldSession) -> int:
        """Lock a session for a whole LockDuration from now; return until when."""
        now = self.advance_if_due()
        held.check()
        self._hold_ends.add_void()
        self._extend_lock(held, now)
        return held.locked_until_ms

    def held_session(self, session_id: str) -> HeldSession:
        """Return a session under lock. Raises SessionLockExpired if no receiver holds it."""
        self.advance_if_due()
        session = self._sessions.sessions.get(session_id)
        if session is None or session.holder is None:
            raise session_lock_lost(session_id)
        return self._holds[session.holder.number]

    def end_hold(self, held: HeldSession, *, failed: bool) -> None:
        """End a session lock and return its messages; `failed` counts them as failed deliveries."""
        session = held.session
        if session.holder is not held:
            return
        session.holder = None
        del self._holds[held.number]
        self._hold_ends.add_void()
        for token in list(session.locked):
            message = self._unlock(token)
            if failed:
                self._delivery_failed(message)
            else:
                self._return(message)
        if len(session.ready):
            self._sessions.available.setdefault(session)
        self._sessions.forget_if_idle(session)
        self._wake_soon()

    # Receive and peek

    def receive(self, max_messages: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        del max_messages, consumer
        raise NotAllowed("The entity requires sessions: it is received from through a session.")

    def receive_from(self, held: HeldSession, max_messages: int) -> list[StoredMessage]:
        now = self.accessed_at_ms = self.advance_if_due()
        held.check()
        return self._lock_for(held, held.session.ready.take(max_messages), now)

    def receive_deferred_from(self, held: HeldSession, sequences: Sequence[int]) -> list[StoredMessage]:
        now = self.accessed_at_ms = self.advance_if_due()
        held.check()
        messages = [self._deferred(sequence) for sequence in dict.fromkeys(sequences)]
        for message in messages:
            if message.session_id != held.session.id:
                raise MessageNotFound(f"Message {message.sequence_number} is not in session '{held.session.id}'.")
        return self._lock_for(held, messages, now)

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        del sequences
        raise NotAllowed("The entity requires sessions: name the session of the deferred messages.")

    def _lock_for(self, held: HeldSession, messages: list[StoredMessage], now: int) -> list[StoredMessage]:
        self._locks.take(messages, now)
        for message in messages:
            message.locked_until_ms = held.locked_until_ms
            held.session.locked[message.lock_token] = message
        return messages

    def peek_session(self, session_id: str, from_sequence: int, max_messages: int) -> list[StoredMessage]:
        """Peek at one session, held or not."""
        self.advance_if_due()
        found = (message for message in self._store.read_from(from_sequence) if message.session_id == session_id)
        return list(islice(found, max(0, max_messages)))

    def renew(self, token: bytes) -> StoredMessage:
        del token
        raise NotAllowed("The lock of a message of a session is renewed with its session.")

    def _end_lock(self, token: bytes) -> StoredMessage:
        message = super()._end_lock(token)
        self._sessions.session(message.session_id or "").locked.pop(token, None)
        return message

    # Session state

    def set_state(self, held: HeldSession, state: bytes | None) -> None:
        now = self.advance_if_due()
        held.check()
        self._store.size_bytes += len(state or b"") - len(held.session.state or b"")
        held.session.state = state
        held.session.state_changed_ms = now

    def list_sessions(self, changed_after_ms: int | None = None) -> list[str]:
        """Return the ids of sessions with messages or state, sorted; or those whose state changed after a time."""
        self.advance_if_due()
        sessions = self._sessions.sessions.values()
        if changed_after_ms is None:
            return sorted(session.id for session in sessions if session.is_listed)
        return sorted(session.id for session in sessions if session.state_changed_ms > changed_after_ms)

    # Wake receivers

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        super().enqueue(messages)
        self._wake_soon()

    def _wake_soon(self) -> None:
        if self._sessions.to_wake or (self._waiters and self._sessions.available):
            self._waker.schedule()

    def _wake_waiting(self) -> None:
        """Wake the holders of sessions that got messages, then those who wait for a session."""
        while self._sessions.to_wake:
            session = self._sessions.to_wake.popitem(last=False)[0]
            if session.holder is not None:
                session.holder.wake()
        while self._waiters and (next_session := self._next_available()) is not None:
            waiter = self._waiters.popitem(last=False)[0]
            waiter.on_session_locked(self._hold(next_session, self._clock.now_ms()))

    # Time

    def _end_locks(self, now_ms: int) -> None:
        # All of them first: a session that one receiver loses may be locked for another at once.
        for number in list(self._hold_ends.pop_due(now_ms)):
            held = self._holds.get(number)
            if held is not None and held.locked_until_ms <= now_ms:
                held.expire_lock()

    def _first_lock_ms(self) -> int:
        return self._hold_ends.first_ms()

    def _is_valid_hold_end(self, at_ms: int, number: int) -> bool:
        held = self._holds.get(number)
        return held is not None and held.locked_until_ms == at_ms

    def _left_ready_queue(self, message: StoredMessage) -> None:
        session = self._sessions.session(message.session_id or "")
        session.ready.add_void()
        self._sessions.forget_if_idle(session)

    def clear(self) -> None:
        for session in self._sessions.sessions.values():
            session.locked.clear()
            session.holder = None
        super().clear()


class PartitionedSessions(SessionMessages, PartitionedMessages):
    """The sessions of a partitioned entity. All of a session is in one partition, since its id is the key.

    While that partition is down the session cannot be locked, and its holder receives nothing more.
    """

    def _is_up(self, session: SessionState) -> bool:
        return self._partitions.is_up(self._partitions.for_key(session.id))

    def accept(self, session_id: str) -> HeldSession:
        self._partitions.check(self._partitions.for_key(session_id))
        return super().accept(session_id)

    def _next_available(self) -> SessionState | None:
        if self._partitions.up_count == self._partitions.count:
            return super()._next_available()
        # Sessions that are passed over keep their places.
        available = self._sessions.available
        found = next((session for session in available if len(session.ready) and self._is_up(session)), None)
        if found is not None:
            del available[found]
        return found

    def receive_from(self, held: HeldSession, max_messages: int) -> list[StoredMessage]:
        if not self._is_up(held.session):
            held.check()
            return []
        return super().receive_from(held, max_messages)

    def resume(self) -> None:
        for held in self._holds.values():
            if len(held.session.ready):
                self._sessions.to_wake.setdefault(held.session)
        super().resume()


class HeldSession:
    """A session under lock: received from and settled on like a sub-queue, by one consumer at most.

    `number` distinguishes this lock from every other of the same sub-queue. `on_lock_lost` is called when the lock
    expires. Everything raises SessionLockExpired after the lock has ended.
    """

    def __init__(self, messages: SessionMessages, session: SessionState, number: int) -> None:
        self.session = session
        self.number = number
        self.locked_until_ms = 0
        self.on_lock_lost: Callable[[SessionLockExpired], None] | None = None
        self._messages = messages
        self._consumer: Consumer | None = None

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def state(self) -> bytes | None:
        return self.session.state

    def check(self) -> None:
        if self.session.holder is not self:
            raise session_lock_lost(self.session.id)

    def receive(self, max_messages: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        taken = self._messages.receive_from(self, max_messages)
        if consumer is not None:
            self._consumer = consumer if len(taken) < max_messages else None
        return taken

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        return self._messages.receive_deferred_from(self, sequences)

    def remove_consumer(self, consumer: Consumer) -> None:
        if self._consumer is consumer:
            self._consumer = None

    def wake(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.wake()

    def renew(self) -> int:
        return self._messages.renew_session(self)

    def set_state(self, state: bytes | None) -> None:
        self._messages.set_state(self, state)

    def expire_lock(self) -> None:
        """End the lock: the deliveries under it have failed."""
        self._messages.end_hold(self, failed=True)
        if self.on_lock_lost is not None:
            self.on_lock_lost(session_lock_lost(self.session.id))

    def close(self, *, failed: bool = False) -> None:
        """Release the session."""
        self._messages.end_hold(self, failed=failed)

    # Settlement

    def get_locked(self, token: bytes) -> StoredMessage:
        return self._checked().get_locked(token)

    def modify(self, token: bytes, change: Callable[[StoredMessage], None]) -> None:
        self._checked().modify(token, change)

    def complete(self, token: bytes) -> None:
        self._checked().complete(token)

    def complete_all(self, tokens: Iterable[bytes]) -> dict[bytes, ServiceError]:
        try:
            return self._checked().complete_all(tokens)
        except SessionLockExpired as error:
            return dict.fromkeys(tokens, error)

    def abandon(self, token: bytes) -> None:
        self._checked().abandon(token)

    def release(self, token: bytes) -> None:
        self._checked().release(token)

    def defer(self, token: bytes) -> None:
        self._checked().defer(token)

    def dead_letter(self, token: bytes, reason: str | None = None, description: str | None = None) -> None:
        self._checked().dead_letter(token, reason, description)

    def _checked(self) -> SessionMessages:
        self._messages.advance_if_due()
        self.check()
        return self._messages
