"""Creation and change of entities over azure-servicebus' administration client: the only adapter to that client.

Reading is `atom`'s, which does not need the client: it takes as long to load as a short command runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from azure.core.exceptions import HttpResponseError
from azure.servicebus import management as sdk
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.azure.credentials import connection_string, shared_tokens
from sbpair.azure.http_client import http_route
from sbpair.azure.management_errors import answer_of, translate_answers
from sbpair.azure.transport import RoutedTransport, session_for
from sbpair.errors import NotAuthenticated
from sbpair.model.connect_errors import explain_refusal
from sbpair.model.entities import (
    CORRELATION_KEYS,
    EVERY_MESSAGE,
    NO_MESSAGE,
    CorrelationFilter,
    Described,
    Queue,
    Rule,
    SqlFilter,
)
from sbpair.model.entity_properties import PROPERTIES_OF, names_of
from sbpair.model.pair import Credential, Endpoint, Identity
from sbpair.model.queues import QueueSpec

RESTATED = ("max_size_in_megabytes", "default_message_time_to_live", "auto_delete_on_idle")
"""Properties that an update must not send back as the SDK read them: 16 times the size, and TimeSpan.MaxValue."""


@asynccontextmanager
async def open_administration(endpoint: Endpoint, call_seconds: float) -> AsyncIterator[SdkAdministration]:
    """Open the namespace of `endpoint`. Nothing is connected before the first call; `call_seconds` limits each."""
    async with AsyncExitStack() as stack:
        # Coroutines may share the client, which keeps no state per request: its session is created for it.
        session = await stack.enter_async_context(session_for(endpoint))
        transport = RoutedTransport(http_route(endpoint), session, call_seconds, proxy=endpoint.proxy)
        present = endpoint.present
        if isinstance(present, Identity):
            credential = await stack.enter_async_context(shared_tokens(present))
            client = ServiceBusAdministrationClient(endpoint.authority, credential, transport=transport, retry_total=0)
        else:
            text = connection_string(endpoint.authority, present)
            client = ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)
        yield SdkAdministration(await stack.enter_async_context(client), endpoint, present)


class SdkAdministration:
    """Get one from `open_administration`. Every method raises only errors of `sbpair.errors`.

    `credential` is the one that it signs in with.
    """

    def __init__(self, client: ServiceBusAdministrationClient, endpoint: Endpoint, credential: Credential) -> None:
        self.credential = credential
        self._client = client
        self._endpoint = endpoint

    async def create(self, entity: Described, **options: Any) -> bool:
        """Create an entity without adding partitions. Returns False for a name in use. Raises PartitionsWanted.

        `options` are further ones of the SDK, or of the transport.
        """
        with self._translating(f"create the {entity.kind} {entity.path}"):
            try:
                await self._creation(entity, options)
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
        with self._translating(f"set the status of the queue {queue.path}"):
            properties = await self._client.get_queue(queue.path)
            restated = {name: getattr(queue, name) for name in RESTATED}
            await self._client.update_queue(properties, **restated, status=status)

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        """Raise errors as `translate_answers` does. The SDK signs by the local clock, which may be the cause."""
        try:
            with translate_answers(what, self._endpoint.name):
                yield
        except NotAuthenticated as error:
            raise explain_refusal(error, self._endpoint) from error.__cause__

    def _creation(self, entity: Described, options: dict[str, Any]) -> Awaitable[object]:
        create: Callable[..., Awaitable[object]] = getattr(self._client, f"create_{entity.kind}")
        # The SDK accepts no such function for a topic.
        own = {"cls": skip_answer} if isinstance(entity, QueueSpec) else {}
        return create(*names_of(entity), **own, **(description(entity) | options))


def description(entity: Described) -> dict[str, Any]:
    """Return the keyword arguments of a creation: properties that differ from the default; of a queue, some always.

    An empty text is never sent.
    """
    if isinstance(entity, Rule):
        action = sdk.SqlRuleAction(entity.action) if entity.action else None
        return {"filter": sdk_filter(entity.filter), "action": action}
    values = ((row, getattr(entity, row.name)) for row in PROPERTIES_OF[type(entity)])
    of_queue = isinstance(entity, QueueSpec)
    sent = ((row, value) for row, value in values if value != row.default or (of_queue and row.is_sent))
    return {row.name: value for row, value in sent if value != ""}


def sdk_filter(selected: SqlFilter | CorrelationFilter) -> sdk.SqlRuleFilter | sdk.CorrelationRuleFilter:
    if isinstance(selected, CorrelationFilter):
        given = {name: getattr(selected, name) or None for name in CORRELATION_KEYS}
        typed = {each.name: plain for each in selected.typed if (plain := each.plain) is not None}
        return sdk.CorrelationRuleFilter(**given, properties={**dict(selected.properties), **typed})
    if selected.expression == EVERY_MESSAGE:
        return sdk.TrueRuleFilter()
    return sdk.FalseRuleFilter() if selected.expression == NO_MESSAGE else sdk.SqlRuleFilter(selected.expression)


class Created(Exception):
    """The service has created the entity. Raised inside the SDK, and caught in `create`."""


def skip_answer(*_answer: object) -> None:
    """Raise Created: decoding the unused answer costs the SDK as much as the request."""
    raise Created
