"""Valid requests to Atom, to Resource Manager and to the relay, broken in documents, paths, headers and bytes.

On a real port each is answered or its connection ends, no error is swallowed, and a correct client is served
afterwards. So are broken messages of a listener of the relay. `-m slow` runs more examples.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from aiohttp import ClientError, ClientSession
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from yarl import URL

from sbpair.amqp_server.shared_access import AuthorizationRule
from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator import atom_client
from tests.emulator.peer import raw_connection
from tests.emulator.relay_peers import HANDSHAKE
from tests.emulator.test_arm import CONTOSO, GROUP, VERSION
from tests.kit.sas import sign

Draw = Any
Request = tuple[str, str, str, bytes, int]
"""Method, target, an extra header, body, and the position of a broken byte, -1 for none."""

QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=250)
EFFORTS = [QUICK, pytest.param(settings(QUICK, max_examples=4_000), marks=pytest.mark.slow)]
MAX_SECONDS = 240.0
PATIENCE_SECONDS = 0.2
MAX_ANSWER = 1_000_000
STATUSES = {"200", "400", "401", "403", "404", "405", "409", "411", "501"}
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
TEXTS = [
    "", " ", "true", "-1", "0", "9" * 400, "PT0S", "P10675199DT2H48M5.4775807S", "P99999999999D", "PT" + "9" * 50 + "S",
    "NaN", "\u0660", "x" * 5_000, "]]>", "sb://elsewhere/x", "/", "../..", "$Default", "a = ", "(" * 200 + "1",
    "Disabled", "d:int", "SqlFilter", "2026-01-01T00:00:00Z",
]  # fmt: skip

# Atom

SQL_FILTER = (
    "<Filter i:type=\"SqlFilter\"><SqlExpression>a = @p AND b LIKE 'x%'</SqlExpression><CompatibilityLevel>20"
    "</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@p</Key>"
    f'<Value xmlns:d="{SCHEMA}" i:type="d:int">1</Value></KeyValueOfstringanyType></Parameters></Filter>'
    '<Action i:type="SqlRuleAction"><SqlExpression>SET c = 2</SqlExpression></Action>'
)
CORRELATION_FILTER = (
    '<Filter i:type="CorrelationFilter"><CorrelationId>x</CorrelationId><Label>l</Label><Properties>'
    f'<KeyValueOfstringanyType><Key>n</Key><Value xmlns:d="{SCHEMA}" i:type="d:double">1.5</Value>'
    "</KeyValueOfstringanyType></Properties></Filter>"
)
RIGHTS = (
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey'
    "</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>"
    "<PrimaryKey>cA==</PrimaryKey><SecondaryKey>cw==</SecondaryKey></AuthorizationRule></AuthorizationRules>"
)
ATOM_QUEUE = (
    "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes><DefaultMessageTimeToLive>P1D"
    f"</DefaultMessageTimeToLive><MaxDeliveryCount>5</MaxDeliveryCount>{RIGHTS}<Status>Active</Status>"
)
ATOM_TOPIC = f"<DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive>{RIGHTS}<SupportOrdering>true</SupportOrdering>"
SUBSCRIPTION = "<LockDuration>PT1M</LockDuration><RequiresSession>false</RequiresSession><Status>Active</Status>"


def entry(kind: str, elements: str) -> bytes:
    return atom_client.entry(elements, f"{kind}Description").encode()


ATOM_REQUESTS = {
    "a queue": ("PUT", "/fuzzed", entry("Queue", ATOM_QUEUE)),
    "a queue again": ("PUT", "/orders", entry("Queue", ATOM_QUEUE)),
    "a topic": ("PUT", "/fuzzed", entry("Topic", ATOM_TOPIC)),
    "a subscription": ("PUT", "/topic/subscriptions/fuzzed", entry("Subscription", SUBSCRIPTION)),
    "a rule": ("PUT", "/topic/subscriptions/all/rules/fuzzed", entry("Rule", f"{SQL_FILTER}<Name>fuzzed</Name>")),
    "a correlation": (
        "PUT",
        "/topic/subscriptions/all/rules/fuzzed",
        entry("Rule", f"{CORRELATION_FILTER}<Name>f</Name>"),
    ),
    "queues": ("GET", "/$Resources/queues", b""),
    "topics": ("GET", "/$Resources/topics", b""),
    "subscriptions": ("GET", "/topic/subscriptions", b""),
    "rules": ("GET", "/topic/subscriptions/all/rules", b""),
    "one": ("GET", "/topic/subscriptions/all/rules/$Default", b""),
    "the namespace": ("GET", "/$namespaceinfo", b""),
    "an end": ("DELETE", "/fuzzed", b""),
}
QUERIES = [
    "api-version=2021-05", "api-version=2017-04", "", "api-version=", "$skip=0&$top=5", "$skip=-1", "$top=x", "%",
]  # fmt: skip
ATOM_HEADERS = [
    "",
    "If-Match: *",
    "If-Match: \x01",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Expect: nothing",
]
ANYWHERE = [
    "/", "//", "/%00", "/%2f%2F", "/" + "a/" * 200, "/" + "x" * 300, "/%ff", "/topic/rules", "/$x", "/topic/$x",
]  # fmt: skip


def broken_tree(draw: Draw, data: bytes) -> bytes:
    root = ET.fromstring(data)  # noqa: S314  # it was written above
    parents = [element for element in root.iter() if len(element)]
    if not parents:
        return data
    parent = draw(st.sampled_from(parents))
    number = draw(st.integers(0, len(parent) - 1))
    child = parent[number]
    how = draw(st.sampled_from(["text", "text", "drop", "twice", "name", "last", "type", "deeper", "tail"]))
    if how == "text":
        child.text = draw(st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20))
    elif how == "drop":
        parent.remove(child)
    elif how == "twice":
        parent.insert(number, child)
    elif how == "name":
        child.tag = draw(st.sampled_from([element.tag for element in root.iter()]) | st.just("x"))
    elif how == "last":
        parent.remove(child)
        parent.append(child)
    elif how == "type":
        child.set(f"{{{INSTANCE}}}type", draw(st.sampled_from(TEXTS)))
    elif how == "tail":
        child.tail = draw(st.sampled_from(TEXTS))
    else:
        for _ in range(draw(st.integers(1, 300))):
            wrapped = ET.Element(child.tag)
            wrapped.append(child)
            child = wrapped
        parent[number] = child
    return ET.tostring(root)


@st.composite
def atom_requests(draw: Draw) -> Request:
    method, path, body = ATOM_REQUESTS[draw(st.sampled_from(sorted(ATOM_REQUESTS)))]
    for _ in range(draw(st.integers(0, 3)) if body else 0):
        body = broken_tree(draw, body)
    if draw(st.integers(0, 5)) == 0:
        path = draw(st.sampled_from(ANYWHERE))
    if draw(st.integers(0, 5)) == 0:
        method = draw(st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS"]))
    query = draw(st.sampled_from([QUERIES[0]] * 8 + QUERIES))
    header = draw(st.sampled_from([ATOM_HEADERS[0]] * 8 + ATOM_HEADERS))
    return method, f"{path}?{query}", header, body, draw(st.sampled_from([-1] * 3) | st.integers(0, 2_000))


# Resource Manager

QUEUE = {"lockDuration": "PT30S", "maxSizeInMegabytes": 1024, "requiresSession": False, "forwardTo": "orders"}
TOPIC = {"defaultMessageTimeToLive": "PT1H", "supportOrdering": True, "enablePartitioning": False}
SQL = {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "a = 1"}, "action": {"sqlExpression": "SET b = 2"}}
CORRELATION = {"filterType": "CorrelationFilter", "correlationFilter": {"label": "x", "properties": {"a": "b"}}}

ARM_REQUESTS = {
    "a queue": ("PUT", f"{CONTOSO}/queues/fuzzed", {"properties": QUEUE}),
    "a topic": ("PUT", f"{CONTOSO}/topics/fuzzed", {"properties": TOPIC}),
    "a subscription": ("PUT", f"{CONTOSO}/topics/topic/subscriptions/fuzzed", {"properties": {"maxDeliveryCount": 3}}),
    "a rule": ("PUT", f"{CONTOSO}/topics/topic/subscriptions/all/rules/fuzzed", {"properties": SQL}),
    "a correlation": ("PUT", f"{CONTOSO}/topics/topic/subscriptions/all/rules/fuzzed", {"properties": CORRELATION}),
    "rights": ("PUT", f"{CONTOSO}/queues/orders/authorizationRules/fuzzed", {"properties": {"rights": ["Send"]}}),
    "keys": ("POST", f"{CONTOSO}/authorizationRules/own/regenerateKeys", {"keyType": "PrimaryKey"}),
    "queues": ("GET", f"{CONTOSO}/queues", None),
    "namespaces": ("GET", f"{GROUP}/namespaces", None),
}
VALUES = [None, True, 0, -1, 10**30, 1.5, [], {}, [{}], {"": ""}, *TEXTS]


def broken_json(draw: Draw, value: Any) -> Any:
    """Return the value with one part replaced, dropped, renamed or wrapped."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        rest = {name: each for name, each in value.items() if name != key}
        how = draw(st.sampled_from(["in", "in", "drop", "rename"]))
        if how == "drop":
            return rest
        return {**rest, draw(st.sampled_from(TEXTS)) if how == "rename" else key: broken_json(draw, value[key])}
    if draw(st.integers(0, 9)) == 0:
        for _ in range(draw(st.sampled_from([1, 2, 500]))):
            value = [value] if draw(st.booleans()) else {"properties": value}
        return value
    return draw(st.sampled_from(VALUES))


