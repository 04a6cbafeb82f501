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
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
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
from sbpair.drill.identity_outage import outlast
from sbpair.drill.lost_primary import Loss, LossReport, lose
from sbpair.drill.original_reading import READING, WRAPPED_TTL_MS, messages_as_read
from sbpair.errors import ExitCode, SbpairError, UsageError
from sbpair.management import provisioning
from sbpair.model.document import document
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import QueueSpec
from sbpair.move.events import SyphonEvent
from sbpair.move.failure_latch import set_within
from sbpair.move.filter import MessageFilter
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
from sbpair.move.receipt import Receipt
from sbpair.syphon import runner
from sbpair.syphon.run_request import RunRequest, syphon_request

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
    """Intervals in seconds; `rate` is messages a second. `token_life` is that of a drill whose providers go away."""

    failover: float = 0.5
    ping: float = 1.0
    rate: float = 50.0
    max_phase: float = 90.0
    token_life: float = 20.0


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
    outbox: Annotated[int, "Stored in the outbox meanwhile, with --identity-outage"]
    secondary: Annotated[int, "Sent to the secondary's own queue, with --lost"]
    refused: Annotated[int, "Sends that raised an error"]
    doubtful: Annotated[int, "Messages that the client named as in doubt"]
    unexplained: Annotated[int, "Duplicates that the client did not name"]

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.unexplained or self.altered or self.refused)


DrillEvent: TypeAlias = DrillPhase | SyphonEvent
OnEvent: TypeAlias = Callable[[DrillEvent], None]


@document("sbpair/drill/1", kw_only=True)
class DrillResult(Comparison):
    """The verdict of sbpair drill; its counts are those of the stranded messages."""

    seconds: Annotated[float, "Duration"]
    sending: Annotated[SendTally, "Messages of the application that sends during the outage"]
    timeline: Annotated[tuple[DrillPhase, ...], "Steps"] = ()
    reading: Annotated[str | None, "The form of the stranded messages, with --as-original"] = None
    redriven: Annotated[int, "Messages that expired in the backlog, and came back by a redrive"] = 0
    primary_lost: Annotated[LossReport | None, "The primary of --lost; null without it"] = None
    against: Annotated[str | None, "Pair of --against; null on the emulator"] = None

    @property
    def exit_code(self) -> int:
        failed: object = self.lost or self.duplicated or self.altered or self.sending.failed
        failed = failed or (self.primary_lost and self.primary_lost.failed)
        return ExitCode.PARTIAL_OR_FINDINGS if failed else ExitCode.DONE


