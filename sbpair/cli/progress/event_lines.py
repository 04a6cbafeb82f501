"""What a mover tells, as lines of JSON for a program: what happened, and from time to time how far everything is.

The law: a run of many days fills no disk. There is no line a message; how far things are is told where it has changed,
at most every PROGRESS_SECONDS; whatever repeats itself is told once; and all the rest together is held to a line a
second, of which BURST may come at once. What is left out is counted.
"""

import re
import time
from dataclasses import asdict
from typing import TypeVar

from sbpair.cli.progress.move_board import Board, DestinationRow, QueueRow
from sbpair.cli.render.screen import Document
from sbpair.move.events import (
    DeadLettered,
    DestinationBackingOff,
    DestinationProgress,
    DestinationRecovered,
    QueueDepths,
    QueueFailed,
    QueueOpened,
    QueueProgress,
    SyphonEvent,
)

Value = TypeVar("Value")

SCHEMA = "sbpair/syphon-event/1"
PROGRESS_SECONDS = 30.0
BURST = 200
WARNINGS = ("queue-failed", "queue-blocked", "destination-backing-off", "dead-lettered", "events-dropped")


class EventLines:
    """Answers lines; whoever calls it writes them. `now` is in seconds of any clock that does not jump."""

    def __init__(self, now: float) -> None:
        self._board = Board(now)
        self._allowance, self._at = float(BURST), now
        self._left_out = 0
        self._resting: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        self._dead: dict[tuple[str, str], tuple[int, DeadLettered]] = {}
        self._queues: dict[str, tuple[object, ...]] = {}
        self._destinations: dict[str, tuple[object, ...]] = {}
        self._next = now + PROGRESS_SECONDS

    def take(self, event: SyphonEvent, now: float, now_ms: int) -> list[Document]:
        """The lines that one event is worth."""
        self._board.take(event, now)
        match event:
            case QueueProgress() | QueueDepths() | DestinationProgress():
                return []
            case DeadLettered(queue, _number, _id, reason):
                count, first = self._dead.get((queue, reason), (0, event))
                self._dead[queue, reason] = count + 1, first
                return []
            case _:
                return self._allowed([line(event, now_ms)], now, now_ms) if self._is_news(event) else []

    def tick(self, now: float, now_ms: int, *, last: bool = False) -> list[Document]:
        """What has to be told by now, or, at the end, at all."""
        if now < self._next and not last:
            return []
        self._next = now + PROGRESS_SECONDS
        view = self._board.look(now, now_ms)
        dead = [_dead_letters(count, first, now_ms) for count, first in self._dead.values()]
        self._dead.clear()
        return [
            *self._allowed(dead, now, now_ms),
            *(_queue(row, now_ms) for row in view.queues if _changed(self._queues, row.queue, _figures(row))),
            *(
                _destination(row, now_ms)
                for row in view.destinations
                if _changed(self._destinations, row.destination, (row.sent, row.waiting))
            ),
        ]

    def _is_news(self, event: SyphonEvent) -> bool:
        match event:
            case DestinationBackingOff(_queue, destination, reason):
                return _changed(self._resting, destination.lower(), reason)
            case DestinationRecovered(_queue, destination):
                return self._resting.pop(destination.lower(), None) is not None
            case QueueFailed(queue, reason, retry_seconds):
                return _changed(self._failing, queue, reason) or retry_seconds is None
            case QueueOpened(queue):
                self._failing.pop(queue, None)
        return True

    def _allowed(self, lines: list[Document], now: float, now_ms: int) -> list[Document]:
        self._allowance, self._at = min(BURST, self._allowance + now - self._at), now
        limit = int(self._allowance)
        if lines and limit and self._left_out:
            lines = [_head("events-dropped", now_ms) | {"events": self._left_out}, *lines]
            self._left_out = 0
        self._allowance -= len(lines[:limit])
        self._left_out += len(lines[limit:])
        return lines[:limit]


def line(event: SyphonEvent, now_ms: int) -> Document:
    """One event as its JSON contract has it: its name, and its fields."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", type(event).__name__).lower()
    return _head(name, now_ms) | asdict(event)


def _head(name: str, now_ms: int) -> dict[str, object]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ms / 1000))
    return {
        "schema": SCHEMA,
        "time": moment,
        "level": "warning" if name in WARNINGS else "info",
        "event": name,
    }


def _dead_letters(count: int, first: DeadLettered, now_ms: int) -> Document:
    return {**line(first, now_ms), "messages": count}


def _queue(row: QueueRow, now_ms: int) -> Document:
    return _head("progress", now_ms) | {
        "queue": row.queue,
        "remaining": row.left,
        "counted": row.left is not None and row.exact,
        "received": row.received,
        "sent": row.sent,
        "held": row.held,
        "per_second": round(row.per_second, 1),
        "eta_seconds": _whole(row.eta_seconds),
        "oldest_seconds": _whole(row.oldest_seconds),
    }


def _destination(row: DestinationRow, now_ms: int) -> Document:
    return _head("destination-progress", now_ms) | {
        "destination": row.destination,
        "sent": row.sent,
        "per_second": round(row.per_second, 1),
        "waiting": row.waiting,
        "backing_off": row.resting or None,
    }


def _figures(row: QueueRow) -> tuple[object, ...]:
    return row.left, row.received, row.sent, row.held


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds)


def _changed(known: dict[str, Value], key: str, value: Value) -> bool:
    """Whether that is new; it is known from now on."""
    if known.get(key) == value:
        return False
    known[key] = value
    return True
