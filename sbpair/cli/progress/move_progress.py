"""What a mover tells while it works: a table that moves on a terminal, lines of JSON for a program, or words.

In words only what somebody should know is a line; how far each lane is, moves, or is told from time to time.
"""

import threading
import time
from collections.abc import Iterable

from sbpair.cli.progress.event_lines import EventLines
from sbpair.cli.progress.move_board import Board, BoardView
from sbpair.cli.render.screen import Document, Screen
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
"""How often a queue may be counted for those who watch: a count costs as much as ten messages."""

TICK_SECONDS = 1.0
CLOSE_SECONDS = 2.0


class MoveProgress:
    """Takes events in while it is entered, and says in words what is worth some.

    `sample_seconds` is how often queues are to be counted for it, if they are.
    """

    sample_seconds: float | None = None

    def __init__(self, screen: Screen) -> None:
        self._tell = EventPrinter(screen)

    def __enter__(self) -> "MoveProgress":
        return self

    def __exit__(self, *_details: object) -> None:
        return

    def __call__(self, event: SyphonEvent) -> None:
        """Take one event in."""
        self._tell(event)


class LiveMoveProgress(MoveProgress):
    """The state of every lane, drawn while it is entered; the words go by above it."""

    sample_seconds = SAMPLE_SECONDS

    def __init__(self, screen: Screen) -> None:
        # A tenth of a second to load, for a terminal only.
        from sbpair.cli.progress.live_table import LiveTable, draw

        super().__init__(screen)
        self._board = Board(time.monotonic())
        self._lock = threading.Lock()  # it is drawn by a thread
        self._live = LiveTable(self._look, draw)

    def __enter__(self) -> MoveProgress:
        self._live.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._live.__exit__(*details)

    def __call__(self, event: SyphonEvent) -> None:
        with self._lock:
            self._board.take(event, time.monotonic())
        self._tell(event)

    def _look(self) -> BoardView:
        with self._lock:
            return self._board.look(time.monotonic(), _now_ms())


class JsonMoveProgress(MoveProgress):
    """Lines of JSON instead of words. Where they cannot be written any more, messages are moved all the same."""

    sample_seconds = SAMPLE_SECONDS

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._screen = screen
        self._lines = EventLines(time.monotonic())
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> MoveProgress:
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)
        self._write(self._lines.tick(time.monotonic(), _now_ms(), last=True))

    def __call__(self, event: SyphonEvent) -> None:
        with self._lock:
            self._write(self._lines.take(event, time.monotonic(), _now_ms()))

    def _run(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                self._write(self._lines.tick(time.monotonic(), _now_ms()))

    def _write(self, lines: Iterable[Document]) -> None:
        try:
            for line in lines:
                self._screen.event(line)
        except OSError:
            return


def lanes(screen: Screen, *, watch: bool) -> MoveProgress:
    """What suits those who look at stderr."""
    if screen.animated:
        return LiveMoveProgress(screen)
    return JsonMoveProgress(screen) if watch and screen.eventful else MoveProgress(screen)


def _now_ms() -> int:
    return int(time.time() * 1000)


class EventPrinter:
    """Events in words, where they are worth some. What ten lanes find out at once is said once."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._resting: set[str] = set()
        self._failed: set[str] = set()

    def __call__(self, event: SyphonEvent) -> None:
        match event:
            case QueueFailed(queue, reason, retry_seconds):
                again = "" if retry_seconds is None else f"; next attempt in {retry_seconds:.1f} s"
                self._once(self._failed, reason, f"{queue}: {reason}{again}")
            case DestinationBackingOff(_queue, destination, reason, seconds, waiting):
                count = f"{waiting} message{'s' if waiting != 1 else ''}"
                text = f"{destination} rests for {seconds:.1f} s with {count} waiting: {reason}"
                self._once(self._resting, destination, text)
            case DestinationRecovered(_queue, destination):
                if destination in self._resting:
                    self._resting.discard(destination)
                    self._screen.say(f"{destination} takes messages again")
            case QueueOpened():
                # Whatever has kept lanes from opening is worth a word again when it comes back.
                self._failed.clear()
            case _:
                tell(self._screen, event)

    def _once(self, said: set[str], key: str, text: str) -> None:
        if key in said:
            self._screen.detail(text)
        else:
            said.add(key)
            self._screen.warn(text)


def tell(screen: Screen, event: SyphonEvent) -> None:
    """One event in words that need no memory."""
    match event:
        case QueuesFound(queues, stranded, managed):
            screen.detail(f"{len(queues)} backlog queues{'' if managed else ', taken from the count: no Manage claim'}")
            for queue in stranded:
                screen.warn(f"{queue} lies beyond the pair's count: no client uses it, and it is emptied all the same")
        case QueueBlocked(queue, destinations):
            screen.warn(f"{queue} is blocked by {', '.join(destinations)}")
        case DeadLettered(queue, sequence_number, message_id, reason, description):
            screen.detail(f"{queue}: {message_id or sequence_number} was dead-lettered: {reason}: {description}")
        case _:
            pass
