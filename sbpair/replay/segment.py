"""Messages in hand that become a segment: the rows of one file. Nothing here does I/O.

The law: a message is held once, as it came, or as it will lie in the file. There, what is of one shard lies together,
so that whoever sends a shard reads little of what is of others.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sbpair.move.message import dead_letters
from sbpair.move.message.route import Facts, Send, route
from sbpair.replay.archive import segment_path
from sbpair.replay.plan_sql import shard_of
from sbpair.replay.schema import SEGMENT

if TYPE_CHECKING:
    from sbpair.move.raw_source import RawReceivedMessage
    from sbpair.replay.archive import TableFile

MAX_PARTS = 64
"""Into so many parts what came is parted at most: where there are more shards, neighbours share one."""

PART_BYTES = 2 * 1024 * 1024
"""So much for each part is worth being written: less would have each of them cost as much as its messages."""

MIN_PART_BYTES = 64 * 1024
"""Where all that there is comes to less for each part, there are fewer parts."""


def parts_of(shards: int) -> int:
    return min(shards, MAX_PARTS)


class Segment:
    """One that is being filled. `due` is the loop's time at which it has to be written.

    `loose` are the bytes of what is in no group of rows yet; with `is_due_for_groups` it should be.
    """

    def __init__(self, queue: str, file: TableFile, shards: int) -> None:
        self.file = file
        self.name = uuid.uuid4().hex
        self.path = segment_path(queue, self.name)
        self._queue, self._shards = queue, shards
        self.arrivals: list[RawReceivedMessage] = []
        self.bytes = self.loose = 0
        self._grouped = 0
        self.due = float("inf")

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def written(self) -> list[RawReceivedMessage]:
        """Those that the file has: nothing else may be settled when it is stored."""
        return self.arrivals[: self._grouped]

    def add(self, arrivals: list[RawReceivedMessage], due: float) -> None:
        for arrival in arrivals:
            arrival.content = None  # it is in the payload, and would be held twice
        self.arrivals += arrivals
        size = sum([arrival.facts.size for arrival in arrivals])
        self.bytes += size
        self.loose += size
        self.due = min(self.due, due)

    @property
    def is_due_for_groups(self) -> bool:
        return self.loose >= PART_BYTES * parts_of(self._shards)

    def write_groups(self) -> None:
        """Bring into the file what is not in it yet: each part of it a group of rows, or several."""
        for part in self._parted(self.arrivals[self._grouped :]):
            for group in _groups(part):
                self.file.add(self._table(group))
                for arrival in group:
                    arrival.payload = b""
        self._grouped, self.loose = len(self.arrivals), 0

    def _parted(self, arrivals: list[RawReceivedMessage]) -> list[list[RawReceivedMessage]]:
        """Those of neighbouring shards together, in the order in which they came."""
        shards = self._shards
        count = min(parts_of(shards), 1 + self.loose // MIN_PART_BYTES)
        found: list[list[RawReceivedMessage]] = [[] for _ in range(count)]
        for arrival in arrivals:
            facts = arrival.facts
            shard = shard_of((facts.path or "").strip("/"), facts.session_id, facts.message_id, shards)
            found[shard * count // shards].append(arrival)
        return [part for part in found if part]

    def _table(self, arrivals: list[RawReceivedMessage]) -> pa.Table:
        # Column by column: a row at a time costs three times as much.
        start, count = self.file.rows, len(arrivals)
        facts = [arrival.facts for arrival in arrivals]
        of = dict(zip(Facts._fields, zip(*facts, strict=True), strict=True))
        destinations, flaws = zip(*map(_end, facts), strict=True)
        reasons, descriptions = self._why(arrivals)
        columns = {
            "segment": pa.repeat(self.name, count),
            "position": range(start, start + count),
            "queue": pa.repeat(self._queue, count),
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
        return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in SEGMENT], schema=SEGMENT)

    def _why(self, arrivals: list[RawReceivedMessage]) -> tuple[Any, Any]:
        """Why each of them is a dead letter: reasons and descriptions."""
        if not dead_letters.is_dead_letter_path(self._queue):
            nothing = pa.nulls(len(arrivals), pa.string())
            return nothing, nothing
        reasons, descriptions = zip(*(dead_letters.cause_of(arrival.payload) for arrival in arrivals), strict=True)
        return reasons, descriptions


def _groups(part: list[RawReceivedMessage]) -> Iterator[list[RawReceivedMessage]]:
    """Cut where it is much more than others: whoever reads one message of a group holds all of it."""
    size = sum([arrival.facts.size for arrival in part])
    enough = size / max(1, round(size / PART_BYTES))
    start = held = 0
    for end, arrival in enumerate(part, 1):
        held += arrival.facts.size
        if held > enough or end == len(part):
            yield part[start:end]
            start, held = end, 0


def _end(facts: Facts) -> tuple[str | None, str | None]:
    """(destination, why it has none)"""
    decision = route(facts)
    return (decision.destination, None) if isinstance(decision, Send) else (None, decision.description)
