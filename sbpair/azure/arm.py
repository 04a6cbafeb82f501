"""One namespace's management side over Azure Resource Manager: entities, and hybrid connections of a relay namespace.

They are two resource providers, each with its client: azure-mgmt-servicebus, and azure-mgmt-relay of the extra `relay`.
Thin, like `atom`: it calls, converts and translates errors. It signs in as an identity, whatever the namespace's own
credential is: Resource Manager accepts no shared access key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, cast

from azure.core import AzureClouds
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.rest import HttpRequest
from azure.mgmt.core.tools import get_arm_endpoints
from azure.mgmt.servicebus.aio import ServiceBusManagementClient

from sbpair.azure.credentials import shared_tokens
from sbpair.azure.descriptions import (
    body_of,
    bytes_of,
    capacity_of,
    name_of,
    of_json,
    path_of,
    queue_state,
    read_json,
    with_chosen_size,
)
from sbpair.azure.http_client import HttpRoute, http_route, is_local
from sbpair.azure.management_errors import answer_of, translate_answers
from sbpair.azure.transport import RoutedTransport, session_for
from sbpair.errors import EntityMissing, MachineLacks, NameTaken, UsageError
from sbpair.model.entities import AnyEntity, Described, Kind, Queue, Rule, Sized, Subscription, Topic, with_partitions
from sbpair.model.entity_properties import names_of
from sbpair.model.pair import Endpoint, Identity, ResourceGroup, is_loopback
from sbpair.model.queues import QueueSpec, QueueState
from sbpair.model.tiers import Capacity

Json = dict[str, Any]
Listing = list[tuple[str, Json]]
Clients = Callable[[Callable[..., Any], str], Any]
"""Makes a client of a class for a subscription; all of them share the session and the identity."""

CLOUDS: Final = {
    ".servicebus.windows.net": AzureClouds.AZURE_PUBLIC_CLOUD,
    ".servicebus.usgovcloudapi.net": AzureClouds.AZURE_US_GOVERNMENT,
    ".servicebus.chinacloudapi.cn": AzureClouds.AZURE_CHINA_CLOUD,
}
RELAY_SIGN_IN_HINT: Final = "sign in (az login): Resource Manager accepts no connection string"
SIGN_IN_HINT: Final = f"{RELAY_SIGN_IN_HINT}; --via atom does"
SUBSCRIPTIONS: Final = "/subscriptions?api-version=2022-12-01"


@asynccontextmanager
async def open_arm(endpoint: Endpoint, group: ResourceGroup) -> AsyncIterator[ArmNamespace]:
    """Open the namespace of `endpoint`, in `group`. Nothing is connected before the first call.

    Raises UsageError for a namespace in a cloud whose Resource Manager is unknown.
    """
    async with open_clients(endpoint) as client_of:
        client = client_of(ServiceBusManagementClient, group.subscription)
        yield ArmNamespace(client, group.name, endpoint.name)


@asynccontextmanager
async def open_clients(endpoint: Endpoint) -> AsyncIterator[Clients]:
    """Open the clients of azure-mgmt-… for the Resource Manager of `endpoint`. Raises UsageError as `open_arm` does."""
    route, scopes = manager_route(endpoint)
    # Resource Manager accepts no key.
    identity = endpoint.credential if isinstance(endpoint.credential, Identity) else Identity()
    trusted = endpoint if is_local(endpoint) else replace(endpoint, ca_file=None, tls=True)
    async with session_for(trusted) as session, shared_tokens(identity) as credential:

        def client_of(make: Callable[..., Any], subscription: str) -> Any:
            return make(
                credential,
                subscription,
                # The client sends tokens over https only; the route leads to an emulator's plain HTTP.
                base_url=f"https://{route.authority}",
                credential_scopes=scopes,
                transport=RoutedTransport(route, session, proxy=endpoint.proxy),
                retry_total=0,
            )

        yield client_of


def manager_route(endpoint: Endpoint) -> tuple[HttpRoute, list[str]]:
    """Return the route to a cloud's Resource Manager, and its tokens' scopes. An emulator is its own manager."""
    cloud = next((each for suffix, each in CLOUDS.items() if endpoint.authority.lower().endswith(suffix)), None)
    found = get_arm_endpoints(cloud or AzureClouds.AZURE_PUBLIC_CLOUD)
    if is_local(endpoint):
        if not (endpoint.tls or is_loopback(endpoint.host)):
            raise UsageError(
                f"a token of Resource Manager would travel without TLS to {endpoint.host}",
                hint="use an emulator with TLS or on this machine, or keys instead: --via atom",
            )
        return http_route(endpoint), found["credential_scopes"]
    if cloud is None:
        raise UsageError(
            f"{endpoint.authority} is in no known cloud of Azure",
            hint=f"use --via arm for namespaces of {', '.join(CLOUDS)}",
        )
    authority = found["resource_manager"].removeprefix("https://").strip("/")
    return HttpRoute("https", authority, authority), found["credential_scopes"]


async def list_subscriptions(client_of: Clients) -> list[str]:
    """Return the ids of all subscriptions that the identity can read."""
    found, links = list[str](), [SUBSCRIPTIONS]
    client = client_of(ServiceBusManagementClient, "-")
    with translate_answers("list the subscriptions", "Resource Manager", sign_in=RELAY_SIGN_IN_HINT):
        for link in links:
            answer = await client.send_request(HttpRequest("GET", link), enforce_https=False)
            answer.raise_for_status()
            found += [str(each["subscriptionId"]) for each in answer.json()["value"]]
            links += {answer.json().get("nextLink")} - {None, *links}
    return found


async def list_namespaces(client_of: Clients, subscription: str, group: str = "") -> list[ArmNamespace]:
    """Return the namespaces of a subscription, or of one of its resource groups."""
    client = client_of(ServiceBusManagementClient, subscription)
    listing = (client.namespaces.list_by_resource_group, group) if group else (client.namespaces.list,)
    what = f"list the namespaces of {group or f'subscription {subscription}'}"
    with translate_answers(what, "Resource Manager", sign_in=RELAY_SIGN_IN_HINT):
        found = [{**each, "properties": _properties(each)} for each in await all_pages(*listing)]
        return [ArmNamespace(client, each["id"].split("/")[4], each["name"], each) for each in found]


class ArmNamespace:
    """One namespace, with its `resource` if it was listed. Get one from `open_arm` or `list_namespaces`."""

    takes_first_rule: ClassVar = False

    def __init__(self, client: Any, group: str, namespace: str, resource: Json | None = None) -> None:
        self.group = group
        self.name = namespace
        self.resource: Json = resource or {}
        self._client = client
        self._address = (group, namespace)
        self._capacity: Capacity | None = None
        self._capacity_lock = asyncio.Lock()

    # Queues by path, as the service reports them

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        with self._translated("list the queues"):
            return [
                queue_state(path, of_json(properties), counted=counts)
                for path, properties in await self._listed(self._client.queues.list_by_namespace)
                if path.lower().startswith(prefix.lower())
            ]

    async def get(self, path: str) -> QueueState:
        with self._translated(f"read the queue {path}"):
            return queue_state(path, of_json(await self._read(QueueSpec(path))))

    # The namespace itself

    async def aliases(self) -> list[str]:
        """Return the aliases of Geo-Disaster Recovery, each with its role and partner."""
        with self._translated("list the aliases"):
            found = await all_pages(self._client.disaster_recovery_configs.list, *self._address)
            pairs = [(each["name"], _properties(each)) for each in found]
        return [f"{name} ({has.get('role')}, partner {has.get('partnerNamespace') or 'none'})" for name, has in pairs]

    async def network_rules(self) -> Json:
        with self._translated("read the network rules"):
            found = await self._client.namespaces.get_network_rule_set(*self._address, enforce_https=False)
            return _properties(found)

    # Entities of every kind

    async def capacity(self) -> Capacity:
        async with self._capacity_lock:
            if self._capacity is None:
                with self._translated("read the namespace's tier"):
                    found = await self._client.namespaces.get(*self._address)
                    self._capacity = capacity_of(found["sku"], _properties(found))
        return self._capacity

    async def list_all(self, kind: type[Sized]) -> list[tuple[Sized, int]]:
        listing = getattr(self._client, f"{kind.kind}s")
        with self._translated(f"list the {kind.kind}s"):
            found = await self._listed(listing.list_by_namespace)
            return [(await self._chosen(kind(path), each), bytes_of(of_json(each))) for path, each in found]

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        with self._translated(f"list the rules of {topic}/{subscription}"):
            found = await self._listed(self._client.rules.list_by_subscriptions, name_of(topic), subscription)
            return [read_json(Rule(topic, subscription, name), properties) for name, properties in found]

    async def read(self, like: Kind) -> Kind:
        with self._translated(f"read {_label(like)}"):
            try:
                found = await self._read(like)
            except EntityMissing:
                await self._check_other_kind(like)
                raise
            return await self._chosen(like, found)

    async def create(self, entity: Described) -> bool:
        """Create an entity after a check that it is missing: a PUT would change an existing one."""
        with suppress(EntityMissing):
            await self._read(entity)
            return False
        if isinstance(entity, (QueueSpec, Topic)) and ((await self.capacity()).partitions or 1) > 1:
            entity = with_partitions(entity)
        operations, names = self._resource(entity)
        with self._translated(f"create {_label(entity)}"):
            try:
                await operations.create_or_update(*self._address, *names, body_of(entity))
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    async def delete_rule(self, rule: Rule) -> None:
        operations, names = self._resource(rule)
        with suppress(EntityMissing), self._translated(f"delete {_label(rule)}"):
            await operations.delete(*self._address, *names)

    async def _listed(self, listing: Callable[..., Any], *address: str) -> Listing:
        found = await all_pages(listing, *self._address, *address)
        return [(path_of(str(each["name"])), _properties(each)) for each in found]

    async def _read(self, entity: Described) -> Json:
        operations, names = self._resource(entity)
        with self._translated(f"read {_label(entity)}"):
            return _properties(await operations.get(*self._address, *names))

    def _resource(self, entity: Described) -> tuple[Any, tuple[str, ...]]:
        """Return the client's operations for the kind of `entity`, and the names that address it in the namespace."""
        first, *others = names_of(entity)
        return getattr(self._client, f"{entity.kind}s"), (name_of(first), *others)

    async def _chosen(self, named: Kind, properties: Json) -> Kind:
        """Read an entity, with its chosen size."""
        entity = read_json(named, properties)
        if isinstance(entity, (Queue, Topic)) and entity.enable_partitioning:
            return cast("Kind", with_chosen_size(entity, (await self.capacity()).tier))
        return entity

    async def _check_other_kind(self, like: AnyEntity) -> None:
        if isinstance(like, (Subscription, Rule)):
            return
        other = Topic(like.path) if isinstance(like, Queue) else Queue(like.path)
        with suppress(EntityMissing):
            await self._read(other)
            raise NameTaken(
                f"{like.path} is a {other.kind} in {self.name}, not a {like.kind}",
                hint="rename or delete the entity of that name",
            )

    def _translated(self, what: str) -> AbstractContextManager[None]:
        return translate_answers(what, self.name, sign_in=SIGN_IN_HINT)


