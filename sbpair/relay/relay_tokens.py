"""Tokens for one relay endpoint: signed with a key, given, or requested from an identity provider."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from sbpair.model.pair import Identity, SasKey, SasToken
from sbpair.model.signature import Token, signed_token

if TYPE_CHECKING:
    from sbpair.relay.relay_clock import RelayClock
    from sbpair.relay.relay_endpoint import RelayEndpoint, TokenProvider

RELAY_SCOPE: Final = "https://relay.azure.net/.default"
RENEW_SECONDS: Final = 300.0
"""A token is replaced when it expires sooner."""


class RelayTokens:
    """The tokens of an endpoint, each kept until it is to be replaced. Coroutines may share it."""

    def __init__(self, endpoint: RelayEndpoint, clock: RelayClock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._turn = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._provider: Any = None
        self._token: Token | None = None

    async def get(self) -> Token:
        """Return a token. Raises AccessError and Unavailable from an identity provider; UsageError."""
        async with self._turn:
            if self._token is None or self._token.expires_at - self._clock.now() <= RENEW_SECONDS:
                credential = self._endpoint.credential
                if isinstance(credential, SasKey | SasToken):
                    self._token = signed_token(credential, self._endpoint.audience, self._clock.now())
                else:
                    self._token = await self._request(credential)
            return self._token

    async def close(self) -> None:
        await self._stack.aclose()

    async def _request(self, credential: Identity | TokenProvider) -> Token:
        # These load azure-identity and its kin, and most users have a key.
        from sbpair.azure.credentials import identity_credential
        from sbpair.azure.management_errors import translate_management_errors

        with translate_management_errors("sign in", self._endpoint.namespace):
            if self._provider is None:
                is_found = isinstance(credential, Identity)
                identity = await self._stack.enter_async_context(identity_credential()) if is_found else None
                self._provider = identity or credential
            provider = self._provider
            if inspect.iscoroutinefunction(provider.get_token):
                token = await provider.get_token(RELAY_SCOPE)
            else:
                # A sync credential may run a program, or ask the network.
                token = await asyncio.to_thread(provider.get_token, RELAY_SCOPE)
                token = await token if inspect.isawaitable(token) else token
        return Token(f"Bearer {token.token}", float(token.expires_on))
