"""The progress of a replay's phase, by queue or destination. Pure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.cli.progress.move_board import MAX_ETA_SECONDS, RateMeter, natural_key

if TYPE_CHECKING:
    from sbpair.replay.progress import Expected, PhaseProgress, ReplayPhase

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
        if self.whole is None or self.done >= self.whole or not self.per_second:
            return None
        seconds = (self.whole - self.done) / self.per_second
        return seconds if seconds < MAX_ETA_SECONDS else None


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
