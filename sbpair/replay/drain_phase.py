"""The phases that empty the backlog queues: into the archive, or in a direct run into the primary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sbpair.azure.atom import open_atom
from sbpair.errors import SbpairError
from sbpair.move.message import dead_letters
from sbpair.replay.archive_layout import DRAINED_FILE
from sbpair.replay.direct_task import direct_task
from sbpair.replay.drain_task import count_remaining, drain_task, has_remaining, task_queues
from sbpair.replay.progress import Expected, OnEvent, PhaseWatcher, ReplayPhase, drain_watcher, move_watcher
from sbpair.replay.schema import PROGRESS
from sbpair.replay.spark_action import run_action
from sbpair.replay.verify import check_segments, remaining_at_drain

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.replay.run import TaskJob
    from sbpair.replay.task_lease import HeldLease


def drain_phase(spark: Any, job: TaskJob, pair: Pair, held: HeldLease, on_event: OnEvent) -> None:
    """Drain the queues into the archive, unless an earlier attempt has."""
    archive = job.open()
    if archive.exists(DRAINED_FILE) and not remaining_at_drain(archive):
        return
    on_event(ReplayPhase("drain", f"draining {len(job.run.queues)} backlog queues into {archive.root}"))
    _empty_queues(spark, job, pair, drain_task, drain_watcher(archive), held, on_event)


def move_phase(spark: Any, job: TaskJob, pair: Pair, held: HeldLease, on_event: OnEvent) -> None:
    """Move the queues of a direct run to the primary, without a plan."""
    name = job.primary.address["name"]
    on_event(ReplayPhase("move", f"moving {len(job.run.queues)} backlog queues to {name}"))
    _empty_queues(spark, job, pair, direct_task, move_watcher(job.open()), held, on_event)


def _empty_queues(
    spark: Any,
    job: TaskJob,
    pair: Pair,
    task: Callable[[TaskJob], Any],
    watcher: PhaseWatcher,
    held: HeldLease,
    on_event: OnEvent,
) -> None:
    """Run tasks with short waits, then again with long waits if messages remain. Then write the drain's counts."""
    archive = job.open()
    before = watcher.sample()
    on_event(Expected(before.phase, asyncio.run(_expected_counts(pair, job.run.queues, before.by))))
    for each in (job.with_short_waits(), job):
        tasks = len(task_queues(each))
        held.used = True
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(task(each), PROGRESS)
        run_action(watcher, archive, rows.collect, held, on_event)
        if archive.stop_requested():
            return
        if not asyncio.run(has_remaining(job)):
            break
    remaining = asyncio.run(count_remaining(job))
    counts = {"messages": check_segments(archive), "remaining_in_queues": remaining}
    archive.write_json(DRAINED_FILE, {"at_ms": int(time.time() * 1000), **counts})


async def _expected_counts(pair: Pair, queues: Sequence[str], before: dict[str, int]) -> dict[str, int]:
    """Return each queue's messages now plus those it gave before, as far as Manage allows to count them."""
    found = {}
    with suppress(SbpairError):  # only the display of progress needs them
        async with open_atom(pair.secondary) as control:
            for queue in queues:
                counts = await control.counts(dead_letters.parent_path(queue))
                present = counts.dead_letter if dead_letters.is_dead_letter_path(queue) else counts.active
                found[queue] = before.get(queue, 0) + present
    return found
