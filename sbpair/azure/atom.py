"""The entities of a namespace, over azure-servicebus' administration client.

Thin: it asks, converts and translates errors. Durations are text, for TimeSpan.MaxValue does not fit a timedelta.
The client may be shared by coroutines: it keeps nothing per request, and its session is made for it.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.azure.atom_entities import (
    Answered,
    description,
    queue_of,
    rule_of,
    said,
    sdk_action,
    sdk_filter,
    subscription_of,
    topic_of,
    unread,
)
from sbpair.azure.credentials import connection_string, token_credential
from sbpair.azure.management_errors import answer_of, translate_management_errors
from sbpair.azure.transport import CALL_SECONDS, RoutedTransport, road_to, session_for
from sbpair.errors import NameTaken, PartitionsWanted, ServiceRefused
from sbpair.model import tiers
from sbpair.model.entities import Described, Queue, Rule, Subscription, Topic, asking_for_partitions
from sbpair.model.pair import Endpoint, SasKey
from sbpair.model.queues import Counts, QueueSpec, QueueState, Usage
from sbpair.model.tiers import Capacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from datetime import datetime

    from azure.servicebus.management import QueueProperties, QueueRuntimeProperties

    from sbpair.azure.interfaces import NamespaceControl, QueueControl

Kind = TypeVar("Kind", Queue, Topic, Subscription, Rule)
QueueOrTopic = TypeVar("QueueOrTopic", Queue, Topic)


@asynccontextmanager
async def open_namespace(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[NamespaceControl]:
    """All of `endpoint`'s management side. Nothing is connected before the first call."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomNamespace(client, endpoint.name)


