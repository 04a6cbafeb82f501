"""Keys of many files as Arrow tables: slices of them, and how often each key occurs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.replay.archive_layout import OUTCOMES, SEGMENTS
from sbpair.replay.schema import KEY, KEYS

if TYPE_CHECKING:
    from sbpair.replay.ledger import Key

KINDS = (SEGMENTS, *OUTCOMES)
"""Directories that a message's key may occur in: as archived, and with each outcome."""


class Slice(NamedTuple):
    """One of `of` parts that messages are divided into: a power of two, by the last bits of the sequence number."""

    of: int
    part: int

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the rows of this slice."""
        if self.of == 1:
            return table
        return table.filter(pc.equal(pc.bit_wise_and(table.column("sequence_number"), self.of - 1), self.part))

    def keys(self, table: pa.Table) -> pa.Table:
        """Return the keys of this slice's rows."""
        return self.rows(table).select(list(KEY)).cast(KEYS)


def marked_keys(keys: Mapping[str, Sequence[pa.Table]]) -> pa.Table:
    """Return keys of all kinds in one table, with a column for each of KINDS: 1 for the kind they are from."""
    return pa.concat_tables([_marked(kind, pa.concat_tables(tables)) for kind, tables in keys.items()])


def _marked(kind: str, keys: pa.Table) -> pa.Table:
    for each in KINDS:
        keys = keys.append_column(each, pa.repeat(pa.scalar(int(each == kind), pa.int8()), len(keys)))
    return keys


def group_by_key(rows: pa.Table) -> pa.Table:
    """Return one row per key, with the sums of KINDS. Queues are few: encoded as numbers they cost a fifth."""
    queues = rows.column("queue").combine_chunks().dictionary_encode()
    rows = rows.set_column(0, "queue", queues.indices)
    # Several threads would each build groups, and merging those costs five times as much.
    found = rows.group_by(list(KEY), use_threads=False).aggregate([(kind, "sum") for kind in KINDS])
    columns = {kind: found.column(f"{kind}_sum") for kind in KINDS}
    names = queues.dictionary.take(found.column("queue").combine_chunks())
    return pa.table({"queue": names, **{name: found.column(name) for name in KEY[1:]}, **columns})


def group_shared_keys(rows: pa.Table) -> pa.Table:
    """Return the same at a fifth of the cost if few keys have two rows: only rows that share a place are grouped."""
    queues = rows.column("queue").combine_chunks().dictionary_encode()
    # On overflow two places may become equal, and are then grouped by key; equal places never become two.
    places = pc.multiply(rows.column("sequence_number"), len(queues.dictionary)).combine_chunks()
    places = pc.add(places, queues.indices.cast(pa.int64()))
    in_order = places.take(pc.array_sort_indices(places))
    shared = pc.is_in(places, in_order.filter(pc.equal(pc.pairwise_diff(in_order), 0)))
    grouped = group_by_key(rows.filter(shared))
    return pa.concat_tables([rows.filter(pc.invert(shared)).cast(grouped.schema), grouped])


def keys_table(keys: Iterable[Key]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(KEY, key, strict=True)) for key in keys], schema=KEYS)


def count_copies(counts: pa.Table) -> int:
    """Return how many rows of segments are beyond the first of their message."""
    rows = counts.column(SEGMENTS)
    return int(pc.sum(rows).as_py() or 0) - int(pc.sum(pc.greater(rows, 0)).as_py() or 0)


def ones(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(1, pa.int64()), count)
