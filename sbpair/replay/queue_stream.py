"""A queue or subscription as a stream of segments, which other programs read as they appear: drained by one process.

Invariant: the drain is the only settler, and completes a message once its segment and the digest of that are durable,
as the task of a backlog queue does. A message that was not completed is delivered again: after a kill it is in two
segments. The same name goes on with the same directory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sbpair.backlog import primary_of
from sbpair.errors import MachineLacks, SessionLockLost, StateRefused, UsageError
from sbpair.model.message_state import parent_path
from sbpair.move.interface import Failures, ReceivedMessage
from sbpair.move.message.route import BACKLOG, kept_for
from sbpair.move.raw_source import RawReceivedMessage, RawSource, SessionSource, SessionsSource
from sbpair.replay.archive import SEGMENTS, STOP_FILE, Archive
from sbpair.replay.digests import adopt_segments, merge_digests, read_digests
from sbpair.replay.outcomes import DrainedStream
from sbpair.replay.progress import OnEvent, PhaseProgress, ReplayPhase
from sbpair.replay.queue_task import SHORT_WAITS, QueueDrain, count_remaining
from sbpair.replay.run_description import (
    NamespaceAccess,
    ReplayMode,
    ReplayOptions,
    ReplayRun,
    TaskJob,
    load_run,
    save_run,
)
from sbpair.replay.segment import Segment, time_name
from sbpair.replay.verify import GarbageCollection
from sbpair.runs.database import identity
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.syphon.runner import take_lease

if TYPE_CHECKING:
    from pathlib import Path

    from sbpair.amqp_client.client import AmqpClient
    from sbpair.runs.session_lease import SessionLease
    from sbpair.syphon.run_request import RunRequest

log = logging.getLogger(__name__)

MAX_SESSIONS = 100  # sessions of one segment: each is a link, held until the segment is stored
MIN_SESSION_SECONDS = 0.1  # how long a free session is asked for at least


async def drain_stream(
    request: RunRequest,
    archive: Archive,
    seal_seconds: float,
    state: Path | None,
    on_event: OnEvent,
    stop: asyncio.Event,
) -> DrainedStream:
    """Drain the source of a request until `stop`, or with `once` until it is empty, under the leases of the request.

    A segment is stored `seal_seconds` after its first message came, or earlier.

    Raises StateRefused for the directory of another source, LeaseHeld, LeaseLost, Unavailable, MachineLacks.
    """
    began, access = time.monotonic(), NamespaceAccess.from_endpoint(request.ends.source)
    async with AsyncExitStack() as stack:
        ends, leased = request.leased
        holding = hold_machine_leases(ends, state, archive.run, leased)
        check = stack.enter_context(holding) if request.lease else lambda: None
        lease = await take_lease(stack, request, archive.run, stop)
        run = await asyncio.to_thread(_begin, archive, request)
        job = TaskJob(run, archive.url, access, access, 1)
        on_event(ReplayPhase("drain", f"draining {run.queues[0]} into {archive.root}/{SEGMENTS}", run.id))
        drain = await asyncio.to_thread(StreamDrain, job, request, seal_seconds, check, on_event)
        stopping = asyncio.create_task(drain.stop_after(stop, lease), name="wait for a stop")
        try:
            released, ahead_ms, *_ = await drain.run()
        finally:
            stopping.cancel()
        if lease is not None and lease.error is not None:
            raise lease.error
        stopped, remaining = archive.stop_requested(), None
        if request.once and not stopped:
            left = await count_remaining(job, clock_ahead_ms=ahead_ms)
            remaining = sum(each.messages for each in left.values())
        counts = (drain.stored.messages, drain.stored.files, remaining, released)
        return DrainedStream(run.id, run.queues[0], *counts, stopped and request.once, time.monotonic() - began)


def _begin(archive: Archive, request: RunRequest) -> ReplayRun:
    """Return the stream of a directory, which is new or has drained this source before.

    Segments whose digests a killed drain did not store get them. Raises StateRefused.
    """
    source, namespaces, clock = request.source or "", identity(request.ends), request.ends.source.clock
    options = replace(ReplayOptions(), mode=ReplayMode.STREAM)
    is_service_time = clock.known() is not None
    run = ReplayRun(archive.run, namespaces, (source,), 1, clock.now_ms(), options, is_service_time, digests=True)
    archive.require_whole_files()
    if archive.is_run():
        found = load_run(archive)
        if not found.is_stream or (found.pair, found.queues[0].lower()) != (namespaces, source.lower()):
            what = f"a stream of {found.queues[0]} in {found.pair['secondary']}" if found.is_stream else "a replay"
            raise StateRefused(
                f"{archive.run} in {archive.url} is {what}, not a stream of {source} in {namespaces['secondary']}",
                hint="name another one with --run",
            )
        archive.remove(STOP_FILE)
        for path in adopt_segments(archive, found):
            log.info("adopted %s: the drain that stored it died before it stored the digest", path)
        merge_digests(archive)
        return replace(found, started_ms=run.started_ms, service_time=is_service_time)
    archive.create()
    archive.check_writable()
    save_run(archive, run)
    return run


class StreamDrain(QueueDrain):
    """The drain of a stream. `stored` are the messages and segments that it has stored."""

    def __init__(
        self,
        job: TaskJob,
        request: RunRequest,
        seal_seconds: float,
        check: Callable[[], None],
        on_event: OnEvent,
    ) -> None:
        waits = SHORT_WAITS if request.once else (inf, inf)
        super().__init__(job.with_waits(*waits), job.run.queues[0])
        self._archive.require_whole_files()
        self._archive.write(f"{SEGMENTS}/.stream", b"")  # readers need its directory, also in an object store
        pa.array([""])  # its first call imports pandas, which may take longer than a lock
        self._once, self._has_sessions, self._check, self._on_event = request.once, request.sessions, check, on_event
        self._seal_seconds, self._max_tries = seal_seconds, self._max_tries if request.once else inf
        self._sessions: set[str | None] = set()
        self.stored = PhaseProgress("drain", 0, 0, {self._queue: 0})

    async def stop_after(self, stop: asyncio.Event, lease: SessionLease | None) -> None:
        """Stop in order once that is wanted, or the lease is lost."""
        waits = [asyncio.ensure_future(stop.wait()), *([asyncio.ensure_future(lease.lost())] if lease else [])]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        self._stop.request()
        with suppress(MachineLacks):  # as the next segment reports
            await asyncio.to_thread(self._archive.write, STOP_FILE, b"")

    async def _open(self, client: AmqpClient) -> RawSource:
        kind = HeldSessions if self._has_sessions else RawSource
        form = BACKLOG if primary_of(parent_path(self._queue)) else kept_for("")
        return await kind.open(client, self._queue, keeps_payload=True, form=form, lock_seconds=None)

    def _idle_seconds(self, segment: Segment) -> float:
        if segment and not self._once:
            return max(0.0, segment.due - asyncio.get_running_loop().time())
        return super()._idle_seconds(segment)

    async def _is_drained(self, source: RawSource) -> bool:
        return self._once and await super()._is_drained(source)

    def _new_segment(self) -> Segment:
        self._check()
        self._sessions.clear()
        return super()._new_segment()

    def _is_full(self, segment: Segment) -> bool:
        return len(self._sessions) >= MAX_SESSIONS or super()._is_full(segment)

    async def _add(self, source: RawSource, segment: Segment, messages: list[RawReceivedMessage]) -> None:
        await super()._add(source, segment, messages)
        if self._has_sessions:
            self._sessions.update(each.facts.session_id for each in messages)

    async def _store(self, source: RawSource, segment: Segment) -> None:
        await super()._store(source, segment)
        if segment not in self._unstored:
            messages = self.stored.messages + len(segment)
            self.stored = PhaseProgress("drain", messages, self.stored.files + 1, {self._queue: messages})
            self._on_event(self.stored)


class HeldSessions(SessionsSource):
    """A source with sessions as one: each is held until its messages are settled. One after the other is received from.

    A session is left once it is empty, or some of its messages were settled: then others have their turn.
    """

    def __init__(self, *arguments: Any, **terms: Any) -> None:
        super().__init__(*arguments, **terms)
        self._current: SessionSource | None = None
        self._unsettled = Counter[SessionSource]()
        self._session_of: dict[ReceivedMessage, SessionSource] = {}
        self._limit, self._had_turn = 0, False

    def grant(self, limit: int) -> None:
        self._limit = limit
        if self._current is not None:
            self._current.grant(limit)

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:
        until = self._loop.time() + seconds
        if self._had_turn:
            await self._leave()
        while True:
            session = self._current
            if session is None:
                session = self._current = await self.next_session(max(MIN_SESSION_SECONDS, until - self._loop.time()))
                if session is None:
                    return []
                session.grant(self._limit)
            messages: list[RawReceivedMessage] = []
            with suppress(SessionLockLost):  # its messages are delivered again
                messages = await session.receive(limit, seconds=seconds)
            if messages:
                self._clock = session._clock
                self._unsettled[session] += len(messages)
                self._session_of |= dict.fromkeys(messages, session)
                return messages
            await self._leave()
            if self._loop.time() >= until:
                return []

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self._settle_each(messages, SessionSource.complete)

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        return await self._settle_each(messages, SessionSource.release)

    async def stop(self) -> None:
        await self._leave()

    async def _settle_each(self, messages: Sequence[ReceivedMessage], settle: Any) -> Failures:
        by_session = defaultdict[SessionSource, list[ReceivedMessage]](list)
        for each in messages:
            by_session[self._session_of.pop(each)].append(each)
        found = await asyncio.gather(*(settle(session, its) for session, its in by_session.items()))
        for session, its in by_session.items():
            self._unsettled[session] -= len(its)
            if session is self._current:
                self._had_turn = True
            else:
                self._close(session)
        return [failure for failures in found for failure in failures]

    async def _leave(self) -> None:
        session, self._current, self._had_turn = self._current, None, False
        if session is not None:
            await session.stop()
            self.returned += session.returned
            self._close(session)

    def _close(self, session: SessionSource) -> None:
        """Close a session without unsettled messages: another receiver may lock it."""
        if not self._unsettled[session]:
            del self._unsettled[session]
            session.close()


def plan_collection(archive: Archive, older_seconds: float, now: float) -> GarbageCollection:
    """Return the segments of a stream that were begun longer ago. Readers may have deleted them. Raises UsageError."""
    run = load_run(archive)
    if not run.is_stream:
        raise UsageError(f"--older-than: run {run.id} is not a stream", hint="leave it out: a run is deleted whole")
    before, sizes = f"{SEGMENTS}/{time_name(now - older_seconds)}", archive.sizes(SEGMENTS)
    known = read_digests(archive).files()
    old = {path for path, each in known.items() if path.startswith(f"{SEGMENTS}/") and path < before}
    found = {path: sizes.get(path, 0) for path in sorted(old) if path in sizes or not known[path].collected}
    return GarbageCollection(run, {SEGMENTS: tuple(found)}, sum(found.values()), 0)


def collect_segments(archive: Archive, planned: GarbageCollection) -> None:
    """Delete segments of a stream. Their tombstones are durable before; an interrupted collection goes on later."""
    merge_digests(archive, planned.places[SEGMENTS])
    archive.delete(SEGMENTS, planned.places[SEGMENTS])
