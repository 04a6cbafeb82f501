"""A pair, a gateway that is killed, clients of several languages, and the judgement of what they sent and received.

Invariant: a message counts as sent once its client has said so. Those with a count of messages of the same number are
compared with what that client sends to a namespace without a gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import open_atom
from sbpair.backlog import queue_spec
from sbpair.model.pair import Endpoint, SasKey
from sbpair.model.queues import QueueSpec
from tests.benchmarks.figures import log
from tests.benchmarks.stranded import PRIMARY, QUEUES, SECONDARY, backlog_queues, peeked
from tests.clients.driver import compiled
from tests.faults.emulated_pair import KILLED, EmulatedPair
from tests.faults.figures import Figures
from tests.faults.measured_command import Command
from tests.integration.node import install
from tests.kit.gateway_key import KEY, RULE

HERE: Final = Path(__file__).parent
SHAPES: Final = 4
SESSIONS: Final = ("one", "two")
FAULTS: Final[tuple[tuple[str, dict[str, int | str]], ...]] = (
    ("down", {"kind": "namespace-down"}),
    ("detach", {"kind": "detach"}),
    ("throttle", {"kind": "throttle"}),
    ("slow", {"kind": "latency", "ms": 300}),
    ("reset", {"kind": "reset"}),
    ("half-open", {"kind": "stall"}),
    ("swallowed", {"kind": "swallow-acks", "count": 5}),
    ("entity down", {"kind": "entity-down"}),
    ("disabled", {"kind": "disabled"}),
    ("tokens refused", {"kind": "expire-tokens", "count": 3}),
    ("signing refused", {"kind": "local-auth-disabled"}),
    ("both down", {"kind": "namespace-down"}),
)
"""Names of faults of the primary, and the emulator's; with the last one, the secondary is away, too."""

OUTAGES: Final = frozenset({"down", "reset", "half-open", "entity down", "both down"})
SEND_SECONDS: Final = 12.0
GAP_SECONDS: Final = 0.08
STOP_SECONDS: Final = 150.0
SETTLE_SECONDS: Final = 240.0
OF_SERVICE: Final = frozenset(
    f"x-opt-{name}"
    for name in ("enqueued-time", "sequence-number", "locked-until", "enqueue-sequence-number", "message-state")
)


class Plan(NamedTuple):
    """What a seed places. A fault lasts for `longest` seconds at most; the pause between two is as long."""

    seed: int
    faults: int
    kills: int
    languages: tuple[str, ...]
    longest: float = 3.0


def orders(language: str) -> str:
    return f"orders-{language}"


def sessions(language: str) -> str:
    return f"sessions-{language}"


def work(language: str) -> str:
    return f"work-{language}"


def sends(language: str, count: int = 0) -> list[dict[str, Any]]:
    """Return what a client of a language sends. Each message has a number of its own."""
    lanes = [(orders(language), ""), (work(language), ""), *((sessions(language), each) for each in SESSIONS)]
    return [
        {"queue": queue, "session": session, "first": index * 10_000_000, "count": count, "gap": GAP_SECONDS}
        for index, (queue, session) in enumerate(lanes)
    ]


