"""The senders of a worker, one per destination, and when each of them starts a round.

Many messages are sent at once; few wait a moment for more. Invariant: once the mover is stopping no round starts, and
those in progress finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from sbpair.move.failure_latch import start_task
from sbpair.move.interface import get_place

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.destination_sender import DestinationSender
    from sbpair.move.failure_latch import FailureLatch
    from sbpair.move.interface import ReceivedMessage, RoutedMessage

UNORDERED_ROUNDS = 4
"""Rounds in progress for one destination, if the order does not matter."""


class DestinationSenders:
    """Created on demand by `new_sender`."""

    def __init__(
        self,
        new_sender: Callable[[str], DestinationSender],
        tasks: asyncio.TaskGroup,
        context: MoveContext,
        latch: FailureLatch,
    ) -> None:
        self._new_sender = new_sender
        self._tasks = tasks
        self._latch = latch
        self._gather_seconds = context.timings.gather_seconds
        self._max_rounds = 1 if context.ordered else UNORDERED_ROUNDS
        self._senders: dict[str, DestinationSender] = {}
        self._by_spelling: dict[str, DestinationSender] = {}
        self._gathering = False

    def __iter__(self) -> Iterator[DestinationSender]:
        return iter(self._senders.values())

    def to(self, destination: str) -> DestinationSender:
        return self._by_spelling.get(destination) or self._add_spelling(destination)

    def _add_spelling(self, destination: str) -> DestinationSender:
        # Service Bus compares paths without regard to case: one sender for every spelling.
        name = destination.lower()
        sender = self._senders.get(name)
        if sender is None:
            sender = self._senders[name] = self._new_sender(destination)
        self._by_spelling[destination] = sender
        return sender

    # The messages of all senders.

    @property
    def busy(self) -> bool:
        return any(sender.rounds for sender in self)

    def backing_off(self) -> list[DestinationSender]:
        return [sender for sender in self if sender.backoff_reason is not None]

    def count_stuck(self, failures: int) -> int:
        """Count messages that wait for destinations with so many failures in a row."""
        return sum(len(sender.queue) for sender in self if sender.failures >= failures)

    def waiting(self) -> list[ReceivedMessage]:
        """Return the messages that are not being sent."""
        return [routed.message for sender in self for routed in sender.queue]

    def drop(self, message: ReceivedMessage) -> bool:
        """Remove a message from its queue. Return False if it waits in none."""
        return any(sender.queue.drop(message) for sender in self)

    def drop_newest(self) -> ReceivedMessage | None:
        """Remove and return the last of all waiting messages."""
        newest = max((routed for sender in self for routed in sender.queue), key=get_place, default=None)
        if newest is None:
            return None
        self.to(newest.send.destination).queue.drop(newest.message)
        return newest.message

    # Rounds.

    def send(self, destination: str, routed: Sequence[RoutedMessage]) -> None:
        """Queue messages for a destination, and send them now or soon."""
        sender = self.to(destination)
        sender.queue.add(routed)
        self._schedule(sender)

    def _schedule(self, sender: DestinationSender) -> None:
        if self._may_start(sender):
            if sender.is_due:
                self._start(sender)
            elif not self._gathering:
                self._gathering = True
                start_task(self._tasks, self._gather(), "gather")

    def _may_start(self, sender: DestinationSender) -> bool:
        return len(sender.queue) > 0 and sender.rounds < self._max_rounds and not self._latch.stopping.is_set()

    def _start(self, sender: DestinationSender) -> None:
        sender.rounds += 1
        start_task(self._tasks, self._run(sender), f"send to {sender.destination}")

    async def _gather(self) -> None:
        await asyncio.sleep(self._gather_seconds)
        self._gathering = False
        for sender in self:
            if self._may_start(sender):
                self._start(sender)

    async def _run(self, sender: DestinationSender) -> None:
        try:
            while len(sender.queue) and not self._latch.stopping.is_set():
                await sender.send_round()
                if not sender.is_due:
                    break
        finally:
            sender.rounds -= 1
            self._latch.changed.set()
        self._schedule(sender)
