"""A reader of messages by their position in the segments.

Invariant: each message returned belongs to the row with its own key, and is whole; anything else is an error. Files of
another run are refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sbpair.replay.archive_layout import PARQUET, SEGMENTS
from sbpair.replay.ledger import Key, table_keys
from sbpair.replay.schema import KEY
from sbpair.replay.segment import PART_BYTES
from sbpair.replay.table_file import file_metadata

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive

MAX_FILES = 64
"""Segments open at once. Segments drained at the same time are sent at the same time."""

GROUPS_BYTES = MAX_FILES * PART_BYTES
"""Bound on cached messages that were read and are not all requested yet: one row group for each open segment."""

RowPosition: TypeAlias = tuple[str, int]
"""(segment, position)"""

Name = TypeVar("Name")
Value = TypeVar("Value")


class SegmentReader:
    """One task's reader, for one thread at a time."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._paths = {PurePosixPath(path).stem: path for path in archive.files(SEGMENTS)}
        self._files = LruCache(self._open, MAX_FILES)
        self._groups = LruCache(self._read_group, GROUPS_BYTES, lambda group: group.size)

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
        """Return the indices of positions by segment and row group."""
        found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        starts_of: dict[str, list[int]] = {}
        for index, (segment, position) in enumerate(positions):
            if segment not in starts_of:
                starts_of[segment] = self._files[segment].starts
            starts = starts_of[segment]
            if position >= starts[-1]:
                raise self._archive.broken(self._paths[segment], "it has fewer rows than were planned")
            found[segment, bisect_right(starts, position) - 1].append(index)
        return found

    def _open(self, segment: str) -> OpenSegment:
        if segment not in self._paths:
            raise self._archive.broken(f"{SEGMENTS}/*/{segment}{PARQUET}", "it is missing")
        file = self._archive.parquet(self._paths[segment])
        if file_metadata(file.schema_arrow).get("sbpair.run") != self._archive.run:
            raise self._archive.broken(self._paths[segment], "it belongs to another run")
        counts = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
        return OpenSegment(file, [0, *accumulate(counts)])

    def _read_group(self, name: tuple[str, int]) -> RowGroup:
        segment, number = name
        file, starts = self._files[segment]
        try:
            table = file.read_row_group(number, columns=[*KEY, "message"], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self._archive.broken(self._paths[segment], str(error).splitlines()[0]) from error
        rows = list(zip(table_keys(table), table.column("message").to_pylist(), strict=True))
        return RowGroup(starts[number], rows, table.nbytes, len(rows))


class OpenSegment(NamedTuple):
    """An open file. `starts` are the first positions of its row groups, and its number of rows."""

    file: pq.ParquetFile
    starts: list[int]


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