def program(language: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a client, and its variables. Raises NotHere."""
    if language == "py":
        return [sys.executable, "-m", "tests.faults.gateway.client"], {}
    if language == "js":
        return [install.node(), str(HERE / "client.mjs")], {"MODULES": f"{install.modules()}/"}
    return compiled(HERE / "go"), {}


def content(payload: bytes) -> tuple[Any, ...]:
    """Return all of a message that its client made: sections as they are encoded, less what the service adds."""
    message = Sections.split(payload)
    header = replace(message.read_header(), delivery_count=None)
    annotations = {str(key): value for key, value in message.read_message_annotations().pairs}
    own = {key: value for key, value in annotations.items() if key not in OF_SERVICE}
    return message.properties, message.application_properties, message.body, message.footer, header, own


POLL_SECONDS: Final = 0.1


class Client:
    """A running client, whose output goes to a file."""

    def __init__(self, language: str, folder: Path) -> None:
        self.language, self._out, self._err = language, folder / f"{language}.out", folder / f"{language}.err"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, address: str, wanted: dict[str, Any]) -> None:
        words, variables = program(self.language)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = await asyncio.create_subprocess_exec(
                *words,
                json.dumps(wanted),
                env=os.environ | variables | {"CONNECTION_STRING": address},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    async def stop(self, figures: Figures, seconds: float = STOP_SECONDS) -> None:
        """Ask it to end, and kill it after so many seconds."""
        assert self.process is not None
        try:
            async with asyncio.timeout(seconds):
                await self.process.communicate(b"\n")
        except TimeoutError:
            figures.find("other", f"the client {self.language} does not end")
            self.process.kill()
            await self.process.wait()
        if self.process.returncode:
            code, said = self.process.returncode, self._err.read_text()[-800:]
            figures.find("other", f"the client {self.language} ended with {code}: {said}")

    def lines(self) -> Iterator[dict[str, Any]]:
        for line in self._out.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()


@dataclass
class Counts:
    """What a campaign came to beside its figures. Of messages that are there twice, who accounts for them."""

    sent: int = 0
    received: int = 0
    refused: int = 0
    stranded: int = 0
    named: int = 0
    retried: int = 0
    outages: int = 0
    kills: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class Campaign:
    """`figures` and `counts` are complete after `play`."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.figures, self.counts = Figures(rounds=1), Counts()
        self._pair = EmulatedPair(folder, self.figures)
        self._random = Random(f"gateway {plan.seed}")
        self._clients = [Client(language, folder) for language in plan.languages]
        self._gateway: Command | None = None
        self._port = 0
        self._templates: dict[tuple[str, str, int], tuple[Any, ...]] = {}
        self._origin: dict[str, str] = {}
        """The backlog queue in which a message has waited."""

    async def play(self) -> None:
        for name in ("taken", "events", "outbox", "limits.json"):
            (self.folder / name).unlink(missing_ok=True)
        async with self._pair.running():
            await self._create()
            await self._take_templates()
            await self._start_gateway()
            try:
                for each in self._clients:
                    wanted = {"send": sends(each.language), "receive": []}
                    await each.start(self._address, wanted)
                await self._receive_through_faults()
            finally:
                for each in self._clients:
                    each.kill()
                if self._gateway is not None and self._gateway.process.returncode is None:
                    await self._gateway.kill()

    async def _receive_through_faults(self) -> None:
        receivers = [Client(each.language, self.folder / "receivers") for each in self._clients]
        (self.folder / "receivers").mkdir(exist_ok=True)
        try:
            for each in receivers:
                await each.start(self._address, {"send": [], "receive": [work(each.language)]})
            await self._begun()
            await self._strike()
            await asyncio.gather(*(each.stop(self.figures) for each in self._clients))
            await self._settle()
            await asyncio.gather(*(each.stop(self.figures) for each in receivers))
            await self._judge(receivers)
        finally:
            for each in receivers:
                each.kill()

    async def _begun(self) -> None:
        """Wait until each client has sent: a busy machine takes long to start one."""
        async with asyncio.timeout(SETTLE_SECONDS):
            for each in self._clients:
                while not any("sent" in line for line in each.lines()):
                    assert each.process is not None
                    assert each.process.returncode is None
                    await asyncio.sleep(POLL_SECONDS)

    # The stage

    async def _create(self) -> None:
        async with open_atom(self._pair.endpoint(SECONDARY)) as control:
            for index in range(QUEUES):
                await control.create(queue_spec(PRIMARY, index))
        async with open_atom(self._pair.endpoint(PRIMARY)) as control:
            for language in self.plan.languages:
                await control.create(QueueSpec(orders(language)))
                await control.create(QueueSpec(sessions(language), requires_session=True))
                # A receiver that was cut off keeps its locks until they end.
                await control.create(QueueSpec(work(language), lock_duration="PT5S", max_delivery_count=10_000))

    async def _take_templates(self) -> None:
        """Let each client send one message of each shape to the primary itself."""
        endpoint = self._pair.endpoint(PRIMARY)
        for each in self._clients:
            await each.start(_address(endpoint), {"send": sends(each.language, SHAPES), "receive": []})
            await each.stop(self.figures)
        async with connect(endpoint) as wire:
            for language in self.plan.languages:
                for queue in (orders(language), sessions(language), work(language)):
                    async for payload in peeked(wire, queue):
                        session, number = _session(payload), _number(payload)
                        self._templates[queue, session, number % SHAPES] = content(payload)
        async with open_atom(endpoint) as control:
            for language in self.plan.languages:
                for queue in (orders(language), sessions(language), work(language)):
                    await control.delete(queue)
        await self._create()

    async def _start_gateway(self) -> None:
        self._gateway = await Command.start(
            *(str(self.folder), str(self._port), str(SEND_SECONDS)),
            env=self._pair.environment,
            figures=self.figures,
            python=(),
            program=("-m", "tests.faults.gateway.process"),
        )
        self._port = int(await self._gateway.first_line(30))

    @property
    def _address(self) -> str:
        credential = SasKey(RULE.key_name, KEY)
        return _address(replace(self._pair.endpoint(PRIMARY), port=self._port, credential=credential))

    # The faults

    async def _strike(self) -> None:
        random, longest = self._random, self.plan.longest
        kills = set(random.sample(range(self.plan.faults), self.plan.kills))
        for number in range(self.plan.faults):
            await asyncio.sleep(random.uniform(longest / 10, longest))
            name, fault = random.choice(FAULTS)
            self.counts.faults[name] += 1
            self.counts.outages += name in OUTAGES
            log(f"fault {number}: {name}")
            seconds = random.uniform(longest / 10, longest)
            async with self._fault(name, fault):
                await asyncio.sleep(seconds / 2)
                if number in kills:
                    await self._kill_gateway(random.choice((0.0, seconds / 4)))
                await asyncio.sleep(seconds / 2)
        await asyncio.sleep(longest)

    @asynccontextmanager
    async def _fault(self, name: str, fault: dict[str, int | str]) -> AsyncIterator[None]:
        random = self._random
        queue = random.choice((orders, sessions, work))(random.choice(self.plan.languages))
        if name == "disabled":
            async with open_atom(self._pair.endpoint(PRIMARY)) as control:
                await control.set_status(queue, random.choice(("Disabled", "SendDisabled")))
                yield
                await control.set_status(queue, "Active")
            return
        where = {"entity": queue} if name == "entity down" else {}
        begun = [(PRIMARY, await self._pair.begin(PRIMARY, **fault, **where))]
        if name == "both down":
            begun.append((SECONDARY, await self._pair.begin(SECONDARY, **fault)))
        yield
        for side, each in begun:
            await self._pair.control(side, "DELETE", each)

    async def _kill_gateway(self, pause: float) -> None:
        assert self._gateway is not None
        self._gateway.signal(signal.SIGKILL)
        await self._gateway.end({KILLED})
        self.counts.kills += 1
        log("killed")
        await asyncio.sleep(pause)
        await self._start_gateway()

    # The end

    async def _settle(self) -> None:
        """Move the backlog until nothing waits in it, and let the receivers take all of their queues."""
        async with connect(self._pair.endpoint(SECONDARY)) as wire:
            await self._note_origins(wire)
        try:
            async with asyncio.timeout(SETTLE_SECONDS), connect(self._pair.endpoint(SECONDARY)) as wire:
                while not await self._is_over():
                    # The outbox may have brought more.
                    await self._note_origins(wire)
                    if not await self._pair.is_empty():
                        words = ("syphon", "--once", "--count", str(QUEUES), "--credits", "none")
                        await self._pair.run(*words)
                    await asyncio.sleep(1)
        except TimeoutError:
            self.figures.find("other", f"after {SETTLE_SECONDS:g} s something still waits: {await self._waiting()}")
        assert self._gateway is not None
        self._gateway.signal(signal.SIGTERM)
        await self._gateway.end({0})

    async def _note_origins(self, wire: Any) -> None:
        for queue in backlog_queues():
            async for payload in peeked(wire, queue):
                self._origin.setdefault(_name(payload), queue)

    async def _is_over(self) -> bool:
        return await self._pair.is_empty() and not any((await self._waiting()).values()) and not self._in_outbox()

    async def _waiting(self) -> dict[str, int]:
        async with open_atom(self._pair.endpoint(PRIMARY)) as control:
            return {each: (await control.counts(work(each))).total for each in self.plan.languages}

    def _in_outbox(self) -> bool:
        kinds = Counter((each["kind"], each["text"].split(" ")[0]) for each in self._events())
        begun = {entity for kind, entity in kinds if kind == "OutboxBegun"}
        # A gateway that starts with messages in its outbox does not report that it began.
        return any(kinds["OutboxBegun", each] > kinds["OutboxEmptied", each] for each in begun)

    def _events(self) -> list[dict[str, Any]]:
        path = self.folder / "events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    # The judgement

    async def _judge(self, receivers: list[Client]) -> None:
        sent = {each["sent"]: each for client in self._clients for each in client.lines() if "sent" in each}
        failed = [each for client in self._clients for each in client.lines() if "failed" in each]
        found: Counter[str] = Counter()
        for each in receivers:
            found += self._judge_received(each)
        order: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
        async with connect(self._pair.endpoint(PRIMARY)) as wire:
            for language in self.plan.languages:
                for queue in (orders(language), sessions(language)):
                    async for payload in peeked(wire, queue):
                        name, session = _name(payload), _session(payload)
                        found[name] += 1
                        order[queue, session, self._origin.get(name, "")].append(name)
                        self._compare(queue, session, payload)
        self._judge_counts(set(sent), found)
        self._judge_order(order, found)
        self.counts.sent, self.counts.received = len(sent), sum(found.values())
        self.counts.refused, self.counts.stranded = len(failed), len(self._origin)
        self.figures.messages = len(sent)

    def _judge_received(self, receiver: Client) -> Counter[str]:
        lines = list(receiver.lines())
        received = [each for each in lines if "received" in each]
        altered = [each["received"] for each in received if not each["same"]]
        if altered:
            self.figures.find("altered", f"as {receiver.language} receives them: {altered[:5]}", len(altered))
        done: set[int] = set()
        again = []
        for each in lines:
            again += [each["received"]] if each.get("sequence") in done else []
            done |= {each["completed"]} if "completed" in each else set()
        if again:
            self.figures.find("other", f"received after they were completed: {again[:5]}", len(again))
        return Counter(name for name, _ in {(each["received"], each["sequence"]) for each in received})

    def _compare(self, queue: str, session: str, payload: bytes) -> None:
        number = _number(payload)
        template = self._templates[queue, session, number % SHAPES]
        wanted = tuple(map(partial(_renamed, name=_name(payload).encode()), template))
        if wanted != (got := content(payload)):
            self.figures.find("altered", f"{_name(payload)} in {queue}: {got} is not {wanted}")

    def _judge_counts(self, sent: set[str], found: Counter[str]) -> None:
        taken = Counter((self.folder / "taken").read_text().split())
        named = {each for event in self._events() for each in event["ids"]}
        lost = sorted(sent - set(found))
        twice = [name for name, times in found.items() if times > 1]
        unnamed = sorted(name for name in twice if name not in named and taken[name] < 2)
        self.counts.named = sum(name in named for name in twice)
        self.counts.retried = sum(name not in named and taken[name] > 1 for name in twice)
        for column, names in (("lost", lost), ("unnamed", unnamed)):
            if names:
                self.figures.find(column, f"{names[:20]}", len(names))

    def _judge_order(self, order: dict[tuple[str, str, str], list[str]], found: Counter[str]) -> None:
        """Judge the order of sessions, of each way that messages took, but for those that are there twice."""
        for (_, session, origin), names in order.items():
            once = [name for name in names if found[name] == 1]
            late = [(one, other) for one, other in pairwise(once) if one > other]
            if session and late:
                self.figures.find("late", f"{session} by {origin or 'the primary'}: {late[:5]}", len(late))


def _renamed(value: Any, name: bytes) -> Any:
    return value.replace(_name_in(value), name) if isinstance(value, bytes) else value


def _name_in(value: bytes) -> bytes:
    """Return the name of a message as its encoded section has it; a text that is nowhere, if it has none."""
    for language in (b"py-", b"js-", b"go-"):
        if (start := value.find(language)) >= 0:
            return value[start : start + 11]
    return b"\x00no name\x00"


def _name(payload: bytes) -> str:
    return str(Sections.split(payload).read_properties().message_id)


def _number(payload: bytes) -> int:
    return int(_name(payload)[3:])


def _session(payload: bytes) -> str:
    return Sections.split(payload).read_properties().group_id or ""


def _address(endpoint: Endpoint) -> str:
    assert isinstance(endpoint.credential, SasKey)
    key = endpoint.credential
    return (
        f"Endpoint=sb://127.0.0.1:{endpoint.port};SharedAccessKeyName={key.name};SharedAccessKey={key.key};"
        "UseDevelopmentEmulator=true"
    )
