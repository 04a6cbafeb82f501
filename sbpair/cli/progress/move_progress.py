"""The progress of a move: a live table, JSON lines, or text for events that need attention."""

import threading
import time

from sbpair.cli.logs import utc
from sbpair.cli.progress.boards import Board, BoardView
from sbpair.cli.progress.event_lines import EventLines
from sbpair.cli.progress.reporting import Progress, choose_form, wall_clock_ms, write_lines
from sbpair.cli.render.screen import Screen
from sbpair.move.events import (
    DeadLettered,
    DestinationBackingOff,
    DestinationRecovered,
    QueueBlocked,
    QueueFailed,
    QueueOpened,
    QueuesFound,
    SyphonEvent,
)

SAMPLE_SECONDS = 30.0
"""Time between counts of a queue for a live view; a count costs as much as ten messages."""

TICK_SECONDS = 1.0
CLOSE_SECONDS = 2.0


class MoveProgress(Progress):
    """Prints events that need attention. `sample_seconds` is the time between counts of a queue; None for none."""

    sample_seconds: float | None = None

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._print = EventPrinter(screen)

    def __call__(self, event: SyphonEvent) -> None:
        """Report one event."""
        self._print(event)


class LiveMoveProgress(MoveProgress):
    """Draws every queue and destination, and prints the text above."""

    sample_seconds = SAMPLE_SECONDS

    def __init__(self, screen: Screen) -> None:
        from sbpair.cli.progress.live_table import LiveTable, draw_board

        super().__init__(screen)
        self._board = Board(time.monotonic())
        self._lock = threading.Lock()  # a thread draws it
        self._shown = LiveTable(self._view, draw_board)

    def __call__(self, event: SyphonEvent) -> None:
        with self._lock:
            self._board.take(event, time.monotonic())
        self._print(event)

    def _view(self) -> BoardView:
        with self._lock:
            return self._board.view(time.monotonic(), wall_clock_ms())


class JsonMoveProgress(MoveProgress):
    """Writes JSON lines instead of text."""

    sample_seconds = SAMPLE_SECONDS

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._screen = screen
        self._lines = EventLines(time.monotonic())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> "JsonMoveProgress":
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)
        write_lines(self._screen, self._lines.tick(time.monotonic(), wall_clock_ms(), last=True))

    def __call__(self, event: SyphonEvent) -> None:
        with self._lock:
            write_lines(self._screen, self._lines.take(event, time.monotonic(), wall_clock_ms()))

    def _tick(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                write_lines(self._screen, self._lines.tick(time.monotonic(), wall_clock_ms()))


def move_progress(screen: Screen, *, watch: bool) -> MoveProgress:
    """Return the progress of a move, in the form that suits stderr; --once has no JSON lines."""
    return choose_form(screen, LiveMoveProgress, JsonMoveProgress if watch else MoveProgress, MoveProgress)


class EventPrinter:
    """Prints events as text; the same problem of several queues only once."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._backing_off: set[str] = set()
        self._failed: set[str] = set()

    def __call__(self, event: SyphonEvent) -> None:
        match event:
            case QueueFailed(queue, reason, retry_seconds, away_since_ms):
                retry = "" if retry_seconds is None else f"; retrying in {retry_seconds:.1f} s"
                if retry and away_since_ms is not None:
                    retry = f"; away since {utc(away_since_ms / 1000)}, trying each second"
                self._once(self._failed, reason, f"{queue}: {reason}{retry}")
            case DestinationBackingOff(_queue, destination, reason, seconds, waiting):
                text = f"{destination} unavailable, retrying in {seconds:.1f} s ({waiting} waiting): {reason}"
                self._once(self._backing_off, destination, text)
            case DestinationRecovered(_queue, destination):
                if destination in self._backing_off:
                    self._backing_off.discard(destination)
                    self._screen.say(f"{destination} available again")
            case QueueOpened():
                # A failure that comes back is worth another warning.
                self._failed.clear()
            case _:
                print_event(self._screen, event)

    def _once(self, printed: set[str], key: str, text: str) -> None:
        if key in printed:
            self._screen.detail(text)
        else:
            printed.add(key)
            self._screen.warn(text)


def print_event(screen: Screen, event: SyphonEvent) -> None:
    """Print one event that needs no memory."""
    match event:
        case QueuesFound(queues, stranded, managed):
            screen.detail(f"{len(queues)} backlog queues{'' if managed else ', from the count: no Manage claim'}")
            for queue in stranded:
                screen.warn(f"{queue} is beyond the pair's count: no client uses it; it is emptied, too")
        case QueueBlocked(queue, destinations):
            screen.warn(f"{queue} is blocked by {', '.join(destinations)}")
        case DeadLettered(queue, sequence_number, message_id, reason, description):
            screen.detail(f"{queue}: {message_id or sequence_number} was dead-lettered: {reason}: {description}")
        case _:
            pass
