"""Topics, subscriptions and rules with the official clients, unmodified, sync and aio, over real sockets.

Only the management transport is the test's, since the client always speaks https. Each test has a topic of its own.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

# The client asks an XML element whether it is true, which newer versions of Python warn of.
pytestmark = pytest.mark.filterwarnings("ignore:Testing an element's truth value:DeprecationWarning")

NAMES = (f"topic-{number}" for number in itertools.count())


class Clients:
    """The administration client of a kind, and senders and receivers by the names of topics and subscriptions."""

    def __init__(self, official: Any, connection_string: str, admin: Any) -> None:
        self.admin = admin
        self.queue_receiver = partial(official.receiver, connection_string)
        self.sender = partial(official.topic_sender, connection_string)
        self.receiver = partial(official.subscription_receiver, connection_string)


@pytest.fixture(scope="module")
def clients(official: Any, running: Any) -> Iterator[Clients]:
    with official.admin(running.connection_string) as admin:
        yield Clients(official, running.connection_string, admin)


@pytest.fixture
def admin(clients: Clients) -> Any:
    return clients.admin


@pytest.fixture
def topic(admin: Any) -> Iterator[str]:
    name = next(NAMES)
    admin.create_topic(name)
    yield name
    admin.delete_topic(name)


def send(clients: Clients, topic: str, *messages: ServiceBusMessage) -> None:
    with clients.sender(topic) as sender:
        sender.send_messages(list(messages))


def take(clients: Clients, topic: str, subscription: str, count: int, **options: Any) -> list[Any]:
    """Receives and completes `count` messages, in as many answers as they come in."""
    found: list[Any] = []
    with clients.receiver(topic, subscription, **options) as receiver:
        while len(found) < count:
            got = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=10)
            assert got
            for message in got:
                receiver.complete_message(message)
            found += got
    return found


def active(admin: Any, topic: str, subscription: str) -> int:
    return admin.get_subscription_runtime_properties(topic, subscription).active_message_count


def properties_of(message: Any) -> dict[str, Any]:
    """Names and texts come out of this client as bytes."""
    plain = {key.decode(): value for key, value in (message.application_properties or {}).items()}
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in plain.items()}


# Management


def test_a_topic_reads_back_as_it_was_created(admin: Any) -> None:
    name = f"a/Topic-{uuid.uuid4()}"
    claim = {"type": "SharedAccessAuthorizationRule", "claim_type": "SharedAccessKey", "claim_value": "None"}
    keys = {"key_name": "sending", "primary_key": "key", "secondary_key": "key-2"}
    rule = AuthorizationRule(**claim, **keys, rights=[AccessRights.SEND])
    asked: dict[str, Any] = {
        "default_message_time_to_live": timedelta(hours=1),
        "max_size_in_megabytes": 2048,
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=5),
        "enable_batched_operations": False,
        "support_ordering": True,
        "auto_delete_on_idle": timedelta(minutes=10),
        "enable_express": True,
        "user_metadata": "<some> & text",
    }
    created = admin.create_topic(name, authorization_rules=[rule], **asked)
    for found in (created, admin.get_topic(name), *(each for each in admin.list_topics() if each.name == name)):
        assert {key: getattr(found, key) for key in asked} == asked
        assert found.name == name
        assert found.status == "Active"
        assert found.authorization_rules[0].key_name == "sending"
    found.user_metadata = "other"
    found.status = "SendDisabled"
    admin.update_topic(found)
    assert admin.get_topic(name.lower()).user_metadata == "other"
    with pytest.raises(ResourceExistsError):
        admin.create_topic(name.upper())
    with pytest.raises(HttpResponseError) as refused:
        admin.update_topic(found, requires_duplicate_detection=False)
    assert refused.value.status_code == 400
    admin.delete_topic(name)
    for missing in (admin.get_topic, admin.delete_topic, admin.get_topic_runtime_properties):
        with pytest.raises(ResourceNotFoundError):
            missing(name)


def test_a_topic_has_the_defaults_of_the_service(admin: Any, topic: str) -> None:
    found = admin.get_topic(topic)
    assert found.max_size_in_megabytes == 1024
    assert found.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert found.default_message_time_to_live.days == found.auto_delete_on_idle.days == 10_675_199
    flags = ("requires_duplicate_detection", "enable_batched_operations", "support_ordering", "enable_partitioning")
    assert [getattr(found, flag) for flag in flags] == [False, True, True, False]
    assert found.max_message_size_in_kilobytes == 256


def test_a_subscription_reads_back_as_it_was_created(admin: Any, topic: str) -> None:
    asked: dict[str, Any] = {
        "lock_duration": timedelta(seconds=30),
        "requires_session": True,
        "default_message_time_to_live": timedelta(hours=1),
        "dead_lettering_on_message_expiration": True,
        "dead_lettering_on_filter_evaluation_exceptions": False,
        "max_delivery_count": 3,
        "enable_batched_operations": False,
        "user_metadata": "text",
        "auto_delete_on_idle": timedelta(minutes=10),
    }
    created = admin.create_subscription(topic, "First", forward_dead_lettered_messages_to=topic, **asked)
    for found in (created, admin.get_subscription(topic, "First"), *admin.list_subscriptions(topic)):
        assert {key: getattr(found, key) for key in asked} == asked
        assert found.name == "First"
        assert found.forward_dead_lettered_messages_to.endswith(f"/{topic}")
    found.max_delivery_count = 4
    admin.update_subscription(topic, found)
    assert admin.get_subscription(topic, "first").max_delivery_count == 4
    with pytest.raises(ResourceExistsError):
        admin.create_subscription(topic, "FIRST")
    with pytest.raises(HttpResponseError) as refused:
        admin.update_subscription(topic, found, requires_session=False)
    assert refused.value.status_code == 400
    admin.delete_subscription(topic, "FIRST")
    for missing in (admin.get_subscription, admin.delete_subscription):
        with pytest.raises(ResourceNotFoundError):
            missing(topic, "first")
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription("no-such-topic", "first")


def test_a_subscription_has_the_defaults_of_the_service(admin: Any, topic: str) -> None:
    found = admin.create_subscription(topic, "s")
    assert found.lock_duration == timedelta(minutes=1)
    assert (found.max_delivery_count, found.status, found.requires_session) == (10, "Active", False)
    assert found.dead_lettering_on_filter_evaluation_exceptions is True
    assert found.dead_lettering_on_message_expiration is False
    (rule,) = admin.list_rules(topic, "s")
    assert rule.name == "$Default"
    assert isinstance(rule.filter, TrueRuleFilter)
    assert rule.action is None
    assert rule.created_at_utc is not None


def test_lists_of_more_than_a_page_are_complete(admin: Any, topic: str, running: Any) -> None:
    names = [f"s-{number:03}" for number in range(101)]

    def fill() -> None:
        found = running.namespace.topic(topic)
        for name in names:
            found.create_subscription(name)

    running.do(fill)
    assert [each.name for each in admin.list_subscriptions(topic)] == names
    assert [each.name for each in admin.list_subscriptions_runtime_properties(topic)] == names
    assert admin.get_topic_runtime_properties(topic).subscription_count == 101
    runtime = [each for each in admin.list_topics_runtime_properties() if each.name == topic]
    assert [each.subscription_count for each in runtime] == [101]


PARAMETERS = {
    "@text": "a <b> & c",
    "@int": 5,
    "@long": 2**40,
    "@double": 2.5,
    "@yes": True,
    "@at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "@took": timedelta(minutes=3, seconds=1),
}


def test_every_kind_of_rule_reads_back_as_it_was_created(admin: Any, topic: str) -> None:
    admin.create_subscription(topic, "s")
    correlation = {
        "correlation_id": "c", "message_id": "m", "to": "t", "reply_to": "r", "label": "l", "session_id": "s",
        "reply_to_session_id": "rs", "content_type": "text/plain",
    }  # fmt: skip
    properties = {key.removeprefix("@"): value for key, value in PARAMETERS.items()}
    admin.create_rule(topic, "s", "sql", filter=SqlRuleFilter("n > @int AND a <> @text", parameters=PARAMETERS))
    admin.create_rule(topic, "s", "like", filter=CorrelationRuleFilter(**correlation, properties=properties))
    admin.create_rule(topic, "s", "true", filter=TrueRuleFilter())
    admin.create_rule(topic, "s", "false", filter=FalseRuleFilter())
    action = SqlRuleAction("SET a = @text; REMOVE b", parameters=PARAMETERS)
    admin.create_rule(topic, "s", "acting", action=action)
    found = {rule.name: rule for rule in admin.list_rules(topic, "s")}
    assert list(found) == ["$Default", "acting", "false", "like", "sql", "true"]
    for rules in (found, {name: admin.get_rule(topic, "S", name.upper()) for name in found}):
        assert rules["sql"].filter.sql_expression == "n > @int AND a <> @text"
        assert rules["sql"].filter.parameters == PARAMETERS
        assert {key: getattr(rules["like"].filter, key) for key in correlation} == correlation
        assert rules["like"].filter.properties == properties
        assert isinstance(rules["true"].filter, TrueRuleFilter)
        assert isinstance(rules["false"].filter, FalseRuleFilter)
        assert isinstance(rules["acting"].filter, TrueRuleFilter)
        assert rules["acting"].action.sql_expression == "SET a = @text; REMOVE b"
        assert rules["acting"].action.parameters == PARAMETERS


def test_a_rule_is_changed_and_removed(admin: Any, topic: str) -> None:
    admin.create_subscription(topic, "s")
    rule = admin.create_rule(topic, "s", "r", filter=SqlRuleFilter("a = 1"))
    rule.filter = CorrelationRuleFilter(correlation_id="c")
    rule.action = SqlRuleAction("SET a = 2")
    admin.update_rule(topic, "s", rule)
    found = admin.get_rule(topic, "s", "r")
    assert found.filter.correlation_id == "c"
    assert found.action.sql_expression == "SET a = 2"
    with pytest.raises(ResourceExistsError):
        admin.create_rule(topic, "s", "R")
    admin.delete_rule(topic, "s", "r")
    for missing in (admin.get_rule, admin.delete_rule):
        with pytest.raises(ResourceNotFoundError):
            missing(topic, "s", "r")
    with pytest.raises(ResourceNotFoundError):
        admin.update_rule(topic, "s", rule)
    with pytest.raises(ResourceNotFoundError):
        admin.create_rule(topic, "other", "r")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"filter": SqlRuleFilter("a = ")},
            "SubCode=40000. There was an error parsing the SQL expression. [Token line=1, column=3",
        ),
        ({"filter": SqlRuleFilter("sys.Nothing = 1")}, "'Nothing' does not exist or is not allowed"),
        ({"filter": SqlRuleFilter("a = @b")}, "@b"),
        ({"action": SqlRuleAction("a = 1")}, "expected REMOVE or SET"),
        ({"filter": CorrelationRuleFilter()}, "at least one"),
    ],
)
def test_a_bad_rule_is_refused_with_where(admin: Any, topic: str, options: dict[str, Any], text: str) -> None:
    admin.create_subscription(topic, "s")
    with pytest.raises(HttpResponseError) as refused:
        admin.create_rule(topic, "s", "r", **options)
    assert refused.value.status_code == 400
    assert text in str(refused.value)
    assert len(admin.list_rules(topic, "s")) == 1


def test_names_have_at_most_fifty_characters(admin: Any, topic: str) -> None:
    admin.create_subscription(topic, "s" * 50)
    admin.create_rule(topic, "s" * 50, "r" * 50)
    for make in (
        lambda: admin.create_subscription(topic, "s" * 51),
        lambda: admin.create_rule(topic, "s" * 50, "r" * 51),
        lambda: admin.create_subscription(topic, "not a name"),
    ):
        with pytest.raises(HttpResponseError) as refused:
            make()
        assert refused.value.status_code == 400


# Messages


def test_each_subscription_gets_what_its_rules_select(clients: Clients, admin: Any, topic: str) -> None:
    filters = {
        "all": TrueRuleFilter(),
        "none": FalseRuleFilter(),
        "red": SqlRuleFilter("color = 'red'"),
        "few": SqlRuleFilter("quantity < @most", parameters={"@most": 3}),
        "label": CorrelationRuleFilter(label="urgent"),
        "blue": CorrelationRuleFilter(properties={"color": "blue"}),
        "either": SqlRuleFilter("sys.Label LIKE 'urg%' OR color IN ('blue')"),
    }
    for name, wanted in filters.items():
        admin.create_subscription(topic, name)
        admin.delete_rule(topic, name, "$Default")
        admin.create_rule(topic, name, "only", filter=wanted)
    send(
        clients,
        topic,
        ServiceBusMessage("0", application_properties={"color": "red", "quantity": 1}),
        ServiceBusMessage("1", application_properties={"color": "blue", "quantity": 5}, subject="urgent"),
        ServiceBusMessage("2", application_properties={"color": "Red", "quantity": 5}),
        ServiceBusMessage("3"),
    )
    counts = {name: active(admin, topic, name) for name in filters}
    assert counts == {"all": 4, "none": 0, "red": 1, "few": 1, "label": 1, "blue": 1, "either": 1}
    assert [str(message) for message in take(clients, topic, "either", 1)] == ["1"]
    assert [str(message) for message in take(clients, topic, "all", 4)] == ["0", "1", "2", "3"]
    assert active(admin, topic, "red") == 1
    assert active(admin, topic, "all") == 0


def test_rules_with_actions_make_copies_of_their_own(clients: Clients, admin: Any, topic: str) -> None:
    admin.create_subscription(topic, "s")
    admin.create_rule(topic, "s", "also", filter=SqlRuleFilter("n = 10"))
    action = SqlRuleAction("SET n = n / 4; SET note = @note; REMOVE gone; SET sys.Label = 'set'", {"@note": "hi"})
    admin.create_rule(topic, "s", "acting", filter=SqlRuleFilter("n > 1"), action=action)
    sent = {"n": 10, "gone": True, "kept": 2.5}
    send(clients, topic, ServiceBusMessage("body", application_properties=sent, subject="as sent", message_id="id"))
    plain, acted = take(clients, topic, "s", 2)
    assert (properties_of(plain), plain.subject) == (sent, "as sent")
    assert properties_of(acted) == {"n": 2, "kept": 2.5, "note": "hi", "RuleName": "acting"}
    assert (acted.subject, acted.message_id, str(acted)) == ("set", "id", "body")


def test_what_a_filter_cannot_calculate_is_a_dead_letter(clients: Clients, admin: Any, topic: str) -> None:
    admin.create_subscription(topic, "strict")
    admin.create_subscription(topic, "lax", dead_lettering_on_filter_evaluation_exceptions=False)
    for name in ("strict", "lax"):
        admin.delete_rule(topic, name, "$Default")
        admin.create_rule(topic, name, "r", filter=SqlRuleFilter("n > 1"))
    properties = ({"n": 2}, {"n": "two"}, {})
    send(clients, topic, *(ServiceBusMessage("m", application_properties=each) for each in properties))
    runtime = {each.name: each for each in admin.list_subscriptions_runtime_properties(topic)}
    counted = {name: (each.active_message_count, each.dead_letter_message_count) for name, each in runtime.items()}
    assert counted == {"strict": (1, 1), "lax": (1, 0)}
    assert runtime["strict"].total_message_count == 2
    (dead,) = take(clients, topic, "strict", 1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert dead.dead_letter_reason == "FilterException"
    assert dead.dead_letter_error_description.startswith("Operator '>' cannot be applied to operands of type 'String'")


def test_a_message_is_dead_lettered_and_received_in_one_subscription_only(
    clients: Clients, admin: Any, topic: str
) -> None:
    for name in ("one", "other"):
        admin.create_subscription(topic, name)
    send(clients, topic, ServiceBusMessage("m"))
    with clients.receiver(topic, "one") as receiver:
        (message,) = receiver.receive_messages(max_wait_time=10)
        receiver.dead_letter_message(message, reason="why", error_description="so")
    (dead,) = take(clients, topic, "one", 1, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "so")
    assert dead.dead_letter_source.lower() == f"{topic}/subscriptions/one"
    assert active(admin, topic, "other") == 1


def test_scheduled_messages_wait_on_the_topic(clients: Clients, admin: Any, topic: str) -> None:
    admin.create_subscription(topic, "s")
    with clients.sender(topic) as sender:
        at = datetime.now(UTC) + timedelta(days=1)
        numbers = sender.schedule_messages([ServiceBusMessage("1"), ServiceBusMessage("2")], at)
        assert admin.get_topic_runtime_properties(topic).scheduled_message_count == 2
        sender.cancel_scheduled_messages(numbers)
        assert admin.get_topic_runtime_properties(topic).scheduled_message_count == 0
    assert active(admin, topic, "s") == 0


def test_peeking_renewing_and_deferring_work_in_a_subscription(clients: Clients, admin: Any, topic: str) -> None:
    admin.create_subscription(topic, "S")
    send(clients, topic, ServiceBusMessage("1"), ServiceBusMessage("2"))
    with clients.receiver(topic.upper(), "s") as receiver:
        assert [str(message) for message in receiver.peek_messages(5)] == ["1", "2"]
        (first,) = receiver.receive_messages(max_wait_time=10)
        assert receiver.renew_message_lock(first) > datetime.now(UTC)
        receiver.defer_message(first)
        (again,) = receiver.receive_deferred_messages(first.sequence_number)
        receiver.complete_message(again)
    assert active(admin, topic, "s") == 1


def test_what_is_not_there_cannot_be_opened(clients: Clients, topic: str) -> None:
    # The token is refused before the link is: its resource is not there.
    with pytest.raises(ServiceBusAuthenticationError), clients.sender("no-such-topic"):
        pass
    with pytest.raises(ServiceBusAuthenticationError), clients.receiver(topic, "nothing"):
        pass


def test_nothing_is_received_from_a_topic(clients: Clients, topic: str) -> None:
    with pytest.raises(ServiceBusError) as refused, clients.queue_receiver(topic) as receiver:
        receiver.receive_messages(max_wait_time=5)
    assert "receive from a subscription" in str(refused.value)


def test_a_receiver_hears_that_its_topic_is_deleted(clients: Clients, admin: Any) -> None:
    name = next(NAMES)
    admin.create_topic(name)
    admin.create_subscription(name, "s")
    with clients.receiver(name, "s") as receiver:
        admin.delete_topic(name)
        with pytest.raises(ServiceBusError):
            receiver.receive_messages(max_wait_time=10)