async def run_drill(
    *,
    messages: int = 1_000,
    queues: int = 10,
    seed: int = 0,
    as_original: bool = False,
    lost: bool = False,
    identity_outage: bool = False,
    intervals: Intervals = INTERVALS,
    on_event: OnEvent = lambda _event: None,
) -> DrillResult:
    """Run the drill. It uses nothing outside this machine and leaves nothing behind.

    With `as_original`, the stranded messages are those of `original_reading`, and some expire in the backlog. With
    `lost`, the primary is deleted, and the rest goes to the secondary's own queues (`lost_primary`). With
    `identity_outage`, the providers of both namespaces' identities go away instead of the primary (`identity_outage`).
    Raises UsageError for a count below 1, MachineLacks where the emulator cannot start, TimedOut where a phase does
    not complete.
    """
    if messages < 1:
        raise UsageError(f"expected at least 1 message, got {messages}", hint="set --messages to at least 1")
    timeline = Timeline(on_event)
    timeline("start", "starting an emulator")
    loss: Loss | None = None
    async with AsyncExitStack() as stack:
        token_life = intervals.token_life if identity_outage else None
        pair, outages = await stack.enter_async_context(emulated_pair(queues, token_life=token_life))
        outbox = stack.enter_context(TemporaryDirectory()) if identity_outage else ""
        timeline("provision", f"creating {queues} backlog queues in {pair.secondary.name}")
        await provisioning.provision(pair)
        end = pair.secondary if lost else pair.primary
        for endpoint in {pair.primary, end}:
            async with open_atom(endpoint) as control:
                for path in (*DESTINATIONS, APPLICATION):
                    await control.create(QueueSpec(path))
        opening = open_application(pair, APPLICATION, outages, intervals, timeline, seed, outbox and f"{outbox}/outbox")
        async with opening as application:
            sent = (messages_as_read if as_original else originals)(messages, now_ms=int(time.time() * 1000), seed=seed)
            expiring = [each for each in sent if each.expires]
            how = READING if as_original else "as the old client does"
            timeline("strand", f"stranding {len(sent) - len(expiring)} messages in the backlog, {how}")
            await _strand(pair, [each for each in sent if not each.expires])
            timeline("syphon", f"moving them back to {pair.primary.name}, while an application sends to {APPLICATION}")
            if lost:
                loss = await lose(application, sent, outages, pair, timeline, on_event)
                moved = followed = loss.receipt
            else:
                moved = (await runner.run(syphon_request(pair, once=True, lease=False), on_event=on_event)).receipt
                phases = outlast if identity_outage else play
                followed = await phases(application, outages, timeline, on_event)
        timeline("compare", COMPARING)
        live = await received(end, application, loss.inside if loss else ())
        emulator = outages.emulator
        back, redriven = await _read_back(end, emulator.advance), 0
        account = None if loss is None else loss.account(sent, application, [*live, *(payload for _, payload in back)])
        sending = accounted(application, live, followed)
        if expiring:
            timeline("expire", f"stranding {len(expiring)} more, and advancing the clock by 18 days: they expire")
            await _strand(pair, expiring)
            emulator.advance(WRAPPED_TTL_MS + 1)
            timeline("redrive", "moving the dead letters of the backlog back, as redrive --backlog does")
            redriven = (await runner.run(_redrive_request(pair), on_event=on_event)).receipt.sent
            back += await _read_back(pair.primary, emulator.advance)
    result = _result(sent, back, moved, sending, timeline)
    reading = READING if as_original else None
    return replace(result, reading=reading, redriven=redriven, primary_lost=account)


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
    pair.require_primary()
    timeline, outages = Timeline(on_event), SimulatedOutages()
    async with drill_queues(pair, tag, queues, timeline) as (own, entity):
        timeline("sending", f"an application sends to {entity}")
        async with open_application(own, entity, outages, intervals, timeline, seed) as application:
            moved = await play(application, outages, timeline, on_event)
        timeline("compare", COMPARING)
        sending = accounted(application, await received(pair.primary, application), moved)
    return _result([], [], sending.receipt, sending, timeline)


async def _strand(pair: Pair, sent: list[OriginalMessage]) -> None:
    async with signed_in(connect, pair.secondary) as client:
        senders = [
            await client.sender(backlog.queue_path(pair.primary.name, index)) for index in range(pair.backlog_queues)
        ]
        for start in range(0, len(sent), CONCURRENT_SENDS):
            chunk = sent[start : start + CONCURRENT_SENDS]
            await asyncio.gather(*(senders[each.number % len(senders)].send(each.in_backlog()) for each in chunk))


def _redrive_request(pair: Pair) -> RunRequest:
    """Return the request for expired messages. A dead letter with another reason stays, and is found to be lost."""
    expired = MessageFilter("", reasons=("TTLExpiredException",))
    return syphon_request(
        pair, once=True, form=BACKLOG_DEAD_LETTERS, where=expired, keeps_refused=True, max_missing=0, lease=False
    )


