"""Outcomes of messages, in chunks that are durable before anything relies on them.

A chunk has one row per message: times are ms since 1970.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import MachineLacks, SbpairError, StateRefused
from sbpair.move.message.dead_letters import NotSentReason
from sbpair.operating_system.files import spooled_file
from sbpair.operating_system.shortages import ROOM
from sbpair.replay.archive import (
    ACCEPTED_BEFORE_LINES,
    ACCEPTED_FILE,
    DOUBTFUL,
    EXPIRED,
    HELD,
    LEDGER,
    LINES,
    NAMESPACE,
    OUTCOMES,
    QUARANTINE,
    Archive,
)

if TYPE_CHECKING:
    from sbpair.replay.delivery import ReplayDelivery

Key: TypeAlias = tuple[str, int, int, str | None]
KEY = ("queue", "sequence_number", "enqueued_at_ms", "message_id")
"""Identity of a message within a run. All four parts: a recreated queue starts its sequence numbers again."""

KEYS = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("sequence_number", pa.int64(), nullable=False),
        pa.field("enqueued_at_ms", pa.int64(), nullable=False),
        pa.field("message_id", pa.string()),
    ]
)

OUTCOME = pa.schema(
    [
        *KEYS,
        pa.field("destination", pa.string()),
        pa.field("reason", pa.string()),
        # The attempt that wrote it: a message that another attempt held when it died may arrive twice.
        pa.field("attempt", pa.string(), nullable=False),
        # Kept if the message was not sent.
        pa.field("message", pa.binary()),
    ]
)

Shard: TypeAlias = int | str
"""The directory of chunks below their kind: the number of a shard, or a path."""

CACHED_KIB = 32 * 1024  # of a set of keys
MAX_HELD_PER_FILE = 1_000  # held messages recorded in one file. The file is removed once none of them is held.


class Entry(NamedTuple):
    """One row of OUTCOME, without the attempt. `message` is kept if it was not sent."""

    key: Key
    destination: str | None
    reason: str | None = None
    message: bytes | None = None


class Ledger:
    """The files that one attempt at a task writes: chunks of outcomes, and the messages that it holds.

    Without `sync`, a loss of power may lose the last chunks. With a `delivery`, chunks have the namespace and the
    names that messages go to, and only the acceptances that count there end a message.
    """

    def __init__(
        self,
        archive: Archive,
        shards: int,
        attempt: str | None = None,
        *,
        sync: bool = True,
        delivery: ReplayDelivery | None = None,
    ) -> None:
        self._delivery = delivery
        self.attempt = attempt or uuid.uuid4().hex
        self._archive, self._shards, self._sync = archive, shards, sync
        self._held_path, self._room, self._numbers = "", 0, count()
        self._file_of: dict[object, str] = {}
        self._held_in: Counter[str] = Counter()  # messages held, by the file that lists them
        self._held_lock = threading.Lock()
        self._doubtful: deque[Entry] = deque()
        self._doubtful_lock = threading.Lock()
        self._unsent: dict[tuple[str, Shard], list[Entry]] = {}
        self._unsent_written: asyncio.Future[None] | None = None

    def write(self, kind: str, shard: Shard, entries: Sequence[Entry]) -> None:
        """Write one chunk, durable on return if the ledger syncs. Raises MachineLacks."""
        if entries:
            # Doubtful entries go first: a message with an outcome is no longer looked up among the held.
            self.write_doubtful()
            self._write_chunk(kind, shard, entries)

    def _write_chunk(self, kind: str, shard: Shard, entries: Sequence[Entry]) -> None:
        keys, destinations, reasons, messages = zip(*entries, strict=True)
        if self._delivery:
            destinations = tuple(map(self._delivery.name, destinations))
        columns = (*zip(*keys, strict=True), destinations, reasons, [self.attempt] * len(entries), messages)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTCOME, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=OUTCOME)
        if self._delivery and self._delivery.namespace:
            table = table.append_column(NAMESPACE, pa.array([self._delivery.namespace] * len(entries)))
        self._archive.write_table(f"{kind}/{shard}/{uuid.uuid4().hex}.parquet", table, self._shards, sync=self._sync)

    async def write_unsent(self, shard: Shard, entry: Entry, reason: str, description: str) -> None:
        """Write an entry of a message that is not sent, once per turn of the loop with others. Raises MachineLacks."""
        kind = EXPIRED if reason == NotSentReason.EXPIRED else QUARANTINE
        self._unsent.setdefault((kind, shard), []).append(entry._replace(reason=f"{reason}: {description}"))
        if self._unsent_written is None:
            loop = asyncio.get_running_loop()
            self._unsent_written = loop.create_future()
            loop.call_soon(self._write_all_unsent, self._unsent_written)
        await asyncio.shield(self._unsent_written)

    def _write_all_unsent(self, written: asyncio.Future[None]) -> None:
        waiting, self._unsent, self._unsent_written = self._unsent, {}, None
        try:
            for (kind, shard), entries in waiting.items():
                self.write(kind, shard, entries)
        except SbpairError as error:
            written.set_exception(error)
            written.exception()  # mark it as retrieved: all waiters may have been cancelled
        else:
            written.set_result(None)

    def add_doubtful(self, entry: Entry) -> None:
        """Note a message that was sent without an answer, and may arrive twice. Nothing is written yet."""
        self._doubtful.append(entry)

    def write_doubtful(self) -> None:
        """Write the doubtful entries noted so far. Raises MachineLacks."""
        with self._doubtful_lock:
            if entries := list(self._doubtful):
                self._write_chunk(DOUBTFUL, 0, entries)
                for _ in entries:
                    self._doubtful.popleft()

    def hold(self, messages: Mapping[object, Entry]) -> None:
        """Record messages as held, and remove files that are no longer needed. For one thread. Raises MachineLacks."""
        path = self.record_held([*messages.values()])
        with self._held_lock:
            self._file_of.update(dict.fromkeys(messages, path))
            finished = [each for each, held in self._held_in.items() if not held]
            for each in finished:
                del self._held_in[each]
        for each in finished:
            self._archive.remove(each)

    def release(self, messages: Iterable[object]) -> None:
        """Hold messages no longer; unknown ones are ignored. The next `hold` removes their file. For any thread."""
        with self._held_lock:
            self._held_in.subtract([self._file_of.pop(each) for each in messages if each in self._file_of])

    def forget_held(self) -> None:
        """Forget which messages are held, as their locks are lost. Their records stay until `clear_held`."""
        with self._held_lock:
            self._file_of.clear()

    def record_held(self, entries: Sequence[Entry]) -> str:
        """Record messages that may be sent from now on. Returns the path of their file, read only after a crash."""
        keys = [entry.key for entry in entries]
        room, self._room = self._room - len(entries), 0  # nothing is readable behind a line that was cut short
        append = room >= 0
        if not append:
            self._held_path = f"{HELD}/{self.attempt}.{next(self._numbers)}{LINES}"
            room = MAX_HELD_PER_FILE - len(entries) if self._archive.is_local else 0
        self._archive.write_line(self._held_path, keys, append=append)
        self._room = room
        with self._held_lock:
            self._held_in[self._held_path] += len(entries)
        return self._held_path

    def clear_held(self, keep: Sequence[Entry] = ()) -> None:
        """Remove all records of held messages, after recording again those that the backlog may deliver again."""
        self.forget_held()
        before, self._held_in, self._room = self._held_in, Counter(), 0
        if keep:
            self.record_held(keep)
        for path in before:
            self._archive.remove(path)

    def ended_keys(self, shard: Shard, kinds: Sequence[str] = OUTCOMES) -> KeySet:
        """Return the keys of one shard that have one of these outcomes."""
        found = KeySet()
        for kind in kinds:
            only = self._delivery.only if self._delivery and kind == LEDGER else None
            for path in self._archive.files(f"{kind}/{shard}"):
                found.update(table_keys(rows_of(self._archive, path, KEY, only)))
        return found


class KeySet:
    """Keys of messages in a temporary database without a name: memory does not depend on their number.

    One thread at a time may use it.
    """

    def __init__(self, keys: Iterable[tuple[object, ...]] = ()) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)
        self._db.executescript(f"PRAGMA cache_size = -{CACHED_KIB}; PRAGMA journal_mode = OFF;")
        self._db.execute("CREATE TABLE keys (key TEXT PRIMARY KEY) WITHOUT ROWID")
        self._has_any = False
        self.update(keys)

    def __bool__(self) -> bool:
        return self._has_any

    def __contains__(self, key: object) -> bool:
        return self._has_any and bool(self._db.execute("SELECT 1 FROM keys WHERE key = ?", (repr(key),)).fetchone())

    def update(self, keys: Iterable[tuple[object, ...]]) -> None:
        """Add keys. Raises MachineLacks if the disk of temporary files is full."""
        try:
            added = self._db.executemany("INSERT OR IGNORE INTO keys VALUES (?)", ((repr(key),) for key in keys))
        except sqlite3.OperationalError as error:
            raise MachineLacks(f"keys of messages cannot be kept: {error}", hint=ROOM[1]) from error
        self._has_any |= added.rowcount > 0

    def __del__(self) -> None:
        self._db.close()


def rows_of(archive: Archive, path: str, columns: Sequence[str], only: str | None) -> pa.Table:
    """Read columns of a chunk: `only` those rows of a namespace, "" for the pair's primary; None for all."""
    if only is None:
        return archive.read_table(path, [*columns])
    table = archive.read_table(path, [*columns, NAMESPACE.name])
    return table.filter(pc.equal(pc.fill_null(table.column(NAMESPACE.name), ""), only)).select([*columns])


