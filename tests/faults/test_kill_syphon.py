"""`kill -9` of a watching syphon, at moments chosen by what the namespaces just did; then `--once`, and a count."""

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from sbpair.amqp_client.client import connect
from sbpair.backlog import Aliases, queue_path
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator
from tests.kit.command import environment
from tests.kit.stranded import stranded

MESSAGES = 60
KEY = "a2V5"
LOCK_MS = 61_000
QUEUES = 2
DESTINATIONS = ("orders", "invoices")

MOMENTS = [
    *(("locked", nth) for nth in (1, 60)),
    *(("accepted", nth) for nth in (1, 2, 30, 31, 60)),
    *(("completed", nth) for nth in (1, 30, 59, 60)),
]
MORE_MOMENTS = [
    *(("locked", nth) for nth in (7, 30)),
    *(("accepted", nth) for nth in (3, 10, 20, 29, 45, 59)),
    *(("completed", nth) for nth in (2, 5, 15, 45, 58)),
]
"""Moments between those, which a simulated schedule has too."""


class Trigger:
    """Kills a process inside the very call in which the namespaces do something for the nth time."""

    def __init__(self, emulator: Emulator, what: str, nth: int) -> None:
        self.fired = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._left = nth
        primary, secondary = emulator.namespaces["contoso"], emulator.namespaces["contoso-dr"]
        backlog = [secondary.queue(queue_path("contoso", index)).messages for index in range(QUEUES)]
        if what == "accepted":
            self._on(
                "enqueue",
                [primary.queue(name).messages for name in DESTINATIONS],
                lambda _made, messages: len(messages),
            )
        elif what == "locked":
            self._on("receive", backlog, lambda made, *_: len(made))
        else:
            self._on("complete_all", backlog, lambda _made, tokens: len(tokens))

    def _on(self, method: str, engines: list[Any], count: Any) -> None:
        for engine in engines:
            setattr(engine, method, self._watched(getattr(engine, method), count))

    def _watched(self, call: Any, count: Any) -> Any:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            result = call(*arguments, **keywords)
            if self.process is not None and not self.fired.is_set():
                self._left -= count(result, *arguments)
                if self._left <= 0:
                    os.kill(self.process.pid, signal.SIGKILL)
                    self.fired.set()
            return result

        return watched


