"""Segments: files of drained messages, which tasks read by position to send them.

A segment has one row per message: times are ms since 1970, `ttl_ticks` units of 100 ns, `size` bytes. `message` is the
message as it was in the backlog: its raw AMQP sections, concatenated. A row has a destination or a `flaw`; in a stream,
which nothing is sent from, it has neither, and rows are in order of arrival.

Invariant: a message is held once, as it came or as the file has it. Rows of a shard lie together, to be read together.
Each message read belongs to the row with its own key, and is whole; anything else is an error.
"""

from __future__ import annotations

import time
import uuid
import zlib
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sbpair.model.message_state import is_dead_letter_path
from sbpair.move.message import dead_letters
from sbpair.move.message.envelope import without_lock_token
from sbpair.move.message.route import Facts, Send, route
from sbpair.replay.archive import PARQUET, SEGMENTS, Archive, TableFile, file_metadata
from sbpair.replay.ledger import KEY, KEYS, Key, keyed_rows

if TYPE_CHECKING:
    from sbpair.move.raw_source import RawReceivedMessage

SEGMENT_BYTES, SEGMENT_MESSAGES = 64 * 1024 * 1024, 100_000
"""Size from which a segment is full: bytes of its messages, or their number."""

SEGMENT = pa.schema(
    [
        # The position, in which copies differ.
        pa.field("segment", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        *KEYS,
        pa.field("destination", pa.string()),
        pa.field("session_id", pa.string()),
        pa.field("ttl_ticks", pa.int64()),
        pa.field("scheduled_at_ms", pa.int64()),
        pa.field("content_type", pa.string()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("flaw", pa.string()),
        # Of dead letters only.
        pa.field("dead_letter_reason", pa.string()),
        pa.field("dead_letter_description", pa.string()),
        pa.field("message", pa.binary(), nullable=False),
    ]
)

SPARK_TYPES = {"string": "string", "int64": "bigint", "int32": "int", "binary": "binary"}
KEY_IN_SPARK, SEGMENT_IN_SPARK = (
    ", ".join(f"{field.name} {SPARK_TYPES[str(field.type)]}" for field in schema) for schema in (KEYS, SEGMENT)
)
"""Schemas for Spark, which would start a job to find them out."""

NOT_ENVELOPE = ("segment", "position", "message")
ENVELOPE = tuple(name for name in SEGMENT.names if name not in NOT_ENVELOPE)
"""Columns that a selection may use: equal in all copies of a message, and no bodies."""

MAX_PARTS = 64  # upper bound on the parts of a segment. With more shards than that, neighbours share a part.
PART_BYTES = 2 * 1024 * 1024  # aimed size of a row group. Smaller ones would each cost as much as their messages.
MIN_PART_BYTES = 64 * 1024  # lower bound on a part's size; small segments get fewer parts
MAX_FILES = 64  # segments open at once. Segments drained at the same time are sent at the same time.
GROUPS_BYTES = MAX_FILES * PART_BYTES  # bound on cached row groups that are not all requested yet: one for each file

_SPREAD = 40503  # spreads checksums over all bits: names that differ in a digit have similar checksums

RowPosition: TypeAlias = tuple[str, int]  # (segment, position)
Name = TypeVar("Name")
Value = TypeVar("Value")


def segment_path(name: str) -> str:
    """Return the path of a segment. Earlier versions have a directory for each queue there."""
    return f"{SEGMENTS}/{name}{PARQUET}"


def time_name(seconds: float) -> str:
    """Return a time, in seconds since 1970, as it begins the names of a stream's segments: they sort by it."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{int(seconds * 1000) % 1000:03}Z"


def shard_expression(shards: int, session: str) -> str:
    """Return SQL for a row's shard. Messages of a session share one, whatever their queue, so one task has them all.

    `session` is SQL for what a session's ids have in common.
    """
    text = f"concat_ws(' ', lower(coalesce(destination, '')), coalesce({session}, message_id, ''))"
    return f"cast(crc32(cast({text} AS binary)) * {_SPREAD} div 65536 % {shards} AS int)"


def shard_of(destination: str | None, session_id: str | None, message_id: str | None, shards: int) -> int:
    """Return the same in Python. They may differ for capitals whose lower case they disagree on, and in older runs."""
    within = session_id.lower() if session_id is not None else message_id or ""
    return zlib.crc32(f"{(destination or '').lower()} {within}".encode()) * _SPREAD // 65536 % shards


class Segment:
    """A segment that is being filled, to be written at `due` of the loop's time, and its groups once they are full.

    That of a `stream` is named by the time of its first message.
    """

    def __init__(self, queue: str, file: TableFile, shards: int, *, stream: bool = False) -> None:
        self.file = file
        self.name = uuid.uuid4().hex
        self.path = segment_path(self.name)
        self.queue, self._shards, self._max_parts, self._stream = queue, shards, min(shards, MAX_PARTS), stream
        self.messages: list[RawReceivedMessage] = []
        self.bytes = self.ungrouped_bytes = 0  # of all messages, and of those in no row group yet
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
        if self._stream and not self.messages:
            self.name = f"{time_name(time.time())}-{self.name}"
            self.path = segment_path(self.name)
        for message in messages:
            message.content = None  # the payload has it too
        self.messages += messages
        size = sum([message.facts.size for message in messages])
        self.bytes += size
        self.ungrouped_bytes += size
        self.due = min(self.due, due)

    @property
    def has_full_groups(self) -> bool:
        return self.ungrouped_bytes >= PART_BYTES * self._max_parts

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
        count = min(self._max_parts, 1 + self.ungrouped_bytes // MIN_PART_BYTES)
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
        destinations = flaws = pa.nulls(count, pa.string())
        if not self._stream:
            destinations, flaws = zip(*map(_destination, facts), strict=True)
        reasons = descriptions = pa.nulls(count, pa.string())
        if is_dead_letter_path(self.queue):
            reasons, descriptions = zip(*(dead_letters.cause_of(message.payload) for message in messages), strict=True)
        columns = {
            **of,
            "segment": pa.repeat(self.name, count),
            "position": range(start, start + count),
            "queue": pa.repeat(self.queue, count),
            "enqueued_at_ms": of["enqueued_at"],
            "destination": destinations,
            "scheduled_at_ms": of["scheduled_at"],
            "flaw": flaws,
            "dead_letter_reason": reasons,
            "dead_letter_description": descriptions,
            "message": [without_lock_token(message.payload) for message in messages],
        }
        return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in SEGMENT], schema=SEGMENT)


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


class SegmentReader:
    """One task's reader, for one thread at a time. `check` raises for the path of a segment that is not to be read."""

    def __init__(
        self,
        archive: Archive,
        check: Callable[[str], None] = lambda _path: None,
        *,
        max_files: int = MAX_FILES,
        groups_bytes: int = GROUPS_BYTES,
    ) -> None:
        self._archive, self._check = archive, check
        self._paths = {PurePosixPath(path).stem: path for path in archive.files(SEGMENTS)}
        self._files = LruCache(self._open, max_files)
        self._groups = LruCache(self._read_group, groups_bytes, lambda group: group.size)

    def read(self, positions: Sequence[RowPosition]) -> list[tuple[Key, bytes]]:
        """Return key and message at each position, in order. Raises StateRefused if a segment is missing or broken."""
        found: list[Any] = [None] * len(positions)
        for (segment, number), wanted in self._by_group(positions).items():
            group = self._groups[segment, number]
            for index in wanted:
                found[index] = group.rows[positions[index][1] - group.start]
            group.unread -= len(wanted)
            if group.unread <= 0:
                del self._groups[segment, number]
        return found

    def _by_group(self, positions: Sequence[RowPosition]) -> dict[tuple[str, int], list[int]]:
        found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        starts_of: dict[str, list[int]] = {}
        for index, (segment, position) in enumerate(positions):
            if segment not in starts_of:
                _, starts_of[segment] = self._files[segment]
            starts = starts_of[segment]
            if position >= starts[-1]:
                raise self._archive.broken(self._paths[segment], "it has fewer rows than were planned")
            found[segment, bisect_right(starts, position) - 1].append(index)
        return found

    def _open(self, segment: str) -> tuple[pq.ParquetFile, list[int]]:
        """Return the file, and the first positions of its row groups with its number of rows behind them."""
        if segment not in self._paths:
            raise self._archive.broken(f"{SEGMENTS}/*/{segment}{PARQUET}", "it is missing")
        self._check(self._paths[segment])
        file = self._archive.parquet(self._paths[segment])
        if file_metadata(file.schema_arrow).get("sbpair.run") != self._archive.run:
            raise self._archive.broken(self._paths[segment], "it belongs to another run")
        counts = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
        return file, [0, *accumulate(counts)]

    def _read_group(self, name: tuple[str, int]) -> RowGroup:
        segment, number = name
        file, starts = self._files[segment]
        try:
            table = file.read_row_group(number, columns=[*KEY, "message"], use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._archive.broken(self._paths[segment], error) from error
        rows = list(keyed_rows(table, "message"))
        return RowGroup(starts[number], rows, table.nbytes, len(rows))


@dataclass(slots=True)
class RowGroup:
    """Key and message of neighbouring rows, from position `start` on. `size` is in bytes, `unread` a count of rows."""

    start: int
    rows: list[tuple[Key, bytes]]
    size: int
    unread: int


class LruCache(Generic[Name, Value]):
    """Values made on demand. The least recently used are dropped beyond `limit` in weight; the last one stays."""

    def __init__(self, make: Callable[[Name], Value], limit: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._make, self._limit, self._weigh = make, limit, weigh
        self._held: OrderedDict[Name, Value] = OrderedDict()
        self._weight = 0

    def __getitem__(self, name: Name) -> Value:
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name]
        made = self._held[name] = self._make(name)
        self._weight += self._weigh(made)
        while self._weight > self._limit and len(self._held) > 1:
            del self[next(iter(self._held))]
        return made

    def __delitem__(self, name: Name) -> None:
        self._weight -= self._weigh(self._held.pop(name))
