"""Messages by where they lie in the segments, read from there by whoever sends them.

The law: what is given out is the message of a row with that row's own key, whole, or an error. Nothing is read of a
file of another run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sbpair.replay.archive import PARQUET, SEGMENTS, Archive, about
from sbpair.replay.ledger import Key, keys_of
from sbpair.replay.schema import KEY
from sbpair.replay.segment import PART_BYTES

MAX_FILES = 64
"""How many segments are open at once: those that were drained at the same time are sent at the same time."""

GROUPS_BYTES = MAX_FILES * PART_BYTES
"""What is held at most of messages that have been read, and not all asked for: of each open segment, one group."""

Place: TypeAlias = tuple[str, int]
"""(segment, position): a row."""

Name = TypeVar("Name")
Value = TypeVar("Value")


class SegmentReader:
    """One reader for one task, in one thread at a time."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._paths = {PurePosixPath(path).stem: path for path in archive.files(SEGMENTS)}
        self._files = LruCache(self._opened, MAX_FILES)
        self._groups = LruCache(self._read, GROUPS_BYTES, lambda group: group.size)

    def at(self, places: Sequence[Place]) -> list[tuple[Key, bytes]]:
        """Key and message of each, in their order. Raises StateRefused for a segment that is broken, or not there."""
        found: list[Any] = [None] * len(places)
        for (segment, number), wanted in self._by_group(places).items():
            group = self._groups[segment, number]
            for index in wanted:
                found[index] = group.rows[places[index][1] - group.start]
            group.unasked -= len(wanted)
            if group.unasked <= 0:
                del self._groups[segment, number]
        return found

    def _by_group(self, places: Sequence[Place]) -> dict[tuple[str, int], list[int]]:
        """Which places lie together, by segment and group of rows."""
        together: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        starts_of: dict[str, list[int]] = {}
        for index, (segment, position) in enumerate(places):
            if segment not in starts_of:
                starts_of[segment] = self._files[segment].starts
            starts = starts_of[segment]
            if position >= starts[-1]:
                raise self._archive.broken(self._paths[segment], "it has fewer rows than were planned")
            together[segment, bisect_right(starts, position) - 1].append(index)
        return together

    def _opened(self, segment: str) -> OpenSegment:
        if segment not in self._paths:
            raise self._archive.broken(f"{SEGMENTS}/*/{segment}{PARQUET}", "it is there no more")
        file = self._archive.parquet(self._paths[segment])
        if about(file.schema_arrow).get("sbpair.run") != self._archive.run:
            raise self._archive.broken(self._paths[segment], "it is of another run")
        counts = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
        return OpenSegment(file, [0, *accumulate(counts)])

    def _read(self, which: tuple[str, int]) -> RowGroup:
        segment, number = which
        file, starts = self._files[segment]
        try:
            table = file.read_row_group(number, columns=[*KEY, "message"], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self._archive.broken(self._paths[segment], str(error).splitlines()[0]) from error
        rows = list(zip(keys_of(table), table.column("message").to_pylist(), strict=True))
        return RowGroup(starts[number], rows, table.nbytes, len(rows))


class OpenSegment(NamedTuple):
    """`starts` are the positions that its groups of rows begin at, and how many rows there are."""

    file: pq.ParquetFile
    starts: list[int]


@dataclass(slots=True)
class RowGroup:
    """Neighbouring rows of a segment, from position `start` on: key and message. `size` is in bytes.

    `unasked` is how many of them nobody has asked for yet.
    """

    start: int
    rows: list[tuple[Key, bytes]]
    size: int
    unasked: int


class LruCache(Generic[Name, Value]):
    """What was made last, and asked for last: as much of it as weighs no more than `most`, and always the last."""

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
