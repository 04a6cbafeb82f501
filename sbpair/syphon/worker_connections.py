"""The two connections of a worker, to the backlog and to the primary: opened and ended together.

Invariant: a lost connection is back within FAULT_SECONDS, or the other one is ended too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.amqp_client.client import connect
from sbpair.errors import ConnectionFaulted, SbpairError, Unavailable
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.raw_source import RawSource

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.model.pair import Pair
    from sbpair.syphon.side_state import PairState

FAULT_SECONDS = 5.0
"""How long one side may be without the other."""

RECONNECT_SECONDS = 1.0
"""How long to wait between attempts to reconnect to the primary."""


class WorkerConnections:
    """Both connections, open."""

    def __init__(self, source: RawSource, primary: RawPrimary) -> None:
        self.source = source
        self.primary = primary

    async def backlog_lost(self) -> ConnectionFaulted:
        """Wait until the connection to the backlog is lost: every lock went with it."""
        await self.source.wait_lost()
        return self._faulted("backlog", "primary", self.source.broken)

    async def primary_lost(self, on_restored: Callable[[], None]) -> ConnectionFaulted:
        """Wait until the connection to the primary is lost and was not restored in time. Raises AccessError."""
        await self.primary.wait_lost()
        while (why := await self._reconnect_primary()) is None:
            on_restored()
            await self.primary.wait_lost()
        return self._faulted("primary", "backlog", why)

    def fault(self) -> ConnectionFaulted | None:
        if self.source.broken is not None:
            return self._faulted("backlog", "primary", self.source.broken)
        if self.primary.broken is not None:
            return self._faulted("primary", "backlog", self.primary.broken)
        return None

    def abort(self, error: SbpairError) -> None:
        """End both at once: every pending call over them raises `error`."""
        self.primary.abort(error)
        self.source.abort(error)

    async def _reconnect_primary(self) -> Exception | None:
        """Return None once connected, or the last error after FAULT_SECONDS."""
        why: Exception = TimeoutError("no answer")
        try:
            async with asyncio.timeout(FAULT_SECONDS):
                while True:
                    try:
                        await self.primary.check()
                    except Unavailable as error:
                        why = error
                        await asyncio.sleep(RECONNECT_SECONDS)
                    else:
                        return None
        except TimeoutError:
            return why

    def _faulted(self, lost: str, other: str, why: Exception | None) -> ConnectionFaulted:
        error = ConnectionFaulted(
            f"the connection to the {lost} was lost, and the one to the {other} was ended with it: {why}",
            hint="retry in a minute",
        )
        error.side = "primary" if lost == "primary" else "secondary"
        return error


@asynccontextmanager
async def open_connections(
    pair: Pair, get_token: GetToken | None, queue: str, sides: PairState
) -> AsyncIterator[WorkerConnections]:
    """Connect to both sides for one backlog queue, without receiving. Closes both at the end of the block.

    Raises Unavailable, AccessError; EntityMissing if the queue does not exist.
    """
    async with AsyncExitStack() as stack:
        connecting = stack.enter_async_context(connect(pair.secondary, get_token=get_token))
        source = await RawSource.open(await sides.secondary.connected(connecting), queue)
        primary = RawPrimary(pair.primary, get_token=get_token)
        stack.push_async_callback(primary.close)
        # Fails before any message is locked if the primary cannot be reached.
        await sides.primary.connected(primary.check())
        yield WorkerConnections(source, primary)
