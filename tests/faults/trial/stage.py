"""The stage of a round: two namespaces in a data file, messages for one mover, and what became of each of them."""

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from sbpair.amqp.message import Sections
from sbpair.amqp.types import text_of
from sbpair.amqp_client.client import connect
from sbpair.backlog import TICKS_PER_MS, queue_path
from sbpair.drill.drill_messages import message_differences
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.server import EmulatorOptions
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.move.receipt import BUCKETS
from sbpair.testing import Emulator
from tests.faults.simulation.faults import make_backlog, make_goal
from tests.faults.simulation.workload import PARTITIONED, PLAIN, SESSION, TOPIC, Goal, Stranded, messages, moved
from tests.faults.trial.command import Command, end_emulator
from tests.faults.trial.figures import Figures
from tests.kit.emulated import EmulatorProcess
from tests.kit.moves import bury, peeked
from tests.kit.stranded import put

NAMES: Final = (("contoso", 0), ("contoso-dr", 0))
MOVERS: Final = ("syphon", "syphon", "move", "move sessions", "redrive", "redrive sessions", "redrive backlog")
QUEUES: Final = 2
GOALS: Final = tuple(
    Goal(name, kind)
    for name, kind in (("orders", PLAIN), ("billing/invoices", PARTITIONED), ("a/b/c", SESSION), ("events", TOPIC))
)
DEAD: Final = "dead letters"
LONG_TICKS: Final = 1_800_000 * TICKS_PER_MS
"""A time to live in which no round ends a message."""


