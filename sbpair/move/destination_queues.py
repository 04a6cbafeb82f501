"""All the destinations of a lane: which road leads there, which of them rest, and what waits on them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbpair.move.batch_limits import DEFAULT_BATCH_LIMITS
from sbpair.move.destination_queue import DestinationQueue
from sbpair.move.interface import get_ordinal

if TYPE_CHECKING:
    from sbpair.move.interface import ReceivedMessage
    from sbpair.move.wrong_primary import WrongPrimaryBreaker


class DestinationQueues:
    """One for each destination that something was ever sent to, made when it is first asked for."""

    def __init__(
        self, guard: WrongPrimaryBreaker, *, ordered: bool, min_round: int = DEFAULT_BATCH_LIMITS.min_round
    ) -> None:
        self._guard = guard
        self._ordered = ordered
        self._min_round = min_round
        self._roads: dict[str, DestinationQueue] = {}
        self._spelled: dict[str, DestinationQueue] = {}

    def __iter__(self) -> Iterator[DestinationQueue]:
        return iter(self._roads.values())

    def to(self, destination: str) -> DestinationQueue:
        return self._spelled.get(destination) or self._spell(destination)

    def _spell(self, destination: str) -> DestinationQueue:
        # Service Bus compares paths without regard to case: one road for every spelling.
        name = destination.lower()
        road = self._roads.get(name)
        if road is None:
            road = DestinationQueue(destination, ordered=self._ordered, min_round=self._min_round)
            self._roads[name] = road
            self._guard.asked(name)
        self._spelled[destination] = road
        return road

    @property
    def busy(self) -> bool:
        """Whether anybody sends."""
        return any(road.workers for road in self)

    def backing_off(self) -> list[DestinationQueue]:
        """Those that take nothing for now."""
        return [road for road in self if road.resting is not None]

    def stuck(self, failures: int) -> int:
        """How many messages wait for destinations that have failed so often in a row."""
        return sum(len(road) for road in self if road.failures >= failures)

    def waiting(self) -> list[ReceivedMessage]:
        """What nothing is done with."""
        return [order.message for road in self for order in road]

    def drop(self, arrival: ReceivedMessage) -> bool:
        """Take one that waits off its road, for it is no longer ours. False where it waits on none."""
        return any(road.drop(arrival) for road in self)

    def drop_youngest(self) -> ReceivedMessage | None:
        """Take the last one of all that wait off its road."""
        youngest = max((order for road in self for order in road), key=get_ordinal, default=None)
        if youngest is None:
            return None
        self.to(youngest.send.destination).drop(youngest.message)
        return youngest.message
