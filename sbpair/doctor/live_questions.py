"""What this project assumes of the service, and what the user's own namespaces do: the two side by side.

Queues are made for it under names that nothing else has, never under a backlog's prefix, and are deleted whatever
happens, a cancellation included. Nothing that was there before is touched.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar

from sbpair import backlog
from sbpair.amqp.message import Header, Properties, Sections, data_body
from sbpair.amqp.types import text_of
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED
from sbpair.azure.credentials import token_getter_for
from sbpair.azure.retry import attempt
from sbpair.azure.trial_queues import TestQueues, look, open_trials
from sbpair.doctor.check import Check, CheckNote, CheckResult, Diagnosis, bounded, failed, unknown
from sbpair.errors import AccessError, ExitCode, NameTaken, PartitionsWanted, SbpairError, Unavailable
from sbpair.model import tiers
from sbpair.model.durations import TIMESPAN_MAX
from sbpair.model.entities import PROPERTY_NAMES
from sbpair.model.queues import QueueSpec
from sbpair.model.report import Outcome, Report, ReportItem

if TYPE_CHECKING:
    from sbpair.amqp_client.client import AmqpClient
    from sbpair.model.pair import Endpoint

Result = TypeVar("Result")

QUEUES = ("description", "partitioned", "messages")
PASSING = QueueSpec("", default_message_time_to_live="P1D", auto_delete_on_idle="PT1H")
"""A queue that goes by itself where a killed run has left it, later than anything is waited for; any tier has it."""

GIGABYTES_5 = 5120
KILOBYTES = {"Basic": 256, "Standard": 256, "Premium": 1024}

IDLE_SECONDS = 600.0
IDLE_SLACK_SECONDS = 60.0
IDLE_PATIENCE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class QuestionAsked:
    """Event: a question is being put to a namespace."""

    name: str


@dataclass(frozen=True, slots=True)
class QuestionPending:
    """Event: the answer to a question needs so many seconds, if it is the assumed one."""

    name: str
    seconds: float


LiveEvent = QuestionAsked | QuestionPending | CheckResult
OnEvent = Callable[[LiveEvent], object]


def new_doctor_tag() -> str:
    """What makes the names of one run its own."""
    return uuid.uuid4().hex[:12]


def queue_names(tag: str) -> tuple[str, ...]:
    """The queues that a run makes in each namespace, and deletes."""
    return tuple(f"sbpair-doctor-{tag}-{what}" for what in QUEUES)


async def ask_live(
    endpoints: Mapping[str, Endpoint],
    tag: str,
    *,
    seconds: float,
    slow: bool = False,
    on_event: OnEvent = lambda _event: None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Diagnosis:
    """Put every question to each namespace, by side. Needs Manage, Send and Listen; `slow` adds ten minutes.

    An answer that is not the assumed one is a check that failed, with both of them. Raises nothing that is wrong with
    a namespace; a cancellation once the queues are gone.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                Questions(side, endpoint, tag, seconds, on_event, now, sleep).put(slow=slow),
                name=f"questions to {side}",
            )
            for side, endpoint in endpoints.items()
        ]
    return Report(tuple(check for task in tasks for check in task.result()))


