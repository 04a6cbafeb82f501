"""Shared access: rights on paths, the rules that grant them, and the signatures made with a rule's keys.

Pure: the time is an argument. Signatures are compared in constant time. The host in a signed token is ignored: a server
has many names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from urllib.parse import unquote, unquote_plus

from sbpair.amqp_server.refusals import Unauthenticated, Unauthorized

SCHEME: Final = "SharedAccessSignature"
NO_EXPIRY: Final = 1 << 62
"""The expiry of a grant by a key."""

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
    `roles` are further rights, each with its entity.
    """

    rights: frozenset[AccessRight]
    scope: str
    expires_at_ms: int = NO_EXPIRY
    owner: str = ""
    roles: tuple[tuple[frozenset[AccessRight], str], ...] = ()

    def rights_on(self, path: str) -> frozenset[AccessRight]:
        own = self.rights if covers(self.scope, path) else frozenset()
        return own.union(*(rights for rights, entity in self.roles if is_within(path, entity)))

    def require(self, right: AccessRight, path: str, now_ms: int) -> None:
        """Raise Unauthenticated if the token has expired, Unauthorized if it does not grant `right` on `path`."""
        if now_ms >= self.expires_at_ms:
            raise expired_token(self.expires_at_ms)
        if right not in self.rights_on(path):
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


def malformed() -> Unauthenticated:
    return Unauthenticated("MalformedToken: The credentials contained in the authorization header are not valid.")


def expired_token(at_ms: int) -> Unauthenticated:
    expiry = f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    return Unauthenticated(f"ExpiredToken: The token is expired. Expiration time: '{expiry}'.")


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
