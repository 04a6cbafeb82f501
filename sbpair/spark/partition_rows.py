"""The rows of a partition as messages, in order, and the check of all of them without a send."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from sbpair.azure.credentials import token_getter
from sbpair.errors import EntityMissing, ServiceRefused, Unavailable, UsageError
from sbpair.model.pair import Ends
from sbpair.move.raw_primary import RawPrimary
from sbpair.replay.send_task import CHUNK_BYTES, MAX_CHUNK
from sbpair.replay.spark_task import run_in_worker
from sbpair.spark.acknowledged_rows import AcknowledgedRows
from sbpair.spark.checked_rows import CheckCounts, WrongRow, WrongRows
from sbpair.spark.task_claim import TaskPlace
from sbpair.spark.write_run import missing_destination

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint
    from sbpair.move.raw_primary import RawDestinationLink
    from sbpair.spark.row_messages import RowMessage
    from sbpair.spark.write_run import WriteJob


def check_partition(job: WriteJob, batches: Iterator[Any]) -> CheckCounts:
    """Check the rows of the current task, and send none. Raises SbpairError, but not for wrong rows."""
    return run_in_worker(_check(job, TaskPlace.of_task(job), batches))


async def _check(job: WriteJob, place: TaskPlace, batches: Iterator[Any]) -> CheckCounts:
    acknowledged = AcknowledgedRows(job, place) if job.resumed else None
    async with row_destinations(job, strict=True) as primary:
        rows = PartitionRows(batches, job, place, acknowledged, primary)
        await asyncio.to_thread(rows.check)
    return CheckCounts(rows.read, dict(rows.destinations), [*rows.wrong.found.values()], rows.wrong.others)


@asynccontextmanager
async def row_destinations(job: WriteJob, *, strict: bool = False) -> AsyncIterator[RowDestinations]:
    """Open the namespace to send to within the block."""
    endpoint = job.access.endpoint(os.environ)
    async with token_getter(Ends("write", endpoint, endpoint)) as get_token:
        primary = RowDestinations(endpoint, get_token=get_token)
        primary.strict = strict
        primary.named_by = "option destination" if job.columns.destination else "column destination"
        try:
            yield primary
        finally:
            await primary.close()


class RowDestinations(RawPrimary):
    """The namespace to send to. A destination that does not exist ends the task before a message of it is sent.

    With `strict`, so does one that takes no message for now.
    """

    strict = False
    named_by = "column destination"

    def __init__(self, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(endpoint, **options)
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()

    def check_destination(self, destination: str) -> None:
        """Raise UsageError for a destination that does not exist. For another thread than the loop's."""
        later = () if self.strict else (ServiceRefused, Unavailable)  # the send finds these, and may try again
        with suppress(*later):
            asyncio.run_coroutine_threadsafe(self.ready(destination), self._loop).result()

    async def ready(self, destination: str) -> RawDestinationLink:
        try:
            return await super().ready(destination)
        except EntityMissing:
            raise missing_destination(self.named_by, destination, self._endpoint) from None


class PartitionRows:
    """The rows of a partition as messages, in order, without those that are acknowledged.

    `read` counts all rows so far, `destinations` the messages of each; `wrong` are the rows that are no messages.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        job: WriteJob,
        place: TaskPlace,
        acknowledged: AcknowledgedRows | None,
        primary: RowDestinations,
    ) -> None:
        self.read = 0
        self.destinations = Counter[str]()
        self.wrong = WrongRows()
        self._batches, self._columns, self._partition = batches, job.columns, place.partition
        self._acknowledged, self._primary = acknowledged, primary
        self._unchecked: dict[str, str] = {}
        self._batch: Any = None
        self._at = 0

    def next(self, max_rows: int = MAX_CHUNK, max_bytes: int = CHUNK_BYTES) -> list[RowMessage] | None:
        """Return the messages of the next rows, maybe none; None at the end. Counts what is wrong with the others."""
        batch = self._next_rows(max_rows, max_bytes)
        if batch is None:
            return None
        found = []
        for row in self._columns.messages(batch):
            if isinstance(row, UsageError):
                self.wrong.add(WrongRow(row.message, row.hint, self._place()))
            elif self._acknowledged is None or not self._acknowledged.take(row):
                if row.destination not in self.destinations:
                    self._unchecked[row.destination] = self._place()
                self.destinations[row.destination] += 1
                found.append(row)
            self.read += 1
        return found

    def check_destinations(self) -> None:
        """Find out whether the destinations of the rows since the last call exist: rows with another are wrong."""
        for destination, place in self._unchecked.items():
            try:
                self._primary.check_destination(destination)
            except UsageError as error:
                self.wrong.add(WrongRow(error.message, error.hint, place, self.destinations[destination]))
        self._unchecked = {}

    def check(self, keep: Callable[[list[RowMessage]], None] = lambda _: None) -> None:
        """Read all rows, and give those that are messages to `keep`. Raises no error for wrong rows."""
        while (found := self.next()) is not None:
            if found and not self.wrong.found:
                keep(found)
        self.check_destinations()

    def _place(self) -> str:
        return f"row {self.read} of partition {self._partition}"

    def _next_rows(self, max_rows: int, max_bytes: int) -> Any:
        while self._batch is None or self._at >= len(self._batch):
            self._batch, self._at = next(self._batches, None), 0
            if self._batch is None:
                return None
        count = min(max_rows, len(self._batch) - self._at)
        while count > 1 and self._batch.slice(self._at, count).nbytes > max_bytes:
            count //= 2
        self._at += count
        return self._batch.slice(self._at - count, count)