@st.composite
def arm_requests(draw: Draw) -> Request:
    method, path, document = ARM_REQUESTS[draw(st.sampled_from(sorted(ARM_REQUESTS)))]
    if document is not None:
        document = broken_json(draw, document)
    if draw(st.integers(0, 5)) == 0:
        parts = path.split("/")
        parts[draw(st.integers(1, len(parts) - 1))] = draw(st.sampled_from(["", "~", "%2F", "a%20b", "%00", "x" * 300]))
        path = "/".join(parts)
    if draw(st.integers(0, 5)) == 0:
        method = draw(st.sampled_from(["GET", "PUT", "POST", "DELETE", "PATCH"]))
    query = draw(st.sampled_from([VERSION] * 6 + ["", "api-version=x", f"{VERSION}&$skip=x", f"{VERSION}&$top=0"]))
    body = b"" if document is None else json.dumps(document).encode()
    return method, f"{path}?{query}", "", body, draw(st.sampled_from([-1] * 3) | st.integers(0, 2_000))


# The relay

TARGETS = [
    "/$hc/hyco?sb-hc-action=connect", "/$hc/hyco/a/b?x=1&sb-hc-action=connect&sb-hc-id=mine", "/$hc/none",
    "/$hc/hyco?sb-hc-action=accept&sb-hc-id=x", "/$hc/hyco?sb-hc-action=request&sb-hc-id=x", "/$hc/hyco?sb-hc-token=x",
    "/hyco", "/hyco/a?b=c&&sb-hc-x", "/none", "/hyco?api-version=2016-07",
]  # fmt: skip
RELAY_HEADERS = [
    "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 12", "Expect: 100-continue", "X: \x01",
    "Microsoft-Relay-AllowedListeners: ,", "X-PROCESS-AT: ServiceBus", "Transfer-Encoding: chunked",
    "ServiceBusAuthorization: x", "Content-Length: 5",
    "\r\n".join(f"{name}: {value}" for name, value in HANDSHAKE.items()),
]  # fmt: skip
RESPONSE = {
    "requestId": "ID",
    "statusCode": "200",
    "statusDescription": "OK",
    "responseHeaders": {"Content-Type": "text/plain", "Via": "x", "Content-Length": "2", "Set-Cookie": "a=b"},
    "body": True,
}
MESSAGES: list[Any] = [{"response": RESPONSE}, {"renewToken": {"token": "x"}}, {"request": {}}, {"accept": {}}]


