"""Events of a mover as lines of JSON: each change, and the progress at intervals.

Invariant: a run of many days does not fill a disk. No line is written for a single message. Progress is written after a
change, at most once an interval; repeated events are written once. All other lines are limited to one a second,
with bursts of BURST. Dropped lines are counted.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from sbpair.cli.progress.boards import QUEUE_FIGURES, Board, DestinationRow, QueueRow
from sbpair.cli.progress.reporting import event_line
from sbpair.cli.render.screen import Document
from sbpair.move import events

if TYPE_CHECKING:
    from sbpair.model.pair import Ends

Value = TypeVar("Value")

SCHEMA = "sbpair/syphon-event/1"
PROGRESS_SECONDS = 30.0
FIRST_SECONDS = 2.0
"""How long after the queues are found the first progress is written: by then they are counted."""

MAX_KINDS = 1_000
BURST = 200


class DeadLetterCounts:
    """Counts of dead letters by destination and reason since the last `take`."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._since: dict[tuple[str, str], tuple[events.DeadLettered, int]] = {}

    def add(self, event: events.DeadLettered) -> bool:
        """Count an event. Return True for the first of its kind, which is to be reported now and is not counted."""
        # The destination comes from the message: there may be as many as messages.
        kind = (event.destination or "" if len(self._known) < MAX_KINDS else "", event.reason)
        if kind not in self._known:
            self._known.add(kind)
            return True
        first, count = self._since.get(kind, (event, 0))
        self._since[kind] = first, count + 1
        return False

    def take(self) -> list[tuple[events.DeadLettered, int]]:
        """Return the first event of each kind since the last time, and how many there were."""
        found = list(self._since.values())
        self._since.clear()
        return found


class EventLines:
    """Turns events into lines, which the caller writes. `now` is in seconds of a monotonic clock."""

    def __init__(self, now: float, interval: float = PROGRESS_SECONDS) -> None:
        self._interval = interval
        self._board = Board(now)
        self._allowance, self._at = float(BURST), now
        self._dropped = 0
        self._backing_off: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        self._dead = DeadLetterCounts()
        self._limited_by: str | None = None
        self._queues: dict[str, dict[str, object]] = {}
        self._destinations: dict[str, tuple[object, ...]] = {}
        self._next = now + interval

    def connecting(self, pair: "Ends", now_ms: int) -> Document:
        """Return the first line."""
        names = {"primary": pair.primary.name, "secondary": pair.secondary.name}
        return {**event_line(SCHEMA, "connecting", now_ms), **names}

    def take(self, event: events.SyphonEvent, now: float, now_ms: int) -> list[Document]:
        """Return the lines of one event."""
        self._board.take(event, now)
        match event:
            case events.QueueProgress() | events.QueueDepths() | events.DestinationProgress():
                return []
            case events.DeadLettered():
                lines = [_dead_lettered(event, 1, now_ms)] if self._dead.add(event) else []
                return self._allowed(lines, now, now_ms)
            case events.QueuesFound():
                self._next = min(self._next, now + FIRST_SECONDS)
                return self._allowed([line(event, now_ms)], now, now_ms)
            case _:
                return self._allowed([line(event, now_ms)], now, now_ms) if self._is_news(event) else []

    def tick(self, now: float, now_ms: int, *, last: bool = False) -> list[Document]:
        """Return the lines that are due, or at the end all pending ones."""
        if now < self._next and not last:
            return []
        self._next = now + self._interval
        view = self._board.view(now, now_ms)
        dead = [_dead_lettered(first, count, now_ms) for first, count in self._dead.take()]
        return [
            *self._allowed(dead, now, now_ms),
            *(_queue(row, now_ms) for row in view.queues if _changed(self._queues, row.queue, _figures(row))),
            *(
                _destination(row, now_ms)
                for row in view.destinations
                if _changed(self._destinations, row.destination, (row.sent, row.waiting, row.dead_letters))
            ),
        ]

    def _is_news(self, event: events.SyphonEvent) -> bool:
        match event:
            case events.DestinationBackingOff(_queue, destination, reason):
                return _changed(self._backing_off, destination.lower(), reason)
            case events.DestinationRecovered(_queue, destination):
                return self._backing_off.pop(destination.lower(), None) is not None
            case events.QueueFailed(queue, reason, retry_seconds):
                return _changed(self._failing, queue, reason) or retry_seconds is None
            case events.QueueOpened(queue):
                self._failing.pop(queue, None)
            case events.LimitChanged(_per_second, by):
                # After throttling the limit grows all the time.
                before, self._limited_by = self._limited_by, by
                return before != by
        return True

    def _allowed(self, lines: list[Document], now: float, now_ms: int) -> list[Document]:
        self._allowance, self._at = min(BURST, self._allowance + now - self._at), now
        limit = int(self._allowance)
        if lines and limit and self._dropped:
            lines = [event_line(SCHEMA, "events-dropped", now_ms, level="warning") | {"events": self._dropped}, *lines]
            self._dropped = 0
        self._allowance -= len(lines[:limit])
        self._dropped += len(lines[limit:])
        return lines[:limit]


def line(event: events.SyphonEvent, now_ms: int) -> Document:
    """Return one event as JSON: its name and its fields."""
    name, level = events.name_and_level(type(event))
    return event_line(SCHEMA, name, now_ms, level=level) | asdict(event)


def _dead_lettered(event: events.DeadLettered, messages: int, now_ms: int) -> Document:
    return {**line(event, now_ms), "messages": messages}


def _queue(row: QueueRow, now_ms: int) -> Document:
    return event_line(SCHEMA, "progress", now_ms) | {
        **_figures(row),
        "counted": row.remaining is not None and row.exact,
        "per_second": round(row.per_second, 1),
        "eta_seconds": _whole(row.eta_seconds),
        "oldest_seconds": _whole(row.oldest_seconds),
    }


def _destination(row: DestinationRow, now_ms: int) -> Document:
    return event_line(SCHEMA, "destination-progress", now_ms) | {
        "destination": row.destination,
        "sent": row.sent,
        "per_second": round(row.per_second, 1),
        "waiting": row.waiting,
        "backing_off": row.backing_off or None,
        "dead_lettered": row.dead_letters,
    }


def _figures(row: QueueRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in QUEUE_FIGURES}


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


def _changed(known: dict[str, Value], key: str, value: Value) -> bool:
    """Record a value; return whether it changed."""
    if known.get(key) == value:
        return False
    known[key] = value
    return True
