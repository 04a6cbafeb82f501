"""Progress and status of a run, counted from the files that its tasks have written.

Invariant: a signal or a lost lease lets the tasks finish the messages they hold; nothing is cut off. Once a pause is
confirmed, no task runs until the run resumes: it ends tasks by the file of a stop, whose content tells one from the
other, and a stop replaces a pause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from sbpair.errors import SbpairError, StateRefused
from sbpair.move.events import MessagesLocked, RunCancelled, RunPaused, RunPausing, RunResumed
from sbpair.replay.archive import (
    DRAINED_FILE,
    LEDGER,
    PAUSE,
    RECEIPT_FILE,
    REMOVED_FILE,
    SEGMENTS,
    STOP_FILE,
    Archive,
    value_counts,
)
from sbpair.replay.digests import check_files
from sbpair.replay.ledger import rows_of
from sbpair.replay.outcomes import FINISHED, ReplayStatus, ReplaySummary
from sbpair.replay.run_description import ReplayRun, load_run
from sbpair.replay.spark import translate_failure
from sbpair.runs.control import RunControl, Wanted
from sbpair.runs.database import now_ms
from sbpair.runs.run_log import Figures, RunEntry
from sbpair.runs.run_record import left_unsent

if TYPE_CHECKING:
    from sbpair.replay.task_lease import HeldLease

log = logging.getLogger(__name__)

COUNTED = {"drain": (SEGMENTS, "queue"), "send": (LEDGER, "destination"), "move": (LEDGER, "queue")}
"""The files of a phase, and the column by which their messages are counted."""

Requested: TypeAlias = RunPausing | RunPaused | RunResumed | RunCancelled
REQUESTED: Mapping[Wanted, type[Requested]] = {
    Wanted.RUNNING: RunResumed,
    Wanted.PAUSED: RunPausing,
    Wanted.CANCELLED: RunCancelled,
}
"""The event of each request of another process. RunPaused follows once no task runs."""

COUNTS = ("archived", "acknowledged", "counted_ms")  # what a resumed run knows until it counts

POLL_SECONDS = 0.25
SAMPLE_PAUSE = 20  # files are listed again after so many times as long as that takes
WAIT_SECONDS = 1.0
JOIN_SECONDS = 5.0


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


Event: TypeAlias = ReplayPhase | Expected | PhaseProgress | LocksFound | Requested
OnEvent: TypeAlias = Callable[[Event], None]


class PhaseWatcher:
    """A counter of the rows in one phase's files. Each file is read once."""

    def __init__(self, archive: Archive, phase: str, only: str | None = None) -> None:
        """Count acceptances by all namespaces, or `only` by one."""
        self.archive, self.phase, self._only = archive, phase, only
        self._under, self._column = COUNTED[phase]
        self._seen: set[str] = set()
        self._by: Counter[str] = Counter()

    def sample(self) -> PhaseProgress:
        """Count the new files, and return the totals."""
        for path in self.archive.files(self._under):
            if path not in self._seen:
                # The proof reports unreadable files.
                with suppress(StateRefused, pa.ArrowException, OSError, IndexError):
                    self._by += self._count(path)
                self._seen.add(path)
        return PhaseProgress(self.phase, self._by.total(), len(self._seen), dict(self._by))

    def _count(self, path: str) -> Counter[str]:
        if self._under == SEGMENTS:  # its rows have one queue
            with self.archive.parquet(path) as file:
                queue = file.read_row_group(0, columns=[self._column], use_threads=False).column(0)[0].as_py()
                return Counter({queue: int(file.metadata.num_rows)})
        return value_counts(rows_of(self.archive, path, [self._column], self._only).column(self._column))


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
    due = 0.0
    while True:
        try:
            # Not join(): after a signal during join, Python believes that the thread has ended.
            ended = wait([outcome], poll_seconds).done
            if held.is_lost() and not archive.stop_requested():
                archive.write(STOP_FILE, b"")
            if ended or time.monotonic() >= due:
                began = time.monotonic()
                on_event(watcher.sample())
                due = time.monotonic() + SAMPLE_PAUSE * (time.monotonic() - began)
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


