"""What a mover tells, as the rows of a table at a moment. Pure: events and the time go in, rows come out."""

import math
from collections import deque
from dataclasses import dataclass, field

from sbpair.move.events import (
    DeadLettered,
    DestinationBackingOff,
    DestinationProgress,
    DestinationRecovered,
    QueueBlocked,
    QueueDepths,
    QueueDone,
    QueueFailed,
    QueueOpened,
    QueueProgress,
    QueuesFound,
    SyphonEvent,
)

RATE_SECONDS = 10.0
"""Over how long a rate is taken."""

STEP_SECONDS = 0.5
"""How often a counter is looked at for its rate; also the least time that a rate is taken over."""

SOON_SECONDS = 99 * 86_400.0
"""An end that is further away than this is not worth telling."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One backlog queue, or several together.

    `left` is None where nobody may count; it is `exact` where it was counted and not reckoned. `idle` is one of which
    there is nothing to say.
    """

    queue: str
    left: int | None = None
    exact: bool = True
    received: int = 0
    sent: int = 0
    per_second: float = 0.0
    oldest_seconds: float | None = None
    held: int = 0
    note: str = ""
    idle: bool = False

    @property
    def eta_seconds(self) -> float | None:
        """When it will be empty at this rate, if nothing comes."""
        if not self.left or not self.per_second:
            return None
        seconds = self.left / self.per_second
        return seconds if seconds < SOON_SECONDS else None


@dataclass(frozen=True, slots=True)
class DestinationRow:
    """One destination. `resting` is why it takes nothing, and `next_seconds` when it is tried again."""

    destination: str
    sent: int = 0
    per_second: float = 0.0
    waiting: int = 0
    resting: str = ""
    next_seconds: float = 0.0

    @property
    def note(self) -> str:
        if not self.resting:
            return ""
        return f"rests for {math.ceil(self.next_seconds)} s, {self.waiting} waiting: {self.resting}"


@dataclass(frozen=True, slots=True)
class BoardView:
    """All there is to see at a moment, `seconds` after the start."""

    queues: tuple[QueueRow, ...]
    destinations: tuple[DestinationRow, ...]
    seconds: float

    @property
    def total(self) -> QueueRow:
        return together("total", self.queues)


