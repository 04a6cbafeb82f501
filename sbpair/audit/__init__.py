"""What a pair's backlog queues are like, against what they should be, how full they are, and what lies in them.

Reads only: an audit never changes, creates or removes anything, and raises no delivery count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sbpair import backlog, tiers, topology
from sbpair.audit.findings import (
    FAIL_ON,
    Audit,
    Destination,
    Finding,
    Unseen,
    exit_code_of,
    fill_of,
    foreign_item,
    grown,
    own_items,
)
from sbpair.bus.attempts import attempt
from sbpair.errors import SbpairError
from sbpair.model import ControlEvent, Listed

if TYPE_CHECKING:
    from sbpair.audit.findings import QueueItem
    from sbpair.audit.look import BacklogLook
    from sbpair.bus.control import NamespaceControl
    from sbpair.model import Fill, Pair, QueueState, ResourceGroup
    from sbpair.move.look import Looked

__all__ = ["FAIL_ON", "PEEK_MOST", "Audit", "Destination", "Finding", "Unseen", "exit_code_of", "run"]

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[object]]
OnEvent = Callable[["ControlEvent | Looked"], object]

PEEK_MOST = 1_000
SAMPLE_SECONDS = 5.0


async def run(
    pair: Pair,
    *,
    group: ResourceGroup | None = None,
    idle_seconds: float | None = None,
    peek_most: int = PEEK_MOST,
    sample_seconds: float = SAMPLE_SECONDS,
    on_event: OnEvent = lambda _event: None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> Audit:
    """Audit `pair`'s secondary namespace.

    Queues that nobody has used for longer than `idle_seconds` are idle. Of each queue that is not empty, `peek_most`
    messages are looked at, 0 for none; and where there is such a queue, a second sample `sample_seconds` later says how
    fast they fill, 0 for none. An empty queue is not looked into, since that would count as use of it.

    With `group`, which the secondary is in, its queues are listed and counted through Azure Resource Manager. Needs the
    Manage claim on the secondary, or a role there, and raises what keeps it from listing: AccessError, Unavailable, and
    NameInvalid for a primary that makes no legal path. What else it may not see, or nobody answers, is `Audit.unseen`.
    """
    # The SDK takes half a second to load, and a bad name should not wait for it.
    topology.desired(pair)
    from sbpair.audit.look import open_look
    from sbpair.bus.management import open_namespace

    async with AsyncExitStack() as stack:
        queues = await stack.enter_async_context(open_namespace(pair.secondary, group))
        look = await stack.enter_async_context(open_look(pair, peek_most, sleep=sleep, on_event=on_event))
        auditor = _Auditor(pair, queues, look if peek_most else None, on_event, now, clock, sleep)
        return await auditor.run(idle_seconds, sample_seconds)


@dataclass
class _Auditor:
    pair: Pair
    queues: NamespaceControl
    look: BacklogLook | None
    on_event: OnEvent
    now: Callable[[], float]
    clock: Callable[[], float]
    sleep: Sleep

    async def run(self, idle_seconds: float | None, sample_seconds: float) -> Audit:
        primary = self.pair.primary.name
        # Of all queues, for those of other primaries: the service lists no fewer either way.
        there = await self._list("")
        started = self.clock()
        own = [state for state in there if backlog.under_prefix(primary, state.spec.path)]
        self.on_event(Listed(self.pair.secondary.name, len(own)))
        tier = await self._tier(own)
        now = self.now()
        fills = {state.spec.path: fill_of(state, now, idle_seconds) for state in own}
        filled = {state.spec.path: fills[state.spec.path] for state in own if state.counts and not state.counts.empty}
        unseen: tuple[Unseen, ...] = ()
        if filled:
            seen, (later, at, unseen) = await asyncio.gather(self._look(filled, now), self._sample(sample_seconds))
            fills |= {path: grown(fill, later.get(path), at - started) for path, fill in seen.items()}
        plan = topology.diff(topology.desired(self.pair), own, tier)
        return Audit(
            (*own_items(plan, self.pair.backlog_queues, fills), *_foreign(primary, there)),
            destinations=self.look.destinations() if self.look else (),
            unseen=(*unseen, *(self.look.unseen() if self.look else ())),
        )

    async def _look(self, fills: dict[str, Fill], now: float) -> dict[str, Fill]:
        return await self.look.at_all(fills, now) if self.look else fills

    async def _sample(self, seconds: float) -> tuple[dict[str, int | None], float, tuple[Unseen, ...]]:
        """The sizes of the queues a little later, by path, and when that was. Never raises."""
        if not seconds:
            return {}, 0, ()
        await self.sleep(seconds)
        try:
            there = await self._list(backlog.prefix(self.pair.primary.name))
        except SbpairError as error:
            return {}, 0, (Unseen(self.pair.secondary.name, f"how fast the queues fill: {error.message}"),)
        return {state.spec.path: state.usage.size_bytes for state in there if state.usage}, self.clock(), ()

    async def _list(self, prefix: str) -> list[QueueState]:
        return await self._attempt("list the queues", partial(self.queues.list_under, prefix, counts=True))

    async def _tier(self, own: list[QueueState]) -> tiers.Tier:
        """What the sizes that were read mean; only of partitioned queues is that a question."""
        if not any(state.partitioned for state in own):
            return tiers.STANDARD
        return tiers.named(await self._attempt("read the namespace's tier", self.queues.tier))

    async def _attempt(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        return await attempt(what, action, sleep=self.sleep, on_event=self.on_event)


def _foreign(primary: str, there: list[QueueState]) -> list[QueueItem]:
    """The backlog queues of other primaries."""
    found = ((backlog.primary_of(state.spec.path), state) for state in there)
    return [foreign_item(name, state) for name, state in found if name and name.lower() != primary.lower()]
