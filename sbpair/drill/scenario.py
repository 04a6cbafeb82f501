"""An application that sends steadily through the paired client while its primary goes away and comes back.

The law: each part of the story ends with what it was to show, and not with a time; and every message that a send
returned for is looked for afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from sbpair.amqp import types
from sbpair.amqp.message import Properties, Sections
from sbpair.amqp.types import text_of
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED
from sbpair.errors import ProtocolError, SbpairError, TimedOut

if TYPE_CHECKING:
    from sbpair.failover.aio import AsyncPairedClient, AsyncPairedSender
    from sbpair.failover.events import SenderEvent
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.failover.states import State
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.move.receipt import Receipt

FEW = 10
"""So many messages go to one side before the story goes on."""

PATIENCE_SECONDS = 90.0
QUIET_SECONDS = 0.5
LATE_SECONDS = 10.0
EXAMPLES = 20

Tell = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class Intervals:
    """In seconds, but for `rate`, which is messages a second."""

    failover: float = 0.5
    ping: float = 1.0
    rate: float = 50.0


class OutageControl(Protocol):
    """What fails, and is mended, for the story's sake."""

    outage: SimulatedOutage | None

    async def primary_away(self) -> None: ...

    async def queue_away(self, path: str) -> None: ...

    async def restore(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SendTally:
    """What became of the messages that the application sent: `sent` are those that a send returned for.

    `doubtful` are those that the client named as sent again without an answer; `duplicated` counts all that came again,
    `unexplained` those of them that nobody named. `refused` are sends that raised.
    """

    entity: str
    sent: int
    primary: int
    backlog: int
    refused: int
    doubtful: int
    received: int
    lost: int
    duplicated: int
    unexplained: int
    altered: int
    receipt: Receipt
    alterations: tuple[tuple[str, str], ...] = ()
    lost_ids: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.unexplained or self.altered or self.refused)


