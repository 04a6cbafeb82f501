"""A backlog to move: messages with all that an old client left on them, filled in fast, and checked afterwards.

Invariant: a run counts only if every message is in its destination once, restored, and none is left.
"""

import asyncio
import math
from collections.abc import AsyncIterator

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    batch_of,
    data_body,
    encode_map,
)
from sbpair.amqp.types import Int, Symbol, Timestamp, Value
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.amqp_client.raw_links import RawSender
from sbpair.azure.atom import open_atom
from sbpair.backlog import Aliases, queue_path, queue_spec, write_aliases
from sbpair.model.pair import Endpoint
from sbpair.model.queues import QueueSpec

PRIMARY, SECONDARY = "contoso", "contoso-dr"
QUEUES = 4
DESTINATIONS, WITH_SESSIONS, SESSIONS = 8, (0, 4), 4
SCHEDULED_EVERY = 10
PERIOD = math.lcm(DESTINATIONS * SESSIONS, SCHEDULED_EVERY)
"""After that many messages they repeat, except for their ids."""

SCHEDULE, ENQUEUED, SEQUENCE_NUMBER = "x-opt-scheduled-enqueue-time", "x-opt-enqueued-time", "x-opt-sequence-number"
CONTENT_TYPE = "application/octet-stream"
OWN: dict[Value, Value] = {"customer": "fabrikam", "attempt": Int(1)}
DAY_TICKS, DAY_MS, HOUR_MS = 864_000_000_000, 86_400_000, 3_600_000
BATCH, FLIGHT, PAGE = 100, 8, 500
BODY = b"x" * 1024
_NUMBER = b"000000000"


def destination(number: int) -> str:
    return f"destination-{number % DESTINATIONS}"


def session_id(number: int) -> str | None:
    return f"session-{number // DESTINATIONS % SESSIONS}" if number % DESTINATIONS in WITH_SESSIONS else None


def backlog_queues() -> list[str]:
    return [queue_path(PRIMARY, index) for index in range(QUEUES)]


class Stranded:
    """`count` messages, with numbers from `first` on. Their schedules count from `now_ms`."""

    ages = False
    """Whether the time to live of a message may have become shorter."""

    def __init__(self, count: int, now_ms: int, first: int = 0) -> None:
        self.count = count
        self.numbers = range(first, first + count)
        self._scheduled_at = now_ms + HOUR_MS
        self._templates = [self.sections(number).join().replace(b"%09d" % number, _NUMBER) for number in range(PERIOD)]

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return self.count * sum(map(len, self._templates)) // PERIOD

    def message(self, number: int) -> bytes:
        """Return a message as it waits in the backlog, encoded."""
        return self._templates[number % PERIOD].replace(_NUMBER, b"%09d" % number)

    def scheduled_at(self, number: int) -> int | None:
        return self._scheduled_at if number % SCHEDULED_EVERY == SCHEDULED_EVERY - 1 else None

    def place(self, number: int) -> tuple[str, str | None]:
        """Return destination and session of a message."""
        return destination(number), session_id(number)

    def sections(self, number: int) -> Sections:
        aliases = Aliases(*self.place(number), DAY_TICKS, self.scheduled_at(number))
        own = {**OWN, **write_aliases(aliases)}
        return Sections(
            properties=Properties(message_id=f"{number:09d}", content_type=CONTENT_TYPE).encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, own),
            body=data_body(BODY),
        )

    def restore(self, number: int, *, enqueued_at: int) -> Sections:
        """Return a message as the primary should have it."""
        annotations: dict[Value, Value] = {Symbol(ENQUEUED): Timestamp(enqueued_at)}
        if (at := self.scheduled_at(number)) is not None:
            annotations[Symbol(SCHEDULE)] = Timestamp(at)
        named = Properties(message_id=f"{number:09d}", content_type=CONTENT_TYPE, group_id=self.place(number)[1])
        return Sections(
            header=Header(ttl=DAY_MS).encode(),
            message_annotations=encode_map(MESSAGE_ANNOTATIONS, annotations),
            properties=named.encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, OWN),
            body=data_body(BODY),
        )

    def source(self, number: int) -> int:
        """Return the index of a message's backlog queue."""
        return number // BATCH % QUEUES

    def batches(self, numbers: range) -> list[tuple[int, range]]:
        """Return (backlog queue, the numbers of its messages), in turns."""
        starts = range(numbers.start, numbers.stop, BATCH)
        return [(self.source(start), range(start, min(start + BATCH, numbers.stop))) for start in starts]

    async def create(self, primary: Endpoint, secondary: Endpoint) -> None:
        """Create the queues of both sides."""
        async with open_atom(primary) as control:
            for number in range(DESTINATIONS):
                wants = session_id(number) is not None
                await control.create(QueueSpec(destination(number), max_size_in_megabytes=5120, requires_session=wants))
        async with open_atom(secondary) as control:
            for index in range(QUEUES):
                await control.create(queue_spec(PRIMARY, index))

    async def fill(self, secondary: Endpoint) -> None:
        """Send all messages to the backlog."""
        async with connect(secondary) as wire:
            senders = [await wire.sender(queue) for queue in backlog_queues()]
            batches = self.batches(self.numbers)
            for start in range(0, len(batches), FLIGHT):
                chunk = batches[start : start + FLIGHT]
                await asyncio.gather(*(self._send(senders[index], numbers) for index, numbers in chunk))

    async def _send(self, sender: RawSender, numbers: range) -> None:
        await sender.send(batch_of([*map(self.message, numbers)]), message_format=BATCH_FORMAT)

    async def check(self, primary: Endpoint, secondary: Endpoint) -> float:
        """Compare every message that has arrived. Return the rate in messages a second. Raises RuntimeError."""
        async with open_atom(secondary) as control:
            left = [(await control.counts(queue)).total for queue in backlog_queues()]
        if any(left):
            raise RuntimeError(f"the backlog queues still hold {left}")
        found = Found(self)
        async for where, message in self.arrived(primary):
            found.add(where, message)
        return found.rate()

    async def arrived(self, primary: Endpoint) -> AsyncIterator[tuple[str, Sections]]:
        """Yield each message in the primary, with its queue."""
        async with connect(primary) as wire:
            for number in range(min(DESTINATIONS, self.count)):
                async for payload in peeked(wire, destination(number)):
                    yield destination(number), Sections.split(payload)


