"""A run from its first phase to its last: check, drain, plan, send, verify; or in a direct run, move.

Finished phases are not repeated. Invariant: the driver decides and waits, and counts by the archive. One mover of a
pair runs at a time: the lease is held from before the first message is received until the last is settled. Nothing is
sent by an earlier plan, or while the primary lacks a destination or its topics would discard messages, unless that is
allowed. A topic keeps no message that none of its subscriptions takes, and the service reports no error: so those are
counted before the first message of an archive is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from sbpair.azure.atom import open_atom
from sbpair.azure.destinations import open_destinations
from sbpair.errors import EntityMissing, ExitCode, MachineLacks, SbpairError, Unsafe, UsageError, WouldDiscard
from sbpair.move.events import MessagesLocked
from sbpair.move.message import dead_letters
from sbpair.move.peek.locked import ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS
from sbpair.move.raw_primary import RawPrimary
from sbpair.replay.archive import (
    ACCEPTED_FILE,
    DRAINED_FILE,
    RECEIPT_FILE,
    REMOVED_FILE,
    REPORT,
    RUN_FILE,
    SEGMENTS,
    STOP_FILE,
    Archive,
)
from sbpair.replay.outcomes import Proof
from sbpair.replay.progress import (
    Expected,
    LocksFound,
    OnEvent,
    Pauses,
    PhaseWatcher,
    ReplayPhase,
    ReplayTimeline,
    run_action,
    run_settings,
)
from sbpair.replay.queue_task import (
    SHORT_WAITS,
    DirectMove,
    QueueDrain,
    QueueTask,
    Remaining,
    count_remaining,
    retry,
    run_queues,
    task_queues,
)
from sbpair.replay.run_description import (
    LATE_SECONDS,
    ReplayMode,
    ReplayOptions,
    ReplayRequest,
    ReplayRun,
    Selection,
    TaskJob,
    load_run,
    open_primary,
    save_run,
)
from sbpair.replay.send_task import TaskCounts, count_discards, mark_deduplicated, run_tasks, send_shards
from sbpair.replay.shard_plan import ShardPlan, build_plan, check_selection
from sbpair.replay.spark import (
    PLATFORM,
    connect_session,
    count_task_slots,
    resumable,
    server_name,
    spark_errors,
    spark_message,
    spark_session,
    stopping,
)
from sbpair.replay.task_lease import HeldLease, hold_leases
from sbpair.replay.verify import check_acknowledged, check_segments, messages_removed, read_drained, verify
from sbpair.runs.control import RunControl
from sbpair.runs.database import RunDatabase, identity, state_if_any
from sbpair.runs.journal import accepted_keys
from sbpair.runs.run_log import MOVED, RunEntry, new_id
from sbpair.syphon.run_store import ends_settings
from sbpair.timespan import TICKS_PER_SECOND, ticks

Task: TypeAlias = Callable[[Iterator[Any]], Iterable[Mapping[str, Any]]]

log = logging.getLogger(__name__)

SHARDS_PER_TASK = 2  # more shards than tasks, so that a large shard delays the end less
MAX_LOCKED = 10_000  # locked messages of a queue counted before a wait: a long queue takes long to peek

SAFE = "everything is safe in the archive"
CONNECTORS = {"s3": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}  # Hadoop's packages


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


def start_run(request: ReplayRequest, options: ReplayOptions, queues: list[str], on_event: OnEvent) -> ReplayResult:
    """Start a run. Usage and safety errors are raised before anything is received."""
    request.check()
    options.check(queues)
    started_ms = int(time.time() * 1000)
    run_id = new_id(started_ms)
    archive = Archive(request.archive, run_id)
    count = len(queues) if options.mode is ReplayMode.DIRECT else request.parallelism * SHARDS_PER_TASK
    run = ReplayRun(run_id, identity(request.pair), tuple(queues), count, started_ms, options)
    held: HeldLease | None = None
    try:
        with _leases(request, archive) as held:
            archive.create()
            archive.check_writable()
            save_run(archive, run)
            return Driver(request, archive, run, held, on_event).record("replay run")
    except SbpairError:
        if held is not None and not held.used:  # no heartbeat is written any more
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
        return Driver(request, archive, run, held, on_event).record("replay resume")


def _leases(request: ReplayRequest, archive: Archive) -> AbstractContextManager[HeldLease]:
    directory = request.state if request.lease else None
    detached = request.remote is not None
    return hold_leases(
        request.pair, archive.run, archive, directory=directory, queue=request.lease_queue, detached=detached
    )


class Driver:
    """The driver's side of a run, under its leases.

    `_clocks_ahead_ms` is how far the service's clock is ahead, as tasks found. `_notes` say why messages were not sent,
    or may be discarded.
    """

    _spark: Any  # the session, once it is open

    def __init__(
        self, request: ReplayRequest, archive: Archive, run: ReplayRun, held: HeldLease, on_event: OnEvent
    ) -> None:
        self._request, self._archive, self._run, self._held, self._on_event = request, archive, run, held, on_event
        self._job = TaskJob(run, request.archive, *request.access(), request.parallelism, held.heartbeat)
        self._pauses = Pauses(archive)
        self._clocks_ahead_ms: list[int] = []
        self._notes: list[str] = []
        self._began = time.monotonic()

    def record(self, command: str) -> ReplayResult:
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
                return self.act()
            self._on_event = timeline = ReplayTimeline(entry, self._on_event)
            stack.enter_context(self._pauses.obeying(self._control, timeline))
            try:
                try:
                    result = self.act()
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

    def act(self) -> ReplayResult:
        """Do the phases that remain, and prove the run."""
        request, archive, run = self._request, self._archive, self._run
        save_journal(request, archive)
        self._on_event(ReplayPhase("check", f"run {run.id}: checking the archive", run.id))
        before = verify(archive, run)
        if not run.direct:  # whose ledger is not synced
            check_acknowledged(archive, before)
        if archive.exists(DRAINED_FILE) and (before.balanced or run.direct) and not before.remaining_in_queues:
            self._begin("verify", "everything was sent before; nothing remains to do")
            return self._prove()
        invalidate_receipt(archive)
        self._check_selected_destinations()
        with self._open_spark() as self._spark:
            check_selection(self._spark, run.options.selection)
            if request.shared_archive:
                check_executors(self._spark, self._job)
            if not (archive.is_local or run.direct):
                check_spark_reads(self._spark, archive)
            with resumable(archive):
                # At most one sender per shard and core.
                slots = request.local_tasks or count_task_slots(self._spark)
                self._job = replace(self._job, senders=min(run.shards, slots))
                released = self._move() if run.direct else self._drain()
                if not run.direct:
                    self._send()
                self._begin("verify", "counting the messages in the archive")
                with nullcontext() if request.master == PLATFORM else stopping(self._spark):
                    return self._prove(released)

    def _begin(self, phase: str, text: str) -> None:
        self._on_event(ReplayPhase(phase, text))

    def _open_spark(self) -> AbstractContextManager[Any]:
        request = self._request
        settings = {"spark.sql.shuffle.partitions": str(self._run.shards), **request.settings}
        options: Any = {"verbose": request.verbose, "package": request.package}
        if request.remote is not None:
            self._begin("spark", f"connecting to Spark at {server_name(request.remote)}")
            return connect_session(request.remote, settings, **options)
        self._begin("spark", f"starting Spark on {request.master}, which takes about ten seconds")
        return spark_session(request.master, settings, **options)

    def _prove(self, released: int = 0) -> ReplayResult:
        archive, proof = self._archive, verify(self._archive, self._run)
        seconds = time.monotonic() - self._began
        result = ReplayResult(self._run, proof, seconds, archive.stop_requested(), released, tuple(self._notes))
        archive.write_json(RECEIPT_FILE, result.document())
        return result

    def _check_selected_destinations(self) -> None:
        """Raise EntityMissing for a missing --destination, before anything is received."""
        options = self._run.options
        if (named := options.selection.destinations) and not options.allow_missing:
            self._begin("check", f"checking {_destinations(named)} in the primary")
            check_destinations(self._job, [*named], "nothing was received", "run it again, or correct --destination")

    def _drain(self) -> int:
        """Drain the queues into the archive, unless an earlier attempt has. Return how many messages were released."""
        if (drained := read_drained(self._archive)) is not None and not drained.remaining:
            return 0
        text = f"draining {len(self._run.queues)} backlog queues into {self._archive.root}"
        return self._empty_queues("drain", text, QueueDrain)

    def _move(self) -> int:
        """Move the queues of a direct run to the primary, without a plan. Return how many messages were released."""
        text = f"moving {len(self._run.queues)} backlog queues to {self._job.primary.bare.name}"
        return self._empty_queues("move", text, DirectMove)

    def _send(self) -> None:
        """Plan and send the archive, unless a stop is requested, then mark duplicates of accepted messages."""
        if self._archive.stop_requested() or not self._archive.files(SEGMENTS):
            return
        plan = self._plan()
        if self._archive.stops_for_good():
            return
        self._on_event(Expected("send", plan.count_to_send()))
        self._begin("send", f"sending to {_destinations(plan.destinations)} of {self._job.primary.bare.name}")
        watcher = PhaseWatcher(self._archive, "send")
        self._run_tasks(watcher, plan.send_rows(), partial(send_shards, self._job))
        if plan.has_duplicates():
            self._run_tasks(watcher, plan.duplicate_rows(), partial(mark_deduplicated, self._job))

    def _run_tasks(self, watcher: PhaseWatcher, rows: Any, task: Task) -> list[TaskCounts]:
        """Return the counts of the tasks, and report their notes."""
        found = [TaskCounts(**each) for each in self._collect(watcher, rows, task)]
        self._clocks_ahead_ms.extend(row.clock_ahead_ms for row in found if row.clock_ahead_ms is not None)
        for note in dict.fromkeys(line for row in found if row.note for line in row.note.splitlines()):
            self._note(watcher.phase, note)
        return found

    def _note(self, phase: str, text: str) -> None:
        self._notes.append(text)
        self._begin(phase, text)

    def _collect(self, watcher: PhaseWatcher, rows: Any, task: Task) -> list[dict[str, Any]]:
        """Return the results of tasks. Those that a pause has ended run again."""
        while True:
            with self._pauses.tasks(self._held, self._on_event):
                act = partial(run_tasks, rows, task)
                found: list[dict[str, Any]] = run_action(watcher, act, self._held, self._on_event)
            if not self._pauses.interrupted:
                return found

    def _empty_queues(self, phase: str, text: str, kind: type[QueueTask]) -> int:
        """Run tasks with short waits, then with long ones while messages are locked. Then write the drain's counts."""
        self._begin(phase, text)
        watcher = PhaseWatcher(self._archive, phase)
        self._on_event(Expected(phase, asyncio.run(self._expected_counts(watcher.sample().by))))
        waits: list[float] | None = None
        released, total = self._run_queues(watcher, self._job.with_waits(*SHORT_WAITS), kind), 0
        while not self._archive.stop_requested() and (active := _locked(self._remaining(MAX_LOCKED))):
            # A direct run releases messages of unavailable destinations: it tries those once more.
            locked = active - released
            if waits is None:
                waits, overdue = asyncio.run(self._lock_waits(locked)) if locked else [0.0], False
            elif not (waits and locked):
                break
            else:
                overdue = True
            seconds = waits.pop(0)
            if locked:
                self._report_locked(locked, seconds, overdue=overdue)
                if not self._request.wait_for_locks:
                    break
            total += released.total()
            released = self._run_queues(watcher, self._job.with_waits(seconds + LATE_SECONDS), kind)
        if not self._archive.stop_requested():
            self._write_counts(released)
        return total + released.total()

    def _run_queues(self, watcher: PhaseWatcher, job: TaskJob, kind: type[QueueTask]) -> Counter[str]:
        """Run a task for each queue, and return how many messages they released, by queue."""
        tasks, released = len(task_queues(job)), Counter[str]()
        self._held.used = True
        for row in self._run_tasks(watcher, self._spark.range(0, tasks, 1, tasks), partial(run_queues, job, kind)):
            released[row.queue] += row.released
        return released

    def _remaining(self, max_locked: int | None = None) -> dict[str, Remaining]:
        ahead_ms = max(self._clocks_ahead_ms, default=None)
        return asyncio.run(count_remaining(self._job, clock_ahead_ms=ahead_ms, max_locked=max_locked))

    def _write_counts(self, released: Counter[str]) -> None:
        remaining = self._remaining()
        counts = {
            "messages": check_segments(self._archive),
            "remaining_in_queues": {queue: left.messages for queue, left in remaining.items()},
            "locked": (_locked(remaining) - released).total(),
        }
        self._archive.write_json(DRAINED_FILE, {"at_ms": int(time.time() * 1000), **counts})

    async def _lock_waits(self, queues: Iterable[str]) -> list[float]:
        """Return how long to wait for locks, in turns: their duration, or without Manage what it may be."""
        try:
            async with open_atom(self._request.pair.secondary) as control:
                found = [await control.get(dead_letters.parent_path(queue)) for queue in queues]
            return [max(ticks(each.spec.lock_duration) for each in found) / TICKS_PER_SECOND]
        except SbpairError as error:
            log.info("the lock duration is not known: %s", error.message)
        return [ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS]

    def _report_locked(self, locked: Mapping[str, int], seconds: float, *, overdue: bool) -> None:
        until_ms = int(1000 * (time.time() + seconds))
        waits = self._request.wait_for_locks
        found = (MessagesLocked(queue, count, until_ms, waits, overdue) for queue, count in locked.items())
        self._on_event(LocksFound(tuple(found)))

    async def _expected_counts(self, before: dict[str, int]) -> dict[str, int]:
        """Return each queue's messages now plus those it gave before, as far as Manage allows to count them."""
        found = {}
        with suppress(SbpairError):  # only the display of progress needs them
            async with open_atom(self._request.pair.secondary) as control:
                for queue in self._run.queues:
                    counts = await control.counts(dead_letters.parent_path(queue))
                    present = counts.dead_letter if dead_letters.is_dead_letter_path(queue) else counts.active
                    found[queue] = before.get(queue, 0) + present
        return found

    def _plan(self) -> ShardPlan:
        """Build the plan. Raises EntityMissing for a missing destination, unless missing ones are allowed."""
        self._begin("plan", "planning: copies, expiry and destinations")
        plan = build_plan(self._spark, self._run, self._archive)
        if not self._run.options.allow_missing:
            self._begin("plan", f"checking {_destinations(plan.destinations)} in the primary")
            then = f"run sbpair replay resume {self._run.id}"
            check_destinations(self._job, plan.destinations, SAFE, then)
        self._check_topics(plan)
        return plan

    def _check_topics(self, plan: ShardPlan) -> None:
        """Raise WouldDiscard if the topics would discard more messages than permitted."""
        limit = self._run.options.max_discard
        if limit is None:
            return
        topics, unchecked = asyncio.run(find_selective_topics(self._job, plan.destinations))
        if unchecked:
            self._note("plan", f"subscriptions of topics were not checked: {unchecked}")
        if topics:
            self._begin("plan", f"evaluating the rules of {', '.join(topics)}")
            count = partial(count_discards, self._job, topics)
            found = self._collect(PhaseWatcher(self._archive, "send"), plan.send_rows(), count)
            for text in check_discards(self._job, found):
                self._note("plan", text)


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
            archive.write_json(ACCEPTED_FILE, {"at_ms": int(time.time() * 1000), "keys": accepted_keys(state)})


