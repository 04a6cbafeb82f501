"""Operations of topics and subscriptions, on a manual clock."""

from functools import partial
from typing import Any

import pytest

from sbpair.amqp.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Properties, Sections, encode_map
from sbpair.amqp.types import Array, Described, Int, Map, Timestamp, ULong, Value
from sbpair.amqp_server.refusals import EntityFull, MessageTooLarge, NotAllowed, ServiceError
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.description import SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.rules import SqlAction, SubscriptionRule
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.service_errors import EntityExists, EntityNotFound
from sbpair.rules.filters import CorrelationRuleFilter, FalseRuleFilter, SqlRuleFilter, TrueRuleFilter
from sbpair.rules.values import from_amqp
from sbpair.timespan import TICKS_PER_SECOND
from tests.emulator.consumers import ask


@pytest.fixture
def topic(namespace: Namespace) -> TopicEntity:
    return namespace.create_topic("Orders")


def a_message(properties: dict[str, Value] | None = None, **fields: Any) -> StoredMessage:
    sections = Sections(
        properties=Properties(message_id="m").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, properties or {}),
    )
    return StoredMessage(sections, 100, **fields)


def received(subscription: SubscriptionEntity) -> list[StoredMessage]:
    return subscription.messages.receive(100)


def test_the_size_of_a_topic_is_that_of_its_subscriptions(topic) -> None:
    for name in ("a", "b"):
        topic.create_subscription(name)
    topic.send([a_message()])
    assert topic.size_bytes == 200
    for subscription in topic.subscriptions:
        subscription.messages._store.size_bytes = 512 * 1024 * 1024
    with pytest.raises(EntityFull):
        topic.send([a_message()])
    with pytest.raises(MessageTooLarge):
        topic.send([StoredMessage(Sections(), 300_000)])


def test_the_shortest_ttl_of_message_topic_and_subscription_applies(namespace, advance) -> None:
    topic = namespace.create_topic("t", TopicDescription(default_message_time_to_live=60 * TICKS_PER_SECOND))
    short = SubscriptionDescription(
        default_message_time_to_live=30 * TICKS_PER_SECOND, dead_lettering_on_message_expiration=True
    )
    brief, plain = topic.create_subscription("brief", short), topic.create_subscription("plain")
    topic.send([a_message(), a_message(ttl_ms=10_000)])
    for ms, in_brief, in_plain in ((10_000, 1, 1), (20_000, 0, 1), (30_000, 0, 0)):
        advance(ms)
        assert (brief.counts().active, plain.counts().active) == (in_brief, in_plain)
    assert brief.counts().dead_letter == 2


def test_changed_rules_apply_to_later_messages(topic, clock) -> None:
    subscription = topic.create_subscription("s", rule=SubscriptionRule("none", FalseRuleFilter()))
    begun_ms = clock.now_ms()
    clock.advance(1_000)
    topic.send([a_message({"n": Int(1)})])
    subscription.add_rule(SubscriptionRule("ones", SqlRuleFilter("n = 1")))
    clock.advance(1_000)
    topic.send([a_message({"n": Int(1)}), a_message({"n": Int(2)})])
    assert len(received(subscription)) == 1
    subscription.change_rule(SubscriptionRule("ONES", SqlRuleFilter("n = 2")))
    created = [(rule.name, rule.created_at_ms) for rule in subscription.rules]
    assert created == [("none", begun_ms), ("ones", begun_ms + 1_000)]
    topic.send([a_message({"n": Int(1)}), a_message({"n": Int(2)}), a_message({"n": Int(2)})])
    assert len(received(subscription)) == 2
    subscription.remove_rule("Ones")
    topic.send([a_message({"n": Int(2)})])
    assert received(subscription) == []
    assert [rule.name for rule in subscription.rules] == ["none"]


