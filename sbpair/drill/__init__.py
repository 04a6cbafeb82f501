"""A rehearsal of the main job on an emulator of its own: provision, strand messages, syphon, compare each to the byte.

result = await sbpair.drill.run(messages=1_000)
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sbpair import backlog, provision, syphon
from sbpair.amqp.message import Sections
from sbpair.amqp.types import text_of
from sbpair.bus.atom import open_queues
from sbpair.drill.compare import differences
from sbpair.drill.corpus import DESTINATIONS, SCHEDULE_MS, Original, originals
from sbpair.drill.service import advance_clock, emulated_pair
from sbpair.errors import ProtocolError, UsageError
from sbpair.model import QueueSpec
from sbpair.move.events import SyphonEvent
from sbpair.wire.client import connect
from sbpair.wire.links import ACCEPTED

if TYPE_CHECKING:
    from sbpair.model import Endpoint, Pair
    from sbpair.move.receipt import Receipt

AT_ONCE = 50
"""Messages that are on their way at the same time while the backlog is written."""

EXAMPLES = 20
"""How many altered messages are named."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A drill has come to a new part of its story."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """So many of the messages are in the backlog."""

    count: int
    total: int


@dataclass(frozen=True, slots=True)
class Compared:
    """So many of the messages have been read back."""

    count: int
    total: int


DrillEvent: TypeAlias = Phase | Written | Compared | SyphonEvent
OnEvent: TypeAlias = Callable[[DrillEvent], None]


@dataclass(frozen=True, slots=True)
class Result:
    """`alterations` are (message id, what is not as it was sent), the first few of them."""

    sent: int
    received: int
    lost: int
    duplicated: int
    altered: int
    seconds: float
    receipt: Receipt
    alterations: tuple[tuple[str, str], ...]
    lost_ids: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 3 if self.lost or self.duplicated or self.altered else 0


async def run(
    *, messages: int = 1_000, queues: int = 10, seed: int = 0, on_event: OnEvent = lambda _event: None
) -> Result:
    """Run the drill. Nothing outside of this machine is touched, and nothing is left behind.

    Raises UsageError for a count below 1, MachineLacks where the emulator cannot start.
    """
    if messages < 1:
        raise UsageError(f"a drill with {messages} messages shows nothing", hint="give --messages at least 1")
    started = time.monotonic()
    on_event(Phase("start", "starting an emulator of its own"))
    async with emulated_pair(queues) as pair:
        on_event(Phase("provision", f"creating {queues} backlog queues in {pair.secondary.name}"))
        await provision.run(pair)
        await _create_destinations(pair.primary)
        on_event(Phase("strand", f"stranding {messages} messages in the backlog, as the old client would"))
        sent = originals(messages, now_ms=int(time.time() * 1000), seed=seed)
        await _strand(pair, sent, on_event)
        on_event(Phase("syphon", f"bringing them back to {pair.primary.name}"))
        moved = await syphon.run(pair, once=True, on_event=on_event)
        on_event(Phase("compare", "reading them back, and comparing each to the byte"))
        back = await _read_back(pair.primary, messages, on_event)
    return _result(sent, back, moved.receipt, time.monotonic() - started)


async def _create_destinations(primary: Endpoint) -> None:
    async with open_queues(primary) as control:
        for path in DESTINATIONS:
            await control.create(QueueSpec(path))


async def _strand(pair: Pair, sent: list[Original], on_event: OnEvent) -> None:
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
    async with open_queues(primary) as control, connect(primary) as wire:
        for _ in ("what is there at once", "what was scheduled"):
            for path in DESTINATIONS:
                receiver = await wire.receiver(path)
                while (await control.counts(path)).active:
                    receiver.grant(500)
                    deliveries = await receiver.take(500, seconds=1.0)
                    await receiver.settle(deliveries, ACCEPTED)
                    back += [(path, delivery.payload) for delivery in deliveries]
                    on_event(Compared(len(back), expected))
                receiver.close()
            await advance_clock(primary, SCHEDULE_MS + 60_000)
    return back


def _id_of(payload: bytes) -> str:
    """ "" for what has none, and for what cannot be read: nobody sent that."""
    with suppress(ProtocolError):
        return text_of(Sections.split(payload).read_properties().message_id) or ""
    return ""


def _result(sent: list[Original], back: list[tuple[str, bytes]], receipt: Receipt, seconds: float) -> Result:
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
    return Result(
        sent=len(sent),
        received=len(back),
        lost=len(lost),
        duplicated=sum(count - 1 for count in seen.values()),
        altered=len(alterations),
        seconds=seconds,
        receipt=receipt,
        alterations=tuple(alterations.items())[:EXAMPLES],
        lost_ids=tuple(lost[:EXAMPLES]),
    )
