"""What became of messages, written down in chunks that are durable before anything relies on them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from sbpair.errors import StateRefused
from sbpair.replay.archive import OUTCOMES, SENDING, Archive
from sbpair.replay.schema import KEY, OUTCOME, VERSION

Key: TypeAlias = tuple[str, int, int, str | None]
"""(queue, sequence number, enqueued at, message id)"""


class Entry(NamedTuple):
    """One row of OUTCOME, but for the attempt. `message` is kept of what was not sent."""

    key: Key
    destination: str | None
    reason: str | None = None
    message: bytes | None = None


class Ledger:
    """Written by one attempt at a task."""

    def __init__(self, archive: Archive, shards: int, attempt: str | None = None) -> None:
        self.attempt = attempt or uuid.uuid4().hex
        self._archive = archive
        self._shards = shards

    def write(self, kind: str, shard: int, entries: Sequence[Entry]) -> None:
        """One chunk, durable when this returns. Raises MachineLacks."""
        if entries:
            path = f"{kind}/{shard}/{uuid.uuid4().hex}.parquet"
            self._archive.write_table(path, table_of(entries, self.attempt), self._shards)

    def has_in_hand(self, entries: Sequence[Entry]) -> None:
        """Say what may be on its way from now on, instead of what was said before.

        Only a crash makes anybody read it, and only a loss of power makes it be older than it should.
        """
        table = table_of(entries, self.attempt)
        self._archive.write_table(f"{SENDING}/{self.attempt}.parquet", table, self._shards, sync=False)

    def has_nothing_in_hand(self) -> None:
        self._archive.remove(f"{SENDING}/{self.attempt}.parquet")

    def done(self, shard: int) -> set[Key]:
        """What has ended already, of one shard."""
        found: set[Key] = set()
        for kind in OUTCOMES:
            for path in self._archive.files(f"{kind}/{shard}"):
                found.update(keys_of(self._archive.read_table(path, list(KEY))))
        return found


def table_of(entries: Iterable[Entry], attempt: str) -> pa.Table:
    rows = [(*entry.key, entry.destination, entry.reason, attempt, entry.message) for entry in entries]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(OUTCOME)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTCOME, strict=True)]
    return pa.Table.from_arrays(arrays, schema=OUTCOME)


def keys_of(table: pa.Table) -> list[Key]:
    return list(zip(*(table.column(name).to_pylist() for name in KEY), strict=True))


def foreign(archive: Archive, path: str) -> StateRefused:
    """For a file whose columns are others than those that it should have."""
    return StateRefused(
        f"{archive.root}/{path} has not the columns of version {VERSION}",
        hint="bring it back as it was written, or take it away if nobody of sbpair wrote it",
    )


def check_shards(archive: Archive, shards: int) -> None:
    """Raise StateRefused where a chunk was written for another number of shards, or by another run."""
    for kind in OUTCOMES:
        for path in archive.files(kind):
            about, _, schema = archive.footer(path)
            if not schema.equals(OUTCOME):
                raise foreign(archive, path)
            if about.get("sbpair.shards") != str(shards) or about.get("sbpair.run") != archive.run:
                raise StateRefused(
                    f"{archive.root}/{path} is of run {about.get('sbpair.run')} with {about.get('sbpair.shards')}"
                    f" shards, and not of {archive.run} with {shards}",
                    hint="take it away: a message that only it knows of would be sent again, or never",
                )
