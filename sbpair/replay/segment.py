"""Drained messages that become a segment: the rows of one file. Nothing here does I/O.

Invariant: a message is held once, as it came or as the file has it. In the file, the rows of a shard lie together, so
that a task reads little of other shards.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sbpair.move.message import dead_letters
from sbpair.move.message.route import Facts, Send, route
from sbpair.replay.archive_layout import segment_path
from sbpair.replay.plan_sql import shard_of
from sbpair.replay.schema import SEGMENT

if TYPE_CHECKING:
    from sbpair.move.raw_source import RawReceivedMessage
    from sbpair.replay.table_file import TableFile

MAX_PARTS = 64
"""Upper bound on the parts of a segment. With more shards than that, neighbours share a part."""

PART_BYTES = 2 * 1024 * 1024
"""Aimed size of a row group. Smaller ones would each cost as much as their messages."""

MIN_PART_BYTES = 64 * 1024
"""Lower bound on a part's size; small segments get fewer parts."""


def part_count(shards: int) -> int:
    return min(shards, MAX_PARTS)


class Segment:
    """A segment that is being filled. `due` is the loop's time at which it must be written.

    `ungrouped_bytes` is the size of messages that are in no row group yet. Once `has_full_groups`, write them.
    """

    def __init__(self, queue: str, file: TableFile, shards: int) -> None:
        self.file = file
        self.name = uuid.uuid4().hex
        self.path = segment_path(queue, self.name)
        self._queue, self._shards = queue, shards
        self.messages: list[RawReceivedMessage] = []
        self.bytes = self.ungrouped_bytes = 0
        self._grouped = 0
        self.due = float("inf")

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def written(self) -> list[RawReceivedMessage]:
        """The messages in the file: only these may be settled once it is stored."""
        return self.messages[: self._grouped]

    def add(self, messages: list[RawReceivedMessage], due: float) -> None:
        """Add messages that must be durable by `due`."""
        for message in messages:
            message.content = None  # the payload has it too
        self.messages += messages
        size = sum([message.facts.size for message in messages])
        self.bytes += size
        self.ungrouped_bytes += size
        self.due = min(self.due, due)

    @property
    def has_full_groups(self) -> bool:
        return self.ungrouped_bytes >= PART_BYTES * part_count(self._shards)

    def write_groups(self) -> None:
        """Write the remaining messages to the file, each part as one row group or several."""
        for part in self._parts(self.messages[self._grouped :]):
            for group in _row_groups(part):
                self.file.add(self._table(group))
                for message in group:
                    message.payload = b""
        self._grouped, self.ungrouped_bytes = len(self.messages), 0

    def _parts(self, messages: list[RawReceivedMessage]) -> list[list[RawReceivedMessage]]:
        """Group messages by neighbouring shards, each part in the order of arrival."""
        shards = self._shards
        count = min(part_count(shards), 1 + self.ungrouped_bytes // MIN_PART_BYTES)
        found: list[list[RawReceivedMessage]] = [[] for _ in range(count)]
        for message in messages:
            facts = message.facts
            shard = shard_of((facts.path or "").strip("/"), facts.session_id, facts.message_id, shards)
            found[shard * count // shards].append(message)
        return [part for part in found if part]

    def _table(self, messages: list[RawReceivedMessage]) -> pa.Table:
        # Column by column: a row at a time costs three times as much.
        start, count = self.file.rows, len(messages)
        facts = [message.facts for message in messages]
        of = dict(zip(Facts._fields, zip(*facts, strict=True), strict=True))
        destinations, flaws = zip(*map(_destination, facts), strict=True)
        reasons, descriptions = self._dead_letter_columns(messages)
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
            "message": [message.payload for message in messages],
        }
        return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in SEGMENT], schema=SEGMENT)

    def _dead_letter_columns(self, messages: list[RawReceivedMessage]) -> tuple[Any, Any]:
        """Return reasons and descriptions; nulls unless the queue is a dead-letter queue."""
        if not dead_letters.is_dead_letter_path(self._queue):
            nulls = pa.nulls(len(messages), pa.string())
            return nulls, nulls
        reasons, descriptions = zip(*(dead_letters.cause_of(message.payload) for message in messages), strict=True)
        return reasons, descriptions


def _row_groups(part: list[RawReceivedMessage]) -> Iterator[list[RawReceivedMessage]]:
    """Split a large part: a reader of one message holds its whole row group."""
    size = sum([message.facts.size for message in part])
    enough = size / max(1, round(size / PART_BYTES))
    start = held = 0
    for end, message in enumerate(part, 1):
        held += message.facts.size
        if held > enough or end == len(part):
            yield part[start:end]
            start, held = end, 0


def _destination(facts: Facts) -> tuple[str | None, str | None]:
    """Return (destination, flaw); one of them is None."""
    decision = route(facts)
    return (decision.destination, None) if isinstance(decision, Send) else (None, decision.description)
