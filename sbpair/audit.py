"""What a pair's backlog queues are like, against what they should be, and how full they are.

Reads only: an audit never changes, creates or removes anything.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sbpair import backlog, topology
from sbpair.bus.attempts import attempt
from sbpair.model import Change, ControlEvent, Extra, Listed, Pair, QueueFinding
from sbpair.report import Item, Outcome, Report, exit_code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sbpair.bus.control import QueueControl

    Sleep = Callable[[float], Awaitable[object]]
    OnEvent = Callable[[ControlEvent], object]

FINDINGS = frozenset({Outcome.MISSING, Outcome.EXTRA, Outcome.DRIFTED})

QueueItem = Item[QueueFinding]
QueueReport = Report[QueueFinding]


async def run(
    pair: Pair,
    *,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> QueueReport:
    """Audit `pair`'s secondary namespace: one Item a queue, by index, extra ones last.

    Raises what keeps it from reading: AccessError where the Manage claim is missing, Unavailable, and NameInvalid
    for a primary that makes no legal path.
    """
    # The SDK takes half a second to load, and a bad name should not wait for it.
    topology.desired(pair)
    from sbpair.bus.atom import open_queues

    async with open_queues(pair.secondary) as queues:
        return await read(queues, pair, on_event=on_event, sleep=sleep)


async def read(queues: QueueControl, pair: Pair, *, on_event: OnEvent, sleep: Sleep) -> QueueReport:
    """`run`, on anything that answers as a namespace does."""
    prefix = backlog.prefix(pair.primary.name)
    there = await attempt(
        "list the queues",
        lambda: queues.list_under(prefix, counts=True),
        sleep=sleep,
        on_event=on_event,
    )
    on_event(Listed(pair.secondary.name, len(there)))
    return report_of(topology.diff(topology.desired(pair), there), pair.backlog_queues)


def report_of(plan: topology.Plan, count: int) -> QueueReport:
    """A plan as findings: what provisioning would create is missing here."""
    missing = [_item(each, Outcome.MISSING, "not there: sbpair provision makes it") for each in plan.creates]
    drifted = [_item(each, Outcome.DRIFTED, topology.told(each.differences)) for each in plan.drifted]
    right = [_item(each, Outcome.OK) for each in plan.matches]
    extra = [_item(each, Outcome.EXTRA, _why_extra(each, count)) for each in plan.extra]
    return Report((*sorted([*missing, *drifted, *right], key=_index), *extra))


def exit_code_of(report: QueueReport) -> int:
    """3 with any finding, else 0."""
    return exit_code(report, FINDINGS)


def _why_extra(extra: Extra, count: int) -> str:
    if extra.index is None:
        return "under the prefix, and no index: no client ever uses it"
    return f"beyond the {count} that were asked for: no client of this pair uses it"


def _item(change: Change, outcome: Outcome, reason: str = "") -> QueueItem:
    return Item(change.path, outcome, reason, topology.finding(change))


def _index(item: QueueItem) -> int:
    return item.detail.index if item.detail and item.detail.index is not None else 0
