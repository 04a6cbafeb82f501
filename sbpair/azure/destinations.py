"""Queues and topics as destinations, and the tier of their namespace, each read once.

A management call costs as much as ten messages: changes during a run are not seen by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sbpair.amqp.conditions import DISABLED_HINT
from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.azure.descriptions import TYPE, named_values, texts
from sbpair.azure.http_client import CALL_SECONDS
from sbpair.errors import AccessError, EntityMissing, Unavailable
from sbpair.model.entities import CORRELATION_KEYS, Queue, Topic, pascal, subscription_of
from sbpair.rules.filters import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleFilter,
    SubscriptionFilters,
    TopicFilters,
    TrueRuleFilter,
)
from sbpair.rules.values import RuleInvalid, read_typed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from xml.etree.ElementTree import Element

    from sbpair.model.pair import Endpoint
    from sbpair.rules.filters import Filter, NamedValues

log = logging.getLogger(__name__)

MAX_FORWARDS = 200
"""Entities that are read to find where messages are forwarded to."""

MAX_SUBSCRIPTIONS = 100
"""The filters of so many subscriptions of a topic are read; each further one is assumed to have one."""


@asynccontextmanager
async def open_destinations(
    endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS, max_subscriptions: int = MAX_SUBSCRIPTIONS
) -> AsyncIterator[DestinationCache]:
    """Open the destinations of `endpoint`. Nothing is connected before the first call."""
    async with open_atom(endpoint, call_seconds=call_seconds) as namespace:
        yield DestinationCache(namespace, max_subscriptions)


@dataclass(frozen=True, slots=True)
class DestinationEntity:
    """A queue or a topic that messages may be sent to. None is unknown.

    `filters` counts those of all of a topic's subscriptions, which `topic` has: each evaluates every message.
    `message_bytes` is the maximum size of a message. `status` is whether it is enabled.
    """

    path: str
    is_topic: bool | None = False
    requires_session: bool = False
    filters: int | None = 0
    message_bytes: int | None = None
    detects_duplicates: bool | None = None
    topic: TopicFilters | None = field(default=None, compare=False)
    status: str = "Active"

    @property
    def disabled(self) -> str:
        """Why it takes no message now, with what to do; "" if it takes some."""
        return f"{self.status}: {DISABLED_HINT}" if self.status in ("Disabled", "SendDisabled") else ""


class DestinationCache:
    """The destinations of one namespace, each read once. Every method raises only errors of `sbpair.errors`."""

    def __init__(self, namespace: AtomNamespace, max_subscriptions: int = MAX_SUBSCRIPTIONS) -> None:
        self._namespace = namespace
        self._max_subscriptions = max_subscriptions
        self._tier: str | None = None
        self._found: dict[str, DestinationEntity] = {}
        # Several workers look up the same destination at once.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def tier(self) -> str:
        """Return `Basic`, `Standard` or `Premium`."""
        async with self._locks[""]:
            if self._tier is None:
                self._tier = await self._namespace.tier_name()
        return self._tier

    async def get(self, path: str, *, again: bool = False) -> DestinationEntity:
        """Read a queue or a topic, `again` as it is now. Raises EntityMissing where neither exists."""
        name = path.lower()
        async with self._locks[name]:
            if again or name not in self._found:
                self._found[name] = await self._read(path)
        return self._found[name]

    async def way_to(self, path: str, is_end: Callable[[str], bool]) -> list[str]:
        """Return the way by which messages for `path` are forwarded to such an entity; [] if none is known."""
        return await forwarding_way(self._namespace, path, is_end)

    async def _read(self, path: str) -> DestinationEntity:
        found = await self._namespace.queue_or_topic(path)
        if isinstance(found, Queue):
            return _described(found, requires_session=found.requires_session)
        filters = await self._filters(path)
        return _described(found, is_topic=True, filters=filters.count, topic=filters)

    async def _filters(self, topic: str) -> TopicFilters:
        subscriptions = await self._namespace.subscriptions(topic)
        read = [
            SubscriptionFilters(
                each.name,
                tuple(map(matcher_of, await self._namespace.rule_descriptions(topic, each.name))),
                each.dead_lettering_on_filter_evaluation_exceptions,
            )
            for each in subscriptions[: self._max_subscriptions]
        ]
        return TopicFilters(tuple(read), len(subscriptions) - len(read))


async def forwarding_way(control: AtomNamespace, start: str, is_end: Callable[[str], bool]) -> list[str]:
    """Follow forwards from `start`. Return the first way that leads to such an entity; [] if none is known."""
    waiting, seen = [[start]], {start.lower()}
    while waiting and len(seen) < MAX_FORWARDS:
        way = waiting.pop(0)
        try:
            found = await _next_entities(control, way[-1])
        except (AccessError, EntityMissing, Unavailable) as error:
            log.info("the forwards of %s are not known: %s", way[-1], error.message)
            continue
        for path in found:
            if is_end(path):
                return [*way, path]
            if path.lower() not in seen:
                seen.add(path.lower())
                waiting.append([*way, path])
    return []


async def _next_entities(control: AtomNamespace, path: str) -> list[str]:
    """Return where an entity gives its messages: a subscription's are named after their topic."""
    subscription = subscription_of(path)
    if subscription is not None:
        known = await control.read(subscription)
        return [known.forward_to] if known.forward_to else []
    found = await control.queue_or_topic(path)
    if isinstance(found, Topic):
        return [f"{path}/subscriptions/{each.name}" for each in await control.subscriptions(path)]
    return [found.forward_to] if found.forward_to else []


def _described(entity: Queue | Topic, **own: Any) -> DestinationEntity:
    kilobytes = entity.max_message_size_in_kilobytes
    return DestinationEntity(
        entity.path,
        message_bytes=kilobytes * 1024 if kilobytes else None,
        detects_duplicates=entity.requires_duplicate_detection,
        status=entity.status,
        **own,
    )


def matcher_of(description: Element) -> Filter | None:
    """Return the filter of a rule, to evaluate it; None for one that this version cannot evaluate."""
    selected = description.find("{*}Filter")
    kind = "" if selected is None else selected.get(TYPE, "")
    if selected is None or kind.endswith("TrueFilter"):
        return TrueRuleFilter()
    if kind.endswith("FalseFilter"):
        return FalseRuleFilter()
    found = texts(selected)
    try:
        if not kind.endswith("CorrelationFilter"):
            return SqlRuleFilter(found.get("SqlExpression", ""), _typed_values(selected, "Parameters"))
        system = {name: found.get(pascal(name)) or None for name in CORRELATION_KEYS}
        return CorrelationRuleFilter(**system, properties=_typed_values(selected, "Properties"))
    except RuleInvalid:
        return None


def _typed_values(selected: Element, name: str) -> NamedValues:
    return tuple((key, read_typed(kind, text)) for key, kind, text in named_values(selected, name))
