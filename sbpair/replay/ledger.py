"""What became of messages, written down in chunks that are durable before anything relies on them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from sbpair.errors import SbpairError, StateRefused
from sbpair.replay.archive import DOUBTFUL, LINES, OUTCOMES, SENDING, Archive, Footer
from sbpair.replay.schema import KEY, OUTCOME, VERSION

Key: TypeAlias = tuple[str, int, int, str | None]
"""(queue, sequence number, enqueued at, message id)"""

MAX_REPORTED = 1_000
"""How many messages one file says to be in hand: those that it says are let go with the last of them."""


class Entry(NamedTuple):
    """One row of OUTCOME, but for the attempt. `message` is kept of what was not sent."""

    key: Key
    destination: str | None
    reason: str | None = None
    message: bytes | None = None


class Ledger:
    """Written by one attempt at a task. Without `sync`, a loss of power may take the last chunks away, and no kill."""

    def __init__(self, archive: Archive, shards: int, attempt: str | None = None, *, sync: bool = True) -> None:
        self.attempt = attempt or uuid.uuid4().hex
        self._sync = sync
        self._archive = archive
        self._shards = shards
        self._said: set[str] = set()
        self._place, self._room = "", 0
        self._numbers = count()
        self._doubts: deque[Entry] = deque()
        self._doubting = threading.Lock()

    def write(self, kind: str, shard: int, entries: Sequence[Entry]) -> None:
        """One chunk, there when this returns, and durable where that was asked for. Raises MachineLacks.

        Not before all doubts: once it says how a message has ended, nobody looks any more for who had it in hand.
        """
        if entries:
            self.write_doubts()
            path = f"{kind}/{shard}/{uuid.uuid4().hex}.parquet"
            self._archive.write_table(path, table_of(entries, self.attempt), self._shards, sync=self._sync)

    def doubt(self, entry: Entry) -> None:
        """A message was sent without an answer, and may be there twice; not written down yet."""
        self._doubts.append(entry)

    def write_doubts(self) -> None:
        """Raises MachineLacks."""
        with self._doubting:
            if doubts := list(self._doubts):
                path = f"{DOUBTFUL}/0/{uuid.uuid4().hex}.parquet"
                self._archive.write_table(path, table_of(doubts, self.attempt), self._shards, sync=self._sync)
                for _ in doubts:
                    self._doubts.popleft()

    def has_in_hand(self, entries: Sequence[Entry]) -> str:
        """Say what may be on its way from now on, besides what was said before. Answers where it says so.

        Only a crash makes anybody read it, and only a loss of power makes it be less than it should.
        """
        keys = [entry.key for entry in entries]
        room, self._room = self._room - len(entries), 0  # behind what could not be written whole nothing can be read
        if room < 0:
            self._place = f"{SENDING}/{self.attempt}.{next(self._numbers)}{LINES}"
            self._archive.write_for_now(self._place, keys)
            self._said.add(self._place)
            room = MAX_REPORTED - len(entries) if self._archive.is_local else 0
        else:
            self._archive.add_for_now(self._place, keys)
        self._room = room
        return self._place

    def has_let_go(self, path: str) -> None:
        """None of what was said there is on its way any more."""
        self._said.discard(path)
        self._archive.remove(path)

    def has_nothing_in_hand(self, but: Sequence[Entry] = ()) -> None:
        """Nothing is on its way any more; and these, which the backlog may give again, are said anew."""
        before, self._said, self._room = self._said, set(), 0
        if but:
            self.has_in_hand(but)
        for path in before:
            self.has_let_go(path)

    def done(self, shard: int, kinds: Sequence[str] = OUTCOMES) -> set[Key]:
        """What has ended already, of one shard."""
        found: set[Key] = set()
        for kind in kinds:
            for path in self._archive.files(f"{kind}/{shard}"):
                found.update(keys_of(self._archive.read_table(path, list(KEY))))
        return found


class HeldRecord:
    """What may be on its way: those that are said in one file keep it there, as long as one of them is.

    Taking is for one thread, and letting go may be for another one.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._file_of: dict[object, str] = {}
        self._left: Counter[str] = Counter()
        self._counting = threading.Lock()

    def take(self, arrivals: Mapping[object, Entry]) -> None:
        """Raises MachineLacks."""
        path = self._ledger.has_in_hand([*arrivals.values()])
        with self._counting:
            self._file_of.update(dict.fromkeys(arrivals, path))
            self._left[path] += len(arrivals)
            over = [path for path, left in self._left.items() if not left]
            for path in over:
                del self._left[path]
        for path in over:
            self._ledger.has_let_go(path)

    def let_go(self, arrivals: Iterable[object]) -> None:
        """Of some that were taken; what was not is nothing to it. Their file goes with the next that are taken."""
        with self._counting:
            self._left.subtract([self._file_of.pop(each) for each in arrivals if each in self._file_of])


