"""The state of each session of an entity, and the ready messages of each."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from sbpair.emulator.entities.message_order import ReadyQueue
from sbpair.emulator.service_errors import ArgumentInvalid, NotAllowed, SessionLockExpired

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.emulator.entities.stored_message import StoredMessage

MAX_SESSION_ID: Final = 128


class SessionHolder(Protocol):
    """The lock on a session, identified by its number."""

    number: int

    def wake(self) -> None: ...


class SessionState:
    """One session of an entity: its ready messages, its locked messages, its holder and its state."""

    __slots__ = ("holder", "id", "locked", "ready", "state", "state_changed_ms")

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.ready = ReadyQueue()
        self.locked: dict[bytes, StoredMessage] = {}
        self.holder: SessionHolder | None = None
        self.state: bytes | None = None
        self.state_changed_ms = 0

    @property
    def is_listed(self) -> bool:
        return bool(len(self.ready) or self.locked or self.state is not None)


class SessionReadyQueues(ReadyQueue):
    """A ready queue for each session.

    `available` are sessions with messages and no holder, in the order in which they became so. `to_wake` are held
    sessions that got messages.
    """

    __slots__ = ("available", "sessions", "to_wake")

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, SessionState] = {}
        self.available: OrderedDict[SessionState, None] = OrderedDict()
        self.to_wake: OrderedDict[SessionState, None] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(session.ready) for session in self.sessions.values())

    def session(self, session_id: str) -> SessionState:
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = SessionState(session_id)
        return session

    def put(self, message: StoredMessage) -> None:
        session = self.session(message.session_id or "")
        session.ready.put(message)
        if session.holder is None:
            self.available.setdefault(session)
        else:
            self.to_wake.setdefault(session)

    def forget_if_idle(self, session: SessionState) -> None:
        if session.holder is None and not session.is_listed:
            self.available.pop(session, None)
            self.sessions.pop(session.id, None)


def check_session_ids(messages: Sequence[StoredMessage]) -> None:
    """Raise an error for a message without session id, or with one that is too long."""
    for message in messages:
        if message.session_id is None:
            raise NotAllowed("The SessionId was not set on a message, and the entity requires sessions.")
        if len(message.session_id) > MAX_SESSION_ID:
            raise ArgumentInvalid(f"A SessionId has at most {MAX_SESSION_ID} characters.")


def session_lock_lost(session_id: str) -> SessionLockExpired:
    return SessionLockExpired(f"The lock on the session '{session_id}' has expired, or is not held. Accept it again.")
