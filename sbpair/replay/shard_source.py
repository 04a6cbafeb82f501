"""The archive as a mover's source: rows in order become deliveries, and what becomes of each becomes a ledger entry.

The law: a chunk of the ledger is written when the primary has accepted what is in it, and not before; what the ledger
has is not given out again.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sbpair.errors import SbpairError
from sbpair.model.message_key import NO_KEY
from sbpair.move.message import dead_letters
from sbpair.move.message.decode import Decoder
from sbpair.move.message.route import EXPIRED as EXPIRED_REASON
from sbpair.replay.archive import EXPIRED, LEDGER, QUARANTINE, Archive
from sbpair.replay.ledger import Entry, EntryBuffer, HeldRecord, Ledger
from sbpair.replay.ledger import Key as RowKey
from sbpair.replay.segment_reader import Place, SegmentReader

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.interface import Failures, PeekedHeader, ReceivedMessage
    from sbpair.move.message.decode import Content, Decoded
    from sbpair.move.message.route import Facts

LOOK_SECONDS = 0.5
"""How often it is asked whether the run is to stop."""

MAX_CHUNK, CHUNK_BYTES = 1_000, 8 * 1024 * 1024
"""How many messages are taken in at a time, and written down as sent: a file costs as much as sending a hundred."""

CHUNK_SECONDS = 1.0
"""After how long what was accepted is written down with the next that is, however little it is."""

COLUMNS = ("shard", "segment", "position", "size")


@dataclass(slots=True, eq=False)
class ArchivedMessage:
    """A message of the archive, as if it had just been delivered. Its lock never runs out."""

    facts: Facts
    partition_key: str | None
    ordinal: int
    row: RowKey
    shard: int
    content: Content | None
    payload: bytes
    lock_until: float = float("inf")
    key: Key = NO_KEY


class ShardSource:
    """The rows of one task: whole shards, each in order. `error` is why nothing more may be sent.

    What has come in is written down as being in hand, until the ledger has it: so it is known what may be there twice.
    """

    clock_ahead_ms = 0
    service_ms = None
    broken = None

    def __init__(self, batches: Iterator[Any], archive: Archive, ledger: Ledger, name: str = "archive") -> None:
        self.queue = name
        self.error: SbpairError | None = None
        self._rows = self._unpacked(batches)
        self._archive = archive
        self._bodies = SegmentReader(archive)
        self._ledger = ledger
        self._openers: dict[str, Decoder] = {}
        self._over = False
        self._ahead: deque[ArchivedMessage] = deque()
        self._in_hand = HeldRecord(ledger)
        self._accepted: list[ArchivedMessage] = []
        self._accepted_since = 0.0
        self._turn = 0
        self._shard, self._done = -1, set[RowKey]()
        self._others = EntryBuffer(ledger)
        self._looked, self._stopped = float("-inf"), False

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._over and not self._ahead

    async def receive(self, limit: int, *, seconds: float = 0.0) -> list[ArchivedMessage]:
        """The next rows that have not ended yet; [] at the end."""
        del seconds
        if not self._ahead and not self._over:
            try:
                # In a thread: Spark may take its time, and heartbeats are to be answered.
                self._ahead.extend(await asyncio.to_thread(self._pull))
            except SbpairError as error:
                # What is on its way already is waited for, and written down if that is possible.
                self.error = error
        return [self._ahead.popleft() for _ in range(min(limit, len(self._ahead)))]

    async def complete(self, arrivals: Sequence[ReceivedMessage]) -> Failures:
        """The primary has accepted these; the ledger has them a little later, and until then they are in hand."""
        now = time.monotonic()
        if not self._accepted:
            self._accepted_since = now
        self._accepted += cast("Sequence[ArchivedMessage]", arrivals)
        if len(self._accepted) >= MAX_CHUNK or now - self._accepted_since >= CHUNK_SECONDS:
            error = await self.write_accepted()
            return [(arrival, error) for arrival in arrivals] if error is not None else []
        return []

    async def write_accepted(self) -> SbpairError | None:
        """Have the ledger know of all that was accepted. Why it does not, which is in `error` too."""
        accepted, self._accepted = self._accepted, []
        try:
            for shard, entries in _by_shard(accepted):
                await asyncio.to_thread(self._ledger.write, LEDGER, shard, entries)
        except SbpairError as error:
            self.error = error
            return error
        self._in_hand.let_go(accepted)
        return None

    async def dead_letter(self, arrival: ReceivedMessage, reason: str, description: str) -> None:
        mine = cast("ArchivedMessage", arrival)
        kind = EXPIRED if reason == EXPIRED_REASON else QUARANTINE
        entry = _entry(mine)._replace(reason=f"{reason}: {description}", message=mine.payload)
        try:
            await self._others.write(kind, mine.shard, entry)
        except SbpairError as error:
            self.error = error
            raise
        self._in_hand.let_go([mine])

    def is_stopped(self) -> bool:
        """Whether somebody has asked the run to stop."""
        now = time.monotonic()
        if not self._stopped and now - self._looked >= LOOK_SECONDS:
            self._looked, self._stopped = now, self._archive.stopped()
        return self._stopped

    def close(self) -> None:
        """Nothing is on its way any more."""
        self._ledger.has_nothing_in_hand()

    # What a source of deliveries has, and this one has no use for.

    def grant(self, limit: int) -> None:
        del limit

    async def reopen(self) -> bool:
        return False

    def interrupt(self) -> None:
        self._over = True
        self._ahead.clear()

    async def stop(self) -> None:
        self.interrupt()

    async def release(self, arrivals: Sequence[ReceivedMessage]) -> Failures:
        """They are in the archive, and were never anywhere else."""
        self._in_hand.let_go(arrivals)
        return []

    async def renew(self, arrivals: Sequence[ReceivedMessage]) -> None:
        del arrivals

    async def wait_lost(self) -> None:
        await asyncio.Event().wait()

    def abort(self, error: SbpairError) -> None:
        self.error = error

    async def peek_pages(self) -> AsyncIterator[list[PeekedHeader]]:
        empty: tuple[list[PeekedHeader], ...] = ()
        for page in empty:
            yield page

    # Inside.

    def _pull(self) -> list[ArchivedMessage]:
        shards, places = self._next_places()
        rows = []
        for shard, (key, message) in zip(shards, self._bodies.at(places), strict=True):
            if shard != self._shard:
                self._shard, self._done = shard, self._ledger.done(shard)
            if key not in self._done:
                rows.append((key, shard, message))
        found = self._arrivals(rows)
        if found:
            self._in_hand.take({each: _entry(each) for each in found})
        return found

    def _next_places(self) -> tuple[list[int], list[Place]]:
        """Of which shard the next rows are, and where they lie."""
        shards, places = list[int](), list[Place]()
        size = 0
        while len(places) < MAX_CHUNK and size < CHUNK_BYTES:
            row = next(self._rows, None)
            if row is None:
                self._over = True
                break
            shard, segment, position, bytes_of_it = row
            shards.append(shard)
            places.append((segment, position))
            size += bytes_of_it
        return shards, places

    def _arrivals(self, rows: list[tuple[RowKey, int, bytes]]) -> list[ArchivedMessage]:
        """In their order; the messages of a queue are opened together."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, (key, _, _) in enumerate(rows):
            places[key[0]].append(place)
        opened: dict[int, Decoded] = {}
        for queue, there in places.items():
            opener = self._openers.get(queue) or self._openers.setdefault(queue, Decoder(queue))
            payloads = [rows[place][2] for place in there]
            if dead_letters.is_dead_letter_path(queue):
                payloads = list(map(dead_letters.without_cause, payloads))
            opened.update(zip(there, opener.decode(payloads), strict=True))
        return [self._arrival(opened[place], *row) for place, row in enumerate(rows)]

    def _arrival(self, opened: Decoded, key: RowKey, shard: int, message: bytes) -> ArchivedMessage:
        facts, content, partition_key, _ = opened
        if content is None:
            facts = facts._replace(message_id=key[3] or "")
        self._turn += 1
        return ArchivedMessage(facts, partition_key, self._turn, key, shard, content, message)

    def _unpacked(self, batches: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            yield from zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)


def _entry(arrival: ArchivedMessage) -> Entry:
    return Entry(arrival.row, arrival.facts.path)


def _by_shard(arrivals: Sequence[ArchivedMessage]) -> Iterator[tuple[int, list[Entry]]]:
    found: dict[int, list[Entry]] = {}
    for arrival in arrivals:
        found.setdefault(arrival.shard, []).append(_entry(arrival))
    yield from found.items()
