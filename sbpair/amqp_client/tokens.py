"""Tokens for `$cbs`: shared access signatures, or tokens from an identity provider. No I/O of its own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from sbpair.errors import UsageError
from sbpair.model.pair import Credential, SasKey, SasToken
from sbpair.model.signature import SAS_SECONDS, sign

SAS_TYPE, JWT_TYPE = "servicebus.windows.net:sastoken", "jwt"
ENTRA_SCOPE = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True)
class CbsToken:
    """`expires_at` is seconds since 1970."""

    value: str = field(repr=False)
    kind: str
    expires_at: float


TokenSource = Callable[[str, float], Awaitable[CbsToken]]
"""(audience, such as `sb://<authority>/<entity>`, and the time) -> token. Raises AccessError."""

GetToken = Callable[[str], Awaitable[tuple[str, float]]]
"""scope -> (token, its expiry in seconds since 1970)"""


def source_for(credential: Credential, get_token: GetToken | None) -> TokenSource:
    """Return the source of tokens for a credential; an Identity requires `get_token`."""
    if isinstance(credential, SasKey):
        return partial(_signed, credential)
    if isinstance(credential, SasToken):
        return partial(_fixed, _given(credential))
    if get_token is None:
        raise UsageError("sign-in by identity needs a token provider", hint="pass get_token")
    return partial(_issued, get_token)


async def _signed(key: SasKey, audience: str, now: float) -> CbsToken:
    expires_at = int(now) + SAS_SECONDS
    return CbsToken(sign(audience, key, expires_at), SAS_TYPE, expires_at)


def _given(credential: SasToken) -> CbsToken:
    expiry = re.search(r"(?:^|[&\s])se=(\d+)", credential.token)
    if expiry is None:
        raise UsageError(
            "the SharedAccessSignature has no expiry (se=…)",
            hint="copy all of it, or use SharedAccessKeyName and SharedAccessKey",
        )
    return CbsToken(credential.token, SAS_TYPE, float(expiry[1]))


async def _fixed(token: CbsToken, _audience: str, _now: float) -> CbsToken:
    return token


async def _issued(get_token: GetToken, _audience: str, _now: float) -> CbsToken:
    value, expires_at = await get_token(ENTRA_SCOPE)
    return CbsToken(value, JWT_TYPE, expires_at)
