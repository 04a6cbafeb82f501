"""Bearer tokens, which are JSON web tokens.

Pure: the time is an argument. Tokens that were issued here are verified in full. With `accept_any`, any other
well-formed one is accepted until it expires. An accepted bearer token grants all rights, or, where identities have
roles, those of its `oid`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
import uuid
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

from sbpair.amqp_server.refusals import Unauthenticated
from sbpair.amqp_server.shared_access import (
    ALL_RIGHTS,
    SCHEME,
    AccessRight,
    Grant,
    expired_token,
    malformed,
    scope_of,
    wrong_audience,
)
from sbpair.errors import UsageError

BEARER: Final = "Bearer"
AUDIENCE: Final = "https://servicebus.azure.net"
ARM_AUDIENCES: Final = ("https://management.azure.com", "https://management.core.windows.net")
LIFE_SECONDS: Final = 86_400
"""The life of a token that is issued, by default."""

_LIMIT: Final = 16_384


def bearer_in(token: str) -> str | None:
    """Return a JSON web token that comes with or without its scheme; None for a shared access signature."""
    if token.startswith(SCHEME):
        return None
    scheme, _, rest = token.partition(" ")
    return rest.strip() if scheme == BEARER else token


def missing_token() -> Unauthenticated:
    return Unauthenticated("MissingToken: The authorization header was not found.")


@dataclass(frozen=True, slots=True)
class IdentityEndpoint:
    """The address and secret that azure-identity reads from the environment."""

    endpoint: Annotated[str, "IDENTITY_ENDPOINT"]
    header: Annotated[str, "IDENTITY_HEADER"] = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        return {"IDENTITY_ENDPOINT": self.endpoint, "IDENTITY_HEADER": self.header}


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


def tenant_of(namespace: str) -> str:
    """Return the id of the tenant of a namespace: always the same for a name."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{namespace.lower()}.onmicrosoft.com"))


_RIGHTS: Final = {
    "sender": frozenset({AccessRight.SEND}),
    "receiver": frozenset({AccessRight.LISTEN}),
    "owner": ALL_RIGHTS,
}
_ROLE: Final = re.compile(
    rf"(?P<oid>[^=@\s]+)=(?P<role>{'|'.join(_RIGHTS)})@(?P<namespace>[^/\s]+)(?:/(?P<entity>\S*))?"
)


class AssignedRole(NamedTuple):
    """Rights of the identity `oid` in a namespace, on an entity or, for "", on all."""

    oid: str
    namespace: str
    rights: frozenset[AccessRight]
    entity: str

    @classmethod
    def parse(cls, text: str) -> AssignedRole:
        """Return the role of `OID=sender@contoso/orders`. Raises UsageError."""
        match = _ROLE.fullmatch(text)
        if match is None:
            form = "OID=sender|receiver|owner@NAMESPACE[/ENTITY]"
            raise UsageError(f"expected {form}, got {text[:100]!r}", hint="OID is that claim of the tokens")
        entity = scope_of(match["entity"] or "")
        return cls(match["oid"].lower(), match["namespace"].lower(), _RIGHTS[match["role"]], entity)


class Bearers:
    """The bearer tokens that namespaces accept: those issued here with a random key, and any others if `accept_any`."""

    def __init__(self, *, accept_any: bool = False, life_seconds: int = LIFE_SECONDS) -> None:
        self._key = secrets.token_bytes(32)
        self._accept_any = accept_any
        self.life_seconds = life_seconds
        self._tenant: str | None = None
        self._roles: Sequence[AssignedRole] | None = None

    def limited(self, tenant: str | None, roles: Sequence[AssignedRole] | None) -> Bearers:
        """Return the same tokens, but only one tenant's of those issued here, and with these roles; None for all."""
        only = copy(self)
        only._tenant, only._roles = tenant, roles
        return only

    def issue(self, resource: str, now_ms: int, tenant: str = "", client: str = "") -> tuple[str, int]:
        """Return a token of a client for `resource` and its expiry in seconds since 1970."""
        now = now_ms // 1000
        claims: dict[str, str | int] = {"iat": now, "nbf": now, "exp": now + self.life_seconds}
        claims |= {"sub": client, "oid": client}
        claims |= {"aud": resource, "iss": f"https://sts.windows.net/{tenant}/", "tid": tenant, "appid": client}
        parts = ({"alg": "HS256", "typ": "JWT"}, claims)
        signed = ".".join(base64url_encode(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        return f"{signed}.{base64url_encode(self._signature(signed.encode()))}", now + self.life_seconds

    def grant(self, text: str, now_ms: int, audiences: tuple[str, ...] = (AUDIENCE,)) -> Grant:
        """Return the rights of a token for one of `audiences`. Raises Unauthenticated."""
        token = read_jwt(text)
        ours = token.header.get("alg") == "HS256"
        ours = ours and hmac.compare_digest(self._signature(token.signed), token.signature)
        if not ours and not self._accept_any:
            raise Unauthenticated(
                "InvalidIssuer: The issuer of the token is not trusted. "
                "Use a shared access key, or start the emulator with --identity or --accept-any-token."
            )
        if ours and self._tenant not in (None, token.claims["tid"]):
            raise Unauthenticated("InvalidIssuer: Token issuer is invalid.")
        if now_ms >= token.expires_at_ms:
            raise expired_token(token.expires_at_ms)
        if ours and str(token.claims.get("aud")).rstrip("/") not in audiences:
            raise wrong_audience()
        if self._roles is None:
            return Grant(ALL_RIGHTS, "", token.expires_at_ms)
        oid = str(token.claims.get("oid")).lower()
        roles = tuple((each.rights, each.entity) for each in self._roles if each.oid == oid)
        return Grant(frozenset(), "", token.expires_at_ms, roles=roles)

    def _signature(self, signed: bytes) -> bytes:
        return hmac.digest(self._key, signed, hashlib.sha256)
