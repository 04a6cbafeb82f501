"""Bearer tokens: JSON web tokens that the emulator issues, and those that it accepts.

A token issued here is verified in full. With `accept_any`, any other well-formed token is accepted until it expires.
Every accepted token grants all rights.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from sbpair.emulator.access.sas import ALL_RIGHTS, Grant, expired_token, malformed, wrong_audience
from sbpair.emulator.service_errors import Unauthenticated

AUDIENCE: Final = "https://servicebus.azure.net"
ARM_AUDIENCES: Final = ("https://management.azure.com", "https://management.core.windows.net")
ISSUER: Final = "https://sts.windows.net/sbpair-emulator/"
LIFE_SECONDS: Final = 86_400
_LIMIT: Final = 16_384


@dataclass(frozen=True, slots=True)
class Jwt:
    """A decoded token. `signed` are the bytes that the signature covers."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    @property
    def expires_at_ms(self) -> int:
        """Return the expiry. Raises Unauthenticated if the token has none."""
        expiry = self.claims.get("exp")
        if isinstance(expiry, bool) or not isinstance(expiry, (int, float)) or not 0 <= expiry < 1 << 53:
            raise malformed()
        return int(expiry * 1000)


def read_jwt(text: str) -> Jwt:
    """Decode a token. Raises Unauthenticated if it is not a JSON web token."""
    parts = text.split(".")
    if len(parts) != 3 or len(text) > _LIMIT or not text.isascii():
        raise malformed()
    try:
        header, claims, signature = (base64url_decode(part) for part in parts)
        read = Jwt(json.loads(header), json.loads(claims), f"{parts[0]}.{parts[1]}".encode(), signature)
    except (ValueError, binascii.Error, RecursionError) as error:
        raise malformed() from error
    if not isinstance(read.header, dict) or not isinstance(read.claims, dict) or "alg" not in read.header:
        raise malformed()
    return read


def base64url_decode(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def base64url_encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """An issuer of tokens, with a random key of its own."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def issue(self, resource: str, now_ms: int) -> tuple[str, int]:
        """Return a token for `resource` and its expiry in seconds since 1970."""
        now = now_ms // 1000
        claims = {"aud": resource, "iss": ISSUER, "iat": now, "nbf": now, "exp": now + LIFE_SECONDS, "sub": "emulator"}
        parts = ({"alg": "HS256", "typ": "JWT"}, claims)
        signed = ".".join(base64url_encode(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        return f"{signed}.{base64url_encode(self._signature(signed.encode()))}", now + LIFE_SECONDS

    def has_signed(self, token: Jwt) -> bool:
        ours = token.header.get("alg") == "HS256" and token.claims.get("iss") == ISSUER
        return ours and hmac.compare_digest(self._signature(token.signed), token.signature)

    def _signature(self, signed: bytes) -> bytes:
        return hmac.digest(self._key, signed, hashlib.sha256)


class Bearers:
    """The bearer tokens that a namespace accepts."""

    def __init__(self, issuer: Issuer | None = None, *, accept_any: bool = False) -> None:
        self._issuer = issuer
        self._accept_any = accept_any

    def grant(self, text: str, now_ms: int, audiences: tuple[str, ...] = (AUDIENCE,)) -> Grant:
        """Return the rights of a token for one of `audiences`. Raises Unauthenticated."""
        token = read_jwt(text)
        ours = self._issuer is not None and self._issuer.has_signed(token)
        if not ours and not self._accept_any:
            raise Unauthenticated(
                "InvalidIssuer: The issuer of the token is not trusted. "
                "Use a shared access key, or start the emulator with --identity or --accept-any-token."
            )
        if now_ms >= token.expires_at_ms:
            raise expired_token(token.expires_at_ms)
        if ours and str(token.claims.get("aud")).rstrip("/") not in audiences:
            raise wrong_audience()
        return Grant("", ALL_RIGHTS, "", token.expires_at_ms)
