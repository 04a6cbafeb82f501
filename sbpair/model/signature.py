"""Shared access signatures, as Service Bus accepts them for AMQP and for HTTP, and the tokens that they are. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from dataclasses import dataclass, field
from urllib.parse import quote_plus

from sbpair.errors import UsageError
from sbpair.model.pair import SasKey, SasToken

_EXPIRY = re.compile(r"(?:^|[&\s])se=(\d{1,15})(?:&|$)")

SAS_SECONDS = 3_600
"""Life of a signature."""


@dataclass(frozen=True, slots=True)
class Token:
    """A proof of a right to a resource. `expires_at` is seconds since 1970. A given signature cannot be renewed."""

    value: str = field(repr=False)
    expires_at: float
    renewable: bool = True


def sign(audience: str, key: SasKey, expires_at: int) -> str:
    """Return a SharedAccessSignature: HMAC-SHA256 over the encoded audience and the expiry."""
    resource = quote_plus(audience)
    digest = hmac.digest(key.key.encode(), f"{resource}\n{expires_at}".encode(), hashlib.sha256)
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_at}&skn={quote_plus(key.name)}"


def signed_token(credential: SasKey | SasToken, audience: str, now: float) -> Token:
    """Return a signature made with a key, or the given one. Raises UsageError if that has no expiry."""
    if isinstance(credential, SasKey):
        expires_at = int(now) + SAS_SECONDS
        return Token(sign(audience, credential, expires_at), expires_at)
    expiry = _EXPIRY.search(credential.token)
    if expiry is None or not credential.token.isprintable():
        raise UsageError(
            "the SharedAccessSignature has no expiry (se=…)",
            hint="copy all of it, or use SharedAccessKeyName and SharedAccessKey",
        )
    return Token(credential.token, float(expiry[1]), renewable=False)


def expired_at(credential: object, now: float) -> str:
    """Return when a given signature expired, in UTC; "" for one that is still valid, and for any other credential."""
    expiry = _EXPIRY.search(credential.token) if isinstance(credential, SasToken) else None
    if expiry is None or float(expiry[1]) > now:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(expiry[1])))
