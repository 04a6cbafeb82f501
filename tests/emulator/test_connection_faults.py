"""Faults of connections and links, as the AMQP client sees them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.errors import AccessError, EntityMissing, InDoubt, Throttled, Unavailable, Unreachable
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Transport
from sbpair.testing import Emulator
from tests.emulator.peer import Stage
from tests.kit.async_tests import InLoop
from tests.kit.waiting import PATIENCE_SECONDS, until

MESSAGE = bytes.fromhex("005375a0026869")


class Scene(Stage):
    """A stage, and the product's own client over one transport."""

    def __init__(self, emulator: Emulator, transport: Transport) -> None:
        super().__init__(emulator)
        self.faults = emulator.faults
        endpoint = endpoint_from_connection_string(self.namespace.connection_string)
        self.wire = partial(connect, replace(endpoint, transport=transport))


@asynccontextmanager
async def open_scene(transport: Transport) -> AsyncIterator[Scene]:
    async with Emulator([("contoso", 0)]) as emulator:
        yield Scene(emulator, transport)


@pytest.fixture(params=Transport)
def scene(request: pytest.FixtureRequest) -> InLoop:
    return InLoop(partial(open_scene, request.param))


@pytest.mark.parametrize("kind", ["drop", "reset"])
@pytest.mark.parametrize("frames", [0, 1, 2])
async def test_a_connection_breaks_after_the_given_frames(scene: Scene, kind, frames) -> None:
    async with scene.wire() as wire:
        sender = await scene_sender(wire)
        getattr(scene.faults, kind)("contoso", frames)
        for _ in range(frames):
            await sender.send(MESSAGE, seconds=PATIENCE_SECONDS)
        with pytest.raises((InDoubt, Unreachable)):
            await sender.send(MESSAGE, seconds=PATIENCE_SECONDS)
        assert wire.error is not None
    assert scene.queue.counts().active == frames


async def scene_sender(wire: AmqpClient):
    sender = await wire.sender("orders")
    await sender.ready()
    return sender


async def test_count_connections_break(scene: Scene) -> None:
    scene.faults.reset("contoso", 3, count=1)
    with pytest.raises(Unavailable):
        async with scene.wire() as wire:
            await scene_sender(wire)
    async with scene.wire() as wire:
        await (await scene_sender(wire)).send(MESSAGE)


async def test_a_connection_without_the_entity_continues(scene: Scene) -> None:
    scene.namespace.create_queue("invoices")
    async with scene.wire() as wire, scene.wire() as other:
        orders, invoices = await wire.sender("orders"), await other.sender("invoices")
        with scene.faults.during("reset", "contoso", entity="orders"):
            await invoices.send(MESSAGE)
            with pytest.raises(Unavailable):
                await orders.send(MESSAGE)


async def test_a_stalled_connection_continues_where_it_stopped(scene: Scene) -> None:
    async with scene.wire() as wire, scene.wire() as other:
        sender, unharmed = await scene_sender(wire), await scene_sender(other)
        stall = scene.faults.stall("contoso", 1, count=1)
        await sender.send(MESSAGE)
        sending = [asyncio.create_task(sender.send(MESSAGE), name=f"send-{number}") for number in range(2)]
        await asyncio.sleep(0)
        for _ in range(3):
            await unharmed.send(MESSAGE)
        assert not any(task.done() for task in sending)
        assert scene.queue.counts().active == 4
        scene.faults.end(stall)
        await asyncio.gather(*sending)
    assert scene.queue.counts().active == 6


async def test_latency_delays_answers_in_order(scene: Scene) -> None:
    loop = asyncio.get_running_loop()
    async with scene.wire() as wire:
        sender = await scene_sender(wire)
        with scene.faults.during("latency", "contoso", ms=100):
            started = loop.time()
            await asyncio.gather(*(sender.send(MESSAGE) for _ in range(5)))
            assert loop.time() - started >= 0.1
            async with scene.wire() as another:
                await another.receiver("orders")
        await sender.send(MESSAGE)
        points = scene.namespace.fault_points
        await until(lambda: [each.faults for each in points.connections] == [None])


async def test_an_accepted_send_is_never_acknowledged(scene: Scene) -> None:
    async with scene.wire() as wire:
        sender = await scene_sender(wire)
        with scene.faults.during("swallow-acks", "contoso", entity="orders", count=1):
            with pytest.raises(InDoubt):
                await sender.send(MESSAGE, seconds=0.05)
            await sender.send(MESSAGE)
    assert scene.queue.counts().active == 2


async def test_detached_links_can_be_attached_again(scene: Scene) -> None:
    async with scene.wire() as wire:
        sender, receiver = await scene_sender(wire), await wire.receiver("orders")
        await sender.send(MESSAGE)
        receiver.grant(1)
        (delivery,) = await receiver.take(1, seconds=PATIENCE_SECONDS)
        scene.faults.detach("contoso", "orders")
        with pytest.raises(Unavailable, match="force detached"):
            await sender.send(MESSAGE)
        assert wire.error is None
        await (await scene_sender(wire)).send(MESSAGE)
        assert scene.queue.messages.locked_count == 1
        assert delivery is not None


async def test_a_client_whose_tokens_expired_signs_in_again(scene: Scene) -> None:
    async with scene.wire() as wire:
        sender = await scene_sender(wire)
        scene.faults.expire_tokens("contoso")
        with pytest.raises((AccessError, InDoubt), match="ExpiredToken"):
            await sender.send(MESSAGE, seconds=PATIENCE_SECONDS)
    async with scene.wire() as wire:
        await (await scene_sender(wire)).send(MESSAGE, seconds=PATIENCE_SECONDS)
    assert scene.queue.counts().active == 1


async def test_an_entity_that_is_down_refuses_links(scene: Scene) -> None:
    scene.namespace.create_queue("orders/other")
    async with scene.wire() as wire:
        sender, other = await scene_sender(wire), await wire.sender("orders/other")
        down = scene.faults.entity_down("contoso", "orders")
        with pytest.raises(Unavailable):
            await sender.send(MESSAGE)
        with pytest.raises(Unreachable, match="not available"):
            await wire.sender("orders")
        with pytest.raises(Unreachable):
            await wire.receiver("orders/$deadletterqueue")
        with pytest.raises(EntityMissing):
            await wire.sender("nowhere")
        await other.send(MESSAGE)
        scene.faults.end(down)
        await (await scene_sender(wire)).send(MESSAGE)


async def test_a_throttled_namespace_is_busy_and_holds_deliveries(scene: Scene) -> None:
    async with scene.wire() as wire:
        sender, receiver = await scene_sender(wire), await wire.receiver("orders")
        await sender.send(MESSAGE)
        throttle = scene.faults.throttle("contoso")
        with pytest.raises(Throttled, match="50009"):
            await sender.send(MESSAGE)
        with pytest.raises(Throttled):
            await wire.peek("orders", 0, 1)
        receiver.grant(1)
        with pytest.raises(Throttled):
            await wire.peek("orders", 0, 1)
        assert scene.queue.messages.locked_count == 0
        scene.faults.end(throttle)
        assert len(await receiver.take(1, seconds=PATIENCE_SECONDS)) == 1
