"""Fixtures: a namespace on a manual clock, queues in it, and messages."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sbpair import timespan
from sbpair.amqp.message import Sections
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.faults.fault_kinds import Faults
from tests.emulator.atom_client import open_manager
from tests.emulator.peer import open_peer, open_stage
from tests.emulator.relay_peers import open_bench
from tests.emulator.strict_http import _strict_http
from tests.kit.async_tests import InLoop

__all__ = ["_strict_http"]

MakeQueue = Callable[..., QueueEntity]


@pytest.fixture
def stage() -> InLoop:
    return InLoop(open_stage)


@pytest.fixture
def peer() -> InLoop:
    """Connect a scripted peer to a stage of its own."""
    return InLoop(open_peer)


@pytest.fixture
def bench() -> InLoop:
    """Connect peers of the relay to an emulator of their own."""
    return InLoop(open_bench)


@pytest.fixture
def manager() -> InLoop:
    """Connect a client of Atom to an emulator of its own."""
    return InLoop(open_manager)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def namespace(clock: ManualClock) -> Namespace:
    return Namespace("contoso", clock)


@pytest.fixture
def advance(namespace: Namespace, clock: ManualClock) -> Callable[[int], None]:
    """Advance the clock by milliseconds and run the timers, as the server does."""

    def pass_time(ms: int) -> None:
        clock.advance(ms)
        namespace.timers.advance(clock.now_ms())

    return pass_time


@pytest.fixture
def faults(namespace: Namespace, advance: Callable[[int], None]) -> Faults:
    return Faults({"contoso": namespace}, advance)


@pytest.fixture
def queue(make_queue: MakeQueue) -> QueueEntity:
    return make_queue()


@pytest.fixture
def make_queue(namespace: Namespace) -> MakeQueue:
    """Create a queue [default: orders]; durations are text."""

    def make(path: str = "orders", **fields: object) -> QueueEntity:
        read = {name: timespan.parse(value) if str(value).startswith("P") else value for name, value in fields.items()}
        return namespace.create_queue(path, replace(QueueDescription(), **read))

    return make


@pytest.fixture
def put(queue: QueueEntity) -> Callable[..., list[StoredMessage]]:
    """Send `count` messages of 100 bytes to the queue."""

    def send(count: int = 1, to: QueueEntity = queue, **fields: object) -> list[StoredMessage]:
        messages = [StoredMessage(Sections(), 100, **fields) for _ in range(count)]
        to.send(messages)
        return messages

    return send
