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
from sbpair.azure import open_namespace
from sbpair.azure.retry import attempt
from sbpair.errors import SbpairError
from sbpair.management.audit_findings import Audit, Unseen, foreign_items, own_items, utilisation, with_growth
from sbpair.management.comparison import desired_queues, plan_backlog
from sbpair.model import tiers
from sbpair.model.queues import Listed, SecondSample

if TYPE_CHECKING:
    from sbpair.azure import NamespaceControl
    from sbpair.management.backlog_scan import BacklogScan
    from sbpair.management.calls import Sleep
    from sbpair.model.pair import Pair, ResourceGroup
    from sbpair.model.queues import ControlEvent, QueueState, Utilisation
    from sbpair.move.peek.peeker import Peeked

Result = TypeVar("Result")
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
    # The AMQP client takes a while to load, and a bad name should not wait for it.
    desired_queues(pair)
    from sbpair.management.backlog_scan import open_backlog_scan

    async with AsyncExitStack() as stack:
        queues = await stack.enter_async_context(open_namespace(pair.secondary, group))
        scan = await stack.enter_async_context(open_backlog_scan(pair, max_peek, sleep=sleep, on_event=on_event))
        auditor = _Auditor(pair, queues, scan, on_event, now, clock, sleep)
        return await auditor.run(idle_seconds, sample_seconds)


@dataclass
class _Auditor:
    pair: Pair
    queues: NamespaceControl
    scan: BacklogScan
    on_event: OnEvent
    now: Callable[[], float]
    clock: Callable[[], float]
    sleep: Sleep

    async def run(self, idle_seconds: float | None, sample_seconds: float) -> Audit:
        primary, tier = self.pair.primary.name, tiers.STANDARD
        # All queues, to find those of other primaries: the service lists no fewer either way.
        queues = await self._list("")
        started = self.clock()
        own = [state for state in queues if backlog.under_prefix(primary, state.spec.path)]
        self.on_event(Listed(self.pair.secondary.name, len(own)))
        if any(state.partitioned for state in own):
            # The tier only matters to the sizes of partitioned queues.
            tier = (await self._attempt("read the namespace's tier", self.queues.capacity)).tier
        now = self.now()
        fills = {state.spec.path: utilisation(state, now, idle_seconds) for state in own}
        filled = {state.spec.path: fills[state.spec.path] for state in own if state.counts and not state.counts.empty}
        unseen: tuple[Unseen, ...] = ()
        if filled:
            scans = self._scan(filled, now, started + sample_seconds)
            scanned, (sizes, at, unseen) = await asyncio.gather(scans, self._sample(sample_seconds))
            fills |= {path: with_growth(fill, sizes.get(path), at - started) for path, fill in scanned.items()}
        plan = plan_backlog(self.pair, own, tier)
        return Audit(
            (*own_items(plan, self.pair.backlog_queues, fills), *foreign_items(primary, queues)),
            destinations=self.scan.destinations(),
            unseen=(*unseen, *self.scan.unseen()),
            complete=self.scan.complete or not filled,
        )

    async def _scan(self, fills: dict[str, Utilisation], now: float, sampled_at: float) -> dict[str, Utilisation]:
        scanned = await self.scan.scan_all(fills, now)
        if (seconds := sampled_at - self.clock()) > 0:
            self.on_event(SecondSample(seconds))
        return scanned

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

    async def _attempt(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        return await attempt(what, action, sleep=self.sleep, on_event=self.on_event)
