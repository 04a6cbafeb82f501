"""The state of a run, reduced from its events: its queues, its destinations, and the run as a whole.

Each run has one: its progress, metrics, health and samples read that.
A queue is counted now and then; in between, its messages follow from its progress. Pure: the time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING

from sbpair.move import events

if TYPE_CHECKING:
    from sbpair.move.rate_limit import Limit

MAX_DESTINATIONS = 1_000
OTHER_DESTINATIONS = "(others)"


@dataclass
class MovedQueue:
    """A queue. `counted` are its messages when it was counted, and how many had left it by then.

    It is `outdated` once the queue may have changed, or be gone. `peeked_ms` is when the first message was enqueued, in
    ms since 1970. `failed` is (event, time of the retry). `blocked` has the number of received messages beside it: it
    ends once that grows. `left_locked`: not waited for.
    """

    at: events.QueueProgress
    counted: tuple[int, int] | None = None
    outdated: bool = False
    peeked_ms: int | None = None
    opened: bool = False
    done: bool = False
    blocked: tuple[tuple[str, ...], int] | None = None
    left_locked: events.MessagesLocked | None = None
    failed: tuple[events.QueueFailed, float | None] | None = None
    failures: int = 0
    backing_off: set[str] = field(default_factory=set)
    dead_letters: int = 0

    @property
    def left(self) -> tuple[int | None, bool]:
        """Its messages, None if unknown, and whether that is as counted: none has left it since."""
        if self.counted is None:
            return None, True
        messages, gone = self.counted
        estimate = max(0, messages - (self.at.gone - gone), self.at.held + self.at.locked)
        return estimate, estimate == messages

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest known message was enqueued, in ms since 1970."""
        if self.at.oldest_ms is not None:
            return self.at.oldest_ms
        # The last peek is the best known while nothing is held, unless the queue is empty.
        return self.peeked_ms if self.left[0] else None

    def count(self, messages: int) -> None:
        self.counted, self.outdated = (messages, self.at.gone), False

    def progress(self, at: events.QueueProgress) -> None:
        if self.blocked is not None and at.received > self.blocked[1]:
            self.blocked = None
        self.at = at
        if at.remaining is not None:
            self.count(at.remaining)


@dataclass
class DestinationState:
    """A destination. `backing_off` is by queue: (time of the next attempt, reason, messages that wait)."""

    at: events.DestinationProgress
    backing_off: dict[str, tuple[float, str, int]] = field(default_factory=dict)
    backoffs: int = 0
    dead_letters: int = 0
    dead_reason: str = ""


