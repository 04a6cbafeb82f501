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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeAlias

from sbpair.azure.atom import open_atom
from sbpair.errors import EntityMissing, ExitCode, MachineLacks, SbpairError, StateRefused, UsageError
from sbpair.http_tunnel import ask_time
from sbpair.model.message_state import is_dead_letter_path, parent_path
from sbpair.model.namespace_clock import ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS
from sbpair.model.pair import Endpoint
from sbpair.move.events import MessagesLocked
from sbpair.replay.archive import (
    DELIVERY_FILE,
    DRAINED_FILE,
    RECEIPT_FILE,
    SEGMENTS,
    STOP_FILE,
    Archive,
)
from sbpair.replay.cluster_checks import check_executors, check_spark_reads
from sbpair.replay.destination_checks import (
    check_discards,
    find_missing,
    find_selective_topics,
    find_ways_back,
    missing_error,
    missing_text,
)
from sbpair.replay.digests import (
    Drained,
    adopt_segments,
    read_drained,
    without_digests,
    write_report,
)
from sbpair.replay.ledger import add_accepted
from sbpair.replay.outcomes import Proof, ReplayEnd
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
    run_queues,
    task_queues,
)
from sbpair.replay.run_description import (
    LATE_SECONDS,
    ReplayMode,
    ReplayOptions,
    ReplayRequest,
    ReplayResult,
    ReplayRun,
    ReplaySelection,
    TaskJob,
    load_run,
    save_run,
)
from sbpair.replay.send_task import TaskCounts, count_discards, mark_deduplicated, run_tasks, send_shards
from sbpair.replay.shard_plan import ShardPlan, build_plan, check_selection
from sbpair.replay.spark import (
    connect_session,
    describe_jobs,
    job_name,
    resumable,
    server_name,
    spark_session,
    stopping,
)
from sbpair.replay.spark_settings import PLATFORM
from sbpair.replay.task_lease import HeldLease, hold_leases
from sbpair.replay.unfinished import find_named, find_unfinished, read_end
from sbpair.replay.verify import check_segments, invalidate_receipt, verify
from sbpair.runs.control import RunControl
from sbpair.runs.database import RunDatabase, identity, namespace_id, state_if_any
from sbpair.runs.journal import accepted_keys
from sbpair.runs.run_log import RunEntry, new_id
from sbpair.syphon.run_store import ends_settings
from sbpair.timespan import TICKS_PER_SECOND, ticks

Task: TypeAlias = Callable[[Iterator[Any]], Iterable[Mapping[str, Any]]]

log = logging.getLogger(__name__)

SHARDS_PER_TASK = 2  # more shards than tasks, so that a large shard delays the end less
MAX_LOCKED = 10_000  # locked messages of a queue counted before a wait: a long queue takes long to peek


def start_run(
    request: ReplayRequest,
    options: ReplayOptions,
    queues: list[str],
    on_event: OnEvent,
    *,
    name: str | None = None,
    beside: bool = False,
) -> ReplayResult:
    """Start a run. Usage and safety errors are raised before anything is received.

    Raises Unsafe if the archive has an unfinished run of the pair; `beside` starts another one, and names those. A run
    with that `name` goes on, or has its receipt returned if it has ended. Raises Unsafe if it has other options.
    """
    request.check()
    options = replace(options, delivery=replace(options.delivery, namespace=request.namespace))
    options.check(queues)
    started_ms, is_service_time = start_time(request.pair.secondary)
    run_id = name or new_id(started_ms)
    archive = Archive(request.archive, run_id)
    count = len(queues) if options.mode is ReplayMode.DIRECT else request.parallelism * SHARDS_PER_TASK
    digests = options.mode is ReplayMode.ARCHIVE
    pair = identity(request.pair.ends)
    run = ReplayRun(run_id, pair, tuple(queues), count, started_ms, options, is_service_time, digests)
    held: HeldLease | None = None
    try:
        with _leases(request, archive) as held:
            if name is not None and (named := find_named(archive, run, request.pair)) is not None:
                held.used = True
                return _continue(request, archive, named, held, on_event)
            unfinished = find_unfinished(request, beside=beside)
            archive.create()
            archive.check_writable()
            save_run(archive, run)
            driver = Driver(request, archive, run, held, on_event)
            for each in unfinished:
                driver.note("check", each)
            return driver.record("replay run")
    except SbpairError:
        if held is not None and not held.used:  # no heartbeat is written any more
            with suppress(SbpairError):
                found = archive.sizes("")
                if not archive.has_messages():  # another driver may use the name: what it stores meanwhile stays
                    archive.delete("", found)
        raise


