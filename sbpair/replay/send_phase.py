"""The phase that sends the selected messages, and marks their duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.replay.dedup import dedup_task
from sbpair.replay.progress import Expected, OnEvent, ReplayPhase, send_watcher
from sbpair.replay.schema import PROGRESS
from sbpair.replay.send_task import send_task
from sbpair.replay.spark_action import run_action

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob
    from sbpair.replay.shard_plan import ShardPlan
    from sbpair.replay.task_lease import HeldLease


def send_phase(plan: ShardPlan, job: TaskJob, archive: Archive, held: HeldLease, on_event: OnEvent) -> None:
    """Send the plan's messages, then mark the duplicates whose first copy was accepted."""
    on_event(Expected("send", plan.count_to_send()))
    text = f"sending to {len(plan.destinations)} destinations of {job.primary.address['name']}"
    on_event(ReplayPhase("send", text))
    watcher = send_watcher(archive)
    rows = plan.send_rows().mapInArrow(send_task(job), PROGRESS)
    run_action(watcher, archive, rows.collect, held, on_event)
    if plan.has_duplicates():
        rows = plan.duplicate_rows().mapInArrow(dedup_task(job), PROGRESS)
        run_action(watcher, archive, rows.collect, held, on_event)
