"""A rehearsal of the whole story on an emulator of its own, with every message compared to the byte in the end.

result = await sbpair.drill.run_drill(messages=1_000)

What old clients have stranded is brought back; and an application sends on through the paired client while its primary,
and then a backlog queue too, goes away and comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from sbpair import backlog
from sbpair.amqp.message import Sections
from sbpair.amqp.types import text_of
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED
from sbpair.azure.atom import open_atom
from sbpair.drill import against_pair, scenario
from sbpair.drill.against_pair import OWN_QUEUES
from sbpair.drill.compare import differences
from sbpair.drill.drill_messages import DESTINATIONS, SCHEDULE_MS, OriginalMessage, originals
from sbpair.drill.emulator_process import advance_clock, emulated_pair
from sbpair.drill.outages import EmulatedOutages
from sbpair.drill.scenario import Intervals, SendTally, accounted, received
from sbpair.errors import ExitCode, ProtocolError, UsageError
from sbpair.management import provisioning
from sbpair.model.queues import QueueSpec
from sbpair.move.events import SyphonEvent
from sbpair.syphon import runner

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.move.receipt import Receipt

APPLICATION = "checkout"
"""Where the application sends to."""

AT_ONCE = 50
"""Messages that are on their way at the same time while the backlog is written."""

EXAMPLES = 20
"""How many altered messages are named."""


@dataclass(frozen=True, slots=True)
class DrillPhase:
    """A drill has come to a new part of its story, or a paired client has told something ("sender"), so long after its
    beginning."""

    name: str
    text: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Written:
    """So many of the messages are in the backlog."""

    count: int
    total: int


@dataclass(frozen=True, slots=True)
class ComparisonProgress:
    """So many of the messages have been read back."""

    count: int
    total: int


DrillEvent: TypeAlias = DrillPhase | Written | ComparisonProgress | SyphonEvent
OnEvent: TypeAlias = Callable[[DrillEvent], None]


@dataclass(frozen=True, slots=True)
class DrillResult:
    """What became of the messages that were stranded: `alterations` are (message id, what is not as it was sent).

    `sending` is what became of those that were sent by the paired client, and `timeline` what happened when.
    """

    sent: int
    received: int
    lost: int
    duplicated: int
    altered: int
    seconds: float
    receipt: Receipt
    alterations: tuple[tuple[str, str], ...]
    lost_ids: tuple[str, ...]
    sending: SendTally
    timeline: tuple[DrillPhase, ...] = ()

    @property
    def exit_code(self) -> int:
        failed = self.lost or self.duplicated or self.altered or self.sending.failed
        return ExitCode.PARTIAL_OR_FINDINGS if failed else ExitCode.DONE


class Timeline:
    """Tells phases as they come, and keeps them."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._started = time.monotonic()
        self.phases: list[DrillPhase] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __call__(self, name: str, text: str) -> None:
        self.phases.append(DrillPhase(name, text, round(self.seconds, 3)))
        self._on_event(self.phases[-1])


async def run_drill(
    *,
    messages: int = 1_000,
    queues: int = 10,
    seed: int = 0,
    intervals: Intervals | None = None,
    on_event: OnEvent = lambda _event: None,
) -> DrillResult:
    """Run the drill. Nothing outside of this machine is touched, and nothing is left behind.

    Raises UsageError for a count below 1, MachineLacks where the emulator cannot start, TimedOut where a part of the
    story does not come about.
    """
    if messages < 1:
        raise UsageError(f"a drill with {messages} messages shows nothing", hint="give --messages at least 1")
    tell = Timeline(on_event)
    tell("start", "starting an emulator of its own")
    async with emulated_pair(queues) as pair:
        tell("provision", f"creating {queues} backlog queues in {pair.secondary.name}")
        await provisioning.provision(pair)
        await _create_destinations(pair.primary)
        stage = EmulatedOutages(pair)
        async with scenario.application(pair, APPLICATION, stage, intervals or Intervals(), tell, seed) as application:
            tell("strand", f"stranding {messages} messages in the backlog, as the old client would")
            sent = originals(messages, now_ms=int(time.time() * 1000), seed=seed)
            await _strand(pair, sent, on_event)
            tell("syphon", f"bringing them back to {pair.primary.name}, while an application sends to {APPLICATION}")
            moved = await runner.run(pair, once=True, on_event=on_event)
            await scenario.tell_all(application, stage, pair, tell)
            tell("syphon", "bringing back what the application sent to the backlog, while it sends on")
            followed, _ = await asyncio.gather(
                runner.run(pair, once=True, on_event=on_event), application.until_more("primary")
            )
        tell("compare", "reading all of it back, and comparing each to the byte")
        arrived = await received(pair.primary, APPLICATION, len(application.sent))
        sending = accounted(application, arrived, followed.receipt)
        back = await _read_back(pair.primary, messages, on_event)
    result = _result(sent, back, moved.receipt, sending)
    return replace(result, seconds=tell.seconds, timeline=tuple(tell.phases))


