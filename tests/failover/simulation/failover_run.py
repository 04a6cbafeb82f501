"""One schedule of a paired client in virtual time, with the official SDK as it is, and the verdict.

Invariant: what a send has accepted is in the primary or in the backlog, and twice only if an event says so. When the
faults are over, all entities are healthy again, and nothing is left in the outbox. A client that is killed is followed
by another one with the same outbox.
"""

import asyncio
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp import cbs
from azure.servicebus._pyamqp.aio import _cbs_async

from sbpair.amqp.types import text_of
from sbpair.backlog import queue_path
from sbpair.failover.clients import AsyncPairedClient
from sbpair.failover.entity_states import State
from sbpair.failover.events import SendInDoubt
from sbpair.failover.failover_send import ShortTimeout
from tests.failover.simulation.failover_plan import FailoverPlan, PlannedSend
from tests.faults.simulation.faults import KINDS, PRIMARY_NAME, make_backlog, make_goal
from tests.faults.simulation.harness import Record, Simulation
from tests.faults.simulation.loop import Process, VirtualLoop
from tests.faults.simulation.plan import Step
from tests.faults.simulation.world import World, without_collection

SPARE_SECONDS: Final = 90.0
"""How much longer than all timeouts together a send may take."""

RECOVERY_SECONDS: Final = 900.0
CLOSE_SECONDS: Final = 60.0


