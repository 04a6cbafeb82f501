"""The state of a move, and of a phase of a replay, as rows of a table. Pure: the time is an argument."""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command
from sbpair.cli.render.screen import plural, spoken
from sbpair.move import events
from sbpair.move.receipt import RampState
from sbpair.move.run_state import DestinationState, MovedQueue, RunState

if TYPE_CHECKING:
    from sbpair.replay.progress import Event, ReplayState

REQUEST_STATES: dict[type, str] = {
    events.RunPausing: "pausing",
    events.RunPaused: "paused",
    events.RunCancelled: "cancelled",
}
"""The states of a replay that another process has requested."""

OF_QUEUES = ("drain", "move")
"""Phases whose rows are queues."""

RATE_SECONDS = 10.0
"""Time span of a rate."""

STEP_SECONDS = 0.5
"""Time between samples of a counter; also the minimum time span of a rate."""

MAX_ETA_SECONDS = 99 * 86_400.0
"""Estimates beyond this are not shown."""

QUEUE_FIGURES = ("queue", "remaining", "received", "sent", "held", "skipped", "locked", "locked_until_ms")
"""The fields of a QueueRow that an event line has as they are."""


WHOLE = {"digits": 0, "stored": int | None}
PER_SECOND = "Messages a second, over the last 10 s"
ETA = "Seconds until it is done at this rate, locks included; null if unknown"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One backlog queue, or several together.

    `remaining` is `exact` if counted, not estimated. An `idle` queue has nothing to report. `locked_seconds` last until
    `locked_until_ms`.
    """

    queue: events.Queue
    remaining: Annotated[int | None, "Messages in the queue; null if unknown"] = None
    exact: bool = True
    received: Annotated[int, "Received messages"] = 0
    sent: Annotated[int, "Sent messages"] = 0
    per_second: Annotated[float, PER_SECOND, {"digits": 1}] = 0.0
    oldest_seconds: Annotated[float | None, "Age of the oldest message; null if unknown", WHOLE] = None
    held: Annotated[int, "Messages held under lock"] = 0
    note: str = ""
    idle: bool = False
    locked: Annotated[int, "Messages that others have locked, and that the run waits for"] = 0
    locked_until_ms: Annotated[int | None, "When these are free at the latest, in ms since 1970; null for none"] = None
    locked_seconds: float = 0.0
    skipped: Annotated[int, "Skipped messages, kept locked until the run ends"] = 0

    @property
    def counted(self) -> Annotated[bool, "Whether remaining was counted, not estimated"]:
        return self.remaining is not None and self.exact

    @property
    def eta_seconds(self) -> Annotated[float | None, ETA, WHOLE]:
        """Seconds until it is empty at this rate; None if unknown, as for locks that are overdue."""
        if self.skipped and self.remaining is not None:
            # As many of the others are chosen as of those received.
            chosen = (self.remaining - self.skipped) * max(0, self.received - self.skipped) // max(1, self.received)
            return time_left(chosen, self.per_second)
        if not self.locked:
            return None if self.remaining is None else time_left(self.remaining, self.per_second)
        # Without a count, it has received all others.
        others = 0 if self.remaining is None else max(0, self.remaining - self.locked)
        first = time_left(others, self.per_second) if others else 0.0
        then = time_left(self.locked, self.per_second) or 0.0
        return None if first is None else max(first, self.locked_seconds) + then or None


@dataclass(frozen=True, slots=True)
class DestinationRow:
    """One destination. `backing_off` is why it is unavailable, `retry_seconds` the time until the next attempt.

    `dead_letters` of its messages were dead-lettered, the last one for `dead_reason`.
    """

    destination: events.Destination
    sent: Annotated[int, "Sent messages"] = 0
    per_second: Annotated[float, PER_SECOND, {"digits": 1}] = 0.0
    waiting: Annotated[int, "Messages that wait for it"] = 0
    backing_off: Annotated[str | None, "Why it is unavailable; null if it is not"] = None
    retry_seconds: float = 0.0
    dead_letters: Annotated[int, "Messages for it that were dead-lettered", {"name": "dead_lettered"}] = 0
    dead_reason: str = ""

    @property
    def note(self) -> str:
        dead = f"{self.dead_letters} dead-lettered: {self.dead_reason}" if self.dead_letters else ""
        retry = f"retrying in {math.ceil(self.retry_seconds)} s, {self.waiting} waiting: {self.backing_off}"
        return "; ".join(filter(None, (retry if self.backing_off else "", dead)))


@dataclass(frozen=True, slots=True)
class BoardView:
    """The rows at a moment, `seconds` after the start. `notices` concern the run as a whole."""

    queues: tuple[QueueRow, ...]
    destinations: tuple[DestinationRow, ...]
    seconds: float
    notices: tuple[str, ...] = ()
    is_stopping: bool = False
    heading: str = "QUEUE"

    @property
    def total(self) -> QueueRow:
        return together("total", self.queues)


class RateMeter:
    """The growth rate of a counter, which has a `count` at first."""

    def __init__(self, now: float, count: int = 0) -> None:
        self._marks: deque[tuple[float, int]] = deque([(now, count)])

    def rate(self, now: float, count: int) -> float:
        """Record a sample; return the growth a second over the last RATE_SECONDS."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now - RATE_SECONDS:
            marks.popleft()
        if now - marks[-1][0] >= STEP_SECONDS:
            marks.append((now, count))
        at, before = marks[0]
        return max(0, count - before) / max(STEP_SECONDS, now - at)


