"""The data plane by azure-servicebus: its clients, sync and aio, sending with them, and its exceptions as our errors.

A client is for one entity, over its own connection. Calls have a time limit. Nothing is connected before something is
sent or received. The service's text becomes one line of an error's message, without secrets.
Invariant: nothing is retried here nor in the SDK, since only the caller knows which attempts were made.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken, TokenCredential
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch, TransportType
from azure.servicebus import exceptions as azure
from azure.servicebus.aio import ServiceBusClient as AioClient

from sbpair import errors
from sbpair.amqp.conditions import MISSING_HINT, REFUSED_HINT, RETRY_HINT, TOO_LARGE, TRANSIENT, redacted
from sbpair.azure.credentials import shared_tokens
from sbpair.azure.http_client import redact_proxy_credentials, silence_reported
from sbpair.azure.management_errors import proxy_status
from sbpair.http_tunnel import ask_time, client_context, open_connection, refused_by_proxy
from sbpair.model.connect_errors import REACH_HINT, cause_of, explain_refusal, key_hint, refused, unreachable
from sbpair.model.pair import Endpoint, Identity, Transport, authority_of
from sbpair.model.rotated_key import has_another
from sbpair.model.signature import signed_token
from sbpair.operating_system.shortages import shortage_of

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.servicebus.aio import ServiceBusSender
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    from sbpair.model.proxy import Proxy

OPEN_SECONDS = 20.0
"""Time limit of a connection, its sign-in and its link together."""

CLOSE_SECONDS = 10.0

log = logging.getLogger(__name__)


class SdkKey:
    """The key of an endpoint as clients of the SDK take it: each signature is of the key that is there then."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = self._signing = endpoint
        self._used = endpoint.present

    @property
    def source(self) -> str:
        """The variable or file of the key that signed last; "" for one of the program."""
        return self._signing.key_source

    def get_token(self, *scopes: str, **_options: Any) -> Any:
        """Return the signature for an address, an AccessToken."""
        self._signing = self._endpoint.keyed_for(urlsplit(scopes[0]).path.strip("/"))
        self._used = self._signing.present
        assert not isinstance(self._used, Identity)  # noqa: S101
        token = signed_token(self._used, scopes[0], self._endpoint.clock.latest())
        return AccessToken(token.value, int(token.expires_at))

    def replaced(self) -> bool:
        """Return whether there is another key than the one that signed last. Blocks."""
        return self._signing.rotated is not None and self._signing.rotated.replaced(self._used)


class AioSdkKey(SdkKey):
    """The same for clients of asyncio programs."""

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return super().get_token(*scopes, **options)


def sync_client(endpoint: Endpoint, credential: SdkKey | TokenCredential, seconds: float | None) -> ServiceBusClient:
    """Create a client for one thread. `seconds` limits an attempt without a limit of its own. Raises MachineLacks."""
    proxy = _proxy(endpoint)
    if proxy is not None and proxy.scheme != "http":
        raise errors.UsageError(
            f"{proxy.source}: sync clients of azure-servicebus cannot use a proxy over TLS",
            hint="use an http:// address of the proxy, or the aio client",
        )
    host = proxy.host if proxy else ""
    return ServiceBusClient(endpoint.authority, credential, **_options(endpoint, seconds, proxy, host))


def aio_client(endpoint: Endpoint, credential: AioSdkKey | AsyncTokenCredential, seconds: float | None) -> AioClient:
    """Create a client for one coroutine."""
    proxy = _proxy(endpoint)
    # It makes a URL of the host and the port.
    host = proxy.url.rpartition(":")[0] if proxy else ""
    options = _options(endpoint, seconds, proxy, host)
    return AioClient(endpoint.authority, credential, **options)  # type: ignore[arg-type]  # it accepts any that signs


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
async def open_sender(endpoint: Endpoint, destination: str) -> AsyncIterator[SdkSender]:
    """Send to a queue or topic. Raises EntityMissing, AccessError, Unavailable, MachineLacks."""
    endpoint = endpoint.keyed_for(destination)
    async with AsyncExitStack() as stack:
        credential: Any = AioSdkKey(endpoint)
        if isinstance(endpoint.credential, Identity):
            credential = await stack.enter_async_context(shared_tokens(endpoint.credential))
        client = aio_client(endpoint, credential, None)
        stack.push_async_callback(_closed, client)
        sender = client.get_queue_sender(destination)
        stack.push_async_callback(_closed, sender)
        try:
            await _opened(sender, endpoint, f"sending to {destination!r}")
        except errors.EntityMissing as error:
            error.entity, error.namespace = destination, endpoint.name
            raise
        yield SdkSender(sender, destination)


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
            raise errors.InDoubt(f"{self._doing}: no answer came within {seconds:g} s") from error
        except errors.SbpairError as error:
            if is_answer(error.__cause__) and not isinstance(error, errors.TimedOut):
                raise
            raise errors.InDoubt(f"{self._doing}: no answer came ({error.message})", hint=error.hint) from error