@dataclass
class Questions:
    """Those to one namespace."""

    side: str
    endpoint: Endpoint
    tag: str
    seconds: float
    on_event: OnEvent
    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]
    checks: list[Check] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    whole: bool = False
    """Whether the namespace is partitioned as a whole, as far as it has shown that."""

    async def put(self, *, slow: bool) -> list[Check]:
        try:
            async with open_trials(self.endpoint, seconds=self.seconds) as trials:
                try:
                    tier = (await look(self.endpoint, seconds=self.seconds)).tier
                    await self._ask_management(trials, tier)
                    await self._ask_links(trials, tier, slow=slow)
                finally:
                    await surely(self._remove(trials))
        except SbpairError as error:
            what = f"{self.endpoint.name} could not be asked: {error.message}"
            self._tell(failed(self._name("asked"), what, error.hint, error.exit_code))
        return self.checks

    # Queues

    async def _make(self, trials: TestQueues, what: str, spec: QueueSpec, *, partitioned: bool = False) -> str:
        path = dict(zip(QUEUES, queue_names(self.tag), strict=True))[what]
        # Whether or not an answer comes: what was asked for is deleted, and not while it is still being made.
        if path not in self.made:
            self.made.append(path)
        await surely(self._create(trials, replace(spec, path=path), partitioned=partitioned or self.whole))
        return path

    async def _create(self, trials: TestQueues, spec: QueueSpec, *, partitioned: bool) -> None:
        if not await trials.make(spec, partitioned=partitioned):
            self.made.remove(spec.path)
            raise NameTaken(f"{spec.path} is there already in {self.endpoint.name}", hint="run it again: names differ")

    async def _remove(self, trials: TestQueues) -> None:
        for path in self.made:
            try:
                await attempt(
                    f"delete {path}",
                    lambda path=path: trials.delete(path),  # type: ignore[misc]
                    sleep=self.sleep,
                    on_event=lambda _event: None,
                )
            except SbpairError as error:
                what = f"{path} is left behind in {self.endpoint.name}: {error.message}"
                self._tell(failed(self._name("removed"), what, "delete that queue by hand", error.exit_code))

    # Questions to the management side

    async def _ask_management(self, trials: TestQueues, tier: str) -> None:
        # First, for it shows how everything else has to be made.
        await self._ask("partitioned_size", self._partitioned_size(trials, tier))
        if tier == "Basic":
            self._tell(unknown(self._name("description"), "a Basic namespace cannot hold a backlog queue"))
        else:
            await self._ask("description", self._description(trials))

    async def _description(self, trials: TestQueues) -> Check:
        spec = backlog.queue_spec("any", 0)
        found = await trials.elements(await self._make(trials, "description", spec))
        differing = [
            f"{PROPERTY_NAMES[each.name]} is {actual}"
            for each in fields(QueueSpec)
            if each.name != "path" and (actual := _element(found, each.name)) != _text(getattr(spec, each.name))
        ]
        lasting = found.get("DefaultMessageTimeToLive", ""), found.get("AutoDeleteOnIdle", "")
        self._tell(self._judged("timespan_max", TIMESPAN_MAX, " and ".join(dict.fromkeys(lasting))))
        return self._judged("description", "kept as it was sent", "; ".join(differing) or "kept as it was sent")

    async def _partitioned_size(self, trials: TestQueues, tier: str) -> Check:
        spec = replace(PASSING, max_size_in_megabytes=GIGABYTES_5)
        known = tiers.named(tier)
        found = await (self._unpartitioned if known.whole_namespace else self._partitioned)(trials, spec)
        expected = tiers.effective_megabytes(known, GIGABYTES_5, partitioned=True)
        return self._judged("partitioned_size", f"{expected} MB", f"{found.get('MaxSizeInMegabytes')} MB")

    async def _partitioned(self, trials: TestQueues, spec: QueueSpec) -> Mapping[str, str]:
        return await trials.elements(await self._make(trials, "partitioned", spec, partitioned=True))

    async def _unpartitioned(self, trials: TestQueues, spec: QueueSpec) -> Mapping[str, str]:
        """Tell what becomes of a queue that does not ask for the partitions that its namespace may have."""
        try:
            found: Mapping[str, str] = await trials.elements(await self._make(trials, "partitioned", spec))
        except PartitionsWanted:
            self.whole, made = True, _REFUSED
            found = await self._partitioned(trials, spec)
        else:
            self.whole = found.get("EnablePartitioning") == "true"
            made = "made, and partitioned" if self.whole else _AS_ASKED
        self._tell(self._judged("unpartitioned", _REFUSED if self.whole else _AS_ASKED, made))
        return found

    # Questions to the data side

    async def _ask_links(self, trials: TestQueues, tier: str, *, slow: bool) -> None:
        path = await self._make(trials, "messages", PASSING)
        async with AsyncExitStack() as stack:
            get = await stack.enter_async_context(token_getter_for(self.endpoint.credential, self.endpoint.name))
            wire = await stack.enter_async_context(connect(self.endpoint, get_token=get))
            await self._ask("message_size", self._message_size(wire, path, tier))
            await self._ask("largest_message", self._largest_message(wire, path))
            await self._ask("ping", self._ping(wire, path))
            if slow:
                await self._ask("idle_detach", self._idle_detach(wire, path), seconds=IDLE_PATIENCE_SECONDS)

    async def _message_size(self, wire: AmqpClient, path: str, tier: str) -> Check:
        said = (await wire.sender(path)).max_message_size
        return self._judged("message_size", f"{KILOBYTES.get(tier, 256) * 1024} bytes", f"{said} bytes")

    async def _largest_message(self, wire: AmqpClient, path: str) -> Check:
        sender = await wire.sender(path)
        try:
            await sender.send(message_of(sender.max_message_size or KILOBYTES["Standard"] * 1024))
        except (AccessError, Unavailable):
            raise
        except SbpairError as error:
            return self._judged("largest_message", "accepted", error.message)
        receiver = await wire.receiver(path)
        receiver.grant(1)
        await receiver.settle(await receiver.take(1, seconds=self.seconds), ACCEPTED)
        receiver.close()
        return self._judged("largest_message", "accepted", "accepted")

    async def _ping(self, wire: AmqpClient, path: str) -> Check:
        receiver, sender = await wire.receiver(path), await wire.sender(path)
        receiver.grant(2)
        ping = Properties(message_id="ping", content_type=backlog.PING_TYPE, group_id=uuid.uuid4().hex)
        header = Header(ttl=backlog.PING_TTL_MS).encode()
        await sender.send(Sections(header=header, properties=ping.encode(), body=data_body(b"")).join())
        # What comes behind it shows that the link takes messages, and that the ping is not on its way.
        await sender.send(Sections(properties=Properties(message_id="behind").encode(), body=data_body(b"")).join())
        came: list[str] = []
        while "behind" not in came:
            deliveries = await receiver.take(2, seconds=self.seconds)
            if not deliveries:
                return unknown(self._name("ping"), f"nothing at all was delivered within {self.seconds:g} s")
            await receiver.settle(deliveries, ACCEPTED)
            came += [text_of(Sections.split(each.payload).read_properties().message_id) or "" for each in deliveries]
        receiver.close()
        return self._judged("ping", "never delivered", "delivered" if "ping" in came else "never delivered")

    async def _idle_detach(self, wire: AmqpClient, path: str) -> Check:
        receiver = await wire.receiver(path)
        receiver.grant(1)
        began = self.now()
        self.on_event(QuestionPending(self._name("idle_detach"), IDLE_SECONDS))
        try:
            await receiver.take(1, seconds=IDLE_PATIENCE_SECONDS)
        except Unavailable as error:
            took = self.now() - began
            return self._idle_verdict(took, "" if receiver.detached_idle else f" ({error.message})")
        return self._judged("idle_detach", _IDLE, f"not within {IDLE_PATIENCE_SECONDS:.0f} s")

    def _idle_verdict(self, took: float, otherwise: str) -> Check:
        in_time = abs(took - IDLE_SECONDS) <= IDLE_SLACK_SECONDS
        return self._judged(
            "idle_detach", _IDLE, _IDLE if in_time and not otherwise else f"after {took:.0f} s{otherwise}"
        )

    # Answers

    async def _ask(
        self, what: str, question: Coroutine[object, object, Check], *, seconds: float | None = None
    ) -> None:
        name = self._name(what)
        self.on_event(QuestionAsked(name))
        # A question has several requests, each of which is bounded by itself.
        self._tell(await bounded(name, seconds or 4 * self.seconds, question))

    def _judged(self, what: str, assumed: str, observed: str) -> Check:
        name = self._name(what)
        if assumed == observed:
            return ReportItem(name, Outcome.OK, f"as assumed: {observed}", CheckNote("", assumed, observed))
        hint = "sbpair goes by what is assumed: report what your namespace does, and its tier"
        remark = CheckNote(hint, assumed, observed)
        return ReportItem(
            name, Outcome.FAILED, f"assumed: {assumed}; observed: {observed}", remark, ExitCode.PARTIAL_OR_FINDINGS
        )

    def _name(self, what: str) -> str:
        return f"live.{self.side}.{what}"

    def _tell(self, check: Check) -> None:
        self.checks.append(check)
        self.on_event(CheckResult(check))


_REFUSED = "refused, since the namespace is partitioned"
_AS_ASKED = "made as it was asked for"
_IDLE = f"after {IDLE_SECONDS:.0f} s, as idle"


def message_of(size: int) -> bytes:
    """An encoded message of exactly so many bytes; of 300 or more."""
    around = len(data_body(bytes(300))) - 300
    return data_body(bytes(size - around))


def _element(found: Mapping[str, str], name: str) -> str:
    """A property as the service wrote it. Where its own names differ, the element's is without Enable."""
    known = PROPERTY_NAMES[name]
    return found.get(known, found.get(known.removeprefix("Enable"), ""))


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def surely(action: Coroutine[object, object, Result]) -> Result:
    """Carry `action` through, whoever cancels meanwhile; a cancellation goes on afterwards."""
    task = asyncio.ensure_future(action)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except SbpairError:
            break
    if cancelled is not None:
        raise cancelled
    return task.result()
