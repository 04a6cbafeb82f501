"""`kill -9` of a watching syphon, at moments chosen by what the namespaces just did; then `--once`, and a count."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from typing import Any

import pytest

from sbpair.amqp_client.client import connect
from sbpair.backlog import Aliases, queue_path
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator
from tests.kit.command import environment
from tests.kit.stranded import stranded

MESSAGES = 60
QUEUES = 2
DESTINATIONS = ("orders", "invoices")

MOMENTS = [
    *(("locked", nth) for nth in (1, 7, 30, 60)),
    *(("accepted", nth) for nth in (1, 2, 3, 10, 20, 29, 30, 31, 45, 59, 60)),
    *(("completed", nth) for nth in (1, 2, 5, 15, 30, 45, 58, 59, 60)),
]


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


async def syphon(emulator: Emulator, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sbpair", "syphon", *options),
        env=environment(emulator),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


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


async def killed_and_finished(what: str, nth: int) -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        for name in DESTINATIONS:
            emulator.namespaces["contoso"].create_queue(name)
        for index in range(QUEUES):
            emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", index))
        ids = await strand(emulator)
        trigger = Trigger(emulator, what, nth)

        # Little is held, so that many moments lie between the first message and the last.
        trigger.process = await syphon(emulator, "--watch", "--max-held", "2")
        await trigger.fired.wait()
        assert await trigger.process.wait() == -signal.SIGKILL
        await trigger.process.communicate()
        accepted_at_kill = in_primary(emulator)
        still_there = in_backlog(emulator)
        in_both = accepted_at_kill.total() + still_there - MESSAGES

        process = await syphon(emulator, "--once", "--output", "json")
        out, told = await process.communicate()
        assert process.returncode == 0, told.decode()
        receipt = json.loads(out)

        arrived = in_primary(emulator)
        assert set(arrived) == ids, "messages were lost"
        assert in_backlog(emulator) == 0
        assert receipt["received"] == receipt["sent"] + receipt["already_sent"] == still_there
        # What the primary has and the backlog too is not sent again, unless nobody was told that the primary has it.
        twice = {message_id for message_id, count in arrived.items() if count > 1}
        assert receipt["already_sent"] + arrived.total() - MESSAGES == in_both
        assert twice <= {named["message_id"] for named in receipt["doubtful"]}
        assert all(accepted_at_kill[message_id] for message_id in twice)


@pytest.mark.timeout_seconds(120)
@pytest.mark.parametrize(("what", "nth"), MOMENTS)
async def test_a_killed_syphon_loses_nothing(what: str, nth: int) -> None:
    await killed_and_finished(what, nth)
