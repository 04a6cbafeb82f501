"""Messages in hand that become a segment: the columns of one file, in the order in which they came. Pure."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sbpair.move import dead_letters
from sbpair.move.route import Send, route
from sbpair.replay.archive import SEGMENTS
from sbpair.replay.schema import SEGMENT

if TYPE_CHECKING:
    from sbpair.move.wire_source import WireArrival


class Segment:
    """One that is being filled. `due` is the loop's time at which it has to be written."""

    def __init__(self, queue: str) -> None:
        self.name = uuid.uuid4().hex
        self.path = f"{SEGMENTS}/{queue}/{self.name}.parquet"
        self.arrivals: list[WireArrival] = []
        self.bytes = 0
        self.due = float("inf")

    def __len__(self) -> int:
        return len(self.arrivals)

    def add(self, arrivals: list[WireArrival], due: float) -> None:
        self.arrivals += arrivals
        self.bytes += sum(arrival.facts.size for arrival in arrivals)
        self.due = min(self.due, due)

    def table(self) -> pa.Table:
        rows = [(self.name, position, *_row(each)) for position, each in enumerate(self.arrivals)]
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SEGMENT, strict=True)]
        return pa.Table.from_arrays(arrays, schema=SEGMENT)


def _row(arrival: WireArrival) -> tuple[Any, ...]:
    facts, decision = arrival.facts, route(arrival.facts)
    destination, flaw = (decision.destination, None) if isinstance(decision, Send) else (None, decision.description)
    why = dead_letters.why(arrival.payload) if dead_letters.is_one(facts.queue) else dead_letters.Why()
    return (
        facts.queue,
        facts.sequence_number,
        facts.enqueued_at,
        facts.message_id,
        destination,
        facts.session_id,
        facts.ttl_ticks,
        facts.scheduled_at,
        facts.content_type,
        facts.size,
        flaw,
        *why,
        arrival.payload,
    )
