"""Progress and status of a run, counted from the files that its tasks have written.

Invariant: a signal or a lost lease lets the tasks finish the messages they hold; nothing is cut off.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from sbpair.errors import StateRefused
from sbpair.replay.archive import Archive, value_counts
from sbpair.replay.archive_layout import DRAINED_FILE, LEDGER, RECEIPT_FILE, REMOVED_FILE, SEGMENTS, STOP_FILE
from sbpair.replay.run import ReplayRun, load_run
from sbpair.replay.spark import translate_failure

if TYPE_CHECKING:
    from sbpair.move.events import MessagesLocked
    from sbpair.replay.task_lease import HeldLease


@dataclass(frozen=True, slots=True)
class ReplayPhase:
    """The phase that begins. `run` is the run's id."""

    name: str
    text: str
    run: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """The messages that a phase will process, by queue or destination, as far as known."""

    phase: str
    by: dict[str, int]


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """The messages in a phase's files so far, by source queue or by destination."""

    phase: str
    messages: int
    files: int
    by: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocksFound:
    """The messages of the run that its tasks could not receive because they are locked, by queue."""

    queues: tuple[MessagesLocked, ...]


@dataclass(frozen=True, slots=True)
class PauseChanged:
    """The answer to a request of another process. `state` is pausing, paused, running or cancelled."""

    state: str
    run: str


Event: TypeAlias = ReplayPhase | Expected | PhaseProgress | LocksFound | PauseChanged
OnEvent: TypeAlias = Callable[[Event], None]


COUNTED = {"drain": (SEGMENTS, "queue"), "send": (LEDGER, "destination"), "move": (LEDGER, "queue")}
"""The files of a phase, and the column by which their messages are counted."""

FINISHED = ("proved", "removed", "moved")  # the phases of a run that has ended, and that a stop would not change


class PhaseWatcher:
    """A counter of the rows in one phase's files. Each file is read once."""

    def __init__(self, archive: Archive, phase: str) -> None:
        self.archive, self.phase = archive, phase
        self._under, self._column = COUNTED[phase]
        self._seen: set[str] = set()
        self._by: Counter[str] = Counter()

    def sample(self) -> PhaseProgress:
        """Count the new files, and return the totals."""
        for path in self.archive.files(self._under):
            if path not in self._seen:
                with suppress(StateRefused):  # the proof reports unreadable files
                    self._by += self._count(path)
                self._seen.add(path)
        return PhaseProgress(self.phase, self._by.total(), len(self._seen), dict(self._by))

    def _count(self, path: str) -> Counter[str]:
        if self._under == SEGMENTS:  # each is in the directory of its queue
            return Counter({path.removeprefix(f"{SEGMENTS}/").rpartition("/")[0]: self.archive.row_count(path)})
        return value_counts(self.archive.read_table(path, [self._column]).column(self._column))


def run_action(
    watcher: PhaseWatcher, action: Callable[[], Any], held: HeldLease, on_event: OnEvent, poll_seconds: float = 1.0
) -> Any:
    """Return the result of a Spark action, run in a thread, and report progress. Raises its tasks' error, LeaseLost."""
    archive, outcome = watcher.archive, Future[Any]()

    def act() -> None:
        try:
            outcome.set_result(action())
        except BaseException as error:  # noqa: BLE001  it is raised below, in the waiting thread
            outcome.set_exception(error)

    threading.Thread(target=act, name="spark action", daemon=True).start()
    while True:
        try:
            # Not join(): after a signal during join, Python believes that the thread has ended.
            ended = wait([outcome], poll_seconds).done
            if held.is_lost() and not archive.stop_requested():
                archive.write(STOP_FILE, b"")
            on_event(watcher.sample())
            if ended:
                break
        except KeyboardInterrupt:
            if archive.stops_for_good():
                raise
            archive.write(STOP_FILE, b"")
            on_event(ReplayPhase("stop", "finishing the messages in flight; a second signal ends at once"))
    held.check()
    if (failure := outcome.exception()) is not None:
        raise translate_failure(failure, archive) from failure
    return outcome.result()


def run_status(archive: Archive) -> dict[str, Any]:
    """Return the phase and the counts of a run as its JSON contract."""
    run = load_run(archive)
    sent = PhaseWatcher(archive, "send").sample()
    archived = PhaseWatcher(archive, "move" if run.direct else "drain").sample()
    counts = {"archived_rows": archived.messages, "segments": archived.files}
    return {
        "run": run.id,
        "pair": run.pair,
        **_state(archive, run, sent.files),
        **(dict.fromkeys(counts, 0) if run.direct else counts),
        "acknowledged_rows": sent.messages,
        "queues": archived.by,
    }


def _state(archive: Archive, run: ReplayRun, chunks_sent: int) -> dict[str, Any]:
    phase = _phase(archive, run, chunks_sent)
    return {"mode": run.options.mode.value, "phase": phase, "stopped": archive.stops_for_good()}


def _phase(archive: Archive, run: ReplayRun, chunks_sent: int) -> str:
    drained = archive.exists(DRAINED_FILE)
    if run.direct:
        return "moved" if drained else "move"
    if archive.exists(REMOVED_FILE):
        return "removed"
    if drained and archive.exists(RECEIPT_FILE):
        receipt = archive.read_json(RECEIPT_FILE)
        # A run that was stopped has a receipt, too.
        if receipt.get("balanced") is True and not (receipt.get("stopped") and receipt.get("unsent")):
            return "proved"
    return "send" if chunks_sent else "drained" if drained else "drain"


def run_summary(archive: Archive) -> dict[str, Any]:
    """Return a run's phase without its counts."""
    run = load_run(archive)
    return {"run": run.id, "started_ms": run.started_ms, **_state(archive, run, len(archive.files(LEDGER)))}


def request_stop(archive: Archive) -> bool:
    """Request a stop: the run's tasks finish the messages they hold. Return False for a run that has finished."""
    if _phase(archive, load_run(archive), 0) in FINISHED:
        return False
    archive.write(STOP_FILE, b"")
    return True