def run_status(archive: Archive) -> ReplayStatus:
    """Return the phase and the counts of a run."""
    run = load_run(archive)
    checked = check_files(archive, run)
    sent = PhaseWatcher(archive, "send", run.delivery.only).sample()
    archived = PhaseWatcher(archive, "move" if run.direct else "drain").sample()
    counts = (0, 0) if run.direct else (archived.messages, archived.files)
    queues = dict.fromkeys(run.queues, 0) | archived.by if run.is_stream else archived.by
    rows = (*counts, sent.messages, queues, tuple(checked.not_adopted))
    return ReplayStatus(*_position(archive, run, sent.files), dict(run.pair), *rows)


def _position(archive: Archive, run: ReplayRun, chunks_sent: int) -> tuple[str, str, str, bool, bool]:
    """Return the fields of a ReplayPosition."""
    phase = _phase(archive, run, chunks_sent)
    return run.id, run.options.mode.value, phase, archive.stops_for_good(), run.digests


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


def run_summary(archive: Archive) -> ReplaySummary:
    """Return a run's phase without its counts."""
    run = load_run(archive)
    check_files(archive, run)
    return ReplaySummary(*_position(archive, run, len(archive.files(LEDGER))), run.started_ms)


def request_stop(archive: Archive) -> bool:
    """Request a stop: the run's tasks finish the messages they hold. Return False for a run that has finished."""
    if _phase(archive, load_run(archive), 0) in FINISHED:
        return False
    archive.write(STOP_FILE, b"")
    return True