class EntryBuffer:
    """Entries that come one at a time, and are written together: those of one turn of the loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[tuple[str, int], list[Entry]] = {}
        self._written: asyncio.Future[None] | None = None

    async def write(self, kind: str, shard: int, entry: Entry) -> None:
        """Raises MachineLacks."""
        self._waiting.setdefault((kind, shard), []).append(entry)
        if self._written is None:
            loop = asyncio.get_running_loop()
            self._written = loop.create_future()
            loop.call_soon(self._write_all, self._written)
        await asyncio.shield(self._written)

    def _write_all(self, written: asyncio.Future[None]) -> None:
        waiting, self._waiting, self._written = self._waiting, {}, None
        try:
            for (kind, shard), entries in waiting.items():
                self._ledger.write(kind, shard, entries)
        except SbpairError as error:
            written.set_exception(error)
            written.exception()  # each that waits is told
        else:
            written.set_result(None)


def table_of(entries: Sequence[Entry], attempt: str) -> pa.Table:
    if not entries:
        return OUTCOME.empty_table()
    keys, destinations, reasons, messages = zip(*entries, strict=True)
    columns = (*zip(*keys, strict=True), destinations, reasons, [attempt] * len(entries), messages)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTCOME, strict=True)]
    return pa.Table.from_arrays(arrays, schema=OUTCOME)


def keys_of(table: pa.Table) -> list[Key]:
    return list(zip(*(table.column(name).to_pylist() for name in KEY), strict=True))


def read_held(archive: Archive, path: str) -> Iterator[Key]:
    """What an attempt said it had in hand. Raises StateRefused behind the last that can be read.

    A loss of power may cut such a file short; and so may a kill, of what nothing had come of yet.
    """
    for said in archive.read_for_now(path):
        if not (isinstance(said, list) and all(map(_is_key, said))):
            raise foreign(archive, path)
        yield from map(tuple, said)


def _is_key(said: object) -> bool:
    match said:
        case [str(), int(), int(), str() | None]:
            return True
    return False


def foreign(archive: Archive, path: str) -> StateRefused:
    """For a file whose columns are others than those that it should have."""
    return StateRefused(
        f"{archive.root}/{path} has not the columns of version {VERSION}",
        hint="bring it back as it was written, or take it away if nobody of sbpair wrote it",
    )


def check_shards(archive: Archive, shards: int, *, synced: bool) -> tuple[int, list[str]]:
    """(how many rows all chunks have, those that cannot be read).

    Raises StateRefused for one of another number of shards, or of another run; and for one that cannot be read, but
    where they are not `synced`: there, a loss of power may have cut it short.
    """
    found, broken = 0, list[str]()
    for path in (path for kind in OUTCOMES for path in archive.files(kind)):
        try:
            footer = archive.footer(path)
        except StateRefused:
            if synced:
                raise
            broken.append(path)
            continue
        _check_chunk(archive, path, footer, shards)
        found += footer.rows
    return found, broken


def _check_chunk(archive: Archive, path: str, footer: Footer, shards: int) -> None:
    if not footer.schema.equals(OUTCOME):
        raise foreign(archive, path)
    run, number = footer.about.get("sbpair.run"), footer.about.get("sbpair.shards")
    if run != archive.run:
        raise StateRefused(
            f"{archive.root}/{path} is of run {run}, and not of {archive.run}",
            hint="put it back where it belongs: it says nothing of this run's messages",
        )
    if number != str(shards):
        raise StateRefused(
            f"{archive.root}/{path} was written for {number} shards, and run {archive.run} has {shards}",
            hint="bring run.json back from a copy, as it was when the run began: its shards never change",
        )
