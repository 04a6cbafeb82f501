"""Throttling by credits and the limit of connections, seen by clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from sbpair.amqp_client.client import connect
from sbpair.errors import Throttled, Unreachable
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator, EmulatorOptions, ManualClock
from tests.kit.sas import sign

MESSAGE = bytes.fromhex("005375a0026869")


def test_the_official_client_reports_a_busy_service(another: Any, official: Any) -> None:
    with another(options=EmulatorOptions(credits=5), clock=ManualClock()) as meagre:
        queue = meagre.queue()
        with official.sender(meagre.connection_string, queue.path) as sender:
            for _ in range(5):
                sender.send_messages(ServiceBusMessage("one credit"))
            with pytest.raises(ServiceBusServerBusyError, match="50009"):
                sender.send_messages(ServiceBusMessage("one too many"))
            meagre.advance(1)
            sender.send_messages([ServiceBusMessage("a batch costs what it holds") for _ in range(5)])
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("one too many"))


async def test_deliveries_follow_the_credits() -> None:
    async with (
        asyncio.timeout(30),
        Emulator([("contoso", 0)], clock=ManualClock(), options=EmulatorOptions(credits=3)) as it,
    ):
        queue = it.namespaces["contoso"].create_queue("orders")
        async with connect(endpoint_from_connection_string(it.ready.namespaces[0].connection_string)) as wire:
            sender, receiver = await wire.sender("orders"), await wire.receiver("orders")
            for _ in range(2):
                it.advance(1_000)
                for _ in range(3):
                    await sender.send(MESSAGE)
            it.advance(1_000)
            receiver.grant(6)
            for _ in range(3):
                assert len(await receiver.take(1, seconds=10)) == 1
            with pytest.raises(Throttled):
                await wire.peek("orders", 0, 1)
            assert queue.messages.locked_count == 3
            it.advance(1_000)
            for _ in range(3):
                assert len(await receiver.take(1, seconds=10)) == 1


async def test_a_management_request_costs_ten() -> None:
    async with Emulator([("contoso", 0)], clock=ManualClock(), options=EmulatorOptions(credits=15)) as emulator:
        namespace = emulator.namespaces["contoso"]
        token = sign(namespace.keys[0], f"sb://{namespace.authority}", namespace.clock.now_ms() // 1000 + 60)
        url = f"http://{namespace.authority}/$namespaceinfo?api-version=2021-05"
        answers = []
        async with ClientSession(headers={"Authorization": token}) as session:
            for _ in range(3):
                async with session.get(url) as answer:
                    answers.append((answer.status, "SubCode=50004" in await answer.text()))
        assert answers == [(200, False), (200, False), (429, True)]


async def test_one_connection_too_many_is_refused() -> None:
    async with asyncio.timeout(30), Emulator([("contoso", 0)]) as emulator:
        namespace = emulator.namespaces["contoso"]
        namespace.create_queue("orders")
        namespace.fault_points.max_connections = 1
        endpoint = endpoint_from_connection_string(namespace.connection_string)
        async with connect(endpoint) as first:
            sender = await first.sender("orders")
            with pytest.raises(Unreachable, match="ConnectionsQuotaExceeded"):
                async with connect(endpoint) as second:
                    await second.sender("orders")
            await sender.send(MESSAGE)
        async with connect(endpoint) as again:
            await (await again.sender("orders")).send(MESSAGE)
