"""A restart from a data file, as the official clients see it."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import ClientSession
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from sbpair.azure.atom import open_atom
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.queues import QueueSpec
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.command import environment, finished, start

ONE = [("contoso", 0)]


@pytest.fixture
def options(tmp_path: Path) -> EmulatorOptions:
    return EmulatorOptions(data=tmp_path / "emulator.db", durable=True)


def client_of(namespace: Namespace) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(namespace.connection_string)


async def test_the_clock_does_not_go_back_and_due_messages_expire(options: EmulatorOptions) -> None:
    description = QueueDescription(dead_lettering_on_message_expiration=True)
    async with Emulator(ONE, options=options, clock=ManualClock()) as emulator, ClientSession() as http:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders", description)
        async with client_of(namespace) as client, client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(hours=1)))
        async with http.post(f"http://{namespace.authority}/$control/clock", json={"advance_ms": 60_000}) as answer:
            now_ms = (await answer.json())["now_ms"]
    clock = ManualClock()
    async with Emulator(ONE, options=options, clock=clock):
        assert clock.now_ms() == now_ms
    clock = ManualClock()
    clock.advance(2 * 3_600_000)
    async with Emulator(ONE, options=options, clock=clock) as emulator:
        counts = emulator.namespaces["contoso"].queue("orders").counts()
        assert (counts.active, counts.dead_letter) == (0, 1)


async def test_a_stopped_process_has_stored_everything(tmp_path: Path) -> None:
    data = tmp_path / "data.db"
    connection_strings = []
    for run, stop in enumerate((signal.SIGTERM, signal.SIGINT)):
        process = await start("emulator", "--data", str(data), "--namespace", "contoso=0", env=environment(None))
        assert process.stdout is not None
        connection_strings.append((await process.stdout.readline()).decode().partition(": ")[2].strip())
        async with ServiceBusClient.from_connection_string(connection_strings[-1]) as client:
            if run == 0:
                async with open_atom(endpoint_from_connection_string(connection_strings[-1])) as control:
                    await control.create(QueueSpec("orders"))
            async with client.get_queue_receiver("orders") as receiver:
                assert len(await receiver.peek_messages(1_000)) == run * 100
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(100)])
        process.send_signal(stop)
        await asyncio.wait_for(finished(process), 30)
    async with Emulator(ONE, options=EmulatorOptions(data=data)) as emulator:
        assert emulator.namespaces["contoso"].queue("orders").counts().active == 200
    assert len(set(connection_strings)) == 1
