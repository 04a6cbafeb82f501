"""The archive as a mover's source: rows in order become deliveries, and their outcomes become ledger entries.

Invariant: a chunk of the ledger is written after the primary has accepted its messages, and none of them comes again.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sbpair.errors import SbpairError
from sbpair.model.message_key import NO_KEY
from sbpair.move.message import dead_letters
from sbpair.move.message.decode import Decoder
from sbpair.move.message.route import EXPIRED as EXPIRED_REASON
from sbpair.replay.archive_layout import EXPIRED, LEDGER, QUARANTINE
from sbpair.replay.ledger import Entry, EntryBuffer, HeldRecord, Ledger
from sbpair.replay.ledger import Key as RowKey
from sbpair.replay.segment import RowPosition, SegmentReader
from sbpair.replay.shard_plan import COLUMNS
from sbpair.replay.spark_task import column_rows

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.interface import Failures, ReceivedMessage
    from sbpair.move.message.decode import Content, Decoded
    from sbpair.move.message.route import Facts
    from sbpair.replay.archive import Archive

STOP_POLL_SECONDS = 0.5  # how often a task checks whether a stop is requested
MAX_CHUNK, CHUNK_BYTES = 1_000, 8 * 1024 * 1024  # read, or recorded as sent, at a time: a file costs 100 sends
CHUNK_SECONDS = 1.0  # accepted messages are recorded after so long, together with the next that is accepted


@dataclass(slots=True, eq=False)
class ArchivedMessage:
    """A message of the archive as a mover's delivery. Its lock never expires."""

    facts: Facts
    partition_key: str | None
    ordinal: int
    row: RowKey
    shard: int
    content: Content | None
    payload: bytes
    lock_until: float = float("inf")
    key: Key = NO_KEY


class ShardReader:
    """The rows of one task as messages without an outcome, each shard in order. Each is recorded as held when read."""

    def __init__(self, batches: Iterator[Any], archive: Archive, ledger: Ledger, held: HeldRecord) -> None:
        self.exhausted = False
        self._rows = column_rows(batches, COLUMNS)
        self._segments = SegmentReader(archive)
        self._ledger, self._held = ledger, held
        self._decoders: dict[str, Decoder] = {}
        self._count = 0
        self._shard, self._ended = -1, set[RowKey]()

    def read(self, max_rows: int, max_bytes: int) -> list[ArchivedMessage]:
        """Return the messages of the next rows, maybe none. Raises StateRefused, MachineLacks."""
        shards, positions = self._next_positions(max_rows, max_bytes)
        rows = []
        for shard, (key, message) in zip(shards, self._segments.read(positions), strict=True):
            if shard != self._shard:
                self._shard, self._ended = shard, self._ledger.ended_keys(shard)
            if key not in self._ended:
                rows.append((key, shard, message))
        found = self._messages(rows)
        if found:
            self._held.add({each: _entry(each) for each in found})
        return found

    def _next_positions(self, max_rows: int, max_bytes: int) -> tuple[list[int], list[RowPosition]]:
        shards, positions = list[int](), list[RowPosition]()
        size = 0
        for shard, segment, position, row_bytes in self._rows:
            shards.append(shard)
            positions.append((segment, position))
            size += row_bytes
            if len(positions) >= max_rows or size >= max_bytes:
                break
        else:
            self.exhausted = True
        return shards, positions

    def _messages(self, rows: list[tuple[RowKey, int, bytes]]) -> list[ArchivedMessage]:
        """Decode rows, those of one queue together, and return them in their order."""
        indices_of: defaultdict[str, list[int]] = defaultdict(list)
        for index, (key, _, _) in enumerate(rows):
            indices_of[key[0]].append(index)
        decoded: dict[int, Decoded] = {}
        for queue, indices in indices_of.items():
            decoder = self._decoders.get(queue) or self._decoders.setdefault(queue, Decoder(queue))
            payloads = [rows[index][2] for index in indices]
            if dead_letters.is_dead_letter_path(queue):
                payloads = list(map(dead_letters.without_cause, payloads))
            decoded.update(zip(indices, decoder.decode(payloads), strict=True))
        return [self._message(decoded[index], *row) for index, row in enumerate(rows)]

    def _message(self, decoded: Decoded, key: RowKey, shard: int, message: bytes) -> ArchivedMessage:
        facts, content, partition_key, _ = decoded
        if content is None:
            facts = facts._replace(message_id=key[3] or "")
        self._count += 1
        return ArchivedMessage(facts, partition_key, self._count, key, shard, content, message)


