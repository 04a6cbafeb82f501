"""The SDK's data clients, sync and aio, for an endpoint. Nothing is connected before something is sent or received.

Invariant: the SDK itself retries nothing, since it would not report it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus.aio import ServiceBusClient as AioClient

from sbpair.azure.transport import ssl_context
from sbpair.model.pair import AMQPS_PORT, SasKey, SasToken, authority_of

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.core.credentials_async import AsyncTokenCredential

    from sbpair.model.pair import Endpoint

Signed: TypeAlias = AzureNamedKeyCredential | AzureSasCredential


def signed(endpoint: Endpoint) -> Signed | None:
    """Return the SDK credential of a key or a signature; None for an identity, which needs a token."""
    if isinstance(endpoint.credential, SasKey):
        return AzureNamedKeyCredential(endpoint.credential.name, endpoint.credential.key)
    if isinstance(endpoint.credential, SasToken):
        return AzureSasCredential(endpoint.credential.token)
    return None


def sync_client(endpoint: Endpoint, credential: Signed | TokenCredential, seconds: float | None) -> ServiceBusClient:
    """Create a client for one thread. `seconds` limits an attempt without a limit of its own. Raises MachineLacks."""
    return ServiceBusClient(endpoint.authority, credential, **_options(endpoint, seconds))


def aio_client(endpoint: Endpoint, credential: Signed | AsyncTokenCredential, seconds: float | None) -> AioClient:
    """Create a client for one coroutine."""
    return AioClient(endpoint.authority, credential, **_options(endpoint, seconds))


def _options(endpoint: Endpoint, seconds: float | None) -> dict[str, Any]:
    return {
        "retry_total": 0,
        "try_timeout": seconds,
        "use_tls": endpoint.tls,
        "transport_type": TransportType.Amqp,
        "custom_endpoint_address": _custom_address(endpoint),
        "ssl_context": ssl_context(endpoint.ca_file) if endpoint.tls and endpoint.ca_file else None,
    }


def _custom_address(endpoint: Endpoint) -> str | None:
    """Return the address to connect to, unless the authority names it. Over TLS the SDK knows one port only."""
    if endpoint.tls and endpoint.port == AMQPS_PORT:
        known = endpoint.host.lower() == (urlsplit(f"//{endpoint.authority}").hostname or "")
    else:
        known = not endpoint.tls and authority_of(endpoint.host, endpoint.port).lower() == endpoint.authority.lower()
    if known:
        return None
    return f"sb://{authority_of(endpoint.host, endpoint.port)}"