def test_the_numbers_of_rules_and_of_subscriptions_are_limited(topic, monkeypatch) -> None:
    for name, limit in (("MAX_SQL_FILTERS", 3), ("MAX_CORRELATION_FILTERS", 1), ("MAX_SUBSCRIPTIONS", 2)):
        monkeypatch.setattr(f"sbpair.emulator.entities.topic.{name}", limit)
    subscription, other = topic.create_subscription("one"), topic.create_subscription("two")
    like = CorrelationRuleFilter(label="l")
    other.add_rule(SubscriptionRule("second"))
    subscription.add_rule(SubscriptionRule("like", like))
    for change in (
        partial(subscription.add_rule, SubscriptionRule("third")),
        partial(other.add_rule, SubscriptionRule("like", like)),
        partial(other.change_rule, SubscriptionRule("second", like)),
        partial(topic.create_subscription, "three"),
    ):
        with pytest.raises(EntityFull):
            change()
    other.change_rule(SubscriptionRule("second", SqlRuleFilter("a = 1")))


@pytest.mark.parametrize("wanted", [True, False])
def test_a_failed_filter_dead_letters_if_so_described(topic, wanted) -> None:
    description = SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=wanted)
    subscription = topic.create_subscription("s", description, SubscriptionRule("r", SqlRuleFilter("1 / n = 1")))
    topic.send([a_message({"n": Int(1)}), a_message({"n": Int(0)}), a_message({"n": Int(1)})])
    assert len(received(subscription)) == 2
    dead = subscription.dead_letters.receive(10)
    if not wanted:
        assert dead == []
        return
    assert [message.sequence_number for message in dead] == [2]
    assert dead[0].dead_letter.reason == "FilterException"
    assert dead[0].dead_letter.description == "Attempted to divide by zero."
    assert dead[0].dead_letter.source == "Orders/Subscriptions/s"
    assert b"FilterException" in service_envelope.encode_delivery(dead[0])


def numbers_of(message: StoredMessage) -> tuple[int, int]:
    annotations = Sections.split(service_envelope.encode_delivery(message)).read_message_annotations()
    return annotations["x-opt-sequence-number"], annotations["x-opt-enqueue-sequence-number"]


def test_a_message_keeps_its_sequence_number_of_the_topic(topic, make_queue, clock) -> None:
    onward, now = make_queue("onward"), (("@now", from_amqp(Timestamp(clock.now_ms()))),)
    second = SqlRuleFilter("sys.EnqueuedSequenceNumber = 2 AND sys.EnqueuedTimeUtc = @now", now)
    rule = SubscriptionRule("r", second, SqlAction("SET n = 1"))
    plain, changed = topic.create_subscription("plain"), topic.create_subscription("changed", rule=rule)
    topic.send([a_message(), a_message()])
    late = topic.create_subscription("late")
    topic.create_subscription("forwards", SubscriptionDescription(forward_to="onward"))
    topic.send([StoredMessage(a_message().sections.join(), 10)])
    assert [numbers_of(each) for each in received(plain)] == [(1, 1), (2, 2), (3, 3)]
    assert [numbers_of(each) for each in received(changed)] == [(1, 2)]
    assert numbers_of(onward.messages.receive(1)[0]) == (1, 3)
    (one,) = received(late)
    assert numbers_of(one) == (1, 3)
    late.messages.dead_letter(one.lock_token)
    assert numbers_of(late.dead_letters.receive(1)[0]) == (1, 3)


@pytest.mark.parametrize("key", ["theirs", None])
def test_a_copy_has_the_key_that_its_action_set(topic, key) -> None:
    rules = {
        "keeps": "SET n = 1",
        "sets": "SET sys.PartitionKey = 'ours'",
        "both": "SET sys.SessionId = 'ours'; SET sys.PartitionKey = 'ours'",
    }
    for name, action in rules.items():
        topic.create_subscription(name, rule=SubscriptionRule("r", TrueRuleFilter(), SqlAction(action)))
    pairs = [("x-mine", "kept"), *([] if key is None else [("x-opt-partition-key", key)])]
    annotations = encode_map(MESSAGE_ANNOTATIONS, Map(pairs))
    topic.send([StoredMessage(Sections(message_annotations=annotations), 10, partition_key=key)])
    copies = [received(topic.subscription(name))[0] for name in rules]
    assert [each.partition_key for each in copies] == [key, "ours", "ours"]
    found = [each.sections.read_message_annotations() for each in copies]
    assert [each.get("x-opt-partition-key") for each in found] == [key, "ours", "ours"]
    assert [each["x-mine"] for each in found] == ["kept"] * 3