class RunState:
    """Takes the events of a run in. Destinations are by their path in lower case.

    `away` are the sides that were lost and not reached again: since when, and the last failure. `connected` is whether
    a worker ever had both connections. `request` is the last one of another process. Other threads read under `lock`.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.queues: dict[str, MovedQueue] = {}
        self.destinations: dict[str, DestinationState] = {}
        self.away: dict[str, tuple[float, events.QueueFailed]] = {}
        self.connected = self.paused = False
        self.request: events.RunEvent | None = None
        self.limit: Limit | None = None
        self.ramp: tuple[events.RampProgress, float] | None = None

    def messages(self) -> int | None:
        """Return the messages of all queues; None until each has been counted."""
        left = [state.left[0] for state in self.queues.values()]
        known = [each for each in left if each is not None]
        return sum(known) if known and len(known) == len(left) else None

    def oldest_ms(self) -> int | None:
        """Return when the oldest known message was enqueued, in ms since 1970."""
        return min((at for state in self.queues.values() if (at := state.oldest_ms) is not None), default=None)

    def take(self, event: events.SyphonEvent, now: float = 0.0) -> None:
        """Take one event in. `now` is in seconds of the clock by which times are read later."""
        match event:
            case events.QueuesFound(queues):
                for queue in queues:
                    self._queue(queue)
            case events.DestinationProgress(destination):
                self._destination(destination).at = event
            case events.DeadLettered():
                self._dead_lettered(event)
            case events.LimitChanged():
                self.limit = event.limit
            case events.RampProgress():
                self.ramp = event, now
            case events.RunEvent():
                self._requested(event)
            case events.TopicsUnchecked():
                pass
            case _:
                self._of_queue(self._queue(event.queue), event, now)

    def _queue(self, queue: str) -> MovedQueue:
        if queue not in self.queues:
            self.queues[queue] = MovedQueue(events.QueueProgress(queue, 0, 0, 0))
        return self.queues[queue]

    def _destination(self, path: str) -> DestinationState:
        key = path.lower()
        if key not in self.destinations:
            self.destinations[key] = DestinationState(events.DestinationProgress(path, 0, 0))
        return self.destinations[key]

    def _dead_lettered(self, event: events.DeadLettered) -> None:
        self._queue(event.queue).dead_letters += 1
        path = event.destination or OTHER_DESTINATIONS
        if path.lower() not in self.destinations and len(self.destinations) >= MAX_DESTINATIONS:
            path = OTHER_DESTINATIONS  # the paths come from the messages, and may be as many
        found = self._destination(path)
        found.dead_letters, found.dead_reason = found.dead_letters + 1, f"{event.reason}: {event.description}"

    def _requested(self, event: events.RunEvent) -> None:
        self.request = event
        if isinstance(event, events.RunResumed):
            self.paused = False
        elif isinstance(event, events.RunPaused):
            self.paused = True
            for state in self.queues.values():
                self._give_back(state)

    def _of_queue(self, state: MovedQueue, event: events.SyphonEvent, now: float) -> None:
        match event:
            case events.QueueProgress():
                state.progress(event)
            case events.QueueDepths():
                state.count(event.messages)
                state.peeked_ms = event.oldest_ms
            case events.DestinationBackingOff(queue, destination, reason, seconds, waiting):
                found = self._destination(destination)
                found.backing_off[queue] = now + seconds, reason, waiting
                found.backoffs += 1
                state.backing_off.add(destination)
            case events.DestinationRecovered():
                self._recovered(state, event.destination)
            case events.QueueBlocked():
                state.blocked = event.destinations, state.at.received
            case events.MessagesLocked():
                state.left_locked = None if event.waiting else event
            case events.QueueOpened() | events.QueueDone() | events.QueueFailed():
                self._turned(state, event, now)

    def _recovered(self, state: MovedQueue, destination: str) -> None:
        state.backing_off.discard(destination)
        self._destination(destination).backing_off.pop(state.at.queue, None)

    def _turned(
        self, state: MovedQueue, event: events.QueueOpened | events.QueueDone | events.QueueFailed, now: float
    ) -> None:
        state.failed, state.done = None, isinstance(event, events.QueueDone)
        if isinstance(event, events.QueueFailed):
            self._failed(state, event, now)
        elif not state.done:
            self.away.clear()  # it has connections to both
            self.connected = True
        state.opened = True
        if not state.done:
            state.left_locked = None
        self._give_back(state)

    def _failed(self, state: MovedQueue, event: events.QueueFailed, now: float) -> None:
        retry, side = event.retry_seconds, event.side
        state.failed, state.failures = (event, None if retry is None else now + retry), state.failures + 1
        if side is not None:
            since, _ = self.away.get(side, (now, event))
            self.away[side] = since, event
        elif retry is None:
            self.away.clear()  # it answered
        state.outdated = state.outdated or side not in ("primary", "destination")

    def _give_back(self, state: MovedQueue) -> None:
        """Note that the queue holds its messages again, and that no destination waits for them."""
        state.blocked = None
        state.at = replace(state.at, held=0, oldest_ms=None, locked=0, locked_until_ms=None, remaining=None)
        for destination in tuple(state.backing_off):
            self._recovered(state, destination)
