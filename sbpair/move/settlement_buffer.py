"""What the primary has accepted, until the backlog is told.

Destinations take turns in a backlog, and deliveries that came one behind the other are settled in a single word: so
what is accepted waits a little for those between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from sbpair.model.message_key import Key
    from sbpair.move.batch_limits import BatchLimits
    from sbpair.move.held import HeldMessages
    from sbpair.move.interface import ReceivedMessage

SETTLE_SECONDS = 0.5
"""How long an accepted message waits for those in front of it."""

MAX_OVERALL = 0.8
"""At which share of all in hand nothing waits any more, however few they are."""


class SettlementBuffer:
    """Accepted messages of `hands`; `settle` is given what has come together."""

    def __init__(
        self,
        hands: HeldMessages,
        tasks: asyncio.TaskGroup,
        settle: Callable[[list[ReceivedMessage]], Coroutine[object, object, None]],
        name: str,
        batch_limits: BatchLimits,
    ) -> None:
        self._hands = hands
        self._tasks = tasks
        self._settle = settle
        self._name = name
        self._batch_limits = batch_limits
        self._accepted: dict[Key, ReceivedMessage] = {}
        self._late: asyncio.Task[None] | None = None
        self._hurried = self._deciding = False

    def add(self, keys: Sequence[Key], arrivals: Sequence[ReceivedMessage]) -> None:
        """Deliveries, and the keys that they have."""
        self._accepted.update(zip(keys, arrivals, strict=True))

    def settle_soon(self) -> None:
        """Settle what came first, as far as it is accepted and many; everything where a wait is worth nothing.

        When this turn of the loop is over: what else is accepted in it stands between.
        """
        if not self._deciding and (
            self._hurried or len(self._accepted) >= min(self._batch_limits.min_contiguous, self._all_at)
        ):
            self._deciding = True
            self._tasks.create_task(self._settle_due(), name=self._name)
        if self._accepted and self._late is None:
            self._late = self._tasks.create_task(self._settle_late(), name=self._name)

    def hurry(self) -> None:
        """Let nothing wait any more, neither what is here nor what is still to come."""
        self._hurried = True
        self.settle_soon()

    @property
    def _all_at(self) -> float:
        return min(self._batch_limits.max_unsettled, MAX_OVERALL * len(self._hands))

    async def _settle_due(self) -> None:
        self._deciding = False
        whole = [] if self._hurried else self._hands.first_among(self._accepted)
        if len(whole) >= self._batch_limits.min_contiguous:
            for arrival in whole:
                del self._accepted[arrival.key]
            await self._settle(whole)
        elif self._hurried or len(self._accepted) >= self._all_at:
            await self._settle_all()

    async def _settle_late(self) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        self._late = None
        await self._settle_all()

    async def _settle_all(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._accepted:
            arrivals, self._accepted = list(self._accepted.values()), {}
            await self._settle(arrivals)