@dataclass
class Application:
    """What it has sent, by message id, as it was encoded; and what it was told."""

    client: AsyncPairedClient
    sender: AsyncPairedSender
    sent: dict[str, Sections] = field(default_factory=dict)
    refused: int = 0
    doubtful: set[str] = field(default_factory=set)
    left: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, what: str, shown: Callable[[], bool]) -> None:
        """Wait for what a part of the story is to show. Raises TimedOut."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not shown():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise TimedOut(
                f"the drill waited {PATIENCE_SECONDS:g} s, and {what} did not happen", hint="sbpair doctor may say why"
            ) from None

    async def until_more(self, side: str) -> None:
        """Wait until a side has taken a few more."""
        before: int = getattr(self.sender.delivered, side)
        await self.until(
            f"a send to the {side}", lambda: bool(getattr(self.sender.delivered, side) >= before + FEW or self.refused)
        )

    @property
    def state(self) -> State:
        return self.client.states()[self.sender.entity_name]

    def heard(self, event: SenderEvent, tell: Tell) -> None:
        from sbpair.failover.events import QueueLeft, SendInDoubt

        if isinstance(event, SendInDoubt):
            self.doubtful.update(event.message_ids)
        self.left += isinstance(event, QueueLeft)
        tell("sender", str(event))
        self.changed.set()


@asynccontextmanager
async def application(
    pair: Pair, entity: str, stage: OutageControl, intervals: Intervals, tell: Tell, seed: int = 0
) -> AsyncIterator[Application]:
    """Sends in the background for as long as it is entered."""
    from sbpair.failover.aio import AsyncPairedClient

    own = replace(pair, failover_interval=intervals.failover, ping_interval=intervals.ping)
    told: list[Application] = []

    def heard(event: SenderEvent) -> None:
        for each in told:
            each.heard(event, tell)

    async with AsyncPairedClient(own, on_failure="wait", retries=0, on_event=heard, outage=stage.outage) as client:
        sender = client.get_queue_sender(entity)
        sending = Application(client, sender)
        told.append(sending)
        stop = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                sends = _send_on(sending, random.Random(seed), 1 / intervals.rate, stop)  # noqa: S311  it is repeatable
                tasks.create_task(sends, name="send")
                try:
                    yield sending
                finally:
                    # What is in hand is finished; the SDK has been seen to swallow a cancellation.
                    stop.set()
        except BaseExceptionGroup as group:
            raise _first(group) from None


async def tell_all(sending: Application, stage: OutageControl, pair: Pair, tell: Tell) -> None:
    """The whole story, from a primary that is well to one that is well again. Raises TimedOut."""
    from sbpair.failover.states import State

    primary, secondary = pair.primary.name, pair.secondary.name
    await sending.until_more("primary")
    tell("primary-down", f"{primary} goes away; the application sends on")
    await stage.primary_away()
    try:
        await sending.until("a failover", lambda: sending.state is State.FAILED_OVER)
        await sending.until_more("backlog")
        if sending.client.pair.backlog_queues > 1 and (queue := sending.sender.backlog_queue):
            tell("queue-down", f"its backlog queue {queue} in {secondary} goes away as well")
            before = sending.left
            await stage.queue_away(queue)
            await sending.until("a turn to another backlog queue", lambda: sending.left > before)
            await sending.until_more("backlog")
        tell("primary-up", f"all of it is there again; a ping will find {primary}")
    finally:
        await stage.restore()
    await sending.until("the way back", lambda: sending.state is State.HEALTHY)


async def received(endpoint: Endpoint, entity: str, expected: int, get_token: Any = None) -> list[bytes]:
    """All that is in the entity, encoded. Ends when nothing more comes, and not before `expected` unless it is late."""
    back: list[bytes] = []
    async with connect(endpoint, get_token=get_token) as wire:
        receiver = await wire.receiver(entity)
        while True:
            receiver.grant(500)
            late = QUIET_SECONDS if len(back) >= expected else LATE_SECONDS
            deliveries = await receiver.take(500, seconds=late)
            if not deliveries:
                break
            await receiver.settle(deliveries, ACCEPTED)
            back += [delivery.payload for delivery in deliveries]
        receiver.close()
    return back


def accounted(sending: Application, back: list[bytes], receipt: Receipt) -> SendTally:
    """Every message of the application against what has arrived."""
    seen: Counter[str] = Counter()
    alterations: dict[str, str] = {}
    for payload in back:
        message_id, wrong = _compared(sending.sent, payload)
        seen[message_id] += 1
        if wrong:
            alterations[message_id] = "; ".join(wrong)
    lost = [message_id for message_id in sending.sent if not seen[message_id]]
    again = {message_id: times - 1 for message_id, times in seen.items() if times > 1}
    delivered = sending.sender.delivered
    return SendTally(
        entity=sending.sender.entity_name,
        sent=len(sending.sent),
        primary=delivered.primary,
        backlog=delivered.backlog,
        refused=sending.refused,
        doubtful=len(sending.doubtful),
        received=len(back),
        lost=len(lost),
        duplicated=sum(again.values()),
        unexplained=sum(times for message_id, times in again.items() if message_id not in sending.doubtful),
        altered=len(alterations),
        receipt=receipt,
        alterations=tuple(alterations.items())[:EXAMPLES],
        lost_ids=tuple(lost[:EXAMPLES]),
    )


# Inside -----------------------------------------------------------------------------------------


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _send_on(sending: Application, chance: random.Random, seconds: float, stop: asyncio.Event) -> None:
    from sbpair.failover import sdk_messages

    for number in count():
        message = sdk_messages.prepare_one(_described(number, chance))
        try:
            await sending.sender.send_messages(message)
        except SbpairError:
            raise
        except Exception:  # noqa: BLE001  the SDK raises what it likes: the application was told
            sending.refused += 1
        else:
            sending.sent[_id_of(message)] = Sections.split(sdk_messages.encode(message))
        sending.changed.set()
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
                return
        except TimeoutError:
            continue


def _described(number: int, chance: random.Random) -> dict[str, Any]:
    """A message that has much of what messages have, and of each thing now and then."""
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


def _id_of(message: Any) -> str:
    return str(message.properties.message_id)


def _compared(sent: dict[str, Sections], payload: bytes) -> tuple[str, list[str]]:
    """The id of what has arrived, and what is not as it was sent."""
    try:
        got = Sections.split(payload)
        has = got.read_properties()
        message_id = text_of(has.message_id) or ""
        original = sent.get(message_id)
        return message_id, ["nobody sent it"] if original is None else list(_differences(original, got, has))
    except ProtocolError as error:
        return "", [f"it cannot be read: {error.message}"]


def _differences(original: Sections, got: Sections, has: Properties) -> list[str]:
    parts = ("body", "footer", "application_properties")
    wrong = [f"the bytes of its {part} are others" for part in parts if getattr(original, part) != getattr(got, part)]
    had = original.read_properties()
    # The SDK writes the moment of sending beside a time to live.
    names = [name for name, _, _ in Properties.TYPES if name not in ("absolute_expiry_time", "creation_time")]
    wrong += [f"its {name} is another" for name in names if not types.same(getattr(had, name), getattr(has, name))]
    if original.read_header().ttl != (got.read_header().ttl if original.read_header().ttl is not None else None):
        wrong.append("its time to live is another")
    return wrong
