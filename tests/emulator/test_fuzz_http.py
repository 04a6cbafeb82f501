"""Valid management requests, broken in their XML, paths, headers and bytes, on a real port.

Each is answered or its connection ends, no error is swallowed, and a correct client is served afterwards. `-m slow`
runs more examples.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbpair.testing import Emulator
from tests.emulator import atom_client
from tests.kit.sas import sign

Draw = Any
QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=250)
EFFORTS = [QUICK, pytest.param(settings(QUICK, max_examples=4_000), marks=pytest.mark.slow)]
MAX_SECONDS = 10.0
PATIENCE_SECONDS = 0.2
MAX_ANSWER = 1_000_000
STATUSES = {"200", "400", "401", "403", "404", "405", "409", "411", "501"}
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

FILTER = (
    "<Filter i:type=\"SqlFilter\"><SqlExpression>a = @p AND b LIKE 'x%'</SqlExpression><CompatibilityLevel>20"
    "</CompatibilityLevel><Parameters><KeyValueOfstringanyType><Key>@p</Key>"
    f'<Value xmlns:d="{SCHEMA}" i:type="d:int">1</Value></KeyValueOfstringanyType></Parameters></Filter>'
    '<Action i:type="SqlRuleAction"><SqlExpression>SET c = 2</SqlExpression></Action>'
)
CORRELATION = (
    '<Filter i:type="CorrelationFilter"><CorrelationId>x</CorrelationId><Label>l</Label><Properties>'
    f'<KeyValueOfstringanyType><Key>n</Key><Value xmlns:d="{SCHEMA}" i:type="d:double">1.5</Value>'
    "</KeyValueOfstringanyType></Properties></Filter>"
)
RIGHTS = (
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey'
    "</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName>"
    "<PrimaryKey>cA==</PrimaryKey><SecondaryKey>cw==</SecondaryKey></AuthorizationRule></AuthorizationRules>"
)
QUEUE = (
    "<LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes><DefaultMessageTimeToLive>P1D"
    f"</DefaultMessageTimeToLive><MaxDeliveryCount>5</MaxDeliveryCount>{RIGHTS}<Status>Active</Status>"
)
TOPIC = f"<DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive>{RIGHTS}<SupportOrdering>true</SupportOrdering>"
SUBSCRIPTION = "<LockDuration>PT1M</LockDuration><RequiresSession>false</RequiresSession><Status>Active</Status>"


def entry(kind: str, elements: str) -> bytes:
    return atom_client.entry(elements, f"{kind}Description").encode()


REQUESTS: dict[str, tuple[str, str, bytes]] = {
    "a queue": ("PUT", "/fuzzed", entry("Queue", QUEUE)),
    "a queue again": ("PUT", "/orders", entry("Queue", QUEUE)),
    "a topic": ("PUT", "/fuzzed", entry("Topic", TOPIC)),
    "a subscription": ("PUT", "/topic/subscriptions/fuzzed", entry("Subscription", SUBSCRIPTION)),
    "a rule": ("PUT", "/topic/subscriptions/all/rules/fuzzed", entry("Rule", f"{FILTER}<Name>fuzzed</Name>")),
    "a correlation": ("PUT", "/topic/subscriptions/all/rules/fuzzed", entry("Rule", f"{CORRELATION}<Name>f</Name>")),
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
HEADERS = ["", "If-Match: *", "If-Match: \x01", "Content-Length: 5", "Transfer-Encoding: chunked", "Expect: nothing"]
TEXTS = [
    "", " ", "true", "-1", "0", "9" * 400, "PT0S", "P10675199DT2H48M5.4775807S", "P99999999999D", "PT" + "9" * 50 + "S",
    "NaN", "\u0660", "x" * 5_000, "]]>", "sb://elsewhere/x", "/", "../..", "$Default", "a = ", "(" * 200 + "1",
    "Disabled", "d:int", "SqlFilter", "2026-01-01T00:00:00Z",
]  # fmt: skip
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
def broken_requests(draw: Draw) -> tuple[str, str, str, bytes, int]:
    """Draw method, target, an extra header and body, and the position of a broken byte, if any."""
    method, path, body = REQUESTS[draw(st.sampled_from(sorted(REQUESTS)))]
    for _ in range(draw(st.integers(0, 3)) if body else 0):
        body = broken_tree(draw, body)
    if draw(st.integers(0, 5)) == 0:
        path = draw(st.sampled_from(ANYWHERE))
    if draw(st.integers(0, 5)) == 0:
        method = draw(st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS"]))
    query = draw(st.sampled_from([QUERIES[0]] * 8 + QUERIES))
    header = draw(st.sampled_from([HEADERS[0]] * 8 + HEADERS))
    return method, f"{path}?{query}", header, body, draw(st.sampled_from([-1] * 3) | st.integers(0, 2_000))


@dataclass(frozen=True)
class Frontend:
    """How a frontend is attacked, and what holds afterwards: `made` is deleted, `there` can be read."""

    broken_requests: st.SearchStrategy[Any]
    made: Sequence[str]
    there: str
    version: str
    own_status: str
    check: Callable[[str, bytes, bytes], None] = lambda *_: None


class Attacked:
    """An emulator on a loop that the test runs step by step."""

    def __init__(self) -> None:
        self.unheard: list[dict[str, Any]] = []
        self._runner = asyncio.Runner()

    def __enter__(self) -> Attacked:
        self._runner.get_loop().set_exception_handler(lambda _, context: self.unheard.append(context))
        self.emulator = self._runner.run(self._started())
        self.namespace = self.emulator.namespaces["contoso"]
        self.namespace.create_queue("orders")
        self.namespace.create_topic("topic").create_subscription("all")
        self.token = sign(self.namespace.keys[0], f"https://{self.namespace.authority}", 2**33)
        return self

    async def _started(self) -> Emulator:
        return await Emulator([("contoso", 0)]).__aenter__()

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.emulator.__aexit__(None, None, None))
        self._runner.close()

    def ask(self, method: str, target: str, header: str, body: bytes, hit: int = -1) -> bytes:
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self.namespace.authority}",
            f"Authorization: {self.token}",
            "Connection: close",
            *([header] if header else []),
            *([f"Content-Length: {len(body)}"] if "Content-Length" not in header and "chunked" not in header else []),
        ]
        sent = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        if 4 <= hit < len(sent):
            sent = sent[:hit] + bytes([sent[hit] ^ 0x15]) + sent[hit + 1 :]
        return self._runner.run(self._exchange(sent, promises=bool(header) or hit >= 0))

    async def _exchange(self, sent: bytes, *, promises: bool) -> bytes:
        host, _, port = self.namespace.authority.rpartition(":")
        async with asyncio.timeout(MAX_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port))
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
            finally:
                writer.transport.abort()


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    with Attacked() as attacked:
        yield attacked


def survive(attacked: Attacked, caplog: pytest.LogCaptureFixture, frontend: Frontend, *request: Any) -> None:
    caplog.clear()
    answer = attacked.ask(*request)
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split()[1].decode() if head else "200"
    assert status in STATUSES | {frontend.own_status}, head
    frontend.check(status, head, body)
    assert len(answer) < MAX_ANSWER
    assert not attacked.unheard
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    for target in frontend.made:
        attacked.ask("DELETE", f"{target}?{frontend.version}", "", b"")
    assert attacked.ask("GET", f"{frontend.there}?{frontend.version}", "", b"").startswith(b"HTTP/1.1 200")


def attack(attacked: Attacked, caplog: pytest.LogCaptureFixture, frontend: Frontend, effort: settings) -> None:
    @effort
    @given(frontend.broken_requests)
    def each(broken: Any) -> None:
        survive(attacked, caplog, frontend, *broken)

    each()


FUZZED = ("/fuzzed", "/topic/subscriptions/fuzzed", "/topic/subscriptions/all/rules/fuzzed")
OVER_ATOM = Frontend(broken_requests(), FUZZED, "/$namespaceinfo", QUERIES[0], "201")


@pytest.mark.parametrize("name", [name for name in REQUESTS if name != "an end"])
def test_the_unbroken_inputs_are_valid(attacked: Attacked, name: str) -> None:
    method, path, body = REQUESTS[name]
    header = "If-Match: *" if name == "a queue again" else ""
    answer = attacked.ask(method, f"{path}?{QUERIES[0]}", header, body)
    assert answer.startswith(b"HTTP/1.1 20"), answer
    if name.startswith("a ") and "again" not in name:
        assert attacked.ask("DELETE", f"{path}?{QUERIES[0]}", "", b"").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("effort", EFFORTS)
def test_broken_requests_harm_no_other_client(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, effort: settings
) -> None:
    attack(attacked, caplog, OVER_ATOM, effort)
