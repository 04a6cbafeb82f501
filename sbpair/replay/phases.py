"""The phases of a run: check the archive, drain, plan and send; or in a direct run, move.

Invariant: nothing is sent by an earlier plan, or while the primary lacks a destination or its topics would discard
messages, unless that is allowed. A topic keeps no message that none of its subscriptions takes, and the service reports
no error: so those are counted before the first message of an archive is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from sbpair.azure.atom import open_atom
from sbpair.azure.destinations import open_destinations
from sbpair.errors import EntityMissing, MachineLacks, SbpairError, Unsafe, WouldDiscard
from sbpair.move.events import MessagesLocked
from sbpair.move.message import dead_letters
from sbpair.move.message.route import Send, router
from sbpair.move.peek.locked import ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.topic_guard import takes
from sbpair.replay.archive_layout import DRAINED_FILE, REPORT, RUN_FILE, SEGMENTS
from sbpair.replay.ledger import Ledger
from sbpair.replay.progress import Expected, LocksFound, OnEvent, PhaseWatcher, ReplayPhase, run_action
from sbpair.replay.queue_task import DirectMove, QueueDrain, count_remaining
from sbpair.replay.run import LATE_SECONDS
from sbpair.replay.send_task import CHUNK_BYTES, MAX_CHUNK, ShardReader, mark_deduplicated, send_shards
from sbpair.replay.shard_plan import ShardPlan, build_plan
from sbpair.replay.spark import spark_errors, spark_message, translate_failure
from sbpair.replay.spark_task import (
    SHORT_WAITS,
    TaskCounts,
    open_primary,
    retry,
    run_in_worker,
    run_queues,
    run_tasks,
    task_queues,
)
from sbpair.replay.verify import check_segments, read_drained
from sbpair.timespan import TICKS_PER_SECOND, ticks

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.move.interface import Sendable
    from sbpair.replay.archive import Archive
    from sbpair.replay.progress import Pauses
    from sbpair.replay.queue_task import Remaining
    from sbpair.replay.spark_task import TaskJob
    from sbpair.replay.task_lease import HeldLease

    Task: TypeAlias = Callable[[Iterator[Any]], Iterable[Mapping[str, Any]]]
    QueueTask: TypeAlias = type[QueueDrain | DirectMove]

log = logging.getLogger(__name__)

MAX_LOCKED = 10_000  # locked messages of a queue counted before a wait: a long queue takes long to peek

DISCARDS = ("topic", "messages", "discarded", "not_evaluated")
SAFE = "everything is safe in the archive"
CONNECTORS = {"s3": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}  # Hadoop's packages


@dataclass(frozen=True)
class Phases:
    """The phases of one run on Spark, under the driver's lease.

    `clocks_ahead_ms` is how far the service's clock is ahead, as tasks found. `notes` say why messages were not sent,
    or may be discarded.
    """

    spark: Any
    job: TaskJob
    archive: Archive
    pair: Pair
    held: HeldLease
    on_event: OnEvent
    pauses: Pauses
    wait_for_locks: bool = True
    clocks_ahead_ms: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def drain(self) -> int:
        """Drain the queues into the archive, unless an earlier attempt has. Return how many messages were released."""
        if (drained := read_drained(self.archive)) is not None and not drained.remaining:
            return 0
        text = f"draining {len(self.job.run.queues)} backlog queues into {self.archive.root}"
        return self._empty_queues("drain", text, QueueDrain)

    def move(self) -> int:
        """Move the queues of a direct run to the primary, without a plan. Return how many messages were released."""
        text = f"moving {len(self.job.run.queues)} backlog queues to {self.job.primary.bare.name}"
        return self._empty_queues("move", text, DirectMove)

    def send(self) -> None:
        """Plan and send the archive, unless a stop is requested, then mark duplicates of what was accepted."""
        if self.archive.stop_requested() or not self.archive.files(SEGMENTS):
            return
        try:
            plan = self._plan()
            if self.archive.stops_for_good():
                return
            self.on_event(Expected("send", plan.count_to_send()))
            name = self.job.primary.bare.name
            self.on_event(ReplayPhase("send", f"sending to {_destinations(plan.destinations)} of {name}"))
            watcher = PhaseWatcher(self.archive, "send")
            self._run(watcher, plan.send_rows(), partial(send_shards, self.job))
            if plan.has_duplicates():
                self._run(watcher, plan.duplicate_rows(), partial(mark_deduplicated, self.job))
        except spark_errors() as error:
            raise translate_failure(error, self.archive) from error

    def _run(self, watcher: PhaseWatcher, rows: Any, task: Task) -> list[TaskCounts]:
        """Return the counts of the tasks, and report their notes."""
        found = [TaskCounts(**each) for each in self._collect(watcher, rows, task)]
        self.clocks_ahead_ms.extend(row.clock_ahead_ms for row in found if row.clock_ahead_ms is not None)
        for note in dict.fromkeys(line for row in found if row.note for line in row.note.splitlines()):
            self._note(watcher.phase, note)
        return found

    def _note(self, phase: str, text: str) -> None:
        self.notes.append(text)
        self.on_event(ReplayPhase(phase, text))

    def _collect(self, watcher: PhaseWatcher, rows: Any, task: Task) -> list[dict[str, Any]]:
        """Return what tasks yield. Those that a pause has ended run again."""
        while True:
            with self.pauses.tasks(self.held, self.on_event):
                found: list[dict[str, Any]] = run_action(
                    watcher, partial(run_tasks, rows, task), self.held, self.on_event
                )
            if not self.pauses.interrupted:
                return found

    def _empty_queues(self, phase: str, text: str, kind: QueueTask) -> int:
        """Run tasks with short waits, then with long ones while messages are locked. Then write the drain's counts."""
        self.on_event(ReplayPhase(phase, text))
        watcher = PhaseWatcher(self.archive, phase)
        self.on_event(Expected(phase, asyncio.run(self._expected_counts(watcher.sample().by))))
        waits: list[float] | None = None
        released, total = self._run_queues(watcher, self.job.with_waits(*SHORT_WAITS), kind), 0
        while not self.archive.stop_requested() and (active := _locked(self._remaining(MAX_LOCKED))):
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
                if not self.wait_for_locks:
                    break
            total += released.total()
            released = self._run_queues(watcher, self.job.with_waits(seconds + LATE_SECONDS), kind)
        if not self.archive.stop_requested():
            self._write_counts(released)
        return total + released.total()

    def _run_queues(self, watcher: PhaseWatcher, job: TaskJob, kind: QueueTask) -> Counter[str]:
        """Run a task for each queue, and return how many messages they released, by queue."""
        tasks, released = len(task_queues(job)), Counter[str]()
        self.held.used = True
        for row in self._run(watcher, self.spark.range(0, tasks, 1, tasks), partial(run_queues, job, kind)):
            released[row.queue] += row.released
        return released

    def _remaining(self, max_locked: int | None = None) -> dict[str, Remaining]:
        ahead_ms = max(self.clocks_ahead_ms, default=None)
        return asyncio.run(count_remaining(self.job, clock_ahead_ms=ahead_ms, max_locked=max_locked))

    def _write_counts(self, released: Counter[str]) -> None:
        remaining = self._remaining()
        counts = {
            "messages": check_segments(self.archive),
            "remaining_in_queues": {queue: left.messages for queue, left in remaining.items()},
            "locked": (_locked(remaining) - released).total(),
        }
        self.archive.write_json(DRAINED_FILE, {"at_ms": int(time.time() * 1000), **counts})

    async def _lock_waits(self, queues: Iterable[str]) -> list[float]:
        """Return how long to wait for locks, in turns: their duration, or without Manage what it may be."""
        try:
            async with open_atom(self.pair.secondary) as control:
                found = [await control.get(dead_letters.parent_path(queue)) for queue in queues]
            return [max(ticks(each.spec.lock_duration) for each in found) / TICKS_PER_SECOND]
        except SbpairError as error:
            log.info("the lock duration is not known: %s", error.message)
        return [ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS]

    def _report_locked(self, locked: Mapping[str, int], seconds: float, *, overdue: bool) -> None:
        until_ms = int(1000 * (time.time() + seconds))
        found = (
            MessagesLocked(queue, messages, until_ms, self.wait_for_locks, overdue)
            for queue, messages in locked.items()
        )
        self.on_event(LocksFound(tuple(found)))

    async def _expected_counts(self, before: dict[str, int]) -> dict[str, int]:
        """Return each queue's messages now plus those it gave before, as far as Manage allows to count them."""
        found = {}
        with suppress(SbpairError):  # only the display of progress needs them
            async with open_atom(self.pair.secondary) as control:
                for queue in self.job.run.queues:
                    counts = await control.counts(dead_letters.parent_path(queue))
                    present = counts.dead_letter if dead_letters.is_dead_letter_path(queue) else counts.active
                    found[queue] = before.get(queue, 0) + present
        return found

    def _plan(self) -> ShardPlan:
        """Build the plan. Raises EntityMissing for a missing destination, unless missing ones are allowed."""
        self.on_event(ReplayPhase("plan", "planning: copies, expiry and destinations"))
        plan = build_plan(self.spark, self.job.run, self.archive)
        if not self.job.run.options.allow_missing:
            self.on_event(ReplayPhase("plan", f"checking {_destinations(plan.destinations)} in the primary"))
            then = f"run sbpair replay resume {self.job.run.id}"
            check_destinations(self.job, plan.destinations, SAFE, then)
        self._check_topics(plan)
        return plan

    def _check_topics(self, plan: ShardPlan) -> None:
        """Raise WouldDiscard if the topics would discard more messages than permitted."""
        limit = self.job.run.options.max_discard
        if limit is None:
            return
        topics, unchecked = asyncio.run(find_selective_topics(self.job, plan.destinations))
        if unchecked:
            self._note("plan", f"subscriptions of topics were not checked: {unchecked}")
        if topics:
            self.on_event(ReplayPhase("plan", f"evaluating the rules of {', '.join(topics)}"))
            count = partial(count_discards, self.job, topics)
            found = self._collect(PhaseWatcher(self.archive, "send"), plan.send_rows(), count)
            for text in check_discards(self.job, found):
                self._note("plan", text)


