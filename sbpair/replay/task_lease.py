"""The lease of a run: held by the driver, checked by its tasks through a heartbeat file in the archive.

Tasks of a Spark Connect server outlive a driver that is killed: there the file is written without a lease, too.
Invariant: a task sends only while no other mover can hold the lease. It trusts a heartbeat for no longer than the
driver may, and by its own clock alone: each heartbeat was written after the task had last read the one before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.azure.credentials import open_tokens
from sbpair.errors import LeaseHeld, LeaseLost, SbpairError, Unreachable
from sbpair.operating_system import uptime
from sbpair.replay.archive import LEASE, STOP_FILE, Archive
from sbpair.runs import session_lease
from sbpair.runs.file_lease import hold_machine_leases

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.runs.session_lease import SessionLease

Content = TypeVar("Content")

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 0.5  # how often the driver writes a heartbeat
POLL_SECONDS = 0.5  # how often a task reads it
DETACHED = "detached-"  # begins the name of a heartbeat whose tasks outlive the driver
MAX_VALID_SECONDS = 600.0  # twice the longest lock of a lease
ALIVE_SECONDS = 20.0  # how long such tasks send after the last heartbeat without a lease
SPARE_SECONDS = 3.0  # for messages on their way
READY_SECONDS = 30.0  # how long a task waits for its first confirmation, which takes two heartbeats


@dataclass
class HeldLease:
    """The driver's leases. `used` is whether a task may have received messages."""

    check_machine: Callable[[], None] = lambda: None
    used: bool = False
    heartbeat: str | None = None  # its file, if tasks check one
    lost: SbpairError | None = None

    def check(self) -> None:
        """Raise LeaseLost, or the other error for which the lease is lost."""
        if self.lost is not None:
            raise self.lost
        self.check_machine()

    def is_lost(self) -> bool:
        """Return whether the lease is lost; then it stays so."""
        try:
            self.check()
        except SbpairError as error:
            self.lost = error
        return self.lost is not None


@contextmanager
def hold_leases(
    pair: Pair,
    run: str,
    archive: Archive,
    *,
    directory: Path | None = None,
    queue: str | None = None,
    detached: bool = False,
) -> Iterator[HeldLease]:
    """Hold this machine's leases of the pair and `directory`, and the lease across machines in `queue`, if given.

    `detached` is whether tasks outlive this driver. Tasks of an earlier driver that was killed are ended. Raises
    LeaseHeld if another mover has a lease; EntityMissing or UsageError for an unsuitable queue.
    """
    held, path = HeldLease(), f"{LEASE}/{DETACHED if detached else ''}{uuid.uuid4().hex}.json"
    with ExitStack() as stack:
        if directory is not None:
            held.check_machine = stack.enter_context(hold_machine_leases(pair.ends, directory, run))
        if queue is not None:
            stack.callback(archive.remove, path)
            stack.enter_context(Heartbeats(archive, held, path).written(pair, run, queue))
        end_detached_tasks(archive, but=held.heartbeat)
        if detached and queue is None:
            stack.enter_context(Heartbeats(archive, held, path).written(pair, run))
        yield held
    archive.remove(path)  # after an error it stays: tasks may run


def end_detached_tasks(archive: Archive, *, but: str | None = None, spare_seconds: float = SPARE_SECONDS) -> None:
    """Wait until no task of a killed driver sends, then end those. Raises LeaseHeld if that driver is alive.

    Its tasks send only while its heartbeat is valid.
    """
    # A file that is still written beside its heartbeat has another name.
    beats = (path for path in archive.sizes(LEASE) if path.startswith(f"{LEASE}/{DETACHED}") and path != but)
    found = {path: _read_heartbeat(archive, path) for path in beats}
    silent = {path: beat for path, beat in found.items() if beat is not None and beat["lost"] is None}
    if not silent:
        return
    seconds = max(float(beat["valid_seconds"]) for beat in silent.values())
    log.warning("the driver of run %s was killed: waiting %.0f s until its tasks stop", archive.run, seconds)
    alive = LeaseHeld(
        f"run {archive.run} is still going: its driver is alive",
        hint=f"wait for its end, or stop it with sbpair replay stop {archive.run}",
    )

    def heartbeats() -> dict[str, dict[str, Any]]:
        return {path: beat for path in silent if (beat := _read_heartbeat(archive, path)) is not None}

    for path, beat in wait_unchanged(heartbeats, seconds + spare_seconds, alive).items():
        archive.write_line(path, {**beat, "number": beat["number"] + 1, "valid_seconds": 0.0, "lost": "it was resumed"})
    time.sleep(spare_seconds)  # tasks read it, and record what was accepted


def wait_unchanged(
    read: Callable[[], dict[str, Content]], seconds: float, error: LeaseHeld, *, patience_seconds: float = 0.0
) -> dict[str, Content]:
    """Wait until no file that `read` returns has changed for so long: its writer is dead. Return the files.

    Raises the error if one changes, after `patience_seconds` in which its writer may end. No-op without a file.
    """
    before, began = read(), uptime()
    changed_at = began
    while before and uptime() < changed_at + seconds:
        time.sleep(min(POLL_SECONDS / 2, seconds))
        now = read()
        if any(before.get(path) != content for path, content in now.items()):
            changed_at = uptime()
            if changed_at >= began + patience_seconds:
                raise error
        before = now
    return before