def read_accepted(archive: Archive) -> Iterator[tuple[str, str, list[list[Any]]]]:
    """Yield the keys that the syphon's journal had as accepted, in batches: namespace, queue in lower case, and keys.

    The namespace "" is the pair's primary. A key is [sequence number, enqueued at, message id].
    """
    if archive.exists(ACCEPTED_FILE):
        for line in archive.read_lines(ACCEPTED_FILE):
            match line:
                case [str(), str(queue), list(keys)] if all(
                    isinstance(key, list) and _is_key([queue, *key]) for key in keys
                ):
                    yield line[0], queue, keys
                case _:
                    raise archive.broken(ACCEPTED_FILE, "it does not have the keys of messages")
        return
    try:
        document = archive.find_json(ACCEPTED_BEFORE_LINES) or {"keys": ()}
        for name, keys in {"": document["keys"], **document.get("elsewhere", {})}.items():
            for _, queue, *key in keys:
                yield str(name), queue, [key]
    except (KeyError, TypeError, ValueError) as error:
        raise archive.broken(ACCEPTED_BEFORE_LINES, "it does not have the keys of messages") from error


def add_accepted(archive: Archive, batches: Iterable[tuple[str, str, list[list[Any]]]]) -> None:
    """Add batches to those that `read_accepted` yields. Raises MachineLacks."""
    written = set[bytes]()
    with spooled_file() as file:
        for batch in chain(read_accepted(archive), batches):
            line = json.dumps(batch, separators=(",", ":")).encode() + b"\n"
            if (digest := hashlib.blake2b(line, digest_size=16).digest()) not in written:
                written.add(digest)
                file.write(line)
        if written:
            file.seek(0)
            archive.write(ACCEPTED_FILE, file)


