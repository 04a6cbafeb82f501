"""Topics, subscriptions and rules in Atom: requests that the official client for Python does not send."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from xml.etree import ElementTree as ET

import pytest
from aiohttp import ClientSession
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from sbpair.emulator.access.sas import sign
from sbpair.emulator.entities.rules.rule import CorrelationRuleFilter, SqlAction, SqlRuleFilter, SubscriptionRule
from sbpair.emulator.entities.rules.typed import read_typed
from sbpair.emulator.frontends.atom import atom_xml
from sbpair.emulator.frontends.atom.atom_rules import read_rule, rule_xml
from sbpair.emulator.frontends.atom.atom_topics import read_topic_path
from sbpair.emulator.service_errors import ArgumentInvalid
from sbpair.emulator.testing import Emulator

ATOM = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
SCHEMA = "http://www.w3.org/2001/XMLSchema"


class Manager:
    def __init__(self, emulator: Emulator, session: ClientSession) -> None:
        self.namespace = emulator.namespaces["contoso"]
        self._session = session
        seconds = emulator.clock.now_ms() // 1000 + 60
        self._token = sign(self.namespace.keys[0], f"https://{self.namespace.authority}", seconds)

    async def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        sent = {"Authorization": self._token, **{name.replace("_", "-"): value for name, value in headers.items()}}
        mark = "&" if "?" in path else "?"
        url = URL(f"http://{self.namespace.authority}/{path}{mark}api-version=2021-05", encoded=True)
        async with self._session.request(method, url, data=body, headers=sent) as answer:
            return answer.status, await answer.text()

    async def put(self, path: str, kind: str, elements: str = "", **headers: str) -> tuple[int, str]:
        return await self.ask("PUT", path, entry(kind, elements), **headers)


def entry(kind: str, elements: str = "") -> str:
    return (
        f'<entry xmlns="{ATOM[1:-1]}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS[1:-1]}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{elements}</{kind}>'
        "</content></entry>"
    )


@asynccontextmanager
async def open_manager() -> AsyncIterator[Manager]:
    async with Emulator([("contoso", 0)]) as emulator, ClientSession() as session:
        yield Manager(emulator, session)


def described(text: str, kind: str) -> dict[str, str]:
    root = ET.fromstring(text)  # noqa: S314  # it comes from the emulator
    found = root.find(f"{ATOM}content/{SERVICE_BUS}{kind}")
    assert found is not None
    return {child.tag.removeprefix(SERVICE_BUS): child.text or "" for child in found}


def sub_code(text: str) -> int:
    found = re.search(r"<Detail>SubCode=(\d+)\. ", text)
    assert found is not None
    return int(found[1])


async def test_a_topic_has_the_services_order_of_elements() -> None:
    async with open_manager() as manager:
        wanted = "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>"
        status, text = await manager.put("a%2FTopic", "TopicDescription", wanted)
        assert status == 201
        found = described(text, "TopicDescription")
        assert list(found) == [
            "DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection",
            "DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", "SizeInBytes",
            "FilteringMessagesBeforePublishing", "IsAnonymousAccessible", "AuthorizationRules", "Status", "CreatedAt",
            "UpdatedAt", "AccessedAt", "SupportOrdering", "CountDetails", "SubscriptionCount", "SqlFilterCount",
            "CorrelationFilterCount", "AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus",
            "EnableSubscriptionPartitioning", "EnableExpress", "MaxMessageSizeInKilobytes",
        ]  # fmt: skip
        assert found["FilteringMessagesBeforePublishing"] == "true"
        topic = manager.namespace.topic("a/topic")
        assert topic.description.filtering_messages_before_publishing
        topic.create_subscription("s").add_rule(SubscriptionRule("sql", SqlRuleFilter("a = 1")))
        topic.subscription("s").add_rule(SubscriptionRule("like", CorrelationRuleFilter(label="l")))
        status, text = await manager.ask("GET", "a/topic")
        found = described(text, "TopicDescription")
        assert [found[f"{name}Count"] for name in ("Subscription", "SqlFilter", "CorrelationFilter")] == ["1", "1", "1"]


async def test_a_subscription_is_created_with_its_first_rule() -> None:
    async with open_manager() as manager:
        manager.namespace.create_topic("t")
        rule = (
            '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
            '<Action i:type="EmptyRuleAction"/><Name>mine</Name></DefaultRuleDescription>'
        )
        status, text = await manager.put("t/Subscriptions/s", "SubscriptionDescription", rule)
        assert status == 201
        assert list(described(text, "SubscriptionDescription")) == [
            "LockDuration", "RequiresSession", "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
            "DeadLetteringOnFilterEvaluationExceptions", "MessageCount", "MaxDeliveryCount", "EnableBatchedOperations",
            "Status", "CreatedAt", "UpdatedAt", "AccessedAt", "CountDetails", "AutoDeleteOnIdle",
            "EntityAvailabilityStatus",
        ]  # fmt: skip
        rules = manager.namespace.topic("t").subscription("s").rules
        assert [(rule.name, rule.filter) for rule in rules] == [("mine", SqlRuleFilter("a = 1"))]


REFUSED = [
    ("PUT", "q", entry("TopicDescription"), {}, 409, 40900),
    ("PUT", "t", entry("QueueDescription"), {}, 409, 40900),
    ("PUT", "none", entry("TopicDescription"), {"If_Match": "*"}, 404, 40400),
    ("PUT", "n", entry("TopicDescription", "<LockDuration>PT1M</LockDuration>"), {}, 400, 40000),
    ("PUT", "a%20b", entry("TopicDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s", entry("SubscriptionDescription"), {}, 409, 40900),
    ("PUT", "t/subscriptions/n", entry("QueueDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/n", entry("SubscriptionDescription", "<Status>x</Status>"), {}, 400, 40000),
    ("PUT", "q/subscriptions/n", entry("SubscriptionDescription"), {}, 404, 40400),
    ("PUT", "t/subscriptions/n", entry("SubscriptionDescription"), {"If_Match": "*"}, 404, 40400),
    ("PUT", "t/subscriptions/s/rules/$Default", entry("RuleDescription"), {}, 409, 40900),
    ("PUT", "t/subscriptions/s/rules/n", entry("RuleDescription"), {"If_Match": "*"}, 404, 40400),
    ("PUT", "t/subscriptions/s/rules/n", entry("QueueDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry("RuleDescription", '<Filter i:type="Odd"/>'), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry("RuleDescription", '<Action i:type="Odd"/>'), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry("RuleDescription", '<Filter i:type="SqlFilter"/>'), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", "<entry", {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/" + "n" * 51, entry("RuleDescription"), {}, 400, 40000),
    ("DELETE", "t/subscriptions/n", "", {}, 404, 40400),
    ("DELETE", "t/subscriptions/s/rules/n", "", {}, 404, 40400),
]


async def test_invalid_requests_have_the_services_errors() -> None:
    async with open_manager() as manager:
        manager.namespace.create_queue("q")
        manager.namespace.create_topic("t").create_subscription("s")
        for method, path, body, headers, status, code in REFUSED:
            answered, text = await manager.ask(method, path, body, **headers)
            assert (answered, sub_code(text)) == (status, code), (method, path, body)
        for path in (
            "t",
            "t/subscriptions",
            "t/subscriptions/s",
            "t/subscriptions/s/rules",
            "t/subscriptions/s/rules/r",
        ):
            assert (await manager.ask("POST", path))[0] == 405, path


@pytest.mark.parametrize(
    "path", ["t/subscriptions/n", "n/subscriptions", "n/subscriptions/s/rules", "t/subscriptions/s/rules/n"]
)
async def test_a_missing_entity_is_an_empty_feed(path: str) -> None:
    async with open_manager() as manager:
        manager.namespace.create_topic("t").create_subscription("s")
        status, text = await manager.ask("GET", path)
        assert status == 200
        assert "<feed" in text
        assert "<entry" not in text


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("t", None),
        ("subscriptions/s", None),
        ("t/subscriptions", ("t", None, False, None)),
        ("a/t/Subscriptions/S", ("a/t", "S", False, None)),
        ("t/subscriptions/s/rules", ("t", "s", True, None)),
        ("t/SUBSCRIPTIONS/s/Rules/$Default", ("t", "s", True, "$Default")),
        ("t/subscriptions/s/rules/a/b", None),
    ],
)
def test_a_path_is_taken_apart(path: str, place: tuple[object, ...] | None) -> None:
    assert read_topic_path(path) == place


TYPED = [
    ("string", " <a> & b "), ("int", "-5"), ("long", "5000000000"), ("short", "1"), ("byte", "-1"),
    ("unsignedByte", "1"), ("unsignedShort", "1"), ("unsignedInt", "1"), ("unsignedLong", "18446744073709551615"),
    ("float", "1.5"),
    ("double", "-INF"), ("decimal", "19.990"), ("boolean", "false"), ("char", "97"), ("duration", "P1DT1S"),
    ("guid", "12345678-1234-5678-1234-567812345678"), ("dateTime", "2026-01-02T03:04:05.1234567Z"),
]  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    [
        SubscriptionRule(),
        SubscriptionRule(
            "sql", SqlRuleFilter("n > @int", tuple((f"@{kind}", read_typed(kind, text)) for kind, text in TYPED))
        ),
        SubscriptionRule(
            "like",
            CorrelationRuleFilter(to="<t>", properties=tuple((kind, read_typed(kind, text)) for kind, text in TYPED)),
        ),
        SubscriptionRule("acting", SqlRuleFilter("a < 1"), SqlAction("SET a = @x", (("@x", read_typed("long", "7")),))),
    ],
)
def test_a_rule_reads_back_from_its_xml(rule: SubscriptionRule) -> None:
    assert read_rule(ET.fromstring(rule_xml(rule))) == rule  # noqa: S314  # it comes from the emulator


PARTS = st.recursive(
    st.builds(
        lambda kind, text: f'<Value i:type="d:{kind}" xmlns:d="{SCHEMA}">{text}</Value>',
        st.sampled_from([kind for kind, _ in TYPED] + ["odd"]),
        st.sampled_from(["1", "-1", "x", "", "PT1M", "true"]),
    )
    | st.sampled_from(["<Key>a</Key>", "<SqlExpression>a = @a</SqlExpression>", "<Name>n</Name>", "<Label/>", "text"]),
    lambda inner: st.builds(
        lambda name, parts: f"<{name}>{''.join(parts)}</{name.split(' ')[0]}>",
        st.sampled_from(
            ["Filter", "Action", "Parameters", "Properties", "KeyValueOfstringanyType", 'x xmlns="other"']
            + [f'Filter i:type="{kind}"' for kind in ("SqlFilter", "CorrelationFilter", "TrueFilter", "a:FalseFilter")]
            + ['Action i:type="SqlRuleAction"']
        ),
        st.lists(inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=1000)
@given(st.lists(PARTS, max_size=4).map("".join))
def test_any_description_is_a_rule_or_an_invalid_argument(parts: str) -> None:
    description = atom_xml.description_in(entry("RuleDescription", parts).encode())
    try:
        rule = read_rule(description)
    except ArgumentInvalid:
        return
    assert read_rule(ET.fromstring(rule_xml(rule))) == rule  # noqa: S314  # it comes from the emulator
