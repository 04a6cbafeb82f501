"""The phases of a drill whose primary is lost: it is deleted, and everything goes to the secondary's own queues.

Invariant: the primary is read before it is deleted, so each message is received, or counted as lost with it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from sbpair.drill.drill_messages import OriginalMessage, compared
from sbpair.drill.drill_pair import PRIMARY, EmitPhase, EmulatedOutages, in_background
from sbpair.move.events import SyphonEvent
from sbpair.move.receipt import Receipt
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request

if TYPE_CHECKING:
    from sbpair.drill import Application
    from sbpair.model.pair import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """The account of a primary that was deleted. Messages that only it had are not among those sent."""

    inside: Annotated[int, "Messages that only the primary had, lost with it"]
    copies: Annotated[int, "Received messages that it had, too"]
    unnamed: Annotated[int, "Those of them that neither the receipt nor the client named"]
    disordered: Annotated[int, "Messages received behind a later one of their backlog queue or sender"]
    connections: Annotated[int, "Connections to it after it was declared lost"]

    @property
    def failed(self) -> bool:
        return bool(self.unnamed or self.disordered or self.connections)


@dataclass(frozen=True, slots=True)
class Loss:
    """The ids of all messages `inside` the deleted primary, and the receipt of the delivery to the secondary.

    `sent_before` is how many messages the application had sent at the declaration.
    """

    inside: dict[str, None]
    receipt: Receipt
    sent_before: int
    connections: int
    queues: int

    def account(self, sent: list[OriginalMessage], sending: Application, received: Iterable[bytes]) -> LossReport:
        """Return the account, and remove the messages that only the primary had from those sent."""
        # The order of a destination is kept within a backlog queue, and new sends overtake waiting messages.
        places: dict[str, tuple[object, int]] = {
            each.message_id: ((each.destination, each.number % self.queues, each.scheduled_at), each.number)
            for each in sent
        }
        for number, message_id in enumerate(sending.sent):
            places[message_id] = (number > self.sent_before) - (number < self.sent_before), number
        streams: defaultdict[object, list[int]] = defaultdict(list)
        arrived = _ids(received)
        for stream, number in (places[each] for each in arrived if each in places):
            streams[stream].append(number)
        named = {each.message_id for each in self.receipt.doubtful} | sending.doubtful
        gone, copies = self.inside.keys() & (places.keys() - arrived), self.inside.keys() & arrived
        sent[:] = (each for each in sent if each.message_id not in gone)
        for message_id in gone & sending.sent.keys():
            del sending.sent[message_id]
        return LossReport(
            inside=len(gone),
            copies=len(copies),
            unnamed=len(copies - named),
            disordered=sum(later < earlier for each in streams.values() for earlier, later in pairwise(each)),
            connections=self.connections,
        )


def _ids(payloads: Iterable[bytes]) -> dict[str, None]:
    return dict.fromkeys(compared({}, each, lambda _had, _got: [])[0] for each in payloads)


async def lose(
    sending: Application,
    sent: list[OriginalMessage],
    outages: EmulatedOutages,
    pair: Pair,
    emit: EmitPhase,
    on_event: Callable[[SyphonEvent], None],
) -> Loss:
    """Run every phase, from a syphon that the outage interrupts to a backlog that is delivered. Raises TimedOut."""
    primary, path = outages.emulator.namespaces[PRIMARY], sent[0].destination
    connections: list[asyncio.StreamWriter] = []

    def hold(_reader: object, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        sending.changed.set()

    with TemporaryDirectory() as folder:
        run = partial(runner.run, state=Path(folder), on_event=on_event)
        request = syphon_request(pair, once=True, lease=False, rate=max(1, len(sent) / 2))
        # The answers for one destination never arrive: both sides have its messages.
        outages.emulator.faults.swallow_acks(PRIMARY, path)
        async with in_background(lambda stop: run(request, stop=stop, hurry=stop)):
            await sending.until_more("primary")
            await sending.until(f"a message in {path}", lambda: len(primary.queue(path).messages) > 0)
            emit("primary-down", f"{pair.primary.name} stops; the application continues to send")
            outages.stop_primary()
        await sending.until_more("backlog")
        inside = _ids(each.sections.join() for queue in primary.queues() for each in queue.messages.peek(0, 1 << 53))
        emit("delete", f"{pair.primary.name} is deleted; its port counts connections, and answers none")
        await outages.emulator.delete_namespace(PRIMARY)
        server = await asyncio.start_server(hold, "127.0.0.1", pair.primary.port)
        try:
            await sending.until("a ping", lambda: bool(connections))
            pings, sent_before = len(connections), len(sending.sent)
            emit("declare", "the application is told that the primary is lost, and continues to send")
            sending.client.primary_lost()
            await sending.until_more("secondary")
            emit("deliver", f"delivering the backlog to {pair.secondary.name}, while the application sends to it")
            request = syphon_request(pair, once=True, lease=False, to=pair.secondary)
            delivered, _ = await asyncio.gather(run(request), sending.until_more("secondary"))
        finally:
            server.close()
            for each in connections:
                each.transport.abort()
    return Loss(inside, delivered.receipt, sent_before, len(connections) - pings, pair.backlog_queues)