class Board:
    """Rows of the state of a run. `now` is in seconds of a monotonic clock. `start` names its first wait.

    `sides` are the words for its destination and its source, where they are not the primary and the secondary.
    """

    def __init__(self, state: RunState, now: float, start: str = "", sides: Mapping[str, str] | None = None) -> None:
        self._state, self._started, self._start, self._sides = state, now, start, sides or {}
        self._meters: defaultdict[tuple[str, str], RateMeter] = defaultdict(lambda: RateMeter(now))

    def view(self, now: float, now_ms: int) -> BoardView:
        """Return the rows at this moment; `now_ms` is the same in ms since 1970. Call it from any thread."""
        with self._state.lock:
            queues, destinations = self._state.queues, self._state.destinations
            return BoardView(
                tuple(self._queue_row(queues[name], now, now_ms) for name in sorted(queues, key=natural_key)),
                tuple(self._destination_row(destinations[name], now) for name in sorted(destinations)),
                now - self._started,
                tuple(self._notices(now, now_ms)),
            )

    def _notices(self, now: float, now_ms: int) -> Iterator[str]:
        run = self._state
        if run.request is not None and not isinstance(run.request, events.RunResumed):
            yield request_text(run.request)
        if not run.queues and self._start:
            yield self._start
        for side, (since, last) in run.away.items():
            since_ms = last.away_since_ms or now_ms - 1000 * (now - since)
            if last.away_since_ms is not None:
                retry = ", trying each second"
            else:
                failed = [state.failed for state in run.queues.values() if state.failed is not None]
                tries = [at for event, at in failed if event.side == side and at is not None]
                retry = f", next try in {math.ceil(max(0.0, min(tries) - now))} s" if tries else ""
            yield f"{self._sides.get(side, side)} unreachable since {utc(since_ms / 1000)[11:]}{retry}: {last.reason}"
        if run.limit is not None:
            yield str(run.limit)
        if run.ramp is not None:
            yield ramp_text(*run.ramp, sum(state.at.sent for state in run.queues.values()), now)

    def _queue_row(self, state: MovedQueue, now: float, now_ms: int) -> QueueRow:
        at, note = state.at, self._note(state, now)
        dead = f"{state.dead_letters} dead-lettered" if state.dead_letters else ""
        left, exact = (None, True) if state.outdated else state.left
        oldest_ms = state.oldest_ms if left else at.oldest_ms
        rate = self._meters["queue", at.queue].rate(now, at.sent)
        return QueueRow(
            at.queue,
            left,
            exact,
            at.received,
            at.sent,
            rate,
            None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
            at.held,
            "; ".join(filter(None, (note, f"{at.skipped} skipped" if at.skipped else "", dead))),
            idle=not (left or at.held or rate or dead or (note and not state.done)),
            locked=at.locked,
            locked_until_ms=at.locked_until_ms,
            locked_seconds=max(0.0, ((at.locked_until_ms or now_ms) - now_ms) / 1000),
            skipped=at.skipped,
        )

    def _destination_row(self, found: DestinationState, now: float) -> DestinationRow:
        at = found.at
        retry, reason, _ = min(found.backing_off.values(), default=(now, "", 0))
        waiting = at.waiting or sum(waiting for _, _, waiting in found.backing_off.values())
        rate = self._meters["destination", at.destination.lower()].rate(now, at.sent)
        dead = found.dead_letters, found.dead_reason
        return DestinationRow(at.destination, at.sent, rate, waiting, reason or None, max(0.0, retry - now), *dead)

    def _note(self, state: MovedQueue, now: float) -> str:
        if state.failed is not None:
            event, again = state.failed
            if again is None:
                return f"failed: {event.reason}"
            if event.side is not None:
                return f"waiting for the {self._sides.get(event.side, event.side)}"  # a notice names the reason once
            return f"next try in {math.ceil(max(0.0, again - now))} s: {event.reason}"
        if state.blocked is not None:
            return f"blocked by {', '.join(state.blocked[0])}"
        if state.backing_off:
            return f"waiting for {', '.join(sorted(state.backing_off))}"
        if state.at.locked and state.at.locked_until_ms is not None:
            return f"{state.at.locked} locked, until {at_the_latest(state.at.locked_until_ms)}, waiting"
        if state.left_locked is not None:
            return f"{state.left_locked.locked} locked, until {at_the_latest(state.left_locked.until_ms)}"
        if state.done:
            return "done"
        return "" if state.opened else "connecting"


