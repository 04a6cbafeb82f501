"""Topics, subscriptions and rules in Atom: requests that the official client for Python does not send."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.emulator.entities.rules import SqlAction, SubscriptionRule
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.emulator.frontends.http import atom_xml
from sbpair.emulator.frontends.http.atom_xml import read_rule, rule_xml
from sbpair.rules.filters import CorrelationRuleFilter, SqlRuleFilter
from sbpair.rules.values import RuleInvalid, read_typed
from tests.emulator.atom_client import ATOM, Manager, elements_of, entry, read, sub_code
from tests.emulator.strict_http import ORDERS

SCHEMA = "http://www.w3.org/2001/XMLSchema"


def in_order(kind: str, lacking: str = "") -> list[str]:
    """Return the elements of a description without those that are there only if they are set, and those `lacking`."""
    optional = {"ForwardTo", "UserMetadata", "ForwardDeadLetteredMessagesTo", *lacking.split()}
    return [name for name in ORDERS[kind].split() if name not in optional]


async def test_a_topic_has_the_services_order_of_elements(manager: Manager) -> None:
    wanted = "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>"
    status, text = await manager.put("a%2FTopic", wanted, "TopicDescription")
    assert status == 201
    found = elements_of(text, "TopicDescription")
    assert list(found) == in_order("TopicDescription", "AccessedAt CountDetails")
    assert found["FilteringMessagesBeforePublishing"] == "true"
    topic = manager.namespace.topic("a/topic")
    assert topic.description.filtering_messages_before_publishing
    topic.create_subscription("s").add_rule(SubscriptionRule("sql", SqlRuleFilter("a = 1")))
    topic.subscription("s").add_rule(SubscriptionRule("like", CorrelationRuleFilter(label="l")))
    status, text = await manager.ask("GET", "a/topic")
    found = elements_of(text, "TopicDescription")
    assert [found[f"{name}Count"] for name in ("Subscription", "SqlFilter", "CorrelationFilter")] == ["1", "2", "1"]


async def test_a_subscription_is_created_with_its_first_rule(manager: Manager) -> None:
    manager.namespace.create_topic("t")
    rule = (
        '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
        '<Action i:type="EmptyRuleAction"/><Name>mine</Name></DefaultRuleDescription>'
    )
    status, text = await manager.put("t/Subscriptions/s", rule, "SubscriptionDescription")
    assert status == 201
    assert list(elements_of(text, "SubscriptionDescription")) == in_order("SubscriptionDescription", "CountDetails")
    assert elements_of(text, "SubscriptionDescription")["AccessedAt"] == "0001-01-01T00:00:00"
    assert manager.last["ETag"] == etag(manager.namespace.topic("t"))
    rules = manager.namespace.topic("t").subscription("s").rules
    assert [(rule.name, rule.filter) for rule in rules] == [("mine", SqlRuleFilter("a = 1"))]


REFUSED = [
    ("PUT", "q", entry(kind="TopicDescription"), {}, 409, 40900),
    ("PUT", "t", entry(kind="QueueDescription"), {}, 409, 40900),
    ("PUT", "n", entry("<LockDuration>PT1M</LockDuration>", "TopicDescription"), {}, 400, 40000),
    ("PUT", "a%20b", entry(kind="TopicDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s", entry(kind="SubscriptionDescription"), {}, 409, "t|s"),
    ("PUT", "t/subscriptions/Taken", entry(kind="SubscriptionDescription"), {}, 409, "t|Taken"),
    ("PUT", "T%2FSubscriptions%2FS", entry(kind="QueueDescription"), {}, 409, "t|S"),
    ("PUT", "t/subscriptions/s", entry(kind="TopicDescription"), {}, 409, "t|s"),
    ("PUT", "t/subscriptions/n", entry(kind="QueueDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/n", entry("<Status>x</Status>", "SubscriptionDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/$Default", entry(kind="RuleDescription"), {}, 409, "t|s|$Default"),
    ("PUT", "t/subscriptions/s/rules/n", entry(kind="QueueDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry('<Filter i:type="Odd"/>', "RuleDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry('<Action i:type="Odd"/>', "RuleDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry('<Filter i:type="SqlFilter"/>', "RuleDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", "<entry", {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/" + "n" * 51, entry(kind="RuleDescription"), {}, 400, 40000),
]
"""Requests with their status, and SubCode; for a conflict without one, what exists."""


NO_POLICY = "The incoming request is not recognized as a namespace policy put request. TrackingId"
NOT_HOSTED = "No service is hosted at the specified address. TrackingId"
NO_OPERATION = "SubCode=40400. Not Found. The Operation doesn't exist. To know more visit"
NO_SUBSCRIPTION = "Entity 'contoso:Topic:T1|NoSub' was not found. To know more visit"
NO_RULE = "Entity 'contoso:Topic:T1|s|Rx' was not found. To know more visit"


@pytest.mark.parametrize(
    ("path", "kind", "of_get", "of_delete", "of_put"),
    [
        ("None", "Queue", None, NOT_HOSTED, NO_OPERATION),
        ("None", "Topic", None, NOT_HOSTED, NO_OPERATION),
        ("NoTopic/Subscriptions/S", "Subscription", None, NOT_HOSTED, NO_POLICY),
        ("NoTopic/Subscriptions/S/Rules/Rx", "Rule", None, NOT_HOSTED, NO_POLICY),
        ("t1/Subscriptions/NoSub", "Subscription", NO_SUBSCRIPTION, NO_SUBSCRIPTION, NO_SUBSCRIPTION),
        ("T1/subscriptions/NoSub/rules/Rx", "Rule", NO_SUBSCRIPTION, NO_SUBSCRIPTION, NO_SUBSCRIPTION),
        ("T1/subscriptions/NoSub/rules", "Rule", NO_SUBSCRIPTION, None, None),
        ("T1/Subscriptions/s/Rules/Rx", "Rule", NO_RULE, NO_RULE, NO_RULE),
    ],
)
async def test_a_missing_entity_has_the_services_answers(
    manager: Manager, path: str, kind: str, of_get: str | None, of_delete: str | None, of_put: str | None
) -> None:
    topic = manager.namespace.create_topic("T1")
    topic.create_subscription("S")
    answers = {"GET": of_get, "DELETE": of_delete, "PUT": of_put}
    for method, detail in answers.items():
        if detail is None:
            continue
        status, text = await manager.ask(method, path, entry(kind=f"{kind}Description"), If_Match="*")
        assert (status, read(text).findtext("Detail", "")[: len(detail)]) == (404, detail)
        assert (
            ("SystemTracker:NoSystemTracker" in text) == (manager.last.get("ETag") == etag(topic)) == ("T1" in detail)
        )
        assert manager.last["Content-Type"] == "application/xml; charset=utf-8"
    if of_get is None:
        status, text = await manager.ask("GET", path)
        assert (status, manager.last["Content-Type"]) == (200, "application/atom+xml;type=feed;charset=utf-8")
        assert [each.tag.removeprefix(ATOM) for each in read(text)] == [
            "title",
            "subtitle",
            "id",
            "updated",
            "generator",
        ]
        assert read(text).findtext(f"{ATOM}title") == "Publicly Listed Services"


def etag(topic: TopicEntity) -> str:
    return str((topic.updated_at_ms + 62_135_596_800_000) * 10_000)


async def test_the_dead_letters_of_an_entity_have_no_description(manager: Manager) -> None:
    status, text = await manager.ask("GET", "q/$DeadLetterQueue")
    assert (status, "Detail>The specified HTTP verb (GET) is not valid. To know more" in text) == (400, True)


async def test_invalid_requests_have_the_services_errors(manager: Manager) -> None:
    manager.namespace.create_queue("q")
    manager.namespace.create_topic("t").create_subscription("s")
    manager.namespace.create_queue("t/subscriptions/taken")
    for method, path, body, headers, status, code in REFUSED:
        answered, text = await manager.ask(method, path, body, **headers)
        assert answered == status, (method, path, body)
        if isinstance(code, int):
            assert sub_code(text) == code, (method, path, body)
        else:
            assert f"Detail>The messaging entity 'contoso:Topic:{code}' already exists. To know more visit" in text


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
    description = atom_xml.description_in(entry(parts, "RuleDescription").encode())
    try:
        rule = read_rule(description)
    except (ArgumentInvalid, RuleInvalid):
        return
    assert read_rule(ET.fromstring(rule_xml(rule))) == rule  # noqa: S314  # it comes from the emulator