@asynccontextmanager
async def open_atom(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[QueueControl]:
    """The queues of `endpoint`. Nothing is connected before the first call; `call_seconds` bounds each request."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomQueues(client, endpoint.name)


@asynccontextmanager
async def open_client(endpoint: Endpoint, call_seconds: float) -> AsyncIterator[ServiceBusAdministrationClient]:
    """The SDK's client, on the way that leads to `endpoint`."""
    async with session_for(endpoint) as session:
        transport = RoutedTransport(road_to(endpoint), session, call_seconds)
        async with _client(endpoint, transport) as client:
            yield client


class AtomQueues:
    """`QueueControl` of one namespace. To be had from `open_atom`."""

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._wants_partitions = False

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        with translate_management_errors("list the queues", self._namespace):
            found = [each async for each in self._client.list_queues() if _under(prefix, each.name)]
            counted = await self._counts_under(prefix) if counts and found else {}
        return [state_of(each.name, each, *counted.get(each.name.lower(), ())) for each in found]

    async def get(self, path: str) -> QueueState:
        with translate_management_errors(f"read the queue {path}", self._namespace):
            try:
                return state_of(path, await self._client.get_queue(path))
            except AttributeError as error:
                raise self._taken("queue", path) from error

    async def counts(self, path: str) -> Counts:
        with translate_management_errors(f"count the messages of {path}", self._namespace):
            return counts_of(await self._client.get_queue_runtime_properties(path))

    async def create(self, entity: Described) -> bool:
        """A namespace that is partitioned as a whole does not say so before, and then takes nothing else."""
        if isinstance(entity, (Subscription, Rule)):
            return await self._created(entity)
        if not self._wants_partitions:
            with suppress(PartitionsWanted):
                return await self._created(entity)
            self._wants_partitions = True
        return await self._created(asking_for_partitions(entity))

    async def _created(self, entity: Described) -> bool:
        with translate_management_errors(f"create the {entity.kind} {entity.path}", self._namespace):
            try:
                await self._creation(entity)
            except Answered:
                return True
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    def _creation(self, entity: Described) -> Awaitable[object]:
        match entity:
            case QueueSpec(path=path):
                return self._client.create_queue(path, cls=unread, **description(entity))  # type: ignore[arg-type]
            case Topic(path=path):
                return self._client.create_topic(path, **description(entity))  # type: ignore[arg-type]
            case Subscription(topic=topic, name=name):
                return self._client.create_subscription(topic, name, **description(entity))  # type: ignore[arg-type]
            case Rule(topic=topic, subscription=subscription, name=name):
                return self._client.create_rule(
                    topic, subscription, name, filter=sdk_filter(entity.filter), action=sdk_action(entity.action)
                )

    async def _counts_under(self, prefix: str) -> dict[str, tuple[Counts, Usage]]:
        listed = self._client.list_queues_runtime_properties()
        return {
            each.name.lower(): (counts_of(each), usage_of(each)) async for each in listed if _under(prefix, each.name)
        }

    def _taken(self, kind: str, path: str) -> NameTaken:
        # The SDK reads the description of another kind as one of this kind that has none.
        return NameTaken(
            f"{path} is not a {kind} in {self._namespace}", hint="something else has its name: rename or delete it"
        )


class AtomNamespace(AtomQueues):
    """`NamespaceControl` of one namespace. To be had from `open_namespace`."""

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        super().__init__(client, namespace)
        self._capacity: Capacity | None = None
        self._asking = asyncio.Lock()

    async def tier(self) -> str:
        return (await self.capacity()).tier.name

    async def capacity(self) -> Capacity:
        async with self._asking:
            if self._capacity is None:
                with translate_management_errors("read the namespace's tier", self._namespace):
                    self._capacity = await self._read_capacity()
        return self._capacity

    async def _read_capacity(self) -> Capacity:
        try:
            read = await self._client.get_namespace_properties()
        except AttributeError as error:
            # The SDK reads what describes no namespace as one that has no description.
            raise ServiceRefused(
                f"{self._namespace} does not say of which tier it is", hint="check the address: is it a Service Bus?"
            ) from error
        name = str(getattr(read.messaging_sku, "value", read.messaging_sku))
        return Capacity(tiers.named(name), read.messaging_units)

    async def queue_bytes(self) -> dict[str, int]:
        with translate_management_errors("read the sizes of the queues", self._namespace):
            listed = self._client.list_queues_runtime_properties()
            return {each.name: each.size_in_bytes or 0 async for each in listed}

    async def topic_bytes(self) -> dict[str, int]:
        with translate_management_errors("read the sizes of the topics", self._namespace):
            listed = self._client.list_topics_runtime_properties()
            return {each.name: each.size_in_bytes or 0 async for each in listed}

    async def queues(self) -> list[Queue]:
        with translate_management_errors("list the queues", self._namespace):
            found = [queue_of(each) async for each in self._client.list_queues()]
        return [await self._as_chosen(each) for each in found]

    async def topics(self) -> list[Topic]:
        with translate_management_errors("list the topics", self._namespace):
            found = [topic_of(each) async for each in self._client.list_topics()]
        return [await self._as_chosen(each) for each in found]

    async def subscriptions(self, topic: str) -> list[Subscription]:
        with translate_management_errors(f"list the subscriptions of {topic}", self._namespace):
            return [subscription_of(topic, each) async for each in self._client.list_subscriptions(topic)]

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        with translate_management_errors(f"list the rules of {topic}/{subscription}", self._namespace):
            listed = self._client.list_rules(topic, subscription)
            return [rule_of(topic, subscription, each) async for each in listed]

    async def read(self, like: Kind) -> Kind:
        with translate_management_errors(f"read the {like.kind} {like.path}", self._namespace):
            try:
                return await self._read(like)
            except AttributeError as error:
                raise self._taken(like.kind, like.path) from error

    async def delete_rule(self, rule: Rule) -> None:
        with (
            translate_management_errors(f"delete the rule {rule.path}", self._namespace),
            suppress(ResourceNotFoundError),
        ):
            await self._client.delete_rule(rule.topic, rule.subscription, rule.name)

    async def _read(self, like: Kind) -> Kind:
        if isinstance(like, Queue):
            return await self._as_chosen(queue_of(await self._client.get_queue(like.path)))
        if isinstance(like, Topic):
            return await self._as_chosen(topic_of(await self._client.get_topic(like.path)))
        if isinstance(like, Subscription):
            return subscription_of(like.topic, await self._client.get_subscription(like.topic, like.name))
        read = await self._client.get_rule(like.topic, like.subscription, like.name)
        return rule_of(like.topic, like.subscription, read)

    async def _as_chosen(self, entity: QueueOrTopic) -> QueueOrTopic:
        """The size of one part; only the tier says whether what was read is several of them."""
        if not entity.enable_partitioning:
            return entity
        chosen = tiers.chosen_megabytes(
            (await self.capacity()).tier, entity.max_size_in_megabytes, partitioned=entity.enable_partitioning
        )
        return replace(entity, max_size_in_megabytes=chosen)


def state_of(
    path: str, properties: QueueProperties, counts: Counts | None = None, usage: Usage | None = None
) -> QueueState:
    """A queue as the SDK gives it. What the service left out is its default."""
    return QueueState(
        QueueSpec(path, **said(properties, QueueSpec)),
        partitioned=bool(properties.enable_partitioning),
        counts=counts,
        usage=usage,
    )


def counts_of(runtime: QueueRuntimeProperties) -> Counts:
    return Counts(
        active=runtime.active_message_count or 0,
        dead_letter=runtime.dead_letter_message_count or 0,
        scheduled=runtime.scheduled_message_count or 0,
        total=runtime.total_message_count or 0,
        transfer=runtime.transfer_message_count or 0,
        transfer_dead_letter=runtime.transfer_dead_letter_message_count or 0,
    )


def usage_of(runtime: QueueRuntimeProperties) -> Usage:
    times = (runtime.created_at_utc, runtime.updated_at_utc, runtime.accessed_at_utc)
    return Usage(runtime.size_in_bytes, *(_seconds(each) for each in times))


def _seconds(at: datetime | None) -> float | None:
    """Since 1970; the service's year 1 is a time that never was."""
    return None if at is None or at.year == 1 else at.timestamp()


def _client(
    endpoint: Endpoint, transport: RoutedTransport
) -> AbstractAsyncContextManager[ServiceBusAdministrationClient]:
    if isinstance(endpoint.credential, SasKey):
        text = connection_string(endpoint.authority, endpoint.credential)
        return ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)
    return _client_with_token(endpoint, transport)


@asynccontextmanager
async def _client_with_token(
    endpoint: Endpoint, transport: RoutedTransport
) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with (
        token_credential(endpoint.credential) as credential,
        ServiceBusAdministrationClient(endpoint.authority, credential, transport=transport, retry_total=0) as client,
    ):
        yield client


def _under(prefix: str, path: str) -> bool:
    return path.lower().startswith(prefix.lower())
