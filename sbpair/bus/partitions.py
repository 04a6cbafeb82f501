"""What partitions need to be known of a namespace, over azure-servicebus' administration client.

Thin, like `atom`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.bus.atom import AtomNamespace, open_client
from sbpair.bus.control import Capacity
from sbpair.bus.translate import translated
from sbpair.bus.transport import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbpair.bus.control import PartitionControl
    from sbpair.model import Endpoint


@asynccontextmanager
async def open_partitions(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[PartitionControl]:
    """The entities of `endpoint`. Nothing is connected before the first call."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomPartitions(client, endpoint.name)


class AtomPartitions(AtomNamespace):
    """`PartitionControl` of one namespace. To be had from `open_partitions`."""

    async def capacity(self) -> Capacity:
        with translated("read the namespace's tier", self._namespace):
            read = await self._client.get_namespace_properties()
        self._tier = str(getattr(read.messaging_sku, "value", read.messaging_sku))
        return Capacity(self._tier, read.messaging_units)

    async def queue_bytes(self) -> dict[str, int]:
        with translated("read the sizes of the queues", self._namespace):
            listed = self._client.list_queues_runtime_properties()
            return {each.name: each.size_in_bytes or 0 async for each in listed}

    async def topic_bytes(self) -> dict[str, int]:
        with translated("read the sizes of the topics", self._namespace):
            listed = self._client.list_topics_runtime_properties()
            return {each.name: each.size_in_bytes or 0 async for each in listed}
