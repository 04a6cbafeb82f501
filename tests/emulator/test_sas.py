"""Shared access tokens: signature, scope and expiry."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest

from sbpair.emulator.access.sas import ALL_RIGHTS, AccessRight, AuthorizationRule, signature
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.namespace import ROOT_RULE, Namespace
from sbpair.emulator.service_errors import Unauthenticated, Unauthorized
from tests.kit.sas import sign

if TYPE_CHECKING:
    from sbpair.emulator.clock import ManualClock

ENTITY = "sb://127.0.0.1:5672/orders"
WHOLE = "https://127.0.0.1:5672"
SENDER = AuthorizationRule("sender", "first key", "second key", frozenset({AccessRight.SEND}))


@pytest.fixture
def namespace(clock: ManualClock) -> Namespace:
    namespace = Namespace("contoso", clock)
    namespace.create_queue("Orders", replace(QueueDescription(), authorization_rules=(SENDER,)))
    namespace.create_queue("orders-old")
    return namespace


@pytest.fixture
def soon(clock: ManualClock) -> int:
    return clock.now_ms() // 1000 + 60


def raw_token(resource: str, expiry: int, key: str = "SAS_KEY_VALUE", name: str = ROOT_RULE.key_name) -> str:
    """Return a token without URL encoding, not even of the signature."""
    sig = base64.b64encode(signature(key, resource, str(expiry))).decode()
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={expiry}&skn={name}"


def test_a_token_for_the_namespace_is_valid_for_every_entity(namespace, soon) -> None:
    for resource in (WHOLE, WHOLE + "/", "sb://elsewhere"):
        grant = namespace.authenticate(sign(ROOT_RULE, resource, soon), ENTITY)
        assert grant.rights == ALL_RIGHTS
        assert grant.scope == ""
        assert grant.expires_at_ms == soon * 1000


def test_a_token_for_a_url_is_valid_for_its_path(namespace, soon) -> None:
    token = sign(ROOT_RULE, "https://127.0.0.1:5672/orders?api-version=2021-05&enrich=false", soon)
    assert namespace.authenticate(token, ENTITY).scope == "orders"
    listing = sign(ROOT_RULE, "https://127.0.0.1:5672/$resources/queues?$skip=0", soon)
    assert namespace.authenticate(listing, "$Resources/queues").rights == ALL_RIGHTS
    with pytest.raises(Unauthenticated, match="InvalidAudience"):
        namespace.authenticate(listing, ENTITY)


def test_a_token_for_an_entity_is_valid_below_it(namespace, soon) -> None:
    token = sign(ROOT_RULE, ENTITY, soon)
    for address in (ENTITY, "ORDERS", "orders/$DeadLetterQueue", "amqps://127.0.0.1:5672/orders/$management"):
        assert namespace.authenticate(token, address).scope == "orders"
    for address in ("orders-old", "", "other"):
        with pytest.raises(Unauthenticated, match="InvalidAudience"):
            namespace.authenticate(token, address)


@pytest.mark.parametrize("expiry", range(1_800_000_000, 1_800_000_040))
def test_raw_and_encoded_tokens_are_verified_as_received(namespace, expiry) -> None:
    assert namespace.authenticate(raw_token(ENTITY, expiry), ENTITY).key_name == ROOT_RULE.key_name
    lower = quote_plus(ENTITY).lower()
    sig = quote(base64.b64encode(signature("SAS_KEY_VALUE", lower, str(expiry))), safe="")
    token = f"SharedAccessSignature sig={sig}&se={expiry}&skn={ROOT_RULE.key_name}&sr={lower}"
    assert namespace.authenticate(token, ENTITY).scope == "orders"


def test_the_secondary_key_signs_as_well(namespace, soon) -> None:
    assert namespace.authenticate(raw_token(ENTITY, soon, ROOT_RULE.secondary_key), ENTITY).rights == ALL_RIGHTS


def test_a_wrong_key_or_key_name_is_not_authenticated(namespace, soon) -> None:
    for token in (raw_token(ENTITY, soon, "wrong"), raw_token(ENTITY, soon, name="nobody")):
        with pytest.raises(Unauthenticated, match="InvalidSignature") as refused:
            namespace.authenticate(token, ENTITY)
        assert (refused.value.status, refused.value.sub_code) == (401, 40100)


def test_a_signature_for_another_resource_or_time_is_not_authenticated(namespace, soon) -> None:
    token = sign(ROOT_RULE, ENTITY, soon)
    for changed in (token.replace("orders", "others"), token.replace(f"se={soon}", f"se={soon + 1}")):
        with pytest.raises(Unauthenticated, match="InvalidSignature"):
            namespace.authenticate(changed, "")


def test_a_token_expires_by_the_namespaces_clock(namespace, clock, soon) -> None:
    token = sign(ROOT_RULE, ENTITY, soon)
    grant = namespace.authenticate(token, ENTITY)
    clock.advance(60_000)
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        namespace.authenticate(token, ENTITY)
    with pytest.raises(Unauthenticated, match="ExpiredToken"):
        grant.require(AccessRight.SEND, "orders", clock.now_ms())


def test_an_entitys_own_rule_signs_for_that_entity_only(namespace, clock, soon) -> None:
    grant = namespace.authenticate(sign(SENDER, ENTITY, soon), "orders")
    grant.require(AccessRight.SEND, "orders", clock.now_ms())
    with pytest.raises(Unauthorized, match="Listen"):
        grant.require(AccessRight.LISTEN, "orders", clock.now_ms())
    for resource in (WHOLE, "sb://127.0.0.1/orders-old"):
        with pytest.raises(Unauthenticated, match="InvalidSignature"):
            namespace.authenticate(sign(SENDER, resource, soon), "orders")


def test_a_right_on_one_entity_is_none_on_another(namespace, clock, soon) -> None:
    grant = namespace.authenticate(sign(ROOT_RULE, ENTITY, soon), ENTITY)
    with pytest.raises(Unauthorized):
        grant.require(AccessRight.SEND, "orders-old", clock.now_ms())


@pytest.mark.parametrize(
    "token",
    [
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
        "SharedAccessSignature sr=\ud800&sig=YQ==&se=1&skn=k",
        "Bearer eyJ",
    ],
)
def test_an_invalid_token_is_not_authenticated(namespace, token) -> None:
    with pytest.raises(Unauthenticated):
        namespace.authenticate(token, ENTITY)


def test_no_repr_shows_a_key() -> None:
    assert "first key" not in repr(SENDER)
    assert "second key" not in repr(SENDER)
