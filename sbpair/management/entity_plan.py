"""An application's own entities in one namespace: their plan, and the order in which to create them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from sbpair.errors import UsageError
from sbpair.management.comparison import FORWARDS, ChangeKind, Key, Plan, compare, entity_key, path_key
from sbpair.model.entities import DEFAULT_RULE, Described, Rule, Subscription
from sbpair.model.queues import Difference

RULES = "Rules"


def plan_entities(
    desired: Sequence[Described],
    actual: Mapping[Key, Described],
    rules: Mapping[Key, Sequence[Rule]],
    taken: Collection[Key] = (),
) -> Plan:
    """Compare desired entities with existing ones; leave out those whose name is `taken` by another kind.

    `rules` are those of each existing subscription. Raises UsageError as `dependency_order` does.
    """
    declared = _rules_by_subscription(desired)
    changes, default_rules = [], []
    for entity in (each for each in dependency_order(desired) if entity_key(each) not in taken):
        key = entity_key(entity)
        names = declared.get(key, {})
        change = compare(entity, actual.get(key), more=_unexpected_rules(names, rules.get(key, ())))
        changes.append(change)
        created = change.kind is ChangeKind.CREATE
        if created and isinstance(entity, Subscription) and names and DEFAULT_RULE.lower() not in names:
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


def _parent(entity: Subscription | Rule) -> Key:
    if isinstance(entity, Rule):
        return entity_key(Subscription(entity.topic, entity.subscription))
    return path_key(entity.topic)


def _rules_by_subscription(desired: Iterable[Described]) -> dict[Key, dict[str, str]]:
    """Return each subscription's rule names, by their lower case."""
    found: dict[Key, dict[str, str]] = {}
    for rule in desired:
        if isinstance(rule, Rule):
            found.setdefault(_parent(rule), {})[rule.name.lower()] = rule.name
    return found


def _unexpected_rules(names: Mapping[str, str], existing: Sequence[Rule]) -> tuple[Difference, ...]:
    unexpected = [rule.name for rule in existing if rule.name.lower() not in names]
    if not names or not unexpected:
        return ()
    expected = sorted(names.values())
    return (Difference(RULES, ", ".join(expected), ", ".join(sorted([*expected, *unexpected]))),)
