"""Checks before anything is sent: destinations exist, lead not back, and topics discard no more than permitted."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sbpair import backlog
from sbpair.azure.destinations import open_destinations
from sbpair.errors import DestinationsMissing, EntityMissing, SbpairError, Unsafe, WouldDiscard
from sbpair.model.entities import subscription_of
from sbpair.move.raw_destination import RawDestination
from sbpair.replay.queue_task import retry
from sbpair.replay.run_description import TaskJob, open_destination

SAFE = "everything is safe in the archive"


def missing_text(job: TaskJob, missing: Sequence[str]) -> str:
    """Return which destinations do not exist, in words."""
    some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"{job.destination.bare.name} has no {some}"


def missing_error(job: TaskJob, missing: Sequence[str]) -> DestinationsMissing:
    """Return the error of an archive that has messages for missing destinations, with each way on."""
    resume = f"sbpair replay resume {job.run.id}"
    ways = [
        f"create them, then run {resume}",
        f"to send the others, run {resume} --skip-missing",
        f"to quarantine theirs for good, run {resume} --allow-missing",
    ]
    if not job.run.delivery.map:  # another --map would replace it
        ways.append(f"to send theirs elsewhere, run {resume} --map {shlex.quote(f'{missing[0]}=NAME')}")
    text = f"{missing_text(job, missing)}; {SAFE}"
    return DestinationsMissing(text, entity=missing[0], hint="; ".join(ways))


async def find_missing(job: TaskJob, destinations: Sequence[str]) -> list[str]:
    """Open a link to each destination, without sending. Return those that do not exist."""
    missing: list[str] = []
    async with open_destination(RawDestination, job.destination.endpoint()) as namespace:
        for destination in destinations:
            try:
                await retry(partial(namespace.ready, destination))
            except EntityMissing:
                missing.append(destination)
    return missing


async def find_ways_back(job: TaskJob, destinations: Sequence[str]) -> list[str]:
    """Return in words how subscriptions of topics forward to the backlog. Raises Unsafe for a destination that does."""
    found, leads_back = list[str](), partial(backlog.under_prefix, job.run.kept_out)
    async with open_destinations(job.destination.endpoint()) as control:
        for destination in destinations:
            way = [destination] if leads_back(destination) else await control.way_to(destination, leads_back)
            if way:
                found.append(f"messages for {destination} would come back to the backlog: {' -> '.join(way)}")
            if way and not any(map(subscription_of, way)):
                hint = _hint(job, "change the forwarding, or choose another entity with --map", "--destination NAME")
                raise Unsafe(f"{found[-1]}; {SAFE}", hint=hint)
    return found


async def find_selective_topics(job: TaskJob, destinations: Sequence[str]) -> tuple[list[str], str]:
    """Return the topics that may discard messages, and why some could not be read, as without the Manage claim.

    Raises WouldDiscard for a topic without a subscription.
    """
    without, selective, unchecked = list[str](), list[str](), ""
    async with open_destinations(job.destination.endpoint()) as control:
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
