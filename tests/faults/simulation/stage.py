"""Two namespaces and a syphon in virtual time, for a test that says itself what happens when."""

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from sbpair.amqp_server.refusals import EntityFull
from sbpair.backlog import queue_path
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection
from sbpair.emulator.frontends.amqp.message_links import OutgoingLink
from sbpair.move.events import QueueOpened
from sbpair.syphon import runner
from tests.faults.simulation.faults import PRIMARY_NAME, make_backlog
from tests.faults.simulation.loop import VirtualLoop
from tests.faults.simulation.network import Network, Weather
from tests.faults.simulation.world import Control, World, made_virtual
from tests.kit.moves import run_syphon
from tests.kit.stranded import stranded


class Stage:
    """`told` are the syphon's events, each with the second in which it came."""

    world: World

    def __init__(self, loop: VirtualLoop, *, queues: int, managed: bool) -> None:
        self.loop = loop
        self.random = Random(1)
        self.network = Network(loop, self.random, Weather(pieces=0.0), lambda _: None)
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.told: list[tuple[float, Any]] = []
        self.listed = 0
        self._queues = queues
        self._managed = managed

    def set_up(self) -> None:
        self.world = World(self.loop, self.network, queues=self._queues)
        for index in range(self._queues):
            make_backlog(self.world.secondary, index)

    def tool_time(self) -> float:
        return self.world.tool_time()

    def control(self) -> Control:
        stage = self

        class Counted(Control):
            async def list_under(self, prefix: str, *, counts: bool = False) -> Any:
                stage.listed += 1
                return await super().list_under(prefix, counts=counts)

        return Counted(self.world, self.random, granted=self._managed)

    def backlog(self, index: int = 0) -> Any:
        return self.world.secondary.find_queue(queue_path(PRIMARY_NAME, index))

    def destination(self, name: str = "orders") -> Any:
        primary = self.world.primary
        return primary.find_queue(name) or primary.create_queue(name, QueueDescription())

    def strand(self, *numbers: int, to: str = "orders", index: int = 0) -> None:
        for number in numbers:
            self.put(stranded(f"m{number}", to, b"x"), index)

    def put(self, payload: bytes, index: int = 0) -> None:
        message = service_envelope.read_message(payload)
        assert message is not None
        self.backlog(index).send([message])

    def ids(self, queue: Any) -> list[str]:
        return [each.sections.read_properties().message_id for each in queue.messages.peek(0, 10_000)]

    def start(self, *, once: bool = False, **terms: Any) -> asyncio.Task[runner.SyphonResult]:
        running = run_syphon(
            self.world.pair,
            once=once,
            stop=self.stop,
            hurry=self.hurry,
            on_event=lambda event: self.told.append((self.loop.time(), event)),
            **terms,
        )
        return asyncio.create_task(running)

    @asynccontextmanager
    async def watching(self, **terms: Any) -> AsyncIterator[asyncio.Task[runner.SyphonResult]]:
        """Watch until the end of the block. A stop then has to end it with 0."""
        task = self.start(**terms)
        yield task
        self.stop.set()
        assert (await task).exit_code == 0

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for _, event in self.told if isinstance(event, kind)]

    async def until(self, holds: Callable[[], Any], seconds: float = 300.0) -> float:
        """Wait until something holds; the second in which it did."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110  in virtual time
                await asyncio.sleep(0.01)
        return self.loop.time()

    async def opened(self, queues: int = 1) -> None:
        await self.until(lambda: len(self.of(QueueOpened)) == queues)

    async def arrived(self, *numbers: int, seconds: float = 300.0) -> float:
        """Wait until `orders` has these messages, and return the second in which it did. Create it if it is missing."""
        wanted = [f"m{number}" for number in numbers]
        orders = self.destination()
        return await self.until(lambda: self.ids(orders) == wanted, seconds)

    def fill(self, queue: Any) -> Callable[[], None]:
        """Let a queue of the primary have no more room; what is answered lets it have some again."""
        send, try_send_each = queue.send, queue.try_send_each

        def refuse(_messages: Any) -> None:
            raise EntityFull(f"The maximum entity size of '{queue.path}' has been reached.")

        def let() -> None:
            queue.send, queue.try_send_each = send, try_send_each

        queue.send, queue.try_send_each = refuse, lambda _messages: False
        return let

    # The network, by the sides of a pair

    def host(self, side: str) -> str:
        return self.world.primary.name if side == "primary" else self.world.secondary.name

    def connected(self, side: str) -> list[Any]:
        """The syphon's connections to a side that it has not ended itself, nor been told of the end of."""
        return [line for line in self.network.lines if line.namespace == self.host(side) and not line.client.lost]

    def cut(self, side: str) -> None:
        """Every connection breaks, and no other one is to be had."""
        self.network.refusing[self.host(side)] = 1
        for line in self.connected(side):
            self.network.cut(line.client)

    def restore(self, side: str) -> None:
        self.network.refusing[self.host(side)] = 0


class Asked:
    """What the namespaces were asked for: receiving links, and how often such a link asked for messages.

    A flow that gives credit asks. The first one over a link that takes the place of one that was taken away for lack of
    use goes on with what was asked before: it is counted as `resumed`, and not as `receives`.
    """

    def __init__(self, patch: Any) -> None:
        self.counted: Counter[str] = Counter()
        self._taken_away: Counter[tuple[Any, str]] = Counter()
        on_flow, close_link = OutgoingLink.on_flow, AmqpConnection.close_link

        def flow(outlet: Any) -> None:
            if outlet._link.credit and not outlet._link.draining and "x-servicebus-transfer" in outlet.path:
                self._asks(outlet)
            on_flow(outlet)

        def ended(door: Any, link: Any, refusal: Any) -> None:
            if isinstance(link.context, OutgoingLink) and "IdleTimerExpired" in str(refusal):
                self.counted["taken away"] += 1
                self._taken_away[door, link.context.path] += 1
            close_link(door, link, refusal)

        patch.setattr(OutgoingLink, "on_flow", flow)
        patch.setattr(AmqpConnection, "close_link", ended)

    def _asks(self, outlet: Any) -> None:
        before = (outlet._owner, outlet.path)
        if self._taken_away[before]:
            self._taken_away[before] -= 1
            self.counted["resumed"] += 1
        else:
            self.counted["receives"] += 1


def play(scene: Callable[[Stage], Awaitable[None]], *, queues: int = 1, managed: bool = True) -> None:
    """Carry out a scene in virtual time, and see that it leaves no task and no unheard error behind."""
    loop = VirtualLoop()
    stage = Stage(loop, queues=queues, managed=managed)

    async def main() -> None:
        stage.set_up()
        await scene(stage)
        await asyncio.sleep(1.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    try:
        with made_virtual(1, loop, stage.tool_time, stage.control):
            try:
                loop.run_until_complete(main())
            finally:
                loop.end_all()
    finally:
        loop.close()
    assert not loop.broken


def played(*, queues: int = 1, managed: bool = True) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of a scene: `play` it with the test's other arguments."""

    def decorate(scene: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(scene)
        def test(*given: Any, **fixtures: Any) -> None:
            play(lambda stage: scene(stage, *given, **fixtures), queues=queues, managed=managed)

        _, *others = inspect.signature(scene).parameters.values()
        test.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return test

    return decorate
