"""The metrics of a run: their names, units and labels, and their figures at any moment.

The figures are from its counts, read when asked for, and from its events.

Invariant: a message costs nothing here, and no figure holds content of a message or a secret. May be read from any
thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from sbpair.metrics.metric_names import (
    BACKING_OFF,
    BACKOFFS,
    BYTES_SENT,
    CREDITS,
    DEAD_LETTERS,
    DEPTH,
    FAILURES,
    HELD,
    LOCKED,
    MESSAGES,
    OLDEST,
    OPERATIONS,
    PAUSED,
    SENT_TO,
    SIDE_AWAY,
    START_TIME,
    WAITING,
    Metric,
)
from sbpair.model.pair import SIDES
from sbpair.move import events
from sbpair.move.receipt import SPENT
from sbpair.runs.database import now_ms

if TYPE_CHECKING:
    from sbpair.syphon.run_store import LiveRun

MAX_DESTINATIONS: Final = 100
OTHERS: Final = "(others)"
"""The label of all further destinations. No entity has this name."""

Figures: TypeAlias = dict[Metric, dict[str, float]]
"""The value of each series, by metric and label."""


def _encodable(text: str) -> str:
    """Replace half a surrogate pair: legal in AMQP and in an argument, and an error for an encoder."""
    return text.encode(errors="replace").decode()


class BoundedLabels:
    """Labels of destinations, at most `limit` and OTHERS. A destination keeps its label, or a counter would fall."""

    def __init__(self, limit: int = MAX_DESTINATIONS) -> None:
        self._limit = limit
        self._labels: dict[str, str] = {}

    def of(self, path: str) -> str:
        """Return the label of a destination, which has one for all of its spellings."""
        key = path.lower()
        if key not in self._labels:
            if len(self._labels) >= self._limit:
                return OTHERS
            self._labels[key] = _encodable(path)
        return self._labels[key]

    def sums(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Return the sum of each label, with 0 for a label without a count."""
        found: dict[str, float] = {}
        for path, count in counts.items():
            label = self.of(path)
            found[label] = found.get(label, 0) + count
        return {**dict.fromkeys(self._labels.values(), 0), **found}


class LiveFigures:
    """Takes the events of a run. `info` describes the run: names and texts."""

    def __init__(
        self,
        live: LiveRun,
        info: Mapping[str, str],
        *,
        clock_ms: Callable[[], int] = now_ms,
        max_labels: int = MAX_DESTINATIONS,
    ) -> None:
        self.info = {"run": live.id, **{name: _encodable(text) for name, text in info.items()}}
        self._live = live
        self._clock_ms = clock_ms
        self._started_ms = clock_ms()
        self._lock = threading.Lock()
        self._depth = events.BacklogDepth()
        self._labels = BoundedLabels(max_labels)
        self._progress: dict[str, events.QueueProgress | None] = {}
        self._waiting: dict[str, int] = {}
        self._backing_off: set[tuple[str, str]] = set()
        self._backoffs: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._away = events.AwaySides()
        self._paused = False

    def take(self, event: events.SyphonEvent) -> None:
        """Take one event in."""
        with self._lock:
            self._depth.take(event)
            match event:
                case events.QueuesFound(queues):
                    self._progress = {**dict.fromkeys(queues), **self._progress}
                case events.QueueProgress(queue):
                    self._progress[queue] = event
                case events.DestinationProgress(destination):
                    self._waiting.pop(destination, None)
                    if event.waiting:
                        self._waiting[destination] = event.waiting
                case events.DestinationBackingOff(queue, destination):
                    self._backing_off.add((queue, destination))
                    self._backoffs[self._labels.of(destination)] += 1
                case events.DestinationRecovered(queue, destination):
                    self._backing_off.discard((queue, destination))
                case events.RunPaused() | events.RunResumed():
                    self._paused = isinstance(event, events.RunPaused)
                case events.QueueOpened() | events.QueueDone() | events.QueueFailed():
                    self._turn(event)

    def _turn(self, event: events.QueueOpened | events.QueueDone | events.QueueFailed) -> None:
        # The queue holds its messages again, and no destination waits for them.
        self._progress[event.queue] = None
        self._backing_off = {each for each in self._backing_off if each[0] != event.queue}
        self._failures[event.queue] += isinstance(event, events.QueueFailed)
        self._away.take(event)

    def read(self) -> Figures:
        """Return the figures of this moment: always all metrics, with the series that there are."""
        counts = self._live.tally.counts()
        with self._lock:
            return {
                START_TIME: {"": self._started_ms / 1000},
                PAUSED: {"": int(self._paused)},
                **self._of_messages(counts.queues),
                BYTES_SENT: {"": counts.bytes_sent},
                DEAD_LETTERS: dict(counts.reasons),
                OPERATIONS: {name: counts.spent.get(name, 0) for name in SPENT},
                CREDITS: self._live.rate_limiter.credits_spent() if self._live.rate_limiter else {},
                **self._of_queues(),
                **self._of_destinations(counts.destinations),
                SIDE_AWAY: {side: int(side in self._away.names) for side in SIDES},
            }

    def _of_messages(self, counted: Mapping[str, Mapping[str, int]]) -> Figures:
        queues = sorted({*self._progress, *counted})
        return {
            metric: {queue: counted.get(queue, {}).get(bucket, 0) for queue in queues}
            for bucket, metric in MESSAGES.items()
        }

    def _of_queues(self) -> Figures:
        queues, now = self._depth.by_queue(), self._clock_ms()
        ages: dict[str, float] = {}
        for queue, (messages, since) in queues.items():
            if messages == 0:
                ages[queue] = 0.0
            elif since is not None:
                ages[queue] = max(0.0, (now - since) / 1000)
        return {
            DEPTH: {queue: messages for queue, (messages, _) in queues.items() if messages is not None},
            OLDEST: ages,
            HELD: {queue: at.held if at else 0 for queue, at in self._progress.items()},
            LOCKED: {queue: at.locked if at else 0 for queue, at in self._progress.items()},
            FAILURES: {queue: self._failures[queue] for queue in self._progress},
        }

    def _of_destinations(self, sent: Mapping[str, int]) -> Figures:
        backing_off = {destination.lower(): 1 for _, destination in self._backing_off}
        found = {SENT_TO: self._labels.sums(sent)}  # first, as it may add labels
        found[WAITING] = self._labels.sums(self._waiting)
        found[BACKING_OFF] = self._labels.sums(backing_off)
        found[BACKOFFS] = {label: self._backoffs[label] for label in found[BACKING_OFF]}
        return found
