"""Messages in hand that become a segment: the rows of one file, in the order in which they came. Nothing here does I/O.

The law: a message is held once, as it came, or as it will lie in the file.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from sbpair.move import dead_letters
from sbpair.move.route import Facts, Send, route
from sbpair.replay.archive import SEGMENTS
from sbpair.replay.schema import SEGMENT

if TYPE_CHECKING:
    from sbpair.move.wire_source import WireArrival
    from sbpair.replay.archive import TableFile


NOT_DEAD = dead_letters.Why()


class Segment:
    """One that is being filled. `due` is the loop's time at which it has to be written.

    `loose` are the bytes of what is in no group of rows yet.
    """

    def __init__(self, queue: str, file: TableFile) -> None:
        self.file = file
        self.name = uuid.uuid4().hex
        self.path = f"{SEGMENTS}/{queue}/{self.name}.parquet"
        self.arrivals: list[WireArrival] = []
        self.bytes = self.loose = 0
        self._grouped = 0
        self.due = float("inf")

    def __len__(self) -> int:
        return len(self.arrivals)

    def add(self, arrivals: list[WireArrival], due: float) -> None:
        for arrival in arrivals:
            arrival.content = None  # it is in the payload, and would be held twice
        self.arrivals += arrivals
        size = sum([arrival.facts.size for arrival in arrivals])
        self.bytes += size
        self.loose += size
        self.due = min(self.due, due)

    def write_group(self) -> None:
        """Bring into the file what is not in it yet."""
        if self.loose:
            self.file.add(self._group())

    def _group(self) -> pa.Table:
        # Column by column: a row at a time costs three times as much.
        arrivals, start = self.arrivals[self._grouped :], self._grouped
        facts = [arrival.facts for arrival in arrivals]
        of = dict(zip(Facts._fields, zip(*facts, strict=True), strict=True))
        destinations, flaws = zip(*map(_end, facts), strict=True)
        reasons, descriptions = zip(*map(_why, arrivals), strict=True)
        columns = {
            "segment": [self.name] * len(facts),
            "position": range(start, start + len(facts)),
            "queue": of["queue"],
            "sequence_number": of["sequence_number"],
            "enqueued_at_ms": of["enqueued_at"],
            "message_id": of["message_id"],
            "destination": destinations,
            "session_id": of["session_id"],
            "ttl_ticks": of["ttl_ticks"],
            "scheduled_at_ms": of["scheduled_at"],
            "content_type": of["content_type"],
            "size": of["size"],
            "flaw": flaws,
            "dead_letter_reason": reasons,
            "dead_letter_description": descriptions,
            "message": [arrival.payload for arrival in arrivals],
        }
        for arrival in arrivals:
            arrival.payload = b""
        self._grouped, self.loose = len(self.arrivals), 0
        return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in SEGMENT], schema=SEGMENT)


def _end(facts: Facts) -> tuple[str | None, str | None]:
    """(destination, why it has none)"""
    decision = route(facts)
    return (decision.destination, None) if isinstance(decision, Send) else (None, decision.description)


def _why(arrival: WireArrival) -> dead_letters.Why:
    return dead_letters.why(arrival.payload) if dead_letters.is_one(arrival.facts.queue) else NOT_DEAD
