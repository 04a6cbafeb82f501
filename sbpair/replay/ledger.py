"""Outcomes of messages, in chunks that are durable before anything relies on them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from sbpair.errors import SbpairError, StateRefused
from sbpair.replay.archive_layout import DOUBTFUL, HELD, LINES, OUTCOMES
from sbpair.replay.schema import KEY, OUTCOME, VERSION

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.table_file import Footer

Key: TypeAlias = tuple[str, int, int, str | None]
"""(queue, sequence number, enqueued at, message id)"""

MAX_HELD_PER_FILE = 1_000
"""Held messages recorded in one file. The file is removed once none of them is held."""


class Entry(NamedTuple):
    """One row of OUTCOME, without the attempt. `message` is kept if it was not sent."""

    key: Key
    destination: str | None
    reason: str | None = None
    message: bytes | None = None


class Ledger:
    """The chunks that one attempt at a task writes.

    Without `sync`, a loss of power may lose the last chunks; a kill loses none.
    """

    def __init__(self, archive: Archive, shards: int, attempt: str | None = None, *, sync: bool = True) -> None:
        self.attempt = attempt or uuid.uuid4().hex
        self._sync = sync
        self._archive = archive
        self._shards = shards
        self._held_files: set[str] = set()
        self._held_path, self._room = "", 0
        self._numbers = count()
        self._doubtful: deque[Entry] = deque()
        self._doubtful_lock = threading.Lock()

    def write(self, kind: str, shard: int, entries: Sequence[Entry]) -> None:
        """Write one chunk, durable on return if the ledger syncs. Raises MachineLacks.

        Doubtful entries go first: a message with an outcome is no longer looked up among the held.
        """
        if entries:
            self.write_doubtful()
            path = f"{kind}/{shard}/{uuid.uuid4().hex}.parquet"
            self._archive.write_table(path, entries_table(entries, self.attempt), self._shards, sync=self._sync)

    def add_doubtful(self, entry: Entry) -> None:
        """Note a message that was sent without an answer, and may arrive twice. Nothing is written yet."""
        self._doubtful.append(entry)

    def write_doubtful(self) -> None:
        """Write the doubtful entries noted so far. Raises MachineLacks."""
        with self._doubtful_lock:
            if entries := list(self._doubtful):
                path = f"{DOUBTFUL}/0/{uuid.uuid4().hex}.parquet"
                self._archive.write_table(path, entries_table(entries, self.attempt), self._shards, sync=self._sync)
                for _ in entries:
                    self._doubtful.popleft()

    def record_held(self, entries: Sequence[Entry]) -> str:
        """Record messages that may be sent from now on. Returns the path of the file that lists them.

        The file is read only after a crash. A loss of power may cut it short.
        """
        keys = [entry.key for entry in entries]
        room, self._room = self._room - len(entries), 0  # nothing is readable behind a line that was cut short
        if room < 0:
            self._held_path = f"{HELD}/{self.attempt}.{next(self._numbers)}{LINES}"
            self._archive.write_line(self._held_path, keys)
            self._held_files.add(self._held_path)
            room = MAX_HELD_PER_FILE - len(entries) if self._archive.is_local else 0
        else:
            self._archive.append_line(self._held_path, keys)
        self._room = room
        return self._held_path

    def drop_held(self, path: str) -> None:
        """Remove a file of which no message is held."""
        self._held_files.discard(path)
        self._archive.remove(path)

    def clear_held(self, keep: Sequence[Entry] = ()) -> None:
        """Remove all records of held messages, after recording again those that the backlog may deliver again."""
        before, self._held_files, self._room = self._held_files, set(), 0
        if keep:
            self.record_held(keep)
        for path in before:
            self.drop_held(path)

    def ended_keys(self, shard: int, kinds: Sequence[str] = OUTCOMES) -> set[Key]:
        """Return the keys of one shard that have one of these outcomes."""
        found: set[Key] = set()
        for kind in kinds:
            for path in self._archive.files(f"{kind}/{shard}"):
                found.update(table_keys(self._archive.read_table(path, list(KEY))))
        return found


class HeldRecord:
    """The messages a task holds, by the file that lists them. A file stays while one of its messages is held.

    `add` is for one thread; `discard` may be called from another.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._file_of: dict[object, str] = {}
        self._remaining: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, messages: Mapping[object, Entry]) -> None:
        """Record messages as held, and remove the files that are no longer needed. Raises MachineLacks."""
        path = self._ledger.record_held([*messages.values()])
        with self._lock:
            self._file_of.update(dict.fromkeys(messages, path))
            self._remaining[path] += len(messages)
            finished = [path for path, remaining in self._remaining.items() if not remaining]
            for path in finished:
                del self._remaining[path]
        for path in finished:
            self._ledger.drop_held(path)

    def discard(self, messages: Iterable[object]) -> None:
        """Forget messages; unknown ones are ignored. The next `add` removes their file."""
        with self._lock:
            self._remaining.subtract([self._file_of.pop(each) for each in messages if each in self._file_of])


