"""One schedule of the relay in virtual time: listeners and clients of a pair, the faults of its plan, and the verdict.

When the faults are over, both sides have to work again. When all have closed, nothing of them may remain.
"""

import asyncio
import gc
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from aiohttp import ClientError, WSMsgType

from sbpair.emulator.entities.queue import ROOT_RULE
from sbpair.emulator.faults.fault_points import Fault
from sbpair.emulator.relay.frame_connection import FrameConnection
from sbpair.emulator.relay.listener_channel import ListenerChannel
from sbpair.emulator.relay.relay_gateway import OfferedSocket
from sbpair.emulator.relay.relayed_request import RESPONSE_MS, RelayedRequest
from sbpair.errors import BothFailed, InDoubt, RelayRejected, SbpairError
from sbpair.model.pair import SIDES, Side
from sbpair.relay.control_messages import RelayAnswer
from sbpair.relay.handled_request import HandledRequest, RelayOffer, RelayRequest
from sbpair.relay.relay_client import AsyncRelayClient, AsyncRelayResponse
from sbpair.relay.relay_listener import AsyncRelayListener
from tests.faults.simulation.harness import Simulation
from tests.faults.simulation.loop import Process
from tests.faults.simulation.world import without_collection
from tests.relay.simulation import relay_course as ends
from tests.relay.simulation.relay_course import RelayCourse, RequestOutcome
from tests.relay.simulation.relay_plan import (
    PlannedBody,
    PlannedRequest,
    PlannedSocket,
    RelayPlan,
    RelayStep,
)
from tests.relay.simulation.relay_world import HOSTS, RelayLoop, RelayWorld, without_sockets

END_SECONDS: Final = 400.0
"""A request ends in this time: two attempts of 70 s, each after pauses in its body and its answer, and a freeze."""

RECOVERY_SECONDS: Final = 200.0
CLOSE_SECONDS: Final = 120.0
QUIET_SECONDS: Final = RESPONSE_MS / 1000 + 5
"""By then each connection that was not closed well has been given up, and each request that no listener answers."""

KEPT: Final = (FrameConnection, ListenerChannel, RelayedRequest, OfferedSocket, HandledRequest, RelayOffer)


