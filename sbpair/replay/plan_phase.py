"""The plan phase: build the plan, and check that the primary has its destinations before anything is sent."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from sbpair.azure.credentials import token_getter
from sbpair.errors import EntityMissing
from sbpair.move.raw_primary import RawPrimary
from sbpair.replay.namespace_retry import retry
from sbpair.replay.progress import OnEvent, ReplayPhase
from sbpair.replay.shard_plan import ShardPlan, build_plan

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob


def plan_phase(spark: Any, job: TaskJob, archive: Archive, on_event: OnEvent) -> ShardPlan:
    """Build the plan. Raises EntityMissing for a missing destination, unless missing ones are allowed."""
    on_event(ReplayPhase("plan", "planning: copies, expiry and destinations"))
    plan = build_plan(spark, job.run, archive)
    if not job.run.options.allow_missing:
        on_event(ReplayPhase("plan", f"checking {len(plan.destinations)} destinations in the primary"))
        then = f"'sbpair replay resume {job.run.id}'"
        asyncio.run(_check_destinations(job, plan.destinations, "everything is safe in the archive", then))
    return plan


def check_selected_destinations(job: TaskJob, on_event: OnEvent) -> None:
    """Raise EntityMissing for a missing --destination, before anything is received."""
    named, options = job.run.options.selection.destinations, job.run.options
    if named and not options.allow_missing:
        on_event(ReplayPhase("check", f"checking {len(named)} destinations in the primary"))
        then = "run it again, or correct --destination"
        asyncio.run(_check_destinations(job, [*named], "nothing was received", then))


async def _check_destinations(job: TaskJob, destinations: list[str], so_far: str, then: str) -> None:
    """Open a link to each destination, without sending. Raises EntityMissing for those that the primary lacks."""
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
    if missing:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise EntityMissing(
            f"{job.primary.address['name']} has no {some}; {so_far}",
            entity=missing[0],
            hint=f"create them, then {then}; --allow-missing quarantines their messages",
        )
