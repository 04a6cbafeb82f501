"""Audit of a pair's backlog queues: their properties, how full they are, and the messages in them.

Read-only: an audit changes, creates and removes nothing, and raises no delivery count.
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
from sbpair.management.audit_findings import (
    FAIL_ON,
    Audit,
    AuditFinding,
    DestinationSummary,
    Unseen,
    audit_exit_code,
    foreign_item,
    own_items,
    utilisation,
    with_growth,
)
from sbpair.management.backlog_plan import desired_queues, plan_backlog
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

    A queue unused for longer than `idle_seconds` is idle. Up to `max_peek` messages of each non-empty queue are peeked,
    0 for none; a second sample `sample_seconds` later shows how fast these queues fill, 0 for none. Empty queues are
    not peeked, since a peek counts as use.

    With `group`, which contains the secondary, its queues are listed and counted through Azure Resource Manager.
    Needs the Manage claim on the secondary, or a role there.

    Raises every error that prevents listing: AccessError, Unavailable, and NameInvalid for a primary whose name makes
    no legal path. Everything else that could not be read is in `Audit.unseen`.
    """
    # The SDK takes half a second to load, and a bad name should not wait for it.
    desired_queues(pair)
    from sbpair.azure.control_plane import open_namespace
    from sbpair.management.backlog_scan import open_backlog_scan

    async with AsyncExitStack() as stack:
        queues = await stack.enter_async_context(open_namespace(pair.secondary, group))
        scan = await stack.enter_async_context(open_backlog_scan(pair, max_peek, sleep=sleep, on_event=on_event))
        auditor = _Auditor(pair, queues, scan if max_peek else None, on_event, now, clock, sleep)
        return await auditor.run(idle_seconds, sample_seconds)


@dataclass
class _Auditor:
    pair: Pair
    queues: NamespaceControl
    scan: BacklogScan | None
    on_event: OnEvent
    now: Callable[[], float]
    clock: Callable[[], float]
    sleep: Sleep

    async def run(self, idle_seconds: float | None, sample_seconds: float) -> Audit:
        primary = self.pair.primary.name
        # All queues, to find those of other primaries: the service lists no fewer either way.
        queues = await self._list("")
        started = self.clock()
        own = [state for state in queues if backlog.under_prefix(primary, state.spec.path)]
        self.on_event(Listed(self.pair.secondary.name, len(own)))
        tier = await self._tier(own)
        now = self.now()
        fills = {state.spec.path: utilisation(state, now, idle_seconds) for state in own}
        filled = {state.spec.path: fills[state.spec.path] for state in own if state.counts and not state.counts.empty}
        unseen: tuple[Unseen, ...] = ()
        if filled:
            scanned, (sizes, at, unseen) = await asyncio.gather(self._scan(filled, now), self._sample(sample_seconds))
            fills |= {path: with_growth(fill, sizes.get(path), at - started) for path, fill in scanned.items()}
        plan = plan_backlog(desired_queues(self.pair), own, tier)
        return Audit(
            (*own_items(plan, self.pair.backlog_queues, fills), *_foreign(primary, queues)),
            destinations=self.scan.destinations() if self.scan else (),
            unseen=(*unseen, *(self.scan.unseen() if self.scan else ())),
        )

    async def _scan(self, fills: dict[str, Utilisation], now: float) -> dict[str, Utilisation]:
        return await self.scan.scan_all(fills, now) if self.scan else fills

    async def _sample(self, seconds: float) -> tuple[dict[str, int | None], float, tuple[Unseen, ...]]:
        """Return the queues' sizes so many seconds later, by path, and the time of that. Never raises."""
        if not seconds:
            return {}, 0, ()
        await self.sleep(seconds)
        try:
            queues = await self._list(backlog.prefix(self.pair.primary.name))
        except SbpairError as error:
            return {}, 0, (Unseen(self.pair.secondary.name, f"how fast the queues fill: {error.message}"),)
        return {state.spec.path: state.usage.size_bytes for state in queues if state.usage}, self.clock(), ()

    async def _list(self, prefix: str) -> list[QueueState]:
        return await self._attempt("list the queues", partial(self.queues.list_under, prefix, counts=True))

    async def _tier(self, own: list[QueueState]) -> tiers.Tier:
        """Return the tier, which only matters to the sizes of partitioned queues."""
        if not any(state.partitioned for state in own):
            return tiers.STANDARD
        return tiers.tier_named(await self._attempt("read the namespace's tier", self.queues.tier))

    async def _attempt(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        return await attempt(what, action, sleep=self.sleep, on_event=self.on_event)


def _foreign(primary: str, queues: list[QueueState]) -> list[QueueItem]:
    found = ((backlog.primary_of(state.spec.path), state) for state in queues)
    return [foreign_item(name, state) for name, state in found if name and name.lower() != primary.lower()]
