"""A pair's backlog queues: the desired ones, their plan, and which unexpected ones may be removed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.errors import Unsafe
from sbpair.management.comparison import Change, ChangeKind, Plan, compare_backlog_queue
from sbpair.model.queues import QueueFinding, QueueSpec, QueueState
from sbpair.model.tiers import STANDARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbpair.model.pair import Pair
    from sbpair.model.tiers import Tier


def desired_queues(pair: Pair) -> list[QueueSpec]:
    """Return the backlog queues that the secondary should have. Raises NameInvalid where no legal path results."""
    return [backlog.queue_spec(pair.primary.name, index) for index in range(pair.backlog_queues)]


def plan_backlog(desired: Sequence[QueueSpec], actual: Iterable[QueueState], tier: Tier = STANDARD) -> Plan:
    """Compare the backlog queues of one primary with those of a namespace. Queues outside the prefix are ignored.

    Paths are compared without regard to case, as the service does; sizes as the namespace's `tier` reports them.
    """
    primary = _primary(desired)
    existing = {state.spec.path.lower(): state for state in actual if backlog.under_prefix(primary, state.spec.path)}
    changes = [
        compare_backlog_queue(
            spec, backlog.index_of(primary, spec.path) or 0, existing.pop(spec.path.lower(), None), tier
        )
        for spec in desired
    ]
    unexpected = [
        Change(ChangeKind.UNEXPECTED, state.spec, backlog.index_of(primary, state.spec.path), state)
        for state in existing.values()
    ]
    return Plan((*sorted(changes, key=_order), *sorted(unexpected, key=_order)))


def queue_finding(change: Change) -> QueueFinding:
    """Return the report's detail of one change."""
    if change.state is None:
        return QueueFinding(change.index)
    return QueueFinding(change.index, change.state.counts, change.differences, change.state.partitioned)


def why_unexpected(index: int | None, count: int) -> str:
    """Explain in one line why a queue is unexpected."""
    if index is None:
        return "under the prefix, and no index: no client ever uses it"
    return f"beyond the {count} that were asked for"


def check_removable(primary: str, count: int, path: str) -> None:
    """Raise Unsafe unless `path` is an unexpected queue of `primary`: under its prefix, and without an index in use."""
    index = backlog.index_of(primary, path)
    if not backlog.under_prefix(primary, path):
        raise Unsafe(f"{path} is not a backlog queue of {primary}", hint="only queues under its prefix are removed")
    if index is not None and index < count:
        raise Unsafe(f"{path} is one of the {count} that were asked for", hint="only extra queues are removed")


def _primary(desired: Sequence[QueueSpec]) -> str:
    primaries = {(backlog.primary_of(spec.path) or "").lower() for spec in desired}
    if len(primaries) != 1 or "" in primaries:
        raise ValueError("a plan is made for the backlog queues of exactly one primary")
    return primaries.pop()


def _order(change: Change) -> tuple[bool, int, str]:
    return change.index is None, change.index or 0, change.path.lower()
