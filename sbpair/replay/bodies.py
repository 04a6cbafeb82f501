"""Messages by where they lie in the segments, read from there by whoever sends them.

The law: what is given out is the message of the very row that was asked for, whole, or an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sbpair.replay.archive import Archive, segment_path

FILES_MOST = 64
"""How many segments are open at once: those that were drained at the same time are sent at the same time."""

GROUPS_BYTES = 32 * 1024 * 1024
"""What is held of messages that have been read, and may be asked for next."""

COLUMNS = ["sequence_number", "message"]

Place: TypeAlias = tuple[str, str, int, int]
"""(queue, segment, position, sequence number): a row, and what it is known by again."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Bodies:
    """One reader for one task, in one thread at a time."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._files = Latest(self._opened, FILES_MOST)
        self._groups = Latest(self._read, GROUPS_BYTES, lambda group: group.size)

    def at(self, places: Sequence[Place]) -> list[bytes]:
        """In their order. Raises StateRefused for a segment that is broken, or another one."""
        found = [b""] * len(places)
        for (path, number), wanted in self._by_group(places).items():
            group = self._groups[path, number]
            for index in wanted:
                _, _, position, sequence_number = places[index]
                if group.sequence_numbers[position - group.start] != sequence_number:
                    raise self._archive.broken(path, "its rows are others than those that were planned")
                found[index] = group.messages[position - group.start]
        return found

    def _by_group(self, places: Sequence[Place]) -> dict[tuple[str, int], list[int]]:
        """Which places lie together, by segment and group of rows."""
        together: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        known: dict[tuple[str, str], tuple[str, list[int]]] = {}
        for index, (queue, segment, position, _) in enumerate(places):
            if (queue, segment) not in known:
                path = segment_path(queue, segment)
                known[queue, segment] = path, self._files[path].starts
            path, starts = known[queue, segment]
            if position >= starts[-1]:
                raise self._archive.broken(path, "it has fewer rows than were planned")
            together[path, bisect_right(starts, position) - 1].append(index)
        return together

    def _opened(self, path: str) -> OpenSegment:
        file = self._archive.parquet(path)
        counts = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
        return OpenSegment(file, [0, *accumulate(counts)])

    def _read(self, which: tuple[str, int]) -> Group:
        path, number = which
        segment = self._files[path]
        try:
            table = segment.file.read_row_group(number, columns=COLUMNS, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self._archive.broken(path, str(error).splitlines()[0]) from error
        numbers, messages = (table.column(name).to_pylist() for name in COLUMNS)
        return Group(segment.starts[number], numbers, messages, table.nbytes)


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """`starts` are the positions that its groups of rows begin at, and how many rows there are."""

    file: pq.ParquetFile
    starts: list[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring rows of a segment, from position `start` on; `size` is in bytes."""

    start: int
    sequence_numbers: list[int]
    messages: list[bytes]
    size: int


class Latest(Generic[Key, Value]):
    """What was made last, and asked for last: as much of it as weighs no more than `most`, and always the last."""

    def __init__(self, make: Callable[[Key], Value], most: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._make, self._most, self._weigh = make, most, weigh
        self._held: OrderedDict[Key, Value] = OrderedDict()
        self._weight = 0

    def __getitem__(self, key: Key) -> Value:
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        made = self._held[key] = self._make(key)
        self._weight += self._weigh(made)
        while self._weight > self._most and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._weight -= self._weigh(oldest)
        return made