class Stage:
    """The messages of one mover, the emulator's process, and the command that moves them."""

    def __init__(self, mover: str, directory: Path, random: Random, figures: Figures) -> None:
        self.mover, self.random, self.figures = mover, random, figures
        self.stranded: dict[str, Stranded] = {}
        self.named: set[str] = set()
        self.directory, self.state = directory, directory / "state"
        self._data = directory / "emulator.db"
        words = (word for name, _ in NAMES for word in ("--namespace", f"{name}=0"))
        self.emulator = EmulatorProcess(self._data, *words)
        self.ordered = random.random() < 0.8
        self.options = [] if self.ordered else ["--order", "none"]
        held = ["--max-held", "5"] if mover == "syphon" else []
        self.options += random.choice(([], held, ["--transport", "websocket"]))

    @property
    def words(self) -> list[str]:
        """The command line of the mover."""
        if self.mover == "syphon":
            return ["syphon", "--count", str(QUEUES)]
        if self.mover.startswith("move"):
            return ["move", "source", "secondary:target"]
        return ["redrive", f"secondary:{queue_path('contoso', 0)}" if self._with_aliases else "source"]

    # The messages

    @property
    def _with_aliases(self) -> bool:
        return self.mover in ("syphon", "redrive backlog")

    @property
    def _goals(self) -> tuple[Goal, ...]:
        own = "target" if self.mover.startswith("move") else "source"
        return GOALS if self._with_aliases else (Goal(own, SESSION if "sessions" in self.mover else PLAIN),)

    def make(self, count: int, *, flawed: float = 0.02) -> list[Stranded]:
        """Make messages, and note them."""
        queues, goals = QUEUES if self.mover == "syphon" else 1, self._goals
        now_ms, flawed = int(time.time() * 1000), flawed if self._with_aliases else 0.0
        made = messages(self.random, count, queues, goals, now_ms=now_ms, flawed=flawed)
        made = [each for each in made if (each.original.ttl_ticks or LONG_TICKS) >= LONG_TICKS]
        made = made if self._with_aliases else [moved(each, goals[0]) for each in made]
        self.stranded.update({each.id: each for each in made})
        return made

    async def prepare(self, count: int, *, flawed: float = 0.02) -> None:
        """Write the data file with both namespaces and the messages, and start the emulator's process."""
        await self.fill(count, flawed=flawed)
        await self.emulator.start()

    async def fill(self, count: int, *, flawed: float = 0.02) -> None:
        async with self.opened() as (primary, secondary):
            for goal in GOALS:
                make_goal(primary, goal)
            sources = [make_backlog(secondary, index) for index in range(QUEUES)]
            if not self._with_aliases:
                [goal] = self._goals
                sources = [make_goal(primary, Goal("source", goal.kind))]
                make_goal(secondary, Goal("target", goal.kind))
            for each in self.make(count, flawed=flawed):
                put(sources[each.queue], each.payload)
            if self.mover.startswith("redrive"):
                bury(sources[0])
                for session in {each.session_id for each in peeked(sources[0])}:
                    sources[0].messages.delete(count, primary.clock.now_ms() + 1, session)

    async def send_more(self, count: int) -> None:
        """Strand messages while a syphon runs."""
        async with connect(endpoint_from_connection_string(self.emulator.namespaces[1]["connection_string"])) as wire:
            senders = [await wire.sender(queue_path("contoso", index)) for index in range(QUEUES)]
            for each in self.make(count, flawed=0.0):
                await senders[each.queue].send(each.payload)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Namespace, Namespace]]:
        """Open the data file in this process, while that of the emulator is not running."""
        async with Emulator(NAMES, options=EmulatorOptions(data=self._data)) as emulator:
            yield emulator.namespaces["contoso"], emulator.namespaces["contoso-dr"]

    # Its course

    @property
    def environ(self) -> dict[str, str]:
        return self.emulator.environment(XDG_STATE_HOME=str(self.directory), NO_COLOR="1")

    async def launch(self, *options: str, rate: int | None = None, env: dict[str, str] | None = None) -> Command:
        """Start the mover, with a rate that makes it last."""
        words = [*self.words, *self.options, "--credits", "none", "--output", "json", "--state", str(self.state)]
        words += ["--rate", str(rate)] if rate else []
        if not {"--watch"} & set(options) and self.mover == "syphon":
            words.append("--once")
        return await self.start(*words, *options, **(env or {}))

    async def start(self, *words: str, **env: str) -> Command:
        return await Command.start(*words, env={**self.environ, **env}, figures=self.figures)

    async def run(self, *words: str, codes: Collection[int]) -> Command:
        """Run another command to its end."""
        started = await self.start(*words)
        await started.end(codes)
        return started

    async def end(self, mover: Command, codes: Collection[int], **more: Any) -> int:
        """Wait for the end of a mover, and keep what its receipt names."""
        code = await mover.end(codes, secrets=self.environ["SBPAIR_PRIMARY_CONNECTION_STRING"], **more)
        receipt = mover.receipt()
        self.named |= {str(each["message_id"]) for each in receipt.get("doubtful", ())}
        if "received" in receipt and receipt["received"] != sum(receipt[bucket] for bucket in BUCKETS):
            self.figures.find("other", f"the receipt does not add up: {receipt}")
        return code

    async def expire_locks(self) -> None:
        for name, _ in NAMES:
            await self.emulator.end_fault(await self.emulator.begin_fault("expire-locks", name))

    async def finish(self) -> None:
        """Run until all is moved, and judge."""
        await self.expire_locks()
        code = await self.end(await self.launch(), (0, 3))
        if code == 3:
            await self.expire_locks()
            await self.end(await self.launch(), (0, 3))
        await end_emulator(self.emulator, self.figures)
        await self.judge()

    async def judge(self) -> None:
        """Compare what arrived with what was to arrive."""
        async with self.opened() as sides:
            found = [each for namespace in sides for each in messages_of(namespace)]
        copies: dict[str, list[tuple[str, Sections]]] = defaultdict(list)
        for place, sections in found:
            copies[text_of(sections.read_properties().message_id) or ""].append((place, sections))
        wrong: dict[str, list[str]] = defaultdict(list)
        for name, stranded in self.stranded.items():
            for column, text in self._judge_one(stranded, copies[name]):
                wrong[column].append(f"{name} {text}")
        wrong["late"] += self._late(copies) if self.ordered else ()
        self.figures.messages += len(self.stranded)
        for column, texts in wrong.items():
            if texts:
                self.figures.find(column, f"{self.mover}: {'; '.join(texts[:4])}", len(texts))

    def _judge_one(self, stranded: Stranded, copies: list[tuple[str, Sections]]) -> Iterator[tuple[str, str]]:
        places = Counter(place for place, _ in copies)
        wanted = DEAD if stranded.doom else stranded.original.destination.lower()
        if not places[wanted]:
            yield "lost", f"for {wanted} is in {dict(places)}"
        elif len(places) > 1:
            yield "other", f"for {wanted} is in {dict(places)}"
        for place, sections in copies:
            if place == DEAD and sections.join() != stranded.payload:
                yield "altered", "in the dead-letter queue"
            for line in message_differences(stranded.original, sections) if place == wanted != DEAD else ():
                yield "altered", line
        if places[wanted] > 1 and stranded.id not in self.named:
            yield "unnamed", f"is {places[wanted]} times in {wanted}"

    def _late(self, copies: dict[str, list[tuple[str, Sections]]]) -> Iterator[str]:
        """Yield messages that arrived after later ones of their source, destination and session."""
        partitioned = [goal.name for goal in GOALS if goal.is_partitioned]
        order = {name: number for number, name in enumerate(self.stranded)}
        last: dict[tuple[object, ...], int] = {}
        for name, found in copies.items():
            stranded = self.stranded.get(name)
            if stranded is None or not found or found[0][0] == DEAD or stranded.original.destination in partitioned:
                continue
            original = stranded.original
            lane = (stranded.queue, original.destination, original.session_id, original.scheduled_at is not None)
            if order[name] < last.get(lane, -1):
                yield f"{name}, number {order[name]} in {found[0][0]}, after number {last[lane]}"
            last[lane] = max(order[name], last.get(lane, -1))

    async def close(self) -> None:
        if hasattr(self.emulator, "process") and self.emulator.process.returncode is None:
            await self.emulator.kill()


def messages_of(namespace: Namespace) -> Iterator[tuple[str, Sections]]:
    """Yield the messages of a namespace in the order of their arrival, each with its place."""
    # A topic keeps its scheduled messages. Its other subscription has the same ones as the first.
    of_topics = (entity for topic in namespace.topics() for entity in (topic, topic.subscriptions[0]))
    for entity in (*namespace.queues(), *of_topics):
        place = "backlog" if "x-servicebus-transfer" in entity.path else entity.path.lower().partition("/sub")[0]
        for each in peeked(entity):
            yield place, each.sections
        for each in peeked(entity, dead=True):
            named = each.dead_letter and each.dead_letter.reason
            yield DEAD if named else "dead letters without a reason", each.sections
