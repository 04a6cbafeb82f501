"""Queues that are made to see what a namespace does with them, and are deleted again; and what may be tried on.

Thin, over the administration client. Descriptions are read as the service wrote them, before any client rounds them.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure.core.exceptions import ResourceNotFoundError

from sbpair.azure.atom import AtomQueues, open_client, state_of
from sbpair.azure.management_errors import translate_management_errors
from sbpair.azure.transport import CALL_SECONDS
from sbpair.errors import EntityMissing
from sbpair.model.durations import TIMESPAN_MAX
from sbpair.model.entities import asking_for_partitions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from xml.etree.ElementTree import Element

    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from sbpair.model.pair import Endpoint
    from sbpair.model.queues import QueueSpec, QueueState

LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class NamespaceSample:
    """What the management side tells: the tier, and a queue that links may be opened to, "" where there is none."""

    tier: str
    queue: str


async def look(endpoint: Endpoint, *, seconds: float) -> NamespaceSample:
    """Read the tier, and the first page of queues. Raises AccessError without the Manage claim, and Unavailable."""
    async with open_client(endpoint, seconds) as client:
        with translate_management_errors("read the namespace's properties", endpoint.name):
            read = await client.get_namespace_properties()
            return NamespaceSample(
                str(getattr(read.messaging_sku, "value", read.messaging_sku)), await _open_queue(client)
            )


async def _open_queue(client: ServiceBusAdministrationClient) -> str:
    seen = 0
    async for each in client.list_queues():
        if _takes_any_link(state_of(each.name, each)):
            return str(each.name)
        seen += 1
        if seen == LOOKED_AT:
            break
    return ""


def _takes_any_link(state: QueueState) -> bool:
    """Not one that would live longer because somebody looked, nor one that has no receivers of the plain kind."""
    spec = state.spec
    lasting = spec.auto_delete_on_idle == TIMESPAN_MAX
    return lasting and spec.status == "Active" and not spec.requires_session and not spec.forward_to


@asynccontextmanager
async def open_trials(endpoint: Endpoint, *, seconds: float = CALL_SECONDS) -> AsyncIterator[TestQueues]:
    """Where trial queues of a namespace are made. Nothing is connected before the first call."""
    async with open_client(endpoint, seconds) as client:
        yield TestQueues(client, endpoint.name)


class TestQueues(AtomQueues):
    """To be had from `open_trials`. Every method raises only errors of `sbpair.errors`."""

    async def make(self, spec: QueueSpec, *, partitioned: bool = False) -> bool:
        """As `create`, but just what is said: raises PartitionsWanted."""
        return await self._created(asking_for_partitions(spec) if partitioned else spec)

    async def elements(self, path: str) -> dict[str, str]:
        """The elements of a queue's description, by name, exactly as the service wrote them."""
        found: dict[str, str] = {}

        def keep(_answer: object, entry: Element, _headers: object) -> Element:
            found.update({each.tag.rpartition("}")[2]: each.text or "" for each in entry.iter()})
            return entry

        with translate_management_errors(f"read the queue {path}", self._namespace):
            await self._client.get_queue(path, cls=keep)
        return found

    async def delete(self, path: str) -> None:
        """Delete a queue; one that is gone is no error."""
        with translate_management_errors(f"delete the queue {path}", self._namespace):
            try:
                await self._client.delete_queue(path)
            except (ResourceNotFoundError, EntityMissing):
                return
