"""Auto-forwarding: what comes into one sub-queue is sent on to another entity, or put aside with the reason.

A forwarder is a consumer like any other: an entity that forwards nothing does not know of it. No protocol here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sbpair.emulator import envelope
from sbpair.emulator.errors import Refusal
from sbpair.emulator.message import Forwarded

if TYPE_CHECKING:
    from sbpair.emulator.message import Message
    from sbpair.emulator.queue import Queue
    from sbpair.emulator.subqueue import Expel, SubQueue

HOPS_MOST: Final = 4
HOPS_EXCEEDED: Final = "MaxTransferHopCountExceeded"
_SLICE: Final = 100

Find = Callable[[str], "Queue"]
"""The queue or topic of an address. Raises EntityNotFound."""


class Forwarder:
    """Sends on what comes into `messages`. `put_aside` gets what the target refuses."""

    def __init__(self, messages: SubQueue, to: str, find: Find, put_aside: Expel) -> None:
        self.to = to
        self._messages = messages
        self._find = find
        self._put_aside = put_aside

    def start(self) -> None:
        self.wake()

    def stop(self) -> None:
        self._messages.withdraw(self)

    def wake(self) -> None:
        taken = self._messages.receive(_SLICE, self)
        while taken:
            for message in taken:
                self._forward(message)
            taken = self._messages.receive(_SLICE, self) if len(taken) == _SLICE else []

    def _forward(self, message: Message) -> None:
        # Complete first: a target that leads back here must not find it under lock.
        self._messages.complete(message.lock_token)
        hops = message.hops if isinstance(message, Forwarded) else 0
        if hops >= HOPS_MOST:
            text = f"The maximum number of allowed hops when forwarding between entities is {HOPS_MOST}."
            self._put_aside(message, HOPS_EXCEEDED, text)
            return
        try:
            target = self._find(self.to)
            target.send([forwarded(message, with_id=target.description.requires_duplicate_detection)])
        except Refusal as refusal:
            self._put_aside(message, type(refusal).__name__, refusal.message)


def forwarded(message: Message, *, with_id: bool) -> Forwarded:
    """The message for the next entity, with its keys, its first number and one hop more."""
    twin = Forwarded.of(message, envelope.as_it_goes_on(message))
    if with_id and twin.message_id is None:
        twin.message_id = envelope.message_id_of(message)
    return twin
