"""An application that sends steadily through the paired client while its primary fails and recovers.

Invariant: each phase ends with its expected event, not after a time, and every message whose send returned is looked
for afterwards.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED, RawReceiver
from sbpair.azure.credentials import signed_in
from sbpair.drill.drill_messages import Comparison, byte_differences, compare_all, compared, property_differences
from sbpair.drill.drill_pair import Awaited, EmitPhase, Outages
from sbpair.errors import SbpairError, first_error
from sbpair.move.failure_latch import set_within
from sbpair.move.receipt import Receipt
from sbpair.syphon import runner

if TYPE_CHECKING:
    from sbpair.failover.clients import AsyncPairedClient, AsyncPairedSender
    from sbpair.failover.entity_states import State
    from sbpair.failover.events import SenderEvent
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.move.events import SyphonEvent

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
async def application(
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
        stop = asyncio.Event()
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                sends = _send_until(sending, random.Random(seed), 1 / intervals.rate, stop)  # noqa: S311  repeatable
                tasks.create_task(sends, name="send")
                try:
                    yield sending
                finally:
                    # A pending send is completed: the SDK can swallow a cancellation.
                    stop.set()


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