def _read_heartbeat(archive: Archive, path: str) -> dict[str, Any] | None:
    """Return the fields of a heartbeat; None if it is missing. Raises StateRefused for a broken one."""
    match found := archive.find_json(path):
        case None:
            return None
        case {"number": int(), "valid_seconds": int() | float() as seconds, "lost": None | str()}:
            if 0 <= seconds <= MAX_VALID_SECONDS:
                return found
    raise archive.broken(path, "it does not have the fields of a heartbeat")


class Heartbeats:
    """The thread that writes for how long tasks may send: while the lease across machines is held, or the driver lives.

    The driver waits for Spark meanwhile. Tasks without a heartbeat send nothing.
    """

    def __init__(self, archive: Archive, held: HeldLease, path: str) -> None:
        self._archive, self._held, self._path = archive, held, path
        self._ready: Future[None] = Future()
        self._ended = asyncio.Event()
        self._numbers = count(1)

    @contextmanager
    def written(self, pair: Pair, run: str, queue: str | None = None) -> Iterator[None]:
        """Write within the block, and hold the lease in a queue, if given. Raises as `hold_lease`, and MachineLacks."""
        from sbpair.sync_async import LoopThread  # tasks do not need it

        self._held.heartbeat = self._path
        thread = LoopThread("heartbeats", self._run(pair, run, queue))
        try:
            self._ready.result()
            yield
        finally:
            thread.call(self._ended.set)
            thread.join(None)

    async def _run(self, pair: Pair, run: str, queue: str | None) -> None:
        lease: SessionLease | None = None
        async with AsyncExitStack() as stack:
            try:
                if queue is not None:
                    get_token = await stack.enter_async_context(open_tokens())
                    holding = session_lease.hold_lease(pair.ends, queue, run, stop=self._ended, get_token=get_token)
                    lease = await stack.enter_async_context(holding)
                self._archive.create()  # tasks read there; a run that is refused the lease leaves no directory
                await self._write_valid(lease)
            except Exception as error:  # noqa: BLE001  it is raised in the driver's thread
                self._ready.set_exception(error)
            else:
                self._ready.set_result(None)
                await self._write_until_ended(lease)

    async def _write_until_ended(self, lease: SessionLease | None) -> None:
        """Write again and again until the lease is lost, if there is one; then request a stop."""
        ending, losing = asyncio.create_task(self._ended.wait()), asyncio.Future[SbpairError]()
        if lease is not None:
            losing = asyncio.create_task(lease.lost())
        try:
            while not (losing.done() or ending.done()):
                with suppress(SbpairError):
                    await self._write_valid(lease)
                await asyncio.wait((losing, ending), timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if losing.done():
                self._held.lost = losing.result()
                with suppress(SbpairError):
                    self._write(0.0, self._held.lost.message)
                    # Drain tasks send nothing, and do not check the lease.
                    self._archive.write(STOP_FILE, b"")
        finally:
            losing.cancel()
            ending.cancel()

    async def _write_valid(self, lease: SessionLease | None) -> None:
        seconds = ALIVE_SECONDS if lease is None else lease.confirmed_seconds()
        if seconds > 0:
            await asyncio.to_thread(self._write, seconds)

    def _write(self, seconds: float, lost: str | None = None) -> None:
        heartbeat = {"number": next(self._numbers), "valid_seconds": seconds, "lost": lost}
        self._archive.write_line(self._path, heartbeat)


class TaskLease:
    """A task's check of the driver's lease. `now` is in seconds, and also advances while the machine sleeps."""

    def __init__(self, archive: Archive, heartbeat: str | None, now: Callable[[], float] = uptime) -> None:
        self._archive, self._heartbeat, self._now = archive, heartbeat, now
        self._checked_at = self._valid_until = float("-inf")
        self._lost: str | None = None
        self._number = 0
        # When the current heartbeat was last read, and when the one before it was.
        self._last_read, self._before = float("-inf"), float("-inf")

    def check(self) -> None:
        """Raise LeaseLost if the driver has reported that, Unreachable if the lease is not confirmed now."""
        if self._heartbeat is None:
            return
        if self._now() - self._checked_at >= POLL_SECONDS:
            self._read(self._heartbeat)
        if self._lost is not None:
            raise LeaseLost(self._lost, hint="start again unless another mover is running")
        if self._now() >= self._valid_until:
            raise Unreachable("the lease was not confirmed in time", hint="check that the driver is running")

    async def wait_confirmed(self, ready_seconds: float = READY_SECONDS) -> None:
        """Wait up to `ready_seconds` for a confirmation. Raises as `check` does."""
        limit = self._now() + ready_seconds
        while True:
            try:
                return self.check()
            except Unreachable:
                if self._now() >= limit:
                    raise
            await asyncio.sleep(POLL_SECONDS / 2)

    def _read(self, heartbeat: str) -> None:
        self._checked_at = self._now()
        found = _read_heartbeat(self._archive, heartbeat)
        if found is None:
            return
        if found["number"] != self._number:
            # It was begun after the heartbeat before it was written, and so after the one before that was read.
            self._valid_until = self._before + found["valid_seconds"]
            self._number, self._before = found["number"], self._last_read
            self._lost = found["lost"]
        self._last_read = self._checked_at
