"""`kill -9` of a syphon to the secondary, half of whose messages the lost primary had accepted; then a count."""

import asyncio
import json
import signal
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.runs.database import RunDatabase
from sbpair.runs.journal import message_key
from sbpair.runs.run_log import all_runs
from sbpair.syphon.run_request import syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from sbpair.testing import Emulator
from tests.faults.test_kill_move import LARGE, finished
from tests.kit.command import environment, start
from tests.kit.moves import World, ids, peeked
from tests.kit.pairs import pair_on
from tests.kit.stranded import numbered, put

MESSAGES = 20
KILLS = 10


def accept_half(emulator: Emulator, directory: Path, backlog: QueueEntity, primary: QueueEntity) -> set[object]:
    """Let the primary have half of the messages, by a run that nobody ended. Return their ids."""
    request = syphon_request(pair_on(emulator), once=True, lease=False)
    with RunStore(request, directory, LiveRun()) as crashed:
        for number, each in enumerate(peeked(backlog)):
            if number % 2 == 0:
                put(primary, each.sections.join())
                facts = (backlog.path, each.sequence_number, each.enqueued_at_ms, f"m{number}")
                crashed.journal.note_accepted(
                    crashed.journal.note_sending([[message_key("contoso-dr", facts)]], "orders")
                )
    return set(ids(primary))


async def kill_at_each_step(when: str, folder: Path, steps: int | None = None) -> int:
    """Kill a run at each step, and start the next one. Return the number of kills."""
    connections = 0

    def refuse(_reader: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.transport.abort()

    async with Emulator() as emulator, await asyncio.start_server(refuse, "127.0.0.1", 0) as lost:
        w, env = World(emulator), environment(emulator)
        address = w.endpoints[0].amqp_address, f"127.0.0.1:{lost.sockets[0].getsockname()[1]}"
        env["SBPAIR_PRIMARY_CONNECTION_STRING"] = env["SBPAIR_PRIMARY_CONNECTION_STRING"].replace(*address)
        assert address[1] in env["SBPAIR_PRIMARY_CONNECTION_STRING"]

        async def deliver(directory: Path, *kill: str) -> Any:
            program = ("-m", "tests.faults.killed_at_journal" if kill else "sbpair")
            words = ("syphon", "--once", "--to", "secondary", "-o", "json", "--state", str(directory), "--rate", "1000")
            process = await start(*kill, *words, env=env | {"XDG_STATE_HOME": str(directory)}, program=program)
            out, told = await finished(emulator, process)
            assert process.returncode in (0, -signal.SIGKILL), told
            return json.loads(out) if out else None

        for nth in count(1):
            directory, name = folder / str(nth), f"orders-{nth}"
            backlog = w.create("queue", queue_path("contoso", nth), 1)[1]
            primary, there = (w.create("queue", name, side)[1] for side in (0, 1))
            for number in range(MESSAGES):
                put(backlog, numbered(number, name, size=LARGE))
            in_primary, wanted = accept_half(emulator, directory, backlog, primary), Counter(ids(backlog))
            receipt = await deliver(directory, when, str(nth))
            killed = receipt is None
            if killed:
                receipt = await deliver(directory)
            arrived = Counter(ids(there))
            assert set(arrived) == set(wanted), "messages were lost"
            assert not ids(backlog)
            # A run that was killed after its end has recorded its receipt, and printed none.
            with RunDatabase(directory, pair_on(emulator).ends) as state:
                told = [each for run in all_runs(state) for each in (run.receipt or {}).get("doubtful", ())]
            also = {each["message_id"] for each in told if "also accepted by contoso" in each["reason"]}
            assert also == in_primary
            assert {message for message, times in arrived.items() if times > 1} <= {each["message_id"] for each in told}
            if not killed or nth == steps:
                break
    assert connections == 0
    return nth - (not killed)


@pytest.mark.timeout_seconds(600)
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
async def test_kills_on_the_way_to_the_secondary_lose_nothing(when: str, tmp_path: Path) -> None:
    assert await kill_at_each_step(when, tmp_path) >= KILLS


async def test_a_kill_in_the_first_batch_to_the_secondary_loses_nothing(tmp_path: Path) -> None:
    assert await kill_at_each_step("after", tmp_path, 3) == 3