@st.composite
def relay_requests(draw: Draw) -> Request:
    target = draw(st.sampled_from(TARGETS))
    if draw(st.integers(0, 3)) == 0:
        target = target.replace("hyco", draw(st.sampled_from(["..", "%2e%2e", "%00", "a" * 300, "%ff", "", "$hc"])))
    method = draw(st.sampled_from(["GET"] * 4 + ["POST", "PUT", "DELETE", "HEAD", "PROPFIND"]))
    body = draw(st.sampled_from([b"", b"", b"hello", b"x" * 70_000]))
    return (
        method,
        target,
        draw(st.sampled_from(RELAY_HEADERS)),
        body,
        draw(st.sampled_from([-1] * 3) | st.integers(0, 800)),
    )


@st.composite
def broken_messages(draw: Draw) -> list[str | bytes]:
    """Draw what a listener sends; ID stands for the id of its request."""
    messages: list[str | bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["message", "message", "message", "text", "bytes"]))
        if kind == "message":
            messages.append(json.dumps(broken_json(draw, draw(st.sampled_from(MESSAGES)))))
        elif kind == "text":
            messages.append(draw(st.sampled_from(TEXTS)))
        else:
            messages.append(draw(st.binary(max_size=20)))
    return messages


# The attack


@dataclass(frozen=True)
class Frontend:
    """How a frontend is attacked. `sound` are valid requests, `there` can be read whatever was attacked."""

    broken_requests: st.SearchStrategy[Request]
    own_status: str
    there: str
    token: str = "signed"
    sound: dict[str, tuple[str, str, bytes]] = field(default_factory=dict)

    @property
    def made(self) -> set[str]:
        return {target for method, target, _ in self.sound.values() if method == "PUT" and "/fuzzed?" in target}