@pytest.mark.parametrize(("name", "key"), [("SessionId", "partition_key"), ("PartitionKey", "session_id")])
@pytest.mark.parametrize("partitioned", [True, False])
def test_contradicting_keys_fail_for_one_subscription_only(namespace, partitioned, name, key) -> None:
    topic = namespace.create_topic("topic", TopicDescription(enable_partitioning=partitioned))
    failing = topic.create_subscription(
        "failing",
        SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=True),
        SubscriptionRule("r", TrueRuleFilter(), SqlAction(f"SET sys.{name} = 'other'")),
    )
    plain = topic.create_subscription("plain")
    topic.send([a_message(**{key: "key"})])
    assert (failing.counts().active, plain.counts().active) == (0, 1)
    assert failing.dead_letters.receive(1)[0].dead_letter.reason == "RuleActionException"


# Names and addresses


def test_a_subscription_is_found_by_its_address_in_any_case(namespace, topic) -> None:
    subscription = topic.create_subscription("First")
    path = "Orders/Subscriptions/First"
    for address in (path.lower(), path.upper(), f"amqps://h:1/{path}"):
        assert namespace.resolve(address).entity is subscription
    inner = namespace.create_topic("Orders/subscriptions/inner").create_subscription("s")
    assert namespace.resolve("orders/subscriptions/INNER/subscriptions/s").entity is inner
    dead = namespace.resolve("orders/Subscriptions/first/$DeadLetterQueue/$management")
    assert dead.messages is subscription.dead_letters
    assert dead.management
    assert namespace.resolve("orders").entity is topic
    namespace.create_queue("queue")
    for missing in (
        "orders/subscriptions/other",
        "orders/$deadletterqueue",
        "other/subscriptions/first",
        "orders/first",
        "queue/subscriptions/first",
        "queue/$deadletterqueue/x",
        "$management",
        "",
    ):
        with pytest.raises(EntityNotFound):
            namespace.resolve(missing)
    with pytest.raises(EntityExists):
        topic.create_subscription("FIRST")


@pytest.mark.parametrize("path", ["News/subscriptions/AUDIT", "/news/SUBSCRIPTIONS/audit/"])
def test_the_path_of_a_subscription_is_no_other_entitys(namespace, path) -> None:
    news = namespace.create_topic("news")
    for create, delete in (
        (namespace.create_queue, namespace.delete_queue),
        (namespace.create_topic, namespace.delete_topic),
    ):
        first = create(path)
        with pytest.raises(EntityExists, match="'news/Subscriptions/Audit' already exists"):
            news.create_subscription("Audit")
        assert namespace.resolve("news/subscriptions/audit").entity is first
        delete(path)
        audit = news.create_subscription("Audit")
        with pytest.raises(EntityExists, match=path.strip("/")):
            create(path)
        assert namespace.resolve("news/subscriptions/audit").entity is audit
        news.subscription("audit").delete()


def test_a_topic_is_sent_to_and_a_subscription_received_from(topic) -> None:
    subscription = topic.create_subscription("s")
    with pytest.raises(NotAllowed):
        topic.namespace.resolve(topic.path).check_receive()
    with pytest.raises(NotAllowed):
        subscription.send([a_message()])
    assert subscription.max_message_bytes == topic.max_message_bytes


