"""Bearer tokens: acceptance and errors."""

import json

import pytest

from sbpair.emulator.access_tokens import (
    ALL_RIGHTS,
    AUDIENCE,
    LIFE_SECONDS,
    Bearers,
    Issuer,
    base64url_encode,
    read_jwt,
)
from sbpair.emulator.service_errors import Unauthenticated

NOW = 1_767_225_600_000


def jwt(claims: object, header: object = None, signature: bytes = b"anybody's") -> str:
    parts = (json.dumps(header or {"alg": "RS256", "typ": "JWT"}).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64url_encode(part) for part in parts)


def test_an_issued_token_grants_all_rights_until_it_expires() -> None:
    issuer = Issuer()
    token, expires_on = issuer.issue(f"{AUDIENCE}/", NOW)
    grant = Bearers(issuer).grant(token, NOW)
    assert (grant.rights, grant.scope, grant.expires_at_ms) == (ALL_RIGHTS, "", expires_on * 1000)
    assert expires_on == NOW // 1000 + LIFE_SECONDS
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        Bearers(issuer).grant(token, expires_on * 1000)


def test_a_token_for_another_audience_is_refused() -> None:
    issuer = Issuer()
    token, _ = issuer.issue("https://management.azure.com", NOW)
    with pytest.raises(Unauthenticated, match="InvalidAudience"):
        Bearers(issuer).grant(token, NOW)


@pytest.mark.parametrize("bearers", [Bearers(), Bearers(Issuer())], ids=["no identity", "another key"])
def test_a_token_of_another_issuer_is_refused(bearers: Bearers) -> None:
    token, _ = Issuer().issue(AUDIENCE, NOW)
    with pytest.raises(Unauthenticated, match="InvalidIssuer") as refused:
        bearers.grant(token, NOW)
    assert (refused.value.status, refused.value.sub_code) == (401, 40100)


def test_a_changed_token_is_refused() -> None:
    issuer = Issuer()
    token, _ = issuer.issue(AUDIENCE, NOW)
    header, claims, signature = token.split(".")
    forged = base64url_encode(json.dumps({**read_jwt(token).claims, "exp": 1 << 50}).encode())
    with pytest.raises(Unauthenticated, match="InvalidIssuer"):
        Bearers(issuer).grant(f"{header}.{forged}.{signature}", NOW)
    none = base64url_encode(b'{"alg":"none","typ":"JWT"}')
    with pytest.raises(Unauthenticated, match="InvalidIssuer"):
        Bearers(issuer).grant(f"{none}.{claims}.", NOW)


def test_any_token_can_be_accepted() -> None:
    grant = Bearers(accept_any=True).grant(jwt({"exp": NOW // 1000 + 60}), NOW)
    assert grant.expires_at_ms == NOW + 60_000
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        Bearers(accept_any=True).grant(jwt({"exp": NOW // 1000}), NOW)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "hello",
        "a.b.c",
        "a.b.c.d",
        "ä.b.c",
        "..",
        jwt([]),
        jwt({"exp": 1 << 40}, ["alg"]),
        jwt({"exp": 1 << 40}, {"typ": "JWT"}),
        jwt({}),
        jwt({"exp": "soon"}),
        jwt({"exp": True}),
        jwt({"exp": -1}),
        jwt({"exp": 1e400}),
        jwt({"exp": 1 << 60}),
        base64url_encode(b"[" * 5_000) + "." + base64url_encode(b"{}") + ".",
        jwt({"exp": 1 << 40, "x": "x" * 20_000}),
    ],
)
def test_an_invalid_token_is_refused(token: str) -> None:
    with pytest.raises(Unauthenticated, match="MalformedToken"):
        Bearers(accept_any=True).grant(token, NOW)
