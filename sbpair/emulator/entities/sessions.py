"""Sessions: the messages of one id, lent as a whole to one receiver at a time, and what is remembered between loans.

Synchronous, knows no protocol. One lock covers a session and everything received from it; messages have tokens, and no
deadlines of their own. A session without messages, state and holder costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from sbpair.emulator.entities.message_order import Deadlines, ReadyQueue
from sbpair.emulator.entities.partitions import PartitionedMessages
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    MessageNotFound,
    NotAllowed,
    ServiceError,
    SessionCannotBeLocked,
    SessionLockExpired,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import Consumer


MAX_SESSION_ID: Final = 128


class SessionWaiter(Protocol):
    """Who waits for any session that is free. Compared and hashed by identity."""

    def on_session_locked(self, held: HeldSession) -> None:
        """Here is one. Call nothing but `receive` on it now."""


class SessionState:
    """What an entity knows of one session id. `line` are its messages that wait, `given_out` those under lock."""

    __slots__ = ("changed_ms", "given_out", "holder", "id", "line", "state")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.line = ReadyQueue()
        self.given_out: dict[bytes, StoredMessage] = {}
        self.holder: HeldSession | None = None
        self.state: bytes | None = None
        self.changed_ms = 0

    @property
    def is_listed(self) -> bool:
        return bool(len(self.line) or self.given_out or self.state is not None)


class SessionLines(ReadyQueue):
    """One line for each session. `free` are sessions with messages and no holder, in the order of becoming so."""

    __slots__ = ("free", "sessions", "stirred")

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, SessionState] = {}
        self.free: OrderedDict[SessionState, None] = OrderedDict()
        self.stirred: OrderedDict[SessionState, None] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(session.line) for session in self.sessions.values())

    def of(self, session_id: str) -> SessionState:
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = SessionState(session_id)
        return session

    def put(self, message: StoredMessage) -> None:
        session = self.of(message.session_id or "")
        session.line.put(message)
        if session.holder is None:
            self.free.setdefault(session)
        else:
            self.stirred.setdefault(session)

    def forget_if_idle(self, session: SessionState) -> None:
        if session.holder is None and not session.is_listed:
            self.free.pop(session, None)
            self.sessions.pop(session.id, None)


class SessionMessages(SubQueue):
    """The messages of an entity that requires sessions: received through a session that is held, and no other way."""

    _last_loan = 0

    def _make_empty(self) -> None:
        super()._make_empty()
        self._line = self._lines = SessionLines()
        self._applicants: OrderedDict[SessionWaiter, None] = OrderedDict()
        self._loans: dict[int, HeldSession] = {}
        self._loan_ends = Deadlines(self._still_ends)

    # Lending

    def accept(self, session_id: str) -> HeldSession:
        """This session, messages or none. SessionCannotBeLocked where somebody else has it."""
        now = self._now()
        session = self._lines.of(session_id)
        if session.holder is not None:
            raise SessionCannotBeLocked(f"The requested session '{session_id}' cannot be accepted: it is locked.")
        return self._lend(session, now)

    def accept_next(self, applicant: SessionWaiter) -> HeldSession | None:
        """The session that has been free with messages for longest; without one the applicant stands in line."""
        now = self._now()
        session = None if self._applicants else self._next_free()
        if session is not None:
            return self._lend(session, now)
        self._applicants[applicant] = None
        return None

    def remove_waiter(self, applicant: SessionWaiter) -> None:
        self._applicants.pop(applicant, None)

    def _next_free(self) -> SessionState | None:
        free = self._lines.free
        while free:
            session = free.popitem(last=False)[0]
            if len(session.line):
                return session
            self._lines.forget_if_idle(session)
        return None

    def _lend(self, session: SessionState, now: int) -> HeldSession:
        self._lines.free.pop(session, None)
        self.touched_ms = now
        self._last_loan += 1
        held = session.holder = HeldSession(self, session, self._last_loan)
        self._loans[held.number] = held
        self._prolong(held, now)
        return held

    def _prolong(self, held: HeldSession, now: int) -> None:
        held.locked_until_ms = now + self._locks.duration_ms
        self._loan_ends.add(held.locked_until_ms, held.number)
        for message in held.session.given_out.values():
            message.locked_until_ms = held.locked_until_ms
        self._due_by(held.locked_until_ms)

    def renew_session(self, held: HeldSession) -> int:
        """Locked for a whole LockDuration from now; returns until when."""
        now = self._now()
        held.check()
        self._loan_ends.leave()
        self._prolong(held, now)
        return held.locked_until_ms

    def held_session(self, session_id: str) -> HeldSession:
        """Whoever holds this session; SessionLockLost where nobody does."""
        self._now()
        session = self._lines.sessions.get(session_id)
        if session is None or session.holder is None:
            raise session_lost(session_id)
        return session.holder

    def take_back(self, held: HeldSession, *, failed: bool) -> None:
        """The loan is over, and what was given out goes back; `failed` counts that as deliveries that failed."""
        session = held.session
        if session.holder is not held:
            return
        session.holder = None
        del self._loans[held.number]
        self._loan_ends.leave()
        for token in list(session.given_out):
            message = self._unlock(token)
            if failed:
                self._delivery_failed(message)
            else:
                self._put_back(message)
        if len(session.line):
            self._lines.free.setdefault(session)
        self._lines.forget_if_idle(session)
        self._pump_soon()

    # Out

    def receive(self, limit: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        del limit, consumer
        raise NotAllowed("The entity requires sessions: it is received from through a session.")

    def receive_of(self, held: HeldSession, limit: int) -> list[StoredMessage]:
        now = self.touched_ms = self._now()
        held.check()
        return self._give_out(held, held.session.line.take(limit), now)

    def receive_deferred_of(self, held: HeldSession, sequences: Sequence[int]) -> list[StoredMessage]:
        now = self.touched_ms = self._now()
        held.check()
        messages = [self._deferred(sequence) for sequence in dict.fromkeys(sequences)]
        for message in messages:
            if message.session_id != held.session.id:
                raise MessageNotFound(f"Message {message.sequence_number} is none of session '{held.session.id}'.")
        return self._give_out(held, messages, now)

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        del sequences
        raise NotAllowed("The entity requires sessions: name the session of the deferred messages.")

    def _give_out(self, held: HeldSession, messages: list[StoredMessage], now: int) -> list[StoredMessage]:
        self._locks.take(messages, now)
        for message in messages:
            message.locked_until_ms = held.locked_until_ms
            held.session.given_out[message.lock_token] = message
        return messages

    def peek_session(self, session_id: str, from_sequence: int, limit: int) -> list[StoredMessage]:
        """As `peek`, of one session, whoever holds it."""
        self._now()
        found: list[StoredMessage] = []
        for message in self._shelf.read_from(from_sequence):
            if len(found) >= limit:
                break
            if message.session_id == session_id:
                found.append(message)
        return found

    def renew(self, token: bytes) -> StoredMessage:
        del token
        raise NotAllowed("The lock of a message of a session is renewed with its session.")

    def _end_lock(self, token: bytes) -> StoredMessage:
        message = super()._end_lock(token)
        self._lines.of(message.session_id or "").given_out.pop(token, None)
        return message

    # Between loans

    def set_state(self, held: HeldSession, state: bytes | None) -> None:
        now = self._now()
        held.check()
        self.size_bytes += len(state or b"") - len(held.session.state or b"")
        held.session.state = state
        held.session.changed_ms = now

    def list_sessions(self, changed_after_ms: int | None = None) -> list[str]:
        """Sessions with messages or state; or those whose state was changed after a time. In order of their ids."""
        self._now()
        sessions = self._lines.sessions.values()
        if changed_after_ms is None:
            return sorted(session.id for session in sessions if session.is_listed)
        return sorted(session.id for session in sessions if session.changed_ms > changed_after_ms)

    @property
    def has_consumers(self) -> bool:
        return bool(self._applicants or self._loans)

    # Waking

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        super().enqueue(messages)
        self._pump_soon()

    def _pump_soon(self) -> None:
        wanted = self._lines.stirred or (self._applicants and self._lines.free)
        if wanted and not self._pump_is_due and not self._pumping:
            self._pump_is_due = True
            self._call_soon(self._pump)

    def _pump(self) -> None:
        """First those who have a session that got something, then those who want one."""
        self._pump_is_due = False
        self._pumping = True
        try:
            while self._lines.stirred:
                session = self._lines.stirred.popitem(last=False)[0]
                if session.holder is not None:
                    session.holder.wake()
            self._serve_applicants()
        finally:
            self._pumping = False

    def _serve_applicants(self) -> None:
        while self._applicants and (session := self._next_free()) is not None:
            applicant = self._applicants.popitem(last=False)[0]
            applicant.on_session_locked(self._lend(session, self._clock.now_ms()))

    # Time

    def _end_locks(self, now_ms: int) -> None:
        # All of them first: what one loses another may be lent at once.
        for number in list(self._loan_ends.due(now_ms)):
            held = self._loans.get(number)
            if held is not None and held.locked_until_ms <= now_ms:
                held.lose()

    def _first_lock_ms(self) -> int:
        return self._loan_ends.first_ms()

    def _still_ends(self, at_ms: int, number: int) -> bool:
        held = self._loans.get(number)
        return held is not None and held.locked_until_ms == at_ms

    def _leave_line(self, message: StoredMessage) -> None:
        session = self._lines.of(message.session_id or "")
        session.line.leave()
        self._lines.forget_if_idle(session)

    def drop_all(self) -> None:
        for session in self._lines.sessions.values():
            session.given_out.clear()
            session.holder = None
        super().drop_all()


class PartitionedSessions(SessionMessages, PartitionedMessages):
    """In a partitioned entity all of a session is in one partition, since its id is the key.

    While that is down the session is not lent, and whoever has it already gets nothing more out of it.
    """

    def _is_up(self, session: SessionState) -> bool:
        return self._partitions.is_up(self._partitions.for_key(session.id))

    def accept(self, session_id: str) -> HeldSession:
        self._partitions.check(self._partitions.for_key(session_id))
        return super().accept(session_id)

    def _next_free(self) -> SessionState | None:
        if self._partitions.up_count == self._partitions.count:
            return super()._next_free()
        # Those that are passed over keep their places.
        free = self._lines.free
        found = next((session for session in free if len(session.line) and self._is_up(session)), None)
        if found is not None:
            del free[found]
        return found

    def receive_of(self, held: HeldSession, limit: int) -> list[StoredMessage]:
        if not self._is_up(held.session):
            held.check()
            return []
        return super().receive_of(held, limit)

    def resume(self) -> None:
        for held in self._loans.values():
            if len(held.session.line):
                self._lines.stirred.setdefault(held.session)
        super().resume()


class HeldSession:
    """A session under lock: received from and settled on like a sub-queue. `on_lock_lost` is called when the lock ends.

    `number` tells its loan from every other of the same sub-queue.

    Everything raises SessionLockLost once the loan is over.
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
            raise session_lost(self.session.id)

    def receive(self, limit: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        """As of a sub-queue; there is one consumer at most."""
        taken = self._messages.receive_of(self, limit)
        if consumer is not None:
            self._consumer = consumer if len(taken) < limit else None
        return taken

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        return self._messages.receive_deferred_of(self, sequences)

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

    def lose(self) -> None:
        """The lock has run out: what was given out has failed."""
        self._messages.take_back(self, failed=True)
        if self.on_lock_lost is not None:
            self.on_lock_lost(session_lost(self.session.id))

    def close(self, *, failed: bool = False) -> None:
        """The holder gives the session back."""
        self._messages.take_back(self, failed=failed)

    # Settlement

    def get_locked(self, token: bytes) -> StoredMessage:
        return self._held().get_locked(token)

    def modify(self, token: bytes, change: Callable[[StoredMessage], None]) -> None:
        self._held().modify(token, change)

    def complete(self, token: bytes) -> None:
        self._held().complete(token)

    def complete_all(self, tokens: Iterable[bytes]) -> dict[bytes, ServiceError]:
        try:
            return self._held().complete_all(tokens)
        except SessionLockExpired as refusal:
            return dict.fromkeys(tokens, refusal)

    def abandon(self, token: bytes) -> None:
        self._held().abandon(token)

    def release(self, token: bytes) -> None:
        self._held().release(token)

    def defer(self, token: bytes) -> None:
        self._held().defer(token)

    def dead_letter(self, token: bytes, reason: str | None = None, description: str | None = None) -> None:
        self._held().dead_letter(token, reason, description)

    def _held(self) -> SessionMessages:
        self._messages.advance_if_due()
        self.check()
        return self._messages


def session_lost(session_id: str) -> SessionLockExpired:
    return SessionLockExpired(f"The lock on the session '{session_id}' has expired, or is not held. Accept it again.")


def check_sessions(messages: Sequence[StoredMessage]) -> None:
    """Where sessions are required, each message names one."""
    for message in messages:
        if message.session_id is None:
            raise NotAllowed("The SessionId was not set on a message, and the entity requires sessions.")
        if len(message.session_id) > MAX_SESSION_ID:
            raise ArgumentInvalid(f"A SessionId has at most {MAX_SESSION_ID} characters.")
