"""Bearer tokens: acceptance and errors."""

import json

import pytest
from aiohttp import ClientSession

from sbpair.amqp.link import LinkDetached
from sbpair.amqp.performatives import Accepted
from sbpair.amqp_server.refusals import Unauthenticated
from sbpair.amqp_server.shared_access import ALL_RIGHTS
from sbpair.emulator.bearer_tokens import (
    AUDIENCE,
    LIFE_SECONDS,
    AssignedRole,
    Bearers,
    base64url_encode,
    read_jwt,
)
from sbpair.errors import UsageError
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator.atom_client import open_manager
from tests.emulator.peer import Stage, plain

NOW = 1_767_225_600_000


def jwt(claims: object, header: object = None, signature: bytes = b"anybody's") -> str:
    parts = (json.dumps(header or {"alg": "RS256", "typ": "JWT"}).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64url_encode(part) for part in parts)


def test_an_issued_token_grants_all_rights_until_it_expires() -> None:
    bearers = Bearers()
    token, expires_on = bearers.issue(f"{AUDIENCE}/", NOW)
    grant = bearers.grant(token, NOW)
    assert (grant.rights, grant.scope, grant.expires_at_ms) == (ALL_RIGHTS, "", expires_on * 1000)
    assert expires_on == NOW // 1000 + LIFE_SECONDS
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        bearers.grant(token, expires_on * 1000)


def test_a_token_for_others_or_of_others_or_changed_is_refused() -> None:
    bearers = Bearers()
    elsewhere, _ = bearers.issue("https://management.azure.com", NOW)
    foreign, _ = Bearers().issue(AUDIENCE, NOW)
    token, _ = bearers.issue(AUDIENCE, NOW)
    header, claims, signature = token.split(".")
    forged = base64url_encode(json.dumps({**read_jwt(token).claims, "exp": 1 << 50}).encode())
    none = base64url_encode(b'{"alg":"none","typ":"JWT"}')
    for wrong, cause in (
        (elsewhere, "InvalidAudience"),
        (foreign, "InvalidIssuer"),
        (f"{header}.{forged}.{signature}", "InvalidIssuer"),
        (f"{none}.{claims}.", "InvalidIssuer"),
    ):
        with pytest.raises(Unauthenticated, match=cause) as refused:
            bearers.grant(wrong, NOW)
        assert (refused.value.status, refused.value.sub_code) == (401, 40100)


def test_any_token_can_be_accepted() -> None:
    grant = Bearers(accept_any=True).grant(jwt({"exp": NOW // 1000 + 60}), NOW)
    assert grant.expires_at_ms == NOW + 60_000
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        Bearers(accept_any=True).grant(jwt({"exp": NOW // 1000}), NOW)


ROLES = ("A=sender@contoso/Orders", "a=receiver@contoso", "b=owner@contoso/orders/sub", "a=owner@contoso-dr")


@pytest.mark.parametrize(
    ("oid", "path", "rights"),
    [
        ("A", "orders", {"Send", "Listen"}),
        ("a", "orders/subscriptions/s", {"Send", "Listen"}),
        ("a", "orders/sub", {"Listen"}),
        ("a", "", {"Listen"}),
        ("b", "orders/sub/$deadletterqueue", {"Send", "Listen", "Manage"}),
        ("b", "orders", set()),
        ("c", "orders", set()),
        (None, "orders", set()),
    ],
)
def test_the_roles_of_an_identity_limit_its_tokens(oid: str | None, path: str, rights: set[str]) -> None:
    roles = [role for role in map(AssignedRole.parse, ROLES) if role.namespace == "contoso"]
    token = jwt({"exp": NOW // 1000 + 60} | ({"oid": oid} if oid else {}))
    assert Bearers(accept_any=True).limited(None, roles).grant(token, NOW).rights_on(path) == rights
    assert Bearers(accept_any=True).grant(token, NOW).rights_on(path) == ALL_RIGHTS


@pytest.mark.parametrize("text", ["x", "a=reader@contoso", "a=sender", "=sender@contoso", "a=sender@fabrikam/orders"])
def test_an_invalid_role_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Emulator([("contoso", 0)], options=EmulatorOptions(roles=(text,)))


async def test_links_and_management_ask_for_the_roles_of_a_token() -> None:
    """A token has the same roles wherever it is put, and those of another one replace them."""
    roles = ("me=sender@contoso/orders", "me=receiver@contoso/news", "boss=owner@contoso")
    options = EmulatorOptions(accept_any_token=True, roles=roles)
    tokens = {oid: jwt({"exp": 1 << 40, "oid": oid}) for oid in ("me", "boss", "nobody")}
    async with open_manager(options=options) as manager:
        stage = Stage(manager.emulator)
        stage.namespace.create_topic("news").create_subscription("s")
        for oid, status in (("me", 401), ("boss", 200)):
            assert (await manager.ask("GET", "news", token=f"Bearer {tokens[oid]}"))[0] == status
        async with stage.connect(signed_in=False) as peer:
            await peer.ask("$cbs", "put-token", tokens["me"], name="sb://h/", type="jwt")
            (answer,) = await peer.send(link := await peer.attach_sender("orders"), plain())
            assert answer.state == Accepted()
            await peer.attach_receiver("news/subscriptions/s")
            for refused in (peer.attach_receiver("orders"), peer.attach_sender("news")):
                assert (await peer.refusal_of(refused)).condition == "amqp:unauthorized-access"
            await peer.ask("$cbs", "put-token", tokens["nobody"], name="sb://h/", type="jwt")
            assert (await peer.wait(LinkDetached, of=link)).error.condition == "amqp:unauthorized-access"
        signed = await manager.ask("GET", "orders")
    assert signed[0] == 200


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


async def test_the_identity_endpoint_issues_tokens_only_with_its_secret_header() -> None:
    problem, token = {"statusCode", "message"}, {"access_token", "client_id", "expires_on", "resource", "token_type"}
    async with Emulator(options=EmulatorOptions(identity=True)) as emulator, ClientSession() as session:
        sign_in = emulator.ready.identity
        assert sign_in is not None
        for header, query, status, keys in (
            (None, "api-version=2019-08-01&resource=x", 401, problem),
            ("wrong", "api-version=2019-08-01&resource=x", 401, problem),
            (sign_in.header, "api-version=2017-09-01&resource=x", 400, problem),
            (sign_in.header, "api-version=2019-08-01", 400, problem),
            (sign_in.header, "api-version=2019-08-01&resource=x", 200, token),
        ):
            headers = {} if header is None else {"X-IDENTITY-HEADER": header}
            async with session.get(f"{sign_in.endpoint}?{query}", headers=headers) as answer:
                assert (answer.status, set(await answer.json())) == (status, keys)


async def test_there_is_no_identity_where_none_was_asked_for() -> None:
    async with Emulator([("contoso", 0)]) as emulator, ClientSession() as session:
        assert emulator.ready.identity is None
        url = f"http://{emulator.namespaces['contoso'].authority}/$identity/token?api-version=2019-08-01&resource=x"
        async with session.get(url) as answer:
            assert answer.status == 401
            assert "MissingToken" in await answer.text()
