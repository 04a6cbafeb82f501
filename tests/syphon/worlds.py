"""A pair of emulated namespaces, with backlog queues and destinations; and all events of the runs between them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sbpair.amqp.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, encode_map
from sbpair.amqp.types import Symbol, Timestamp
from sbpair.amqp_server.shared_access import AccessRight
from sbpair.backlog import Aliases, queue_path, write_aliases
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.model.pair import Pair
from sbpair.syphon import runner
from sbpair.testing import Emulator
from tests.kit import moves
from tests.kit.moves import HASTY, run_syphon
from tests.kit.stranded import numbered, put

BACKLOG = QueueDescription(
    max_size_in_megabytes=5120, max_delivery_count=2**31 - 1, dead_lettering_on_message_expiration=True
)


class World(moves.World):
    """Two namespaces, some backlog queues, some destinations; and all events of the runs."""

    def __init__(self, emulator: Emulator, queues: int) -> None:
        super().__init__(emulator)
        self.primary, self.secondary = self.namespaces
        self.pair = Pair("p", *self.endpoints, backlog_queues=queues or 1)
        self.told: list[Any] = []
        self.watchers: list[Callable[[Any], None]] = []
        self.stop = asyncio.Event()

    def backlog(self, index: int = 0, **changed: Any) -> QueueEntity:
        path = queue_path("contoso", index)
        return self.secondary.find_queue(path) or self.secondary.create_queue(path, replace(BACKLOG, **changed))

    def destination(self, path: str = "orders") -> QueueEntity:
        return self.primary.find_queue(path) or self.primary.create_queue(path)

    def strand(self, *numbers: int, to: str = "orders", index: int = 0, **changed: Any) -> None:
        for number in numbers:
            put(self.backlog(index), numbered(number, to, **changed))

    def schedule(self, number: int, *, in_ms: int) -> None:
        """Store a message in the backlog that is scheduled there."""
        due = Timestamp(self.emulator.clock.now_ms() + in_ms)
        annotations = encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-scheduled-enqueue-time"): due})
        self.strand(number, sections={"message_annotations": annotations})

    def tell(self, event: Any) -> None:
        self.told.append(event)
        for watcher in self.watchers:
            watcher(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    async def told_of(self, kind: type[Any], fits: Callable[[Any], bool] = lambda _event: True) -> Any:
        happened = asyncio.Event()
        self.watchers.append(lambda event: happened.set() if isinstance(event, kind) and fits(event) else None)
        if not any(fits(event) for event in self.of(kind)):
            await happened.wait()
        return next(event for event in self.of(kind) if fits(event))

    async def run(self, *, once: bool = True, **terms: Any) -> runner.SyphonResult:
        terms = {"timings": HASTY, **terms}
        result = await run_syphon(self.pair, once=once, stop=self.stop, on_event=self.tell, **terms)
        assert result.receipt.balanced
        assert all(
            queue["received"] == sum(count for bucket, count in queue.items() if bucket != "received")
            for queue in result.receipt.queues.values()
        )
        return result

    @asynccontextmanager
    async def watching(self, **terms: Any) -> AsyncIterator[asyncio.Task[runner.SyphonResult]]:
        task = asyncio.create_task(self.run(once=False, **terms))
        try:
            yield task
        finally:
            self.stop.set()
            await task

    def may_only(self, side: str, *claims: AccessRight, key: str = "key") -> None:
        super().may_only(side, *claims, key=key)
        self.pair = replace(self.pair, primary=self.endpoints[0], secondary=self.endpoints[1])


@asynccontextmanager
async def world(
    queues: int = 1, *destinations: str, tier: str = "standard", kind: type[World] = World
) -> AsyncIterator[Any]:
    async with Emulator([("contoso", 0, tier), ("contoso-dr", 0, tier)]) as emulator:
        made = kind(emulator, queues)
        for index in range(queues):
            made.backlog(index)
        for path in destinations or ("orders",):
            made.destination(path)
        yield made


def names(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


def with_property(name: str, value: Any) -> dict[str, Any]:
    own = {**write_aliases(Aliases("orders")), name: value}
    return {"application_properties": encode_map(APPLICATION_PROPERTIES, own)}


def after(engine: Any, method: str, act: Callable[[], Any], *, times: int = 1, skip: int = 0) -> None:
    """Do something each time that an engine has done something, so often."""
    call, counted = getattr(engine, method), Counter[str]()

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        result = call(*arguments, **keywords)
        counted["calls"] += 1
        if skip < counted["calls"] <= skip + times:
            act()
        return result

    setattr(engine, method, wrapped)


def fill(queue: QueueEntity) -> Callable[[], None]:
    """Make a queue full; what is answered makes room again."""
    limit, queue._max_bytes = queue._max_bytes, 0

    def room() -> None:
        queue._max_bytes = limit

    return room
