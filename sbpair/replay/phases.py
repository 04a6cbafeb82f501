"""The phases of a run: check the archive, drain, plan and send; or in a direct run, move.

Invariant: nothing is sent by an earlier plan, or while the primary lacks a destination, unless that is allowed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import token_getter
from sbpair.errors import EntityMissing, MachineLacks, SbpairError, Unsafe
from sbpair.move.message import dead_letters
from sbpair.move.raw_primary import RawPrimary
from sbpair.replay.archive_layout import DRAINED_FILE, PROGRESS, REPORT, RUN_FILE, SEGMENTS
from sbpair.replay.direct_task import direct_task
from sbpair.replay.drain_task import count_remaining, drain_task
from sbpair.replay.progress import Expected, OnEvent, PhaseWatcher, ReplayPhase, run_action
from sbpair.replay.send_task import dedup_task, send_task
from sbpair.replay.shard_plan import ShardPlan, build_plan
from sbpair.replay.spark import spark_errors, spark_message, translate_failure
from sbpair.replay.spark_task import retry, task_queues
from sbpair.replay.verify import check_segments, remaining_at_drain

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob
    from sbpair.replay.task_lease import HeldLease

CONNECTORS = {"s3": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}  # Hadoop's packages


@dataclass(frozen=True)
class Phases:
    """The phases of one run on Spark, under the driver's lease."""

    spark: Any
    job: TaskJob
    archive: Archive
    pair: Pair
    held: HeldLease
    on_event: OnEvent

    def drain(self) -> None:
        """Drain the queues into the archive, unless an earlier attempt has."""
        if self.archive.exists(DRAINED_FILE) and not remaining_at_drain(self.archive):
            return
        text = f"draining {len(self.job.run.queues)} backlog queues into {self.archive.root}"
        self._empty_queues("drain", text, drain_task)

    def move(self) -> None:
        """Move the queues of a direct run to the primary, without a plan."""
        text = f"moving {len(self.job.run.queues)} backlog queues to {self.job.primary.bare.name}"
        self._empty_queues("move", text, direct_task)

    def send(self) -> None:
        """Plan and send the archive, unless a stop is requested, then mark duplicates of what was accepted."""
        if self.archive.stop_requested() or not self.archive.files(SEGMENTS):
            return
        try:
            plan = self._plan()
            self.on_event(Expected("send", plan.count_to_send()))
            name = self.job.primary.bare.name
            self.on_event(ReplayPhase("send", f"sending to {_destinations(plan.destinations)} of {name}"))
            watcher = PhaseWatcher(self.archive, "send")
            self._run(watcher, plan.send_rows(), send_task(self.job))
            if plan.has_duplicates():
                self._run(watcher, plan.duplicate_rows(), dedup_task(self.job))
        except spark_errors() as error:
            raise translate_failure(error, self.archive) from error

    def _run(self, watcher: PhaseWatcher, rows: Any, task: Any) -> None:
        run_action(watcher, rows.mapInArrow(task, PROGRESS).collect, self.held, self.on_event)

    def _empty_queues(self, phase: str, text: str, task: Callable[[TaskJob], Any]) -> None:
        """Run tasks with short waits, then again with long waits if messages remain. Then write the drain's counts."""
        self.on_event(ReplayPhase(phase, text))
        watcher = PhaseWatcher(self.archive, phase)
        self.on_event(Expected(phase, asyncio.run(self._expected_counts(watcher.sample().by))))
        for each in (self.job.with_short_waits(), self.job):
            tasks = len(task_queues(each))
            self.held.used = True
            self._run(watcher, self.spark.range(0, tasks, 1, tasks), task(each))
            if self.archive.stop_requested():
                return
            if not asyncio.run(count_remaining(self.job, count_all=False)):
                break
        remaining = asyncio.run(count_remaining(self.job))
        counts = {"messages": check_segments(self.archive), "remaining_in_queues": remaining}
        self.archive.write_json(DRAINED_FILE, {"at_ms": int(time.time() * 1000), **counts})

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
            check_destinations(self.job, plan.destinations, "everything is safe in the archive", then)
        return plan


def check_selected_destinations(job: TaskJob, on_event: OnEvent) -> None:
    """Raise EntityMissing for a missing --destination, before anything is received."""
    options = job.run.options
    if (named := options.selection.destinations) and not options.allow_missing:
        on_event(ReplayPhase("check", f"checking {_destinations(named)} in the primary"))
        check_destinations(job, [*named], "nothing was received", "run it again, or correct --destination")


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
    async with token_getter(job.pair()) as get_token:
        primary = RawPrimary(job.primary.endpoint(), get_token=get_token)
        try:
            for destination in destinations:
                try:
                    await retry(partial(primary.ready, destination))
                except EntityMissing:
                    missing.append(destination)
        finally:
            await primary.close()
    return missing


def check_executors(spark: Any, job: TaskJob) -> None:
    """Raise Unsafe unless every executor can read a file of the driver's archive, and write one there."""
    archive = job.open()
    nonce = f"{REPORT}/probe-{uuid.uuid4()}"

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _batch in batches:
            archive = job.open()
            try:
                archive.read(nonce)
            except FileNotFoundError:
                raise Unsafe(
                    f"an executor does not see the archive {job.archive}",
                    hint="mount it at the same path on every one of them",
                ) from None
            path = f"{nonce}-{uuid.uuid4()}"
            archive.write(path, b"sbpair")
            yield pa.RecordBatch.from_pydict({"path": [path]})

    archive.write(nonce, b"sbpair")
    rows = spark.range(0, job.tasks, 1, job.tasks).mapInArrow(task, "path string").collect()
    missing = [row.path for row in rows if not archive.exists(row.path)]
    if missing or len(rows) < job.tasks:
        raise Unsafe(
            f"the executors do not see the archive {job.archive} that this machine sees",
            hint="mount it at the same path on every one of them, or name a URL such as s3://bucket/backlog",
        )
    for path in (nonce, *(row.path for row in rows)):
        archive.remove(path)


def check_spark_reads(spark: Any, archive: Archive) -> None:
    """Read the run's file through Spark, on an executor. Raises MachineLacks if it cannot."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark.read.text(archive.spark_url(RUN_FILE)).collect()
    except (Py4JError, PySparkException) as error:
        hint = "give Spark its connector and credentials with --conf"
        if connector := CONNECTORS.get(archive.url.partition("://")[0]):
            version = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            jar = f"spark.jars.packages=org.apache.hadoop:{connector}:{version}"
            hint = f"give Spark the connector with --conf {jar}, and credentials with its own settings"
        raise MachineLacks(
            f"Spark cannot read the archive {archive.url}: {spark_message(error)}; nothing was received or sent",
            hint=f"{hint}; then run it again",
        ) from error