def _locked(remaining: Mapping[str, Remaining]) -> Counter[str]:
    return +Counter({queue: left.locked for queue, left in remaining.items()})


def _destinations(found: Collection[str]) -> str:
    return f"{len(found)} destination{'' if len(found) == 1 else 's'}"


def check_destinations(job: TaskJob, destinations: list[str], so_far: str, then: str) -> None:
    """Open a link to each destination, without sending. Raises EntityMissing for those that the primary lacks."""
    if missing := asyncio.run(_missing_destinations(job, destinations)):
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise EntityMissing(
            f"{job.primary.bare.name} has no {some}; {so_far}",
            entity=missing[0],
            hint=f"--allow-missing quarantines their messages; or create them, then {then}",
        )


async def _missing_destinations(job: TaskJob, destinations: list[str]) -> list[str]:
    missing: list[str] = []
    async with open_primary(RawPrimary, job.primary.endpoint()) as primary:
        for destination in destinations:
            try:
                await retry(partial(primary.ready, destination))
            except EntityMissing:
                missing.append(destination)
    return missing


def check_executors(spark: Any, job: TaskJob) -> None:
    """Raise Unsafe unless every executor can read a file of the driver's archive, and write one there.

    Raises MachineLacks if they cannot run sbpair at all.
    """
    archive = job.open()
    nonce = f"{REPORT}/probe-{uuid.uuid4()}"

    def probe(batches: Iterator[Any]) -> Iterator[dict[str, str]]:
        for _batch in batches:
            archive, path = job.open(), f"{nonce}-{uuid.uuid4()}"
            if archive.exists(nonce):
                archive.write(path, b"sbpair")
                yield {"path": path}

    archive.write(nonce, b"sbpair")
    try:
        written = [each["path"] for each in run_tasks(spark.range(0, job.tasks, 1, job.tasks), probe)]
    except spark_errors() as error:
        raise MachineLacks(
            f"the executors cannot run sbpair: {spark_message(error)}",
            hint="each needs sbpair, installed or by --package, and access to the archive; then run it again",
        ) from error
    if len(written) < job.tasks or not all(map(archive.exists, written)):
        raise Unsafe(
            f"the executors do not see the archive {job.archive} that this machine sees",
            hint="mount it at the same path on every one of them, or name a URL such as s3://bucket/backlog",
        )
    for path in (nonce, *written):
        archive.remove(path)


