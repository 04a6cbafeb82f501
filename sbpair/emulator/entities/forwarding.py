"""Forwarders: consumers that pass on the messages of one sub-queue, to another entity or to a dead-letter queue.

A forwarder is a consumer like any other, or locks one session after the other. While a message cannot be passed on, it
and those after it stay where they are, in order, until the forwarder is woken again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.stored_message import ForwardedMessage
from sbpair.emulator.service_errors import EntityUnavailable, OperationTimedOut

if TYPE_CHECKING:
    from sbpair.emulator.entities.description import QueueDescription
    from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue

MAX_HOPS: Final = 4
HOPS_EXCEEDED: Final = "MaxTransferHopCountExceeded"
_BATCH: Final = 100


def forwarded_copy(message: StoredMessage, target: QueueDescription) -> ForwardedMessage:
    """Return a message for the target: with its keys, its first sequence number and one hop more."""
    copied = ForwardedMessage.copy(message, service_envelope.forwarded_sections(message), hops=message.hops + 1)
    if target.requires_duplicate_detection and copied.message_id is None:
        copied.message_id = service_envelope.message_id_of(message)
    return copied


class Forwarder:
    """Passes on the messages of one sub-queue, one by one.

    `forward` completes a message and passes it on, or raises EntityUnavailable or OperationTimedOut: it must wait.
    """

    def __init__(self, messages: SubQueue, forward: Callable[[StoredMessage], None]) -> None:
        self._messages = messages
        self._forward = forward

    def stop(self) -> None:
        self._messages.remove_consumer(self)

    def wake(self) -> None:
        """Forward all there is. Call it at first, and when something that was down is up again."""
        self._forward_all(self._messages)

    def _forward_all(self, messages: SubQueue | HeldSession) -> bool:
        """Forward all messages there; return False if the rest must wait for something that is down."""
        received: list[StoredMessage] = []
        try:
            while received := messages.receive(_BATCH, self):
                while received:
                    self._forward(received[0])
                    del received[0]
        except (EntityUnavailable, OperationTimedOut):
            self.stop()
            for message in received:
                messages.checked().release(message.lock_token)
            return False
        return True


class SessionForwarder(Forwarder):
    """Passes on the messages of an entity that requires sessions, in the order of each session."""

    _messages: SessionMessages

    def stop(self) -> None:
        self._messages.remove_waiter(self)

    def wake(self) -> None:
        while held := self._messages.accept_next(self):
            if not self._forward_session(held):
                break

    def on_session_locked(self, held: HeldSession) -> None:
        if self._forward_session(held):
            self.wake()

    def _forward_session(self, held: HeldSession) -> bool:
        done = self._forward_all(held)
        held.close()
        return done
