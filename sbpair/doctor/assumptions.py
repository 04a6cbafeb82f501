"""The registry of assumptions about the service: its entries are in ASSUMPTIONS.md, its checks in `assumption_checks`.

Checks use temporary queues, and each uses messages that are named after it. It completes those of earlier checks.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from sbpair.amqp.link import Delivery
from sbpair.amqp.message import (
    BATCH_FORMAT,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    batch_of,
    data_body,
    encode_map,
)
from sbpair.amqp.performatives import Outcome
from sbpair.amqp.types import Symbol, Timestamp, Value, text_of
from sbpair.amqp_client.client import AmqpClient
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED, RawReceiver
from sbpair.errors import ServiceRefused
from sbpair.management.calls import Sleep
from sbpair.management.temporary_queues import IDLE
from sbpair.model.entities import Queue, Topic
from sbpair.model.queues import QueueSpec
from sbpair.move.message import envelope
from sbpair.move.message.batches import BatchKey

LOCK_SECONDS = 5.0
"""The lock of the queues, the shortest of the service."""

CREDIT = 20
KEY = "sbpair-doctor"
"""The partition key of all messages: only those of one partition have an order."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """An entry of ASSUMPTIONS.md. `doctor` is yes or no, and a limit or a reason."""

    name: str
    statement: str
    evidence: str
    source: str
    if_false: str
    doctor: str

    @property
    def in_doctor(self) -> bool:
        return self.doctor.startswith("yes")


@cache
def assumptions() -> Mapping[str, Assumption]:
    """Read the entries of ASSUMPTIONS.md, by name."""
    text = files("sbpair").joinpath("ASSUMPTIONS.md").read_text("utf-8")
    entry = r"^- \*\*(\w+)\*\*: (.+) \*(\w+)\*: (.+); \*if false\*: (.+); \*in doctor\*: (.+)$"
    return {each[0]: Assumption(*each) for each in re.findall(entry, text, flags=re.MULTILINE)}


class NotDelivered(Exception):
    """A message that a check waits for has not come. The text is the observation."""


@dataclass(frozen=True, slots=True)
class TrialMessage:
    """A message under lock, as it was delivered."""

    link: RawReceiver
    delivery: Delivery
    sections: Sections

    @property
    def count(self) -> int:
        return self.sections.read_header().delivery_count or 0

    async def settle(self, outcome: Outcome = ACCEPTED) -> bool:
        """Settle the message; return False if the service refuses that. Raises Unavailable."""
        try:
            await self.link.settle([self.delivery], outcome)
        except ServiceRefused:
            return False
        return True


@dataclass(frozen=True, slots=True)
class AssumptionTrial:
    """The means of one check: `path` is its temporary queue, `seconds` the time limit of a delivery."""

    client: AmqpClient
    path: str
    seconds: float
    sleep: Sleep
    name: str = ""
    expected: str = ""

    def message(
        self, name: str, *, session: str | None = None, ttl_ms: int | None = None, due: Timestamp | None = None
    ) -> Sections:
        """Return a message of this check, with a partition key or a session; `due` is its schedule."""
        given: dict[Symbol, Value] = {} if session else {Symbol(envelope.PARTITION_KEY): KEY}
        return Sections(
            header=Header(ttl=ttl_ms).encode() if ttl_ms else b"",
            message_annotations=encode_map(
                MESSAGE_ANNOTATIONS, given if due is None else given | {envelope.SCHEDULE: due}
            ),
            properties=Properties(message_id=f"{self.name} {name}", group_id=session).encode(),
            body=data_body(name.encode()),
        )

    async def put(self, *messages: str | Sections, path: str = "", session: str | None = None) -> None:
        """Send messages, or such of these names, and wait for the acceptance of each."""
        sender = await self.client.sender(path or self.path)
        for each in messages:
            await sender.send((self.message(each, session=session) if isinstance(each, str) else each).join())
        sender.close()

    async def put_batch(self, *names: str) -> None:
        sender = await self.client.sender(self.path)
        members = [self.message(name).join() for name in names]
        await sender.send(batch_of(members, BatchKey(None, KEY).encode()), message_format=BATCH_FORMAT)
        sender.close()

    async def peek(self, start: int = 0, path: str = "") -> list[tuple[str, Sections]]:
        """Peek from a sequence number on; return this check's messages, each with its name."""
        found = [Sections.split(each) for each in await self.client.peek(path or self.path, start, 100)]
        return [(name, each) for each in found if (name := self.own(each))]

    def own(self, sections: Sections) -> str:
        """Return the name of a message of this check, else an empty text."""
        check_name, _, name = (text_of(sections.read_properties().message_id) or "").partition(" ")
        return name if check_name == self.name else ""

    @asynccontextmanager
    async def receiving(self, path: str = "") -> AsyncIterator[RawReceiver]:
        """Open a link. At the end it is closed, and the messages taken from it and not settled stay locked."""
        link = await self.client.receiver(path or self.path)
        try:
            yield link
            await link.settle_each(await link.stop(), RELEASED)
        finally:
            link.close()

    async def take(self, link: RawReceiver, *names: str) -> list[TrialMessage]:
        """Receive until messages of these names are there; return all of this check. Raises NotDelivered."""
        found: dict[str, TrialMessage] = {}
        while missing := [name for name in names if name not in found]:
            link.grant(CREDIT)
            arrived = await link.take(CREDIT, seconds=self.seconds)
            if not arrived:
                raise NotDelivered(f"{missing[0]!r} was not delivered within {self.seconds:g} s")
            for delivery in arrived:
                received = TrialMessage(link, delivery, Sections.split(delivery.payload))
                if name := self.own(received.sections):
                    found[name] = received
                else:
                    await received.settle()
        return list(found.values())

    async def one(self, link: RawReceiver, name: str) -> TrialMessage:
        """Receive the message of this name. Raises NotDelivered."""
        return next(each for each in await self.take(link, name) if self.own(each.sections) == name)

    async def receive(self, name: str, path: str = "") -> Sections:
        """Receive and complete the message of this name. Raises NotDelivered."""
        async with self.receiving(path) as link:
            received = await self.one(link, name)
            await received.settle()
        return received.sections

    async def is_delivered(self, name: str) -> bool:
        """Return whether a message is delivered before one that is sent now. Completes both."""
        await self.put("marker")
        async with self.receiving() as link:
            taken = await self.take(link, "marker")
            for each in taken:
                await each.settle()
        return name in (self.own(each.sections) for each in taken)