def _continue(
    request: ReplayRequest, archive: Archive, run: ReplayRun, held: HeldLease, on_event: OnEvent
) -> ReplayResult:
    """Continue a run under its leases, or return the result that it has ended with."""
    driver = Driver(request, archive, run, held, on_event)
    if (ended := read_end(archive)) is not None:
        return driver.repeat(*ended)
    archive.check_writable()
    archive.remove(STOP_FILE)
    return driver.record("replay resume")


def start_time(backlog: Endpoint) -> tuple[int, bool]:
    """Return the time in ms since 1970, and whether it is that of the namespace, which stamps messages."""
    asyncio.run(ask_time(backlog))
    return backlog.clock.now_ms(), backlog.clock.known() is not None


def resume_run(
    request: ReplayRequest, run_id: str, on_event: OnEvent, selection: ReplaySelection | None = None, **options: Any
) -> ReplayResult:
    """Continue a run, however it ended, with its own selection and options, or with others.

    Another `delivery` is stored, and that of the next resume. Raises StateRefused for the namespace of another one.
    """
    request.check()
    archive = Archive(request.archive, run_id)
    run = load_run(archive, request.pair)
    stored = run.delivery
    delivery = options["delivery"] = replace(options.get("delivery", stored), namespace=request.namespace)
    if delivery.to == stored.to and delivery.namespace != stored.namespace:
        raise StateRefused(
            f"run {run.id} delivers to {stored.to} ({stored.namespace}), not to {request.destination.name}",
            hint=f"pass --to {stored.to}, or --to another namespace",
        )
    if delivery.include_acknowledged and run.direct:
        raise UsageError(
            f"run {run.id} is direct: it has no copies of messages that were accepted",
            hint="leave out --include-acknowledged",
        )
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
        if delivery != stored:
            archive.write_json(DELIVERY_FILE, asdict(delivery))
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
    or may be discarded. `_settled` are attempts at the drain that completed every message they stored.
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
        self._settled: set[str] = set()
        self._excluded = 0
        self._began = time.monotonic()

    def record(self, command: str) -> ReplayResult:
        """Call `act`, and record it in this machine's state, for `sbpair runs`. A replay does not depend on that."""
        request = self._request
        with ExitStack() as stack:
            try:
                state = stack.enter_context(RunDatabase(request.state, request.pair.ends))
                entry = stack.enter_context(closing(RunEntry(state, command, run_id=self._run.id)))
                ends = ends_settings(request.pair.ends_to(request.destination))
                entry.describe({**ends, **run_settings(self._run), "primary_is_back": request.primary_is_back})
            except (MachineLacks, BlockingIOError) as error:
                log.warning("run %s cannot be recorded: %s", self._run.id, error)
                return self.act()
            self._on_event = timeline = ReplayTimeline(entry, self._on_event, self._archive.place)
            stack.enter_context(self._pauses.obeying(self._control, timeline))
            try:
                try:
                    result = self.act()
                finally:
                    timeline.end()  # before the end of the run is recorded, at which a report's last row is
            except SbpairError as error:
                # A run that is refused at its start leaves no archive.
                is_refused = command == "replay run" and not self._held.used
                entry.finish({} if is_refused else None, error.exit_code, error=error.message)
                raise
            except KeyboardInterrupt:
                entry.finish(None, ExitCode.INTERRUPTED, stopped=True)
                raise
            receipt = {"archive": self._archive.place, **result.document()}
            entry.finish(receipt, result.exit_code, stopped=result.end.stopped)
            return result

    @contextmanager
    def _control(self) -> Iterator[RunControl]:
        """Open the requests to the run, in the thread that reads them."""
        with RunDatabase(self._request.state, self._request.pair.ends) as state:
            yield RunControl(state, self._run.id)

    def repeat(self, proof: Proof, end: ReplayEnd) -> ReplayResult:
        """Return the result of a run that has ended, and the queues that have messages again."""
        self._on_event(ReplayPhase("verify", f"run {self._run.id} has finished before: nothing is moved", self._run.id))
        later = _locked(asyncio.run(count_remaining(self._job, newer=True, max_locked=1)))
        return ReplayResult(self._run, proof, end, tuple(later))

    def act(self) -> ReplayResult:
        """Do the phases that remain, and prove the run."""
        request, archive, run = self._request, self._archive, self._run
        asyncio.run(ask_time(request.pair.secondary))
        save_journal(request, archive)
        self._on_event(ReplayPhase("check", f"run {run.id}: checking the archive", run.id))
        if not (run.digests or run.direct):
            self._begin("check", without_digests(run.id))
        self._adopt("check")
        before = verify(archive, run)
        if not run.direct:
            self._note_acceptances(before)
        if archive.exists(DRAINED_FILE) and (before.balanced or run.direct) and not before.remaining_in_queues:
            self._begin("verify", "everything was sent before; nothing remains to do")
            return self._prove()
        invalidate_receipt(archive)
        self._check_selected_destinations()
        with self._open_spark() as self._spark:
            check_selection(self._spark, run.options.selection)
            # At most one sender per shard and core.
            slots = request.local_tasks or check_executors(self._spark, self._job)
            if not (archive.is_local or run.direct):
                check_spark_reads(self._spark, archive)
            with resumable(archive):
                self._job = replace(self._job, senders=min(run.shards, slots))
                released = self._move() if run.direct else self._drain()
                if not run.direct:
                    self._send()
                self._begin("verify", "counting the messages in the archive")
                with nullcontext() if request.master == PLATFORM else stopping(self._spark):
                    return self._prove(released)

    def _adopt(self, phase: str) -> None:
        """Store the digests of segments whose tasks died before that, and note each."""
        for path in adopt_segments(self._archive, self._run):
            self.note(phase, f"adopted {path}: the task that stored it died before it stored the digest")

    def _note_acceptances(self, before: Proof) -> None:
        """Note messages that the run's namespace does not get."""
        if (count := before.accepted_elsewhere) and not self._run.delivery.include_acknowledged:
            primary = self._run.pair["primary"]
            others = {*before.namespaces} - {self._run.delivery.namespace or primary}
            names = sorted(f"the lost primary {each}" if each == primary else each for each in others)
            text = f"{count} messages were accepted by {' and '.join(names)}"
            self.note("check", f"{text}; --include-acknowledged sends them, too")

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
        archive, proof = self._archive, verify(self._archive, self._run, save=True)
        seconds, excluded = time.monotonic() - self._began, min(self._excluded, proof.unsent)
        end = ReplayEnd(seconds, archive.stop_requested(), tuple(self._notes), released, excluded)
        result = ReplayResult(self._run, proof, end)
        write_report(archive, self._run, RECEIPT_FILE, result.document())
        return result

    def _check_selected_destinations(self) -> None:
        """Raise EntityMissing for a missing --destination, before anything is received."""
        options = self._run.options
        if (named := options.selection.destinations) and not (options.allow_missing or options.skip_missing):
            self._begin("check", f"checking {_destinations(named)} in {self._job.destination.bare.name}")
            now = [str(self._run.delivery.name(each)) for each in named]
            if missing := asyncio.run(find_missing(self._job, now)):
                text = f"{missing_text(self._job, missing)}; nothing was received"
                raise EntityMissing(text, entity=missing[0], hint="create them, or correct --destination; run it again")

    def _drain(self) -> int:
        """Drain the queues into the archive, unless an earlier attempt has. Return how many messages were released."""
        if (drained := read_drained(self._archive)) is not None and not drained.remaining:
            return 0
        text = f"draining {len(self._run.queues)} backlog queues into {self._archive.root}"
        return self._empty_queues("drain", text, QueueDrain)

    def _move(self) -> int:
        """Move the queues of a direct run, without a plan. Return how many messages were released."""
        text = f"moving {len(self._run.queues)} backlog queues to {self._job.destination.bare.name}"
        released = self._empty_queues("move", text, DirectMove)
        self._note_unused_names()
        return released

    def _send(self) -> None:
        """Plan and send the archive, unless a stop is requested, then mark duplicates of accepted messages."""
        if self._archive.stop_requested() or not self._archive.files(SEGMENTS):
            return
        plan = self._plan()
        if self._archive.stops_for_good():
            return
        self._on_event(Expected("send", plan.count_to_send()))
        self._begin("send", f"sending to {_destinations(plan.destinations)} of {self._job.destination.bare.name}")
        watcher = PhaseWatcher(self._archive, "send", self._run.delivery.only)
        named = job_name("send", plan.destinations)
        self._run_tasks(watcher, plan.send_rows(), partial(send_shards, self._job), named)
        if plan.has_duplicates():
            self._run_tasks(watcher, plan.duplicate_rows(), partial(mark_deduplicated, self._job), "mark duplicates")
        if not self._archive.stop_requested():
            describe_jobs(self._spark, "verify the selection")
            self._excluded = plan.count_excluded(self._archive)

    def _run_tasks(self, watcher: PhaseWatcher, rows: Any, task: Task, named: str) -> list[TaskCounts]:
        """Return the counts of the tasks, and report their notes."""
        found = [TaskCounts(**each) for each in self._collect(watcher, rows, task, named)]
        self._clocks_ahead_ms.extend(row.clock_ahead_ms for row in found if row.clock_ahead_ms is not None)
        for note in dict.fromkeys(line for row in found if row.note for line in row.note.splitlines()):
            self.note(watcher.phase, note)
        return found

    def note(self, phase: str, text: str) -> None:
        """Report a remark, which the receipt repeats."""
        self._notes.append(text)
        self._begin(phase, text)

    def _collect(self, watcher: PhaseWatcher, rows: Any, task: Task, named: str) -> list[dict[str, Any]]:
        """Return the results of tasks. Those that a pause has ended run again."""
        while True:
            with self._pauses.tasks(self._held, self._on_event):
                act = partial(run_tasks, rows, task, named)
                found: list[dict[str, Any]] = run_action(watcher, act, self._held, self._on_event)
            if not self._pauses.interrupted:
                return found

    def _empty_queues(self, phase: str, text: str, kind: type[QueueTask]) -> int:
        """Run tasks with short waits, then with long ones while messages are locked. Then write the drain's counts."""
        self._begin(phase, text)
        watcher = PhaseWatcher(self._archive, phase)
        expected = asyncio.run(self._expected_counts(watcher.sample().by))
        self._on_event(Expected(phase, expected))
        queues = task_queues(self._job, expected)
        waits: list[float] | None = None
        released, total = self._run_queues(watcher, self._job.with_waits(*SHORT_WAITS), kind, queues), 0
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
            released = self._run_queues(watcher, self._job.with_waits(seconds + LATE_SECONDS), kind, queues)
        if not self._archive.stop_requested():
            self._write_counts(released)
        return total + released.total()

    def _run_queues(
        self, watcher: PhaseWatcher, job: TaskJob, kind: type[QueueTask], queues: Sequence[str]
    ) -> Counter[str]:
        """Run a task for each of these queues, and return how many messages they released, by queue."""
        rows, released = self._spark.range(0, len(queues), 1, len(queues)), Counter[str]()
        self._held.used = True
        for row in self._run_tasks(
            watcher, rows, partial(run_queues, job, kind, queues), job_name(watcher.phase, self._run.queues)
        ):
            released[row.queue] += row.released
            for each in row.renamed:
                self._run.delivery.renames(each)
            if row.settled is not None:
                self._settled.add(row.settled)
        return released

    def _remaining(self, max_locked: int | None = None) -> dict[str, Remaining]:
        ahead_ms = max(self._clocks_ahead_ms, default=None)
        return asyncio.run(count_remaining(self._job, clock_ahead_ms=ahead_ms, max_locked=max_locked))

    def _write_counts(self, released: Counter[str]) -> None:
        remaining, before = self._remaining(), read_drained(self._archive) or Drained()
        self._adopt("drain")
        counts = {
            "messages": check_segments(self._archive, self._run).messages,
            "remaining_in_queues": {queue: left.messages for queue, left in remaining.items()},
            "locked": (_locked(remaining) - released).total(),
            "settled": sorted(before.settled | self._settled),
        }
        write_report(self._archive, self._run, DRAINED_FILE, {"at_ms": int(time.time() * 1000), **counts})

    async def _lock_waits(self, queues: Iterable[str]) -> list[float]:
        """Return how long to wait for locks, in turns: their duration, or without Manage what it may be."""
        try:
            async with open_atom(self._request.pair.secondary) as control:
                found = [await control.get(parent_path(queue)) for queue in queues]
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
        with suppress(SbpairError):  # without them progress shows no end, and all queues have equally many tasks
            async with open_atom(self._request.pair.secondary) as control:
                for queue in self._run.queues:
                    counts = await control.counts(parent_path(queue))
                    present = counts.dead_letter if is_dead_letter_path(queue) else counts.active
                    found[queue] = before.get(queue, 0) + present
        return found

    def _plan(self) -> ShardPlan:
        """Build the plan. Raises DestinationsMissing, unless missing destinations are allowed or skipped."""
        self._begin("plan", "planning: copies, expiry and destinations")
        describe_jobs(self._spark, "plan: copies, expiry and destinations")
        plan = self._build_plan(self._run)
        for row in plan.flows:
            self._run.delivery.name(row["destination"])
        self._note_unused_names()
        self._begin("plan", f"checking {_destinations(plan.destinations)} in {self._job.destination.bare.name}")
        if missing := asyncio.run(find_missing(self._job, plan.destinations)):
            plan = self._without(plan, missing)
        for way in asyncio.run(find_ways_back(self._job, plan.destinations)) if self._run.kept_out else ():
            self.note("plan", way)
        self._check_topics(plan)
        return plan

    def _build_plan(self, run: ReplayRun) -> ShardPlan:
        return build_plan(self._spark, run, self._archive, self._request.pair.secondary.clock.now_ms())

    def _without(self, plan: ShardPlan, missing: Collection[str]) -> ShardPlan:
        """Return the plan that does with messages of missing destinations as the options say. Raises without those."""
        options, text = self._run.options, missing_text(self._job, [*missing])
        if not (options.skip_missing or options.allow_missing):
            raise missing_error(self._job, [*missing])
        count = sum(number for name, number in plan.count_to_send().items() if name in missing)
        if options.skip_missing:
            self.note("plan", f"{text}: {count} messages stay unsent in the archive")
            left = replace(options.selection, missing=plan.written(missing))
            return self._build_plan(replace(self._run, options=replace(options, selection=left)))
        self.note("plan", f"{text}: {count} messages are quarantined for good; no resume sends them")
        return plan

    def _note_unused_names(self) -> None:
        if unused := self._run.delivery.renames.unused():
            self.note("plan", f"no message was for the old name of --map {', '.join(unused)}")

    def _check_topics(self, plan: ShardPlan) -> None:
        """Raise WouldDiscard if the topics would discard more messages than permitted."""
        limit = self._run.options.max_discard
        if limit is None:
            return
        topics, unchecked = asyncio.run(find_selective_topics(self._job, plan.destinations))
        if unchecked:
            self.note("plan", f"subscriptions of topics were not checked: {unchecked}")
        if topics:
            self._begin("plan", f"evaluating the rules of {', '.join(topics)}")
            count = partial(count_discards, self._job, topics)
            rules = job_name("evaluate the rules of", topics)
            found = self._collect(PhaseWatcher(self._archive, "send"), plan.send_rows(), count, rules)
            for text in check_discards(self._job, found):
                self.note("plan", text)


def save_journal(request: ReplayRequest, archive: Archive) -> None:
    """Write the keys that the syphon's journal has as accepted, for the tasks and the proof, beside earlier ones."""
    if (state := state_if_any(request.state, request.pair.ends)) is None:
        return
    primary = namespace_id(request.pair.primary)
    with state:
        batches = (
            ("" if name == primary else name, queue, [[*key] for _, _, *key in keys])
            for name, queue, keys in accepted_keys(state)
        )
        add_accepted(archive, batches)


def _locked(remaining: Mapping[str, Remaining]) -> Counter[str]:
    return +Counter({queue: left.locked for queue, left in remaining.items()})


def _destinations(found: Collection[str]) -> str:
    return f"{len(found)} destination{'' if len(found) == 1 else 's'}"
