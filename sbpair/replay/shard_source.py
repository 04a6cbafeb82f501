"""The archive as a mover's source: rows in order become deliveries, and their outcomes become ledger entries.

Invariant: a chunk of the ledger is written after the primary has accepted its messages. Messages that the ledger has
are not delivered again.
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
from sbpair.replay.segment_reader import RowPosition, SegmentReader

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.interface import Failures, ReceivedMessage
    from sbpair.move.message.decode import Content, Decoded
    from sbpair.move.message.route import Facts
    from sbpair.replay.archive import Archive

STOP_POLL_SECONDS = 0.5
"""How often a task checks whether a stop is requested."""

MAX_CHUNK, CHUNK_BYTES = 1_000, 8 * 1024 * 1024
"""Messages read, or recorded as sent, at a time. A file costs as much as sending a hundred messages."""

CHUNK_SECONDS = 1.0
"""Accepted messages are recorded after so long, together with the next that is accepted."""

COLUMNS = ("shard", "segment", "position", "size")


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


class AcceptedChunk:
    """Messages that the primary accepted and the ledger does not have yet."""

    def __init__(self, ledger: Ledger, held: HeldRecord) -> None:
        self._ledger = ledger
        self._held = held
        self._messages: list[ArchivedMessage] = []
        self._since = 0.0

    def add(self, messages: Sequence[ArchivedMessage]) -> bool:
        """Add messages, and return whether the chunk is due to be written."""
        now = time.monotonic()
        if not self._messages:
            self._since = now
        self._messages += messages
        return len(self._messages) >= MAX_CHUNK or now - self._since >= CHUNK_SECONDS

    async def write(self) -> None:
        """Record the messages, and then hold them no longer. Raises MachineLacks."""
        messages, self._messages = self._messages, []
        by_shard: dict[int, list[Entry]] = {}
        for message in messages:
            by_shard.setdefault(message.shard, []).append(_entry(message))
        for shard, entries in by_shard.items():
            await asyncio.to_thread(self._ledger.write, LEDGER, shard, entries)
        self._held.discard(messages)


class ShardReader:
    """The rows of one task as messages: whole shards, each in order, without those that have an outcome.

    Each message read is recorded as held until it has an outcome, so that a crash leaves the possible duplicates known.
    """

    def __init__(self, batches: Iterator[Any], archive: Archive, ledger: Ledger, held: HeldRecord) -> None:
        self.exhausted = False
        self._rows = _unpacked(batches)
        self._segments = SegmentReader(archive)
        self._ledger = ledger
        self._held = held
        self._decoders: dict[str, Decoder] = {}
        self._count = 0
        self._shard, self._ended = -1, set[RowKey]()

    def read(self) -> list[ArchivedMessage]:
        """Return the messages of the next rows, maybe none. Raises StateRefused, MachineLacks."""
        shards, positions = self._next_positions()
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

    def _next_positions(self) -> tuple[list[int], list[RowPosition]]:
        """Return the shards and positions of the next rows."""
        shards, positions = list[int](), list[RowPosition]()
        size = 0
        while len(positions) < MAX_CHUNK and size < CHUNK_BYTES:
            row = next(self._rows, None)
            if row is None:
                self.exhausted = True
                break
            shard, segment, position, row_bytes = row
            shards.append(shard)
            positions.append((segment, position))
            size += row_bytes
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

    service_ms = None

    def __init__(self, batches: Iterator[Any], archive: Archive, ledger: Ledger, name: str = "archive") -> None:
        self.queue = name
        self.error: SbpairError | None = None
        self._archive = archive
        self._ledger = ledger
        self._held = HeldRecord(ledger)
        self._reader = ShardReader(batches, archive, ledger, self._held)
        self._read_ahead: deque[ArchivedMessage] = deque()
        self._chunk = AcceptedChunk(ledger, self._held)
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
                self._read_ahead.extend(await asyncio.to_thread(self._reader.read))
            except SbpairError as error:
                # Messages on their way are still waited for, and recorded if possible.
                self.error = error
        return [self._read_ahead.popleft() for _ in range(min(limit, len(self._read_ahead)))]

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        """Take messages that the primary has accepted. The ledger gets them in chunks; until then they are held."""
        if self._chunk.add(cast("Sequence[ArchivedMessage]", messages)):
            error = await self.write_accepted()
            return [(message, error) for message in messages] if error is not None else []
        return []

    async def write_accepted(self) -> SbpairError | None:
        """Record all accepted messages. Returns the error if that fails, and sets `error`."""
        try:
            await self._chunk.write()
        except SbpairError as error:
            self.error = error
            return error
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
        if not self._stopped and now - self._checked_at >= STOP_POLL_SECONDS:
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


def _unpacked(batches: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)


def _entry(message: ArchivedMessage) -> Entry:
    return Entry(message.row, message.facts.path)