async def strand(emulator: Emulator) -> set[str]:
    """Put messages into the backlog; answers their ids."""
    [_, secondary] = emulator.ready.namespaces
    ids = [f"m{number}" for number in range(MESSAGES)]
    async with connect(endpoint_from_connection_string(secondary.connection_string)) as wire:
        senders = [await wire.sender(queue_path("contoso", index)) for index in range(QUEUES)]
        for number, message_id in enumerate(ids):
            aliases = Aliases(DESTINATIONS[number // 2 % 2], f"session-{number % 3}", 36_000_000_000)
            await senders[number % QUEUES].send(stranded(message_id, aliases, message_id.encode()))
    return set(ids)


async def syphon(emulator: Emulator, *options: str, managed: bool = True) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sbpair", "syphon", *options),
        env=environment(emulator) if managed else without_manage(emulator),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def without_manage(emulator: Emulator) -> dict[str, str]:
    """An environment with keys that may only send to the primary, and listen in the secondary."""
    found = environment(emulator)
    for side, name, claim in (
        ("PRIMARY", "contoso", AccessRight.SEND),
        ("SECONDARY", "contoso-dr", AccessRight.LISTEN),
    ):
        namespace = emulator.namespaces[name]
        namespace.keys = (*namespace.keys, AuthorizationRule("only", KEY, KEY, frozenset({claim})))
        variable = f"SBPAIR_{side}_CONNECTION_STRING"
        endpoint = found[variable].partition(";")[0]
        found[variable] = f"{endpoint};SharedAccessKeyName=only;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
    return found


async def finished(emulator: Emulator, process: asyncio.subprocess.Process) -> tuple[bytes, str]:
    """What a process prints. As soon as it waits for locks, they run out."""
    lines: list[str] = []

    async def listen() -> None:
        async for line in process.stderr:
            lines.append(line.decode())
            if "waiting (--no-wait-for-locks" in lines[-1]:
                emulator.advance(LOCK_MS)

    _, out = await asyncio.gather(listen(), process.stdout.read())
    await process.wait()
    return out, "".join(lines)


def locked_in_backlog(emulator: Emulator) -> int:
    secondary = emulator.namespaces["contoso-dr"]
    return sum(secondary.queue(queue_path("contoso", index)).messages.locked_count for index in range(QUEUES))


def in_primary(emulator: Emulator) -> Counter[str]:
    primary = emulator.namespaces["contoso"]
    return Counter(
        message.sections.read_properties().message_id
        for name in DESTINATIONS
        for message in primary.queue(name).messages.peek(0, 10 * MESSAGES)
    )


def in_backlog(emulator: Emulator) -> int:
    secondary = emulator.namespaces["contoso-dr"]
    return sum(secondary.queue(queue_path("contoso", index)).counts().total for index in range(QUEUES))


@dataclass
class Killed:
    """A syphon was killed: what the primary has by then, what the backlog still has, and how much of that is locked."""

    ids: set[str]
    accepted: Counter[str]
    remaining: int
    locked: int


async def kill(emulator: Emulator, what: str, nth: int, *options: str) -> Killed:
    for name in DESTINATIONS:
        emulator.namespaces["contoso"].create_queue(name)
    for index in range(QUEUES):
        emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", index))
    ids = await strand(emulator)
    trigger = Trigger(emulator, what, nth)
    # Little is held, so that many moments lie between the first message and the last.
    trigger.process = await syphon(emulator, "--watch", "--max-held", "2", *options)
    await trigger.fired.wait()
    assert await trigger.process.wait() == -signal.SIGKILL
    await trigger.process.communicate()
    killed = Killed(ids, in_primary(emulator), in_backlog(emulator), locked_in_backlog(emulator))
    assert killed.locked or what == "completed"
    return killed


def doubtful(receipt: dict[str, Any]) -> set[str]:
    return {named["message_id"] for named in receipt["doubtful"]}


ONCE = ("--once", "--output", "json", "--count", str(QUEUES))


@pytest.mark.timeout_seconds(120)
@pytest.mark.parametrize(
    ("what", "nth"), [*MOMENTS, *(pytest.param(*moment, marks=pytest.mark.slow) for moment in MORE_MOMENTS)]
)
async def test_a_killed_syphon_loses_nothing(what: str, nth: int) -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        killed = await kill(emulator, what, nth)
        await move_the_rest(emulator, killed, managed=nth % 2 == 0)


async def move_the_rest(emulator: Emulator, killed: Killed, *, managed: bool) -> None:
    """Run again at once, with or without Manage, and account for every message."""
    in_both = killed.accepted.total() + killed.remaining - MESSAGES
    process = await syphon(emulator, *ONCE, managed=managed)
    out, told = await finished(emulator, process)
    assert process.returncode == 0, told
    assert ("waiting (--no-wait-for-locks" in told) == bool(killed.locked)
    receipt = json.loads(out)

    arrived = in_primary(emulator)
    assert set(arrived) == killed.ids, "messages were lost"
    assert in_backlog(emulator) == receipt["locked"] == 0
    # Each was delivered once more.
    assert receipt["received"] == receipt["sent"] + receipt["already_sent"] == killed.remaining
    # What the primary has and the backlog too is not sent again, unless nobody was told that the primary has it.
    twice = {message_id for message_id, count in arrived.items() if count > 1}
    assert receipt["already_sent"] + arrived.total() - MESSAGES == in_both
    assert twice <= doubtful(receipt)
    assert all(killed.accepted[message_id] for message_id in twice)


@pytest.mark.timeout_seconds(120)
@pytest.mark.parametrize(
    ("what", "nth"),
    [
        *(("locked", 60), ("accepted", 1), ("accepted", 16), ("completed", 30)),
        *(pytest.param(*moment, marks=pytest.mark.slow) for moment in MORE_MOMENTS if moment[1] <= 30),
    ],
)
async def test_a_killed_syphon_with_a_filter_loses_nothing(what: str, nth: int) -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        killed = await kill(emulator, what, nth, "--where", f"path = '{DESTINATIONS[1]}'")
        await move_the_rest(emulator, killed, managed=nth % 2 == 0)


@pytest.mark.timeout_seconds(120)
@pytest.mark.parametrize("managed", [True, False])
async def test_what_a_killed_syphon_left_locked_is_left_and_counted_if_asked(managed: bool) -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        killed = await kill(emulator, "accepted", 10)
        process = await syphon(emulator, *ONCE, "--no-wait-for-locks", managed=managed)
        out, told = await process.communicate()
        assert process.returncode == 3, told.decode()
        receipt = json.loads(out)
        assert (receipt["received"], receipt["locked"]) == (killed.remaining - killed.locked, killed.locked)
        assert receipt["remaining"]["messages"] == killed.locked == in_backlog(emulator)
        named = re.findall(r"warning: (\d+) messages? in .* locked by another receiver", told.decode())
        assert sum(map(int, named)) == killed.locked  # the queues are named together, or one after the other
        emulator.advance(LOCK_MS)
        process = await syphon(emulator, *ONCE, "--no-wait-for-locks", managed=managed)
        out, _ = await process.communicate()
        assert (process.returncode, in_backlog(emulator)) == (0, 0)
        arrived = in_primary(emulator)
        assert set(arrived) == killed.ids
        # The first run named them as possible, this one since it sent them.
        twice = {message_id for message_id, count in arrived.items() if count > 1}
        assert twice
        assert twice <= doubtful(receipt)
        assert twice <= doubtful(json.loads(out)) <= doubtful(receipt)
        process = await syphon(emulator, *ONCE, managed=managed)
        out, _ = await process.communicate()
        assert (process.returncode, doubtful(json.loads(out))) == (0, set())