class ReplayState:
    """The state of a replay, reduced from its events. `whole` and `done` are messages by phase, as counted."""

    def __init__(self) -> None:
        self.run = self.phase = ""
        self.request: Requested | None = None
        self.whole: dict[str, dict[str, int]] = {}
        self.done: dict[str, PhaseProgress] = {}

    def take(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case ReplayPhase(name, _text, run):
                self.phase, self.run = self.phase if name == "stop" else name, run or self.run
            case Expected():
                self.whole[event.phase] = event.by
            case PhaseProgress():
                self.done[event.phase] = event
            case RunPausing() | RunPaused() | RunResumed() | RunCancelled():
                self.request = event


class ReplayTimeline:
    """Samples the progress that the driver reports, and passes each event on.

    The record of the run always has its archive, and about how many messages are unsent: a kill leaves the last number.
    """

    def __init__(self, entry: RunEntry, on_event: OnEvent, archive: str) -> None:
        self._entry, self._on_event = entry, on_event
        self._state = ReplayState()
        earlier = entry.earlier
        self._known: dict[str, Any] = {name: earlier[name] for name in COUNTS if name in earlier} | {"archive": archive}
        if "unsent" in earlier:
            self._known["unsent"] = left_unsent(earlier)
        entry.record(self._known)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._state.take(event)
        if isinstance(event, PhaseProgress):
            self._sample()
            self._record(event)
        self._on_event(event)

    def _record(self, event: PhaseProgress) -> None:
        known, name = self._known, "archived" if event.phase == "drain" else "acknowledged"
        if event.messages == known.get(name):
            return
        known |= {name: event.messages, "counted_ms": now_ms()}
        planned = self._state.whole.get("send")
        whole = {"drain": event.messages, "send": planned and sum(planned.values())}.get(event.phase)
        if whole is not None:
            known["unsent"] = max(0, whole - known.get("acknowledged", 0))
        self._entry.record(known)

    def end(self) -> None:
        """Write the last figures, if there are any."""
        if self._state.done:
            self._sample(last=True)

    def _sample(self, *, last: bool = False) -> None:
        done = self._state.done
        counts = {"received" if phase == "drain" else "sent": each.messages for phase, each in done.items()}
        self._entry.sample(Figures(counts, done["send"].by if "send" in done else {}), last=last)


def run_settings(run: ReplayRun) -> dict[str, object]:
    """Return the options of a replay, without secrets."""
    options = run.options
    return {
        "mode": options.mode.value,
        "order": "session" if options.ordered else "none",
        "ttl": options.ttl.value,
        "dedup": options.dedup.value,
        "rate": options.rate,
        "allow_missing": options.allow_missing,
        "max_discard": "all" if options.max_discard is None else options.max_discard,
        "queues": len(run.queues),
        "shards": run.shards,
        "destinations": ", ".join(options.selection.destinations) or None,
        "where": options.selection.where,
        **({"to": options.delivery.to} if options.delivery.to else {}),
        **({"map": ", ".join(options.delivery.map)} if options.delivery.map else {}),
    }


class Pauses:
    """Those of one run. Without `obeying` there are none."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._wanted = self._confirmed = Wanted.RUNNING
        self._working = self._interrupted = False
        self._changed = threading.Condition()
        self._ended = threading.Event()

    @contextmanager
    def obeying(self, opening: Callable[[], AbstractContextManager[RunControl]], on_event: OnEvent) -> Iterator[None]:
        """Follow requests within the block, in a thread: the driver may wait for Spark."""
        context = copy_context()  # the invocation, whose options are in the commands that are printed
        arguments = (self._run, opening, on_event)
        thread = threading.Thread(target=context.run, args=arguments, name="obey requests", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(JOIN_SECONDS)

    @contextmanager
    def tasks(self, held: HeldLease, on_event: OnEvent) -> Iterator[None]:
        """Run tasks within the block, after the end of a pause. Raises LeaseLost."""
        with self._changed:
            try:
                while self._wanted is Wanted.PAUSED and not self._archive.stops_for_good():
                    held.check()
                    self._changed.wait(WAIT_SECONDS)
            except KeyboardInterrupt:
                self._archive.write(STOP_FILE, b"")
                on_event(ReplayPhase("stop", "stopping; a second signal ends at once"))
            self._working, self._interrupted = True, False
        try:
            yield
        finally:
            with self._changed:
                self._working = False

    @property
    def interrupted(self) -> bool:
        """Whether a pause has ended the tasks of the last block, which start again unless the run stops."""
        return self._interrupted and not self._archive.stops_for_good()

    def _run(self, opening: Callable[[], AbstractContextManager[RunControl]], on_event: OnEvent) -> None:
        failed = False
        try:
            with opening() as control:
                while not self._ended.wait(POLL_SECONDS):
                    try:
                        self._step(control, on_event)
                    except SbpairError as error:
                        if not failed:
                            log.warning("run %s does not know of requests: %s", self._archive.run, error.message)
                        failed = True
        except SbpairError as error:
            log.warning("run %s cannot be paused: %s", self._archive.run, error.message)

    def _step(self, control: RunControl, on_event: OnEvent) -> None:
        wanted, run = control.wanted(), self._archive.run
        with self._changed:
            if wanted is not self._wanted:
                self._change(wanted)
                self._wanted = wanted
                self._changed.notify_all()
                on_event(REQUESTED[wanted](run))
            if wanted is Wanted.PAUSED and self._working and not self._archive.stop_requested():
                self._archive.write(STOP_FILE, PAUSE)
                self._interrupted = True
            quiet = wanted is Wanted.RUNNING or not self._working
        if wanted is not self._confirmed and quiet and wanted is not Wanted.CANCELLED:
            control.confirm(wanted)
            self._confirmed = wanted
            if wanted is Wanted.PAUSED:
                on_event(RunPaused(run))

    def _change(self, wanted: Wanted) -> None:
        if wanted is Wanted.CANCELLED:
            self._archive.write(STOP_FILE, b"")
        elif wanted is Wanted.RUNNING and self._archive.pause_requested():
            self._archive.remove(STOP_FILE)
