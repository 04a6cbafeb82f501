"""Queues and topics as destinations, and the tier of their namespace, over the administration client.

Thin, like `atom`: it asks, converts and translates errors. A management call costs as much as ten messages, so nothing
is asked for twice: what changes while a run goes on is not seen by it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.azure.atom import open_client
from sbpair.azure.interfaces import DestinationEntity
from sbpair.azure.management_errors import translate_management_errors
from sbpair.azure.transport import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from azure.servicebus.aio.management import ServiceBusAdministrationClient
    from azure.servicebus.management import QueueProperties, TopicProperties

    from sbpair.azure.interfaces import DestinationControl
    from sbpair.model.pair import Endpoint

SUBSCRIPTIONS_ASKED = 100
"""Of how many subscriptions of a topic the filters are counted; each beyond is taken to have one."""


@asynccontextmanager
async def open_destinations(
    endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS
) -> AsyncIterator[DestinationControl]:
    """The destinations of `endpoint`. Nothing is connected before the first call."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomDestinations(client, endpoint.name)


class AtomDestinations:
    """`DestinationControl` of one namespace. To be had from `open_destinations`."""

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._tier: str | None = None
        self._found: dict[str, DestinationEntity] = {}
        # Lanes meet the same destinations at the same time.
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def tier(self) -> str:
        async with self._asking[""]:
            if self._tier is None:
                with translate_management_errors("read the namespace's tier", self._namespace):
                    read = await self._client.get_namespace_properties()
                self._tier = str(getattr(read.messaging_sku, "value", read.messaging_sku))
        return self._tier

    async def get(self, path: str) -> DestinationEntity:
        name = path.lower()
        async with self._asking[name]:
            if name not in self._found:
                with translate_management_errors(f"read {path}", self._namespace):
                    self._found[name] = await self._read(path)
        return self._found[name]

    async def filters_of(self, path: str) -> int:
        return (await self.get(path)).filters or 0

    async def _read(self, path: str) -> DestinationEntity:
        try:
            queue = await self._client.get_queue(path)
        except AttributeError:
            # The SDK reads a topic's description as a queue that has none.
            topic = await self._client.get_topic(path)
            return DestinationEntity(
                path,
                is_topic=True,
                filters=await self._count_filters(path),
                message_bytes=_message_bytes(topic),
                detects_duplicates=topic.requires_duplicate_detection,
            )
        return DestinationEntity(
            path,
            requires_session=bool(queue.requires_session),
            message_bytes=_message_bytes(queue),
            detects_duplicates=queue.requires_duplicate_detection,
        )

    async def _count_filters(self, topic: str) -> int:
        names = [each.name async for each in self._client.list_subscriptions(topic)]
        count = max(0, len(names) - SUBSCRIPTIONS_ASKED)
        for name in names[:SUBSCRIPTIONS_ASKED]:
            count += len([rule async for rule in self._client.list_rules(topic, name)])
        return count


def _message_bytes(properties: QueueProperties | TopicProperties) -> int | None:
    kilobytes = properties.max_message_size_in_kilobytes
    return kilobytes * 1024 if kilobytes else None
