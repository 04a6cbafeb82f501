"""Creation and change of entities over azure-servicebus' administration client: the only adapter to that client.

Reading is `atom`'s, which does not need the client: it takes as long to load as a short command runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields

from azure.core.exceptions import HttpResponseError
from azure.servicebus import management as sdk
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.azure.credentials import connection_string, identity_credential
from sbpair.azure.http_client import http_route
from sbpair.azure.management_errors import answer_of, translate_answers
from sbpair.azure.transport import RoutedTransport, session_for
from sbpair.model.entities import (
    CORRELATION_KEYS,
    EVERY_MESSAGE,
    NAMES,
    NO_MESSAGE,
    CorrelationFilter,
    Described,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
)
from sbpair.model.pair import Endpoint, Identity
from sbpair.model.queues import QueueSpec

Value = str | int | bool

# Sent with each creation of a queue, default or not: the original client sent them, and a default may change.
ALWAYS_SENT = (
    "lock_duration",
    "max_size_in_megabytes",
    "max_delivery_count",
    "default_message_time_to_live",
    "auto_delete_on_idle",
    "dead_lettering_on_message_expiration",
    "enable_batched_operations",
)
RESTATED = ("max_size_in_megabytes", "default_message_time_to_live", "auto_delete_on_idle")
"""Properties that an update must not send back as the SDK read them: 16 times the size, and TimeSpan.MaxValue."""


@asynccontextmanager
async def open_administration(endpoint: Endpoint, call_seconds: float) -> AsyncIterator[SdkAdministration]:
    """Open the namespace of `endpoint`. Nothing is connected before the first call; `call_seconds` limits each."""
    async with AsyncExitStack() as stack:
        # Coroutines may share the client, which keeps no state per request: its session is created for it.
        session = await stack.enter_async_context(session_for(endpoint))
        transport = RoutedTransport(http_route(endpoint), session, call_seconds, proxy=endpoint.proxy)
        if isinstance(endpoint.credential, Identity):
            credential = await stack.enter_async_context(identity_credential())
            client = ServiceBusAdministrationClient(endpoint.authority, credential, transport=transport, retry_total=0)
        else:
            text = connection_string(endpoint.authority, endpoint.credential)
            client = ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)
        yield SdkAdministration(await stack.enter_async_context(client), endpoint)


class SdkAdministration:
    """Get one from `open_administration`. Every method raises only errors of `sbpair.errors`."""

    def __init__(self, client: ServiceBusAdministrationClient, endpoint: Endpoint) -> None:
        self._client = client
        self._namespace = endpoint.name

    async def create(self, entity: Described) -> bool:
        """Create an entity without adding partitions. Returns False for a name in use. Raises PartitionsWanted."""
        with translate_answers(f"create the {entity.kind} {entity.path}", self._namespace):
            try:
                await self._creation(entity)
            except Created:
                return True
            except HttpResponseError as error:
                if answer_of(error).name_is_taken:
                    return False
                raise
        return True

    async def set_status(self, queue: Queue, status: str) -> None:
        """Send the whole description with the new status: the service knows no smaller change.

        `queue` is the queue as it is, with its chosen size.
        """
        with translate_answers(f"set the status of the queue {queue.path}", self._namespace):
            properties = await self._client.get_queue(queue.path)
            restated = {name: getattr(queue, name) for name in RESTATED}
            await self._client.update_queue(properties, **restated, status=status)

    def _creation(self, entity: Described) -> Awaitable[object]:
        match entity:
            case QueueSpec(path=path):
                return self._client.create_queue(path, cls=skip_answer, **description(entity))  # type: ignore[arg-type]
            case Topic(path=path):
                return self._client.create_topic(path, **description(entity))  # type: ignore[arg-type]
            case Subscription(topic=topic, name=name):
                return self._client.create_subscription(topic, name, **description(entity))  # type: ignore[arg-type]
            case Rule(topic=topic, subscription=subscription, name=name):
                action = sdk.SqlRuleAction(entity.action) if entity.action else None
                selected = sdk_filter(entity.filter)
                return self._client.create_rule(topic, subscription, name, filter=selected, action=action)


def description(entity: QueueSpec | Topic | Subscription) -> dict[str, Value]:
    """Return the keyword arguments of a creation: ALWAYS_SENT, and properties that differ from the default."""
    values = {each.name: getattr(entity, each.name) for each in fields(entity) if each.name not in NAMES}
    defaults = {each.name: each.default for each in fields(entity)}
    always = ALWAYS_SENT if isinstance(entity, QueueSpec) else ()
    return {name: value for name, value in values.items() if name in always or value != defaults[name]}


def sdk_filter(selected: SqlFilter | CorrelationFilter) -> sdk.SqlRuleFilter | sdk.CorrelationRuleFilter:
    if isinstance(selected, CorrelationFilter):
        given = {name: getattr(selected, name) or None for name in CORRELATION_KEYS}
        return sdk.CorrelationRuleFilter(**given, properties=dict(selected.properties))
    if selected.expression == EVERY_MESSAGE:
        return sdk.TrueRuleFilter()
    return sdk.FalseRuleFilter() if selected.expression == NO_MESSAGE else sdk.SqlRuleFilter(selected.expression)


class Created(Exception):
    """The service has created the entity. Raised inside the SDK, and caught in `create`."""


def skip_answer(*_answer: object) -> None:
    """Raise Created: decoding the unused answer costs the SDK as much as the request."""
    raise Created
