"""The place of a task in its job, and its claim on that place: two attempts at a partition never send at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.errors import LeaseLost, MachineLacks, SbpairError, Unreachable, UsageError
from sbpair.move.failure_latch import set_within
from sbpair.operating_system import uptime
from sbpair.replay.spark import check_speculation, is_local_master
from sbpair.spark.write_run import (
    BATCH_SCOPE,
    CLAIMS,
    OWNER_FILE,
    RunOwner,
    read_mark,
    read_owner,
    read_refusal,
    still_going,
    wait_silent,
)

if TYPE_CHECKING:
    from sbpair.spark.write_run import WriteJob

CLAIM_SECONDS = 2.0
"""How often a task confirms its claim."""

TRUST_SECONDS = 6.0
"""How long a task sends after the last confirmation."""

PATIENCE_SECONDS = 120.0
"""How long an attempt waits for one before it to end: a worker may outlive its executor until it has sent its rows."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The partition of a task, and the scope of its keys: BATCH_SCOPE, or QUERY/BATCH of a stream."""

    partition: int
    scope: str = BATCH_SCOPE

    @classmethod
    def of_task(cls, job: WriteJob) -> TaskPlace:
        """Return the place of the current task. Raises Unsafe for speculation, UsageError for a ledger of one machine.

        Spark passes its settings on to tasks, and to no other part of a data source.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        local: Callable[[str], str | None] = context.getLocalProperty if context else lambda _: None
        check_speculation(local("spark.speculation") or "false")
        if not (job.shared or is_local_master(local("spark.master") or "")):
            raise UsageError(
                "option ledger: missing, and the workers are other machines",
                hint='add .option("ledger", "DIRECTORY or URL") that driver and workers share',
            )
        batch = local("streaming.sql.batchId")
        scope = BATCH_SCOPE if batch is None else f"{local('sql.streaming.queryId')}/{batch}"
        return cls(context.partitionId() if context else 0, scope)


class TaskClaim:
    """An attempt's claim on its partition: a file that changes while it is alive. `check` is for its sends."""

    def __init__(
        self,
        job: WriteJob,
        place: TaskPlace,
        attempt: str,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        now: Callable[[], float] = uptime,
    ) -> None:
        self._archive, self._job, self._attempt, self._now = job.open(), job, attempt, now
        self._patience_seconds = patience_seconds
        self._partition = place.partition
        self._directory = f"{CLAIMS}/{place.scope}/{job.job}.{place.partition}"
        self._path = f"{self._directory}/claim.json"
        self._confirmed_at, self._number = float("-inf"), 0
        self._lost: SbpairError | None = None
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[TaskClaim]:
        """Hold the claim within the block. Raises LeaseHeld if another job or attempt is alive, and as `check` does."""
        busy = f"partition {self._partition}: another attempt at it is still going"
        patience = self._patience_seconds
        await asyncio.to_thread(wait_silent, self._archive, self._directory, busy, patience_seconds=patience)
        await asyncio.to_thread(self._confirm, first=True)
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.to_thread(self._claim_run)
            self.check()
            yield self
        finally:
            self._ended.set()
            await keeping
            if self._is_held():
                self._archive.delete(self._directory)

    def check(self) -> None:
        """Raise LeaseLost if the claim is another's, Unreachable if it was not confirmed lately.

        Raises UsageError if another task of the job has found a wrong row.
        """
        if self._lost is not None:
            raise self._lost
        if self._now() - self._confirmed_at > TRUST_SECONDS:
            raise Unreachable("the ledger did not confirm this task in time", hint="check that the ledger is reachable")

    def _claim_run(self) -> None:
        """Take the run over from an earlier job, once no task of it is alive. Others see this claim meanwhile."""
        if self._lost is None and read_owner(self._archive).job != self._job.job:
            wait_silent(self._archive, CLAIMS, still_going(self._job.run), but=self._job.job)
            owner = RunOwner(self._job.job, self._job.number)
            self._archive.write_json(OWNER_FILE, owner._asdict())
            self._confirm()

    async def _keep(self) -> None:
        while self._lost is None and not await set_within(self._ended, CLAIM_SECONDS):
            with suppress(SbpairError):  # without a confirmation `check` raises
                await asyncio.to_thread(self._confirm)

    def _confirm(self, *, first: bool = False) -> None:
        """Renew the claim, and find out whether the run belongs to this job."""
        if read_mark(self._archive) != self._job.mark:
            raise MachineLacks(
                f"{self._archive.root} of this worker is not the driver's directory",
                hint="mount the directory at the same path on all workers, or name a URL such as s3://bucket/ledger",
            )
        began, owner = self._now(), read_owner(self._archive)
        if not (first or self._is_held()):
            self._lost = LeaseLost("another attempt at this partition has begun", hint="no action is needed")
        if owner.job != self._job.job and owner.number >= self._job.number:
            self._lost = LeaseLost(
                f"job {owner.job} has taken over this run",
                hint="run one job of a run at a time, or start this one again",
            )
        if self._lost is None:
            self._lost = read_refusal(self._job, self._archive)
        if self._lost is None:
            self._number += 1
            self._archive.write_line(self._path, {"attempt": self._attempt, "number": self._number})
            if owner.job == self._job.job:
                self._confirmed_at = began

    def _is_held(self) -> bool:
        """Return whether the claim is this attempt's."""
        try:
            return self._archive.read_json(self._path).get("attempt") == self._attempt
        except FileNotFoundError:
            return False
