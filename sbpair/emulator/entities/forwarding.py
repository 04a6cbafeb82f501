"""Auto-forwarding: what comes into one sub-queue is sent on to another entity, or put aside with the reason.

A forwarder is a consumer like any other: an entity that forwards nothing does not know of it. While one of the two
ends is down everything stays where it is, in its order, until the forwarder is started again. No protocol here.
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
    from sbpair.emulator.entities.queue import EntityRegistry, QueueEntity
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import Expel, SubQueue

MAX_HOPS: Final = 4
HOPS_EXCEEDED: Final = "MaxTransferHopCountExceeded"
_SLICE: Final = 100


class Forwarder:
    """Sends on what comes into `messages` of the entity `path`. `put_aside` gets what the target refuses."""

    def __init__(self, path: str, messages: SubQueue, to: str, home: EntityRegistry, put_aside: Expel) -> None:
        self.to = to
        self._path = path
        self._messages = messages
        self._home = home
        self._put_aside = put_aside

    def start(self) -> None:
        """At first, and whenever something that was down is up again."""
        self.wake()

    def stop(self) -> None:
        self._messages.remove_consumer(self)

    def wake(self) -> None:
        taken: list[StoredMessage] = []
        try:
            while taken := self._messages.receive(_SLICE, self):
                while taken:
                    self._check_up(taken[0])
                    self._forward(taken.pop(0))
        except (EntityUnavailable, OperationTimedOut):
            self.stop()
            for message in taken:
                self._messages.release(message.lock_token)

    def _check_up(self, message: StoredMessage) -> None:
        """EntityUnavailable or TimedOut where it cannot go on yet. Whatever else is wrong shows when it is sent."""
        self._home.check_up(self._path)
        with suppress(EntityNotFound, NotAllowed):
            target = self._home.find_target(self.to)
            self._home.check_up(target.path)
            if target.partitions is not None:
                target.partitions.check_batch([twin_for(target, message)])

    def _forward(self, message: StoredMessage) -> None:
        # Complete first: a target that leads back here must not find it under lock.
        self._messages.complete(message.lock_token)
        if message.hops >= MAX_HOPS:
            text = f"The maximum number of allowed hops when forwarding between entities is {MAX_HOPS}."
            self._put_aside(message, HOPS_EXCEEDED, text)
            return
        try:
            target = self._home.find_target(self.to)
            target.send([twin_for(target, message)])
        except ServiceError as refusal:
            self._put_aside(message, dead_letter_reason(refusal), refusal.message)


def twin_for(target: QueueEntity, message: StoredMessage) -> ForwardedMessage:
    """The message for the next entity, with its keys, its first number and one hop more."""
    twin = ForwardedMessage.copy(message, service_envelope.as_it_goes_on(message), hops=message.hops + 1)
    if target.description.requires_duplicate_detection and twin.message_id is None:
        twin.message_id = service_envelope.message_id_of(message)
    return twin
