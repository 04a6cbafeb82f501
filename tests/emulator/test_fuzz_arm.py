"""Valid requests to Resource Manager, broken in JSON, in paths and in bytes: each gets an answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from sbpair.emulator.access_tokens import ARM_AUDIENCES, Bearers
from tests.emulator.test_fuzz_http import EFFORTS, TEXTS, Attacked, Frontend, attack

Draw = Any
SERVICE = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/g/providers/Microsoft.ServiceBus"
CONTOSO = f"{SERVICE}/namespaces/contoso"
VERSION = "api-version=2026-01-01"
QUEUE = {"lockDuration": "PT30S", "maxSizeInMegabytes": 1024, "requiresSession": False, "forwardTo": "orders"}
TOPIC = {"defaultMessageTimeToLive": "PT1H", "supportOrdering": True, "enablePartitioning": False}
SQL = {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "a = 1"}, "action": {"sqlExpression": "SET b = 2"}}
CORRELATION = {"filterType": "CorrelationFilter", "correlationFilter": {"label": "x", "properties": {"a": "b"}}}

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "a queue": ("PUT", f"{CONTOSO}/queues/fuzzed", {"properties": QUEUE}),
    "a topic": ("PUT", f"{CONTOSO}/topics/fuzzed", {"properties": TOPIC}),
    "a subscription": ("PUT", f"{CONTOSO}/topics/topic/subscriptions/fuzzed", {"properties": {"maxDeliveryCount": 3}}),
    "a rule": ("PUT", f"{CONTOSO}/topics/topic/subscriptions/all/rules/fuzzed", {"properties": SQL}),
    "a correlation": ("PUT", f"{CONTOSO}/topics/topic/subscriptions/all/rules/fuzzed", {"properties": CORRELATION}),
    "rights": ("PUT", f"{CONTOSO}/queues/orders/authorizationRules/fuzzed", {"properties": {"rights": ["Send"]}}),
    "keys": ("POST", f"{CONTOSO}/authorizationRules/own/regenerateKeys", {"keyType": "PrimaryKey"}),
    "queues": ("GET", f"{CONTOSO}/queues", None),
    "namespaces": ("GET", f"{SERVICE}/namespaces", None),
}
VALUES = [None, True, 0, -1, 10**30, 1.5, [], {}, [{}], {"": ""}, *TEXTS]


def broken(draw: Draw, value: Any) -> Any:
    """Return the value with one part replaced, dropped, renamed or wrapped."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        rest = {name: each for name, each in value.items() if name != key}
        how = draw(st.sampled_from(["in", "in", "drop", "rename"]))
        if how == "drop":
            return rest
        return {**rest, draw(st.sampled_from(TEXTS)) if how == "rename" else key: broken(draw, value[key])}
    if draw(st.integers(0, 9)) == 0:
        for _ in range(draw(st.sampled_from([1, 2, 500]))):
            value = [value] if draw(st.booleans()) else {"properties": value}
        return value
    return draw(st.sampled_from(VALUES))


@st.composite
def broken_requests(draw: Draw) -> tuple[str, str, str, bytes, int]:
    """Draw method, target, an extra header and body, and the position of a broken byte, if any."""
    method, path, document = REQUESTS[draw(st.sampled_from(sorted(REQUESTS)))]
    if document is not None:
        document = broken(draw, document)
    if draw(st.integers(0, 5)) == 0:
        parts = path.split("/")
        parts[draw(st.integers(1, len(parts) - 1))] = draw(st.sampled_from(["", "~", "%2F", "a%20b", "%00", "x" * 300]))
        path = "/".join(parts)
    if draw(st.integers(0, 5)) == 0:
        method = draw(st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH"]))
    query = draw(st.sampled_from([VERSION] * 6 + ["", "api-version=x", f"{VERSION}&$skip=x", f"{VERSION}&$top=0"]))
    body = b"" if document is None else json.dumps(document).encode()
    return method, f"{path}?{query}", "", body, draw(st.sampled_from([-1] * 3) | st.integers(0, 2_000))


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    bearers = Bearers()
    with Attacked() as attacked:
        attacked.namespace.bearers = bearers
        token, _ = bearers.issue(ARM_AUDIENCES[0], attacked.emulator.clock.now_ms())
        attacked.token = f"Bearer {token}"
        assert attacked.ask(*sound("own")).startswith(b"HTTP/1.1 200")
        yield attacked


def sound(rule: str) -> tuple[str, str, str, bytes]:
    body = json.dumps({"properties": {"rights": ["Listen"]}}).encode()
    return "PUT", f"{CONTOSO}/authorizationRules/{rule}?{VERSION}", "", body


def check(status: str, head: bytes, body: bytes) -> None:
    if status in ("400", "403", "404", "405", "409") and b"application/json" in head:
        assert set(json.loads(body)["error"]) == {"code", "message"}


FUZZED = [path for _, path, _ in REQUESTS.values() if path.endswith("fuzzed")]
OVER_ARM = Frontend(broken_requests(), FUZZED, f"{CONTOSO}/queues/orders", VERSION, "204", check)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_unbroken_inputs_are_valid(attacked: Attacked, name: str) -> None:
    method, path, document = REQUESTS[name]
    body = b"" if document is None else json.dumps(document).encode()
    assert attacked.ask(method, f"{path}?{VERSION}", "", body).startswith(b"HTTP/1.1 200")
    if path.endswith("fuzzed"):
        assert attacked.ask("DELETE", f"{path}?{VERSION}", "", b"").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("effort", EFFORTS)
def test_broken_requests_harm_no_other_client(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, effort: settings
) -> None:
    attack(attacked, caplog, OVER_ARM, effort)
