"""Bearer tokens: which are accepted, and why not."""

from __future__ import annotations

import json

import pytest

from sbpair.emulator.access.bearer import AUDIENCE, LIFE_SECONDS, Bearers, Issuer, base64url_encode, read_jwt
from sbpair.emulator.access.sas import ALL_RIGHTS
from sbpair.emulator.service_errors import Unauthenticated

NOW = 1_767_225_600_000


def jwt(claims: object, header: object = None, signature: bytes = b"anybody's") -> str:
    parts = (json.dumps(header or {"alg": "RS256", "typ": "JWT"}).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64url_encode(part) for part in parts)


def test_a_token_of_the_emulators_own_grants_everything_until_it_runs_out() -> None:
    issuer = Issuer()
    token, expires_on = issuer.issue(f"{AUDIENCE}/", NOW)
    grant = Bearers(issuer).grant(token, NOW)
    assert (grant.rights, grant.scope, grant.expires_at_ms) == (ALL_RIGHTS, "", expires_on * 1000)
    assert expires_on == NOW // 1000 + LIFE_SECONDS
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        Bearers(issuer).grant(token, expires_on * 1000)


def test_a_token_for_something_else_is_refused() -> None:
    issuer = Issuer()
    token, _ = issuer.issue("https://management.azure.com", NOW)
    with pytest.raises(Unauthenticated, match="InvalidAudience"):
        Bearers(issuer).grant(token, NOW)


@pytest.mark.parametrize("bearers", [Bearers(), Bearers(Issuer())], ids=["no identity", "another key"])
def test_a_token_of_somebody_else_is_refused(bearers: Bearers) -> None:
    token, _ = Issuer().issue(AUDIENCE, NOW)
    with pytest.raises(Unauthenticated, match="InvalidIssuer") as refused:
        bearers.grant(token, NOW)
    assert (refused.value.status, refused.value.sub_code) == (401, 40100)


def test_a_token_that_was_changed_is_refused() -> None:
    issuer = Issuer()
    token, _ = issuer.issue(AUDIENCE, NOW)
    header, claims, signature = token.split(".")
    forged = base64url_encode(json.dumps({**read_jwt(token).claims, "exp": 1 << 50}).encode())
    with pytest.raises(Unauthenticated, match="InvalidIssuer"):
        Bearers(issuer).grant(f"{header}.{forged}.{signature}", NOW)
    none = base64url_encode(b'{"alg":"none","typ":"JWT"}')
    with pytest.raises(Unauthenticated, match="InvalidIssuer"):
        Bearers(issuer).grant(f"{none}.{claims}.", NOW)


def test_any_token_will_do_where_it_was_said() -> None:
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
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(Unauthenticated, match="MalformedToken"):
        Bearers(accept_any=True).grant(token, NOW)
