"""A rehearsal of a failover on an emulator of its own; every message is compared byte for byte at the end.

result = await sbpair.drill.run_drill(messages=1_000)

Messages stranded by old clients are moved back. An application sends through the paired client while its primary, and
then a backlog queue, fails and recovers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from sbpair import backlog
from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import open_atom
from sbpair.drill import scenario
from sbpair.drill.drill_messages import (
    DESTINATIONS,
    SCHEDULE_MS,
    Comparison,
    OriginalMessage,
    compare_all,
    compared,
    message_differences,
    originals,
)
from sbpair.drill.drill_pair import OWN_QUEUES, DrillPhase, SimulatedOutages, Timeline, drill_queues, emulated_pair
from sbpair.drill.scenario import INTERVALS, Intervals, SendTally, accounted, received, take_payloads
from sbpair.errors import ExitCode, UsageError
from sbpair.management import provisioning
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import QueueSpec
from sbpair.move.events import SyphonEvent
from sbpair.move.receipt import Receipt
from sbpair.syphon import runner

APPLICATION = "checkout"
"""The queue that the application sends to."""

COMPARING = "reading all messages back, and comparing each byte for byte"

CONCURRENT_SENDS = 50
"""Messages in flight while the backlog is written."""


DrillEvent: TypeAlias = DrillPhase | SyphonEvent
OnEvent: TypeAlias = Callable[[DrillEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult(Comparison):
    """The result for stranded messages, `sending` that for messages of the paired client; `timeline` has the phases."""

    seconds: float
    sending: SendTally
    timeline: tuple[DrillPhase, ...] = ()

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
        async with scenario.application(pair, APPLICATION, outages, intervals, timeline, seed) as application:
            timeline("strand", f"stranding {messages} messages in the backlog, as the old client does")
            sent = originals(messages, now_ms=int(time.time() * 1000), seed=seed)
            await _strand(pair, sent)
            timeline("syphon", f"moving them back to {pair.primary.name}, while an application sends to {APPLICATION}")
            moved = await runner.run(pair, once=True, lease=False, on_event=on_event)
            followed = await scenario.play(application, outages, pair, timeline, on_event)
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
        async with scenario.application(own, entity, outages, intervals, timeline, seed) as application:
            moved = await scenario.play(application, outages, pair, timeline, on_event)
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
