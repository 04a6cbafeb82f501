"""The SDK's data clients, sync and aio, and sending with them: one entity each, over its own connection.

Thin: it calls with a time limit and translates errors. Nothing is connected before something is sent or received.
Invariant: nothing is retried here nor in the SDK, since only the caller knows which attempts were made.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch, TransportType
from azure.servicebus.aio import ServiceBusClient as AioClient

from sbpair.azure.credentials import identity_credential
from sbpair.azure.data_errors import is_answer, translate_data_errors
from sbpair.azure.http_client import redact_proxy_credentials, silence_reported
from sbpair.errors import (
    InDoubt,
    NetworkRefused,
    NotAuthenticated,
    SbpairError,
    TimedOut,
    Unavailable,
    UsageError,
)
from sbpair.http_tunnel import client_context, open_connection
from sbpair.model.connect_errors import key_hint, unreachable
from sbpair.model.pair import Endpoint, SasKey, SasToken, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from azure.core.credentials_async import AsyncTokenCredential
    from azure.servicebus.aio import ServiceBusSender
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from sbpair.model.proxy import Proxy

Signed: TypeAlias = AzureNamedKeyCredential | AzureSasCredential

OPEN_SECONDS = 20.0
"""Time limit of a connection, its sign-in and its link together."""

CLOSE_SECONDS = 10.0

log = logging.getLogger(__name__)


def signed(endpoint: Endpoint) -> Signed | None:
    """Return the SDK credential of a key or a signature; None for an identity, which needs a token."""
    if isinstance(endpoint.credential, SasKey):
        return AzureNamedKeyCredential(endpoint.credential.name, endpoint.credential.key)
    if isinstance(endpoint.credential, SasToken):
        return AzureSasCredential(endpoint.credential.token)
    return None


def sync_client(endpoint: Endpoint, credential: Signed | TokenCredential, seconds: float | None) -> ServiceBusClient:
    """Create a client for one thread. `seconds` limits an attempt without a limit of its own. Raises MachineLacks."""
    proxy = _proxy(endpoint)
    if proxy is not None and proxy.scheme != "http":
        raise UsageError(
            f"{proxy.source}: sync clients of azure-servicebus cannot use a proxy over TLS",
            hint="use an http:// address of the proxy, or the aio client",
        )
    host = proxy.host if proxy else ""
    return ServiceBusClient(endpoint.authority, credential, **_options(endpoint, seconds, proxy, host))


def aio_client(endpoint: Endpoint, credential: Signed | AsyncTokenCredential, seconds: float | None) -> AioClient:
    """Create a client for one coroutine."""
    proxy = _proxy(endpoint)
    # It makes a URL of the host and the port.
    host = proxy.url.rpartition(":")[0] if proxy else ""
    return AioClient(endpoint.authority, credential, **_options(endpoint, seconds, proxy, host))


def _proxy(endpoint: Endpoint) -> Proxy | None:
    proxy = endpoint.amqp_proxy()
    if proxy is not None and proxy.user is not None:
        redact_proxy_credentials()
    return proxy


def _options(endpoint: Endpoint, seconds: float | None, proxy: Proxy | None, proxy_host: str) -> dict[str, Any]:
    over_websocket = endpoint.transport is Transport.WEBSOCKET
    through = proxy and {
        "proxy_hostname": proxy_host,
        "proxy_port": proxy.port,
        "username": proxy.user,
        "password": proxy.password or "",
    }
    return {
        "retry_total": 0,
        "try_timeout": seconds,
        "use_tls": endpoint.tls,
        "transport_type": TransportType.AmqpOverWebsocket if over_websocket else TransportType.Amqp,
        "http_proxy": through,
        "custom_endpoint_address": _custom_address(endpoint),
        "ssl_context": client_context(endpoint.ca_file) if endpoint.tls and endpoint.ca_file else None,
    }


def _custom_address(endpoint: Endpoint) -> str | None:
    """Return the address to connect to, unless the authority names it. Over TLS the SDK knows one port only."""
    if endpoint.tls and not endpoint.shares_port:
        known = endpoint.host.lower() == (urlsplit(f"//{endpoint.authority}").hostname or "")
    else:
        # Over WebSocket it knows port 443 only.
        tcp = endpoint.transport is Transport.TCP and not endpoint.tls
        known = tcp and endpoint.amqp_address.lower() == endpoint.authority.lower()
    return None if known else f"sb://{endpoint.amqp_address}"


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[AioClient]:
    """Open the SDK's client. Nothing is connected before the first receive or send. Raises MachineLacks."""
    async with AsyncExitStack() as stack:
        credential: Signed | AsyncTokenCredential | None = signed(endpoint)
        if credential is None:
            credential = await stack.enter_async_context(identity_credential())
        client = aio_client(endpoint, credential, None)
        stack.push_async_callback(_closed, client)
        yield client


@asynccontextmanager
async def open_sender(endpoint: Endpoint, destination: str) -> AsyncIterator[SdkSender]:
    """Send to a queue or topic. Raises EntityMissing, AccessError, Unavailable."""
    async with open_client(endpoint) as client:
        sender = client.get_queue_sender(destination)
        try:
            await _opened(sender, endpoint, f"sending to {destination!r}")
            yield SdkSender(sender, destination)
        finally:
            await _closed(sender)


class SdkSender:
    """A sender to one queue or topic, for one coroutine. Get one from `open_sender`."""

    def __init__(self, sender: ServiceBusSender, destination: str) -> None:
        self._sender = sender
        self._doing = f"sending to {destination!r}"

    async def send(self, message: AmqpAnnotatedMessage | ServiceBusMessageBatch, seconds: float) -> None:
        """Return once the service has accepted it. Raises InDoubt where it neither accepts nor refuses it."""
        try:
            async with asyncio.timeout(seconds):
                with translate_data_errors(self._doing):
                    await self._sender.send_messages(message, timeout=seconds)
        except TimeoutError as error:
            raise InDoubt(f"{self._doing}: no answer came within {seconds:g} s") from error
        except SbpairError as error:
            if is_answer(error.__cause__) and not isinstance(error, TimedOut):
                raise
            raise InDoubt(f"{self._doing}: no answer came ({error.message})", hint=error.hint) from error


async def _opened(handler: ServiceBusSender, endpoint: Endpoint, doing: str) -> None:
    address = endpoint.amqp_address
    try:
        with silence_reported(address, OPEN_SECONDS):
            async with asyncio.timeout(OPEN_SECONDS):
                with translate_data_errors(doing):
                    await handler.__aenter__()
    except TimeoutError as error:
        await check_proxy(endpoint)
        raise unreachable(endpoint.name, address, OPEN_SECONDS, doing=doing) from error
    except (Unavailable, NetworkRefused):
        await check_proxy(endpoint)
        raise
    except NotAuthenticated as error:
        if endpoint.key_source:
            error.hint = key_hint(endpoint.key_source)
        raise


async def check_proxy(endpoint: Endpoint) -> None:
    """Raise the complete error of a proxy, of which the SDK's says little, if that is in the way."""
    proxy = _proxy(endpoint)
    if proxy is not None:
        _, writer = await open_connection(endpoint.host, endpoint.web_port, proxy)
        writer.transport.abort()


async def _closed(handler: ServiceBusSender | AioClient) -> None:
    """Close a connection that may be broken already. Errors are logged, not raised."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await handler.close()
    except Exception as error:  # noqa: BLE001  the SDK raises any exception, and there is no waiter
        log.info("closing a connection of the SDK: %s", type(error).__name__)
