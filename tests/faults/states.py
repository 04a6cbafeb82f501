"""Messages in each state and of each type, and the commands that move, remove or copy them while they are killed.

The official client sends them, brings them into their state, and counts them afterwards. Invariant: a message is
altered if a part that its sender gave has other bytes. The times of a time to live, which begins again, are not
compared, nor is an id that the service made.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from azure.servicebus import ServiceBusClient, ServiceBusSubQueue
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import open_atom
from sbpair.model.entities import Queue, Subscription, Topic
from tests.benchmarks.stranded import PRIMARY, SECONDARY, peeked
from tests.faults.emulated_pair import KILLED, EmulatedPair
from tests.faults.measured_command import Command
from tests.kit.moves import kept_parts

KINDS: Final = ("queue", "session queue", "partitioned queue", "subscription")
STATES: Final = ("active", "dead", "scheduled", "deferred", "transfer-dead")
COMMANDS: Final[dict[str, tuple[Sequence[str], str]]] = {
    **{each: ([each] * 4, "move primary:{source} secondary:{to} --messages {state} --rate {rate}") for each in STATES},
    "remove": (
        ("scheduled", "deferred", "dead", "transfer-dead"),
        "remove primary:{source} --messages {state} --rate {rate} --yes --keep {keep}",
    ),
    "receive": (
        ("dead", "active", "deferred", "active"),
        "receive primary:{source} --messages {state} --remove --yes --max all --wait 1s --keep {keep} -o jsonl",
    ),
    "redrive": (["dead"] * 4, "redrive primary:{source} --rate {rate}"),
    "to source": (["collected"] * 4, "redrive primary:{collector} --to-source --rate {rate}"),
    "copy": (["all"] * 4, "peek primary:{source} --max all -o jsonl"),
}
"""Commands by name: the state of the messages of each kind of entity, and the words."""
SEND: Final = "send secondary:{to} --format jsonl"
ROUNDS: Final = [
    (name, kind, state)
    for name, (states, _) in COMMANDS.items()
    for kind, state in zip(KINDS, states, strict=True)
    if (kind, state) != ("subscription", "scheduled")  # its topic has them
]
SUB_QUEUES: Final = {"dead": ServiceBusSubQueue.DEAD_LETTER, "transfer-dead": ServiceBusSubQueue.TRANSFER_DEAD_LETTER}
SETTLED: Final = {"dead": "dead_letter_message", "collected": "dead_letter_message", "deferred": "defer_message"}
FORWARDED: Final = {"collected": "forward_dead_lettered_messages_to", "transfer-dead": "forward_to"}
GROUPS: Final = 4
"""So many sessions, or partition keys."""
BATCH: Final = 50
RUN_SECONDS: Final = 20.0
"""How long a command that is not killed takes, by its rate."""
KILL_SECONDS: Final = 0.6
"""A kill is at most so long after the first message has gone."""
WIDTHS: Final = {"UBYTE": 8, "USHORT": 16, "UINT": 32, "ULONG": 64, "BYTE": 7, "SHORT": 15, "INT": 31, "LONG": 63}


def typed(kind: str, value: object) -> dict[str, object]:
    return {"TYPE": kind, "VALUE": value}


def own_properties(random: Random) -> dict[str | bytes, Any]:
    """Return a property of each type, but for decimals, which this client writes and cannot read."""
    return {
        **{name: typed(name, random.getrandbits(bits)) for name, bits in WIDTHS.items()},
        "negative": typed("LONG", -random.getrandbits(63)),
        "float": typed("FLOAT", random.choice([0.5, -0.0, float("inf")])),
        "double": random.uniform(-1e9, 1e9),
        "boolean": random.random() < 0.5,
        "null": None,
        "timestamp": datetime.fromtimestamp(random.randrange(1 << 31), UTC),
        "uuid": UUID(int=random.getrandbits(128)),
        "binary": typed("BINARY", random.randbytes(random.randrange(9))),
        "string": random.choice(["", "Grüße", "a\0b", "\U0001f600"]),
        "symbol": typed("SYMBOL", b"sym"),
        "timespan": (typed("SYMBOL", b"com.microsoft:timespan"), typed("LONG", random.getrandbits(62))),
        "uri": (typed("SYMBOL", b"com.microsoft:uri"), "https://contoso.example/ä"),
    }


def message_of(number: int, kind: str, *, scheduled: bool) -> AmqpAnnotatedMessage:
    """Return a message, whose parts the number decides. Its body, of one of three kinds, begins with the number."""
    random, group, text = Random(number), number % GROUPS, f"{number:09d}"
    annotations: dict[str | bytes, Any] = random.choice([{}, {"x-own": "ä"}, {"x-own": b"\1"}]).copy()
    if "partitioned" in kind and group:
        annotations["x-opt-partition-key"] = f"P{group}"
    if scheduled:
        annotations["x-opt-scheduled-enqueue-time"] = datetime.now(UTC) + timedelta(days=1, seconds=number % 100)
    bodies: list[dict[str, Any]] = [
        {"data_body": [text.encode(), random.randbytes(random.randrange(800))]},
        {"data_body": text},
        {"value_body": random.choice([text, text.encode(), {"number": text, "list": [1, None, 0.5]}])},
        {"sequence_body": [[text, 1, b"\0"], *[[None, "more"]] * random.randrange(2)]},
    ]
    return AmqpAnnotatedMessage(
        **random.choice(bodies),
        header=AmqpMessageHeader(
            time_to_live=random.choice([None, 86_400_000]), durable=True, priority=random.choice([None, 7])
        ),
        properties=AmqpMessageProperties(
            message_id=random.choice([f"m{number}", UUID(int=random.getrandbits(128)), 10**12 + number, None]),
            group_id=f"S{group}" if "session" in kind else None,
            **random.choice([{}, {"content_type": "text/plain", "correlation_id": "c", "subject": "ß"}]),
            **random.choice([{}, {"user_id": b"me", "to": "t", "reply_to": "r", "reply_to_group_id": "s"}]),
            **random.choice([{}, {"content_encoding": "identity", "group_sequence": 7}]),
        ),
        annotations=annotations,
        application_properties=random.choice([None, own_properties(random)]),
        delivery_annotations=random.choice([None, {"x-delivery": 1}]),
        footer=random.choice([None, {"x-footer": "f"}]),
    )


def number_in(text: str | bytes) -> int:
    [found] = re.findall(r"\d{9}", text if isinstance(text, str) else text.decode("latin-1"))[:1]
    return int(found)


def content(sections: Sections) -> tuple[object, ...]:
    """Return the parts that its sender gave."""
    properties = sections.read_properties()
    made = re.fullmatch("[0-9a-f]{32}|None", str(properties.message_id))
    if properties.absolute_expiry_time or made:
        own = replace(properties, creation_time=None, absolute_expiry_time=None)
        sections = replace(sections, properties=(replace(own, message_id=None) if made else own).encode())
    return kept_parts(sections, dead=True)


class Entity:
    """A queue or subscription of a namespace, through the official client."""

    def __init__(self, pair: EmulatedPair, side: str, kind: str, path: str) -> None:
        self.side, self.kind, self.path = side, kind, path
        self._name, _, self._subscription = path.partition("/subscriptions/")
        variable = f"SBPAIR_{'PRIMARY' if side == PRIMARY else 'SECONDARY'}_CONNECTION_STRING"
        self._client = ServiceBusClient.from_connection_string(pair.environment[variable])

    def send(self, numbers: Sequence[int], *, scheduled: bool) -> Iterator[bytes]:
        """Send messages. Yield the bytes of each."""
        sender_of = self._client.get_topic_sender if self._subscription else self._client.get_queue_sender
        with sender_of(self._name) as sender:
            for group in range(GROUPS):
                its = [number for number in numbers if number % GROUPS == group]
                for start in range(0, len(its), BATCH):
                    batch = sender.create_message_batch()
                    for number in its[start : start + BATCH]:
                        batch.add_message(message_of(number, self.kind, scheduled=scheduled))
                    sender.send_messages(batch)
                    yield from (bytes(PyamqpTransport.encode_message(each)) for each in batch._messages)

    def receivers(self, state: str) -> Iterator[Any]:
        """Open a receiver, or one of each session."""
        options: list[dict[str, Any]] = [{"session_id": f"S{group}"} for group in range(GROUPS)]
        if state in SUB_QUEUES or "session" not in self.kind:
            options = [{"sub_queue": SUB_QUEUES.get(state)}]
        of_queue, of_subscription = self._client.get_queue_receiver, self._client.get_subscription_receiver
        for each in options:
            names = (self._name, self._subscription) if self._subscription else (self._name,)
            with (of_subscription if self._subscription else of_queue)(*names, **each) as receiver:
                yield receiver

    def settle(self, state: str, numbers: Sequence[int]) -> None:
        """Defer or dead-letter all active messages, which are these."""
        options = {} if state == "deferred" else {"reason": "Trial", "error_description": "ö"}
        by_group = Counter(number % GROUPS for number in numbers)
        for group, receiver in enumerate(self.receivers("active")):
            left = by_group[group] if "session" in self.kind else len(numbers)
            while left:
                for each in receiver.receive_messages(min(left, BATCH), max_wait_time=30):
                    getattr(receiver, SETTLED[state])(each, **options)
                    left -= 1

    def peek(self, state: str = "active") -> list[tuple[int, str]]:
        """Return the number of each message, and its id."""
        found = []
        for receiver in self.receivers(state):
            start = 1
            while page := receiver.peek_messages(250, sequence_number=start):
                for each in page:
                    body = each.body if each.body_type == AmqpMessageBodyType.VALUE else list(each.body)
                    found.append((number_in(repr(body)), str(each.message_id)))
                start = page[-1].sequence_number + 1
        return found


class StateRound:
    """A command on one kind of entity: `count` messages, or more if no rate slows it down, with ids of their own."""

    def __init__(self, pair: EmulatedPair, number: int, count: int) -> None:
        self._name, self._kind, self._state = ROUNDS[number]
        self._pair, self._figures = pair, pair.figures
        count *= 4 if self._name in ("receive", "copy") else 1
        self._numbers = range(number * 10**6, number * 10**6 + count)
        self._base, self._rate = f"states-{number}", f"{count / RUN_SECONDS:.3g}"
        self._keep = pair.folder / f"{self._base}.jsonl"
        self._collector = Entity(pair, PRIMARY, "queue", f"{self._base}-collector")
        path = f"{self._base}/subscriptions/s" if self._kind == "subscription" else self._base
        self._source = Entity(pair, PRIMARY, self._kind, path)
        self._to = Entity(pair, SECONDARY, self._kind, f"{self._base}-to")
        self._taken = self._collector if self._state == "collected" else self._source
        self._watched = self._to if self._name == "copy" else self._taken
        self._sent: dict[int, tuple[object, ...]] = {}
        self._names: dict[int, str] = {}
        self._was_killed = False

    async def play(self, random: Random, kills: int) -> str:
        """Create entities and messages, kill the command, let it end, and judge what is there.

        All rounds of one command have so many kills together, or a few more.
        """
        self._figures.messages = len(self._numbers)
        await self._create()
        await asyncio.to_thread(self._fill)
        self._names = dict(await asyncio.to_thread(self._taken.peek, self._state))
        counts = await self._repeat(random, math.ceil(kills / [name for name, *_ in ROUNDS].count(self._name)))
        if self._keep.exists():
            await self._pair.run(*self._words(SEND), str(self._keep))
            self._keep.unlink()
        left = await asyncio.to_thread(self._taken.peek, self._state)
        if self._name != "copy":
            self._find("other", [f"{number} is still there" for number, _ in left])
        twice = await self._judge(self._source if "redrive" in self._line else self._to)
        killed, named = len(counts) - 1, len(self._pair.named)
        return f"{self._name}, {self._kind}, {self._state}: {killed} kills at {counts}, {twice} twice, {named} named"

    @property
    def _line(self) -> str:
        return COMMANDS[self._name][1]

    def _words(self, line: str) -> list[str]:
        # The messages that a killed redrive has sent are newer than those that are left.
        more = {"subscription": " --all-subscriptions", "session queue": " --order none" * self._was_killed}
        paths = {"source": self._source.path, "to": self._to.path, "collector": self._collector.path}
        line += more.get(self._kind, "") * line.startswith("redrive")
        return line.format(**paths, state=self._state, keep=self._keep, rate=self._rate).split()

    def _find(self, column: str, wrong: Sequence[object]) -> None:
        if wrong:
            self._figures.find(column, f"{self._name}, {self._kind}: {wrong[:3]}", len(wrong))

    async def _create(self) -> None:
        terms = {"requires_session": "session" in self._kind, "enable_partitioning": "partitioned" in self._kind}
        more = {FORWARDED[self._state]: self._collector.path} if self._state in FORWARDED else {}
        # A busy machine needs more than a minute to settle what it has received.
        more["lock_duration"] = "PT5M"
        entities = [Queue(self._collector.path), Queue(self._base, **terms, **more)]
        if self._kind == "subscription":
            entities[1:] = [Topic(self._base), Subscription(self._base, "s", **more)]
        async with open_atom(self._pair.endpoint(PRIMARY)) as control:
            for each in entities:
                await control.create(each)
            if self._state == "transfer-dead":
                await control.delete(self._collector.path)
        async with open_atom(self._pair.endpoint(SECONDARY)) as control:
            await control.create(Queue(self._to.path, **terms))

    def _fill(self) -> None:
        """Send all messages, and bring them into their state."""
        states = ["deferred", "scheduled", "active"] if self._state == "all" else [self._state]
        if self._kind == "subscription" and self._state == "all":
            states.remove("scheduled")
        for at, state in enumerate(states):
            numbers = self._numbers[at :: len(states)]
            for payload in self._source.send(numbers, scheduled=state == "scheduled"):
                sections = Sections.split(payload)
                self._sent[number_in(sections.body)] = content(sections)
            if state in SETTLED:
                self._source.settle(state, numbers)

    async def _repeat(self, random: Random, kills: int) -> list[int]:
        """Run the command until it ends by itself. Return how many messages were there at first, and at each kill."""
        counts = [await self._count()]
        run = self._copy if self._name == "copy" else self._run
        while (code := await run(random, counts[-1], kill=len(counts) <= kills)) == KILLED:
            await self._pair.expire_locks()
            counts.append(await self._count())
            self._was_killed = True
        if len(counts) <= kills:
            self._find("other", [f"exit code {code} after {len(counts) - 1} kills"])
        return counts

    async def _count(self, unlike: int | None = None, command: Command | None = None) -> int:
        """Return how many messages the command has still to take; of a copy, how many it has sent.

        With `unlike`, wait until it is another number, or the command has ended.
        """
        name = self._state.replace("-", "_").replace("dead", "dead_letter")
        async with open_atom(self._pair.endpoint(self._watched.side)) as control:
            while True:
                counts = await control.counts(self._watched.path)
                found = int(getattr(counts, name, counts.total))
                if found != unlike or (command and command.process.returncode is not None):
                    return found

    async def _run(self, random: Random, count: int, *, kill: bool) -> int:
        terms: dict[str, Any] = {"begun": lambda mover: self._count(count, mover), "ending": signal.SIGKILL}
        more = {"after": random.uniform(0, KILL_SECONDS), **terms} if kill else {}
        return await self._pair.run(*self._words(self._line), **more)

    async def _copy(self, random: Random, count: int, *, kill: bool) -> int:
        """Peek into a pipe from which another command sends the messages that are missing. Kill one of the two."""
        reading, writing = os.pipe()
        peek = await self._pair.launch(*self._words(self._line), files={"stdout": writing})
        sending = (*self._words(SEND), "--skip", str(count), "--rate", self._rate)
        send = await self._pair.launch(*sending, files={"stdin": reading})
        os.close(reading)
        os.close(writing)
        if kill:
            await self._count(count, send)
            await random.choice((peek, send)).signal_after(random.uniform(0, KILL_SECONDS), signal.SIGKILL)
        codes = [await each.end({0, 3, 141, KILLED} if kill else {0}) for each in (peek, send)]
        return KILLED if KILLED in codes else max(codes)

    async def _judge(self, place: Entity) -> int:
        """Compare each message that is there. Return how many are there more than once."""
        times = Counter(number for number, _ in await asyncio.to_thread(place.peek))
        async with connect(self._pair.endpoint(place.side)) as wire:
            found = [Sections.split(payload) async for payload in peeked(wire, place.path)]
        numbered = [(number_in(each.body), content(each)) for each in found]
        counted = Counter(number for number, _ in numbered)
        twice = [number for number, count in times.items() if count > 1]
        self._find("lost", [number for number in self._numbers if number not in times])
        self._find("altered", [each for each in numbered if each[1] != self._sent.get(each[0])])
        self._find("unnamed", [number for number in twice if self._names[number] not in self._pair.named])
        self._find("other", [f"{number} is counted differently" for number in counted - times])
        return len(twice)
