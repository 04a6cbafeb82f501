"""Tokens for one relay endpoint: signed with a key, given, or requested from an identity provider.

Invariant: a token leaves this module in a `RelayToken` only, whose repr does not show it.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from sbpair.errors import UsageError
from sbpair.model.pair import Identity, SasKey, SasToken
from sbpair.model.signature import SAS_SECONDS, sign

if TYPE_CHECKING:
    from sbpair.relay.relay_clock import RelayClock
    from sbpair.relay.relay_endpoint import RelayEndpoint, TokenProvider

RELAY_SCOPE: Final = "https://relay.azure.net/.default"
TOKEN_HEADER: Final = "ServiceBusAuthorization"  # noqa: S105  # a header's name
RENEW_SECONDS: Final = 300.0
"""A token is replaced when it expires sooner."""


@dataclass(frozen=True, slots=True)
class RelayToken:
    """`expires_at` is seconds since 1970. A token that was given cannot be renewed."""

    value: str = field(repr=False)
    expires_at: float
    renewable: bool = True


class RelayTokens:
    """The tokens of an endpoint, each kept until it is to be replaced. Coroutines may share it."""

    def __init__(self, endpoint: RelayEndpoint, clock: RelayClock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._turn = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._provider: TokenProvider | None = None
        self._token: RelayToken | None = None

    async def get(self) -> RelayToken:
        """Return a token. Raises AccessError and Unavailable from an identity provider; UsageError."""
        async with self._turn:
            if self._token is None or self._token.expires_at - self._clock.now() <= RENEW_SECONDS:
                self._token = await self._make()
            return self._token

    async def close(self) -> None:
        await self._stack.aclose()

    async def _make(self) -> RelayToken:
        credential = self._endpoint.credential
        if isinstance(credential, SasKey):
            expires_at = int(self._clock.now()) + SAS_SECONDS
            return RelayToken(sign(self._endpoint.audience, credential, expires_at), expires_at)
        if isinstance(credential, SasToken):
            return given_token(credential)
        return await self._request(credential)

    async def _request(self, credential: Identity | TokenProvider) -> RelayToken:
        # These load azure-identity and its kin, and most users have a key.
        from sbpair.azure.credentials import identity_credential
        from sbpair.azure.management_errors import translate_management_errors

        with translate_management_errors("sign in", self._endpoint.namespace):
            if self._provider is None:
                is_found = isinstance(credential, Identity)
                self._provider = (
                    cast("TokenProvider", await self._stack.enter_async_context(identity_credential()))
                    if is_found
                    else cast("TokenProvider", credential)
                )
            if inspect.iscoroutinefunction(self._provider.get_token):
                token: Any = await self._provider.get_token(RELAY_SCOPE)
            else:
                # A sync credential may run a program, or ask the network.
                token = await asyncio.to_thread(self._provider.get_token, RELAY_SCOPE)
                token = await token if inspect.isawaitable(token) else token
        return RelayToken(f"Bearer {token.token}", float(token.expires_on))


def given_token(credential: SasToken) -> RelayToken:
    """Return a complete signature as a token. Raises UsageError if it has no expiry."""
    expiry = re.search(r"(?:^|[&\s])se=(\d{1,15})(?:&|$)", credential.token)
    if expiry is None or not credential.token.isprintable():
        raise UsageError(
            "the SharedAccessSignature has no expiry (se=…)",
            hint="copy all of it, or use SharedAccessKeyName and SharedAccessKey",
        )
    return RelayToken(credential.token, float(expiry[1]), renewable=False)
