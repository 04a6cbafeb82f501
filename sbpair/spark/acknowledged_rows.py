"""The rows that the ledger of a run has: they are not sent again."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.errors import StateRefused
from sbpair.replay.archive_layout import LEDGER, OUTCOME
from sbpair.spark.write_run import READERS

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.spark.row_messages import RowMessage
    from sbpair.spark.task_claim import TaskPlace
    from sbpair.spark.write_run import WriteJob

NAMES = ["sequence_number", "enqueued_at_ms"]
"""The columns of the ledger that identify a row and its content."""


class AcknowledgedRows:
    """The rows that the ledger has. `known` and `retried` count those found, of earlier jobs and of this one.

    With ids, rows of earlier jobs are looked up among all partitions; an id with only other contents is refused.
    Without ids only those of the same partition count, each for one row of the same content.
    """

    def __init__(self, job: WriteJob, place: TaskPlace) -> None:
        self.known = self.retried = 0
        self._has_ids, self._run = job.columns.has_ids, job.run
        self._own: defaultdict[int, list[int]] = defaultdict(list)
        self._earlier: defaultdict[int, list[int]] = defaultdict(list)
        self._all = _SortedKeys.empty()
        archive, own = job.open(), f"{LEDGER}/{place.scope}/{job.job}.{place.partition}"
        _fill(self._own, archive, archive.files(own))
        if not job.resumed:
            return
        paths = [path for path in archive.files(f"{LEDGER}/{place.scope}") if f"/{job.job}." not in path]
        if self._has_ids:
            self._all = _sorted_keys(job, tuple(paths))
        else:
            ending = f".{place.partition}"
            _fill(self._earlier, archive, [each for each in paths if each.rpartition("/")[0].endswith(ending)])

    def take(self, row: RowMessage) -> bool:
        """Return whether the row was sent before. Raises StateRefused if its id was sent with another content."""
        if self._take_one(self._own, row):
            self.retried += 1
            return True
        contents = self._all.contents(row.number)
        if self._take_one(self._earlier, row) or row.content in contents:
            self.known += 1
            return True
        if contents or (self._has_ids and self._own.get(row.number)):
            raise StateRefused(
                f"the row with id {row.message_id!r} was sent by run {self._run} with another content",
                hint="make ids unique, and write columns such as current_timestamp() to a table first: they change",
            )
        return False

    @staticmethod
    def _take_one(known: dict[int, list[int]], row: RowMessage) -> bool:
        contents = known.get(row.number, [])
        if row.content not in contents:
            return False
        contents.remove(row.content)
        return True


def _fill(known: dict[int, list[int]], archive: Archive, paths: list[str]) -> None:
    for path in paths:
        table = archive.read_table(path, NAMES, OUTCOME)
        for number, content in zip(*(column.to_pylist() for column in table.columns), strict=True):
            known[number].append(content)


@dataclass(frozen=True, slots=True)
class _SortedKeys:
    """Numbers in order, and the content of each: 16 bytes a row, since a run may have millions."""

    numbers: memoryview
    of: memoryview

    @classmethod
    def empty(cls) -> _SortedKeys:
        return cls(memoryview(b"").cast("q"), memoryview(b"").cast("q"))

    def contents(self, number: int) -> list[int]:
        at, found = bisect_left(self.numbers, number), []
        while at < len(self.numbers) and self.numbers[at] == number:
            found.append(self.of[at])
            at += 1
        return found


@lru_cache(1)  # a worker runs many tasks of one job
def _sorted_keys(job: WriteJob, paths: tuple[str, ...]) -> _SortedKeys:
    archive = job.open()
    if not paths:
        return _SortedKeys.empty()
    with ThreadPoolExecutor(READERS) as readers:
        table = pa.concat_tables(readers.map(lambda path: archive.read_table(path, NAMES, OUTCOME), paths))
    table = table.take(pc.sort_indices(table, [(NAMES[0], "ascending")])).combine_chunks()
    return _SortedKeys(
        *(memoryview(table.column(name).chunk(0).buffers()[1]).cast("q")[: len(table)] for name in NAMES)
    )