def check_selected_destinations(job: TaskJob, on_event: OnEvent) -> None:
    """Raise EntityMissing for a missing --destination, before anything is received."""
    options = job.run.options
    if (named := options.selection.destinations) and not options.allow_missing:
        on_event(ReplayPhase("check", f"checking {_destinations(named)} in the primary"))
        check_destinations(job, [*named], "nothing was received", "run it again, or correct --destination")


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
    """Raise Unsafe unless every executor can read a file of the driver's archive, and write one there."""
    archive = job.open()
    nonce = f"{REPORT}/probe-{uuid.uuid4()}"

    def probe(batches: Iterator[Any]) -> Iterator[dict[str, str]]:
        for _batch in batches:
            archive, path = job.open(), f"{nonce}-{uuid.uuid4()}"
            if archive.exists(nonce):
                archive.write(path, b"sbpair")
                yield {"path": path}

    archive.write(nonce, b"sbpair")
    written = [each["path"] for each in run_tasks(spark.range(0, job.tasks, 1, job.tasks), probe)]
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


def count_discards(job: TaskJob, topics: Sequence[str], batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Yield how many of the rows to send each topic takes and discards: counts by topic, as DISCARDS."""
    for name, found in run_in_worker(_count(job, topics, batches)).items():
        yield dict(zip(DISCARDS, (name, found.total(), found[False], found[None]), strict=True))


async def _count(job: TaskJob, topics: Sequence[str], batches: Iterator[Any]) -> dict[str, Counter[bool | None]]:
    archive, now_ms = job.open(), int(time.time() * 1000)
    reader = ShardReader(batches, archive, Ledger(archive, job.run.shards))
    route = router(job.run.options.ttl, lambda: now_ms)
    counts = {name.lower(): Counter[bool | None]() for name in topics}
    async with open_destinations(job.primary.endpoint()) as control:
        filters = {name: (await control.get(name)).topic for name in counts}
    while not reader.exhausted:
        for message in reader.read(MAX_CHUNK, CHUNK_BYTES):
            [send] = route([message.facts])
            name = send.destination.lower() if isinstance(send, Send) else ""
            topic = filters.get(name)
            if topic is not None and isinstance(send, Send):
                payload = b"".join(cast("Sendable", message).content.restore(send, now_ms)[1])
                counts[name][takes(topic, payload)] += 1
    return counts


def check_discards(job: TaskJob, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what will be discarded, in words. Raises WouldDiscard if that is more than permitted."""
    discarded, unknown, whole = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        for counts, name in zip((whole, discarded, unknown), DISCARDS[1:], strict=True):
            counts[row["topic"]] += row[name]
    texts = [f"{count} of {whole[name]} for {name} match no subscription" for name, count in (+discarded).items()]
    limit, total = job.run.options.max_discard, discarded.total()
    if limit is not None and total > limit:
        way, most = "create a subscription or a rule that takes them", f"--max-discard {total}"
        raise WouldDiscard(f"{'; '.join(texts)}; {SAFE}", hint=_hint(job, way, most))
    missing = [f"whether subscriptions of {name} take {count} is not known" for name, count in (+unknown).items()]
    return texts + missing
