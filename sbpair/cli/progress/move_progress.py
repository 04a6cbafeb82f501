"""The progress of a move: a live table, JSON lines, text lines, or with --quiet only what needs attention.

Invariant: JSON lines of a run of many days do not fill a disk. No line is written for a single message. Progress is
written after a change, at most once an interval; repeated events are written once. All other lines are limited to one a
second, with bursts of BURST. Dropped lines are counted.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from sbpair.cli.logs import utc
from sbpair.cli.next_command import with_options
from sbpair.cli.progress.boards import (
    QUEUE_FIGURES,
    Board,
    BoardView,
    at_the_latest,
    natural_key,
    ramp_text,
    request_text,
)
from sbpair.cli.progress.reporting import Progress, choose_form, event_line, print_found, wall_clock_ms, write_lines
from sbpair.cli.render.screen import Document, Screen, plural, some, spoken
from sbpair.model.document import SPREAD
from sbpair.move import events
from sbpair.move.receipt import RampState
from sbpair.move.run_state import RunState

if TYPE_CHECKING:
    from sbpair.model.pair import Ends
    from sbpair.syphon.run_request import RunRequest

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

    def __init__(self, state: RunState, now: float, interval: float = PROGRESS_SECONDS) -> None:
        self._interval = interval
        self._board = Board(state, now)
        self._allowance, self._at = float(BURST), now
        self._dropped = 0
        self._dead = DeadLetterCounts()
        self._written: dict[tuple[str, str], object] = {}  # what lines had last, by its kind and name
        self._next = now + interval

    def connecting(self, ends: "Ends", now_ms: int) -> Document:
        """Return the first line."""
        return event_line(SCHEMA, "connecting", now_ms, Connecting(ends.destination.name, ends.source.name))

    def take(self, event: events.SyphonEvent, now: float, now_ms: int) -> list[Document]:
        """Return the lines of one event, which the state of the run has taken in."""
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
            *(
                event_line(SCHEMA, "progress", now_ms, row)
                for row in view.queues
                if self._changed("queue", row.queue, [getattr(row, name) for name in QUEUE_FIGURES])
            ),
            *(
                event_line(SCHEMA, "destination-progress", now_ms, row)
                for row in view.destinations
                if self._changed("destination", row.destination, (row.sent, row.waiting, row.dead_letters))
            ),
        ]

    def _is_news(self, event: events.SyphonEvent) -> bool:
        match event:
            case events.DestinationBackingOff(_queue, destination, reason):
                return self._changed("backing off", destination.lower(), reason)
            case events.DestinationRecovered(_queue, destination):
                return self._changed("backing off", destination.lower(), None)
            case events.QueueFailed(queue, reason, retry_seconds):
                return self._changed("failing", queue, reason) or retry_seconds is None
            case events.QueueOpened(queue):
                self._changed("failing", queue, None)
            case events.LimitChanged(_per_second, by):
                return self._changed("limited", "", by)  # after throttling the limit grows all the time
        return True

    def _changed(self, kind: str, name: str, value: object) -> bool:
        """Record a value, None for none; return whether it changed."""
        before = self._written.get((kind, name))
        self._written[kind, name] = value
        return before != value

    def _allowed(self, lines: list[Document], now: float, now_ms: int) -> list[Document]:
        self._allowance, self._at = min(BURST, self._allowance + now - self._at), now
        limit = int(self._allowance)
        if lines and limit and self._dropped:
            dropped = DroppedEvents(self._dropped)
            lines = [event_line(SCHEMA, "events-dropped", now_ms, dropped, level="warning"), *lines]
            self._dropped = 0
        self._allowance -= len(lines[:limit])
        self._dropped += len(lines[limit:])
        return lines[:limit]


class Connecting(NamedTuple):
    primary: Annotated[str, "Primary namespace"]
    secondary: Annotated[str, "Secondary namespace"]


class DroppedEvents(NamedTuple):
    events: Annotated[int, "Lines that were not written"]


class CountedDeadLetter(NamedTuple):
    event: Annotated[events.DeadLettered, SPREAD]
    messages: Annotated[int, "Messages since the last such line, of which this is the first"]


def line(event: events.SyphonEvent, now_ms: int, schema: str = SCHEMA) -> Document:
    """Return one event as JSON: its name and its fields."""
    name, level = events.name_and_level(type(event))
    return event_line(schema, name, now_ms, event, level=level)


def _dead_lettered(event: events.DeadLettered, messages: int, now_ms: int) -> Document:
    return event_line(SCHEMA, "dead-lettered", now_ms, CountedDeadLetter(event, messages), level="warning")


SAMPLE_SECONDS = 30.0
"""Time between counts of a queue for a live view; a count costs as much as ten messages."""

TICK_SECONDS = 1.0
CLOSE_SECONDS = 2.0


class MoveProgress(Progress):
    """Prints events that need attention: all that --quiet leaves. `state` is that of the run, which takes them first.

    `sample_seconds` is the time between counts of a queue; None for none. `interval` is the time between reports.
    `is_stopping` returns whether the run finishes its sends.
    """

    def __init__(self, screen: Screen, request: "RunRequest", state: RunState, interval: float) -> None:
        super().__init__()
        self.sample_seconds = None if screen.quiet else SAMPLE_SECONDS
        self._screen, self._request, self._interval = screen, request, interval
        names = dict.fromkeys((request.ends.source.name, request.ends.destination.name))
        own = ("secondary", request.to) if request.source is None else request.words
        self._sides = dict(zip(("secondary", "primary"), own, strict=True)) if request.source or request.to else {}
        self._board = Board(state, time.monotonic(), f"connecting to {' and '.join(names)}", self._sides)
        self.is_stopping: Callable[[], bool] = bool
        self._print = EventPrinter(screen)
        self._due = time.monotonic() + interval
        self._ended = threading.Event()
        # What it prints is about the same pair.
        tick = partial(copy_context().run, self._tick)
        self._thread = threading.Thread(target=tick, name="progress", daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)
        self._report(time.monotonic(), last=True)
        super().__exit__(*details)

    def __call__(self, event: events.SyphonEvent) -> None:
        """Report one event."""
        if isinstance(event, events.QueueFailed) and event.side in self._sides:
            event = replace(event, side=self._sides[event.side])
        self._print(event)

    def _tick(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            now = time.monotonic()
            self._print.ended_queues()
            if now >= self._due:
                self._due = now + self._interval
                self._report(now)

    def _report(self, now: float, *, last: bool = False) -> None:  # noqa: ARG002
        self._print.ended_queues()
        self._print.dead_letters()

    def view(self) -> BoardView:
        """Return the rows of this moment."""
        return replace(self._board.view(time.monotonic(), wall_clock_ms()), is_stopping=self.is_stopping())


class TextMoveProgress(MoveProgress):
    """Prints the state of the whole run at intervals, too."""

    def __init__(self, screen: Screen, request: "RunRequest", state: RunState, interval: float) -> None:
        super().__init__(screen, request, state, interval)
        self._last = ""
        self._due = 0.0  # what it waits for, if it does

    def __call__(self, event: events.SyphonEvent) -> None:
        if isinstance(event, events.QueuesFound):
            what = plural(len(event.queues), "backlog queue")
            what = f"the dead letters of {what}" if self._request.takes_dead_letters else what
            what, to = self._request.names or (what, self._request.ends.destination.name)
            removes = self._request.keep is not None
            self._screen.say(f"removing messages of {what}" if removes else f"moving {what} to {to}")
            self._due = time.monotonic() + FIRST_SECONDS
        super().__call__(event)

    def _report(self, now: float, *, last: bool = False) -> None:
        super()._report(now, last=last)
        text = progress_text(self.view())
        if not last and text != self._last:
            self._last = text
            self._screen.say(text)


def progress_text(view: BoardView) -> str:
    """Return the state of a run in one line."""
    total, dead = view.total, sum(row.dead_letters for row in view.destinations)
    if not view.queues:
        return "; ".join(view.notices)
    parts = [f"{total.sent} sent"]
    if total.remaining is not None:
        parts.append(f"{'' if total.exact else '~'}{total.remaining} left")
    if total.per_second:
        parts.append(f"{total.per_second:.0f} a second")
    if total.locked and total.locked_until_ms is not None:
        until = at_the_latest(total.locked_until_ms)
        parts.append(f"waiting for {plural(total.locked, 'locked message')}, until {until}")
    if total.eta_seconds is not None:
        parts.append(f"about {spoken(total.eta_seconds)} to go")
    if dead:
        parts.append(f"{dead} dead-lettered")
    away = [row.destination for row in view.destinations if row.backing_off]
    if away:
        parts.append(f"{plural(len(away), 'destination')} unavailable")
    return "; ".join([", ".join(parts), *view.notices])


class LiveMoveProgress(MoveProgress):
    """Draws every queue and destination, and prints the text above."""

    def __init__(self, screen: Screen, request: "RunRequest", state: RunState, interval: float) -> None:
        from sbpair.cli.progress.live_table import LiveTable, draw_board

        super().__init__(screen, request, state, interval)
        self._shown = LiveTable(self.view, draw_board)


class JsonMoveProgress(MoveProgress):
    """Writes JSON lines instead of text; with --quiet, only warnings."""

    def __init__(self, screen: Screen, request: "RunRequest", state: RunState, interval: float) -> None:
        super().__init__(screen, request, state, 0.0)  # the lines know what is due
        self._lines, self._lock = EventLines(state, time.monotonic(), interval), threading.Lock()
        self._connecting = True

    def __call__(self, event: events.SyphonEvent) -> None:
        self._connecting = False
        with self._lock:
            self._write(self._lines.take(event, time.monotonic(), wall_clock_ms()))

    def _report(self, now: float, *, last: bool = False) -> None:
        with self._lock:
            if self._connecting and not last:
                self._connecting = False
                self._write([self._lines.connecting(self._request.ends, wall_clock_ms())])
            self._write(self._lines.tick(now, wall_clock_ms(), last=last))

    def _write(self, lines: Iterable[Document]) -> None:
        write_lines(self._screen, (each for each in lines if not self._screen.quiet or each["level"] == "warning"))


def move_progress(
    screen: Screen, request: "RunRequest", state: RunState, interval: float, *, drawn: bool = True
) -> MoveProgress:
    """Return the progress of a run, in the form that suits stderr; on a terminal without a table, unless `drawn`."""
    text = MoveProgress if screen.quiet else TextMoveProgress
    live = LiveMoveProgress if drawn else MoveProgress
    return choose_form(screen, live, JsonMoveProgress, text)(screen, request, state, interval)


UNCHECKED = "topics are sent to unchecked: their subscriptions cannot be read, and may take none of the messages"
_SIDES = {"primary", "secondary", "source", "destination"}


class EventPrinter:
    """Prints events as text; the same problem of several queues only once."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._backing_off: set[str] = set()
        self._failed: set[str] = set()
        self._ended: dict[str, list[str]] = {}
        self._locked: dict[str, events.MessagesLocked] = {}
        self._dead = DeadLetterCounts()
        self._lock = threading.Lock()

    def __call__(self, event: events.SyphonEvent) -> None:
        match event:
            case events.QueueFailed() | events.MessagesLocked() | events.RampProgress():
                self._collect(event)
            case events.DestinationBackingOff(_queue, destination, reason, seconds, waiting):
                text = f"{destination} unavailable, retrying in {seconds:.1f} s ({waiting} waiting): {reason}"
                self._once(self._backing_off, destination.lower(), text)
            case events.DestinationRecovered(_queue, destination):
                if destination.lower() in self._backing_off:
                    self._backing_off.discard(destination.lower())
                    self._screen.say(f"{destination} available again")
            case events.QueueOpened():
                for side in self._failed & _SIDES:
                    self._screen.say(f"{side} reachable again")
                # A failure that comes back is worth another warning.
                self._failed.clear()
            case events.DeadLettered():
                self._dead_letter(event)
            case events.QueuesFound():
                print_found(self._screen, event)
            case events.QueueBlocked(queue, destinations):
                self._screen.warn(f"{queue} is blocked by {', '.join(destinations)}")
            case _:
                self._run_event(event)

    def _run_event(self, event: events.SyphonEvent) -> None:
        match event:
            case events.TopicsUnchecked(reason):
                self._screen.warn(f"{UNCHECKED}: {reason}")
            case events.RunEvent():
                self._screen.say(request_text(event))

    def _ramp(self, event: events.RampProgress) -> None:
        text = ramp_text(event, 0.0, event.sent, 0.0)
        if event.state == RampState.STOPPED:
            self._screen.warn(text)
        elif event.state == RampState.OBSERVING or (event.state == RampState.PASSED and event.step == event.steps):
            self._screen.say(text)

    def _collect(self, event: events.QueueFailed | events.MessagesLocked | events.RampProgress) -> None:
        """Print a ramp, and a failure that is not the end of a queue; keep other events for `ended_queues`."""
        if isinstance(event, events.RampProgress):
            self._ramp(event)
            return
        if isinstance(event, events.MessagesLocked):
            with self._lock:
                self._locked[event.queue] = event
            return
        if event.retry_seconds is None and event.side is None:
            with self._lock:
                self._ended.setdefault(with_options(event.reason), []).append(event.queue)
            return
        retry = "" if event.retry_seconds is None else f"; retrying in {event.retry_seconds:.1f} s"
        if retry and event.away_since_ms is not None:
            retry = f"; away since {utc(event.away_since_ms / 1000)}, trying each second"
        what = f"{event.side} unreachable" if event.side else event.queue
        self._once(self._failed, event.side or event.reason, f"{what}: {event.reason}{retry}")

    def ended_queues(self) -> None:
        """Print which queues ended or wait for locks since the last time, like ones together."""
        with self._lock:
            locked, self._locked = list(self._locked.values()), {}
            due, self._ended = self._ended, {}
        for overdue in (False, True):
            if found := [event for event in locked if event.overdue is overdue]:
                self._screen.warn(locked_text(found, wall_clock_ms()))
        for reason, queues in due.items():
            queues.sort(key=natural_key)
            names = some(queues)
            what = names if len(queues) == 1 else f"{len(queues)} backlog queues ({names})"
            self._screen.warn(f"{what}: {reason}")

    def _dead_letter(self, event: events.DeadLettered) -> None:
        with self._lock:
            first = self._dead.add(event)
        if first:
            what = f"message {event.message_id or event.sequence_number} for {event.destination or 'no destination'}"
            self._screen.warn(f"{what} dead-lettered: {event.reason}: {event.description}")

    def dead_letters(self) -> None:
        """Print how many more messages of each kind were dead-lettered since the last time."""
        with self._lock:
            due = self._dead.take()
        for event, count in due:
            more = f"{plural(count, 'more message')} for {event.destination or 'no destination'}"
            self._screen.warn(f"{more} dead-lettered: {event.reason}")

    def _once(self, printed: set[str], key: str, text: str) -> None:
        if key in printed:
            self._screen.detail(text)
        else:
            printed.add(key)
            self._screen.warn(text)


def locked_text(found: Sequence[events.MessagesLocked], now_ms: int) -> str:
    """Return one line for the locked messages of several queues, all or none of them overdue."""
    messages = sum(event.locked for event in found)
    where = found[0].queue if len(found) == 1 else f"{len(found)} backlog queues"
    are = f"{plural(messages, 'message')} in {where} {'is' if messages == 1 else 'are'}"
    until_ms = max(event.until_ms for event in found)
    # A peek does not show when a lock began: each run counts from now.
    seconds = max(0, math.ceil((until_ms - now_ms) / 1000))
    until = f"until {at_the_latest(until_ms)}, at most {spoken(seconds)} from now"
    if found[0].overdue:
        text = f"{are} still locked, {until}: another receiver renews the locks, or they last longer than assumed"
    else:
        text = f"{are} locked by another receiver or over a lost connection, {until}"
    return f"{text}; {'waiting (--no-wait-for-locks leaves them)' if found[0].waiting else 'left there'}"
