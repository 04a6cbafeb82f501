"""One namespace's management side over Azure Resource Manager, by azure-mgmt-servicebus.

Thin, like `atom`: it calls, converts and translates errors. It signs in as an identity, whatever the namespace's own
credential is: Resource Manager accepts no shared access key.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.core import AzureClouds
from azure.core.exceptions import HttpResponseError
from azure.mgmt.core.tools import get_arm_endpoints
from azure.mgmt.servicebus.aio import ServiceBusManagementClient

from sbpair.azure.arm_json import arm_counts, arm_state, body_of, name_of, path_of, read, read_rule
from sbpair.azure.credentials import token_credential
from sbpair.azure.management_errors import answer_of, translate_management_errors
from sbpair.azure.transport import CALL_SECONDS, HttpRoute, RoutedTransport, http_route, is_local, session_for
from sbpair.errors import EntityMissing, NameTaken, UsageError
from sbpair.model import tiers
from sbpair.model.entities import Queue, Rule, Subscription, Topic, with_partitions
from sbpair.model.pair import Endpoint, Identity, ResourceGroup
from sbpair.model.queues import Counts, QueueSpec, QueueState
from sbpair.model.tiers import Capacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

    from sbpair.azure.interfaces import Kind, NamespaceControl

AnyDescribed = QueueSpec | Topic | Subscription | Rule
Json = dict[str, Any]
Described = TypeVar("Described", Queue, Topic, Subscription)

CLOUDS: Final = {
    ".servicebus.windows.net": AzureClouds.AZURE_PUBLIC_CLOUD,
    ".servicebus.usgovcloudapi.net": AzureClouds.AZURE_US_GOVERNMENT,
    ".servicebus.chinacloudapi.cn": AzureClouds.AZURE_CHINA_CLOUD,
}
SIGN_IN_HINT: Final = "sign in (az login): Resource Manager accepts no connection string; --via atom does"


@asynccontextmanager
async def open_arm(
    endpoint: Endpoint, group: ResourceGroup, *, call_seconds: float = CALL_SECONDS
) -> AsyncIterator[NamespaceControl]:
    """Open the namespace of `endpoint`, in `group`. Nothing is connected before the first call.

    Raises UsageError for a namespace in a cloud whose Resource Manager is unknown.
    """
    route, scopes = manager_route(endpoint)
    trusted = endpoint if is_local(endpoint) else replace(endpoint, ca_file=None, tls=True)
    async with (
        session_for(trusted) as session,
        token_credential(Identity()) as credential,
        ServiceBusManagementClient(
            credential,
            group.subscription,
            # The client sends tokens over https only; the route leads to an emulator's plain HTTP.
            base_url=f"https://{route.authority}",
            credential_scopes=scopes,
            transport=RoutedTransport(route, session, call_seconds),
            retry_total=0,
        ) as client,
    ):
        yield ArmNamespace(client, group.name, endpoint.name)


def manager_route(endpoint: Endpoint) -> tuple[HttpRoute, list[str]]:
    """Return the route to a cloud's Resource Manager, and its tokens' scopes. An emulator is its own manager."""
    cloud = next((each for suffix, each in CLOUDS.items() if endpoint.authority.lower().endswith(suffix)), None)
    found = get_arm_endpoints(cloud or AzureClouds.AZURE_PUBLIC_CLOUD)
    if is_local(endpoint):
        return http_route(endpoint), found["credential_scopes"]
    if cloud is None:
        raise UsageError(
            f"{endpoint.authority} is in no known cloud of Azure",
            hint=f"use --via arm for namespaces of {', '.join(CLOUDS)}",
        )
    authority = found["resource_manager"].removeprefix("https://").strip("/")
    return HttpRoute("https", authority, authority), found["credential_scopes"]


class ArmNamespace:
    """`NamespaceControl` of one namespace. Get one from `open_arm`."""

    def __init__(self, client: ServiceBusManagementClient, group: str, namespace: str) -> None:
        self._client = client
        self._address = (group, namespace)
        self._namespace = namespace
        self._capacity: Capacity | None = None
        self._capacity_lock = asyncio.Lock()

    # Queues by path, as the service reports them

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        return [
            arm_state(path, properties, counted=counts)
            for path, properties in await self._queues()
            if path.lower().startswith(prefix.lower())
        ]

    async def get(self, path: str) -> QueueState:
        return arm_state(path, await self._read(QueueSpec(path)))

    async def counts(self, path: str) -> Counts:
        return arm_counts(await self._read(QueueSpec(path)))

    # Entities of every kind

    async def tier(self) -> str:
        return (await self.capacity()).tier.name

    async def capacity(self) -> Capacity:
        async with self._capacity_lock:
            if self._capacity is None:
                with self._translated("read the namespace's tier"):
                    found = await self._client.namespaces.get(*self._address)
                sku, partitions = found["sku"], _properties(found).get("premiumMessagingPartitions")
                self._capacity = Capacity(tiers.tier_named(str(sku["name"])), sku.get("capacity"), partitions or None)
        return self._capacity

    async def queue_bytes(self) -> dict[str, int]:
        return {path: properties.get("sizeInBytes") or 0 for path, properties in await self._queues()}

    async def topic_bytes(self) -> dict[str, int]:
        return {path: properties.get("sizeInBytes") or 0 for path, properties in await self._topics()}

    async def queues(self) -> list[Queue]:
        found = await self._queues()
        return [await self._with_chosen_size(read(Queue(path), properties)) for path, properties in found]

    async def topics(self) -> list[Topic]:
        found = await self._topics()
        return [await self._with_chosen_size(read(Topic(path), properties)) for path, properties in found]

    async def subscriptions(self, topic: str) -> list[Subscription]:
        address = (*self._address, name_of(topic))
        with self._translated(f"list the subscriptions of {topic}"):
            found = await _all(self._client.subscriptions.list_by_topic(*address, enforce_https=False))
        return [read(Subscription(topic, name), properties) for name, properties in found]

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        address = (*self._address, name_of(topic), subscription)
        with self._translated(f"list the rules of {topic}/{subscription}"):
            found = await _all(self._client.rules.list_by_subscriptions(*address, enforce_https=False))
        return [read_rule(Rule(topic, subscription, name), properties) for name, properties in found]

    async def read(self, like: Kind) -> Kind:
        try:
            found = await self._read(like)
        except EntityMissing:
            await self._check_other_kind(like)
            raise
        if isinstance(like, Rule):
            return read_rule(like, found)
        return await self._with_chosen_size(read(like, found))

    async def create(self, entity: AnyDescribed) -> bool:
        """Create an entity after a check that it is missing: a PUT would change an existing one."""
        with suppress(EntityMissing):
            await self._read(entity)
            return False
        if isinstance(entity, (QueueSpec, Topic)) and ((await self.capacity()).partitions or 1) > 1:
            entity = with_partitions(entity)
        with self._translated(f"create {_label(entity)}"):
            try:
                await self._put(entity, body_of(entity))
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    async def delete_rule(self, rule: Rule) -> None:
        with suppress(EntityMissing), self._translated(f"delete {_label(rule)}"):
            await self._client.rules.delete(*self._address, name_of(rule.topic), rule.subscription, rule.name)

    async def _queues(self) -> list[tuple[str, Json]]:
        with self._translated("list the queues"):
            found = await _all(self._client.queues.list_by_namespace(*self._address, enforce_https=False))
        return [(path_of(name), properties) for name, properties in found]

    async def _topics(self) -> list[tuple[str, Json]]:
        with self._translated("list the topics"):
            # An emulator's page links are plain HTTP; all requests take its route.
            found = await _all(self._client.topics.list_by_namespace(*self._address, enforce_https=False))
        return [(path_of(name), properties) for name, properties in found]

    async def _read(self, entity: AnyDescribed) -> Json:
        with self._translated(f"read {_label(entity)}"):
            return _properties(await self._get(entity))

    async def _get(self, entity: AnyDescribed) -> Any:
        client, address = self._client, self._address
        match entity:
            case Topic():
                return await client.topics.get(*address, name_of(entity.path))
            case Subscription():
                return await client.subscriptions.get(*address, name_of(entity.topic), entity.name)
            case Rule():
                return await client.rules.get(*address, name_of(entity.topic), entity.subscription, entity.name)
        return await client.queues.get(*address, name_of(entity.path))

    async def _put(self, entity: AnyDescribed, body: Any) -> None:
        client, address = self._client, self._address
        match entity:
            case Topic():
                await client.topics.create_or_update(*address, name_of(entity.path), body)
            case Subscription():
                await client.subscriptions.create_or_update(*address, name_of(entity.topic), entity.name, body)
            case Rule():
                named = (name_of(entity.topic), entity.subscription, entity.name)
                await client.rules.create_or_update(*address, *named, body)
            case _:
                await client.queues.create_or_update(*address, name_of(entity.path), body)

    async def _with_chosen_size(self, entity: Described) -> Described:
        """Divide the size of a partitioned entity; only the tier shows whether it was multiplied."""
        if isinstance(entity, Subscription) or not entity.enable_partitioning:
            return entity
        tier = (await self.capacity()).tier
        return replace(
            entity,
            max_size_in_megabytes=tiers.chosen_megabytes(tier, entity.max_size_in_megabytes, partitioned=True),
        )

    async def _check_other_kind(self, like: Queue | Topic | Subscription | Rule) -> None:
        if isinstance(like, (Subscription, Rule)):
            return
        other = Topic(like.path) if isinstance(like, Queue) else Queue(like.path)
        with suppress(EntityMissing):
            await self._read(other)
            raise NameTaken(
                f"{like.path} is a {other.kind} in {self._namespace}, not a {like.kind}",
                hint="rename or delete the entity of that name",
            )

    def _translated(self, what: str) -> AbstractContextManager[None]:
        return translate_management_errors(what, self._namespace, sign_in=SIGN_IN_HINT)


async def _all(pages: AsyncIterable[Any]) -> list[tuple[str, Json]]:
    return [(str(each["name"]), _properties(each)) async for each in pages]


def _properties(resource: Any) -> Json:
    return dict(resource.get("properties") or {})


def _label(entity: AnyDescribed) -> str:
    return f"the {entity.kind} {entity.path}"