async def _opened(handler: ServiceBusSender, endpoint: Endpoint, doing: str) -> None:
    address, credential = endpoint.amqp_address, endpoint.present
    try:
        with silence_reported(address, OPEN_SECONDS):
            async with asyncio.timeout(OPEN_SECONDS):
                with translate_data_errors(doing):
                    await handler.__aenter__()
    except TimeoutError as error:
        await check_proxy(endpoint)
        raise unreachable(endpoint.name, address, OPEN_SECONDS, doing=doing) from error
    except (errors.Unavailable, errors.NetworkRefused) as error:
        await check_proxy(endpoint)
        why = getattr(getattr(error.__cause__, "inner_exception", None), "__cause__", None)
        if isinstance(why, OSError):
            raise unreachable(endpoint.name, address, why, doing=doing) from error
        raise
    except errors.NotAuthenticated as error:
        if await has_another(endpoint.rotated, credential):
            return await _opened(handler, endpoint, doing)
        await ask_time(endpoint)
        raise explain_refusal(error, endpoint) from error.__cause__


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


# Errors

UNREADABLE_HINT = "receive the message with another client, which can decode it"

_UNDECODABLE = (TypeError, LookupError, ValueError, struct.error)
"""Raised by the SDK's decoder for a type that it does not know."""

_TRANSLATIONS: tuple[tuple[type[Exception], type[errors.SbpairError], str], ...] = (
    (azure.OperationTimeoutError, errors.TimedOut, RETRY_HINT),
    (azure.ServiceBusServerBusyError, errors.Throttled, RETRY_HINT),
    (azure.ServiceBusQuotaExceededError, errors.QuotaExceeded, RETRY_HINT),
    (azure.MessagingEntityNotFoundError, errors.EntityMissing, MISSING_HINT),
    (azure.MessagingEntityDisabledError, errors.Unreachable, RETRY_HINT),
    (azure.ServiceBusConnectionError, errors.Unreachable, RETRY_HINT),
    (azure.ServiceBusCommunicationError, errors.Unreachable, RETRY_HINT),
)
_ACCESS = (azure.ServiceBusAuthenticationError, azure.ServiceBusAuthorizationError)
_REFUSALS = (azure.MessageNotFoundError, azure.MessagingEntityAlreadyExistsError)
"""Errors of the management node, which have no condition."""

_ANSWERS = frozenset(("MessageException", "MessageSendFailed"))
_OWN_CONDITIONS = frozenset(("", "amqp:unknown-error", "amqp:client-error"))


@contextmanager
def translate_data_errors(doing: str) -> Iterator[None]:
    """Raise an error of the block as an SbpairError. `doing` is a phrase such as "sending to 'orders'"."""
    try:
        yield
    except errors.SbpairError:
        raise  # of a paired sender: it is one of the SDK's, too
    except AzureError as error:
        raise from_sdk_error(error, doing) from error
    except (OSError, ValueError, AttributeError) as error:
        if (lack := shortage_of(error, doing)) is not None:
            raise lack from error
        # Raised where another task's failure has closed a connection that this one still uses.
        raise errors.Unreachable(f"{doing}: the connection is gone ({redacted(error)})", hint=RETRY_HINT) from error


