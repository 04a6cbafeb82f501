"""The progress of a replay: live bars, JSON lines, or text. Progress is reported at intervals, after a change."""

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

from sbpair.cli.next_command import with_options
from sbpair.cli.progress.boards import PhaseBoard, PhaseRow, PhaseView, request_text
from sbpair.cli.progress.move_progress import line, locked_text
from sbpair.cli.progress.reporting import Progress, choose_form, event_line, wall_clock_ms, write_lines
from sbpair.cli.render.screen import Screen, spoken
from sbpair.model.document import SPREAD
from sbpair.move import events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.replay.progress import Event, ReplayPhase, Requested

SCHEMA = "sbpair/replay-event/1"
REPORT_SECONDS = 5.0


class BegunPhase(NamedTuple):
    phase: Annotated[str, "Name of the phase"]
    text: Annotated[str, "Its description"]
    run: Annotated[str | None, "Id of the run; null before it has one"]


class PhaseFigures(NamedTuple):
    phase: Annotated[str, "Name of the phase", {"examples": ["drain"]}]
    named: Annotated[
        Mapping[str, str | None] | None,
        SPREAD,
        {"queue": "Queue; null for the total", "destination": "Destination; null for the total"},
    ]
    row: Annotated[PhaseRow, SPREAD]


class ReplayProgress(Progress):
    """Prints each phase and its progress as text."""

    def __init__(self, screen: Screen) -> None:
        from sbpair.replay.progress import ReplayState

        super().__init__()
        self._screen, self._state = screen, ReplayState()
        self._board = PhaseBoard(self._state, time.monotonic())
        self._lock = threading.Lock()  # a thread draws it
        self._next, self._last = 0.0, 0

    @property
    def run(self) -> str:
        """Its id, once it has begun."""
        return self._state.run

    def __call__(self, event: "Event") -> None:
        """Report one event."""
        from sbpair.replay.progress import LocksFound, PhaseProgress, ReplayPhase

        now, before = time.monotonic(), self._view()
        with self._lock:
            self._board.take(event, now)
        match event:
            case ReplayPhase(name):
                if name != "stop":
                    self._report_end(before)
                self._next, self._last = now + REPORT_SECONDS, 0
                self._report_phase(event)
            case LocksFound(queues):
                self._report_locked(queues)
            case events.RunEvent():
                self._report_request(event)
            case PhaseProgress() if now >= self._next and event.messages != self._last:
                self._next, self._last = now + REPORT_SECONDS, event.messages
                self._report(self._view())

    def _report_phase(self, phase: "ReplayPhase") -> None:
        self._screen.say(with_options(phase.text))

    def _report_request(self, request: "Requested") -> None:
        self._screen.say(request_text(request))

    def _report_locked(self, found: "Sequence[events.MessagesLocked]") -> None:
        self._screen.warn(locked_text(found, wall_clock_ms()))

    def _report(self, view: PhaseView) -> None:
        total = view.total
        of = "" if total.whole is None else f" of {total.whole}"
        eta = "" if total.eta_seconds is None else f", about {spoken(total.eta_seconds)} to go"
        self._screen.say(f"{view.phase}: {total.done}{of} messages, {total.per_second:.0f} a second{eta}")

    def _report_end(self, view: PhaseView) -> None:
        """Report a phase that is over, unless its last figures were reported."""
        if view.total.done != self._last:
            self._report(view)

    def _view(self) -> PhaseView:
        with self._lock:
            return self._board.view(time.monotonic())


class LiveReplayProgress(ReplayProgress):
    """Draws a bar for each queue or destination, and prints the phases above."""

    def __init__(self, screen: Screen) -> None:
        from sbpair.cli.progress.live_table import LiveTable, draw_phase

        super().__init__(screen)
        self._shown = LiveTable(self._view, draw_phase)

    def _report(self, view: PhaseView) -> None:
        """Do nothing: the bars show it."""

    def _report_end(self, view: PhaseView) -> None:
        if view.total.done:
            super()._report(view)


class JsonReplayProgress(ReplayProgress):
    """Writes JSON lines instead of text."""

    def _report_phase(self, phase: "ReplayPhase") -> None:
        self._write("phase", BegunPhase(phase.name, phase.text, phase.run or None))

    def _report_request(self, request: "Requested") -> None:
        write_lines(self._screen, [line(request, wall_clock_ms(), SCHEMA)])

    def _report_locked(self, found: "Sequence[events.MessagesLocked]") -> None:
        write_lines(self._screen, [line(each, wall_clock_ms(), SCHEMA) for each in found])

    def _report(self, view: PhaseView) -> None:
        for row in (view.total, *view.rows):
            named = {view.heading.lower(): None if row.name == "total" else row.name}
            self._write("progress", PhaseFigures(view.phase, named, row))

    def _write(self, event: str, item: object) -> None:
        write_lines(self._screen, [event_line(SCHEMA, event, wall_clock_ms(), item)])


def replay_progress(screen: Screen) -> ReplayProgress:
    """Return the progress of a replay, in the form that suits stderr."""
    return choose_form(screen, LiveReplayProgress, JsonReplayProgress, ReplayProgress)(screen)