def table_keys(table: pa.Table) -> list[Key]:
    return list(zip(*(table.column(name).to_pylist() for name in KEY), strict=True))


def keyed_rows(table: pa.Table, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the key of each row, and its values of these columns."""
    return zip(table_keys(table), *(table.column(name).to_pylist() for name in columns), strict=True)


def read_held(archive: Archive, path: str) -> Iterator[Key]:
    """Yield the keys that an attempt held. Raises StateRefused at the first line that cannot be read."""
    for keys in archive.read_lines(path):
        if not (isinstance(keys, list) and all(map(_is_key, keys))):
            raise archive.wrong_columns(path)
        yield from map(tuple, keys)


def held_by_attempts(archive: Archive, unreadable: list[str] | None = None) -> Iterator[tuple[Key, str]]:
    """Yield each message that an attempt held when it died, and the attempt. A loss of power may cut a file short.

    The paths of such files are added to `unreadable`.
    """
    for path in archive.files(HELD):
        attempt = path.removeprefix(f"{HELD}/").partition(".")[0]
        try:
            for key in read_held(archive, path):
                yield key, attempt
        except StateRefused:
            if unreadable is not None:
                unreadable.append(path)


def _is_key(value: object) -> bool:
    match value:
        case [str(), int(number), int(enqueued_at), str() | None]:
            return all(-(1 << 63) <= each < 1 << 63 for each in (number, enqueued_at))
    return False


def check_chunks(
    archive: Archive, shards: int, checked: Mapping[str, int] = MappingProxyType({}), *, synced: bool
) -> tuple[int, list[str]]:
    """Return (rows of all chunks, paths of unreadable chunks): a loss of power cuts short only those not `synced`.

    `checked` has the rows of chunks that were checked by their digests. Of the others, raises StateRefused for one of
    another run or shard count, and if `synced` for an unreadable one.
    """
    found, broken = 0, list[str]()
    for path in (path for kind in OUTCOMES for path in archive.files(kind)):
        if path in checked:
            found += checked[path]
            continue
        try:
            footer = archive.footer(path)
        except StateRefused:
            if synced:
                raise
            broken.append(path)
            continue
        found += archive.check_footer(path, footer, OUTCOME)
        if (number := footer.metadata.get("sbpair.shards")) != str(shards):
            raise StateRefused(
                f"{archive.root}/{path} was written for {number} shards, and run {archive.run} has {shards}",
                hint="restore the original run.json from a copy: the number of shards never changes",
            )
    return found, broken
