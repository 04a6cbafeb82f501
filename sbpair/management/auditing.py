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

from sbpair import backlog
from sbpair.azure.retry import attempt
from sbpair.errors import SbpairError
from sbpair.management import backlog_plan
from sbpair.management.audit_findings import (
    FAIL_ON,
    Audit,
    AuditFinding,
    DestinationSummary,
    Unseen,
    audit_exit_code,
    fill_of,
    foreign_item,
    grown,
    own_items,
)
from sbpair.model import tiers
from sbpair.model.queues import ControlEvent, Listed

if TYPE_CHECKING:
    from sbpair.azure.interfaces import NamespaceControl
    from sbpair.management.audit_findings import QueueItem
    from sbpair.management.backlog_scan import BacklogScan
    from sbpair.model.pair import Pair, ResourceGroup
    from sbpair.model.queues import QueueState, Utilisation
    from sbpair.move.peek.peeker import Peeked

__all__ = ["FAIL_ON", "MAX_PEEK", "Audit", "AuditFinding", "DestinationSummary", "Unseen", "audit", "audit_exit_code"]

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[object]]
OnEvent = Callable[["ControlEvent | Peeked"], object]

MAX_PEEK = 1_000
SAMPLE_SECONDS = 5.0


async def audit(
    pair: Pair,
    *,
    group: ResourceGroup | None = None,
    idle_seconds: float | None = None,
    max_peek: int = MAX_PEEK,
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
    backlog_plan.desired(pair)
    from sbpair.azure.control_plane import open_namespace
    from sbpair.management.backlog_scan import open_look

    async with AsyncExitStack() as stack:
        queues = await stack.enter_async_context(open_namespace(pair.secondary, group))
        look = await stack.enter_async_context(open_look(pair, max_peek, sleep=sleep, on_event=on_event))
        auditor = _Auditor(pair, queues, look if max_peek else None, on_event, now, clock, sleep)
        return await auditor.run(idle_seconds, sample_seconds)


@dataclass
class _Auditor:
    pair: Pair
    queues: NamespaceControl
    look: BacklogScan | None
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
        plan = backlog_plan.diff(backlog_plan.desired(self.pair), own, tier)
        return Audit(
            (*own_items(plan, self.pair.backlog_queues, fills), *_foreign(primary, there)),
            destinations=self.look.destinations() if self.look else (),
            unseen=(*unseen, *(self.look.unseen() if self.look else ())),
        )

    async def _look(self, fills: dict[str, Utilisation], now: float) -> dict[str, Utilisation]:
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
