"""A run from its first phase to its last: check, drain, plan, send, verify. Finished phases are not repeated.

Invariant: the driver decides and waits, and counts by the archive. One mover of a pair runs at a time: the lease is
held from before the first message is received until the last is settled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

from sbpair.errors import ExitCode, MachineLacks, SbpairError, UsageError
from sbpair.move.run_store import ends_settings
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import DRAINED_FILE, RECEIPT_FILE, REMOVED_FILE, STOP_FILE
from sbpair.replay.outcomes import Proof
from sbpair.replay.phases import Phases, check_executors, check_selected_destinations, check_spark_reads
from sbpair.replay.progress import OnEvent, Pauses, ReplayPhase, ReplayTimeline, run_settings
from sbpair.replay.queue_task import save_accepted
from sbpair.replay.run import ReplayMode, ReplayOptions, ReplayRequest, ReplayRun, Selection, load_run, save_run
from sbpair.replay.shard_plan import check_selection
from sbpair.replay.spark import (
    PLATFORM,
    connect_session,
    count_task_slots,
    resumable,
    server_name,
    spark_session,
    stopping,
)
from sbpair.replay.spark_task import TaskJob
from sbpair.replay.task_lease import HeldLease, hold_leases
from sbpair.replay.verify import check_acknowledged, check_segments, messages_removed, verify
from sbpair.runs.control import RunControl
from sbpair.runs.database import RunDatabase, identity, state_if_any
from sbpair.runs.journal import accepted_keys
from sbpair.runs.run_log import MOVED, RunEntry, new_id

log = logging.getLogger(__name__)

SHARDS_PER_TASK = 2  # more shards than tasks, so that a large shard delays the end less


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a start or resume. `stopped` is whether a stop was requested before the end.

    `released` is how many messages its tasks gave back to the backlog. `notes` are about destinations.
    """

    run: ReplayRun
    proof: Proof
    seconds: float
    stopped: bool
    released: int = 0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the proof, or of an interruption if it was stopped and nothing is wrong."""
        code = self.proof.exit_code
        return ExitCode.INTERRUPTED if self.stopped and code in MOVED else code

    def document(self) -> dict[str, Any]:
        """Return the receipt as its JSON contract."""
        receipt = {"run": self.run.id, **self.proof.document(self.run.options.mode)}
        ending = {"seconds": round(self.seconds, 3), "stopped": self.stopped, "notes": list(self.notes)}
        return {**receipt, "released": self.released, **ending}


def start_run(
    request: ReplayRequest, options: ReplayOptions, queues: list[str], shards: int | None, on_event: OnEvent
) -> ReplayResult:
    """Start a run. Usage and safety errors are raised before anything is received."""
    request.check()
    options.check(queues)
    started_ms = int(time.time() * 1000)
    run_id = new_id(started_ms)
    archive = Archive(request.archive, run_id)
    count = len(queues) if options.mode is ReplayMode.DIRECT else shards or request.parallelism * SHARDS_PER_TASK
    run = ReplayRun(run_id, identity(request.pair), tuple(queues), count, started_ms, options)
    with _leases(request, archive) as held:
        try:
            archive.create()
            archive.check_writable()
            save_run(archive, run)
            return Driver(request, archive, run, held).record("replay run", on_event)
        except SbpairError:
            if not held.used:
                with suppress(SbpairError):
                    archive.delete("")
            raise


def resume_run(
    request: ReplayRequest, run_id: str, on_event: OnEvent, selection: Selection | None = None, **options: Any
) -> ReplayResult:
    """Continue a run, however it ended, with its own selection and options, or with others."""
    request.check()
    archive = Archive(request.archive, run_id)
    run = load_run(archive, request.pair)
    if selection is not None:
        if run.direct:
            raise UsageError(
                f"run {run.id} is direct, and has no selection", hint="leave out --all, --destination and --where"
            )
        options["selection"] = selection
    run = replace(run, options=replace(run.options, **options))
    archive.check_writable()
    with _leases(request, archive) as held:
        archive.remove(STOP_FILE)
        return Driver(request, archive, run, held).record("replay resume", on_event)


def _leases(request: ReplayRequest, archive: Archive) -> AbstractContextManager[HeldLease]:
    directory = request.state if request.lease else None
    detached = request.remote is not None
    return hold_leases(
        request.pair, archive.run, archive, directory=directory, queue=request.lease_queue, detached=detached
    )


class Driver:
    """The driver's side of a run, under its leases."""

    def __init__(self, request: ReplayRequest, archive: Archive, run: ReplayRun, held: HeldLease) -> None:
        self._request, self._archive, self._run, self._held = request, archive, run, held
        self._pauses = Pauses(archive)
        self._began = time.monotonic()

    def record(self, command: str, on_event: OnEvent) -> ReplayResult:
        """Call `act`, and record it in this machine's state, for `sbpair runs`. A replay does not depend on that."""
        request, known = self._request, {"archive": self._request.archive}
        with ExitStack() as stack:
            try:
                state = stack.enter_context(RunDatabase(request.state, request.pair))
                entry = stack.enter_context(closing(RunEntry(state, command, run_id=self._run.id)))
                entry.record(known)
                entry.describe({**ends_settings(request.pair), **run_settings(self._run)})
            except (MachineLacks, BlockingIOError) as error:
                log.warning("run %s cannot be recorded: %s", self._run.id, error)
                return self.act(on_event)
            timeline = ReplayTimeline(entry, on_event)
            stack.enter_context(self._pauses.obeying(self._control, timeline))
            try:
                try:
                    result = self.act(timeline)
                finally:
                    timeline.end()  # before the end of the run is recorded, at which a report's last row is
            except SbpairError as error:
                entry.finish(None, error.exit_code, error=error.message)
                raise
            except KeyboardInterrupt:
                entry.finish(None, ExitCode.INTERRUPTED, stopped=True)
                raise
            entry.finish({**known, **result.document()}, result.exit_code, stopped=result.stopped)
            return result

    @contextmanager
    def _control(self) -> Iterator[RunControl]:
        """Open the requests to the run, in the thread that reads them."""
        with RunDatabase(self._request.state, self._request.pair) as state:
            yield RunControl(state, self._run.id)

    def act(self, on_event: OnEvent) -> ReplayResult:
        """Do the phases that remain, and prove the run."""
        request, archive, run = self._request, self._archive, self._run
        save_journal(request, archive)
        on_event(ReplayPhase("check", f"run {run.id}: checking the archive", run.id))
        check_segments(archive)
        before = verify(archive, run)
        if not run.direct:  # whose ledger is not synced
            check_acknowledged(archive, before)
        if archive.exists(DRAINED_FILE) and (before.balanced or run.direct) and not before.remaining_in_queues:
            on_event(ReplayPhase("verify", "everything was sent before; nothing remains to do"))
            return self._prove()
        invalidate_receipt(archive)
        job = TaskJob(run, request.archive, *request.access(), request.parallelism, self._held.heartbeat)
        check_selected_destinations(job, on_event)
        with self._spark(on_event) as spark:
            check_selection(spark, run.options.selection)
            if request.shared_archive:
                check_executors(spark, job)
            if not (archive.is_local or run.direct):
                check_spark_reads(spark, archive)
            # At most one sender per shard and core.
            slots = request.local_tasks or count_task_slots(spark)
            job = replace(job, senders=min(run.shards, slots))
            wait = request.wait_for_locks
            phases = Phases(spark, job, archive, request.pair, self._held, on_event, self._pauses, wait)
            with resumable(archive):
                if run.direct:
                    released = phases.move()
                else:
                    released = phases.drain()
                    phases.send()
                on_event(ReplayPhase("verify", "counting the messages in the archive"))
                with nullcontext() if request.master == PLATFORM else stopping(spark):
                    return self._prove(released, phases.notes)

    def _spark(self, on_event: OnEvent) -> AbstractContextManager[Any]:
        request = self._request
        settings = {"spark.sql.shuffle.partitions": str(self._run.shards), **request.settings}
        options: Any = {"verbose": request.verbose, "package": request.package}
        if request.remote is not None:
            on_event(ReplayPhase("spark", f"connecting to Spark at {server_name(request.remote)}"))
            return connect_session(request.remote, settings, **options)
        on_event(ReplayPhase("spark", f"starting Spark on {request.master}, which takes about ten seconds"))
        return spark_session(request.master, settings, **options)

    def _prove(self, released: int = 0, notes: Sequence[str] = ()) -> ReplayResult:
        archive, proof = self._archive, verify(self._archive, self._run)
        seconds = time.monotonic() - self._began
        result = ReplayResult(self._run, proof, seconds, archive.stop_requested(), released, tuple(notes))
        archive.write_json(RECEIPT_FILE, result.document())
        return result


def invalidate_receipt(archive: Archive) -> None:
    """Remove the previous receipt, so that `gc` refuses the run until it is verified again."""
    try:
        receipt = archive.read(RECEIPT_FILE)
    except FileNotFoundError:
        return
    archive.remove(RECEIPT_FILE)
    if archive.exists(REMOVED_FILE):  # gc is removing its messages now
        archive.write(RECEIPT_FILE, receipt)
        raise messages_removed(archive)


def save_journal(request: ReplayRequest, archive: Archive) -> None:
    """Write the keys that the syphon's journal has as accepted, for the tasks."""
    if (state := state_if_any(request.state, request.pair)) is not None:
        with state:
            save_accepted(archive, accepted_keys(state))
