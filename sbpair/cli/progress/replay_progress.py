"""What a replay tells while it works: bars that move on a terminal, lines of JSON for a program, or words.

A phase is said when it begins. How far it is moves, or is told every few seconds where it has changed.
"""

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbpair.cli.progress.phase_board import PhaseBoard, PhaseRow, PhaseView
from sbpair.cli.render.screen import Document, Screen

if TYPE_CHECKING:
    from sbpair.replay.progress import Event, ReplayPhase

SCHEMA = "sbpair/replay-event/1"
TELL_SECONDS = 5.0


class ReplayProgress:
    """Takes events in while it is entered: in words."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._board = PhaseBoard(time.monotonic())
        self._lock = threading.Lock()  # it is drawn by a thread
        self._next, self._last = 0.0, 0

    def __enter__(self) -> "ReplayProgress":
        return self

    def __exit__(self, *_details: object) -> None:
        return

    def __call__(self, event: "Event") -> None:
        """Take one event in."""
        from sbpair.replay.progress import Expected, ReplayPhase

        now = time.monotonic()
        with self._lock:
            if isinstance(event, ReplayPhase):
                self._board.begin(event, now)
            elif isinstance(event, Expected):
                self._board.expect(event)
            else:
                self._board.take(event, now)
        if isinstance(event, ReplayPhase):
            self._next, self._last = now + TELL_SECONDS, 0
            self._begin(event)
        elif not isinstance(event, Expected) and now >= self._next and event.messages != self._last:
            self._next, self._last = now + TELL_SECONDS, event.messages
            self._go_on(self._look())

    def _begin(self, phase: "ReplayPhase") -> None:
        self._screen.say(phase.text)

    def _go_on(self, view: PhaseView) -> None:
        total = view.total
        of = "" if total.whole is None else f" of {total.whole}"
        self._screen.say(f"{view.phase}: {total.done}{of} messages, {total.per_second:.0f} a second")

    def _look(self) -> PhaseView:
        with self._lock:
            return self._board.look(time.monotonic())


class LiveReplayProgress(ReplayProgress):
    """A bar for each queue or destination, drawn while it is entered; the phases go by above them."""

    def __init__(self, screen: Screen) -> None:
        # A tenth of a second to load, for a terminal only.
        from sbpair.cli.progress.live_table import LiveTable
        from sbpair.cli.progress.phase_table import draw

        super().__init__(screen)
        self._live = LiveTable(self._look, draw)

    def __enter__(self) -> ReplayProgress:
        self._live.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._live.__exit__(*details)

    def _go_on(self, view: PhaseView) -> None:
        """It is seen."""


class JsonReplayProgress(ReplayProgress):
    """Lines of JSON instead of words. Where they cannot be written any more, messages are moved all the same."""

    def _begin(self, phase: "ReplayPhase") -> None:
        self._write({"event": "phase", "phase": phase.name, "text": phase.text, "run": phase.run or None})

    def _go_on(self, view: PhaseView) -> None:
        for row in (view.total, *view.rows):
            self._write(dict(_line(view, row)))

    def _write(self, document: Document) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self._screen.event({"schema": SCHEMA, "time": now, "level": "info", **document})
        except OSError:
            return


def _line(view: PhaseView, row: PhaseRow) -> Iterator[tuple[str, object]]:
    yield "event", "progress"
    yield "phase", view.phase
    yield view.heading.lower(), None if row.name == "total" else row.name
    yield "messages", row.done
    yield "of", row.whole
    yield "per_second", round(row.per_second, 1)
    yield "eta_seconds", None if row.eta_seconds is None else round(row.eta_seconds)


def phases(screen: Screen) -> ReplayProgress:
    """What suits those who look at stderr."""
    if screen.animated:
        return LiveReplayProgress(screen)
    return JsonReplayProgress(screen) if screen.eventful else ReplayProgress(screen)
