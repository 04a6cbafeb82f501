"""Sessions: the messages of one session id, locked as a whole by one receiver at a time, and the session's state.

One lock covers a session and everything received from it: its messages have tokens, and no deadlines of their own. A
session without messages, state and holder costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from sbpair.amqp_server.refusals import NotAllowed
from sbpair.emulator.entities.message_order import Deadlines, ReadyQueue
from sbpair.emulator.entities.stored_message import DEFERRED, StoredMessage
from sbpair.emulator.entities.subqueue import NOT_DEFERRED, Consumer, SubQueue
from sbpair.emulator.service_errors import MessageNotFound, SessionCannotBeLocked, SessionLockExpired


class SessionWaiter(Protocol):
    """A receiver that waits for any session. Compared and hashed by identity."""

    def on_session_locked(self, held: HeldSession) -> None:
        """Take over a session that was locked. Call only its `receive` now."""


class SessionState:
    """One session of an entity: its ready messages, its locked messages, its holder and its state."""

    __slots__ = ("holder", "id", "locked", "ready", "state", "state_changed_ms")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.ready = ReadyQueue()
        self.locked: dict[bytes, StoredMessage] = {}
        self.holder: HeldSession | None = None
        self.state: bytes | None = None
        self.state_changed_ms = 0

    @property
    def is_listed(self) -> bool:
        return bool(len(self.ready) or self.locked or self.state is not None)


class SessionReadyQueues(ReadyQueue):
    """A ready queue for each session, whose ids ignore case: `sessions` are by id in lower case.

    `available` are sessions with messages and no holder, in the order in which they became so. `to_wake` are held
    sessions that got messages.
    """

    __slots__ = ("available", "sessions", "to_wake")

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, SessionState] = {}
        self.available: OrderedDict[SessionState, None] = OrderedDict()
        self.to_wake: OrderedDict[SessionState, None] = OrderedDict()

    def session(self, session_id: str) -> SessionState:
        session = self.sessions.get(session_id.lower())
        if session is None:
            session = self.sessions[session_id.lower()] = SessionState(session_id)
        return session

    def put(self, message: StoredMessage) -> None:
        session = self.session(message.session_id or "")
        session.ready.put(message)
        (self.available if session.holder is None else self.to_wake).setdefault(session)

    def add_void(self, message: StoredMessage) -> None:
        session = self.session(message.session_id or "")
        session.ready.add_void(message)
        self.forget_if_idle(session)

    def forget_if_idle(self, session: SessionState) -> None:
        if session.holder is None and not session.is_listed:
            self.available.pop(session, None)
            self.sessions.pop(session.id.lower(), None)


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
        self.advance_if_due()
        session = self._sessions.session(session_id)
        if session.holder is not None:
            raise SessionCannotBeLocked(
                f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver."
            )
        return self._hold(session)

    def accept_next(self, waiter: SessionWaiter) -> HeldSession | None:
        """Lock the session that has been available for longest; if there is none, the waiter waits for one."""
        self.advance_if_due()
        session = None if self._waiters else self._next_available()
        if session is not None:
            return self._hold(session)
        self._waiters[waiter] = None
        return None

    def remove_waiter(self, waiter: SessionWaiter) -> None:
        self._waiters.pop(waiter, None)

    def is_available(self, session: SessionState) -> bool:  # noqa: ARG002  # for those in partitions
        """Return whether messages can be received from this session now."""
        return True

    def _next_available(self) -> SessionState | None:
        available = self._sessions.available
        while available:
            session = available.popitem(last=False)[0]
            if len(session.ready):
                return session
            self._sessions.forget_if_idle(session)
        return None

    def _hold(self, session: SessionState) -> HeldSession:
        self._sessions.available.pop(session, None)
        self.accessed_at_ms = self._clock.now_ms()
        self._last_hold += 1
        held = session.holder = HeldSession(self, session, self._last_hold)
        self._holds[held.number] = held
        self._lock_until(held, self.accessed_at_ms + self._locks.duration_ms)
        return held

    def extend_lock(self, held: HeldSession) -> None:
        self._hold_ends.add_void()
        self._lock_until(held, self._clock.now_ms() + self._locks.duration_ms)

    def _lock_until(self, held: HeldSession, until_ms: int) -> None:
        held.locked_until_ms = until_ms
        self._hold_ends.add(until_ms, held.number)
        for message in held.session.locked.values():
            message.locked_until_ms = until_ms
        self._advance_by(until_ms)

    def held_session(self, session_id: str) -> HeldSession:
        """Return a session under lock. Raises SessionLockExpired if no receiver holds it."""
        self.advance_if_due()
        session = self._sessions.sessions.get(session_id.lower())
        if session is None or session.holder is None:
            raise session_lock_lost()
        return session.holder

    def end_hold(self, held: HeldSession, *, failed: bool) -> None:
        """End a session lock and return its messages; `failed` counts them as failed deliveries."""
        session = held.session
        session.holder = None
        del self._holds[held.number]
        self._hold_ends.add_void()
        give_back = self._delivery_failed if failed else self._return
        for token in list(session.locked):
            give_back(self._unlock(token))
        # A returned message may have woken a receiver, which holds the session now.
        if len(session.ready) and session.holder is None:
            self._sessions.available.setdefault(session)
        self._sessions.forget_if_idle(session)
        self._wake_soon()

    # Receive and peek

    def receive(self, max_messages: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        del max_messages, consumer
        raise NotAllowed("The entity requires sessions: it is received from through a session.")

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        del sequences
        raise NotAllowed("The entity requires sessions: name the session of the deferred messages.")

    def lock_for(self, held: HeldSession, messages: list[StoredMessage]) -> None:
        self.accessed_at_ms = self._clock.now_ms()
        self._locks.take(messages, self.accessed_at_ms)
        for message in messages:
            message.locked_until_ms = held.locked_until_ms
            held.session.locked[message.lock_token] = message

    def peek_session(self, session_id: str, from_sequence: int, max_messages: int) -> list[StoredMessage]:
        """Peek at one session, held or not."""
        self.advance_if_due()
        found = (each for each in self._store.read_from(from_sequence) if each.is_in_session(session_id))
        return list(islice(found, max(0, max_messages)))

    def renew(self, token: bytes) -> StoredMessage:
        del token
        raise NotAllowed("The lock of a message of a session is renewed with its session.")

    def _end_lock(self, token: bytes) -> StoredMessage:
        message = super()._end_lock(token)
        self._sessions.session(message.session_id or "").locked.pop(token, None)
        return message

    # Session state

    def set_state(self, session: SessionState, state: bytes | None) -> None:
        self._store.size_bytes += len(state or b"") - len(session.state or b"")
        session.state = state
        session.state_changed_ms = self._clock.now_ms()
        self._store.session_changed(session.id, state, session.state_changed_ms)

    def restore_state(self, session_id: str, state: bytes, changed_at_ms: int) -> None:
        """Give a session the state that it had at this time."""
        session = self._sessions.session(session_id)
        self.set_state(session, state)
        session.state_changed_ms = changed_at_ms

    def list_sessions(self, changed_after_ms: int | None = None) -> list[str]:
        """Return the ids of sessions with messages or state, sorted; or those whose state changed after a time."""
        self.advance_if_due()
        sessions = self._sessions.sessions.values()
        if changed_after_ms is None:
            return sorted(session.id for session in sessions if session.is_listed)
        return sorted(session.id for session in sessions if session.state_changed_ms > changed_after_ms)

    def locks(self) -> list[tuple[str, int | None, int, str]]:
        """Return id, end of the lock in ms since 1970, number of locked messages, and owner of each listed session."""
        self.advance_if_due()
        listed = [each for each in self._sessions.sessions.values() if each.is_listed or each.holder is not None]
        return [
            (each.id, held.locked_until_ms if held else None, len(each.locked), held.owner if held else "")
            for each in sorted(listed, key=lambda each: each.id)
            for held in [each.holder]
        ]

    # Wake receivers

    def _wake_soon(self) -> None:
        if self._sessions.to_wake or (self._waiters and self._sessions.available):
            self._schedule_wake()

    def _wake_waiting(self) -> None:
        """Wake the holders of sessions that got messages, then those who wait for a session."""
        while self._sessions.to_wake:
            session = self._sessions.to_wake.popitem(last=False)[0]
            if session.holder is not None:
                session.holder.wake()
        while self._waiters and (next_session := self._next_available()) is not None:
            waiter = self._waiters.popitem(last=False)[0]
            waiter.on_session_locked(self._hold(next_session))

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

    def clear(self) -> None:
        for session in self._sessions.sessions.values():
            session.locked.clear()
            session.holder = None
        super().clear()


def session_lock_lost() -> SessionLockExpired:
    return SessionLockExpired("The session lock has expired on the MessageSession. Accept a new MessageSession.")


class HeldSession:
    """A session under lock: received from like a sub-queue, by one consumer at most, and settled on in `checked()`.

    `number` distinguishes this lock from every other of the same sub-queue. `on_lock_lost` is called when the lock
    expires. `owner` is the name of the connection that holds it, as its client gave it. Everything raises
    SessionLockExpired after the lock has ended.
    """

    def __init__(self, messages: SessionMessages, session: SessionState, number: int) -> None:
        self.session = session
        self.id = session.id
        self.number = number
        self.locked_until_ms = 0
        self.owner = ""
        self.on_lock_lost: Callable[[SessionLockExpired], None] | None = None
        self._messages = messages
        self._consumer: Consumer | None = None

    @property
    def state(self) -> bytes | None:
        return self.session.state

    def checked(self) -> SessionMessages:
        """Return the entity's messages, after everything due. Raises SessionLockExpired if the lock has ended."""
        self._messages.advance_if_due()
        if self.session.holder is not self:
            raise session_lock_lost()
        return self._messages

    def receive(self, max_messages: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        messages = self.checked()
        taken = self.session.ready.take(max_messages) if messages.is_available(self.session) else []
        messages.lock_for(self, taken)
        if consumer is not None:
            self._consumer = consumer if len(taken) < max_messages else None
        return taken

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        messages = self.checked()
        found = messages._numbered(sequences, DEFERRED)
        for message in found:
            if not message.is_in_session(self.id):
                raise MessageNotFound(NOT_DEFERRED)
        messages.lock_for(self, found)
        return found

    def remove_consumer(self, consumer: Consumer) -> None:
        if self._consumer is consumer:
            self._consumer = None

    def wake(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.wake()

    def renew(self) -> int:
        """Lock the session for a whole LockDuration from now; return until when."""
        self.checked().extend_lock(self)
        return self.locked_until_ms

    def set_state(self, state: bytes | None) -> None:
        self.checked().set_state(self.session, state)

    def expire_lock(self) -> None:
        """End the lock: the deliveries under it have failed."""
        self.close(failed=True)
        if self.on_lock_lost is not None:
            self.on_lock_lost(session_lock_lost())

    def close(self, *, failed: bool = False) -> None:
        """Release the session, if it is still held."""
        if self.session.holder is self:
            self._messages.end_hold(self, failed=failed)