class ShardSource:
    """One task's messages for a mover. `error` is why no more may be sent."""

    queue = "archive"
    service_ms = None

    def __init__(
        self,
        batches: Iterator[Any],
        archive: Archive,
        ledger: Ledger,
        *,
        max_chunk: int = MAX_CHUNK,
        chunk_bytes: int = CHUNK_BYTES,
        chunk_seconds: float = CHUNK_SECONDS,
        stop_poll_seconds: float = STOP_POLL_SECONDS,
    ) -> None:
        self._max_chunk, self._chunk_bytes = max_chunk, chunk_bytes
        self._chunk_seconds, self._stop_poll_seconds = chunk_seconds, stop_poll_seconds
        self.error: SbpairError | None = None
        self._archive, self._ledger = archive, ledger
        self._held = HeldRecord(ledger)
        self._reader = ShardReader(batches, archive, ledger, self._held)
        self._read_ahead: deque[ArchivedMessage] = deque()
        # Accepted by the primary, and not in the ledger yet.
        self._accepted: list[ArchivedMessage] = []
        self._accepted_since = 0.0
        self._buffer = EntryBuffer(ledger)
        self._checked_at, self._stopped = float("-inf"), False

    @property
    def ended(self) -> bool:
        """Whether no more messages will come."""
        return self._reader.exhausted and not self._read_ahead

    async def receive(self, limit: int, *, seconds: float = 0.0) -> list[ArchivedMessage]:
        """Return the next messages without an outcome; [] at the end."""
        del seconds
        if not self._read_ahead and not self._reader.exhausted:
            try:
                # In a thread: Spark may take its time, and heartbeats are to be answered.
                found = await asyncio.to_thread(self._reader.read, self._max_chunk, self._chunk_bytes)
                self._read_ahead.extend(found)
            except SbpairError as error:
                # Messages on their way are still waited for, and recorded if possible.
                self.error = error
        return [self._read_ahead.popleft() for _ in range(min(limit, len(self._read_ahead)))]

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Take messages that the primary has accepted. The ledger gets them in chunks; until then they are held."""
        now = time.monotonic()
        if not self._accepted:
            self._accepted_since = now
        self._accepted += cast("Sequence[ArchivedMessage]", messages)
        if len(self._accepted) < self._max_chunk and now - self._accepted_since < self._chunk_seconds:
            return []
        error = await self.write_accepted()
        return [(message, error) for message in messages] if error is not None else []

    async def write_accepted(self) -> SbpairError | None:
        """Record accepted messages, then hold them no longer. Returns the error if that fails, and sets `error`."""
        messages, self._accepted = self._accepted, []
        by_shard: defaultdict[int, list[Entry]] = defaultdict(list)
        for message in messages:
            by_shard[message.shard].append(_entry(message))
        try:
            for shard, entries in by_shard.items():
                await asyncio.to_thread(self._ledger.write, LEDGER, shard, entries)
        except SbpairError as error:
            self.error = error
            return error
        self._held.discard(messages)
        return None

    async def dead_letter(self, message: ReceivedMessage, reason: str, description: str) -> None:
        archived = cast("ArchivedMessage", message)
        kind = EXPIRED if reason == EXPIRED_REASON else QUARANTINE
        entry = _entry(archived)._replace(reason=f"{reason}: {description}", message=archived.payload)
        try:
            await self._buffer.write(kind, archived.shard, entry)
        except SbpairError as error:
            self.error = error
            raise
        self._held.discard([archived])

    def stop_requested(self) -> bool:
        now = time.monotonic()
        if not self._stopped and now - self._checked_at >= self._stop_poll_seconds:
            self._checked_at, self._stopped = now, self._archive.stop_requested()
        return self._stopped

    def close(self) -> None:
        """Remove the record of held messages: none is held any more."""
        self._ledger.clear_held()

    # Parts of the protocol without a meaning for an archive.

    def interrupt(self) -> None:
        self._reader.exhausted = True
        self._read_ahead.clear()

    async def stop(self) -> None:
        self.interrupt()

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Forget messages: they stay in the archive."""
        self._held.discard(messages)
        return []

    async def renew(self, messages: Sequence[ReceivedMessage]) -> None:
        del messages


def _entry(message: ArchivedMessage) -> Entry:
    return Entry(message.row, message.facts.path)
