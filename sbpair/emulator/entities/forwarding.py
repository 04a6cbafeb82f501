"""Auto-forwarding: messages of one sub-queue are sent on to another entity, or to the transfer dead-letter queue.

A forwarder is a consumer like any other, or locks one session after the other. While its source or its target is down,
messages stay where they are, in order, until the forwarder is started again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.stored_message import ForwardedMessage
from sbpair.emulator.service_errors import (
    EntityNotFound,
    EntityUnavailable,
    NotAllowed,
    OperationTimedOut,
    ServiceError,
    dead_letter_reason,
)

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.sessions import HeldSession, SessionMessages
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue

MAX_HOPS: Final = 4
HOPS_EXCEEDED: Final = "MaxTransferHopCountExceeded"
_BATCH: Final = 100


class Forwarder:
    """Forwards the messages of one sub-queue of `source` to the entity with the address `target`."""

    def __init__(self, source: QueueEntity, messages: SubQueue, target: str) -> None:
        self._source = source
        self._messages = messages
        self._target = target
        self._namespace = source.namespace

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
                    self._check_up(received[0])
                    self._forward(received.pop(0))
        except (EntityUnavailable, OperationTimedOut):
            self.stop()
            for message in received:
                messages.release(message.lock_token)
            return False
        return True

    def _check_up(self, message: StoredMessage) -> None:
        """Raise EntityUnavailable or OperationTimedOut if it must wait. Other errors show when it is sent."""
        check = self._namespace.fault_points.check
        check(self._source.path.lower())
        with suppress(EntityNotFound, NotAllowed):
            target = self._namespace.find_target(self._target)
            check(target.path.lower())
            if target.partitions is not None:
                target.partitions.check_batch([forwarded_copy(target, message)])

    def _forward(self, message: StoredMessage) -> None:
        # Complete first: a target that leads back here must not find it under lock.
        self._messages.complete(message.lock_token)
        if message.hops >= MAX_HOPS:
            text = f"The maximum number of allowed hops when forwarding between entities is {MAX_HOPS}."
            self._source.add_transfer_dead_letter(message, HOPS_EXCEEDED, text)
            return
        try:
            target = self._namespace.find_target(self._target)
            target.send([forwarded_copy(target, message)])
        except ServiceError as error:
            self._source.add_transfer_dead_letter(message, dead_letter_reason(error), error.message)


class SessionForwarder(Forwarder):
    """Forwards the messages of an entity that requires sessions, in the order of each session."""

    _messages: SessionMessages

    def stop(self) -> None:
        self._messages.remove_waiter(self)

    def wake(self) -> None:
        self.stop()
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


def forwarded_copy(target: QueueEntity, message: StoredMessage) -> ForwardedMessage:
    """Return the message for the next entity: with its keys, its first sequence number and one hop more."""
    copy = ForwardedMessage.copy(message, service_envelope.forwarded_sections(message), hops=message.hops + 1)
    if target.description.requires_duplicate_detection and copy.message_id is None:
        copy.message_id = service_envelope.message_id_of(message)
    return copy
