"""How far a run is: events for whoever watches, told by the files that its tasks have made, and by nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from sbpair.errors import StateRefused
from sbpair.replay.archive import LEDGER, SEGMENTS, Archive


@dataclass(frozen=True, slots=True)
class ReplayPhase:
    """What is being done now. `run` is the run's id."""

    name: str
    text: str
    run: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """How many messages a phase will have to do with, by queue or destination, as far as that is known."""

    phase: str
    by: dict[str, int]


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """How many messages a phase has in its files by now, by the queue they came from, or where they went."""

    phase: str
    messages: int
    files: int
    by: dict[str, int] = field(default_factory=dict)


Event: TypeAlias = ReplayPhase | Expected | PhaseProgress
Tell: TypeAlias = Callable[[Event], None]


class PhaseWatcher:
    """Counts the rows of one phase's files, each file once."""

    def __init__(self, archive: Archive, phase: str, under: str, count: Callable[[Archive, str], Counter[str]]) -> None:
        self._archive, self._phase, self._under, self._count = archive, phase, under, count
        self._seen: set[str] = set()
        self._by: Counter[str] = Counter()

    def look(self) -> PhaseProgress:
        for path in self._archive.files(self._under):
            if path not in self._seen:
                with suppress(StateRefused):  # whether it can be read is the proof's to say
                    self._by += self._count(self._archive, path)
                self._seen.add(path)
        return PhaseProgress(self._phase, self._by.total(), len(self._seen), dict(self._by))


def drained(archive: Archive) -> PhaseWatcher:
    """What is in segments, by queue."""
    return PhaseWatcher(archive, "drain", SEGMENTS, _rows_of_queue)


def sent(archive: Archive) -> PhaseWatcher:
    """What is in the ledger, by destination."""
    return PhaseWatcher(archive, "send", LEDGER, partial(Archive.counts, column="destination"))


def moved(archive: Archive) -> PhaseWatcher:
    """What is in the ledger of a direct run, by queue."""
    return PhaseWatcher(archive, "move", LEDGER, partial(Archive.counts, column="queue"))


def _rows_of_queue(archive: Archive, path: str) -> Counter[str]:
    queue = path.removeprefix(f"{SEGMENTS}/").rpartition("/")[0]
    return Counter({queue: archive.rows(path)})