FRONTENDS = {
    "atom": Frontend(
        atom_requests(),
        "201",
        f"/$namespaceinfo?{QUERIES[0]}",
        sound={
            name: (method, f"{path}?{QUERIES[0]}", body)
            for name, (method, path, body) in ATOM_REQUESTS.items()
            if method != "DELETE"
        },
    ),
    "arm": Frontend(
        arm_requests(),
        "204",
        f"{CONTOSO}/queues/orders?{VERSION}",
        "issued",
        {
            name: (method, f"{path}?{VERSION}", json.dumps(document).encode() if document else b"")
            for name, (method, path, document) in ARM_REQUESTS.items()
        },
    ),
    "relay": Frontend(relay_requests(), "100", f"/$namespaceinfo?{QUERIES[0]}"),
}


class Attacked:
    """An emulator on a loop that the test runs step by step."""

    def __init__(self) -> None:
        self.unheard: list[dict[str, Any]] = []
        self.runner = asyncio.Runner()

    def __enter__(self) -> Attacked:
        self.runner.get_loop().set_exception_handler(lambda _, context: self.unheard.append(context))
        self.emulator = self.runner.run(self._started())
        self.namespace = self.emulator.namespaces["contoso"]
        self.namespace.keys = (*self.namespace.keys, AuthorizationRule("own", "key", "key2"))
        self.namespace.create_queue("orders")
        self.namespace.create_topic("topic").create_subscription("all")
        self.namespace.hybrid_connections.create("hyco")
        issued, _ = self.emulator.bearers.issue(ARM_AUDIENCES[0], self.emulator.clock.now_ms())
        self.tokens = {"signed": self.sign(f"https://{self.namespace.authority}"), "issued": f"Bearer {issued}"}
        return self

    async def _started(self) -> Emulator:
        return await Emulator([("contoso", 0)], options=EmulatorOptions(identity=True)).__aenter__()

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.emulator.__aexit__(None, None, None))
        self.runner.close()

    def sign(self, resource: str) -> str:
        return sign(self.namespace.keys[0], resource, 2**33)

    def ask(self, token: str, method: str, target: str, header: str = "", body: bytes = b"", hit: int = -1) -> bytes:
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self.namespace.authority}",
            f"Authorization: {self.tokens[token]}",
            "Connection: close",
            *([header] if header else []),
            *([f"Content-Length: {len(body)}"] if "Content-Length" not in header and "chunked" not in header else []),
        ]
        sent = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        if 4 <= hit < len(sent):
            sent = sent[:hit] + bytes([sent[hit] ^ 0x15]) + sent[hit + 1 :]
        return self.runner.run(self._exchange(sent, promises=bool(header) or hit >= 0))

    async def _exchange(self, sent: bytes, *, promises: bool) -> bytes:
        async with asyncio.timeout(MAX_SECONDS), raw_connection(self.namespace.authority) as (reader, writer):
            try:
                writer.write(sent)
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_SECONDS if promises else MAX_SECONDS):
                        return await reader.read(MAX_ANSWER)
                # It waits for the rest of the declared body.
                writer.write_eof()
                return await reader.read(MAX_ANSWER)
            except ConnectionError:
                return b""

    def check(self, caplog: pytest.LogCaptureFixture) -> None:
        """Fail if an error was swallowed."""
        assert not self.unheard
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    with Attacked() as attacked:
        yield attacked