class EntryBuffer:
    """Entries that arrive one at a time, written together once per turn of the event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[tuple[str, int], list[Entry]] = {}
        self._written: asyncio.Future[None] | None = None

    async def write(self, kind: str, shard: int, entry: Entry) -> None:
        """Write an entry with the others of this turn. Raises MachineLacks."""
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
            written.exception()  # mark it as retrieved: all waiters may have been cancelled
        else:
            written.set_result(None)


def entries_table(entries: Sequence[Entry], attempt: str) -> pa.Table:
    """Return entries as a table of OUTCOME."""
    if not entries:
        return OUTCOME.empty_table()
    keys, destinations, reasons, messages = zip(*entries, strict=True)
    columns = (*zip(*keys, strict=True), destinations, reasons, [attempt] * len(entries), messages)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTCOME, strict=True)]
    return pa.Table.from_arrays(arrays, schema=OUTCOME)


def table_keys(table: pa.Table) -> list[Key]:
    """Return the key of each row."""
    return list(zip(*(table.column(name).to_pylist() for name in KEY), strict=True))


def read_held(archive: Archive, path: str) -> Iterator[Key]:
    """Yield the keys that an attempt held. Raises StateRefused at the first line that cannot be read.

    A loss of power may cut such a file short. A kill may do so too, before a message of that line was sent.
    """
    for keys in archive.read_lines(path):
        if not (isinstance(keys, list) and all(map(_is_key, keys))):
            raise wrong_columns(archive, path)
        yield from map(tuple, keys)


def _is_key(value: object) -> bool:
    match value:
        case [str(), int(), int(), str() | None]:
            return True
    return False


def wrong_columns(archive: Archive, path: str) -> StateRefused:
    """Return the error for a file with unexpected columns."""
    return StateRefused(
        f"{archive.root}/{path} lacks the columns of version {VERSION}",
        hint="restore the original file, or remove it if sbpair did not write it",
    )


def check_chunks(archive: Archive, shards: int, *, synced: bool) -> tuple[int, list[str]]:
    """Return (rows of all chunks, paths of unreadable chunks).

    Raises StateRefused for a chunk of another run or shard count. Raises it also for an unreadable chunk if `synced`:
    a loss of power cuts short only chunks that are not.
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
        raise wrong_columns(archive, path)
    run, number = footer.metadata.get("sbpair.run"), footer.metadata.get("sbpair.shards")
    if run != archive.run:
        raise StateRefused(
            f"{archive.root}/{path} belongs to run {run}, not {archive.run}",
            hint="move it back to the run it belongs to",
        )
    if number != str(shards):
        raise StateRefused(
            f"{archive.root}/{path} was written for {number} shards, and run {archive.run} has {shards}",
            hint="restore the original run.json from a copy: the number of shards never changes",
        )
