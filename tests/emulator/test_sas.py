"""Shared access tokens: signature, scope and expiry."""

import base64
from dataclasses import replace
from urllib.parse import quote, quote_plus

import pytest

from sbpair.amqp_server.refusals import Unauthenticated, Unauthorized
from sbpair.amqp_server.shared_access import ALL_RIGHTS, AccessRight, AuthorizationRule, signature
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import ROOT_RULE
from tests.kit.sas import sign

SOON = ManualClock().now_ms() // 1000 + 60
ENTITY = "sb://127.0.0.1:5672/orders"
WHOLE = "https://127.0.0.1:5672"
SENDER = AuthorizationRule("sender", "first key", "second key", frozenset({AccessRight.SEND}))


@pytest.fixture
def namespace(clock: ManualClock) -> Namespace:
    namespace = Namespace("contoso", clock)
    namespace.create_queue("Orders", replace(QueueDescription(), authorization_rules=(SENDER,)))
    namespace.create_queue("orders-old")
    return namespace


def raw_token(resource: str, expiry: int, key: str = "SAS_KEY_VALUE", name: str = ROOT_RULE.key_name) -> str:
    """Return a token without URL encoding, not even of the signature."""
    sig = base64.b64encode(signature(key, resource, str(expiry))).decode()
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={expiry}&skn={name}"


LISTING = "https://127.0.0.1:5672/$resources/queues?$skip=0"


@pytest.mark.parametrize(
    ("resource", "address", "scope"),
    [
        *((resource, ENTITY, "") for resource in (WHOLE, WHOLE + "/", "sb://elsewhere")),
        ("https://127.0.0.1:5672/orders?api-version=2021-05&enrich=false", ENTITY, "orders"),
        (LISTING, "$Resources/queues", "$resources/queues"),
        *(
            (change(f"{scheme}127.0.0.1{port}{path}"), address, scope)
            for scheme in ("", "sb://", "amqp://", "amqps://", "http://", "https://")
            for port in ("", ":5672")
            for change in (str.upper, str.lower)
            for path, address, scope in (("", ENTITY, ""), ("/", ENTITY, ""), ("/Orders/", ENTITY, "orders"))
        ),
        (ENTITY, "ORDERS", "orders"),
        (ENTITY, "orders/$DeadLetterQueue", "orders"),
        (ENTITY, "amqps://127.0.0.1:5672/orders/$management", "orders"),
    ],
)
def test_a_token_is_valid_for_its_path_and_below(namespace, resource: str, address: str, scope: str) -> None:
    grant = namespace.authenticate(sign(ROOT_RULE, resource, SOON), address)
    assert (grant.rights, grant.scope, grant.expires_at_ms) == (ALL_RIGHTS, scope, SOON * 1000)


@pytest.mark.parametrize("expiry", range(1_800_000_000, 1_800_000_040))
def test_raw_and_encoded_tokens_are_verified_as_received(namespace, expiry) -> None:
    assert namespace.authenticate(raw_token(ENTITY, expiry), ENTITY).rights == ROOT_RULE.rights
    lower = quote_plus(ENTITY).lower()
    sig = quote(base64.b64encode(signature("SAS_KEY_VALUE", lower, str(expiry))), safe="")
    token = f"SharedAccessSignature sig={sig}&se={expiry}&skn={ROOT_RULE.key_name}&sr={lower}"
    assert namespace.authenticate(token, ENTITY).scope == "orders"


MALFORMED = [
    "",
    "SharedAccessSignature",
    "SharedAccessSignature sr=a",
    "SharedAccessSignature sr=a&sig=%%%&se=1&skn=k",
    "SharedAccessSignature sr=a&sig=abc&se=1&skn=k",
    "SharedAccessSignature sr=a&sig=YQ==&se=-1&skn=k",
    "SharedAccessSignature sr=a&sig=YQ==&se=1e9&skn=k",
    "SharedAccessSignature sr=a&sig=YQ==&se=\u0661&skn=k",
    "SharedAccessSignature sr=a&sig=YQ==&se=" + "9" * 5000 + "&skn=k",
    "SharedAccessSignature sr=" + "a" * 10_000 + "&sig=YQ==&se=1&skn=k",
    "Bearer eyJ",
]
TOKEN = sign(ROOT_RULE, ENTITY, SOON)


@pytest.mark.parametrize(
    ("token", "address", "cause"),
    [
        (sign(ROOT_RULE, LISTING, SOON), ENTITY, "InvalidAudience"),
        *((TOKEN, address, "InvalidAudience") for address in ("orders-old", "", "other")),
        (raw_token(ENTITY, SOON, "wrong"), ENTITY, "InvalidSignature"),
        (raw_token(ENTITY, SOON, name="nobody"), ENTITY, "InvalidSignature"),
        (TOKEN.replace("orders", "others"), "", "InvalidSignature"),
        (TOKEN.replace(f"se={SOON}", f"se={SOON + 1}"), "", "InvalidSignature"),
        (sign(ROOT_RULE, ENTITY, SOON - 60), ENTITY, "ExpiredToken"),
        # An entity's own rule signs for that entity only.
        (sign(SENDER, WHOLE, SOON), "orders", "InvalidSignature"),
        (sign(SENDER, "sb://127.0.0.1/orders-old", SOON), "orders", "InvalidSignature"),
        ("SharedAccessSignature sr=\ud800&sig=YQ==&se=1&skn=k", ENTITY, "InvalidSignature"),
        *((token, ENTITY, "MalformedToken") for token in MALFORMED),
    ],
)
def test_an_invalid_token_is_not_authenticated(namespace, token: str, address: str, cause: str) -> None:
    with pytest.raises(Unauthenticated, match=cause) as refused:
        namespace.authenticate(token, address)
    assert (refused.value.status, refused.value.sub_code) == (401, 40100)


def test_a_grant_has_its_rights_on_its_entity_until_it_expires(namespace, clock) -> None:
    assert namespace.authenticate(raw_token(ENTITY, SOON, ROOT_RULE.secondary_key), ENTITY).rights == ALL_RIGHTS
    grant = namespace.authenticate(sign(SENDER, ENTITY, SOON), "orders")
    grant.require(AccessRight.SEND, "orders", clock.now_ms())
    with pytest.raises(Unauthorized, match="Listen"):
        grant.require(AccessRight.LISTEN, "orders", clock.now_ms())
    with pytest.raises(Unauthorized):
        grant.require(AccessRight.SEND, "orders-old", clock.now_ms())
    clock.advance(60_000)
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        grant.require(AccessRight.SEND, "orders", clock.now_ms())


def test_no_repr_shows_a_key() -> None:
    assert "first key" not in repr(SENDER)
    assert "second key" not in repr(SENDER)
