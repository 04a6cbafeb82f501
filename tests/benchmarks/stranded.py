"""A backlog to move: messages with everything an old client left on them, put in fast, and looked for afterwards.

The law of this file: a run counts only when every message is in its destination once, restored, and none is left behind.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.amqp.codec import encode
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DATA,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
)
from sbpair.amqp.types import Int
from sbpair.backlog import Aliases, queue_path, queue_spec, write_aliases
from sbpair.bus.atom import open_queues
from sbpair.model import Endpoint, QueueSpec
from sbpair.wire.client import Wire, connect

if TYPE_CHECKING:
    from sbpair.wire.links import Sender

PRIMARY, SECONDARY = "contoso", "contoso-dr"
QUEUES = 4
DESTINATIONS, WITH_SESSIONS, SESSIONS = 8, (0, 4), 4
SCHEDULED_EVERY = 10
PERIOD = math.lcm(DESTINATIONS * SESSIONS, SCHEDULED_EVERY)
"""After so many messages they repeat, but for their ids."""

DAY_TICKS, DAY_MS, HOUR_MS = 864_000_000_000, 86_400_000, 3_600_000
BATCH, FLIGHT, PAGE = 100, 8, 500
BODY = b"x" * 1024
_NUMBER = b"000000000"


def destination(number: int) -> str:
    return f"destination-{number % DESTINATIONS}"


def session_id(number: int) -> str | None:
    return f"session-{number // DESTINATIONS % SESSIONS}" if number % DESTINATIONS in WITH_SESSIONS else None


def is_scheduled(number: int) -> bool:
    return number % SCHEDULED_EVERY == SCHEDULED_EVERY - 1


def backlog_queues() -> list[str]:
    return [queue_path(PRIMARY, index) for index in range(QUEUES)]


class Stranded:
    """`count` messages; `now_ms` is what their schedules count from."""

    def __init__(self, count: int, now_ms: int) -> None:
        self.count = count
        self._scheduled_at = now_ms + HOUR_MS
        self._templates = [self._template(number) for number in range(PERIOD)]

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return self.count * sum(map(len, self._templates)) // PERIOD

    def message(self, number: int) -> bytes:
        return self._templates[number % PERIOD].replace(_NUMBER, b"%09d" % number)

    def _template(self, number: int) -> bytes:
        scheduled_at = self._scheduled_at if is_scheduled(number) else None
        aliases = Aliases(destination(number), session_id(number), DAY_TICKS, scheduled_at)
        own = {"customer": "fabrikam", "attempt": Int(1), **write_aliases(aliases)}
        return Sections(
            properties=Properties(message_id=_NUMBER.decode(), content_type="application/octet-stream").encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, own),
            body=data_body(BODY),
        ).join()

    def batches(self) -> list[tuple[int, range]]:
        """(backlog queue, the numbers of its messages), in turns."""
        starts = range(0, self.count, BATCH)
        return [(start // BATCH % QUEUES, range(start, min(start + BATCH, self.count))) for start in starts]

    async def create(self, primary: Endpoint, secondary: Endpoint) -> None:
        """Make the queues of both sides."""
        async with open_queues(primary) as control:
            for number in range(DESTINATIONS):
                wants = session_id(number) is not None
                await control.create(QueueSpec(destination(number), max_size_in_megabytes=5120, requires_session=wants))
        async with open_queues(secondary) as control:
            for index in range(QUEUES):
                await control.create(queue_spec(PRIMARY, index))

    async def fill(self, secondary: Endpoint) -> None:
        async with connect(secondary) as wire:
            senders = [await wire.sender(queue) for queue in backlog_queues()]
            batches = self.batches()
            for start in range(0, len(batches), FLIGHT):
                chunk = batches[start : start + FLIGHT]
                await asyncio.gather(*(self._send(senders[index], numbers) for index, numbers in chunk))

    async def _send(self, sender: Sender, numbers: range) -> None:
        payload = b"".join(section(DATA, encode(self.message(number))) for number in numbers)
        await sender.send(payload, message_format=BATCH_FORMAT)

    async def check(self, primary: Endpoint, secondary: Endpoint) -> float:
        """Look at every message that has arrived; answers how many came in a second. Raises RuntimeError."""
        async with open_queues(secondary) as control:
            left = [(await control.counts(queue)).total for queue in backlog_queues()]
        if any(left):
            raise RuntimeError(f"the backlog queues still hold {left}")
        found = _Found(self.count, self._scheduled_at)
        async with connect(primary) as wire:
            for number in range(min(DESTINATIONS, self.count)):
                async for payload in _peeked(wire, destination(number)):
                    found.see(destination(number), Sections.split(payload))
        return found.rate()


@dataclass
class _Found:
    """The messages that have arrived, by their numbers, and when the first and the last of them did."""

    count: int
    scheduled_at: int

    def __post_init__(self) -> None:
        self._seen = bytearray(self.count)
        self._first, self._last = math.inf, 0

    def see(self, where: str, message: Sections) -> None:
        properties, own = message.read_properties(), message.read_application_properties()
        annotations = message.read_message_annotations()
        number = int(properties.message_id)
        scheduled = is_scheduled(number)
        found = (
            where,
            properties.group_id,
            message.read_header().ttl,
            annotations.get("x-opt-scheduled-enqueue-time"),
            sorted(map(str, own)),
            message.body,
        )
        at = self.scheduled_at if scheduled else None
        wanted = (destination(number), session_id(number), DAY_MS, at, ["attempt", "customer"], data_body(BODY))
        if found != wanted:
            raise RuntimeError(f"message {number} arrived as {found[:-1]}, not as {wanted[:-1]}")
        self._seen[number] += 1
        if not scheduled:
            at = int(annotations["x-opt-enqueued-time"])
            self._first, self._last = min(self._first, at), max(self._last, at)

    def rate(self) -> float:
        wrong = self.count - self._seen.count(1)
        if wrong:
            raise RuntimeError(f"{self._seen.count(0)} messages did not arrive, {wrong - self._seen.count(0)} did twice")
        return 1000 * self.count / max(1, self._last - self._first)


async def _peeked(wire: Wire, queue: str) -> AsyncIterator[bytes]:
    start = 0
    while payloads := await wire.peek(queue, start, PAGE):
        for payload in payloads:
            yield payload
        start = int(Sections.split(payloads[-1]).read_message_annotations()["x-opt-sequence-number"]) + 1
