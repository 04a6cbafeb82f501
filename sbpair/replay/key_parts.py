"""Rows of keys, divided by a hash of the sequence number into parts of a temporary file, to be counted one by one.

Invariant: all rows of a message are in one part, in the order in which they were added. Memory depends on the largest
part, not on the number of rows. The file has no name, so that no kill leaves it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.replay.ledger import KEY, KEYS

NAMES = ("kind", "queue", "destination", "attempt", "namespace")
"""Columns of few distinct values, which are stored as numbers."""

ROW = pa.schema([*(pa.field(name, pa.int32()) for name in NAMES), *(each for each in KEYS if each.name not in NAMES)])

MAX_PART = 250_000  # aimed upper bound on the rows of a part
MAX_PARTS = 1 << 12
MAX_WAITING = 1 << 17  # rows that are stored together
_SPREAD = -7046029254386353131  # the golden ratio in 64 bits: it spreads numbers in any regular distance


class KeyParts:
    """Rows, of which about `expected` will be added. `file` is an empty one; a single part stays in memory."""

    def __init__(self, file: IO[bytes], expected: int, max_part: int = MAX_PART) -> None:
        self.count = 1 << min(MAX_PARTS - 1, expected // max_part).bit_length()
        self._numbers: dict[str, int] = {}
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._file = file
        self._places: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # offset and length, by part

    def add(self, kind: str, keys: pa.Table, **names: pa.ChunkedArray | str) -> None:
        """Add the keys of a table. `names` are columns of NAMES, or one value for all rows."""
        columns = {name: keys.column(name) for name in KEY} | {"kind": kind, **names}
        self._waiting.append(pa.table([self._column(each, columns.get(each.name), len(keys)) for each in ROW], ROW))
        self._rows += len(keys)
        if self.count > 1 and self._rows >= MAX_WAITING:
            self._store()

    def _column(self, field: pa.Field, values: pa.ChunkedArray | str | None, count: int) -> pa.Array:
        if not isinstance(values, pa.ChunkedArray):
            number = None if values is None else self.number(values)
            return pa.repeat(pa.scalar(number, field.type), count)
        if field.name not in NAMES:
            return values.cast(field.type)
        encoded = values.combine_chunks().dictionary_encode()
        numbers = pa.array(map(self.number, encoded.dictionary.to_pylist()), field.type)
        return numbers.take(encoded.indices)

    def _store(self) -> None:
        rows, self._waiting, self._rows = pa.concat_tables(self._waiting), [], 0
        spread = pc.multiply(rows.column("sequence_number"), _SPREAD)
        parts = pc.bit_wise_and(pc.shift_right(spread, 52), self.count - 1).cast(pa.int16())
        [batch] = rows.take(pc.sort_indices(parts)).combine_chunks().to_batches()
        start = 0
        for part, length in sorted((each["values"], each["counts"]) for each in pc.value_counts(parts).to_pylist()):
            content = batch.slice(start, length).serialize()
            self._places[part].append((self._file.tell(), len(content)))
            self._file.write(content)
            start += length

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield the rows of each part."""
        if self.count == 1:
            yield pa.concat_tables([ROW.empty_table(), *self._waiting])
            return
        if self._waiting:
            self._store()
        for part in range(self.count):
            yield pa.Table.from_batches([self._read(*place) for place in self._places.pop(part, ())], ROW)
            pa.default_memory_pool().release_unused()

    def _read(self, offset: int, length: int) -> pa.RecordBatch:
        self._file.seek(offset)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(length)), ROW)

    def number(self, name: str) -> int:
        """Return the number that stands for a name."""
        return self._numbers.setdefault(name, len(self._numbers))

    def named(self, rows: pa.Table) -> pa.Table:
        """Return rows with the names in place of their numbers."""
        names = pa.array([*self._numbers], pa.string())
        for index, name in enumerate(rows.column_names):
            if name in NAMES:
                rows = rows.set_column(index, name, names.take(rows.column(name).combine_chunks()))
        return rows
