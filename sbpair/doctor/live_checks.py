"""Live checks: sbpair's assumptions about the service, compared with the behaviour of the user's own namespaces.

Only queues created for a check are used, except by `backlog_receivers`. Existing entities are not changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from sbpair import backlog
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.azure.credentials import signed_in
from sbpair.doctor.assumption_checks import CHECKS
from sbpair.doctor.assumptions import ENTITIES, IN_BASIC, LOCK_SECONDS, TRIAL, AssumptionCheck, AssumptionTrial
from sbpair.doctor.backlog_receivers import HINT, NO_OTHERS, WATCH_SECONDS, observe_receivers
from sbpair.doctor.check import Check, CheckNote, Diagnosis, bounded, failed, ok, unknown
from sbpair.errors import ExitCode, PartitionsWanted, SbpairError, Unavailable, first_error
from sbpair.management.calls import Sleep
from sbpair.management.temporary_queues import TemporaryQueues, open_temporary_queues
from sbpair.model import tiers
from sbpair.model.entities import with_partitions
from sbpair.model.entity_properties import PROPERTIES_OF
from sbpair.model.pair import Endpoint, Ends
from sbpair.model.queues import QueueSpec
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.runs.file_lease import lease_holder
from sbpair.timespan import TIMESPAN_MAX

PURPOSES = ("description", "partitioned", "messages")
"""The purposes of the queues of a run without `assumptions`."""

GIGABYTES_5 = 5120
KILOBYTES = {"Basic": 256, "Standard": 256, "Premium": 1024}

IDLE_SECONDS = 600.0
IDLE_SLACK_SECONDS = 60.0
MAX_IDLE_SECONDS = 900.0
REPORT = "report your namespace's tier and behaviour: sbpair relies on this"

_REFUSED = "refused, since the namespace is partitioned"
_AS_REQUESTED = "created as requested"
_IDLE = f"after {IDLE_SECONDS:.0f} s, as idle"


def queue_names(tag: str, *, assumptions: bool = False) -> dict[str, str]:
    """Return the entities that a run creates in each namespace, by purpose. A unique tag makes their names unique."""
    purposes = dict.fromkeys((*PURPOSES, *ENTITIES)) if assumptions else PURPOSES
    return {purpose: f"sbpair-doctor-{tag}-{purpose}" for purpose in purposes}


@dataclass(frozen=True, slots=True)
class CheckBegun:
    """Event: a check of a namespace begins."""

    name: str


@dataclass(frozen=True, slots=True)
class CheckPending:
    """Event: a check needs so many seconds if the assumption holds."""

    name: str
    seconds: float


LiveEvent = CheckBegun | CheckPending | Check
OnEvent = Callable[[LiveEvent], object]


async def run_live(
    endpoints: Mapping[str, Endpoint],
    tag: str,
    *,
    seconds: float,
    slow: bool = False,
    assumptions: bool = False,
    on_event: OnEvent = lambda _event: None,
    now: Callable[[], float] = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> Diagnosis:
    """Run the live checks on each namespace, by side. Needs Manage, Send and Listen; `slow` adds ten minutes.

    With `assumptions`, also all those of `assumption_checks`, whose waits use `sleep`.
    A broken assumption is a failed check with the assumed and the observed behaviour. Errors of a namespace are
    failed checks, too. A cancellation, or an error of `on_event`, is raised once the queues are deleted.
    """
    names, primary = queue_names(tag, assumptions=assumptions), endpoints.get("primary")
    with first_error():
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    _LiveChecks(
                        side, endpoint, seconds, on_event, now, sleep, names, primary if side == "secondary" else None
                    ).run_all(slow=slow, assumptions=assumptions),
                    name=f"live checks of {side}",
                )
                for side, endpoint in endpoints.items()
            ]
    return Report(tuple(check for task in tasks for check in task.result()))


@dataclass
class _LiveChecks:
    """The live checks of one namespace."""

    side: str
    endpoint: Endpoint
    seconds: float
    on_event: OnEvent
    now: Callable[[], float]
    sleep: Sleep
    paths: Mapping[str, str]
    primary: Endpoint | None
    checks: list[Check] = field(default_factory=list)

    async def run_all(self, *, slow: bool, assumptions: bool) -> list[Check]:
        def left_behind(path: str, error: SbpairError) -> None:
            what = f"{path} remains in {self.endpoint.name}: {error.message}"
            self._record(failed(self._name("removed"), what, "delete that queue by hand", error.exit_code))

        opening = open_temporary_queues(self.endpoint, left_behind, seconds=self.seconds, sleep=self.sleep)
        try:
            async with opening as queues:
                tier = (await queues.namespace.probe()).tier
                await self._ask_management(queues, tier)
                async with signed_in(connect, self.endpoint) as client:
                    if assumptions:
                        self._record(ok(self._name("tier"), tier))
                    await self._ask_client(queues, client, tier, slow=slow)
                    if self.primary and not assumptions:
                        check = self._receivers(self.primary, queues, client)
                        await self._run("receivers", check, seconds=WATCH_SECONDS + 4 * self.seconds)
        except SbpairError as error:
            what = f"{self.endpoint.name} could not be asked: {error.message}"
            self._record(failed(self._name("asked"), what, error.hint, error.exit_code))
        return self.checks

    # Management

    async def _ask_management(self, queues: TemporaryQueues, tier: str) -> None:
        await self._run("partitioned_size", self._partitioned_size(queues, tier))
        if tier == "Basic":
            self._record(unknown(self._name("description"), "a Basic namespace cannot hold a backlog queue"))
        else:
            await self._run("description", self._description(queues))

    async def _description(self, queues: TemporaryQueues) -> Check:
        spec = backlog.queue_spec("any", 0)
        found = await queues.namespace.description(await queues.create(replace(spec, path=self.paths["description"])))
        differing = [
            f"{row.title} is {actual}"
            for row in PROPERTIES_OF[QueueSpec]
            if (actual := found.get(row.element, "")) != _text(getattr(spec, row.name))
        ]
        lasting = found.get("DefaultMessageTimeToLive", ""), found.get("AutoDeleteOnIdle", "")
        self._record(self._judged("timespan_max", TIMESPAN_MAX, " and ".join(dict.fromkeys(lasting))))
        return self._judged("description", "kept as it was sent", "; ".join(differing) or "kept as it was sent")

    async def _partitioned_size(self, queues: TemporaryQueues, tier: str) -> Check:
        spec = replace(TRIAL, path=self.paths["partitioned"], max_size_in_megabytes=GIGABYTES_5)
        known = tiers.tier_named(tier)
        if known.whole_namespace:
            found = await self._unpartitioned(queues, spec)
        else:
            found = await queues.namespace.description(await queues.create(with_partitions(spec)))
        expected = tiers.effective_megabytes(known, GIGABYTES_5, partitioned=True)
        return self._judged("partitioned_size", f"{expected} MB", f"{found.get('MaxSizeInMegabytes')} MB")

    async def _unpartitioned(self, queues: TemporaryQueues, spec: QueueSpec) -> Mapping[str, str]:
        """Check a queue without requested partitions in a Premium namespace, which may impose them."""
        try:
            found = await queues.namespace.description(await queues.create(spec, exact=True))
        except PartitionsWanted:
            partitioned, observed = True, _REFUSED
            found = await queues.namespace.description(await queues.create(with_partitions(spec)))
        else:
            partitioned = found.get("EnablePartitioning") == "true"
            observed = "created, and partitioned" if partitioned else _AS_REQUESTED
        assumed = _REFUSED if partitioned else _AS_REQUESTED
        self._record(self._judged("unpartitioned", assumed, observed))
        return found

    # Links

    async def _ask_client(self, queues: TemporaryQueues, client: AmqpClient, tier: str, *, slow: bool) -> None:
        paths = {
            purpose: await queues.create(replace(spec, path=self.paths[purpose]))
            for purpose, spec in ENTITIES.items()
            if purpose in self.paths and (tier != "Basic" or purpose in IN_BASIC)
        }
        path = paths["messages"]
        await self._run("message_size", self._message_size(client, path, tier))
        for each in CHECKS.values():
            if each.queue in paths:
                trial = AssumptionTrial(client, paths[each.queue], self.seconds, self.sleep)
                await self._run(each.name, self._assumption(each, trial), seconds=4 * self.seconds + 2 * LOCK_SECONDS)
            elif each.queue in self.paths:
                self._record(unknown(self._name(each.name), f"a Basic namespace has no {each.queue}"))
        if slow:
            await self._run("idle_detach", self._idle_detach(client, path), seconds=MAX_IDLE_SECONDS)

    async def _assumption(self, check: AssumptionCheck, trial: AssumptionTrial) -> Check:
        return self._judged(check.name, check.expected, await check.run(trial))

    async def _message_size(self, client: AmqpClient, path: str, tier: str) -> Check:
        observed = (await client.sender(path)).max_message_size
        return self._judged("message_size", f"{KILOBYTES.get(tier, 256) * 1024} bytes", f"{observed} bytes")

    async def _idle_detach(self, client: AmqpClient, path: str) -> Check:
        receiver = await client.receiver(path)
        receiver.grant(1)
        began = self.now()
        self.on_event(CheckPending(self._name("idle_detach"), IDLE_SECONDS))
        try:
            await receiver.take(1, seconds=MAX_IDLE_SECONDS)
        except Unavailable as error:
            seconds = self.now() - began
            if receiver.detached_idle and abs(seconds - IDLE_SECONDS) <= IDLE_SLACK_SECONDS:
                return self._judged("idle_detach", _IDLE, _IDLE)
            other = "" if receiver.detached_idle else f" ({error.message})"
            return self._judged("idle_detach", _IDLE, f"after {seconds:.0f} s{other}")
        return self._judged("idle_detach", _IDLE, f"not within {MAX_IDLE_SECONDS:.0f} s")

    async def _receivers(self, primary: Endpoint, queues: TemporaryQueues, client: AmqpClient) -> Check:
        ends = Ends(name="", source=self.endpoint, destination=primary)
        observed, holder = "", lease_holder(ends)
        if not holder:
            found = await queues.namespace.list_under(backlog.prefix(primary.name), counts=True)
            filled = [each.spec.path for each in found if each.counts and each.counts.active]
            observed = await observe_receivers(client, filled, self.seconds, self.sleep)
            holder = "" if observed == NO_OTHERS else lease_holder(ends)
        if holder:
            return unknown(self._name("receivers"), f"{holder} moves the backlog", "stop it, then try again")
        return self._judged("receivers", NO_OTHERS, observed, HINT)

    # Results

    async def _run(self, what: str, check: Coroutine[object, object, Check], *, seconds: float | None = None) -> None:
        name = self._name(what)
        with closing(check):  # it is not begun if `on_event` raises
            self.on_event(CheckBegun(name))
            # A check has several requests, each with its own limit.
            self._record(await bounded(name, seconds or 4 * self.seconds, check))

    def _judged(self, what: str, assumed: str, observed: str, hint: str = REPORT) -> Check:
        name = self._name(what)
        if assumed == observed:
            return ReportItem(name, Outcome.OK, f"as assumed: {observed}", CheckNote("", assumed, observed))
        note = CheckNote(hint, assumed, observed)
        return ReportItem(
            name, Outcome.FAILED, f"assumed: {assumed}; observed: {observed}", note, ExitCode.PARTIAL_OR_FINDINGS
        )

    def _name(self, what: str) -> str:
        return f"live.{self.side}.{what}"

    def _record(self, check: Check) -> None:
        self.checks.append(check)
        self.on_event(check)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
