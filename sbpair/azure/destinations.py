"""Queues and topics as destinations, and the tier of their namespace, each read once.

A management call costs as much as ten messages: changes during a run are not seen by it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.azure.descriptions import TYPE, texts
from sbpair.azure.http_client import CALL_SECONDS
from sbpair.model.entities import CORRELATION_KEYS, Queue, Topic, pascal
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
    from collections.abc import AsyncIterator
    from xml.etree.ElementTree import Element

    from sbpair.model.pair import Endpoint
    from sbpair.rules.filters import Filter, NamedValues

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
    `message_bytes` is the maximum size of a message.
    """

    path: str
    is_topic: bool | None = False
    requires_session: bool = False
    filters: int | None = 0
    message_bytes: int | None = None
    detects_duplicates: bool | None = None
    topic: TopicFilters | None = field(default=None, compare=False)


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


def _described(entity: Queue | Topic, **own: Any) -> DestinationEntity:
    kilobytes = entity.max_message_size_in_kilobytes
    return DestinationEntity(
        entity.path,
        message_bytes=kilobytes * 1024 if kilobytes else None,
        detects_duplicates=entity.requires_duplicate_detection,
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
    found = []
    for pair in selected.iterfind(f"{{*}}{name}/*"):
        value = pair.find("{*}Value")
        kind = "" if value is None else value.get(TYPE, "").rpartition(":")[2]
        text = "" if value is None else value.text or ""
        found.append((pair.findtext("{*}Key") or "", read_typed(kind or "string", text)))
    return tuple(found)
