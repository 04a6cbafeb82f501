"""Conversion of the model's credentials into those of Azure's clients.

Invariant: no secret is logged or stored here.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from sbpair.azure.management_errors import translate_management_errors
from sbpair.model.pair import Endpoint, Identity, SasKey, SasToken
from sbpair.model.signature import signed_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from azure.core.credentials_async import AsyncTokenCredential

    GetToken = Callable[[Identity, str], Awaitable[tuple[str, float]]]


Client = TypeVar("Client")

SERVICE_BUS_SCOPE = "https://servicebus.azure.net/.default"


@asynccontextmanager
async def authorization_for(endpoint: Endpoint) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Open a function (path of a request) -> its Authorization header. It raises NoToken, NotAuthenticated."""
    credential = endpoint.credential
    if isinstance(credential, Identity):
        async with shared_tokens(credential) as tokens:

            async def bearer(_path: str) -> str:
                return f"Bearer {(await tokens.get_token(SERVICE_BUS_SCOPE)).token}"

            yield bearer
        return

    async def header(path: str) -> str:
        own = endpoint.keyed_for(path)
        key = own.present
        assert not isinstance(key, Identity)  # noqa: S101  # for the type checker
        # The key of an entity signs for it alone, and that of a namespace for both.
        below = f"/{path}" if own.entity and not path.startswith("$") else ""
        return signed_token(key, f"https://{endpoint.authority}{below}", endpoint.clock.latest()).value

    yield header


def connection_string(authority: str, credential: SasKey | SasToken) -> str:
    """Format a key or a signature as a connection string, the form that Azure's clients accept."""
    if isinstance(credential, SasToken):
        return f"Endpoint=sb://{authority}/;SharedAccessSignature={credential.token}"
    return f"Endpoint=sb://{authority}/;SharedAccessKeyName={credential.name};SharedAccessKey={credential.key}"


def identity_token(scope: str, who: str) -> str:
    """Return a token of the identity that runs this process. `who` names the service in errors."""
    try:
        # In Microsoft Fabric azure-identity finds no identity. This does, on drivers and on executors.
        from fabric.analytics.environment.credentials import FabricAnalyticsTokenCredentials as Credential
    except ImportError:
        from azure.identity import DefaultAzureCredential as Credential

    with translate_management_errors("sign in", who):
        return str(Credential().get_token(scope).token)


@asynccontextmanager
async def open_tokens() -> AsyncIterator[GetToken]:
    """Open a function (identity, scope) -> (token, expiry in seconds since 1970). It raises NoToken, NotAuthenticated.

    An identity is signed in when it is first asked.
    """
    async with AsyncExitStack() as stack:
        opened: dict[Identity, AsyncTokenCredential] = {}

        async def get(identity: Identity, scope: str) -> tuple[str, float]:
            if identity not in opened:
                opened[identity] = await stack.enter_async_context(shared_tokens(identity))
            token = await opened[identity].get_token(scope)
            return token.token, float(token.expires_on)

        yield get


@asynccontextmanager
async def shared_tokens(identity: Identity) -> AsyncIterator[AsyncTokenCredential]:
    """Open the tokens of an identity, a credential for Azure's clients. Users in one event loop share them."""
    # azure-identity takes a third of a second to load, and most users have a key.
    from sbpair.azure import identity_tokens

    kept = _KEPT.get(asyncio.get_running_loop())
    if kept is not None and identity not in kept.identities:
        kept.identities.add(identity)
        await kept.stack.enter_async_context(identity_tokens.shared(identity))
    async with identity_tokens.shared(identity) as tokens:
        yield tokens


@dataclass(frozen=True, slots=True)
class _Kept:
    stack: AsyncExitStack
    identities: set[Identity] = field(default_factory=set)


_KEPT: WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = WeakKeyDictionary()


@asynccontextmanager
async def keeping_tokens() -> AsyncIterator[None]:
    """Keep the tokens of each identity that signs in within the block until its end, used or not."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        _KEPT[loop] = _Kept(stack)
        try:
            yield
        finally:
            del _KEPT[loop]


@asynccontextmanager
async def signed_in(
    connect: Callable[..., AbstractAsyncContextManager[Client]], endpoint: Endpoint
) -> AsyncIterator[Client]:
    """Open what `connect` opens, such as our AMQP client, with the tokens of the endpoint's identity, if it has one."""
    async with open_tokens() as get_token, connect(endpoint, get_token=get_token) as client:
        yield client