class RateMeter:
    """How fast a counter grows."""

    def __init__(self, now: float) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])

    def rate(self, now: float, count: int) -> float:
        """How much it has grown a second, of late."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now - RATE_SECONDS:
            marks.popleft()
        if now - marks[-1][0] >= STEP_SECONDS:
            marks.append((now, count))
        at, before = marks[0]
        return max(0, count - before) / max(STEP_SECONDS, now - at)


@dataclass
class _QueueState:
    """`counted` is (how many messages the queue held, how many had left it by then)."""

    at: QueueProgress
    meter: RateMeter
    counted: tuple[int, int] | None = None
    oldest_ms: int | None = None
    opened: bool = False
    done: bool = False
    blocked: tuple[tuple[str, ...], int] | None = None
    failed: tuple[str, float | None] | None = None
    resting: set[str] = field(default_factory=set)
    dead_letters: int = 0


@dataclass
class _DestinationState:
    """`resting` is, by lane, (why, until when)."""

    at: DestinationProgress
    meter: RateMeter
    resting: dict[str, tuple[str, float]] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)


class Board:
    """All that is known of a run. `now` is in seconds of any clock that does not jump."""

    def __init__(self, now: float) -> None:
        self._started = now
        self._lanes: dict[str, _QueueState] = {}
        self._destinations: dict[str, _DestinationState] = {}

    def take(self, event: SyphonEvent, now: float) -> None:
        """Take one event in."""
        match event:
            case QueuesFound(queues):
                for queue in queues:
                    self._lane(queue)
            case QueueProgress(queue):
                self._progress(self._lane(queue), event)
            case QueueDepths(queue, messages, oldest_ms):
                lane = self._lane(queue)
                lane.counted, lane.oldest_ms = (messages, lane.at.gone), oldest_ms
            case DestinationProgress(destination):
                self._destination(destination).at = event
            case DestinationBackingOff(queue, destination, reason, seconds, waiting):
                self._lane(queue).resting.add(destination)
                found = self._destination(destination)
                found.resting[queue], found.waiting[queue] = (reason, now + seconds), waiting
            case DestinationRecovered(queue, destination):
                self._back(queue, destination)
            case DeadLettered(queue):
                self._lane(queue).dead_letters += 1
            case QueueOpened() | QueueBlocked() | QueueDone() | QueueFailed():
                self._turn(self._lane(event.queue), event, now)

    def look(self, now: float, now_ms: int) -> BoardView:
        """The rows at this moment; `now_ms` is the same in ms since 1970."""
        return BoardView(
            tuple(self._queue_row(self._lanes[name], now, now_ms) for name in sorted(self._lanes, key=_natural)),
            tuple(_destination_row(self._destinations[name], now) for name in sorted(self._destinations)),
            now - self._started,
        )

    # Events

    def _lane(self, queue: str) -> _QueueState:
        if queue not in self._lanes:
            self._lanes[queue] = _QueueState(QueueProgress(queue, 0, 0, 0), RateMeter(self._started))
        return self._lanes[queue]

    def _destination(self, path: str) -> _DestinationState:
        key = path.lower()
        if key not in self._destinations:
            self._destinations[key] = _DestinationState(DestinationProgress(path, 0, 0), RateMeter(self._started))
        return self._destinations[key]

    def _progress(self, lane: _QueueState, at: QueueProgress) -> None:
        if lane.blocked is not None and at.received > lane.blocked[1]:
            lane.blocked = None
        if at.remaining is not None:
            lane.counted = at.remaining, at.gone
        lane.at = at

    def _back(self, queue: str, destination: str) -> None:
        self._lane(queue).resting.discard(destination)
        found = self._destination(destination)
        found.resting.pop(queue, None)
        found.waiting.pop(queue, None)

    def _turn(self, lane: _QueueState, event: QueueOpened | QueueBlocked | QueueDone | QueueFailed, now: float) -> None:
        match event:
            case QueueBlocked(_queue, destinations):
                lane.blocked = destinations, lane.at.received
                return
            case QueueFailed(_queue, reason, retry_seconds):
                lane.failed = reason, None if retry_seconds is None else now + retry_seconds
            case _:
                lane.failed = None
        lane.opened, lane.done, lane.blocked = True, isinstance(event, QueueDone), None
        # Whatever it had in hand is back in the queue, and no destination has anything to do with it.
        at = lane.at
        lane.at = QueueProgress(at.queue, at.received, at.sent, 0, None, at.gone)
        for destination in tuple(lane.resting):
            self._back(at.queue, destination)

    # Rows

    def _queue_row(self, lane: _QueueState, now: float, now_ms: int) -> QueueRow:
        at, note = lane.at, _note(lane, now)
        dead = f"{lane.dead_letters} dead-lettered" if lane.dead_letters else ""
        left, exact = _left(lane)
        oldest_ms = at.oldest_ms or (lane.oldest_ms if left else None)
        rate = lane.meter.rate(now, at.sent)
        return QueueRow(
            at.queue,
            left,
            exact,
            at.received,
            at.sent,
            rate,
            None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
            at.held,
            "; ".join(filter(None, (note, dead))),
            idle=not (left or at.held or rate or dead or (note and not lane.done)),
        )


def _note(lane: _QueueState, now: float) -> str:
    if lane.failed is not None:
        reason, again = lane.failed
        if again is None:
            return f"failed: {reason}"
        return f"next try in {math.ceil(max(0.0, again - now))} s: {reason}"
    if lane.blocked is not None:
        return f"blocked by {', '.join(lane.blocked[0])}"
    if lane.resting:
        return f"waits for {', '.join(sorted(lane.resting))}"
    if lane.done:
        return "done"
    return "" if lane.opened else "connecting"


def _left(lane: _QueueState) -> tuple[int | None, bool]:
    """How many messages are left in a queue, and whether that was counted."""
    if lane.counted is None:
        return None, True
    messages, gone = lane.counted
    since = lane.at.gone - gone
    reckoned = max(messages - since, lane.at.held)
    return reckoned, reckoned == messages


def _destination_row(found: _DestinationState, now: float) -> DestinationRow:
    at = found.at
    rate = found.meter.rate(now, at.sent)
    if not found.resting:
        return DestinationRow(at.destination, at.sent, rate, at.waiting)
    reason, until = min(found.resting.values(), key=lambda each: each[1])
    waiting = at.waiting or sum(found.waiting.values())
    return DestinationRow(at.destination, at.sent, rate, waiting, reason, max(0.0, until - now))


def together(name: str, rows: tuple[QueueRow, ...]) -> QueueRow:
    """Several queues as one row. What is left is known where it is known of all."""
    lefts = [row.left for row in rows if row.left is not None]
    ages = [row.oldest_seconds for row in rows if row.oldest_seconds is not None]
    return QueueRow(
        name,
        sum(lefts) if lefts and len(lefts) == len(rows) else None,
        all(row.exact for row in rows),
        sum(row.received for row in rows),
        sum(row.sent for row in rows),
        sum(row.per_second for row in rows),
        max(ages, default=None),
        sum(row.held for row in rows),
    )


def _natural(queue: str) -> tuple[str, int, str]:
    """Queue 10 comes behind queue 9."""
    path, _slash, last = queue.rpartition("/")
    return path, int(last) if last.isascii() and last.isdigit() else 0, last