class FailoverSimulation(Simulation):
    plan: FailoverPlan

    def __init__(self, plan: FailoverPlan, loop: VirtualLoop, directory: Path) -> None:
        super().__init__(plan, loop, directory, Record(lambda: f"{loop.time():.6f}"))
        self.tell, self.accuse = self.record.tell, self.record.accuse
        self._counts: Counter[str] = Counter()
        self._accepted: list[PlannedSend] = []
        self._doubtful: set[str] = set()
        self._process = Process("nobody")
        self._client: AsyncPairedClient | None = None
        self._senders: dict[str, Any] = {}

    @property
    def messages(self) -> int:
        return len(self._counts)

    @property
    def again(self) -> int:
        return self._counts.total() - len(self._counts)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        with (
            patch.object(cbs, "utc_now", self._utc_now),
            patch.object(_cbs_async, "utc_now", self._utc_now),
            without_collection(),
            warnings.catch_warnings(action="ignore", category=ShortTimeout),
        ):
            yield

    def _utc_now(self) -> datetime:
        return datetime.fromtimestamp(self.tool_time(), UTC)

    def _hear(self, event: Any) -> None:
        self.tell(str(event).replace(str(self.directory), ""))
        if isinstance(event, SendInDoubt):
            self._doubtful.update(event.message_ids)

    async def main(self) -> None:
        self.world = World(self.loop, self.network, queues=self.plan.queues)
        for entity in self.plan.entities:
            make_goal(self.world.primary, entity)
        for index in range(self.plan.queues):
            make_backlog(self.world.secondary, index)
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(self._supervise(done))
            working = [tasks.create_task(self._step(step)) for step in self.plan.steps]
            working += [tasks.create_task(self._post(send)) for send in self.plan.sends]
            if working:
                await asyncio.wait(working)
            self.tell("nothing is wrong any more")
            done.set()
            await supervising

    async def _supervise(self, done: asyncio.Event) -> None:
        """Start a client, and another one whenever it was killed."""
        while True:
            self._process = self.new_process("client")
            using = self._process.start(self.loop, self._use_client(done))
            if await self._process.ends(using):
                return using.result()
            await asyncio.sleep(1.0)

    def kill(self) -> None:
        """Kill the client. The system closes its file, and lets another process have it."""
        if self._client is None:
            return
        self.tell(f"kill {self._process.name}")
        self.kill_process(self._process)
        if self._client.outbox is not None:
            self._client.outbox._db.close()
            self._client.outbox._lock.release()
        self._client, self._senders = None, {}

    def freeze(self, step: Step) -> AbstractContextManager[None]:
        del step
        return self.frozen(self._process)

    async def _post(self, send: PlannedSend) -> None:
        """Let the client send a message at its time, and wait until it has ended, or is killed."""
        await asyncio.sleep(send.at)
        while not self._senders:  # noqa: ASYNC110  in virtual time
            await asyncio.sleep(0.5)
        sending = self._process.start(self.loop, self._send(self._senders[send.entity], send))
        if await self._process.ends(sending):
            sending.result()

    async def _step(self, step: Step) -> None:
        await asyncio.sleep(step.at_ms / 1000)
        self.tell(f"begin {step}")
        if step.kind == "crash":
            self.kill()
        else:
            with KINDS[step.kind](self, step):  # type: ignore[arg-type]  # it has what they want
                await asyncio.sleep(step.lasts_ms / 1000)
        self.tell(f"over {step.kind} {step.at_ms}")

    async def _use_client(self, done: asyncio.Event) -> None:
        plan = self.plan
        pair = replace(self.world.pair, failover_interval=plan.failover_interval, ping_interval=plan.ping_interval)
        client = AsyncPairedClient(
            pair,
            on_failure=plan.on_failure,  # type: ignore[arg-type]
            retries=plan.retries,
            on_event=self._hear,
            outbox=self.directory / "outbox.db" if plan.outbox else None,
        )
        client.failover_state._random = Random(plan.seed)
        async with client:
            self._client = client
            self._senders = {each.name: client.get_queue_sender(each.name) for each in plan.entities}
            await done.wait()
            await self._recover(client)
            for number, entity in enumerate(plan.entities):
                last = PlannedSend(f"last{number}", 0.0, entity.name, 10, 60.0)
                # A connection that was idle may have been lost unnoticed.
                await self._send(self._senders[entity.name], replace(last, id=f"first{number}"))
                await self._send(self._senders[entity.name], last)
            self.tell("close")
            closing_since = self.loop.time()
        if self.loop.time() - closing_since > CLOSE_SECONDS:
            self.accuse(f"the client took {self.loop.time() - closing_since:.0f} s to close")

    async def _send(self, sender: Any, send: PlannedSend) -> None:
        self.tell(f"send {send.id}")
        began = self.loop.time()
        try:
            await sender.send_messages(ServiceBusMessage(send.body, message_id=send.id), timeout=send.timeout)
        except AzureError as error:
            self.tell(f"send {send.id} raised {type(error).__name__}: {str(error)[:200]}")
            if send.id.startswith("last"):
                self.accuse(f"without a fault, {send.id} raised {type(error).__name__}: {str(error)[:200]}")
        else:
            self._accepted.append(send)
            self.tell(f"send {send.id} returned")
        # Senders take turns, and wait for theirs without a limit.
        if self.loop.time() - began > sum(each.timeout for each in self.plan.sends) + SPARE_SECONDS:
            self.accuse(f"{send.id} took {self.loop.time() - began:.0f} s")

    async def _recover(self, client: AsyncPairedClient) -> None:
        """Without a fault, each entity has to become healthy, and the outbox empty."""
        deadline = self.loop.time() + RECOVERY_SECONDS
        while self._away(client) and self.loop.time() < deadline:  # noqa: ASYNC110  in virtual time
            await asyncio.sleep(1.0)
        for each in self._away(client):
            self.accuse(f"{each} after {RECOVERY_SECONDS:g} s without a fault")

    def _away(self, client: AsyncPairedClient) -> list[str]:
        away = [f"{name} is {state.value}" for name, state in client.states().items() if state is not State.HEALTHY]
        if client.outbox is not None and len(client.outbox):
            away.append("the outbox is not empty")
        return away

    def judge(self) -> None:
        bodies: dict[str, set[bytes]] = {}
        queues = [self.world.primary.find_queue(each.name) for each in self.plan.entities]
        queues += [
            self.world.secondary.find_queue(queue_path(PRIMARY_NAME, index)) for index in range(self.plan.queues)
        ]
        for queue in queues:
            assert queue is not None
            for message in queue.messages.peek(0, 10_000):
                identity = text_of(message.sections.read_properties().message_id) or ""
                self._counts[identity] += 1
                bodies.setdefault(identity, set()).add(message.sections.body)
        for send in self._accepted:
            if not self._counts[send.id]:
                self.accuse(f"lost: {send.id} to {send.entity}")
            if any(not body.endswith(send.body) for body in bodies.get(send.id, ())):
                self.accuse(f"altered: {send.id} to {send.entity}")
        for identity, count in self._counts.items():
            if count > 1 and identity not in self._doubtful:
                self.accuse(f"arrived {count} times, and no event says so: {identity}")
