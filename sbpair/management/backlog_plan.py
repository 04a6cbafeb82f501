"""What a pair should have in its secondary namespace, and how that differs from what is there.

Pure: a plan is data, made from two lists. Nothing here reads, creates or changes a queue.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from sbpair import backlog
from sbpair.errors import Unsafe, UsageError
from sbpair.model import tiers
from sbpair.model.durations import TICKS_PER_SECOND, TIMESPAN_MAX_DAYS, ticks
from sbpair.model.entities import DURATIONS, PROPERTY_NAMES
from sbpair.model.queues import (
    Change,
    Create,
    Difference,
    Drift,
    QueueFinding,
    QueueSpec,
    QueueState,
    Unchanged,
    Unexpected,
)
from sbpair.model.tiers import STANDARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sbpair.model.pair import Pair
    from sbpair.model.tiers import Tier

# A Standard namespace holds 10 000 entities, a Premium one 1 000 a messaging unit: more is a slip.
MAX_CREATES = 1_000

# Python 3.11 has no type parameters on functions yet.
Kind = TypeVar("Kind", Create, Unchanged, Drift, Unexpected)


@dataclass(frozen=True, slots=True)
class BacklogPlan:
    """What to create, and what was found: each part sorted by index, those without one last, by path."""

    creates: tuple[Create, ...] = ()
    matches: tuple[Unchanged, ...] = ()
    drifted: tuple[Drift, ...] = ()
    extra: tuple[Unexpected, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to create and nothing to report."""
        return not (self.creates or self.drifted or self.extra)


def desired(pair: Pair) -> list[QueueSpec]:
    """The backlog queues that the secondary should have. Raises NameInvalid where no legal path comes out."""
    return [backlog.queue_spec(pair.primary.name, index) for index in range(pair.backlog_queues)]


def diff(wanted: Sequence[QueueSpec], actual: Iterable[QueueState], tier: Tier = STANDARD) -> BacklogPlan:
    """Compare `wanted`, all of one primary, with what is there. Queues outside the prefix are none of ours.

    Paths are compared without regard to case, as the service does; sizes as the namespace's `tier` has them.
    """
    primary = _primary(wanted)
    there = {state.spec.path.lower(): state for state in actual if backlog.under_prefix(primary, state.spec.path)}
    creates, matches, drifted = [], [], []
    for spec in wanted:
        index = backlog.index_of(primary, spec.path) or 0
        state = there.pop(spec.path.lower(), None)
        if state is None:
            creates.append(Create(spec, index))
        elif differences := compare(spec, state, tier):
            drifted.append(Drift(state, index, differences))
        else:
            matches.append(Unchanged(state, index))
    extra = [Unexpected(state, backlog.index_of(primary, state.spec.path)) for state in there.values()]
    return BacklogPlan(_sorted(creates), _sorted(matches), _sorted(drifted), _sorted(extra))


def compare(spec: QueueSpec, state: QueueState, tier: Tier) -> tuple[Difference, ...]:
    """Every property in which `state` differs from `spec`. Whether it is partitioned is not one of them.

    Partitioning is chosen at creation and never changed, and a backlog queue works either way.
    """
    actual = normalised(state, tier)
    return tuple(
        Difference(PROPERTY_NAMES[name], getattr(spec, name), getattr(actual, name))
        for name in (field.name for field in fields(QueueSpec) if field.name != "path")
        if not _same(name, getattr(spec, name), getattr(actual, name))
    )


def normalised(state: QueueState, tier: Tier) -> QueueSpec:
    """The description as it was asked for: a partitioned queue reads back 16 times its size, but in Premium."""
    size = tiers.chosen_megabytes(tier, state.spec.max_size_in_megabytes, partitioned=state.partitioned)
    return replace(state.spec, max_size_in_megabytes=size)


def same_duration(one: str, other: str) -> bool:
    """Whether two durations mean the same: `PT60S` is `PT1M`, and from 10 675 199 days on all is for ever."""
    try:
        return _canonical_ticks(one) == _canonical_ticks(other)
    except UsageError:
        return one == other


def finding(change: Change) -> QueueFinding:
    """What a report says of one change, beside its name."""
    if isinstance(change, Create):
        return QueueFinding(change.index)
    return QueueFinding(
        change.index,
        counts=change.state.counts,
        differences=change.differences if isinstance(change, Drift) else (),
        partitioned=change.state.partitioned,
    )


def told(differences: Iterable[Difference]) -> str:
    """The differences in one line, for people."""
    return ", ".join(
        f"{each.property} is {_said(each.actual)} and should be {_said(each.expected)}" for each in differences
    )


def _said(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "empty"


def why_extra(extra: Unexpected, count: int) -> str:
    """What makes a queue one that nobody asked for, in one line."""
    if extra.index is None:
        return "under the prefix, and no index: no client ever uses it"
    return f"beyond the {count} that were asked for"


def check_removable(primary: str, count: int, path: str) -> None:
    """Refuse to remove what is not one of `primary`'s extra queues: outside its prefix, or with an index in use."""
    index = backlog.index_of(primary, path)
    if not backlog.under_prefix(primary, path):
        raise Unsafe(f"{path} is no backlog queue of {primary}", hint="only queues under its prefix are removed")
    if index is not None and index < count:
        raise Unsafe(f"{path} is one of the {count} that were asked for", hint="only extra queues are removed")


def guard(plan: BacklogPlan, *, limit: int = MAX_CREATES) -> None:
    """Refuse a plan that is more likely a mistake than a wish."""
    if len(plan.creates) > limit:
        raise Unsafe(
            f"{len(plan.creates)} queues would be created, and {limit} is the most at once",
            hint="check the number of backlog queues: the original used 10",
        )
    paths = [create.path.lower() for create in plan.creates]
    if len(set(paths)) != len(paths):
        raise Unsafe("the plan would create one queue twice", hint="give each backlog queue its own index")
    for create in plan.creates:
        backlog.check_path(create.path)


def _primary(wanted: Sequence[QueueSpec]) -> str:
    primaries = {(backlog.primary_of(spec.path) or "").lower() for spec in wanted}
    if len(primaries) != 1 or "" in primaries:
        raise ValueError("a plan is made for the backlog queues of exactly one primary")
    return primaries.pop()


def _same(name: str, expected: str | int | bool, actual: str | int | bool) -> bool:
    if name in DURATIONS:
        return same_duration(str(expected), str(actual))
    return expected == actual


def _canonical_ticks(duration: str) -> int:
    return min(ticks(duration), TIMESPAN_MAX_DAYS * 86_400 * TICKS_PER_SECOND)


def _sorted(changes: Iterable[Kind]) -> tuple[Kind, ...]:
    return tuple(sorted(changes, key=lambda change: (change.index is None, change.index or 0, change.path.lower())))
