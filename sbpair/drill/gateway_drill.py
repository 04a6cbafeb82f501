"""A rehearsal of a gateway on an emulator of its own: clients of several languages send through it during an outage.

result = await sbpair.drill.gateway_drill.run_gateway_drill()

Invariant: each phase ends with its expected event, not after a time. Every message whose send returned is looked for
afterwards, by a receiver that was open through the gateway all the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.azure.atom import open_atom
from sbpair.drill.drill_messages import MAX_EXAMPLES
from sbpair.drill.drill_pair import (
    Awaited,
    DrillPhase,
    EmitPhase,
    EmulatedOutages,
    Timeline,
    emulated_pair,
    in_background,
)
from sbpair.errors import ExitCode, SbpairError
from sbpair.management import provisioning
from sbpair.model.document import document
from sbpair.model.queues import QueueSpec
from sbpair.move.failure_latch import set_within
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request

if TYPE_CHECKING:
    from sbpair.failover.events import SenderEvent
    from sbpair.gateway.gateway import Gateway
    from sbpair.model.pair import Pair

QUEUE: Final = "checkout"
BACKLOG_QUEUES: Final = 3
RATE = 50.0
MIN_MESSAGES = 10
"""So many messages of each client are accepted in a phase."""

MAX_PHASE_SECONDS = 90.0
QUIET_SECONDS = 10.0
"""How long the receiver waits for messages that are missing."""

PING_SECONDS, FAILOVER_SECONDS = 1.0, 0.5
RETRY_SECONDS = 0.2
LOCK_MS: Final = 61_000
PYTHON, NODE = "Python", "JavaScript"
NODE_PACKAGE = "@azure/service-bus"


@dataclass(slots=True, kw_only=True)
class ClientTally:
    """The account of one client's messages. `unexplained` arrived twice without an event that named them."""

    client: Annotated[str, "Language of the client"]
    sent: Annotated[int, "Sends that returned"] = 0
    in_outage: Annotated[int, "Of these, while the primary was away"] = 0
    failed: Annotated[int, "Sends that raised an error"] = 0
    lost: Annotated[int, "Messages that were not received"] = 0
    duplicated: Annotated[int, "Messages that were received more than once"] = 0
    unexplained: Annotated[int, "Of these, not named as in doubt, and not sent again by the client"] = 0
    altered: Annotated[int, "Messages whose body or properties differ"] = 0


@document("sbpair/gateway-drill/1", kw_only=True)
class GatewayDrillResult:
    """The verdict of sbpair drill --gateway."""

    clients: Annotated[tuple[ClientTally, ...], "Each client"]
    first_seconds: Annotated[float, "Time from the primary's end to the next accepted send"]
    seconds: Annotated[float, "Duration"]
    lost_ids: Annotated[tuple[Annotated[str, "Id of the message"], ...], "The first lost messages"] = ()
    timeline: Annotated[tuple[DrillPhase, ...], "Steps"] = ()

    @property
    def exit_code(self) -> int:
        wrong = any(each.lost or each.unexplained or each.altered for each in self.clients)
        return ExitCode.PARTIAL_OR_FINDINGS if wrong else ExitCode.DONE


@dataclass
class Applications(Awaited):
    """The clients of a drill: the ids of their accepted messages, and those that were received."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    max_phase_seconds: float = MAX_PHASE_SECONDS
    tallies: dict[str, ClientTally] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    """Message id -> client."""
    attempted: Counter[str] = field(default_factory=Counter)
    received: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Message id -> its sequence numbers: one that was locked in the outage is delivered again with the same one."""
    altered: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    is_away: bool = False

    def sent(self, client: str, message_id: str) -> None:
        self.accepted[message_id] = client
        self.tallies[client].sent += 1
        self.tallies[client].in_outage += self.is_away
        self.changed.set()

    async def until_more(self) -> None:
        """Wait until a few more messages of each client are accepted."""
        enough = {name: tally.sent + MIN_MESSAGES for name, tally in self.tallies.items()}
        await self.until(
            "sends of each client", lambda: all(self.tallies[name].sent >= least for name, least in enough.items())
        )

    def on_event(self, event: SenderEvent, emit: EmitPhase) -> None:
        from sbpair.failover.events import EntityChanged, SendInDoubt

        if isinstance(event, SendInDoubt):
            self.doubtful.update(event.message_ids)
        if isinstance(event, EntityChanged):
            emit("gateway", f"{event.entity}: {event.before.value} -> {event.after.value}")
        self.changed.set()

    def account(self) -> tuple[ClientTally, ...]:
        """Return each client's tally, with that which was received."""
        for message_id, client in self.accepted.items():
            tally, times = self.tallies[client], len(self.received[message_id])
            tally.lost += times == 0
            tally.altered += message_id in self.altered
            if times > 1:
                tally.duplicated += 1
                tally.unexplained += message_id not in self.doubtful and self.attempted[message_id] < times
        return tuple(self.tallies.values())


