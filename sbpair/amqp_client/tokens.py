"""Tokens for `$cbs`: shared access signatures, or tokens from an identity provider. No I/O of its own."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote_plus

from sbpair.errors import UsageError
from sbpair.model.pair import Credential, SasKey, SasToken

SAS_SECONDS = 3_600
"""Life of a signature; it is renewed when a third of it is left."""

SAS_TYPE, JWT_TYPE = "servicebus.windows.net:sastoken", "jwt"


@dataclass(frozen=True, slots=True)
class CbsToken:
    """`expires_at` is seconds since 1970."""

    value: str = field(repr=False)
    kind: str
    expires_at: float


class TokenSource(Protocol):
    async def token(self, audience: str, now: float) -> CbsToken:
        """Return a token for `audience` (`sb://<authority>/<entity>`). Raises AccessError."""
        ...


class KeySource:
    """Signs a token for each audience."""

    def __init__(self, key: SasKey) -> None:
        self._key = key

    async def token(self, audience: str, now: float) -> CbsToken:
        expires_at = int(now) + SAS_SECONDS
        return CbsToken(sign(audience, self._key, expires_at), SAS_TYPE, expires_at)


class FixedToken:
    """One given signature for every audience, until it expires."""

    def __init__(self, given: SasToken) -> None:
        expiry = re.search(r"(?:^|[&\s])se=(\d+)", given.token)
        if expiry is None:
            raise UsageError(
                "the SharedAccessSignature has no expiry (se=…)",
                hint="copy all of it, or use SharedAccessKeyName and SharedAccessKey",
            )
        self._token = CbsToken(given.token, SAS_TYPE, float(expiry[1]))

    async def token(self, audience: str, now: float) -> CbsToken:  # noqa: ARG002  one token serves every audience
        return self._token


class EntraToken:
    """A token of Microsoft Entra ID, from `get_token` (scope -> token, seconds since 1970)."""

    SCOPE = "https://servicebus.azure.net/.default"

    def __init__(self, get_token: Callable[[str], Awaitable[tuple[str, float]]]) -> None:
        self._get_token = get_token

    async def token(self, audience: str, now: float) -> CbsToken:  # noqa: ARG002  the scope is the same for all of them
        value, expires_at = await self._get_token(self.SCOPE)
        return CbsToken(value, JWT_TYPE, expires_at)


def source_for(credential: Credential, get_token: Callable[[str], Awaitable[tuple[str, float]]] | None) -> TokenSource:
    """Return the source of tokens for a credential; an Identity requires `get_token`."""
    if isinstance(credential, SasKey):
        return KeySource(credential)
    if isinstance(credential, SasToken):
        return FixedToken(credential)
    if get_token is None:
        raise UsageError("sign-in by identity needs a token provider", hint="pass get_token")
    return EntraToken(get_token)


def sign(audience: str, key: SasKey, expires_at: int) -> str:
    """Return a SharedAccessSignature: HMAC-SHA256 over the encoded audience and the expiry."""
    resource = quote_plus(audience)
    digest = hmac.digest(key.key.encode(), f"{resource}\n{expires_at}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_at}&skn={quote_plus(key.name)}"
