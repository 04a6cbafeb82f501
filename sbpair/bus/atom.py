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

from sbpair import tiers
from sbpair.bus.atom_entities import (
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
from sbpair.bus.credentials import connection_string, token_credential
from sbpair.bus.translate import answer_of, translated
from sbpair.bus.transport import CALL_SECONDS, RoadTransport, road_to, session_for
from sbpair.entity import Queue, Rule, Subscription, Topic
from sbpair.errors import NameTaken, ServiceRefused
from sbpair.model import Counts, Endpoint, QueueSpec, QueueState, SasKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from azure.servicebus.management import QueueProperties, QueueRuntimeProperties

    from sbpair.bus.control import NamespaceControl, QueueControl

Kind = TypeVar("Kind", Queue, Topic, Subscription, Rule)
Divided = TypeVar("Divided", Queue, Topic)


@asynccontextmanager
async def open_namespace(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[NamespaceControl]:
    """All of `endpoint`'s management side. Nothing is connected before the first call."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomNamespace(client, endpoint.name)


@asynccontextmanager
async def open_queues(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[QueueControl]:
    """The queues of `endpoint`. Nothing is connected before the first call; `call_seconds` bounds each request."""
    async with open_client(endpoint, call_seconds) as client:
        yield AtomQueues(client, endpoint.name)


@asynccontextmanager
async def open_client(endpoint: Endpoint, call_seconds: float) -> AsyncIterator[ServiceBusAdministrationClient]:
    """The SDK's client, on the way that leads to `endpoint`."""
    async with session_for(endpoint) as session:
        transport = RoadTransport(road_to(endpoint), session, call_seconds)
        async with _client(endpoint, transport) as client:
            yield client


class AtomQueues:
    """`QueueControl` of one namespace. To be had from `open_queues`."""

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        with translated("list the queues", self._namespace):
            found = [each async for each in self._client.list_queues() if _under(prefix, each.name)]
            counted = await self._counts_under(prefix) if counts and found else {}
        return [state_of(each.name, each, counted.get(each.name.lower())) for each in found]

    async def get(self, path: str) -> QueueState:
        with translated(f"read the queue {path}", self._namespace):
            try:
                return state_of(path, await self._client.get_queue(path))
            except AttributeError as error:
                raise self._taken("queue", path) from error

    async def counts(self, path: str) -> Counts:
        with translated(f"count the messages of {path}", self._namespace):
            return counts_of(await self._client.get_queue_runtime_properties(path))

    async def create(self, spec: QueueSpec) -> bool:
        return await self._created(
            f"create the queue {spec.path}",
            self._client.create_queue(spec.path, cls=unread, **description(spec)),  # type: ignore[arg-type]
        )

    async def _created(self, what: str, asked: Awaitable[object]) -> bool:
        with translated(what, self._namespace):
            try:
                await asked
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    async def _counts_under(self, prefix: str) -> dict[str, Counts]:
        listed = self._client.list_queues_runtime_properties()
        return {each.name.lower(): counts_of(each) async for each in listed if _under(prefix, each.name)}

    def _taken(self, kind: str, path: str) -> NameTaken:
        # The SDK reads the description of another kind as one of this kind that has none.
        return NameTaken(
            f"{path} is not a {kind} in {self._namespace}", hint="something else has its name: rename or delete it"
        )


class AtomNamespace(AtomQueues):
    """`NamespaceControl` of one namespace. To be had from `open_namespace`."""

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        super().__init__(client, namespace)
        self._tier = ""
        self._asking = asyncio.Lock()

    async def tier(self) -> str:
        async with self._asking:
            if not self._tier:
                with translated("read the namespace's tier", self._namespace):
                    self._tier = await self._read_tier()
        return self._tier

    async def _read_tier(self) -> str:
        try:
            read = await self._client.get_namespace_properties()
        except AttributeError as error:
            # The SDK reads what describes no namespace as one that has no description.
            raise ServiceRefused(
                f"{self._namespace} does not say of which tier it is", hint="check the address: is it a Service Bus?"
            ) from error
        return str(getattr(read.messaging_sku, "value", read.messaging_sku))

    async def queues(self) -> list[Queue]:
        with translated("list the queues", self._namespace):
            found = [queue_of(each) async for each in self._client.list_queues()]
        return [await self._as_chosen(each) for each in found]

    async def topics(self) -> list[Topic]:
        with translated("list the topics", self._namespace):
            found = [topic_of(each) async for each in self._client.list_topics()]
        return [await self._as_chosen(each) for each in found]

    async def subscriptions(self, topic: str) -> list[Subscription]:
        with translated(f"list the subscriptions of {topic}", self._namespace):
            return [subscription_of(topic, each) async for each in self._client.list_subscriptions(topic)]

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        with translated(f"list the rules of {topic}/{subscription}", self._namespace):
            listed = self._client.list_rules(topic, subscription)
            return [rule_of(topic, subscription, each) async for each in listed]

    async def read(self, like: Kind) -> Kind:
        with translated(f"read the {like.kind} {like.path}", self._namespace):
            try:
                return await self._read(like)
            except AttributeError as error:
                raise self._taken(like.kind, like.path) from error

    async def create(self, entity: QueueSpec | Topic | Subscription | Rule) -> bool:
        if isinstance(entity, QueueSpec):
            return await super().create(entity)
        return await self._created(f"create the {entity.kind} {entity.path}", self._creation(entity))

    async def delete_rule(self, rule: Rule) -> None:
        with translated(f"delete the rule {rule.path}", self._namespace), suppress(ResourceNotFoundError):
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

    def _creation(self, entity: Topic | Subscription | Rule) -> Awaitable[object]:
        match entity:
            case Topic(path=path):
                return self._client.create_topic(path, **description(entity))  # type: ignore[arg-type]
            case Subscription(topic=topic, name=name):
                return self._client.create_subscription(topic, name, **description(entity))  # type: ignore[arg-type]
            case Rule(topic=topic, subscription=subscription, name=name):
                return self._client.create_rule(
                    topic, subscription, name, filter=sdk_filter(entity.filter), action=sdk_action(entity.action)
                )

    async def _as_chosen(self, entity: Divided) -> Divided:
        """The size of one part; only the tier says whether what was read is several of them."""
        if not entity.enable_partitioning:
            return entity
        chosen = tiers.chosen_megabytes(
            tiers.named(await self.tier()), entity.max_size_in_megabytes, partitioned=entity.enable_partitioning
        )
        return replace(entity, max_size_in_megabytes=chosen)


def state_of(path: str, properties: QueueProperties, counts: Counts | None = None) -> QueueState:
    """A queue as the SDK gives it. What the service left out is its default."""
    return QueueState(
        QueueSpec(path, **said(properties, QueueSpec)),
        partitioned=bool(properties.enable_partitioning),
        counts=counts,
    )


def counts_of(runtime: QueueRuntimeProperties) -> Counts:
    return Counts(
        active=runtime.active_message_count or 0,
        dead_letter=runtime.dead_letter_message_count or 0,
        scheduled=runtime.scheduled_message_count or 0,
        total=runtime.total_message_count or 0,
    )


def _client(
    endpoint: Endpoint, transport: RoadTransport
) -> AbstractAsyncContextManager[ServiceBusAdministrationClient]:
    if isinstance(endpoint.credential, SasKey):
        text = connection_string(endpoint.authority, endpoint.credential)
        return ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)
    return _client_with_token(endpoint, transport)


@asynccontextmanager
async def _client_with_token(
    endpoint: Endpoint, transport: RoadTransport
) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with (
        token_credential(endpoint.credential) as credential,
        ServiceBusAdministrationClient(endpoint.authority, credential, transport=transport, retry_total=0) as client,
    ):
        yield client


def _under(prefix: str, path: str) -> bool:
    return path.lower().startswith(prefix.lower())
