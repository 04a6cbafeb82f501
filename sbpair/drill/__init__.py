"""A rehearsal of a failover on an emulator of its own; every message is compared byte for byte at the end.

result = await sbpair.drill.run_drill(messages=1_000)

Messages stranded by old clients are moved back. An application sends steadily through the paired client while its
primary, and then a backlog queue, fails and recovers.
Invariant: each phase ends with its expected event, not after a time, and every message whose send returned is looked
for afterwards.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from sbpair import backlog
from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED, RawReceiver
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import signed_in
from sbpair.drill.drill_messages import (
    DESTINATIONS,
    SCHEDULE_MS,
    Comparison,
    OriginalMessage,
    byte_differences,
    compare_all,
    compared,
    message_differences,
    originals,
    property_differences,
)
from sbpair.drill.drill_pair import (
    OWN_QUEUES,
    Awaited,
    DrillPhase,
    EmitPhase,
    Outages,
    SimulatedOutages,
    Timeline,
    drill_queues,
    emulated_pair,
    in_background,
)
from sbpair.errors import ExitCode, SbpairError, UsageError
from sbpair.management import provisioning
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import QueueSpec
from sbpair.move.events import SyphonEvent
from sbpair.move.failure_latch import set_within
from sbpair.move.receipt import Receipt
from sbpair.syphon import runner

if TYPE_CHECKING:
    from sbpair.failover.clients import AsyncPairedClient, AsyncPairedSender
    from sbpair.failover.entity_states import State
    from sbpair.failover.events import SenderEvent

APPLICATION = "checkout"
"""The queue that the application sends to."""

COMPARING = "reading all messages back, and comparing each byte for byte"

CONCURRENT_SENDS = 50
"""Messages in flight while the backlog is written."""

MIN_MESSAGES = 10
"""So many messages go to one side before the next phase."""

QUIET_SECONDS = 0.5
MAX_DELAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals in seconds; `rate` is messages a second."""

    failover: float = 0.5
    ping: float = 1.0
    rate: float = 50.0
    max_phase: float = 90.0


INTERVALS = Intervals()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTally(Comparison):
    """The result for the application's messages: `sent` counts sends that returned, `refused` those that raised.

    `doubtful` counts messages that the client reported as sent again after no answer, and `unexplained` the repeated
    ones without such a report.
    """

    entity: Annotated[str, "Queue they were sent to"]
    primary: Annotated[int, "Sent to the primary"]
    backlog: Annotated[int, "Sent to the backlog"]
    refused: Annotated[int, "Sends that raised an error"]
    doubtful: Annotated[int, "Messages that the client named as in doubt"]
    unexplained: Annotated[int, "Duplicates that the client did not name"]

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.unexplained or self.altered or self.refused)