def check_spark_reads(spark: Any, archive: Archive) -> None:
    """Read the run's file through Spark, on an executor. Raises MachineLacks if it cannot."""
    try:
        spark.read.text(archive.spark_url(RUN_FILE)).collect()
    except spark_errors() as error:
        hint = "give Spark its connector and credentials with --conf"
        if connector := CONNECTORS.get(archive.url.partition("://")[0]):
            [(version,)] = spark.sql("SELECT reflect('org.apache.hadoop.util.VersionInfo', 'getVersion')").collect()
            jar = f"spark.jars.packages=org.apache.hadoop:{connector}:{version}"
            hint = f"give Spark the connector with --conf {jar}, and credentials with its own settings"
        raise MachineLacks(
            f"Spark cannot read the archive {archive.url}: {spark_message(error)}; nothing was received or sent",
            hint=f"{hint}; then run it again",
        ) from error


async def find_selective_topics(job: TaskJob, destinations: Sequence[str]) -> tuple[list[str], str]:
    """Return the topics that may discard messages, and why some could not be read, as without the Manage claim.

    Raises WouldDiscard for a topic without a subscription.
    """
    without, selective, unchecked = list[str](), list[str](), ""
    async with open_destinations(job.primary.endpoint()) as control:
        for destination in destinations:
            try:
                topic = (await control.get(destination)).topic
            except EntityMissing:
                continue  # quarantined
            except SbpairError as error:
                unchecked = error.message
                break
            if topic is not None and not topic.take_all:
                (selective if topic.subscriptions else without).append(destination)
    if without:
        raise WouldDiscard(
            f"{', '.join(without[:3])}: a topic without a subscription, which would discard its messages; {SAFE}",
            hint=_hint(job, "create the subscription"),
        )
    return selective, unchecked


def _hint(job: TaskJob, way: str, most: str = "--allow-discard") -> str:
    resume = f"sbpair replay resume {job.run.id}"
    return f"{way}, then run {resume}; or run {resume} {most}"


def check_discards(job: TaskJob, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the messages to be discarded, in words. Raises WouldDiscard if that is more than permitted."""
    whole, discarded, unknown = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        whole[row["topic"]] += row["messages"]
        discarded[row["topic"]] += row["discarded"]
        unknown[row["topic"]] += row["not_evaluated"]
    texts = [f"{count} of {whole[name]} for {name} match no subscription" for name, count in (+discarded).items()]
    limit, total = job.run.options.max_discard, discarded.total()
    if limit is not None and total > limit:
        way, most = "create a subscription or a rule that takes them", f"--max-discard {total}"
        raise WouldDiscard(f"{'; '.join(texts)}; {SAFE}", hint=_hint(job, way, most))
    missing = [f"whether subscriptions of {name} take {count} is not known" for name, count in (+unknown).items()]
    return texts + missing