async def all_pages(listing: Callable[..., Any], *address: str) -> list[Any]:
    """Return the resources of all pages of a listing."""
    # An emulator's page links are plain HTTP; all requests take its route.
    pages = listing(*address, enforce_https=False).by_page()
    found, links = [], set[str]()
    async for page in pages:
        found += [each async for each in page]
        if pages.continuation_token in links:
            raise ValueError("a page leads back to an earlier one")
        links.add(pages.continuation_token)
    return found


def _properties(resource: Any) -> Json:
    return dict(resource.get("properties") or {})


def _label(entity: Described) -> str:
    return f"the {entity.kind} {entity.path}"


@dataclass(frozen=True, slots=True)
class HybridDescription:
    """The properties of a hybrid connection that can be chosen."""

    requires_client_authorization: bool = True
    user_metadata: str = ""


class RelayNamespace:
    """The hybrid connections of one namespace. Get one from `open_relay_arm`."""

    def __init__(self, client: Any, group: str, namespace: str) -> None:
        self._connections = client.hybrid_connections
        self._group = group
        self._namespace = namespace

    async def find(self, path: str) -> HybridDescription | None:
        """Return the description of a hybrid connection; None if it does not exist. Raises SbpairError."""
        with self._translated("read a hybrid connection"):
            try:
                found = await self._connections.get(self._group, self._namespace, name_of(path))
            except ResourceNotFoundError as error:
                # A namespace that does not exist is another error than an endpoint that does not.
                if getattr(error.error, "code", "") in ("ResourceGroupNotFound", "ParentResourceNotFound"):
                    raise
                return None
            return HybridDescription(found.requires_client_authorization is not False, found.user_metadata or "")

    async def create(self, path: str, description: HybridDescription) -> None:
        """Create a hybrid connection. Raises SbpairError."""
        authorized, metadata = description.requires_client_authorization, description.user_metadata
        own = {"userMetadata": metadata} if metadata else {}
        wanted = {"properties": {"requiresClientAuthorization": authorized, **own}}
        with self._translated("create a hybrid connection"):
            await self._connections.create_or_update(self._group, self._namespace, name_of(path), wanted)

    def _translated(self, what: str) -> AbstractContextManager[None]:
        return translate_answers(what, self._namespace, sign_in=RELAY_SIGN_IN_HINT)


@asynccontextmanager
async def open_relay_arm(endpoint: Endpoint, group: ResourceGroup) -> AsyncIterator[RelayNamespace]:
    """Open the relay namespace of `endpoint`, in `group`. Raises MachineLacks without azure-mgmt-relay; UsageError."""
    try:
        from azure.mgmt.relay.aio import RelayAPIMgmtClient
    except ImportError as error:
        raise MachineLacks("azure-mgmt-relay is not installed", hint="pip install 'sbpair[relay]'") from error
    async with open_clients(endpoint) as client_of:
        yield RelayNamespace(client_of(RelayAPIMgmtClient, group.subscription), group.name, endpoint.name)
