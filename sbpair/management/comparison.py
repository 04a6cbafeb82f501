"""Desired entities compared with those of a namespace: missing, existing, drifted or extra; the order to create them.

Pure: a plan is data, and nothing here reads, creates or changes an entity. A backlog queue is an entity with an index.
Provision, audit, prune, partition and status all decide by these plans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from graphlib import CycleError, TopologicalSorter

from sbpair import backlog
from sbpair.errors import Unsafe, UsageError
from sbpair.model import tiers
from sbpair.model.entities import DEFAULT_RULE, DURATIONS, NAMES, Described, Rule, Subscription, Topic, property_name
from sbpair.model.pair import Pair
from sbpair.model.queues import Difference, QueueSpec, QueueState
from sbpair.model.report import Outcome
from sbpair.model.tiers import Tier
from sbpair.timespan import TICKS_PER_SECOND, TIMESPAN_MAX_DAYS, ticks

# A Standard namespace holds 10 000 entities, a Premium one 1 000 a messaging unit: more is a slip.
MAX_CREATES = 1_000

FORWARDS = ("forward_to", "forward_dead_lettered_messages_to")
RULES = "Rules"

Key = tuple[str, str]
"""The kind of names that an entity shares, and its path: the service compares without regard to case."""


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

    `default_rules` are the service's own rules to delete from new subscriptions. They accept every message, so each is
    deleted once the desired rules exist: a message too many for a moment, none too few.
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
    if isinstance(entity, (Subscription, Rule)):
        return entity.kind, entity.path.lower()
    return path_key(entity.path)


def path_key(path: str) -> Key:
    """Return the key of the queue or topic of that name."""
    return "path", path.lower()


def compare(
    entity: Described,
    actual: Described | None,
    *,
    index: int | None = None,
    state: QueueState | None = None,
    more: tuple[Difference, ...] = (),
    only: Collection[str] | None = None,
) -> Change:
    """Compare one desired entity with the existing one, None where it is missing. `more` are further differences.

    With `only`, just these fields are compared.
    """
    if actual is None:
        return Change(Outcome.MISSING, entity, index)
    found = (*differences(entity, actual, only), *more)
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
    names = [each.name for each in fields(desired) if each.name not in NAMES and (only is None or each.name in only)]
    return tuple(
        Difference(property_name(name), _value(getattr(desired, name)), _value(getattr(actual, name)))
        for name in names
        if not _matches(name, desired, actual)
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
    rules: Mapping[Key, Sequence[Rule]],
    taken: Collection[Key] = (),
) -> Plan:
    """Compare desired entities with existing ones; leave out those whose name is `taken` by another kind.

    `rules` are those of each existing subscription. Raises UsageError as `dependency_order` does.
    """
    declared: dict[Key, list[str]] = {}
    for rule in desired:
        if isinstance(rule, Rule):
            declared.setdefault(_parent(rule), []).append(rule.name)
    changes, default_rules = [], []
    for entity in (each for each in dependency_order(desired) if entity_key(each) not in taken):
        key = entity_key(entity)
        names = declared.get(key, [])
        known = {name.lower() for name in names}
        more: tuple[Difference, ...] = ()
        if unexpected := [rule.name for rule in rules.get(key, ()) if known and rule.name.lower() not in known]:
            more = (Difference(RULES, ", ".join(sorted(names)), ", ".join(sorted([*names, *unexpected]))),)
        change = compare(entity, actual.get(key), more=more)
        changes.append(change)
        created = change.kind is Outcome.MISSING
        if created and isinstance(entity, Subscription) and names and DEFAULT_RULE.lower() not in known:
            default_rules.append(Rule(entity.topic, entity.name, DEFAULT_RULE))
    return Plan(tuple(changes), tuple(default_rules))


def needs(entity: Described) -> set[Key]:
    """Return the keys of the entities that must exist before `entity` is created."""
    found = {path_key(target) for name in FORWARDS if (target := getattr(entity, name, ""))}
    return found | {_parent(entity)} if isinstance(entity, (Subscription, Rule)) else found


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
        if isinstance(entity, (Subscription, Rule)) and _parent(entity) not in by_key:
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
    targets = (getattr(entity, name, "") for entity in desired for name in FORWARDS)
    return {path_key(target): target for target in targets if target and path_key(target) not in known}


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


def _matches(name: str, desired: Described, actual: Described) -> bool:
    expected, found = getattr(desired, name), getattr(actual, name)
    if expected is None or _has_no_effect(name, desired):
        return True
    if name in DURATIONS:
        return _same_duration(str(expected), str(found))
    if name in FORWARDS:
        return str(expected).lower() == str(found).lower()
    return bool(expected == found)


def _has_no_effect(name: str, desired: Described) -> bool:
    if name == "duplicate_detection_history_time_window":
        return not getattr(desired, "requires_duplicate_detection", False)
    return name == "support_ordering" and isinstance(desired, Topic) and desired.enable_partitioning


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


def _parent(entity: Subscription | Rule) -> Key:
    if isinstance(entity, Rule):
        return entity_key(Subscription(entity.topic, entity.subscription))
    return path_key(entity.topic)
