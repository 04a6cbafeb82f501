"""One namespace's management side over azure-servicebus' administration client: the only adapter to that client.

Thin: it calls, converts and translates errors. Durations are text, since TimeSpan.MaxValue does not fit a timedelta.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.azure.arm_json import with_chosen_size
from sbpair.azure.atom_entities import (
    Created,
    atom_counts,
    atom_state,
    atom_usage,
    count_figures,
    description,
    queue_of,
    rule_of,
    sdk_action,
    sdk_filter,
    skip_answer,
    subscription_of,
    topic_of,
)
from sbpair.azure.credentials import connection_string, token_credential
from sbpair.azure.interfaces import Kind, NamespaceProbe
from sbpair.azure.management_errors import answer_of, translate_management_errors
from sbpair.azure.transport import CALL_SECONDS, RoutedTransport, http_route, session_for
from sbpair.errors import NameTaken, PartitionsWanted, ServiceRefused
from sbpair.model import tiers
from sbpair.model.durations import TIMESPAN_MAX
from sbpair.model.entities import Described, Queue, Rule, Subscription, Topic, with_partitions
from sbpair.model.pair import SasKey
from sbpair.model.queues import Counts, QueueSpec, QueueState
from sbpair.model.tiers import Capacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from xml.etree.ElementTree import Element

    from sbpair.azure.arm_json import Sized
    from sbpair.model.entities import AnyEntity
    from sbpair.model.pair import Endpoint

RESTATED = ("max_size_in_megabytes", "default_message_time_to_live", "auto_delete_on_idle")
"""Properties that an update must not send back as the SDK read them: 16 times the size, and TimeSpan.MaxValue."""

MAX_PROBED_QUEUES = 100


@asynccontextmanager
async def open_atom(endpoint: Endpoint, *, call_seconds: float = CALL_SECONDS) -> AsyncIterator[AtomNamespace]:
    """Open the namespace of `endpoint`. Nothing is connected before the first call; `call_seconds` limits each."""
    async with AsyncExitStack() as stack:
        # Coroutines may share the client, which keeps no state per request: its session is created for it.
        session = await stack.enter_async_context(session_for(endpoint))
        transport = RoutedTransport(http_route(endpoint), session, call_seconds)
        if isinstance(endpoint.credential, SasKey):
            text = connection_string(endpoint.authority, endpoint.credential)
            client = ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)
        else:
            credential = await stack.enter_async_context(token_credential(endpoint.credential))
            client = ServiceBusAdministrationClient(endpoint.authority, credential, transport=transport, retry_total=0)
        yield AtomNamespace(await stack.enter_async_context(client), endpoint.name)


class AtomNamespace:
    """Implements each protocol of `interfaces` except DestinationControl. Get one from `open_atom`.

    Every method raises only errors of `sbpair.errors`, and may be called by several coroutines at once.
    """

    def __init__(self, client: ServiceBusAdministrationClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._wants_partitions = False
        self._capacity: Capacity | None = None
        self._capacity_lock = asyncio.Lock()

    # The namespace

    async def tier(self) -> str:
        return (await self.capacity()).tier.name

    async def tier_name(self) -> str:
        """Return the tier as the service names it, known to sbpair or not."""
        return (await self._read_sku())[0]

    async def capacity(self) -> Capacity:
        async with self._capacity_lock:
            if self._capacity is None:
                name, units = await self._read_sku()
                self._capacity = Capacity(tiers.tier_named(name), units)
        return self._capacity

    async def probe(self) -> NamespaceProbe:
        """Read the tier's name, known or not, and the first queue that links may be opened to."""
        name, _ = await self._read_sku()
        with self._translated("list the queues"):
            return NamespaceProbe(name, await self._linkable_queue())

    async def _read_sku(self) -> tuple[str, int | None]:
        with self._translated("read the namespace's tier"):
            try:
                found = await self._client.get_namespace_properties()
            except AttributeError as error:
                # The SDK decodes any other answer as a namespace without a description.
                raise ServiceRefused(
                    f"{self._namespace} does not report its tier", hint="check the address: is it a Service Bus?"
                ) from error
        return str(getattr(found.messaging_sku, "value", found.messaging_sku)), found.messaging_units

    async def _linkable_queue(self) -> str:
        seen = 0
        async for each in self._client.list_queues():
            if _accepts_any_link(atom_state(each.name, each).spec):
                return str(each.name)
            seen += 1
            if seen == MAX_PROBED_QUEUES:
                break
        return ""

    # Queues by path, as the service reports them

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        with self._translated("list the queues"):
            found = [each async for each in self._client.list_queues() if _under(prefix, each.name)]
            listed = self._client.list_queues_runtime_properties() if counts and found else None
            runtime = {each.name.lower(): each async for each in listed if _under(prefix, each.name)} if listed else {}
        figures = {name: (atom_counts(each), atom_usage(each)) for name, each in runtime.items()}
        return [atom_state(each.name, each, *figures.get(each.name.lower(), ())) for each in found]

    async def get(self, path: str) -> QueueState:
        with self._translated(f"read the queue {path}"):
            try:
                return atom_state(path, await self._client.get_queue(path))
            except AttributeError as error:
                raise self._taken("queue", path) from error

    async def counts(self, path: str) -> Counts:
        with self._translated(f"count the messages of {path}"):
            return atom_counts(await self._client.get_queue_runtime_properties(path))

    async def exact_counts(self, path: str) -> Counts:
        with self._translated(f"count the messages of {path}"):
            runtime = await self._client.get_queue_runtime_properties(path)
        if any(figure is None for figure in count_figures(runtime)):
            raise ServiceRefused(
                f"{self._namespace} does not report how many messages {path} holds",
                hint="only queues known to be empty are removed: receive or peek its messages",
            )
        return atom_counts(runtime)

    async def description(self, path: str) -> dict[str, str]:
        """Return the elements of a queue's description, by name, exactly as the service wrote them."""
        found: dict[str, str] = {}

        def keep(_answer: object, entry: Element, _headers: object) -> Element:
            found.update({each.tag.rpartition("}")[2]: each.text or "" for each in entry.iter()})
            return entry

        with self._translated(f"read the queue {path}"):
            await self._client.get_queue(path, cls=keep)
        return found

    async def set_status(self, path: str, status: str) -> None:
        """Send the whole description with the new status: the service knows no smaller change."""
        with self._translated(f"set the status of the queue {path}"):
            properties = await self._client.get_queue(path)
            chosen = await self._with_chosen_size(queue_of(properties))
            restated = {name: getattr(chosen, name) for name in RESTATED}
            await self._client.update_queue(properties, **restated, status=status)

    async def delete(self, path: str) -> None:
        with self._translated(f"delete the queue {path}"):
            await self._client.delete_queue(path)

    # Entities of every kind

    async def queue_bytes(self) -> dict[str, int]:
        with self._translated("read the sizes of the queues"):
            listed = self._client.list_queues_runtime_properties()
            return {each.name: each.size_in_bytes or 0 async for each in listed}

    async def topic_bytes(self) -> dict[str, int]:
        with self._translated("read the sizes of the topics"):
            listed = self._client.list_topics_runtime_properties()
            return {each.name: each.size_in_bytes or 0 async for each in listed}

    async def queues(self) -> list[Queue]:
        with self._translated("list the queues"):
            found = [queue_of(each) async for each in self._client.list_queues()]
        return [await self._with_chosen_size(each) for each in found]

    async def topics(self) -> list[Topic]:
        with self._translated("list the topics"):
            found = [topic_of(each) async for each in self._client.list_topics()]
        return [await self._with_chosen_size(each) for each in found]

    async def subscriptions(self, topic: str) -> list[Subscription]:
        with self._translated(f"list the subscriptions of {topic}"):
            return [subscription_of(topic, each) async for each in self._client.list_subscriptions(topic)]

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        with self._translated(f"list the rules of {topic}/{subscription}"):
            listed = self._client.list_rules(topic, subscription)
            return [rule_of(topic, subscription, each) async for each in listed]

    async def read(self, like: Kind) -> Kind:
        found = await self._read(like)
        return cast("Kind", await self._with_chosen_size(found) if isinstance(found, (Queue, Topic)) else found)

    async def read_effective(self, like: Kind) -> Kind:
        """Read an entity with its size as the service reports it, in one call: the tier is not needed."""
        return cast("Kind", await self._read(like))

    async def create(self, entity: Described) -> bool:
        """Create an entity, with partitions in a namespace that is partitioned as a whole.

        Such a namespace does not report that, and refuses any other entity.
        """
        if isinstance(entity, (Subscription, Rule)):
            return await self.create_exact(entity)
        if not self._wants_partitions:
            with suppress(PartitionsWanted):
                return await self.create_exact(entity)
            self._wants_partitions = True
        return await self.create_exact(with_partitions(entity))

    async def create_exact(self, entity: Described) -> bool:
        """Create an entity without adding partitions. Raises PartitionsWanted."""
        with self._translated(f"create the {entity.kind} {entity.path}"):
            try:
                await self._creation(entity)
            except Created:
                return True
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    async def delete_rule(self, rule: Rule) -> None:
        with self._translated(f"delete the rule {rule.path}"), suppress(ResourceNotFoundError):
            await self._client.delete_rule(rule.topic, rule.subscription, rule.name)

    async def _read(self, like: AnyEntity) -> AnyEntity:
        client = self._client
        with self._translated(f"read the {like.kind} {like.path}"):
            try:
                match like:
                    case Queue(path=path):
                        return queue_of(await client.get_queue(path))
                    case Topic(path=path):
                        return topic_of(await client.get_topic(path))
                    case Subscription(topic=topic, name=name):
                        return subscription_of(topic, await client.get_subscription(topic, name))
                    case Rule(topic=topic, subscription=subscription, name=name):
                        return rule_of(topic, subscription, await client.get_rule(topic, subscription, name))
            except AttributeError as error:
                raise self._taken(like.kind, like.path) from error

    def _creation(self, entity: Described) -> Awaitable[object]:
        match entity:
            case QueueSpec(path=path):
                return self._client.create_queue(path, cls=skip_answer, **description(entity))  # type: ignore[arg-type]
            case Topic(path=path):
                return self._client.create_topic(path, **description(entity))  # type: ignore[arg-type]
            case Subscription(topic=topic, name=name):
                return self._client.create_subscription(topic, name, **description(entity))  # type: ignore[arg-type]
            case Rule(topic=topic, subscription=subscription, name=name):
                return self._client.create_rule(
                    topic, subscription, name, filter=sdk_filter(entity.filter), action=sdk_action(entity.action)
                )

    async def _with_chosen_size(self, entity: Sized) -> Sized:
        return with_chosen_size(entity, (await self.capacity()).tier) if entity.enable_partitioning else entity

    def _translated(self, what: str) -> AbstractContextManager[None]:
        return translate_management_errors(what, self._namespace)

    def _taken(self, kind: str, path: str) -> NameTaken:
        # The SDK decodes another kind's description as one of this kind that has none.
        return NameTaken(
            f"{path} is not a {kind} in {self._namespace}", hint="rename or delete the entity of that name"
        )


def _accepts_any_link(spec: QueueSpec) -> bool:
    """Return whether a link may be opened without effect: no idle deletion to postpone, and plain receivers work."""
    lasting = spec.auto_delete_on_idle == TIMESPAN_MAX
    return lasting and spec.status == "Active" and not spec.requires_session and not spec.forward_to


def _under(prefix: str, path: str) -> bool:
    return path.lower().startswith(prefix.lower())
