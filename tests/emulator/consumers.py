"""Consumers of messages and waiters for sessions, on the engine."""

from collections.abc import Iterable
from typing import Any

from sbpair.emulator.entities.sessions import HeldSession
from sbpair.emulator.entities.stored_message import StoredMessage


def numbers(messages: Iterable[StoredMessage]) -> list[int]:
    return [message.sequence_number for message in messages]


class CreditConsumer:
    """A consumer of a sub-queue or a held session, that receives up to `credit` messages when it is woken."""

    def __init__(self, source: Any, credit: int) -> None:
        self.source = source
        self.credit = credit
        self.got: list[int] = []

    def wake(self) -> None:
        taken = self.source.receive(self.credit, self)
        self.credit -= len(taken)
        self.got += numbers(taken)


class SessionWaiter:
    """A receiver that waits for a session. `held` is the one that it got last."""

    held: HeldSession | None = None

    def on_session_locked(self, held: HeldSession) -> None:
        self.held = held
