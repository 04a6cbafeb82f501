"""Progress of a run: events, counted from the files that its tasks have written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from sbpair.errors import StateRefused
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import LEDGER, SEGMENTS


@dataclass(frozen=True, slots=True)
class ReplayPhase:
    """The phase that begins. `run` is the run's id."""

    name: str
    text: str
    run: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """The messages that a phase will process, by queue or destination, as far as known."""

    phase: str
    by: dict[str, int]


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """The messages in a phase's files so far, by source queue or by destination."""

    phase: str
    messages: int
    files: int
    by: dict[str, int] = field(default_factory=dict)


Event: TypeAlias = ReplayPhase | Expected | PhaseProgress
OnEvent: TypeAlias = Callable[[Event], None]


class PhaseWatcher:
    """A counter of the rows in one phase's files. Each file is read once."""

    def __init__(self, archive: Archive, phase: str, under: str, count: Callable[[Archive, str], Counter[str]]) -> None:
        self._archive, self._phase, self._under, self._count = archive, phase, under, count
        self._seen: set[str] = set()
        self._by: Counter[str] = Counter()

    def sample(self) -> PhaseProgress:
        """Count the new files, and return the totals."""
        for path in self._archive.files(self._under):
            if path not in self._seen:
                with suppress(StateRefused):  # the proof reports unreadable files
                    self._by += self._count(self._archive, path)
                self._seen.add(path)
        return PhaseProgress(self._phase, self._by.total(), len(self._seen), dict(self._by))


def drain_watcher(archive: Archive) -> PhaseWatcher:
    """Return a counter of archived messages, by queue."""
    return PhaseWatcher(archive, "drain", SEGMENTS, _count_segment)


def send_watcher(archive: Archive) -> PhaseWatcher:
    """Return a counter of accepted messages, by destination."""
    return PhaseWatcher(archive, "send", LEDGER, partial(Archive.count_values, column="destination"))


def move_watcher(archive: Archive) -> PhaseWatcher:
    """Return a counter of a direct run's accepted messages, by queue."""
    return PhaseWatcher(archive, "move", LEDGER, partial(Archive.count_values, column="queue"))


def _count_segment(archive: Archive, path: str) -> Counter[str]:
    queue = path.removeprefix(f"{SEGMENTS}/").rpartition("/")[0]
    return Counter({queue: archive.row_count(path)})
