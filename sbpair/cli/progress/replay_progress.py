"""The progress of a replay: live bars, JSON lines, or text. Progress is reported at intervals, after a change."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.cli.progress.move_board import RateMeter, natural_key, time_left
from sbpair.cli.progress.reporting import Progress, choose_form, event_line, wall_clock_ms, write_lines
from sbpair.cli.render.screen import Document, Screen

if TYPE_CHECKING:
    from sbpair.replay.progress import Event, Expected, PhaseProgress, ReplayPhase

SCHEMA = "sbpair/replay-event/1"
REPORT_SECONDS = 5.0
OF_QUEUES = ("drain", "move")


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One queue or destination. `whole` is None if unknown."""

    name: str
    done: int
    whole: int | None
    per_second: float

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until it is done at this rate."""
        return None if self.whole is None else time_left(self.whole - self.done, self.per_second)


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A phase at a moment, `seconds` after its start. `heading` names the kind of rows."""

    phase: str
    heading: str
    rows: tuple[PhaseRow, ...]
    seconds: float

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
    """The state of the current phase. `now` is in seconds of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._phase, self._since = "", now
        self._whole: dict[str, dict[str, int]] = {}
        self._done: dict[str, int] = {}
        self._meters: dict[str, tuple[RateMeter, int]] = {}

    def begin(self, phase: "ReplayPhase", now: float) -> None:
        if phase.name not in (self._phase, "stop"):
            self._phase, self._since = phase.name, now
            self._done, self._meters = {}, {}

    def expect(self, expected: "Expected") -> None:
        self._whole[expected.phase] = expected.by

    def take(self, progress: "PhaseProgress", now: float) -> None:
        """Apply progress. Messages that are there at the first sample do not count towards a rate."""
        if progress.phase != self._phase:
            return
        for name, done in progress.by.items():
            if name not in self._meters:
                self._meters[name] = RateMeter(self._since if self._done else now), 0 if self._done else done
        self._done = progress.by

    def view(self, now: float) -> PhaseView:
        whole = self._whole.get(self._phase, {})
        names = sorted({*whole, *self._done}, key=natural_key)
        heading = "QUEUE" if self._phase in OF_QUEUES else "DESTINATION"
        return PhaseView(self._phase, heading, tuple(self._row(name, whole, now) for name in names), now - self._since)

    def _row(self, name: str, whole: dict[str, int], now: float) -> PhaseRow:
        done = self._done.get(name, 0)
        if name not in self._meters:
            return PhaseRow(name, done, whole.get(name), 0.0)
        meter, before = self._meters[name]
        return PhaseRow(name, done, whole.get(name), meter.rate(now, done - before))


class ReplayProgress(Progress):
    """Prints each phase and its progress as text."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen
        self._board = PhaseBoard(time.monotonic())
        self._lock = threading.Lock()  # a thread draws it
        self._next, self._last = 0.0, 0

    def __call__(self, event: "Event") -> None:
        """Report one event."""
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
            self._next, self._last = now + REPORT_SECONDS, 0
            self._report_phase(event)
        elif not isinstance(event, Expected) and now >= self._next and event.messages != self._last:
            self._next, self._last = now + REPORT_SECONDS, event.messages
            self._report(self._view())

    def _report_phase(self, phase: "ReplayPhase") -> None:
        self._screen.say(phase.text)

    def _report(self, view: PhaseView) -> None:
        total = view.total
        of = "" if total.whole is None else f" of {total.whole}"
        self._screen.say(f"{view.phase}: {total.done}{of} messages, {total.per_second:.0f} a second")

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


class JsonReplayProgress(ReplayProgress):
    """Writes JSON lines instead of text."""

    def _report_phase(self, phase: "ReplayPhase") -> None:
        self._write("phase", {"phase": phase.name, "text": phase.text, "run": phase.run or None})

    def _report(self, view: PhaseView) -> None:
        for row in (view.total, *view.rows):
            self._write("progress", dict(_fields(view, row)))

    def _write(self, name: str, document: Document) -> None:
        write_lines(self._screen, [{**event_line(SCHEMA, name, wall_clock_ms()), **document}])


def _fields(view: PhaseView, row: PhaseRow) -> Iterator[tuple[str, object]]:
    yield "phase", view.phase
    yield view.heading.lower(), None if row.name == "total" else row.name
    yield "messages", row.done
    yield "of", row.whole
    yield "per_second", round(row.per_second, 1)
    yield "eta_seconds", None if row.eta_seconds is None else round(row.eta_seconds)


def replay_progress(screen: Screen) -> ReplayProgress:
    """Return the progress of a replay, in the form that suits stderr."""
    return choose_form(screen, LiveReplayProgress, JsonReplayProgress, ReplayProgress)
