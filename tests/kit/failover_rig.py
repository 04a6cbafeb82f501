"""A pair on an emulator, and paired clients of both kinds behind one sync interface."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from azure.core.async_paging import AsyncItemPaged
from azure.core.paging import ItemPaged
from azure.servicebus import ServiceBusMessage

from sbpair import PairedClient, aio
from sbpair.amqp.message import Sections
from sbpair.backlog import queue_path
from sbpair.failover.entity_states import State
from sbpair.failover.events import EntityChanged, SendInDoubt
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair, SasKey
from sbpair.sync_async import LoopThread
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request
from tests.kit.pairs import BACKLOG
from tests.kit.running import Running
from tests.kit.waiting import PATIENCE_SECONDS

PRIMARY, SECONDARY = "contoso", "contoso-dr"

SLOW = pytest.mark.slow
KINDS = pytest.mark.parametrize("kind", ["sync", "aio"])
# Both decide the same: where a test is about that, the second one is slow.
SYNC_FIRST = pytest.mark.parametrize("kind", ["sync", pytest.param("aio", marks=SLOW)])
AIO_FIRST = pytest.mark.parametrize("kind", [pytest.param("sync", marks=SLOW), "aio"])

PAIRED_CLIENTS = [
    pytest.mark.filterwarnings("ignore::sbpair.ShortTimeout"),
    # The SDK leaves the sockets of failed connections to the garbage collection.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of a module that tests paired clients over sockets."""


def a_message(name: str, **fields: Any) -> ServiceBusMessage:
    return ServiceBusMessage(name.encode(), message_id=name, **fields)


class EventLog:
    """The events of a client, which another thread may wait for."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, event: Any) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, fits: Callable[[Any], bool], *, since: int = 0) -> Any:
        def found() -> list[Any]:
            return [event for event in self.events[since:] if fits(event)]

        with self._changed:
            assert self._changed.wait_for(found, PATIENCE_SECONDS), self.events
            return found()[0]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def path(self) -> list[State]:
        """The states that entities entered, in order."""
        return [event.after for event in self.of(EntityChanged)]

    @property
    def doubtful_ids(self) -> set[str]:
        return {each for event in self.of(SendInDoubt) for each in event.message_ids}


class Face:
    """An object of an async client, used as a sync program would: `run` awaits what its methods return, at once."""

    def __init__(self, wrapped: Any, run: Callable[[Any], Any]) -> None:
        self._wrapped, self._run = wrapped, run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        if not callable(value):
            return Face(value, self._run) if name.startswith("_") or name == "session" else value

        def call(*arguments: Any, **keywords: Any) -> Any:
            result = value(*arguments, **keywords)
            if isinstance(result, ItemPaged):
                return list(result)
            if isinstance(result, AsyncItemPaged):
                return self._run(collected(result))
            if inspect.isawaitable(result):
                return self._run(result)
            return Face(result, self._run) if name.endswith("_sender") else result

        return call


async def collected(pages: AsyncItemPaged[Any]) -> list[Any]:
    return [item async for item in pages]


@contextmanager
def faced(make: Callable[[], Any]) -> Iterator[Any]:
    """Give an async client or sender that lives on a loop in another thread, and close it with the loop."""
    thread = LoopThread("aio client")
    try:
        client = Face(make(), thread.run)
        try:
            client.__getattr__("__aenter__")()
            yield client
        finally:
            client.close()
    finally:
        # With the SDK's keep-alive tasks, which outlive their connections.
        thread.end(PATIENCE_SECONDS)


class Rig:
    """`orders` is a queue of the primary, beside the backlog queues of the secondary."""

    def __init__(self, running: Running, queues: int) -> None:
        self.running = running
        self.faults = running.emulator.faults
        ends = [endpoint_from_connection_string(each.connection_string, name=each.name) for each in running.ready]
        self.pair = Pair("p", *ends, backlog_queues=queues, failover_interval=0, ping_interval=1)
        self.paths = [queue_path("contoso", index) for index in range(queues)]
        self.backlog = [self.do(lambda path=path: running.other.create_queue(path, BACKLOG)) for path in self.paths]
        self.orders = self.do(lambda: running.namespace.create_queue("orders"))

    def do(self, action: Callable[[], Any]) -> Any:
        return self.running.do(action)

    @contextmanager
    def client(self, kind: str = "sync", **terms: Any) -> Iterator[tuple[Any, EventLog]]:
        log = EventLog()
        own = {name: terms.pop(name) for name in ("failover_interval", "ping_interval") if name in terms}
        arguments = {"retries": 0, "on_event": log, **terms}
        pair = replace(self.pair, **own)
        if "ping_interval" not in own:
            # Shorter than anybody may ask for.
            object.__setattr__(pair, "ping_interval", 0.2)
        made = PairedClient(pair, **arguments) if kind == "sync" else faced(lambda: aio.PairedClient(pair, **arguments))
        with made as client:
            yield client, log

    @contextmanager
    def sending(self, kind: str = "sync", **terms: Any) -> Iterator[tuple[Any, Any, EventLog]]:
        """Open a client, and give a sender to `orders`, the client, and its events."""
        with self.client(kind, **terms) as (client, log):
            yield client.get_queue_sender("orders"), client, log

    @contextmanager
    def broken(self, kind: str, *where: Any, **terms: Any) -> Iterator[None]:
        """Inject a fault for the block."""
        fault = self.do(lambda: getattr(self.faults, kind)(*where, **terms))
        try:
            yield
        finally:
            self.do(lambda: self.faults.end(fault))

    @contextmanager
    def all_broken(self, *faults: tuple[Any, ...]) -> Iterator[None]:
        """Inject several faults for the block, each a kind and its place."""
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(self.broken(*fault))
            yield

    def in_queue(self, queue: Any) -> list[Sections]:
        return [each.sections for each in self.do(lambda: queue.messages.peek(0, 1_000_000))]

    def in_backlog(self) -> list[Sections]:
        return [each for queue in self.backlog for each in self.in_queue(queue)]

    def brought_back(self) -> list[Sections]:
        """Empty the backlog with the syphon, and return the messages in the primary."""
        result = asyncio.run(runner.run(syphon_request(self.pair, once=True)))
        assert (result.exit_code, result.receipt.dead_lettered) == (0, 0), result
        assert not self.in_backlog()
        return self.in_queue(self.orders)

    def with_key(self, side: str, key: str) -> None:
        endpoint = getattr(self.pair, side)
        assert isinstance(endpoint.credential, SasKey)
        self.pair = replace(self.pair, **{side: replace(endpoint, credential=SasKey(endpoint.credential.name, key))})


def ids(messages: list[Sections]) -> list[Any]:
    return [each.read_properties().message_id for each in messages]
