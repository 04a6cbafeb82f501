"""Queues and topics as destinations, and the tier of their namespace, each read once.

A management call costs as much as ten messages: changes during a run are not seen by it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.azure.atom import open_atom
from sbpair.azure.interfaces import DestinationEntity
from sbpair.azure.management_route import CALL_SECONDS
from sbpair.errors import NameTaken
from sbpair.model.entities import Queue, Topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbpair.azure.atom import AtomNamespace
    from sbpair.azure.interfaces import DestinationControl
    from sbpair.model.pair import Endpoint

MAX_SUBSCRIPTIONS = 100
"""The filters of so many subscriptions of a topic are counted; each further one is assumed to have one."""


@asynccontextmanager
async def open_destinations(
    endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS, max_subscriptions: int = MAX_SUBSCRIPTIONS
) -> AsyncIterator[DestinationControl]:
    """Open the destinations of `endpoint`. Nothing is connected before the first call."""
    async with open_atom(endpoint, call_seconds=call_seconds) as namespace:
        yield DestinationCache(namespace, max_subscriptions)


class DestinationCache:
    """`DestinationControl` of one namespace. Get one from `open_destinations`."""

    def __init__(self, namespace: AtomNamespace, max_subscriptions: int = MAX_SUBSCRIPTIONS) -> None:
        self._namespace = namespace
        self._max_subscriptions = max_subscriptions
        self._tier: str | None = None
        self._found: dict[str, DestinationEntity] = {}
        # Several workers look up the same destination at once.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def tier(self) -> str:
        async with self._locks[""]:
            if self._tier is None:
                self._tier = await self._namespace.tier_name()
        return self._tier

    async def get(self, path: str) -> DestinationEntity:
        name = path.lower()
        async with self._locks[name]:
            if name not in self._found:
                self._found[name] = await self._read(path)
        return self._found[name]

    async def filters_of(self, path: str) -> int:
        return (await self.get(path)).filters or 0

    async def _read(self, path: str) -> DestinationEntity:
        try:
            queue = await self._namespace.read_effective(Queue(path))
        except NameTaken:
            topic = await self._namespace.read_effective(Topic(path))
            return DestinationEntity(
                path,
                is_topic=True,
                filters=await self._count_filters(path),
                message_bytes=_message_bytes(topic),
                detects_duplicates=topic.requires_duplicate_detection,
            )
        return DestinationEntity(
            path,
            requires_session=queue.requires_session,
            message_bytes=_message_bytes(queue),
            detects_duplicates=queue.requires_duplicate_detection,
        )

    async def _count_filters(self, topic: str) -> int:
        subscriptions = await self._namespace.subscriptions(topic)
        count = max(0, len(subscriptions) - self._max_subscriptions)
        for each in subscriptions[: self._max_subscriptions]:
            count += len(await self._namespace.rules(topic, each.name))
        return count


def _message_bytes(entity: Queue | Topic) -> int | None:
    kilobytes = entity.max_message_size_in_kilobytes
    return kilobytes * 1024 if kilobytes else None
