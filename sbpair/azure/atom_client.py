"""azure-servicebus' administration client for an endpoint. Nothing is connected before the first call.

The client may be shared by coroutines: it keeps no state per request, and its session is created for it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.azure.credentials import connection_string, token_credential
from sbpair.azure.transport import RoutedTransport, http_route, session_for
from sbpair.model.pair import Endpoint, SasKey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def open_admin_client(endpoint: Endpoint, call_seconds: float) -> AsyncIterator[ServiceBusAdministrationClient]:
    """Open the SDK's client, routed to `endpoint`. `call_seconds` limits each request."""
    async with session_for(endpoint) as session:
        transport = RoutedTransport(http_route(endpoint), session, call_seconds)
        async with _client(endpoint, transport) as client:
            yield client


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
