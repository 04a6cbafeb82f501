"""Access to a namespace: rights on paths, shared access keys and the tokens signed with them, and bearer tokens.

Pure: the time is an argument. Signatures are compared in constant time. The host in a signed token is ignored: an
emulator has many names. Of bearer tokens, which are JSON web tokens, those issued here are verified in full. With
`accept_any`, any other well-formed one is accepted until it expires. Every accepted bearer token grants all rights.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import uuid
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote, unquote_plus

from sbpair.emulator.clock import NEVER
from sbpair.emulator.service_errors import Unauthenticated, Unauthorized

SCHEME: Final = "SharedAccessSignature"
BEARER: Final = "Bearer"
"""The scheme of the other kind of token."""

_TOKEN_LIMIT: Final = 8192


class AccessRight(StrEnum):
    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


ALL_RIGHTS: Final = frozenset(AccessRight)


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A named pair of keys and the rights of tokens signed with either of them.

    The times are those that its creator gave, as written: the service sets none.
    """

    key_name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    rights: frozenset[AccessRight] = ALL_RIGHTS
    claim_type: str = "SharedAccessKey"
    claim_value: str = "None"
    created_at: str | None = None
    modified_at: str | None = None

    def has_key(self, key: str) -> bool:
        keys = self.primary_key, self.secondary_key
        return any(hmac.compare_digest(each.encode(), key.encode()) for each in keys)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a verified token on `scope` ("" is the whole namespace) and below, until it expires.

    `owner` is the path of the entity whose rule signed it, "" for one of the namespace. It is for no other entity.
    """

    rights: frozenset[AccessRight]
    scope: str
    expires_at_ms: int = NEVER
    owner: str = ""

    def require(self, right: AccessRight, path: str, now_ms: int) -> None:
        """Raise Unauthenticated if the token has expired, Unauthorized if it does not grant `right` on `path`."""
        if now_ms >= self.expires_at_ms:
            raise expired_token(self.expires_at_ms)
        if right not in self.rights or not covers(self.scope, path):
            raise Unauthorized(f"Unauthorized access. '{right}' claim(s) are required to perform this operation.")


@dataclass(frozen=True, slots=True)
class SignedToken:
    """The parts of a token. `signed` is `sr` exactly as received, since the signature covers it."""

    signed: str
    signature: bytes = field(repr=False)
    expiry: str
    key_name: str

    @property
    def scope(self) -> str:
        """The path of `sr` in lower case. A value without a scheme begins with the host, too."""
        resource = unquote(self.signed)
        return scope_of(resource if "://" in resource else f"//{resource}")


def covers(scope: str, path: str) -> bool:
    """Return whether `path` is `scope` or below it, both in the form of `scope_of`."""
    return not scope or path == scope or path.startswith(scope + "/")


def is_within(path: str, entity: str) -> bool:
    """Return whether `path` is `entity`, or a node, a sub-queue, or subscriptions of it. "" covers every path.

    Both are in lower case. An entity `a/b` is not within `a`.
    """
    return not entity or path == entity or f"{path}/".startswith((f"{entity}/$", f"{entity}/subscriptions/"))


def path_of(address: str) -> str:
    """Return the path of a URL, or a bare path, without slashes at the ends."""
    _, scheme, rest = address.partition("//") if address.startswith("//") else address.partition("://")
    # The SDK for JavaScript signs the whole URL of its management requests.
    path = rest.partition("?")[0].partition("/")[2] if scheme else address
    return path.strip("/")


def scope_of(address: str) -> str:
    """Return the path of an address in lower case, as entities are looked up."""
    return path_of(address).lower()


def parse_token(text: str) -> SignedToken:
    """Decode a `SharedAccessSignature sr=…&sig=…&se=…&skn=…`. Raises Unauthenticated."""
    scheme, _, fields = text.partition(" ")
    if scheme != SCHEME or len(text) > _TOKEN_LIMIT:
        raise malformed()
    parts = dict(part.partition("=")[::2] for part in fields.strip().split("&"))
    try:
        # Not unquote_plus: an unquoted signature may contain a base64 plus sign.
        signature = base64.b64decode(unquote(parts["sig"]), validate=True)
        token = SignedToken(parts["sr"], signature, parts["se"], unquote_plus(parts["skn"]))
    except (KeyError, ValueError, binascii.Error) as error:
        raise malformed() from error
    if not (token.expiry.isascii() and token.expiry.isdigit() and len(token.expiry) <= 15):
        raise malformed()
    return token


def bearer_in(token: str) -> str | None:
    """Return a JSON web token that comes with or without its scheme; None for a shared access signature."""
    if token.startswith(SCHEME):
        return None
    scheme, _, rest = token.partition(" ")
    return rest.strip() if scheme == BEARER else token


def malformed() -> Unauthenticated:
    return Unauthenticated("MalformedToken: The credentials contained in the authorization header are not valid.")


def expired_token(at_ms: int) -> Unauthenticated:
    expiry = f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    return Unauthenticated(f"ExpiredToken: The token is expired. Expiration time: '{expiry}'.")


def missing_token() -> Unauthenticated:
    return Unauthenticated("MissingToken: The authorization header was not found.")


def wrong_audience() -> Unauthenticated:
    return Unauthenticated("InvalidAudience: The authorization header contains a token with a wrong audience.")


def signature(key: str, signed: str, expiry: str) -> bytes:
    return hmac.digest(key.encode(), f"{signed}\n{expiry}".encode(), hashlib.sha256)


def verify_token(token: SignedToken, rules: Iterable[tuple[str, AuthorizationRule]], path: str, now_ms: int) -> Grant:
    """Return the rights of `token` on `path`, signed by one of `rules` with their owners. Raises Unauthenticated."""
    # Decoded once more too: pyamqp quotes the name twice.
    names = token.key_name, unquote_plus(token.key_name)
    signers = ((owner, rule) for owner, rule in rules if rule.key_name in names and _signed_by(rule, token))
    owner, signer = next(signers, ("", None))
    expires_at_ms = int(token.expiry) * 1000
    if signer is None:
        raise Unauthenticated("InvalidSignature: The token has an invalid signature.")
    if now_ms >= expires_at_ms:
        raise expired_token(expires_at_ms)
    if not covers(token.scope, path):
        raise wrong_audience()
    return Grant(signer.rights, token.scope, expires_at_ms, owner)


def _signed_by(rule: AuthorizationRule, token: SignedToken) -> bool:
    signatures = [signature(key, token.signed, token.expiry) for key in (rule.primary_key, rule.secondary_key)]
    return any(hmac.compare_digest(each, token.signature) for each in signatures)


# Bearer tokens

AUDIENCE: Final = "https://servicebus.azure.net"
ARM_AUDIENCES: Final = ("https://management.azure.com", "https://management.core.windows.net")
LIFE_SECONDS: Final = 86_400
"""The life of a token that is issued, by default."""

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


def tenant_of(namespace: str) -> str:
    """Return the id of the tenant of a namespace: always the same for a name."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{namespace.lower()}.onmicrosoft.com"))


class Bearers:
    """The bearer tokens that namespaces accept: those issued here with a random key, and any others if `accept_any`."""

    def __init__(self, *, accept_any: bool = False, life_seconds: int = LIFE_SECONDS) -> None:
        self._key = secrets.token_bytes(32)
        self._accept_any = accept_any
        self.life_seconds = life_seconds
        self._tenant: str | None = None

    def of_tenant(self, tenant: str | None) -> Bearers:
        """Return the same tokens, but of those issued here only the ones of a tenant; None for all."""
        only = copy(self)
        only._tenant = tenant
        return only

    def issue(self, resource: str, now_ms: int, tenant: str = "", client: str = "") -> tuple[str, int]:
        """Return a token of a client for `resource` and its expiry in seconds since 1970."""
        now = now_ms // 1000
        claims: dict[str, str | int] = {"iat": now, "nbf": now, "exp": now + self.life_seconds, "sub": client}
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
        return Grant(ALL_RIGHTS, "", token.expires_at_ms)

    def _signature(self, signed: bytes) -> bytes:
        return hmac.digest(self._key, signed, hashlib.sha256)
