"""Who may move the pair's messages: the driver holds the leases of a run, and its tasks send by what it says of them.

The law: a task sends nothing unless nobody else can have the lease at that moment. It goes by what the driver writes
into the archive, for no longer than the driver itself could, and by no clock but its own: what was written there was
written after the task had last read what came before it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.azure.credentials import token_getter
from sbpair.errors import LeaseLost, SbpairError, Unreachable
from sbpair.replay.archive import LEASE, STOP_FILE, Archive
from sbpair.runs import session_lease
from sbpair.runs.lease import Lease
from sbpair.runs.lease_location import check_queue, uptime

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.runs.session_lease import SessionLease

BEAT_SECONDS = 0.5
"""How often the driver says that the lease is confirmed."""

LOOK_SECONDS = 0.5
"""How often a task reads that."""

READY_SECONDS = 30.0
"""How long a task waits at its start until it knows; the driver needs two beats to convince it."""


class HeldLease:
    """What a driver holds. `beacon` is the path of what its tasks go by; None where nothing could be lost.

    `used` is whether a task may have taken messages by it.
    """

    def __init__(self) -> None:
        self.machine: Lease | None = None
        self.used = False
        self.beacon: str | None = None
        self.lost: SbpairError | None = None

    def check(self) -> None:
        """Raise LeaseLost, or why else the right to move messages is lost."""
        if self.lost is not None:
            raise self.lost
        if self.machine is not None:
            self.machine.check()


@contextmanager
def holding(
    pair: Pair, run: str, archive: Archive, *, directory: Path | None = None, queue: str | None = None
) -> Iterator[HeldLease]:
    """Hold the lease of this machine, where a directory for it is named, and of all machines, where a queue is.

    Raises LeaseHeld where another mover has one of them; EntityMissing or UsageError for a queue that can carry none.
    """
    held = HeldLease()
    with ExitStack() as stack:
        if queue is not None:
            check_queue(queue)
        if directory is not None:
            held.machine = stack.enter_context(Lease(directory, run))
        if queue is not None:
            held.beacon = f"{LEASE}/{uuid.uuid4().hex}.json"
            stack.callback(archive.remove, held.beacon)
            stack.enter_context(LeaseKeeper(archive, held).keeping(pair, queue, run))
        yield held


class LeaseKeeper:
    """A thread with the lease across machines, for the driver itself waits for Spark."""

    def __init__(self, archive: Archive, held: HeldLease) -> None:
        self._archive = archive
        self._held = held
        self._loop = asyncio.new_event_loop()
        self._taken: Future[None] = Future()
        self._ended = asyncio.Event()
        self._beats = count(1)

    @contextmanager
    def keeping(self, pair: Pair, queue: str, run: str) -> Iterator[None]:
        """Have the lease within the block. Raises what `session_lease.hold_lease` does."""
        thread = threading.Thread(target=self._run, args=(pair, queue, run), name="keep the lease", daemon=True)
        thread.start()
        try:
            self._taken.result()
            yield
        finally:
            with suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()

    def _run(self, pair: Pair, queue: str, run: str) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._keep(pair, queue, run))
            except Exception as error:
                if self._taken.done():
                    raise
                self._taken.set_exception(error)

    async def _keep(self, pair: Pair, queue: str, run: str) -> None:
        async with (
            token_getter(pair) as get_token,
            session_lease.hold_lease(pair, queue, run, stop=self._ended, get_token=get_token) as lease,
        ):
            self._archive.create()  # a run that is refused leaves no directory, and this one's tasks read there
            self._taken.set_result(None)
            try:
                await self._say(lease)
            except SbpairError as error:
                # What tasks do not hear of is as good as lost.
                self._held.lost = error

    async def _say(self, lease: SessionLease) -> None:
        """Tell the tasks again and again for how long it is good, until it is lost; then have the run stop."""
        losing, ending = asyncio.create_task(lease.lost()), asyncio.create_task(self._ended.wait())
        try:
            while not (losing.done() or ending.done()):
                if (seconds := lease.confirmed_seconds()) > 0:
                    await asyncio.to_thread(self._write, seconds)
                await asyncio.wait((losing, ending), timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if losing.done():
                self._lost(losing.result())
        finally:
            losing.cancel()
            ending.cancel()

    def _lost(self, error: SbpairError) -> None:
        self._held.lost = error
        self._write(0.0, error.message)
        # Those who drain send nothing, and look at no lease.
        self._archive.write(STOP_FILE, b"")

    def _write(self, seconds: float, lost: str | None = None) -> None:
        assert self._held.beacon is not None  # noqa: S101  it was named before the lease was taken
        said = {"beat": next(self._beats), "good_seconds": seconds, "lost": lost}
        self._archive.write(self._held.beacon, json.dumps(said).encode(), sync=False)


class TaskLease:
    """What a task knows of the driver's lease. `now` is in seconds, and stands still for nothing."""

    def __init__(self, archive: Archive, beacon: str | None, now: Callable[[], float] = uptime) -> None:
        self._archive = archive
        self._beacon = beacon
        self._now = now
        self._looked = self._until = float("-inf")
        self._lost: str | None = None
        self._beat = 0
        # When the last beat was read for the last time, and when the one before it was.
        self._last_read, self._before = float("-inf"), float("-inf")

    def check(self) -> None:
        """Raise LeaseLost where the driver has said so, Unreachable where it is not sure at this moment."""
        if self._beacon is None:
            return
        if self._now() - self._looked >= LOOK_SECONDS:
            self._look(self._beacon)
        if self._lost is not None:
            raise LeaseLost(self._lost, hint="start again, unless another mover is at work now")
        if self._now() >= self._until:
            raise Unreachable("nobody has confirmed the lease of late", hint="the driver does, if it lives")

    async def ready(self) -> None:
        """Wait until it is sure, for a while. Raises as `check` does."""
        limit = self._now() + READY_SECONDS
        while True:
            try:
                return self.check()
            except Unreachable:
                if self._now() >= limit:
                    raise
            await asyncio.sleep(LOOK_SECONDS / 2)

    def _look(self, beacon: str) -> None:
        self._looked = self._now()
        try:
            said = self._archive.read_json(beacon)
        except FileNotFoundError:
            return
        if said["beat"] != self._beat:
            # It was begun after the beat before it was there, and so after the one before that was read.
            self._until = self._before + said["good_seconds"]
            self._beat, self._before = said["beat"], self._last_read
            self._lost = said["lost"]
        self._last_read = self._looked