def survive(attacked: Attacked, caplog: pytest.LogCaptureFixture, frontend: Frontend, request: Request) -> None:
    caplog.clear()
    answer = attacked.ask(frontend.token, *request)
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split()[1].decode() if head else "200"
    assert status in STATUSES | {frontend.own_status}, head
    if status >= "400" and body and b"application/json" in head:
        assert set(json.loads(body)["error"]) == {"code", "message"}
    assert len(answer) < MAX_ANSWER
    attacked.check(caplog)
    for target in frontend.made:
        attacked.ask(frontend.token, "DELETE", target)
    assert attacked.ask(frontend.token, "GET", frontend.there).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("frontend", "name"), [(frontend, name) for frontend, each in FRONTENDS.items() for name in each.sound]
)
def test_the_unbroken_inputs_are_valid(attacked: Attacked, frontend: str, name: str) -> None:
    token = FRONTENDS[frontend].token
    method, target, body = FRONTENDS[frontend].sound[name]
    header = "If-Match: *" if name == "a queue again" else ""
    assert attacked.ask(token, method, target, header, body).startswith(b"HTTP/1.1 20")
    if target in FRONTENDS[frontend].made:
        assert attacked.ask(token, "DELETE", target).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("frontend", FRONTENDS.values(), ids=FRONTENDS)
def test_broken_requests_harm_no_other_client(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, frontend: Frontend, effort: settings
) -> None:
    @effort
    @given(frontend.broken_requests)
    def each(broken: Request) -> None:
        survive(attacked, caplog, frontend, broken)

    each()


@pytest.mark.parametrize("effort", [settings(QUICK, max_examples=80), *EFFORTS[1:]])
def test_broken_messages_of_a_listener_harm_no_other(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, effort: settings
) -> None:
    @effort
    @given(broken_messages(), st.booleans())
    def each(messages: list[str | bytes], at_rendezvous: bool) -> None:
        attacked.runner.run(misbehave(attacked, messages, at_rendezvous=at_rendezvous))
        attacked.check(caplog)

    each()


async def misbehave(attacked: Attacked, messages: list[str | bytes], *, at_rendezvous: bool) -> None:
    """Let a listener send the messages as its response, and then another one answer a request."""
    authority = attacked.namespace.authority
    headers = {"ServiceBusAuthorization": attacked.sign(f"http://{authority}/hyco")}
    listen, ask = f"ws://{authority}/$hc/hyco?sb-hc-action=listen", f"http://{authority}/hyco"
    async with ClientSession() as session:
        async with session.ws_connect(URL(listen, encoded=True), headers=headers) as bad:
            asking = asyncio.create_task(outcome(session, ask, headers))
            request = (await bad.receive_json())["request"]
            socket = await session.ws_connect(URL(request["address"], encoded=True)) if at_rendezvous else bad
            for message in messages:
                if isinstance(message, bytes):
                    await socket.send_bytes(message)
                else:
                    await socket.send_str(message.replace("ID", request["id"]))
            await socket.close()
        while not asking.done():
            attacked.emulator.advance(60_000)
            await asyncio.wait([asking], timeout=0.01)
        asking.result()
        async with session.ws_connect(URL(listen, encoded=True), headers=headers) as good:
            asking = asyncio.create_task(outcome(session, ask, headers))
            request = (await good.receive_json())["request"]
            await good.send_json({"response": {"requestId": request["id"], "statusCode": 200, "body": True}})
            await good.send_bytes(b"good")
            assert await asking == (200, b"good")


async def outcome(session: ClientSession, url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    try:
        async with session.get(url, headers=headers) as answer:
            return answer.status, await answer.read()
    except ClientError:
        return 0, b""
