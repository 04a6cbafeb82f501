"""Conversion of the model's credentials into those of Azure's clients.

Invariant: no secret is logged or stored here.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.azure.management_errors import translate_management_errors
from sbpair.model.pair import Credential, Endpoint, Ends, Identity, SasKey, SasToken
from sbpair.model.signature import SAS_SECONDS, sign

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential

    GetToken = Callable[[str], Awaitable[tuple[str, float]]]


Client = TypeVar("Client")

SERVICE_BUS_SCOPE = "https://servicebus.azure.net/.default"
RENEW_SECONDS = 300.0
"""A token is requested again when it expires sooner."""

GRACE_SECONDS = 5.0
"""How long `close` waits for a pending token request."""


class SharedTokenRequests:
    """An AsyncTokenCredential that shares one request among all callers, even if some are cancelled.

    A request may run a program (`az`): many at once are slow, and an abandoned one causes a warning.
    """

    def __init__(self, credential: AsyncTokenCredential, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._credential = credential
        self._grace_seconds = grace_seconds
        self._pending: dict[tuple[object, ...], asyncio.Task[AccessToken]] = {}

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        key = (scopes, *sorted(options.items()))
        if key not in self._pending:
            task = asyncio.create_task(self._credential.get_token(*scopes, **options), name="request a token")
            self._pending[key] = task
            task.add_done_callback(lambda done: self._on_done(key, done))
        return await asyncio.shield(self._pending[key])

    def _on_done(self, key: tuple[object, ...], done: asyncio.Task[AccessToken]) -> None:
        del self._pending[key]
        if not done.cancelled():
            # Mark the exception as retrieved: every caller may have been cancelled.
            done.exception()

    async def close(self) -> None:
        """Wait briefly for pending requests, then cancel them."""
        await self._wait()
        for task in self._pending.values():
            task.cancel()
        await self._wait()

    async def _wait(self) -> None:
        if self._pending:
            await asyncio.wait(self._pending.values(), timeout=self._grace_seconds)

    async def __aenter__(self) -> SharedTokenRequests:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


@asynccontextmanager
async def authorization_for(endpoint: Endpoint) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Open a function () -> the Authorization header of a request. It raises the errors of azure-identity."""
    credential = endpoint.credential
    if isinstance(credential, Identity):
        async with identity_credential() as source:
            yield BearerTokens(source).header
        return

    async def header() -> str:
        if isinstance(credential, SasKey):
            return sign(f"https://{endpoint.authority}", credential, int(time.time()) + SAS_SECONDS)
        return credential.token

    yield header


class BearerTokens:
    """Headers with a token that is requested again before it expires."""

    def __init__(self, source: AsyncTokenCredential, now: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now = now
        self._token: AccessToken | None = None

    async def header(self) -> str:
        if self._token is None or self._token.expires_on - self._now() < RENEW_SECONDS:
            self._token = await self._source.get_token(SERVICE_BUS_SCOPE)
        return f"Bearer {self._token.token}"


def connection_string(authority: str, credential: SasKey | SasToken) -> str:
    """Format a key or a signature as a connection string, the form that Azure's clients accept."""
    if isinstance(credential, SasToken):
        return f"Endpoint=sb://{authority}/;SharedAccessSignature={credential.token}"
    return f"Endpoint=sb://{authority}/;SharedAccessKeyName={credential.name};SharedAccessKey={credential.key}"


@asynccontextmanager
async def identity_credential() -> AsyncIterator[AsyncTokenCredential]:
    """Open the SDK credential of an identity."""
    # azure-identity takes a third of a second to load, and most users have a key.
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.identity.aio import DefaultAzureCredential

    from sbpair.azure.transport import bounded_session

    async with (
        bounded_session() as session,
        DefaultAzureCredential(transport=AioHttpTransport(session=session, session_owner=False)) as identity,
        SharedTokenRequests(identity) as credential_of_all,
    ):
        yield credential_of_all


def identity_token(scope: str, who: str) -> str:
    """Return a token of the identity that runs this process. `who` names the service in errors."""
    try:
        # In Microsoft Fabric azure-identity finds no identity. This does, on drivers and on executors.
        from fabric.analytics.environment.credentials import FabricAnalyticsTokenCredentials as Credential
    except ImportError:
        from azure.identity import DefaultAzureCredential as Credential

    with translate_management_errors("sign in", who):
        return str(Credential().get_token(scope).token)


def token_getter(pair: Ends) -> AbstractAsyncContextManager[GetToken | None]:
    """Open a function (scope) -> (token, expiry in seconds since 1970); None where no identity signs in."""
    credentials = (pair.primary.credential, pair.secondary.credential)
    return token_getter_for(next((each for each in credentials if isinstance(each, Identity)), None), pair.name)


@asynccontextmanager
async def token_getter_for(credential: Credential | None, who: str) -> AsyncIterator[GetToken | None]:
    """Open the same for one credential. `who` names the namespace in errors."""
    if not isinstance(credential, Identity):
        yield None
        return
    async with identity_credential() as source:

        async def get(scope: str) -> tuple[str, float]:
            with translate_management_errors("sign in", who):
                token = await source.get_token(scope)
            return token.token, float(token.expires_on)

        yield get


@asynccontextmanager
async def signed_in(
    connect: Callable[..., AbstractAsyncContextManager[Client]], endpoint: Endpoint
) -> AsyncIterator[Client]:
    """Open what `connect` opens, such as our AMQP client, with the tokens of the endpoint's identity, if it has one."""
    async with (
        token_getter_for(endpoint.credential, endpoint.name) as get_token,
        connect(endpoint, get_token=get_token) as client,
    ):
        yield client
