"""The metrics of a run: their names, units and labels, and their figures at any moment.

The figures are from its receipt so far, read when asked for, and from its events.

Invariant: a message costs nothing here, and no figure holds content of a message or a secret. May be read from any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

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
from sbpair.move.receipt import SPENT
from sbpair.runs.database import now_ms

if TYPE_CHECKING:
    from sbpair.move.run_state import RunState
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


class FigureReader(Protocol):
    """Reads the figures of something that lives; they always have all of its metrics. `info` describes it."""

    @property
    def info(self) -> dict[str, str]: ...

    def read(self) -> Figures: ...


class LiveFigures:
    """Reads a run. `info` describes it: names and texts."""

    def __init__(
        self,
        live: LiveRun,
        info: Mapping[str, str],
        *,
        clock_ms: Callable[[], int] = now_ms,
        max_labels: int = MAX_DESTINATIONS,
    ) -> None:
        self._info = {name: _encodable(text) for name, text in info.items()}
        self._live = live
        self._clock_ms = clock_ms
        self._started_ms = clock_ms()
        self._labels = BoundedLabels(max_labels)

    @property
    def info(self) -> dict[str, str]:
        return {"run": self._live.id, **self._info}

    @property
    def _state(self) -> RunState:
        return self._live.state

    def read(self) -> Figures:
        """Return the figures of this moment: always all metrics, with the series that there are."""
        receipt = self._live.tally.receipt()
        with self._state.lock:
            return {
                START_TIME: {"": self._started_ms / 1000},
                PAUSED: {"": int(self._state.paused)},
                **self._of_messages(receipt.queues),
                BYTES_SENT: {"": receipt.bytes_sent},
                DEAD_LETTERS: dict(receipt.dead_letter_reasons),
                OPERATIONS: {name: getattr(receipt.operations, name) for name in SPENT},
                CREDITS: self._live.rate_limiter.credits_spent() if self._live.rate_limiter else {},
                **self._of_queues(),
                **self._of_destinations(receipt.destinations),
                SIDE_AWAY: {side: int(side in self._state.away) for side in SIDES},
            }

    def _of_messages(self, counted: Mapping[str, Mapping[str, int]]) -> Figures:
        queues = sorted({*self._state.queues, *counted})
        return {
            metric: {queue: counted.get(queue, {}).get(bucket, 0) for queue in queues}
            for bucket, metric in MESSAGES.items()
        }

    def _of_queues(self) -> Figures:
        queues, now = self._state.queues, self._clock_ms()
        depths = {queue: state.left[0] for queue, state in queues.items()}
        since = {queue: now if depths[queue] == 0 else state.oldest_ms for queue, state in queues.items()}
        return {
            DEPTH: {queue: messages for queue, messages in depths.items() if messages is not None},
            OLDEST: {queue: max(0.0, (now - at) / 1000) for queue, at in since.items() if at is not None},
            HELD: {queue: state.at.held for queue, state in queues.items()},
            LOCKED: {queue: state.at.locked for queue, state in queues.items()},
            FAILURES: {queue: state.failures for queue, state in queues.items()},
        }

    def _of_destinations(self, sent: Mapping[str, int]) -> Figures:
        known = {state.at.destination: state for state in self._state.destinations.values()}
        backed_off = {path: state for path, state in known.items() if state.backoffs}
        found: dict[Metric, Mapping[str, float]] = {
            SENT_TO: sent,
            WAITING: {path: state.at.waiting for path, state in known.items() if state.at.waiting},
            BACKING_OFF: {path: bool(state.backing_off) for path, state in backed_off.items()},
            BACKOFFS: {path: state.backoffs for path, state in backed_off.items()},
        }
        for path in chain(*found.values()):
            self._labels.of(path)
        return {metric: self._labels.sums(counts) for metric, counts in found.items()}