async def run_gateway_drill(
    *, rate: float = RATE, on_event: Callable[[DrillPhase], object] = lambda _: None
) -> GatewayDrillResult:
    """Run the drill, with the clients that are installed. Raises MachineLacks, TimedOut."""
    from sbpair.failover.entity_states import State

    timeline, applications = Timeline(on_event), Applications()
    timeline("start", "starting an emulator and a gateway")
    async with AsyncExitStack() as stack:
        pair, outages = await stack.enter_async_context(emulated_pair(BACKLOG_QUEUES))
        await provisioning.provision(pair)
        async with open_atom(pair.primary) as control:
            await control.create(QueueSpec(QUEUE))
        gateway, address = await stack.enter_async_context(_open_gateway(pair, applications, timeline))
        languages = {PYTHON: _send_in_python} | ({NODE: _send_in_javascript} if await _has_node_package() else {})
        applications.tallies = {name: ClientTally(client=name) for name in languages}
        receiving = partial(_receive, applications, address)
        async with in_background(receiving), AsyncExitStack() as sending:
            for name, send in languages.items():
                await sending.enter_async_context(in_background(partial(send, applications, name, address, 1 / rate)))
            timeline("sending", f"clients of {' and '.join(languages)} send to {QUEUE}, and one receives")
            await applications.until_more()
            states = gateway.failover.states
            first_seconds = await _outage(applications, outages, timeline, lambda: states()[QUEUE] is State.FAILED_OVER)
            await applications.until("the return", lambda: states()[QUEUE] is State.HEALTHY)
            await applications.until_more()
            await sending.aclose()
            timeline("syphon", "moving the backlog to the primary, and receiving what is left")
            await runner.run(syphon_request(pair, once=True, lease=False))
            # Messages that the receiver could not complete in the outage are locked until then.
            outages.emulator.advance(LOCK_MS)
            missing = applications.accepted.keys() - applications.received.keys()
            with suppress(SbpairError):
                applications.max_phase_seconds = QUIET_SECONDS
                await applications.until("the rest", lambda: not (missing - applications.received.keys()))
        timeline("compare", "looking for every message whose send returned")
    lost = [each for each in applications.accepted if not applications.received[each]]
    return GatewayDrillResult(
        clients=applications.account(),
        first_seconds=round(first_seconds, 3),
        seconds=timeline.seconds,
        lost_ids=tuple(lost[:MAX_EXAMPLES]),
        timeline=tuple(timeline.phases),
    )


async def _outage(
    applications: Applications, outages: EmulatedOutages, emit: EmitPhase, failed_over: Callable[[], bool]
) -> float:
    """Take the primary away, and bring it back. Return the seconds until the next accepted send."""
    loop = asyncio.get_running_loop()
    emit("primary-down", "the primary stops; the clients continue to send")
    outages.stop_primary()
    began, before = loop.time(), len(applications.accepted)
    applications.is_away = True
    try:
        await applications.until("a send in the outage", lambda: len(applications.accepted) > before)
        seconds = loop.time() - began
        await applications.until("a failover", failed_over)
        await applications.until_more()
        applications.is_away = False
        emit("primary-up", "it is back; the clients notice nothing")
    finally:
        outages.restore()
    return seconds