class Found:
    """How often each message has arrived, and when the first and the last of them did."""

    def __init__(self, stranded: Stranded) -> None:
        self.times = bytearray(stranded.count)
        self._begin = stranded.numbers.start
        wanted = ((stranded.place(number)[0], stranded.restore(number, enqueued_at=0)) for number in range(PERIOD))
        self._wanted = [(where, *_content(message)[1:]) for where, message in wanted]
        self._ages = stranded.ages
        self._first, self._last = math.inf, 0

    def add(self, where: str, message: Sections) -> int:
        """Return the number of a message. Raises RuntimeError if it is altered, or in a wrong place."""
        name, *content = _content(message)
        number = int(str(name))
        found, wanted = (where, *content), self._wanted[number % PERIOD]
        if self._ages and found[TTL] and 0 < int(found[TTL]) <= int(wanted[TTL]):
            found = (*found[:TTL], wanted[TTL], *found[TTL + 1 :])
        if found != wanted or name != f"{number:09d}":
            raise RuntimeError(f"message {number} arrived as {found}, not as {wanted}")
        self.times[number - self._begin] += 1
        annotations = message.read_message_annotations()
        if SCHEDULE not in annotations:
            enqueued_at = int(annotations.get(ENQUEUED, 0))
            self._first, self._last = min(self._first, enqueued_at), max(self._last, enqueued_at)
        return number

    def rate(self) -> float:
        """Return messages a second. Raises RuntimeError unless every message has arrived once."""
        missing = self.times.count(0)
        twice = len(self.times) - missing - self.times.count(1)
        if missing or twice:
            raise RuntimeError(f"{missing} messages did not arrive, {twice} did twice")
        return 1000 * len(self.times) / max(1, self._last - self._first)


TTL = 3
"""The place of the time to live in the content of a message, with its queue in place of its id."""


def _content(message: Sections) -> tuple[object, ...]:
    """Return the content of a message, independent of its encoding."""
    properties = message.read_properties()
    own = {str(key): str(value) for key, value in message.read_application_properties().pairs}
    return (
        str(properties.message_id),
        str(properties.content_type),
        properties.group_id,
        message.read_header().ttl,
        message.read_message_annotations().get(SCHEDULE),
        own,
        message.body,
    )


async def peeked(wire: AmqpClient, queue: str) -> AsyncIterator[bytes]:
    """Yield all messages of a queue."""
    start = 0
    while payloads := await wire.peek(queue, start, PAGE):
        for payload in payloads:
            yield payload
        start = int(Sections.split(payloads[-1]).read_message_annotations()[SEQUENCE_NUMBER]) + 1