async def drill_against(
    pair: Pair,
    tag: str,
    *,
    queues: int = OWN_QUEUES,
    seed: int = 0,
    intervals: Intervals | None = None,
    on_event: OnEvent = lambda _event: None,
) -> DrillResult:
    """The part of the story that sends, on a user's own namespaces: the failure is this client's alone.

    It writes to queues that it makes (`drill.own_namespaces.names`), and deletes. Needs Manage, Send and Listen on both
    sides. Nothing is stranded: those counts are 0. Raises SbpairError, with its queues gone.
    """
    tell = Timeline(on_event)
    sending = await against_pair.drill_on_pair(
        pair, tag, tell, queues=queues, seed=seed, intervals=intervals, on_event=on_event
    )
    result = _result([], [], sending.receipt, sending)
    return replace(result, seconds=tell.seconds, timeline=tuple(tell.phases))


async def _create_destinations(primary: Endpoint) -> None:
    async with open_atom(primary) as control:
        for path in (*DESTINATIONS, APPLICATION):
            await control.create(QueueSpec(path))


async def _strand(pair: Pair, sent: list[OriginalMessage], on_event: OnEvent) -> None:
    async with connect(pair.secondary) as wire:
        senders = [
            await wire.sender(backlog.queue_path(pair.primary.name, index)) for index in range(pair.backlog_queues)
        ]
        for start in range(0, len(sent), AT_ONCE):
            chunk = sent[start : start + AT_ONCE]
            await asyncio.gather(*(senders[each.number % len(senders)].send(each.in_backlog()) for each in chunk))
            on_event(Written(start + len(chunk), len(sent)))


async def _read_back(primary: Endpoint, expected: int, on_event: OnEvent) -> list[tuple[str, bytes]]:
    """All that is in the destinations, as (destination, encoded message); scheduled ones once their time has come."""
    back: list[tuple[str, bytes]] = []
    async with open_atom(primary) as control, connect(primary) as wire:
        for _ in ("what is there at once", "what was scheduled"):
            for path in DESTINATIONS:
                receiver = await wire.receiver(path)
                while (await control.counts(path)).active:
                    receiver.grant(500)
                    deliveries = await receiver.take(500, seconds=1.0)
                    await receiver.settle(deliveries, ACCEPTED)
                    back += [(path, delivery.payload) for delivery in deliveries]
                    on_event(ComparisonProgress(len(back), expected))
                receiver.close()
            await advance_clock(primary, SCHEDULE_MS + 60_000)
    return back


def _id_of(payload: bytes) -> str:
    """ "" for what has none, and for what cannot be read: nobody sent that."""
    with suppress(ProtocolError):
        return text_of(Sections.split(payload).read_properties().message_id) or ""
    return ""


def _result(
    sent: list[OriginalMessage], back: list[tuple[str, bytes]], receipt: Receipt, sending: SendTally
) -> DrillResult:
    known = {each.message_id: each for each in sent}
    seen: Counter[str] = Counter()
    alterations: dict[str, str] = {}
    for destination, payload in back:
        message_id = _id_of(payload)
        seen[message_id] += 1
        original = known.get(message_id)
        wrong = ["nobody sent it"] if original is None else differences(original, payload)
        if original is not None and original.destination != destination:
            wrong.append(f"it came to {destination} and not to {original.destination}")
        if wrong:
            alterations[message_id] = "; ".join(wrong)
    lost = [message_id for message_id in known if not seen[message_id]]
    return DrillResult(
        sent=len(sent),
        received=len(back),
        lost=len(lost),
        duplicated=sum(count - 1 for count in seen.values()),
        altered=len(alterations),
        seconds=0.0,
        receipt=receipt,
        alterations=tuple(alterations.items())[:EXAMPLES],
        lost_ids=tuple(lost[:EXAMPLES]),
        sending=sending,
    )
