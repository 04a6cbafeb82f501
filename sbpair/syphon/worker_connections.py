"""The two connections of a worker, to the backlog and to the primary; and whether a side of the pair can be reached.

Invariant: a lost connection is back within FAULT_SECONDS, or the other one is ended too. While a side is away, one
worker tries it each PROBE_SECONDS, and all others follow its first success.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from sbpair.amqp_client.client import GetToken, connect
from sbpair.errors import ConnectionFaulted, SbpairError, Unavailable
from sbpair.move.failure_latch import set_within
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.raw_source import RawSource, SessionsSource
from sbpair.runs.database import now_ms
from sbpair.syphon.move_spec import MoveSpec

FAULT_SECONDS = 5.0  # how long one side may be without the other
RECONNECT_SECONDS = 1.0  # how long to wait between attempts to reconnect to the primary
PROBE_SECONDS = 1.0

Connected = TypeVar("Connected")


class SideState:
    """One side. `away_since_ms` is when it was lost, in ms since 1970; None while it can be reached."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.away_since_ms: int | None = None
        self._back = asyncio.Event()
        self._next_probe = 0.0

    async def connected(self, connecting: Awaitable[Connected]) -> Connected:
        """Return the connection, and record whether it could be made."""
        try:
            made = await connecting
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
        """Wait until the side is back, or it is this worker's turn to try it."""
        loop = asyncio.get_running_loop()
        while self.away_since_ms is not None:
            if loop.time() >= self._next_probe:
                self._next_probe = loop.time() + PROBE_SECONDS
                return
            await set_within(self._back, self._next_probe - loop.time())


@dataclass(frozen=True, slots=True)
class PairState:
    """Both sides."""

    primary: SideState = field(default_factory=lambda: SideState("primary"))
    secondary: SideState = field(default_factory=lambda: SideState("secondary"))

    @property
    def away(self) -> SideState | None:
        """The side that is away; the secondary, which is connected first, if both are."""
        return next((side for side in (self.secondary, self.primary) if side.away_since_ms is not None), None)


@dataclass(frozen=True, slots=True)
class WorkerConnections:
    """Both connections, open. `words` name the two ends in messages."""

    source: RawSource
    primary: RawPrimary
    words: tuple[str, str] = ("backlog", "primary")

    async def backlog_lost(self) -> ConnectionFaulted:
        """Wait until the connection to the backlog is lost: nothing more can be settled over it."""
        await self.source.wait_lost()
        return self._faulted(0, self.source.broken)

    async def primary_lost(self, on_restored: Callable[[], None]) -> ConnectionFaulted:
        """Wait until the connection to the primary is lost and was not restored in time. Raises AccessError."""
        await self.primary.wait_lost()
        while (why := await self._reconnect_primary()) is None:
            on_restored()
            await self.primary.wait_lost()
        return self._faulted(1, why)

    def fault(self) -> ConnectionFaulted | None:
        lost = (self.source.broken, self.primary.broken)
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
        self.primary.abort(error)
        self.source.abort(error)

    def _faulted(self, end: int, why: Exception | None) -> ConnectionFaulted:
        lost, other = self.words[end], self.words[1 - end]
        error = ConnectionFaulted(
            f"the connection to the {lost} was lost, and the one to the {other} was ended with it: {why}",
            hint="retry in a minute",
        )
        error.side = ("secondary", "primary")[end]
        return error

    async def _reconnect_primary(self) -> Exception | None:
        """Return None once connected, or the last error after FAULT_SECONDS."""
        why: Exception = TimeoutError("no answer")
        with suppress(TimeoutError):
            async with asyncio.timeout(FAULT_SECONDS):
                while True:
                    try:
                        await self.primary.check()
                    except Unavailable as error:
                        why = error
                        await asyncio.sleep(RECONNECT_SECONDS)
                    else:
                        return None
        return why


@asynccontextmanager
async def open_connections(
    spec: MoveSpec, get_token: GetToken | None, queue: str, sides: PairState, lock_seconds: float | None
) -> AsyncIterator[WorkerConnections]:
    """Connect to both sides for one queue, without receiving. Closes both at the end of the block.

    Raises Unavailable, AccessError; EntityMissing if the queue does not exist.
    """
    async with AsyncExitStack() as stack:
        connecting = stack.enter_async_context(connect(spec.ends.secondary, get_token=get_token))
        wire = await sides.secondary.connected(connecting)
        kind = SessionsSource if spec.sessions else RawSource
        source = await kind.open(wire, queue, form=spec.form, lock_seconds=lock_seconds)
        primary = RawPrimary(spec.ends.primary, get_token=get_token)
        stack.push_async_callback(primary.close)
        # Fails before any message is locked if the primary cannot be reached.
        await sides.primary.connected(primary.check())
        yield WorkerConnections(source, primary, spec.words)
