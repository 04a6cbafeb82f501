"""The two connections of a worker, to the source and to the destination; and whether each end can be reached.

Invariant: a lost connection is back within FAULT_SECONDS, or the other one is ended too. While an end is away, one
worker tries it each PROBE_SECONDS, and all others follow its first success.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from sbpair.amqp_client.client import GetToken, connect
from sbpair.errors import ConnectionFaulted, Exhausted, SbpairError, Unavailable
from sbpair.model.message_state import MessageState
from sbpair.move.aside_source import DeferredSource, ScheduledSource
from sbpair.move.context import MoveContext
from sbpair.move.failure_latch import set_within
from sbpair.move.kept_file import KeptFile
from sbpair.move.raw_destination import RawDestination
from sbpair.move.raw_source import RawSource, SessionsSource
from sbpair.runs.database import now_ms
from sbpair.syphon.run_request import RunRequest

FAULT_SECONDS = 5.0  # how long one end may be without the other
RECONNECT_SECONDS = 1.0  # how long to wait between attempts to reconnect to the destination
PROBE_SECONDS = 1.0

Connected = TypeVar("Connected")


class EndState:
    """One end; `name` is its side of a pair.

    `away_since_ms` is when it was lost, in ms since 1970; None while it can be reached.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.away_since_ms: int | None = None
        self._back = asyncio.Event()
        self._next_probe = 0.0

    async def connected(self, connecting: Awaitable[Connected]) -> Connected:
        """Return the connection, and record whether it could be made."""
        try:
            made = await connecting
        except Exhausted:
            raise  # this machine is short of something, and the side may be well
        except Unavailable:
            if self.away_since_ms is None:
                self.away_since_ms = now_ms()
                self._next_probe = asyncio.get_running_loop().time() + PROBE_SECONDS
                self._back.clear()
            raise
        self.away_since_ms = None
        self._back.set()
        return made

    async def wait_turn(self) -> None:
        """Wait until the end is back, or it is this worker's turn to try it."""
        loop = asyncio.get_running_loop()
        while self.away_since_ms is not None:
            if loop.time() >= self._next_probe:
                self._next_probe = loop.time() + PROBE_SECONDS
                return
            await set_within(self._back, self._next_probe - loop.time())


@dataclass(frozen=True, slots=True)
class EndStates:
    """Both ends."""

    source: EndState = field(default_factory=lambda: EndState("secondary"))
    destination: EndState = field(default_factory=lambda: EndState("primary"))

    @property
    def away(self) -> EndState | None:
        """The end that is away; the source, which is connected first, if both are."""
        return next((end for end in (self.source, self.destination) if end.away_since_ms is not None), None)


@dataclass(frozen=True, slots=True)
class WorkerConnections:
    """Both connections, open. `titles` name the two ends in sentences."""

    source: RawSource
    destination: RawDestination | KeptFile
    titles: tuple[str, str] = ("the backlog", "the primary")

    async def source_lost(self) -> ConnectionFaulted:
        """Wait until the connection to the source is lost: nothing more can be settled over it."""
        await self.source.wait_lost()
        return self._faulted(0, self.source.broken)

    async def destination_lost(self, on_restored: Callable[[], None]) -> ConnectionFaulted:
        """Wait until the connection to the destination is lost and was not restored in time. Raises AccessError."""
        await self.destination.wait_lost()
        while (why := await self._reconnect_destination()) is None:
            on_restored()
            await self.destination.wait_lost()
        return self._faulted(1, why)

    def fault(self) -> ConnectionFaulted | None:
        lost = (self.source.broken, self.destination.broken)
        return next((self._faulted(end, why) for end, why in enumerate(lost) if why is not None), None)

    async def end_together(
        self,
        wait_lost: Callable[[], Awaitable[SbpairError]],
        on_lost: Callable[[SbpairError], None],
        seconds: float = FAULT_SECONDS,
    ) -> None:
        """End the other connection, at most `seconds` after one is lost for good."""
        try:
            error = await wait_lost()
        except SbpairError as refusal:
            error = refusal
        on_lost(error)
        await asyncio.sleep(seconds)
        self.abort(error)

    def abort(self, error: SbpairError) -> None:
        """End both at once: every pending call over them raises `error`."""
        self.destination.abort(error)
        self.source.abort(error)

    def _faulted(self, end: int, why: Exception | None) -> ConnectionFaulted:
        lost, other = self.titles[end], self.titles[1 - end]
        error = ConnectionFaulted(
            f"the connection to {lost} was lost, and the one to {other} was ended with it: {why}",
            hint="retry in a minute",
        )
        error.side = ("secondary", "primary")[end]
        return error

    async def _reconnect_destination(self) -> Exception | None:
        """Return None once connected, or the last error after FAULT_SECONDS."""
        why: Exception = TimeoutError("no answer")
        with suppress(TimeoutError):
            async with asyncio.timeout(FAULT_SECONDS):
                while True:
                    try:
                        await self.destination.check()
                    except Unavailable as error:
                        why = error
                        await asyncio.sleep(RECONNECT_SECONDS)
                    else:
                        return None
        return why


@asynccontextmanager
async def open_connections(
    request: RunRequest,
    get_token: GetToken | None,
    queue: str,
    states: EndStates,
    lock_seconds: float | None,
    context: MoveContext,
) -> AsyncIterator[WorkerConnections]:
    """Connect to both ends for one queue, without receiving. Closes both at the end of the block.

    Raises Unavailable, AccessError; EntityMissing if the queue does not exist.
    """
    is_scheduled = request.messages == MessageState.SCHEDULED
    async with AsyncExitStack() as stack:
        connecting = stack.enter_async_context(connect(request.ends.source, get_token=get_token))
        wire = await states.source.connected(connecting)
        source: RawSource
        if is_scheduled:
            (await wire.sender(queue)).close()  # a cancellation needs Send: it is too late to find that out then
            source = ScheduledSource(wire, queue, request.form, context)
        elif request.messages == MessageState.DEFERRED:
            form, where, sessions = request.form, request.where, request.sessions
            source = DeferredSource(wire, queue, form, context, where=where, sessions=sessions)
        else:
            kind = SessionsSource if request.sessions else RawSource
            source = await kind.open(wire, queue, form=request.form, lock_seconds=lock_seconds)
        target = request.ends.destination
        destination = request.keep or RawDestination(target, get_token=get_token, schedules=is_scheduled)
        stack.push_async_callback(destination.close)
        # Fails before any message is locked if the destination cannot be reached.
        await states.destination.connected(destination.check())
        yield WorkerConnections(source, destination, request.titles)
