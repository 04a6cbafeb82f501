"""Credentials of the model into what Azure's clients want.

Secrets pass through here and stay nowhere: nothing is logged, nothing is kept.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from azure.core.credentials import AccessToken

from sbpair.azure.management_errors import translate_management_errors
from sbpair.model.pair import Credential, Identity, SasKey, SasToken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from azure.core.credentials_async import AsyncTokenCredential

    from sbpair.model.pair import Pair

# A ready-made signature cannot be renewed, so the SDK is told that it never needs to be: the service knows better.
FAR_FUTURE = 2**40

GRACE_SECONDS = 5.0
"""How long a token that is still being asked for is waited for, once nobody wants it any more."""


class ReadyMadeToken:
    """An AsyncTokenCredential around a signature that somebody else has made."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def get_token(self, *_scopes: str, **_options: object) -> AccessToken:
        return AccessToken(self._token, FAR_FUTURE)

    async def close(self) -> None:
        """There is nothing to close."""

    async def __aenter__(self) -> ReadyMadeToken:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


class OneAsker:
    """An AsyncTokenCredential that asks once for all who want the same token, whoever of them goes away meanwhile.

    Asking may be a program's work (`az`): many at once are slow, and one that is left behind is complained of.
    """

    def __init__(self, credential: AsyncTokenCredential, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._credential = credential
        self._grace_seconds = grace_seconds
        self._asking: dict[tuple[object, ...], asyncio.Task[AccessToken]] = {}

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        wanted = (scopes, *sorted(options.items()))
        if wanted not in self._asking:
            task = asyncio.create_task(self._credential.get_token(*scopes, **options), name="ask for a token")
            self._asking[wanted] = task
            task.add_done_callback(lambda done: self._answered(wanted, done))
        return await asyncio.shield(self._asking[wanted])

    def _answered(self, wanted: tuple[object, ...], done: asyncio.Task[AccessToken]) -> None:
        del self._asking[wanted]
        if not done.cancelled():
            # Whoever asked may be gone, and nobody else would look at it.
            done.exception()

    async def close(self) -> None:
        """Wait a little for what is under way, and break off what nobody answers."""
        await self._wait()
        for task in self._asking.values():
            task.cancel()
        await self._wait()

    async def _wait(self) -> None:
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=self._grace_seconds)

    async def __aenter__(self) -> OneAsker:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


def connection_string(authority: str, key: SasKey) -> str:
    """The public way to give a shared access key to an Azure client."""
    return f"Endpoint=sb://{authority}/;SharedAccessKeyName={key.name};SharedAccessKey={key.key}"


@asynccontextmanager
async def token_credential(credential: Credential) -> AsyncIterator[AsyncTokenCredential]:
    """What an Azure client takes for a signature or an identity. Keys go in by connection string."""
    if isinstance(credential, SasToken):
        yield ReadyMadeToken(credential.token)
    elif isinstance(credential, Identity):
        # azure-identity takes a third of a second to load, and most users have a key.
        from azure.identity.aio import DefaultAzureCredential

        async with DefaultAzureCredential() as identity, OneAsker(identity) as credential_of_all:
            yield credential_of_all
    else:
        raise TypeError("a shared access key goes into a connection string")


@asynccontextmanager
async def token_getter(pair: Pair) -> AsyncIterator[Callable[[str], Awaitable[tuple[str, float]]] | None]:
    """How an identity's tokens are had, (scope) -> (token, seconds since 1970); None where none is needed."""
    identity = next((each for each in _credentials(pair) if isinstance(each, Identity)), None)
    async with token_getter_for(identity, pair.name) as get:
        yield get


@asynccontextmanager
async def token_getter_for(
    credential: Credential | None, who: str
) -> AsyncIterator[Callable[[str], Awaitable[tuple[str, float]]] | None]:
    """The same for one credential; `who` is signed in to, for the message of an error."""
    if not isinstance(credential, Identity):
        yield None
        return
    async with token_credential(credential) as source:

        async def get(scope: str) -> tuple[str, float]:
            with translate_management_errors("sign in", who):
                token = await source.get_token(scope)
            return token.token, float(token.expires_on)

        yield get


def _credentials(pair: Pair) -> tuple[Credential, Credential]:
    return pair.primary.credential, pair.secondary.credential
