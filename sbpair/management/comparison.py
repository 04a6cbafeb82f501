"""Desired entities compared with those of a namespace: missing, existing, drifted or extra; the order to create them.

Pure: a plan is data, and nothing here reads, creates or changes an entity. A backlog queue is an entity with an index.
Provision, audit, prune, partition and status all decide by these plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from sbpair import backlog
from sbpair.errors import Unsafe, UsageError
from sbpair.model import tiers
from sbpair.model.entities import DEFAULT_RULE, NO_MESSAGE, Described, Rule, SqlFilter, Subscription
from sbpair.model.entity_properties import PROPERTIES_OF, TARGETS, EntityProperty, names_of
from sbpair.model.pair import Pair
from sbpair.model.queues import Difference, QueueSpec, QueueState
from sbpair.model.report import Outcome
from sbpair.model.tiers import Tier
from sbpair.timespan import TICKS_PER_SECOND, TIMESPAN_MAX_DAYS, ticks

# A Standard namespace holds 10 000 entities, a Premium one 1 000 a messaging unit: more is a slip.
MAX_CREATES = 1_000

RULES = "Rules"

Key = tuple[str, ...]
"""The names of an entity after those above it, in lower case: the service compares without regard to case."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entity of a plan. `kind` is MISSING, EXISTING, DRIFTED or EXTRA; only MISSING leads to an action.

    `index` is a backlog queue's, None for all others. `state` is a backlog queue as it was read, None where it is
    missing.
    """

    kind: Outcome
    entity: Described
    index: int | None = None
    state: QueueState | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def path(self) -> str:
        """The path in the service's own case, where the entity was read."""
        return self.state.spec.path if self.state else self.entity.path


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes in order: each entity after those it needs, backlog queues by index, extra ones last.

    `default_rules` are the service's own rules to delete, once the desired rules of their subscriptions are created: of
    new ones, and of those that an earlier run left with a rule that selects no message.
    """

    changes: tuple[Change, ...] = ()
    default_rules: tuple[Rule, ...] = ()

    def of(self, kind: Outcome) -> tuple[Change, ...]:
        """Return the changes of one kind, in order."""
        return tuple(change for change in self.changes if change.kind is kind)

    @property
    def creates(self) -> tuple[Change, ...]:
        return self.of(Outcome.MISSING)


def entity_key(entity: Described) -> Key:
    """Return the key to find an entity by. Queues and topics share their names."""
    return tuple(map(str.lower, names_of(entity)))


def parent_key(entity: Described) -> Key:
    """Return the key of a subscription's topic, or of a rule's subscription; () for a queue or topic."""
    return entity_key(entity)[:-1]


def compare(
    entity: Described,
    actual: Described | None,
    *,
    index: int | None = None,
    state: QueueState | None = None,
    more: tuple[Difference, ...] = (),
) -> Change:
    """Compare one desired entity with the existing one, None where it is missing. `more` are further differences."""
    if actual is None:
        return Change(Outcome.MISSING, entity, index)
    found = (*differences(entity, actual), *more)
    return Change(Outcome.DRIFTED if found else Outcome.EXISTING, entity, index, state, found)


def compare_backlog_queue(spec: QueueSpec, index: int, state: QueueState | None, tier: Tier) -> Change:
    """Compare a backlog queue. Partitioning is chosen at creation, and the queue works either way: no difference."""
    if state is None:
        return compare(spec, None, index=index)
    # Outside Premium, a partitioned queue reads back 16 times its chosen size.
    size = tiers.chosen_megabytes(tier, state.spec.max_size_in_megabytes, partitioned=state.partitioned)
    return compare(spec, replace(state.spec, max_size_in_megabytes=size), index=index, state=state)


def differences(desired: Described, actual: Described, only: Collection[str] | None = None) -> tuple[Difference, ...]:
    """Return each property of `desired` that `actual` does not match; with `only`, of those fields alone."""
    return tuple(
        Difference(row.title, _value(expected), _value(found), row.alters(expected, found))
        for row in PROPERTIES_OF[type(desired)]
        for expected, found in [(getattr(desired, row.name), getattr(actual, row.name))]
        if (only is None or row.name in only) and row.matters(desired) and not _matches(row, expected, found)
    )


def describe_differences(found: Iterable[Difference]) -> str:
    """Format differences as one line."""
    return ", ".join(f"{each.property} is {_text(each.actual)} and should be {_text(each.expected)}" for each in found)


def desired_queues(pair: Pair) -> list[QueueSpec]:
    """Return the backlog queues that the secondary should have. Raises NameInvalid where no legal path results."""
    return [backlog.queue_spec(pair.primary.name, index) for index in range(pair.backlog_queues)]


def plan_backlog(pair: Pair, actual: Iterable[QueueState], tier: Tier = tiers.STANDARD) -> Plan:
    """Compare the backlog queues of a pair with those of a namespace. Queues outside the prefix are ignored.

    Paths are compared without regard to case, as the service does; sizes as the namespace's `tier` reports them.
    """
    primary = pair.primary.name
    existing = {state.spec.path.lower(): state for state in actual if backlog.under_prefix(primary, state.spec.path)}
    changes = [
        compare_backlog_queue(spec, index, existing.pop(spec.path.lower(), None), tier)
        for index, spec in enumerate(desired_queues(pair))
    ]
    extra = [
        Change(Outcome.EXTRA, state.spec, backlog.index_of(primary, state.spec.path), state)
        for state in existing.values()
    ]
    return Plan((*changes, *sorted(extra, key=_order)))


def plan_entities(
    desired: Sequence[Described],
    actual: Mapping[Key, Described],
    taken: Collection[Key] = (),
    *,
    whole: bool = False,
) -> Plan:
    """Compare desired entities with existing ones; leave out those whose name is `taken` by another kind.

    With `whole`, a subscription without desired rules should have none, else any. Raises UsageError as
    `dependency_order` does.
    """
    declared, present = _rule_names(desired), _rule_names(actual.values())
    changes, default_rules = [], []
    closed = {entity_key(each) for each in actual.values() if isinstance(each, Rule) and _selects_none(each)}
    for entity in (each for each in dependency_order(desired) if entity_key(each) not in taken):
        key = entity_key(entity)
        names = declared[key]
        known = {name.lower() for name in names}
        more: tuple[Difference, ...] = ()
        unexpected = [each for each in present[key] if each.lower() not in known and (*key, each.lower()) not in closed]
        if unexpected and (known or whole):
            more = (Difference(RULES, ", ".join(sorted(names)), ", ".join(sorted([*names, *unexpected])), True),)
        change = compare(entity, actual.get(key), more=more)
        changes.append(change)
        is_due = change.kind is Outcome.MISSING or (*key, DEFAULT_RULE.lower()) in closed
        if is_due and isinstance(entity, Subscription) and (names or whole) and DEFAULT_RULE.lower() not in known:
            default_rules.append(Rule(entity.topic, entity.name, DEFAULT_RULE))
    return Plan(tuple(changes), tuple(default_rules))


def _selects_none(rule: Rule) -> bool:
    return rule.name == DEFAULT_RULE and rule.filter == SqlFilter(NO_MESSAGE) and not rule.action


def needs(entity: Described) -> set[Key]:
    """Return the keys of the entities that must exist before `entity` is created."""
    targets = (getattr(entity, name, "") for name in TARGETS)
    return {key for key in (parent_key(entity), *map(_target_key, targets)) if any(key)}


def dependency_order(desired: Sequence[Described]) -> list[Described]:
    """Sort entities so that each comes after those it needs.

    Raises UsageError for a circle, for a name used twice, and for a missing topic or subscription.
    """
    by_key: dict[Key, Described] = {}
    for entity in desired:
        other = by_key.setdefault(entity_key(entity), entity)
        if other is not entity:
            raise UsageError(
                f"{entity.kind} {entity.path} and {other.kind} {other.path} are one and the same name",
                hint="the service compares names without regard to case, and a queue's with a topic's",
            )
    for entity in desired:
        if isinstance(entity, (Subscription, Rule)) and parent_key(entity) not in by_key:
            of = f"subscription {entity.subscription} of" if isinstance(entity, Rule) else "topic"
            raise UsageError(
                f"{entity.kind} {entity.path} needs the {of} {entity.topic}, which is not described",
                hint="describe it too: an existing one is only compared",
            )
    sorter = TopologicalSorter({key: sorted(needs(entity) & by_key.keys()) for key, entity in by_key.items()})
    try:
        return [by_key[key] for key in sorter.static_order()]
    except CycleError as error:
        circle = " -> ".join(by_key[key].path for key in error.args[1])
        raise UsageError(
            f"entities forward to each other in a circle: {circle}", hint="remove one of these forwards"
        ) from None


def external_targets(desired: Sequence[Described]) -> dict[Key, str]:
    """Return the forwarding targets that are not among `desired`, by key: they must exist already."""
    known = {entity_key(entity) for entity in desired}
    targets = (getattr(entity, name, "") for entity in desired for name in TARGETS)
    return {_target_key(target): target for target in targets if target and _target_key(target) not in known}


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


def _matches(row: EntityProperty, expected: Any, found: Any) -> bool:
    if row.is_duration:
        return _same_duration(expected, found)
    return bool(expected is None or (expected.lower() == found.lower() if row.is_target else expected == found))


def _same_duration(one: str, other: str) -> bool:
    """Return whether two durations are equal: `PT60S` is `PT1M`, and 10 675 199 days or more is for ever."""
    forever = TIMESPAN_MAX_DAYS * 86_400 * TICKS_PER_SECOND
    try:
        return min(ticks(one), forever) == min(ticks(other), forever)
    except UsageError:
        return one == other


def _value(value: object) -> str | int | bool:
    return value if isinstance(value, (str, int)) else str(value)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "empty"


def _order(change: Change) -> tuple[bool, int, str]:
    return change.index is None, change.index or 0, change.path.lower()


def _target_key(path: str) -> Key:
    return (path.lower(),)


def _rule_names(entities: Iterable[Described]) -> defaultdict[Key, list[str]]:
    """Return the names of the rules of each subscription."""
    found = defaultdict[Key, list[str]](list)
    for rule in entities:
        if isinstance(rule, Rule):
            found[parent_key(rule)].append(rule.name)
    return found