class RelaySimulation(Simulation):
    LOOP = RelayLoop
    plan: RelayPlan
    world: RelayWorld

    def __init__(self, plan: RelayPlan, loop: RelayLoop, directory: Path) -> None:
        self.course = RelayCourse(plan, loop.time)
        super().__init__(plan, loop, directory, self.course)
        self._requests = plan.all_requests
        self._services: list[Process] = []
        self._clients: list[AsyncRelayClient] = []
        self._refusing_tokens: Counter[str] = Counter()

    @property
    def messages(self) -> int:
        return len(self._requests)

    @property
    def again(self) -> int:
        return sum(max(len(sides) - 1, 0) for sides in self.course.executions.values())

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        with without_sockets(self.loop), without_collection():
            yield

    def judge(self) -> None:
        self.course.judge()

    def remains(self) -> Iterator[str]:
        self.network.lines.clear()
        gc.collect()
        found = Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), KEPT))
        for kind, count in found.items():  # isinstance would follow a weak proxy
            yield f"{count} objects of {kind} remain"

    # The service

    def _start(self) -> None:
        service = self.new_process("service")
        self.course.tell(f"start {service.name}")
        service.work = service.start(self.loop, self._serve(service))
        self._services.append(service)

    async def _serve(self, service: Process) -> None:
        async def handle(request: RelayRequest) -> RelayAnswer:
            return await self._handle(service.name, request)

        async with AsyncRelayListener(self.world.relay_pair, handle, on_websocket=self._echo, clock=self.world):
            await service.stop.wait()

    async def _handle(self, name: str, request: RelayRequest) -> RelayAnswer:
        planned = self._requests[int(request.headers["X-Number"])]
        self.course.executed(planned.number, request.side, name)
        if not request.target.endswith(f"/{planned.number}") or request.method != planned.method:
            self.course.accuse(f"request {planned.number} came as {request.method} {request.target}")
        if not planned.early and await request.read() != planned.sent.content:
            self.course.accuse(f"request {planned.number} has another body than was sent")
        await asyncio.sleep(planned.work)
        return RelayAnswer(planned.status, {"X-Number": str(planned.number)}, _body_of(planned.answer) or b"")

    async def _echo(self, offer: RelayOffer) -> None:
        name, seen = offer.headers["X-Socket"], 0
        socket = await offer.accept()
        async for message in socket:
            if not message.data.startswith(f"{name}:{seen}:".encode()):
                self.course.accuse(f"socket {name}: message {seen} does not come next, or belongs to another socket")
            seen += 1
            await socket.send_bytes(message.data)

    # The clients

    def _client(self, first: Side | None = None) -> AsyncRelayClient:
        chance = Random(self.random.random())
        made = AsyncRelayClient(self.world.relay_pair, first=first, chance=chance, clock=self.world)
        self._clients.append(made)
        return made

    async def _ask(self, client: AsyncRelayClient, planned: PlannedRequest) -> None:
        if planned.at != math.inf:
            await self.until(planned.at)
        self.course.tell(f"request {planned.number} begins: {planned.method}")
        try:
            async with asyncio.timeout(END_SECONDS):
                outcome = await self._outcome(client, planned)
        except TimeoutError:
            self.course.accuse(f"request {planned.number} did not end within {END_SECONDS:g} s")
        else:
            self.course.ended(planned.number, outcome)

    async def _outcome(self, client: AsyncRelayClient, planned: PlannedRequest) -> RequestOutcome:
        try:
            response = await client.request(
                planned.method,
                f"/{planned.number}",
                headers={"X-Number": str(planned.number)},
                body=_body_of(planned.sent),
                reissue="always" if planned.always else "safe",
                timeout=planned.timeout,
            )
            async with response:
                body = None if planned.abandoned else await _read(response, planned.pause)
        except InDoubt:
            return RequestOutcome(ends.IN_DOUBT)
        except BothFailed as failed:
            return RequestOutcome(ends.FAILED, doubtful=failed.in_doubt)
        except SbpairError:
            return RequestOutcome(ends.REFUSED)
        number = response.headers.get("X-Number")
        if number is None and response.status in (500, 503, 504):
            return RequestOutcome(ends.BY_LISTENER, response.side)
        if number != str(planned.number) or response.status != planned.status:
            self.course.accuse(f"request {planned.number} got the answer of request {number}: {response.status}")
        if body not in (None, planned.answer.content):
            self.course.accuse(f"request {planned.number} got another body than was answered")
        return RequestOutcome(ends.ANSWERED, response.side)

    async def _converse(self, client: AsyncRelayClient, planned: PlannedSocket) -> None:
        await self.until(planned.at)
        name = f"s{planned.number}"
        try:
            async with asyncio.timeout(END_SECONDS):
                kind = await self._conversation(client, planned, name)
        except (InDoubt, BothFailed, RelayRejected) as error:
            kind = type(error).__name__
        except SbpairError:
            kind = ends.REFUSED
        except (ClientError, OSError):
            kind = "broken"
        self.course.sockets[kind] += 1
        self.course.tell(f"socket {name} ends: {kind}")

    async def _conversation(self, client: AsyncRelayClient, planned: PlannedSocket, name: str) -> str:
        socket = await client.connect("/socket", headers={"X-Socket": name})
        try:
            for number, size in enumerate(planned.sizes):
                sent = f"{name}:{number}:".encode() + bytes(size)
                await socket.send_bytes(sent)
                message = await socket.receive()
                if message.type is not WSMsgType.BINARY:
                    return "broken"
                if message.data != sent:
                    self.course.accuse(f"socket {name}: the echo of message {number} is another one")
                await asyncio.sleep(planned.pause)
        finally:
            await socket.close()
        return "complete"

    # The course of it

    async def main(self) -> None:
        self.world = RelayWorld(self.loop, self.network, self.random)
        for _ in range(self.plan.listeners):
            self._start()
        await self._all_up()
        clients = [self._client("primary"), self._client()]
        async with asyncio.TaskGroup() as tasks:
            for request in self.plan.requests:
                tasks.create_task(self._ask(clients[request.client], request))
            for socket in self.plan.sockets:
                tasks.create_task(self._converse(clients[socket.client], socket))
            for step in self.plan.steps:
                tasks.create_task(self._step(step))
        self.course.tell("nothing is wrong any more")
        await self._all_up()
        await self._work_again(clients)
        await self._close_all()
        for fault in self.world.remains():
            self.course.accuse(f"after all was closed, {fault}")

    async def _all_up(self) -> None:
        deadline = self.loop.time() + RECOVERY_SECONDS
        while not all(len(self.world.entity(side).listeners) >= self.plan.listeners for side in SIDES):
            if self.loop.time() > deadline:
                counts = {side: len(self.world.entity(side).listeners) for side in SIDES}
                self.course.accuse(f"not all services listen after {RECOVERY_SECONDS:g} s: {counts}")
                return
            await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)

    async def _work_again(self, clients: list[AsyncRelayClient]) -> None:
        probes, fresh = self.plan.probes, [self._client(side) for side in SIDES]
        for number, (planned, client) in enumerate(zip(probes, (*clients, *fresh), strict=True)):
            expected = client.active
            await self._ask(client, planned)
            outcome = self.course.outcomes.get(planned.number)
            if outcome != RequestOutcome(ends.ANSWERED, expected):
                self.course.accuse(f"after all faults, a request to the {expected} ends: {outcome}")
            await self._converse(client, PlannedSocket(1_000 + number, 0, 0, (1, 1_000), 0.0))
        if self.course.sockets["complete"] < len(probes):
            self.course.accuse(f"after all faults, sockets do not work: {dict(self.course.sockets)}")

    async def _close_all(self) -> None:
        for client in self._clients:
            await client.close()
        for service in self._services:
            service.stop.set()
        _, left = await asyncio.wait([each.work for each in self._services], timeout=CLOSE_SECONDS)
        if left:
            self.course.accuse(f"{len(left)} services did not close within {CLOSE_SECONDS:g} s")
        await self.bury()
        await asyncio.sleep(QUIET_SECONDS)
        if left := asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[assignment]
            self.course.accuse(f"tasks are left: {sorted(each.get_name() for each in left)}")

    async def bury(self) -> None:
        """End what is left of killed processes. No error of theirs matters."""
        known = len(self.loop.broken)
        if self._dead:
            await super().bury()
            gc.collect()
            del self.loop.broken[known:]

    # Faults

    async def _step(self, step: RelayStep) -> None:
        await self.until(step.at)
        self.course.tell(f"begin {step}")
        async with self._during(step):
            await asyncio.sleep(step.lasts)
        self.course.tell(f"over {step.kind}")

    @asynccontextmanager
    async def _during(self, step: RelayStep) -> AsyncIterator[None]:
        host = HOSTS[step.side]
        async with AsyncExitStack() as stack:
            match step.kind:
                case "down" | "no-listeners" | "drop-listeners" | "swallow" | "latency" | "outage":
                    fault = self.world.faults.begin(_fault_of(step, host))
                    stack.callback(self.world.faults.end, fault)
                case "token-refused":
                    self._refuse_tokens(stack, host)
                case "unreachable":
                    self.network.refusing[host] = self.network.refusing.get(host, 0) + 1
                    stack.callback(self._reach, host)
                    for line in self.network.lines_to(host):
                        self.network.cut(line.client)
                case "hold":
                    self.network.hold(host)
                    stack.callback(self.network.let_go, host)
                case "cut":
                    stack.callback(self._spare, host)
                    stack.callback(asyncio.create_task(self._cut(step, host)).cancel)
                case "kill" | "restart" | "freeze":
                    await self._strike_service(step, stack)
            yield

    def _refuse_tokens(self, stack: AsyncExitStack, host: str) -> None:
        namespace = self.world.namespaces[host]
        self._refusing_tokens[host] += 1
        namespace.keys = (replace(ROOT_RULE, primary_key="b3RoZXI=", secondary_key="b3RoZXI="),)
        stack.callback(self._accept_tokens, host)

    def _accept_tokens(self, host: str) -> None:
        self._refusing_tokens[host] -= 1
        if not self._refusing_tokens[host]:
            self.world.namespaces[host].keys = (ROOT_RULE,)

    def _reach(self, host: str) -> None:
        self.network.refusing[host] -= 1

    async def _cut(self, step: RelayStep, host: str) -> None:
        """Cut one connection after another, each at some byte."""
        random = Random(step.number)
        while True:
            lines = self.network.lines_to(host)
            if lines:
                line = random.choice(lines)
                pipe = random.choice((line.client, line.server)).out
                pipe.cut_after = random.choice((random.randrange(1, 300), random.randrange(1, 100_000)))
                self.course.tell(f"cut line {line.number} after {pipe.cut_after} bytes")
            await asyncio.sleep(random.choice((0.05, 0.5, 5.0)))

    def _spare(self, host: str) -> None:
        """Let connections live that have not come to the byte at which they would be cut."""
        for line in self.network.lines_to(host):
            line.client.out.cut_after = line.server.out.cut_after = None

    async def _strike_service(self, step: RelayStep, stack: AsyncExitStack) -> None:
        if not self._services:
            return
        service = self._services[step.number % len(self._services)]
        self.course.tell(f"{step.kind} {service.name}")
        if step.kind == "freeze":
            stack.enter_context(self.frozen(service))
            return
        self._services.remove(service)
        # After the fault that ends it.
        stack.callback(self._start)
        if step.kind == "kill":
            self.kill_process(service)
        else:
            service.stop.set()
            stack.push_async_callback(self._await_end, service)

    async def _await_end(self, service: Process) -> None:
        _, left = await asyncio.wait([service.work], timeout=CLOSE_SECONDS)
        if left and not service.frozen:
            self.course.accuse(f"{service.name} did not close within {CLOSE_SECONDS:g} s")


def _fault_of(step: RelayStep, host: str) -> Fault:
    match step.kind:
        case "down":
            return Fault("relay-down", host, status=(None, 500, 503)[step.number % 3])
        case "swallow":
            return Fault("relay-swallow-response", host, count=1 + step.number % 3)
        case "latency":
            return Fault("latency", host, ms=(10, 100, 600)[step.number % 3])
        case "outage":
            return Fault("namespace-down", host)
    return Fault(f"relay-{step.kind}", host)


async def _read(response: AsyncRelayResponse, pause: float) -> bytes:
    """Return the body of an answer, read with a pause after its first part."""
    parts: list[bytes] = []
    async for part in response:
        parts.append(part)
        if len(parts) == 1:
            await asyncio.sleep(pause)
    return b"".join(parts)


def _body_of(planned: PlannedBody) -> Any:
    """Return a body as bytes, as a stream, or None for an empty one."""
    if planned.parts == 1:
        return planned.content or None

    async def parts() -> AsyncIterator[bytes]:
        content, size = planned.content, -(-planned.size // planned.parts)
        for start in range(0, planned.size, size):
            yield content[start : start + size]
            await asyncio.sleep(planned.pause)

    return parts()