def request_text(event: events.RunEvent) -> str:
    """Return what a run does at the request of another process."""
    match event:
        case events.RunPausing():
            return "pausing: waiting for the outcome of pending sends"
        case events.RunPaused(run):
            resume, cancel = next_command("runs resume", run), next_command("runs cancel", run)
            return f"paused, and holds no message; to go on: {resume}; to stop: {cancel}"
        case events.RunCancelled():
            return "cancelled by sbpair runs cancel: waiting for the outcome of pending sends"
    return "resumed"


def ramp_text(event: events.RampProgress, since: float, sent: int, now: float) -> str:
    """Return where a ramp is, `sent` messages and some seconds after its last event."""
    step, number = f"ramp step {event.step} of {event.steps}", plural(event.sent, "message")
    match event.state:
        case RampState.SENDING:
            return f"{step}: {min(max(sent, event.sent), event.total)} of {plural(event.total, 'message')} sent"
        case RampState.OBSERVING:
            left = max(0.0, event.observe_seconds - (now - since))
            return f"{step}: {number} sent, observing dead letters for {spoken(math.ceil(left))} more"
        case RampState.STOPPED:
            return f"{step}: {number} sent, stopped: dead letters came"
    return f"{step}: passed" if event.step < event.steps else f"ramp passed with {number}"


def at_the_latest(until_ms: int) -> str:
    return f"{utc(until_ms / 1000)[11:]} at the latest"


def time_left(remaining: int, per_second: float) -> float | None:
    """Return the time until nothing remains at this rate; None if unknown, too long or already so."""
    if remaining <= 0 or not per_second:
        return None
    seconds = remaining / per_second
    return seconds if seconds < MAX_ETA_SECONDS else None


