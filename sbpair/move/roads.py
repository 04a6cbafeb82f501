"""All the destinations of a lane: which road leads there, which of them rest, and what waits on them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbpair.move.engine import turn_of
from sbpair.move.road import Road
from sbpair.move.stride import USUAL

if TYPE_CHECKING:
    from sbpair.move.engine import Arrival
    from sbpair.move.guard import Guard


class Roads:
    """One for each destination that something was ever sent to, made when it is first asked for."""

    def __init__(self, guard: Guard, *, ordered: bool, round_least: int = USUAL.round_least) -> None:
        self._guard = guard
        self._ordered = ordered
        self._round_least = round_least
        self._roads: dict[str, Road] = {}
        self._spelled: dict[str, Road] = {}

    def __iter__(self) -> Iterator[Road]:
        return iter(self._roads.values())

    def to(self, destination: str) -> Road:
        return self._spelled.get(destination) or self._spell(destination)

    def _spell(self, destination: str) -> Road:
        # Service Bus compares paths without regard to case: one road for every spelling.
        name = destination.lower()
        road = self._roads.get(name)
        if road is None:
            road = Road(destination, ordered=self._ordered, round_least=self._round_least)
            self._roads[name] = road
            self._guard.asked(name)
        self._spelled[destination] = road
        return road

    @property
    def busy(self) -> bool:
        """Whether anybody sends."""
        return any(road.workers for road in self)

    def resting(self) -> list[Road]:
        """Those that take nothing for now."""
        return [road for road in self if road.resting is not None]

    def stuck(self, failures: int) -> int:
        """How many messages wait for destinations that have failed so often in a row."""
        return sum(len(road) for road in self if road.failures >= failures)

    def waiting(self) -> list[Arrival]:
        """What nothing is done with."""
        return [order.arrival for road in self for order in road]

    def drop(self, arrival: Arrival) -> bool:
        """Take one that waits off its road, for it is no longer ours. False where it waits on none."""
        return any(road.drop(arrival) for road in self)

    def drop_youngest(self) -> Arrival | None:
        """Take the last one of all that wait off its road."""
        youngest = max((order for road in self for order in road), key=turn_of, default=None)
        if youngest is None:
            return None
        self.to(youngest.send.destination).drop(youngest.arrival)
        return youngest.arrival