DrillEvent: TypeAlias = DrillPhase | SyphonEvent
OnEvent: TypeAlias = Callable[[DrillEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult(Comparison):
    """The result for stranded messages, `sending` that for messages of the paired client; `timeline` has the phases."""

    seconds: Annotated[float, "Duration"]
    sending: SendTally
    timeline: Annotated[tuple[DrillPhase, ...], "Steps"] = ()

    @property
    def exit_code(self) -> int:
        failed = self.lost or self.duplicated or self.altered or self.sending.failed
        return ExitCode.PARTIAL_OR_FINDINGS if failed else ExitCode.DONE


async def run_drill(
    *,
    messages: int = 1_000,
    queues: int = 10,
    seed: int = 0,
    intervals: Intervals = INTERVALS,
    on_event: OnEvent = lambda _event: None,
) -> DrillResult:
    """Run the drill. It uses nothing outside this machine and leaves nothing behind.

    Raises UsageError for a count below 1, MachineLacks where the emulator cannot start, TimedOut where a phase does
    not complete.
    """
    if messages < 1:
        raise UsageError(f"expected at least 1 message, got {messages}", hint="set --messages to at least 1")
    timeline = Timeline(on_event)
    timeline("start", "starting an emulator")
    async with emulated_pair(queues) as (pair, outages):
        timeline("provision", f"creating {queues} backlog queues in {pair.secondary.name}")
        await provisioning.provision(pair)
        async with open_atom(pair.primary) as control:
            for path in (*DESTINATIONS, APPLICATION):
                await control.create(QueueSpec(path))
        async with open_application(pair, APPLICATION, outages, intervals, timeline, seed) as application:
            timeline("strand", f"stranding {messages} messages in the backlog, as the old client does")
            sent = originals(messages, now_ms=int(time.time() * 1000), seed=seed)
            await _strand(pair, sent)
            timeline("syphon", f"moving them back to {pair.primary.name}, while an application sends to {APPLICATION}")
            moved = await runner.run(pair, once=True, lease=False, on_event=on_event)
            followed = await play(application, outages, pair, timeline, on_event)
        timeline("compare", COMPARING)
        sending = accounted(application, await received(pair.primary, application), followed)
        back = await _read_back(pair.primary, outages.emulator.advance)
    return _result(sent, back, moved.receipt, sending, timeline)


async def drill_against(
    pair: Pair,
    tag: str,
    *,
    queues: int = OWN_QUEUES,
    seed: int = 0,
    intervals: Intervals = INTERVALS,
    on_event: OnEvent = lambda _event: None,
) -> DrillResult:
    """Run the sending part on a user's own namespaces, with an outage simulated in this client alone.

    It writes only to queues that it creates and deletes (`drill_queue_names`). Needs Manage, Send and Listen on both
    sides. No messages are stranded: those counts are 0. Raises SbpairError, after its queues are deleted.
    """
    timeline, outages = Timeline(on_event), SimulatedOutages()
    async with drill_queues(pair, tag, queues, timeline) as (own, entity):
        timeline("sending", f"an application sends to {entity}")
        async with open_application(own, entity, outages, intervals, timeline, seed) as application:
            moved = await play(application, outages, pair, timeline, on_event)
        timeline("compare", COMPARING)
        sending = accounted(application, await received(pair.primary, application), moved)
    return _result([], [], sending.receipt, sending, timeline)


async def _strand(pair: Pair, sent: list[OriginalMessage]) -> None:
    async with connect(pair.secondary) as client:
        senders = [
            await client.sender(backlog.queue_path(pair.primary.name, index)) for index in range(pair.backlog_queues)
        ]
        for start in range(0, len(sent), CONCURRENT_SENDS):
            chunk = sent[start : start + CONCURRENT_SENDS]
            await asyncio.gather(*(senders[each.number % len(senders)].send(each.in_backlog()) for each in chunk))


async def _read_back(primary: Endpoint, advance: Callable[[int], None]) -> list[tuple[str, bytes]]:
    """Receive every message of the destinations, as (destination, encoded message), scheduled ones included."""
    received_messages: list[tuple[str, bytes]] = []
    async with open_atom(primary) as control, connect(primary) as client:
        for _ in ("enqueued", "scheduled"):
            for path in DESTINATIONS:
                receiver = await client.receiver(path)
                while (await control.counts(path)).active:
                    received_messages += [(path, payload) for payload in await take_payloads(receiver, 1.0)]
                receiver.close()
            advance(SCHEDULE_MS + 60_000)
    return received_messages


def _result(
    sent: list[OriginalMessage],
    back: list[tuple[str, bytes]],
    receipt: Receipt,
    sending: SendTally,
    timeline: Timeline,
) -> DrillResult:
    known = {each.message_id: each for each in sent}

    def differences(destination: str, original: OriginalMessage, got: Sections) -> list[str]:
        wrong = message_differences(original, got)
        if original.destination != destination:
            wrong.append(f"expected at {original.destination}, received at {destination}")
        return wrong

    found = (compared(known, payload, partial(differences, destination)) for destination, payload in back)
    figures, _ = compare_all(known, found)
    return DrillResult(
        seconds=timeline.seconds,
        receipt=receipt,
        sending=sending,
        timeline=tuple(timeline.phases),
        **figures,
    )


# The application

CONNECTION_LOST = re.compile(r"( with an error that counts)?: ServiceBusConnectionError: .*", re.DOTALL)
"""The end of an event that an outage causes: the drill announces the outage, and the SDK's words look like a bug."""


@dataclass
class Application(Awaited):
    """An application's sent messages, encoded, by message id, and its client's events."""

    client: AsyncPairedClient
    sender: AsyncPairedSender
    max_phase_seconds: float
    sent: dict[str, Sections] = field(default_factory=dict)
    refused: int = 0
    doubtful: set[str] = field(default_factory=set)
    left: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_more(self, side: str) -> None:
        """Wait until a side has accepted a few more messages."""
        enough: int = getattr(self.sender.delivered, side) + MIN_MESSAGES
        await self.until(
            f"a send to the {side}", lambda: bool(getattr(self.sender.delivered, side) >= enough or self.refused)
        )

    @property
    def state(self) -> State:
        return self.client.states()[self.sender.entity_name]

    def on_event(self, event: SenderEvent, emit: EmitPhase) -> None:
        from sbpair.failover.events import QueueLeft, SendInDoubt

        if isinstance(event, SendInDoubt):
            self.doubtful.update(event.message_ids)
        self.left += isinstance(event, QueueLeft)
        emit("sender", CONNECTION_LOST.sub(": the connection was lost", str(event)))
        self.changed.set()


@asynccontextmanager
async def open_application(
    pair: Pair, entity: str, outages: Outages, intervals: Intervals, emit: EmitPhase, seed: int = 0
) -> AsyncIterator[Application]:
    """Open an application that sends in the background until it is closed."""
    from sbpair.failover.clients import AsyncPairedClient

    own = replace(pair, failover_interval=intervals.failover, ping_interval=intervals.ping)
    started: list[Application] = []

    def on_event(event: SenderEvent) -> None:
        for each in started:
            each.on_event(event, emit)

    async with AsyncPairedClient(own, on_failure="wait", retries=0, on_event=on_event, outage=outages.outage) as client:
        sender = client.get_queue_sender(entity)
        sending = Application(client, sender, intervals.max_phase)
        started.append(sending)
        sends = partial(_send_until, sending, random.Random(seed), 1 / intervals.rate)  # noqa: S311  repeatable
        async with in_background(sends):
            yield sending


async def play(
    sending: Application, outages: Outages, pair: Pair, emit: EmitPhase, on_event: Callable[[SyphonEvent], None]
) -> Receipt:
    """Run every phase, from a healthy primary to a healthy primary, and move the messages back. Raises TimedOut."""
    from sbpair.failover.entity_states import State

    primary, secondary = pair.primary.name, pair.secondary.name
    await sending.until_more("primary")
    emit("primary-down", f"{primary} stops; the application continues to send")
    outages.stop_primary()
    try:
        await sending.until("a failover", lambda: sending.state is State.FAILED_OVER)
        await sending.until_more("backlog")
        if sending.client.pair.backlog_queues > 1 and (queue := sending.sender.backlog_queue):
            emit("queue-down", f"its backlog queue {queue} in {secondary} stops, too")
            before = sending.left
            outages.stop_queue(queue)
            await sending.until("a change to another backlog queue", lambda: sending.left > before)
            await sending.until_more("backlog")
        emit("primary-up", f"all are up again; a ping will find {primary}")
    finally:
        outages.restore()
    await sending.until("the return to the primary", lambda: sending.state is State.HEALTHY)
    emit("syphon", "moving back the application's messages, while it continues to send")
    moved, _ = await asyncio.gather(
        runner.run(sending.client.pair, once=True, lease=False, on_event=on_event), sending.until_more("primary")
    )
    return moved.receipt


async def received(endpoint: Endpoint, sending: Application) -> list[bytes]:
    """Receive messages, encoded, until no more arrive; before all that were sent, it waits longer."""
    back: list[bytes] = []
    sent = len(sending.sent)
    async with signed_in(connect, endpoint) as client:
        receiver = await client.receiver(sending.sender.entity_name)
        while payloads := await take_payloads(receiver, QUIET_SECONDS if len(back) >= sent else MAX_DELAY_SECONDS):
            back += payloads
    return back


async def take_payloads(receiver: RawReceiver, seconds: float) -> list[bytes]:
    """Receive messages, encoded, waiting so long for the first; [] if none arrives."""
    receiver.grant(500)
    deliveries = await receiver.take(500, seconds=seconds)
    if deliveries:
        await receiver.settle(deliveries, ACCEPTED)
    return [delivery.payload for delivery in deliveries]


def accounted(sending: Application, back: list[bytes], receipt: Receipt) -> SendTally:
    """Compare every message of the application with those received."""
    figures, repeated = compare_all(sending.sent, (compared(sending.sent, payload, _differences) for payload in back))
    delivered, doubtful = sending.sender.delivered, sending.doubtful
    return SendTally(
        entity=sending.sender.entity_name,
        primary=delivered.primary,
        backlog=delivered.backlog,
        refused=sending.refused,
        doubtful=len(doubtful),
        unexplained=sum(times for message_id, times in repeated.items() if message_id not in doubtful),
        receipt=receipt,
        **figures,
    )


async def _send_until(sending: Application, chance: random.Random, seconds: float, stop: asyncio.Event) -> None:
    from sbpair.failover import sdk_messages

    for number in count():
        described = _describe(number, chance)
        message = sdk_messages.prepare_one(described)
        try:
            await sending.sender.send_messages(message)
        except SbpairError:
            raise
        except Exception:  # noqa: BLE001  the SDK raises any exception
            sending.refused += 1
        else:
            sending.sent[described["message_id"]] = Sections.split(sdk_messages.encode(message))
        sending.changed.set()
        if await set_within(stop, seconds):
            return


def _describe(number: int, chance: random.Random) -> dict[str, Any]:
    """Describe a message; each of its properties is set in some messages only."""
    own: dict[str, Any] = {"message_id": f"sent-{number:06d}-{chance.getrandbits(32):08x}"}
    if number % 3 == 0:
        own["session_id"] = f"session-{number % 7}"
    if number % 2:
        own["time_to_live"] = timedelta(days=1 + number % 5)
    if number % 5 == 1:
        own |= {"subject": "subject \u2603", "correlation_id": f"c-{number}", "content_type": "text/plain", "to": "to"}
    if number % 4:
        own["application_properties"] = {"number": number, "text": "snow \u2603", "share": number / 7, "yes": True}
    return {"body": chance.randbytes(chance.randrange(2_000)), **own}


def _differences(original: Sections, got: Sections) -> list[str]:
    # With a time to live, the SDK also sends the time of sending.
    wrong = [*byte_differences(original, got), *property_differences(original.read_properties(), got.read_properties())]
    ttl = original.read_header().ttl
    if ttl != (got.read_header().ttl if ttl is not None else None):
        wrong.append("the time to live differs")
    return wrong