async def _read_back(endpoint: Endpoint, advance: Callable[[int], None]) -> list[tuple[str, bytes]]:
    """Receive every message of the destinations, as (destination, encoded message), scheduled ones included."""
    received_messages: list[tuple[str, bytes]] = []
    async with open_atom(endpoint) as control, signed_in(connect, endpoint) as client:
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

    @property
    def waits_in_outbox(self) -> bool:
        return self.client.outbox is not None and self.client.outbox.holds(self.sender.entity_name)

    def on_event(self, event: SenderEvent, emit: EmitPhase) -> None:
        from sbpair.failover.events import QueueLeft, SendInDoubt

        if isinstance(event, SendInDoubt):
            self.doubtful.update(event.message_ids)
        self.left += isinstance(event, QueueLeft)
        emit("sender", CONNECTION_LOST.sub(": the connection was lost", str(event)))
        self.changed.set()


@asynccontextmanager
async def open_application(
    pair: Pair, entity: str, outages: Outages, intervals: Intervals, emit: EmitPhase, seed: int = 0, outbox: str = ""
) -> AsyncIterator[Application]:
    """Open an application that sends in the background until it is closed."""
    from sbpair.failover.clients import AsyncPairedClient

    own = replace(pair, failover_interval=intervals.failover, ping_interval=intervals.ping)
    started: list[Application] = []

    def on_event(event: SenderEvent) -> None:
        for each in started:
            each.on_event(event, emit)

    opening = AsyncPairedClient(
        own, on_failure="wait", retries=0, on_event=on_event, outage=outages.outage, outbox=outbox or None
    )
    async with opening as client:
        sender = client.get_queue_sender(entity)
        sending = Application(client, sender, intervals.max_phase)
        started.append(sending)
        sends = partial(_send_until, sending, random.Random(seed), 1 / intervals.rate)  # noqa: S311  repeatable
        async with in_background(sends):
            yield sending


async def play(
    sending: Application, outages: Outages, emit: EmitPhase, on_event: Callable[[SyphonEvent], None]
) -> Receipt:
    """Run every phase, from a healthy primary to a healthy primary, and move the messages back. Raises TimedOut."""
    from sbpair.failover.entity_states import State

    pair = sending.client.pair
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
        runner.run(syphon_request(sending.client.pair, once=True, lease=False), on_event=on_event),
        sending.until_more("primary"),
    )
    return moved.receipt


async def received(endpoint: Endpoint, sending: Application, lost: Iterable[str] = ()) -> list[bytes]:
    """Receive messages, encoded, until no more arrive; before all that were sent but the lost, it waits longer."""
    back: list[bytes] = []
    sent = len(sending.sent.keys() - lost)
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
    delivered, doubtful = sending.sender.delivered, sending.doubtful
    # A time to live continues in the outbox.
    differences = partial(_differences, waited_ms=int(1000 * sending.max_phase_seconds) if delivered.outbox else 0)
    figures, repeated = compare_all(sending.sent, (compared(sending.sent, payload, differences) for payload in back))
    return SendTally(
        entity=sending.sender.entity_name,
        primary=delivered.primary,
        backlog=delivered.backlog,
        outbox=delivered.outbox,
        secondary=delivered.secondary,
        refused=sending.refused,
        doubtful=len(doubtful),
        unexplained=sum(times for message_id, times in repeated.items() if message_id not in doubtful),
        receipt=receipt,
        **figures,
    )


async def _send_until(sending: Application, chance: random.Random, seconds: float, stop: asyncio.Event) -> None:
    from sbpair.failover import sdk_messages
    from sbpair.failover.sdk_encoding import encode

    for number in count():
        described = _describe(number, chance)
        message = sdk_messages.prepare_one(described)
        try:
            await sending.sender.send_messages(message)
        except SbpairError:
            sending.refused += 1
        else:
            sending.sent[described["message_id"]] = Sections.split(encode(message))
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


def _differences(original: Sections, got: Sections, waited_ms: int = 0) -> list[str]:
    # With a time to live, the SDK also sends the time of sending.
    wrong = [*byte_differences(original, got), *property_differences(original.read_properties(), got.read_properties())]
    ttl = original.read_header().ttl
    if ttl is not None and not 0 <= ttl - (got.read_header().ttl or 0) <= waited_ms:
        wrong.append("the time to live differs")
    return wrong