def test_deleting_a_topic_deletes_its_subscriptions(namespace, topic) -> None:
    errors: list[ServiceError] = []
    subscription, other = topic.create_subscription("s"), topic.create_subscription("other")
    assert (namespace.queues(), namespace.topics()) == ([], [topic])
    namespace.on_refusing[errors.append] = None
    topic.send([a_message()])
    topic.subscription("Other").delete()
    assert len(other.messages) == 0
    namespace.delete_topic("orders")
    assert len(errors) == 3
    assert len(subscription.messages) == 0
    with pytest.raises(EntityNotFound):
        namespace.resolve("orders/subscriptions/s")
    assert namespace.create_topic("orders").subscriptions == []


# Rules over the management node


def test_rules_are_added_shown_and_removed_over_the_management_node(namespace, topic) -> None:
    subscription = topic.create_subscription("s")
    node = "orders/subscriptions/s"
    described = {
        "sql": Map(
            [("sql-filter", Map([("expression", "n = 1")])), ("sql-rule-action", Map([("expression", "SET a = 1")]))]
        ),
        "like": Map(
            [("correlation-filter", Map([("label", "l"), ("to", None), ("properties", Map([("n", Int(1))]))]))]
        ),
        "true": Map([("true-filter", Map())]),
        "false": Map([("false-filter", Map())]),
    }
    for name, description in described.items():
        added = ask(namespace, node, "add-rule", {"rule-name": name, "rule-description": description})
        assert added.status == 200
    assert subscription.rule("like").filter == CorrelationRuleFilter(
        label="l", properties=subscription.rule("like").filter.properties
    )
    reply = ask(namespace, node, "enumerate-rules", {"skip": Int(2), "top": Int(2)})
    shown = [entry["rule-description"] for entry in reply.body["rules"]][::-1]
    assert [rule.value[2] for rule in shown] == ["sql", "like"]
    assert shown[0].descriptor == ULong(1335734829060)
    assert [part.descriptor for part in shown[0].value[:2]] == [83483426822, 1335734829062]
    assert shown[1].value[0] == Described(
        ULong(83483426825), [None, None, None, None, "l", None, None, None, Map([("n", Int(1))])]
    )
    assert ask(namespace, node, "remove-rule", {"rule-name": "SQL"}).status == 200
    assert [rule.name for rule in subscription.rules] == ["$Default", "false", "like", "true"]
    assert ask(namespace, node, "enumerate-rules", {"skip": Int(9), "top": Int(2)}).status == 204


@pytest.mark.parametrize(
    ("operation", "arguments", "status"),
    [
        ("add-rule", {"rule-name": "$Default", "rule-description": Map([("true-filter", Map())])}, 409),
        ("add-rule", {"rule-name": "x" * 51, "rule-description": Map([("true-filter", Map())])}, 400),
        ("add-rule", {"rule-name": "r", "rule-description": Map([("sql-filter", Map([("expression", "a =")]))])}, 400),
        ("add-rule", {"rule-name": "r", "rule-description": Map([("odd-filter", Map())])}, 400),
        ("add-rule", {"rule-name": "r", "rule-description": Map([("correlation-filter", Map())])}, 400),
        (
            "add-rule",
            {
                "rule-name": "r",
                "rule-description": Map([("correlation-filter", Map([("properties", Map([("a", [])]))]))]),
            },
            400,
        ),
        ("add-rule", {"rule-name": "r"}, 400),
        ("remove-rule", {"rule-name": "r"}, 404),
        ("remove-rule", {}, 404),
        ("enumerate-rules", {"skip": Int(-1), "top": Int(1)}, 400),
        ("enumerate-rules", {"top": Array([])}, 400),
    ],
)
def test_a_bad_request_about_rules_is_refused(namespace, topic, operation, arguments, status) -> None:
    topic.create_subscription("s")
    reply = ask(namespace, "orders/subscriptions/s", operation, arguments)
    assert reply.status == status
    assert reply.condition is not None


def test_only_a_subscription_has_rules(namespace, topic) -> None:
    namespace.create_queue("q")
    topic.create_subscription("s")
    for address in ("q", "orders", "orders/subscriptions/s/$deadletterqueue"):
        assert ask(namespace, address, "enumerate-rules", {"skip": Int(0), "top": Int(1)}).status == 400