@asynccontextmanager
async def _open_gateway(
    pair: Pair, applications: Applications, emit: EmitPhase
) -> AsyncIterator[tuple[Gateway, dict[str, Any]]]:
    """Open a gateway with a key of its own, and yield how its clients connect."""
    from sbpair.gateway.gateway import Gateway, GatewayOptions

    key = secrets.token_urlsafe(32)
    rule = AuthorizationRule("drill", key, key, frozenset({AccessRight.SEND, AccessRight.LISTEN}))
    own = replace(pair, failover_interval=FAILOVER_SECONDS, ping_interval=PING_SECONDS)
    options = GatewayOptions(rule=rule, port=0, retries=0)
    async with Gateway(own, options, lambda event: applications.on_event(event, emit)) as gateway:
        at = f"sb://127.0.0.1:{gateway.port}"
        text = f"Endpoint={at};SharedAccessKeyName=drill;SharedAccessKey={key};UseDevelopmentEmulator=true"
        yield gateway, {"connection_string": text, "queue": QUEUE}


# The clients. A message's body follows from its id.


def body_of(message_id: str) -> str:
    """Return the body of a message: some hundred characters."""
    return hashlib.sha256(message_id.encode()).hexdigest() * (1 + len(message_id) % 7)


async def _send_in_python(
    applications: Applications, client: str, address: dict[str, Any], seconds: float, stop: asyncio.Event
) -> None:
    from azure.core.exceptions import AzureError
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    opened = ServiceBusClient.from_connection_string(address["connection_string"])
    async with opened as connection, connection.get_queue_sender(address["queue"]) as sender:
        for number in count():
            name = f"python-{number}-{secrets.token_hex(4)}"
            applications.attempted[name] += 1
            properties: dict[str | bytes, Any] = {"of": name, "number": number}
            message = ServiceBusMessage(body_of(name), message_id=name, application_properties=properties)
            try:
                await sender.send_messages(message)
            except AzureError:
                applications.tallies[client].failed += 1
            else:
                applications.sent(client, name)
            if await set_within(stop, seconds):
                return


async def _send_in_javascript(
    applications: Applications, client: str, address: dict[str, Any], seconds: float, stop: asyncio.Event
) -> None:
    """Let Node send, and read the ids of accepted messages from it, line by line. It ends when its input does."""
    # Not an argument of the command: it has a key.
    settings = json.dumps(address | {"seconds": seconds})
    program = str(files("sbpair.drill").joinpath("gateway_client.cjs"))
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(_node(), program, **pipes)  # type: ignore[arg-type]
    if process.stdin is None or process.stdout is None:
        raise AssertionError
    process.stdin.write(f"{settings}\n".encode())

    async def end() -> None:
        await stop.wait()
        if process.stdin is not None:
            process.stdin.close()

    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(end(), name="end of the client")
        async for line in process.stdout:
            word, name, *_ = line.decode().split()
            applications.attempted[name] += word == "send"
            applications.tallies[client].failed += word == "failed"
            if word == "accepted":
                applications.sent(client, name)
        ending.cancel()
    await process.wait()


async def _receive(applications: Applications, address: dict[str, Any], stop: asyncio.Event) -> None:
    """Receive and complete until the end, over outages: a client of the SDK opens its link again."""
    from azure.core.exceptions import AzureError
    from azure.servicebus.aio import ServiceBusClient

    opened = ServiceBusClient.from_connection_string(address["connection_string"])
    async with opened as connection, connection.get_queue_receiver(address["queue"]) as receiver:
        while not stop.is_set():
            with suppress(AzureError):
                for message in await receiver.receive_messages(100, max_wait_time=1):
                    name = str(message.message_id)
                    applications.received[name].add(message.sequence_number or 0)
                    own = {_text(key): _text(value) for key, value in (message.application_properties or {}).items()}
                    if str(message) != body_of(name) or own.get("of") != name:
                        applications.altered.add(name)
                    applications.changed.set()
                    # It comes again; a ValueError is of a link that has ended since.
                    with suppress(AzureError, ValueError):
                        await receiver.complete_message(message)
                continue
            await set_within(stop, RETRY_SECONDS)


def _text(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _node() -> str:
    return shutil.which("node") or "node"


async def _has_node_package() -> bool:
    """Return whether Node finds the official client from here, or by NODE_PATH."""
    if shutil.which("node") is None:
        return False
    looking = f"require.resolve({json.dumps(NODE_PACKAGE)}, {{ paths: [process.cwd(), ...module.paths] }})"
    process = await asyncio.create_subprocess_exec(
        _node(),
        "-e",
        looking,
        env=dict(os.environ),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait() == 0