Observe: TypeAlias = Callable[[AssumptionTrial], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class AssumptionCheck:
    """One check: `expected` is its observation if the assumption holds, `queue` the purpose of its queue."""

    name: str
    expected: str
    queue: str
    observe: Observe

    async def run(self, trial: AssumptionTrial) -> str:
        """Return the observation. Raises SbpairError if the namespace cannot be asked."""
        try:
            return await self.observe(replace(trial, name=self.name, expected=self.expected))
        except NotDelivered as missing:
            return str(missing)


CHECKS: dict[str, AssumptionCheck] = {}
"""The checks by name, filled by `assumption_checks`."""


def check(expected: str, queue: str = "locks", *, name: str = "") -> Callable[[Observe], Observe]:
    """Register a function as the check of the assumption of this name, by default its own."""

    def register(observe: Observe) -> Observe:
        title = name or observe.__name__
        CHECKS[title] = AssumptionCheck(title, expected, queue, observe)
        return observe

    return register


TRIAL = QueueSpec("", default_message_time_to_live="P1D", auto_delete_on_idle=IDLE)
"""A queue that every tier accepts."""

_LOCKS = Queue(
    "",
    lock_duration=f"PT{LOCK_SECONDS:.0f}S",
    default_message_time_to_live="P1D",
    auto_delete_on_idle=IDLE,
    dead_lettering_on_message_expiration=True,
)
ENTITIES: Mapping[str, QueueSpec | Queue | Topic] = {
    "messages": TRIAL,
    "locks": _LOCKS,
    "sessions": replace(_LOCKS, requires_session=True),
    "duplicates": replace(_LOCKS, requires_duplicate_detection=True),
    "topic": Topic("", default_message_time_to_live="P1D", auto_delete_on_idle=IDLE),
}
"""The temporary entities of the checks, by purpose."""

IN_BASIC = ("messages", "locks")
"""The purposes of those that a Basic namespace can hold."""
