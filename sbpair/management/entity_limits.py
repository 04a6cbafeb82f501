"""The service's limits on entities, checked before a request is made.

Pure. `violations` checks the limits of every namespace, `tier_violations` those of one tier; both yield every fault.
The figures are the service's own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, TypeVar

from sbpair import backlog
from sbpair.errors import NameInvalid
from sbpair.model.entities import (
    DEFAULT_RULE,
    EVERY_MESSAGE,
    NO_MESSAGE,
    AnyEntity,
    Described,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
)
from sbpair.model.entity_properties import PROPERTIES_OF, TARGETS
from sbpair.model.queues import QueueSpec
from sbpair.model.tiers import TIERS, Tier
from sbpair.rules.actions import ActionCompiler
from sbpair.rules.compiler import Compiler, Dialect, SqlMistake
from sbpair.rules.filters import MAX_LENGTH
from sbpair.timespan import TIMESPAN_MAX

NAME_LIMIT = 50

_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)

Fitted = TypeVar("Fitted", bound=AnyEntity)


@dataclass(frozen=True, slots=True)
class LimitViolation:
    """A property that the service would refuse. `name` is its field, empty for the entity as a whole."""

    entity: Described
    name: str
    text: str
    hint: ClassVar[str] = "correct it: the service would refuse the entity"

    @property
    def message(self) -> str:
        of = f"{self.name} of " if self.name else ""
        return f"{of}{self.entity.kind} {self.entity.path}: {self.text}"


def violations(entity: Described) -> Iterator[LimitViolation]:
    """Yield each fault that every namespace would refuse."""
    for name, text in (*_of_name(entity), *_of_properties(entity, TIERS), *_of_forwards(entity), *_of_rule(entity)):
        yield LimitViolation(entity, name, text)


def tier_violations(entity: Described, tier: Tier) -> Iterator[LimitViolation]:
    """Yield each fault that a namespace of that tier would refuse. Call `fit_to_tier` on the entity first."""
    if not (tier.has_everything or isinstance(entity, QueueSpec)):
        yield LimitViolation(entity, "", f"{entity.kind}s do not exist in a {tier.name} namespace")
        return
    for name, text in _of_properties(entity, (tier,)):
        yield LimitViolation(entity, name, f"{text} in a {tier.name} namespace")


def fit_to_tier(entity: Fitted, tier: Tier) -> Fitted:
    """Apply the tier's own default time to live: Basic keeps no message longer than 14 days."""
    if tier.max_days == inf or isinstance(entity, Rule) or entity.default_message_time_to_live != TIMESPAN_MAX:
        return entity
    return replace(entity, default_message_time_to_live=f"P{tier.max_days:.0f}D")


def without_namespace_partitions(entity: AnyEntity, desired: AnyEntity | None, tier: Tier) -> AnyEntity:
    """Clear the partitioning of an entity as read, where its Premium namespace imposed it and `desired` has none."""
    imposed = tier.whole_namespace and not getattr(desired, "enable_partitioning", False)
    return replace(entity, enable_partitioning=False) if imposed and isinstance(entity, (Queue, Topic)) else entity


_Found = Iterator[tuple[str, str]]


def _of_name(entity: Described) -> _Found:
    if isinstance(entity, (QueueSpec, Topic)):
        yield from _of_path("", entity.path)
        return
    if len(entity.name) > NAME_LIMIT:
        yield "", f"the name has {len(entity.name)} characters, at most {NAME_LIMIT} are allowed"
    elif not _NAME.fullmatch(entity.name) and not (isinstance(entity, Rule) and entity.name == DEFAULT_RULE):
        yield "", "the name may have letters, digits, '.', '-' and '_'"


def _of_path(name: str, path: str) -> _Found:
    try:
        backlog.check_path(path)
    except NameInvalid as error:
        yield name, f"{error.message}: {error.hint}"


def _of_properties(entity: Described, tiers: Collection[Tier]) -> _Found:
    for row in PROPERTIES_OF[type(entity)]:
        if text := row.refusal(getattr(entity, row.name), tiers):
            yield row.name, text
    if isinstance(entity, Rule) and entity.name == DEFAULT_RULE and (entity.filter != SqlFilter() or entity.action):
        yield "filter", f"{DEFAULT_RULE} is the service's own rule, which accepts every message: choose another name"


def _of_forwards(entity: Described) -> _Found:
    if not isinstance(entity, (QueueSpec, Subscription)):
        return
    own = entity.topic if isinstance(entity, Subscription) else entity.path
    for name in TARGETS:
        if target := getattr(entity, name):
            yield from _of_path(name, target)
        if target.lower() == own.lower():
            yield name, "it forwards to itself"
    if isinstance(entity, Subscription) and entity.requires_session and entity.forward_to:
        yield "forward_to", "a subscription that requires sessions cannot forward"


def _of_rule(entity: Described) -> _Found:
    """Compile what is written in SQL: the service creates a subscription before it refuses a rule of it."""
    if not isinstance(entity, Rule):
        return
    selected = entity.filter.expression if isinstance(entity.filter, SqlFilter) else EVERY_MESSAGE
    for name, compiler, text in (("filter", Compiler, selected), ("action", ActionCompiler, entity.action)):
        if text not in (EVERY_MESSAGE, NO_MESSAGE) and 0 < len(text) <= MAX_LENGTH:
            try:
                compiler(Dialect()).compile(name, text)
            except SqlMistake as error:
                yield name, f"{error.mistake}, at character {error.at + 1}{error.hint and f': {error.hint}'}"
