"""Topics, subscriptions and rules in Atom: requests that the official client for Python does not send."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.emulator.entities.rules import SqlAction, SubscriptionRule
from sbpair.emulator.frontends.http import atom_xml
from sbpair.emulator.frontends.http.atom_xml import read_rule, rule_xml
from sbpair.rules.filters import CorrelationRuleFilter, SqlRuleFilter
from sbpair.rules.values import RuleInvalid, read_typed
from tests.emulator.atom_client import Manager, elements_of, entry, sub_code
from tests.emulator.strict_http import ORDERS

SCHEMA = "http://www.w3.org/2001/XMLSchema"


def in_order(kind: str) -> list[str]:
    """Return the elements of a description without those that are there only if they are set."""
    optional = {"ForwardTo", "UserMetadata", "ForwardDeadLetteredMessagesTo"}
    return [name for name in ORDERS[kind].split() if name not in optional]


async def test_a_topic_has_the_services_order_of_elements(manager: Manager) -> None:
    wanted = "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>"
    status, text = await manager.put("a%2FTopic", wanted, "TopicDescription")
    assert status == 201
    found = elements_of(text, "TopicDescription")
    assert list(found) == in_order("TopicDescription")
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
    assert list(elements_of(text, "SubscriptionDescription")) == in_order("SubscriptionDescription")
    rules = manager.namespace.topic("t").subscription("s").rules
    assert [(rule.name, rule.filter) for rule in rules] == [("mine", SqlRuleFilter("a = 1"))]


REFUSED = [
    ("PUT", "q", entry(kind="TopicDescription"), {}, 409, 40900),
    ("PUT", "t", entry(kind="QueueDescription"), {}, 409, 40900),
    ("PUT", "none", entry(kind="TopicDescription"), {"If_Match": "*"}, 404, 40400),
    ("PUT", "n", entry("<LockDuration>PT1M</LockDuration>", "TopicDescription"), {}, 400, 40000),
    ("PUT", "a%20b", entry(kind="TopicDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s", entry(kind="SubscriptionDescription"), {}, 409, 40900),
    ("PUT", "t/subscriptions/Taken", entry(kind="SubscriptionDescription"), {}, 409, 40900),
    ("PUT", "T%2FSubscriptions%2FS", entry(kind="QueueDescription"), {}, 409, 40900),
    ("PUT", "t/subscriptions/s", entry(kind="TopicDescription"), {}, 409, 40900),
    ("PUT", "t/subscriptions/n", entry(kind="QueueDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/n", entry("<Status>x</Status>", "SubscriptionDescription"), {}, 400, 40000),
    ("PUT", "q/subscriptions/n", entry(kind="SubscriptionDescription"), {}, 404, 40400),
    ("PUT", "t/subscriptions/n", entry(kind="SubscriptionDescription"), {"If_Match": "*"}, 404, 40400),
    ("PUT", "t/subscriptions/s/rules/$Default", entry(kind="RuleDescription"), {}, 409, 40900),
    ("PUT", "t/subscriptions/s/rules/n", entry(kind="RuleDescription"), {"If_Match": "*"}, 404, 40400),
    ("PUT", "t/subscriptions/s/rules/n", entry(kind="QueueDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry('<Filter i:type="Odd"/>', "RuleDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry('<Action i:type="Odd"/>', "RuleDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", entry('<Filter i:type="SqlFilter"/>', "RuleDescription"), {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/n", "<entry", {}, 400, 40000),
    ("PUT", "t/subscriptions/s/rules/" + "n" * 51, entry(kind="RuleDescription"), {}, 400, 40000),
    ("DELETE", "t/subscriptions/n", "", {}, 404, 40400),
    ("DELETE", "t/subscriptions/s/rules/n", "", {}, 404, 40400),
]


@pytest.mark.parametrize(
    "path",
    [
        "T1/Subscriptions/NoSub",
        "NoTopic/Subscriptions/S",
        "T1/subscriptions/NoSub/rules/Rx",
        "NoTopic/Subscriptions/S/Rules/Rx",
        "T1/Subscriptions/S/Rules/Rx",
    ],
)
async def test_a_missing_path_is_named_whole_and_as_it_was_written(manager: Manager, path: str) -> None:
    manager.namespace.create_topic("t1").create_subscription("s")
    kind = "RuleDescription" if "/rules/" in path.lower() else "SubscriptionDescription"
    answers = [await manager.ask("DELETE", path), await manager.put(path, kind=kind, If_Match="*")]
    for status, text in answers:
        assert (status, sub_code(text)) == (404, 40400)
        assert f"The messaging entity 'sb://{manager.namespace.authority}/{path}' could not be found." in text


async def test_invalid_requests_have_the_services_errors(manager: Manager) -> None:
    manager.namespace.create_queue("q")
    manager.namespace.create_topic("t").create_subscription("s")
    manager.namespace.create_queue("t/subscriptions/taken")
    for method, path, body, headers, status, code in REFUSED:
        answered, text = await manager.ask(method, path, body, **headers)
        assert (answered, sub_code(text)) == (status, code), (method, path, body)


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
