"""Accepted messages that wait to be completed in the backlog together.

Destinations take turns in a backlog, and one disposition completes a contiguous range of deliveries. So accepted
messages wait a little for those between them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from sbpair.model.message_key import Key
    from sbpair.move.context import MoveContext
    from sbpair.move.held import HeldMessages
    from sbpair.move.interface import ReceivedMessage

MAX_SHARE = 0.8
"""Share of the held messages that are accepted, from which nothing waits any more."""


class SettlementBuffer:
    """Accepted messages among `held`. `settle` gets those to complete together."""

    def __init__(
        self,
        held: HeldMessages,
        tasks: asyncio.TaskGroup,
        settle: Callable[[list[ReceivedMessage]], Coroutine[object, object, None]],
        name: str,
        context: MoveContext,
    ) -> None:
        self._held = held
        self._tasks = tasks
        self._settle = settle
        self._name = name
        self._batch_limits = context.batch_limits
        self._max_seconds = context.timings.settle_seconds
        self._accepted: dict[Key, ReceivedMessage] = {}
        self._timer: asyncio.Task[None] | None = None
        self._flushing = self._deciding = False

    def add(self, keys: Sequence[Key], messages: Sequence[ReceivedMessage]) -> None:
        self._accepted.update(zip(keys, messages, strict=True))

    def settle_soon(self) -> None:
        """Settle the leading messages if they are many, or all of them if a wait gains nothing.

        Decides at the end of this turn of the loop: until then, more messages between them may be accepted.
        """
        limit = min(self._batch_limits.min_contiguous, self._max_unsettled)
        if not self._deciding and (self._flushing or len(self._accepted) >= limit):
            self._deciding = True
            self._tasks.create_task(self._settle_due(), name=self._name)
        if self._accepted and self._timer is None:
            self._timer = self._tasks.create_task(self._settle_late(), name=self._name)

    def flush(self) -> None:
        """Let nothing wait from now on."""
        self._flushing = True
        self.settle_soon()

    @property
    def _max_unsettled(self) -> float:
        return min(self._batch_limits.max_unsettled, MAX_SHARE * len(self._held))

    async def _settle_due(self) -> None:
        self._deciding = False
        leading = [] if self._flushing else self._held.leading(self._accepted)
        if len(leading) >= self._batch_limits.min_contiguous:
            for message in leading:
                del self._accepted[message.key]
            await self._settle(leading)
        elif self._flushing or len(self._accepted) >= self._max_unsettled:
            await self._settle_all()

    async def _settle_late(self) -> None:
        await asyncio.sleep(self._max_seconds)
        self._timer = None
        await self._settle_all()

    async def _settle_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._accepted:
            messages, self._accepted = list(self._accepted.values()), {}
            await self._settle(messages)