def from_sdk_error(error: AzureError, doing: str) -> errors.SbpairError:
    """Return the SbpairError for one of the SDK's: Exhausted for a shortage of this machine."""
    inner, condition, text = error.inner_exception, condition_of(error), text_of(error)
    message = f"{doing}: {text}"
    if (found := _connection_error(error, doing)) is not None:
        return found
    if (found := _token_error(inner, message, doing, text)) is not None:
        return found
    if isinstance(error, azure.MessageLockLostError):
        return errors.MessageLockLost(message, condition=condition, hint="the message will be delivered again")
    if isinstance(error, _ACCESS) or isinstance(inner, _ACCESS) or condition == "amqp:unauthorized-access":
        return refused(message, text, key_hint(""))
    for kind, translation, hint in _TRANSLATIONS:
        if isinstance(error, kind):
            return translation(message, hint=hint)
    if isinstance(inner, _UNDECODABLE):
        return errors.UnreadableMessage(f"{doing}: azure-servicebus cannot decode a message", hint=UNREADABLE_HINT)
    if condition in TRANSIENT or (not condition and not isinstance(error, _REFUSALS)):
        return errors.Unreachable(message, hint=RETRY_HINT)
    return errors.ServiceRefused(message, condition=condition, hint=REFUSED_HINT)


def _token_error(inner: BaseException | None, message: str, doing: str, text: str) -> errors.SbpairError | None:
    if isinstance(inner, errors.NoToken | errors.NotAuthenticated | errors.TokenExpired):
        return type(inner)(f"{doing}: {inner.message}", hint=inner.hint)
    # The answer of `$cbs` to the token. With an address of its own, the SDK takes each for a broken connection.
    status = getattr(inner, "status_code", None)
    if status == 404:
        return errors.EntityMissing(message, hint=MISSING_HINT)
    if status in (401, 403):
        return refused(message, text, key_hint(""))
    is_expired = type(inner).__name__ == "TokenExpired"  # a private class of the SDK
    return errors.TokenExpired(message, hint=RETRY_HINT) if is_expired else None


def _connection_error(error: AzureError, doing: str) -> errors.SbpairError | None:
    """Return the SbpairError for a shortage, for a proxy that refuses, or for an address that cannot be reached."""
    if (lack := shortage_of(error, doing)) is not None:
        return lack
    if status := proxy_status(error):
        return refused_by_proxy(f"{doing}: the proxy refuses the connection", status)
    if problem := connection_problem(error):
        return errors.Unreachable(f"{doing}: {problem}", hint=REACH_HINT)
    return None


def connection_problem(error: BaseException) -> str:
    """Return which address the SDK could not connect to over WebSocket, and why; "" for all other errors."""
    cause: BaseException | None = error
    while cause is not None:
        # Of aiohttp, which the SDK loads.
        names = [each.__name__ for each in type(cause).__mro__]
        if "ClientConnectorError" in names:
            address = authority_of(getattr(cause, "host", ""), getattr(cause, "port", None))
            proxy = "the proxy " if "ClientProxyConnectionError" in names else ""
            return f"{proxy}{address} cannot be reached: {cause_of(cause)}"
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    return ""


def is_answer(error: BaseException | None) -> bool:
    """Return whether the service refused this one message; False where a link or a connection ended.

    The SDK uses the same public classes for both; only its private ones differ. It has its own conditions for a
    message whose link ended.
    """
    if not isinstance(error, AzureError):
        return False
    answered = type(error.inner_exception).__name__ in _ANSWERS and condition_of(error) not in _OWN_CONDITIONS
    return answered or isinstance(error, azure.MessageSizeExceededError)


def is_unused(error: BaseException | None) -> bool:
    """Return whether the service detached a link only because it was idle."""
    detached = isinstance(error, AzureError) and condition_of(error) == "amqp:link:detach-forced"
    return detached and "IdleTimerExpired" in str(error)


def condition_of(error: AzureError) -> str:
    """Return the AMQP condition of an error, "" without one."""
    if isinstance(error, azure.MessageSizeExceededError):
        return TOO_LARGE
    condition = getattr(error.inner_exception, "condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode(errors="replace") if isinstance(condition, bytes) else str(condition or "")


def text_of(error: AzureError) -> str:
    """Return the service's text as one line without secrets."""
    text = getattr(error.inner_exception, "status_description", None)
    return redacted(text.decode(errors="replace") if isinstance(text, bytes) else text or error)
