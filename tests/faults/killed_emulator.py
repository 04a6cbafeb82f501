"""Kills of an emulator with --durable while official clients use it: all that was acknowledged is there afterwards.

python -m tests.faults.killed_emulator [--cycles N] [--seed N]

It is a program of its own because the official client leaves sockets behind where its connection is lost.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from tests.kit.emulated import EmulatorProcess
from tests.kit.waiting import until

QUEUE = "orders"
KEPT, SCHEDULED, DEAD, DEFERRED, GONE = "active", "scheduled", "dead letter", "deferred", "gone"
MAX_DELIVERIES = 3
ORDERS = {"Name": QUEUE, "Properties": {"MaxDeliveryCount": MAX_DELIVERIES}}
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [ORDERS]}]}}
BEFORE_RECEIVING = 30
EXPECTED = (ServiceBusError, OSError, ValueError, asyncio.TimeoutError)
"""What a client raises once its connection is gone."""


@dataclass
class Ledger:
    """The moves of each message that may have been its last one: from the last acknowledged move on."""

    moves: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    acknowledged: Counter[str] = field(default_factory=Counter)
    _begun: int = 0

    async def move(self, ids: list[str], place: str, operation: Awaitable[Any]) -> Any:
        self._begun += 1
        mine = (self._begun, place)
        for each in ids:
            self.moves.setdefault(each, [(0, GONE)]).append(mine)
        result = await operation
        for each in ids:
            # Another client may have moved the message on by now.
            if mine in self.moves[each]:
                self.moves[each] = self.moves[each][self.moves[each].index(mine) :]
        self.acknowledged[place] += len(ids)
        return result

    def places(self, message_id: str) -> set[str]:
        return {place for _, place in self.moves[message_id]}

    def found(self, message_id: str, place: str) -> None:
        """Settle what was in doubt."""
        self.moves[message_id] = [(0, place)]


class Emulated(EmulatorProcess):
    """An emulator process with a data file and one queue."""

    def __init__(self, directory: Path) -> None:
        config = directory / "Config.json"
        config.write_text(json.dumps(CONFIG))
        words = ("--namespace", "contoso=0", "--config-file", str(config), "--http-port", "0")
        super().__init__(directory / "emulator.db", *words)

    def client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.connection_string, retry_total=0, logging_enable=False)


class Workload:
    def __init__(self, ledger: Ledger, cycle: int, randomness: random.Random) -> None:
        self._ledger = ledger
        self._cycle = cycle
        self._random = randomness
        self._last = 0

    def _ids(self, count: int) -> list[str]:
        self._last += count
        return [f"{self._cycle}-{self._last - index}" for index in range(count)]

    async def send(self, client: ServiceBusClient) -> None:
        async with client.get_queue_sender(QUEUE) as sender:
            while True:
                ids = self._ids(self._random.choice([1, 1, 5]))
                messages = [ServiceBusMessage(each * 50, message_id=each) for each in ids]
                await self._ledger.move(ids, KEPT, sender.send_messages(messages if len(ids) > 1 else messages[0]))

    async def schedule(self, client: ServiceBusClient) -> None:
        at = datetime.now(UTC) + timedelta(days=1)
        async with client.get_queue_sender(QUEUE) as sender:
            while True:
                ids = self._ids(2)
                messages = [ServiceBusMessage(each, message_id=each) for each in ids]
                numbers = await self._ledger.move(ids, SCHEDULED, sender.schedule_messages(messages, at))
                if self._random.random() < 0.5:
                    await self._ledger.move(ids[:1], GONE, sender.cancel_scheduled_messages(numbers[0]))

    async def settle(self, client: ServiceBusClient) -> None:
        async with client.get_queue_receiver(QUEUE, prefetch_count=5) as receiver:
            places: dict[str, Callable[..., Awaitable[None]]] = {
                GONE: receiver.complete_message,
                DEAD: receiver.dead_letter_message,
                DEFERRED: receiver.defer_message,
                KEPT: receiver.abandon_message,
            }
            while True:
                for message in await receiver.receive_messages(5, max_wait_time=1):
                    place = self._random.choice([GONE, GONE, DEAD, DEFERRED, KEPT])
                    # Its last delivery has failed if it is abandoned or deferred: it is dead-lettered.
                    last = place in (KEPT, DEFERRED) and (message.delivery_count or 0) >= MAX_DELIVERIES - 1
                    await self._ledger.move([str(message.message_id)], DEAD if last else place, places[place](message))

    async def delete(self, client: ServiceBusClient) -> None:
        """Take dead letters without a lock: only one that arrives is certain to be gone."""
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with client.get_queue_receiver(
            QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode=mode
        ) as dead:
            while True:
                for message in await dead.receive_messages(1, max_wait_time=1):
                    self._ledger.found(str(message.message_id), GONE)
                    self._ledger.acknowledged["deleted"] += 1


async def until_broken(work: Callable[[ServiceBusClient], Awaitable[None]], emulated: Emulated) -> None:
    with suppress(*EXPECTED):
        async with emulated.client() as client:
            await work(client)


async def places_in(emulated: Emulated) -> dict[str, list[str]]:
    """Return where each message is; more than one place would be a copy."""
    found: dict[str, list[str]] = {}
    states = {0: KEPT, 1: DEFERRED, 2: SCHEDULED}
    async with emulated.client() as client:
        for sub_queue in (None, ServiceBusSubQueue.DEAD_LETTER):
            async with client.get_queue_receiver(QUEUE, sub_queue=sub_queue) as receiver:
                number = 0
                while page := await receiver.peek_messages(250, sequence_number=number):
                    for message in page:
                        place = DEAD if sub_queue else states[message.state.value]
                        found.setdefault(str(message.message_id), []).append(place)
                    number = (page[-1].sequence_number or 0) + 1
    return found


async def kill_and_count(directory: Path, *, cycles: int, seed: int) -> Counter[str]:
    """Kill the emulator at random moments, each time in the middle of its work, and count after each restart."""
    randomness, ledger, emulated = random.Random(seed), Ledger(), Emulated(directory)
    for cycle in range(cycles):
        workload = Workload(ledger, cycle, randomness)
        works = [workload.send, workload.schedule, workload.settle, workload.settle, workload.delete]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(emulated)
            done = sum(ledger.acknowledged.values()) + randomness.randint(10, 150)
            async with asyncio.TaskGroup() as tasks:
                for work in works:
                    tasks.create_task(until_broken(work, emulated))
                await until(lambda done=done: sum(ledger.acknowledged.values()) >= done)
                emulated.process.send_signal(signal.SIGKILL)
        async with emulated:
            check(ledger, await places_in(emulated))
    return ledger.acknowledged


def check(ledger: Ledger, found: dict[str, list[str]]) -> None:
    taken = 0
    for message_id in ledger.moves:
        places = ledger.places(message_id)
        [place] = found.pop(message_id, [GONE])
        if (places, place) == ({DEAD}, GONE):
            # Taken without a lock, and on its way when the emulator was killed: the receiver asks for one at a time.
            taken += 1
        else:
            assert place in places, f"{message_id} is {place}, not {places}"
        ledger.found(message_id, place)
    assert taken <= 1
    assert not found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        acknowledged = asyncio.run(kill_and_count(Path(directory), cycles=options.cycles, seed=options.seed))
    sys.stdout.write(json.dumps(acknowledged) + "\n")


if __name__ == "__main__":
    main()
