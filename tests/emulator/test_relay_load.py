"""Streams in constant memory, and back-pressure, over real sockets."""

import asyncio
import hashlib
import json
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import WSMsgType
from websockets.asyncio.client import connect

from tests.emulator.relay_peers import RelayBench
from tests.kit.waiting import until

MEGABYTE = 1024 * 1024
SIZE = 100 * MEGABYTE
PART = bytes(range(256)) * 256
MAX_GROWTH = 24 * MEGABYTE


@contextmanager
def flat_memory() -> Iterator[None]:
    """Fail if the memory in use grows by a good part of what is streamed. Both ends run in this process too."""
    before = peak_bytes()
    yield
    assert peak_bytes() - before < MAX_GROWTH


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def parts() -> AsyncIterator[bytes]:
    for _ in range(SIZE // len(PART)):
        yield PART


def response_to(request: dict[str, Any], *, has_body: bool = True) -> str:
    return json.dumps({"response": {"requestId": request["id"], "statusCode": 200, "body": has_body}})


def digest() -> str:
    found = hashlib.sha256()
    for _ in range(SIZE // len(PART)):
        found.update(PART)
    return found.hexdigest()


async def test_100_megabytes_up_and_down_in_constant_memory(bench: RelayBench) -> None:
    """A listener that sends and receives fragments echoes a body."""
    listener = await bench.listen()

    async def echo() -> None:
        pointer = await listener.next("request")
        async with connect(pointer["address"], compression=None, max_size=None) as meeting:
            request = json.loads(await meeting.recv())["request"]
            await meeting.send(response_to(request))
            await meeting.send(meeting.recv_streaming(decode=False))
            await meeting.wait_closed()

    async with asyncio.TaskGroup() as group:
        group.create_task(echo())
        with flat_memory():
            async with bench.request("POST", data=parts()) as answer:
                found = hashlib.sha256()
                async for part in answer.content.iter_any():
                    found.update(part)
    assert found.hexdigest() == digest()


async def test_100_megabytes_pass_through_a_websocket_in_constant_memory(bench: RelayBench) -> None:
    listener = await bench.listen()
    connecting = asyncio.create_task(bench.connect())
    _, accepted = await listener.accept()
    sender, found = await connecting, hashlib.sha256()

    async def send() -> None:
        async for part in parts():
            await sender.send_bytes(part)
        await sender.close()

    with flat_memory():
        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            while (message := await accepted.receive()).type is WSMsgType.BINARY:
                found.update(message.data)
    assert found.hexdigest() == digest()


class Flood:
    """A body without an end, until it is held back."""

    def __init__(self) -> None:
        self.is_held = False
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self.is_held:
            self.sent += len(PART)
            yield PART


async def test_a_sender_that_does_not_read_holds_the_listener_back(bench: RelayBench) -> None:
    _, asking, request = await bench.asked()
    flood = Flood()
    async with connect(request["address"], compression=None) as meeting, asyncio.TaskGroup() as group:
        await meeting.send(response_to(request))
        answer = await asking
        group.create_task(meeting.send(flood))
        [waiting] = bench.namespace.hybrid_connections.waiting.values()
        transport = waiting._rendezvous.connection._transport  # type: ignore[union-attr]
        await until(lambda: not transport.is_reading())
        flood.is_held = True
        assert len(await answer.read()) == flood.sent


async def test_a_listener_that_does_not_read_holds_the_sender_back(bench: RelayBench) -> None:
    listener, flood = await bench.listen(), Flood()
    asking = bench.ask("POST", data=flood)
    pointer = await listener.next("request")
    async with connect(pointer["address"], compression=None, max_queue=1, max_size=None) as meeting:
        request = json.loads(await meeting.recv())["request"]
        [waiting] = bench.namespace.hybrid_connections.waiting.values()
        await until(lambda: not waiting._rendezvous.connection._writable.is_set())  # type: ignore[union-attr]
        flood.is_held = True
        received = 0
        async for part in meeting.recv_streaming(decode=False):
            received += len(part)
        await meeting.send(response_to(request, has_body=False))
    assert (await asking).status == 200
    assert received == flood.sent