def together(name: str, rows: tuple[QueueRow, ...]) -> QueueRow:
    """Return several queues as one row. `remaining` is known if it is known of all."""
    known = [row.remaining for row in rows if row.remaining is not None]
    untils = [row.locked_until_ms for row in rows if row.locked_until_ms is not None]
    ages = [row.oldest_seconds for row in rows if row.oldest_seconds is not None]
    added = ("received", "sent", "per_second", "held", "locked", "skipped")
    return QueueRow(
        name,
        sum(known) if known and len(known) == len(rows) else None,
        all(row.exact for row in rows),
        oldest_seconds=max(ages, default=None),
        locked_until_ms=max(untils, default=None),
        locked_seconds=max((row.locked_seconds for row in rows), default=0.0),
        **{each: sum(getattr(row, each) for row in rows) for each in added},
    )


def pair_row(pair: str, view: BoardView, note: str) -> QueueRow:
    """Return a pair as one row, with a note, or the foremost of its destinations, its queues and of all together."""
    rows = [(row.destination, row.note) for row in view.destinations]
    rows += [(f"queue {row.queue.rpartition('/')[2]}", row.note) for row in view.queues]
    passing = ("waiting for", "connecting", "done")  # a notice or a destination has the reason
    notes = [f"{name}: {each}" for name, each in rows if each and not each.startswith(passing)]
    return replace(together(pair, view.queues), note=note or next(iter((*notes, *view.notices)), ""))


def natural_key(queue: str) -> tuple[str, int, str]:
    """Return a sort key that puts queue 10 behind queue 9."""
    path, _slash, last = queue.rpartition("/")
    return path, int(last) if last.isascii() and last.isdigit() else 0, last


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One queue or destination. `whole` is None if unknown."""

    name: str
    done: Annotated[int, "Messages done", {"name": "messages"}]
    whole: Annotated[int | None, "All messages; null if unknown", {"name": "of"}]
    per_second: Annotated[float, PER_SECOND, {"digits": 1}]

    @property
    def eta_seconds(self) -> Annotated[float | None, ETA, WHOLE]:
        """Seconds until it is done at this rate."""
        return None if self.whole is None else time_left(self.whole - self.done, self.per_second)


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A phase at a moment, `seconds` after its start. `heading` names the kind of rows. `state` is as requested."""

    phase: str
    heading: str
    rows: tuple[PhaseRow, ...]
    seconds: float
    state: str = ""

    @property
    def total(self) -> PhaseRow:
        wholes = [row.whole for row in self.rows if row.whole is not None]
        return PhaseRow(
            "total",
            sum(row.done for row in self.rows),
            sum(wholes) if wholes and len(wholes) == len(self.rows) else None,
            sum(row.per_second for row in self.rows),
        )


class PhaseBoard:
    """Rows of the current phase of a replay. `now` is in seconds of a monotonic clock."""

    def __init__(self, state: "ReplayState", now: float) -> None:
        self._state, self._since = state, now
        self._meters: dict[str, RateMeter] = {}

    def take(self, event: "Event", now: float) -> None:
        """Take one event in. Messages that are there at the first sample of a phase do not count towards a rate."""
        state, before = self._state, self._state.phase
        is_sampled = state.phase in state.done
        state.take(event)
        if state.phase != before:
            self._since, self._meters = now, {}
        for name, done in self._done().items():
            if name not in self._meters:
                self._meters[name] = RateMeter(self._since) if is_sampled else RateMeter(now, done)

    def _done(self) -> dict[str, int]:
        found = self._state.done.get(self._state.phase)
        return found.by if found else {}

    def view(self, now: float) -> PhaseView:
        phase, done = self._state.phase, self._done()
        whole = self._state.whole.get(phase, {})
        heading = "QUEUE" if phase in OF_QUEUES else "DESTINATION"
        rows = []
        for name in sorted({*whole, *done}, key=natural_key):
            count, meter = done.get(name, 0), self._meters.get(name)
            rows.append(PhaseRow(name, count, whole.get(name), meter.rate(now, count) if meter else 0.0))
        requested = REQUEST_STATES.get(type(self._state.request), "")
        return PhaseView(phase, heading, tuple(rows), now - self._since, requested)
