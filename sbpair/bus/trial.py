"""Queues that are made to see what a namespace does with them, and are deleted again; and what may be tried on.

Thin, over the administration client. Descriptions are read as the service wrote them, before any client rounds them.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from sbpair.bus.atom import open_client, state_of
from sbpair.bus.atom_entities import description
from sbpair.bus.translate import answer_of, translated
from sbpair.bus.transport import CALL_SECONDS
from sbpair.errors import EntityMissing
from sbpair.model import TIMESPAN_MAX, QueueSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from xml.etree.ElementTree import Element

    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from sbpair.model import Endpoint, QueueState

LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class Look:
    """What the management side tells: the tier, and a queue that links may be opened to, "" where there is none."""

    tier: str
    queue: str


async def look(endpoint: Endpoint, *, seconds: float) -> Look:
    """Read the tier, and the first page of queues. Raises AccessError without the Manage claim, and Unavailable."""
    async with open_client(endpoint, seconds) as client:
        with translated("read the namespace's properties", endpoint.name):
            read = await client.get_namespace_properties()
            return Look(str(getattr(read.messaging_sku, "value", read.messaging_sku)), await _open_queue(client))


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
async def open_trials(endpoint: Endpoint, *, seconds: float = CALL_SECONDS) -> AsyncIterator[Trials]:
    """Where trial queues of a namespace are made. Nothing is connected before the first call."""
    async with open_client(endpoint, seconds) as client:
        yield Trials(client, endpoint.name)


class Trials:
    """To be had from `open_trials`. Every method raises only errors of `sbpair.errors`."""

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def create(self, spec: QueueSpec, *, partitioned: bool = False) -> bool:
        """Make a queue. False means that the name was taken before, by whatever it may be."""
        told: dict[str, Any] = {**description(spec), **({"enable_partitioning": True} if partitioned else {})}
        with translated(f"create the queue {spec.path}", self._namespace):
            try:
                await self._client.create_queue(spec.path, **told)
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    async def elements(self, path: str) -> dict[str, str]:
        """The elements of a queue's description, by name, exactly as the service wrote them."""
        found: dict[str, str] = {}

        def keep(_answer: object, entry: Element, _headers: object) -> Element:
            found.update({each.tag.rpartition("}")[2]: each.text or "" for each in entry.iter()})
            return entry

        with translated(f"read the queue {path}", self._namespace):
            await self._client.get_queue(path, cls=keep)
        return found

    async def delete(self, path: str) -> None:
        """Delete a queue; one that is gone is no error."""
        with translated(f"delete the queue {path}", self._namespace):
            try:
                await self._client.delete_queue(path)
            except (ResourceNotFoundError, EntityMissing):
                return
