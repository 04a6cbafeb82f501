"""An application's own entities in one namespace: what is missing, what differs, and in which order to make it.

Pure: a plan is data, made from what is wanted and what is there. What is there is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from graphlib import CycleError, TopologicalSorter

from sbpair.errors import UsageError
from sbpair.management.backlog_plan import same_duration
from sbpair.model.entities import DEFAULT_RULE, DURATIONS, NAMES, PROPERTY_NAMES, Described, Rule, Subscription, Topic
from sbpair.model.queues import Difference

Key = tuple[str, str]
"""The kind of names that an entity shares, and its path: the service compares without regard to case."""

FORWARDS = ("forward_to", "forward_dead_lettered_messages_to")
RULES = "Rules"


@dataclass(frozen=True, slots=True)
class ComparedEntity:
    """An entity that is there. Without differences it is as it should be; what differs is reported, never changed."""

    entity: Described
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class EntityPlan:
    """What to create, after what it needs; what is there; and the rules to take from subscriptions that are new.

    A new subscription has the service's own rule, which takes every message. Where others are wanted, it goes once they
    are there: a message too many for a moment, and none too few.
    """

    creates: tuple[Described, ...] = ()
    there: tuple[ComparedEntity, ...] = ()
    drops: tuple[Rule, ...] = ()


def key(entity: Described) -> Key:
    """What an entity is found by. Queues and topics share their names."""
    if isinstance(entity, (Subscription, Rule)):
        return entity.kind, entity.path.lower()
    return path_key(entity.path)


def path_key(path: str) -> Key:
    """The key of the queue or topic of that name."""
    return "path", path.lower()


def plan(
    wanted: Sequence[Described],
    actual: Mapping[Key, Described],
    rules: Mapping[Key, Sequence[Rule]],
    taken: Collection[Key] = (),
) -> EntityPlan:
    """Compare what is `wanted` with what is there; leave out what has a name that is `taken` by another kind.

    `rules` are those of each subscription that is there. Raises UsageError as `ordered` does.
    """
    creates, there, drops = [], [], []
    declared = _rules_by_subscription(wanted)
    for entity in (each for each in ordered(wanted) if key(each) not in taken):
        names = declared.get(key(entity), {})
        if found := actual.get(key(entity)):
            more = _extra_rules(names, rules.get(key(entity), ()))
            there.append(ComparedEntity(entity, (*differences(entity, found), *more)))
            continue
        creates.append(entity)
        if isinstance(entity, Subscription) and names and DEFAULT_RULE.lower() not in names:
            drops.append(Rule(entity.topic, entity.name, DEFAULT_RULE))
    return EntityPlan(tuple(creates), tuple(there), tuple(drops))


def differences(wanted: Described, actual: Described) -> tuple[Difference, ...]:
    """Every property that is not as it is wanted."""
    return tuple(
        Difference(PROPERTY_NAMES[name], _shown(getattr(wanted, name)), _shown(getattr(actual, name)))
        for name in (each.name for each in fields(wanted) if each.name not in NAMES)
        if not _same(name, wanted, actual)
    )


def needs(entity: Described) -> set[Key]:
    """The keys of what has to be there before `entity` can be made."""
    found = {path_key(target) for name in FORWARDS if (target := getattr(entity, name, ""))}
    return found | {_parent(entity)} if isinstance(entity, (Subscription, Rule)) else found


def _parent(entity: Subscription | Rule) -> Key:
    """The topic of a subscription, or the subscription of a rule."""
    if isinstance(entity, Rule):
        return key(Subscription(entity.topic, entity.subscription))
    return path_key(entity.topic)


def ordered(wanted: Sequence[Described]) -> list[Described]:
    """`wanted`, each after what it needs.

    Raises UsageError where that is a circle, where one is there twice, or where what it belongs to is not there.
    """
    by_key: dict[Key, Described] = {}
    for entity in wanted:
        other = by_key.setdefault(key(entity), entity)
        if other is not entity:
            raise UsageError(
                f"{entity.kind} {entity.path} and {other.kind} {other.path} are one and the same name",
                hint="the service compares names without regard to case, and a queue's with a topic's",
            )
    for entity in wanted:
        if isinstance(entity, (Subscription, Rule)) and _parent(entity) not in by_key:
            of = f"subscription {entity.subscription} of" if isinstance(entity, Rule) else "topic"
            raise UsageError(
                f"{entity.kind} {entity.path} needs the {of} {entity.topic}, which is not described",
                hint="describe it too: where it is there already, it is only compared",
            )
    sorter = TopologicalSorter({each: sorted(needs(entity) & by_key.keys()) for each, entity in by_key.items()})
    try:
        return [by_key[each] for each in sorter.static_order()]
    except CycleError as error:
        circle = " -> ".join(by_key[each].path for each in error.args[1])
        raise UsageError(
            f"entities forward to each other in a circle: {circle}", hint="a message would never come to rest"
        ) from None


def outside(wanted: Sequence[Described]) -> dict[Key, str]:
    """The forwarding targets that are not among `wanted`, by key: they must be there already."""
    known = {key(entity) for entity in wanted}
    targets = (getattr(entity, name, "") for entity in wanted for name in FORWARDS)
    return {path_key(target): target for target in targets if target and path_key(target) not in known}


def _rules_by_subscription(wanted: Iterable[Described]) -> dict[Key, dict[str, str]]:
    """The names of each subscription's rules, by how they are compared."""
    found: dict[Key, dict[str, str]] = {}
    for rule in wanted:
        if isinstance(rule, Rule):
            [subscription] = needs(rule)
            found.setdefault(subscription, {})[rule.name.lower()] = rule.name
    return found


def _extra_rules(names: Mapping[str, str], there: Sequence[Rule]) -> tuple[Difference, ...]:
    extra = [rule.name for rule in there if rule.name.lower() not in names]
    if not names or not extra:
        return ()
    expected = sorted(names.values())
    return (Difference(RULES, ", ".join(expected), ", ".join(sorted([*expected, *extra]))),)


def _same(name: str, wanted: Described, actual: Described) -> bool:
    expected, found = getattr(wanted, name), getattr(actual, name)
    if expected is None or _is_moot(name, wanted):
        return True
    if name in DURATIONS:
        return same_duration(str(expected), str(found))
    if name in FORWARDS:
        return str(expected).lower() == str(found).lower()
    return bool(expected == found)


def _is_moot(name: str, wanted: Described) -> bool:
    """Whether a property means nothing, because another one says so."""
    if name == "duplicate_detection_history_time_window":
        return not getattr(wanted, "requires_duplicate_detection", False)
    return name == "support_ordering" and isinstance(wanted, Topic) and wanted.enable_partitioning


def _shown(value: object) -> str | int | bool:
    return value if isinstance(value, (str, int)) else str(value)
