"""Checks of topics, rules, duplicates, management and WebSocket with the official client for Python."""

from datetime import UTC, datetime, timedelta

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    AccessRights,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.conformance import registry as of
from tests.conformance.bench import Bench, access_rule, nothing, one, peek_all, raising, take, text, texts
from tests.conformance.registry import check

DEFAULT_RULE = "$Default"
MARGIN_SECONDS = 2


# Topics


@check("topics", of.TOPICS)
async def each_subscription_gets_a_copy(bench: Bench) -> None:
    topic = await bench.topic("a", "b")
    await bench.send(topic, ServiceBusMessage("news"), topic=True)
    for name in "ab":
        async with bench.receiver(topic, name, receive_mode="receiveanddelete") as receiver:
            assert text(await one(receiver)) == "news"
            assert not await peek_all(receiver)


@check("topics", of.SEQUENCING)
async def a_scheduled_message_reaches_subscriptions_when_it_is_due(bench: Bench) -> None:
    topic = await bench.topic("s")
    async with bench.sender(topic, topic=True) as sender, bench.receiver(topic, "s") as receiver:
        later = [ServiceBusMessage("never"), ServiceBusMessage("later")]
        never, _ = await sender.schedule_messages(later, datetime.now(UTC) + timedelta(seconds=4))
        await sender.cancel_scheduled_messages([never])
        await nothing(receiver)
        found = await one(receiver)
        await receiver.complete_message(found)
    assert text(found) == "later"


@check("topics", of.FORWARDING)
async def a_subscription_forwards_to_a_queue(bench: Bench) -> None:
    queue, topic = await bench.queue(), await bench.topic()
    await bench.admin.create_subscription(topic, "s", forward_to=queue)
    await bench.send(topic, ServiceBusMessage("on"), topic=True)
    assert texts(await bench.received(queue)) == ["on"]


@check("topics", of.TOPICS)
async def a_subscription_has_dead_letters_of_its_own(bench: Bench) -> None:
    topic = await bench.topic("a", "b")
    await bench.send(topic, ServiceBusMessage("news"), topic=True)
    async with bench.receiver(topic, "a") as receiver:
        await receiver.dead_letter_message(await one(receiver), reason="why")
    assert (await bench.dead_letter(topic, "a")).dead_letter_reason == "why"
    await bench.received(topic, "b")


# Rules


@check("rules", of.FILTERS)
async def filters_select_messages(bench: Bench) -> None:
    topic = await bench.topic("sql", "correlation", "all")
    rules = {"sql": SqlRuleFilter("color = 'red' AND n > 1"), "correlation": CorrelationRuleFilter(label="l")}
    for name, rule_filter in rules.items():
        await bench.admin.delete_rule(topic, name, DEFAULT_RULE)
        await bench.admin.create_rule(topic, name, "mine", filter=rule_filter)
    sent = [
        ServiceBusMessage("0", application_properties={"color": "red", "n": 2}),
        ServiceBusMessage("1", application_properties={"color": "red", "n": 1}, subject="l"),
        ServiceBusMessage("2"),
    ]
    await bench.send(topic, *sent, topic=True)
    for name, expected in (("sql", ["0"]), ("correlation", ["1"]), ("all", ["0", "1", "2"])):
        async with bench.receiver(topic, name, receive_mode="receiveanddelete") as receiver:
            assert texts(await take(receiver, len(expected))) == expected, name
            await nothing(receiver)


@check("rules", of.ACTIONS)
async def an_action_changes_its_copy_only(bench: Bench) -> None:
    topic = await bench.topic("changed", "plain")
    await bench.admin.delete_rule(topic, "changed", DEFAULT_RULE)
    await bench.admin.create_rule(topic, "changed", "r", filter=SqlRuleFilter("1=1"), action=SqlRuleAction("SET n = 2"))
    await bench.send(topic, ServiceBusMessage("x", application_properties={"n": 1}), topic=True)
    for name, expected in (("changed", 2), ("plain", 1)):
        (found,) = await bench.received(topic, name)
        assert (found.application_properties or {})[b"n"] == expected, name


@check("rules", of.FILTERS)
async def a_subscription_begins_with_a_rule_for_every_message(bench: Bench) -> None:
    topic = await bench.topic("s")
    assert [rule.name async for rule in bench.admin.list_rules(topic, "s")] == [DEFAULT_RULE]
    async with raising(HttpResponseError):
        await bench.admin.create_rule(topic, "s", "wrong", filter=SqlRuleFilter("a = = 1"))
    async with raising(ResourceExistsError):
        await bench.admin.create_rule(topic, "s", DEFAULT_RULE)


@check("rules", of.FILTERS)
async def every_kind_of_rule_reads_back(bench: Bench) -> None:
    topic = await bench.topic("s")
    values = {"text": "a <b> & c", "int": 5, "double": 2.5, "yes": True, "at": datetime(2026, 1, 2, tzinfo=UTC)}
    parameters = {f"@{name}": value for name, value in values.items()}
    fields = ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "content_type")
    action = SqlRuleAction("SET a = @text; REMOVE b", parameters=parameters)
    made = {
        "sql": SqlRuleFilter("n > @int AND a <> @text", parameters=parameters),
        "correlation": CorrelationRuleFilter(**{name: name for name in fields}, properties=values),
        "true": TrueRuleFilter(),
        "false": FalseRuleFilter(),
    }
    for name, rule_filter in made.items():
        await bench.admin.create_rule(topic, "s", name, filter=rule_filter, action=action)
    found = {rule.name: rule for rule in [rule async for rule in bench.admin.list_rules(topic, "s")]}
    assert list(found) == sorted([DEFAULT_RULE, *made])
    for name, rule_filter in made.items():
        assert isinstance(found[name].filter, type(rule_filter)), name
        assert (found[name].action.sql_expression, found[name].action.parameters) == (action.sql_expression, parameters)
    assert (found["sql"].filter.sql_expression, found["sql"].filter.parameters) == (
        "n > @int AND a <> @text",
        parameters,
    )
    assert [getattr(found["correlation"].filter, name) for name in fields] == list(fields)
    assert found["correlation"].filter.properties == values


@check("rules", of.FILTERS)
async def a_rule_is_changed_and_removed(bench: Bench) -> None:
    topic = await bench.topic("s")
    rule = await bench.admin.create_rule(topic, "s", "r", filter=SqlRuleFilter("a = 1"))
    rule.filter = CorrelationRuleFilter(label="l")
    await bench.admin.update_rule(topic, "s", rule)
    assert (await bench.admin.get_rule(topic, "s", "r")).filter.label == "l"
    await bench.admin.delete_rule(topic, "s", "r")
    for missing in (bench.admin.get_rule(topic, "s", "r"), bench.admin.update_rule(topic, "s", rule)):
        async with raising(ResourceNotFoundError):
            await missing


# Management


@check("management", of.MANAGEMENT)
async def a_description_reads_back(bench: Bench) -> None:
    wanted = {
        "lock_duration": timedelta(seconds=30),
        "max_delivery_count": 7,
        "default_message_time_to_live": timedelta(days=2),
        "dead_lettering_on_message_expiration": True,
        "requires_session": True,
        "user_metadata": "<mine> & 'more'",
    }
    queue = await bench.queue(**wanted)
    found = await bench.admin.get_queue(queue)
    assert {name: getattr(found, name) for name in wanted} == wanted
    found.max_delivery_count = 8
    await bench.admin.update_queue(found)
    assert (await bench.admin.get_queue(queue)).max_delivery_count == 8


@check("management", of.MANAGEMENT)
async def descriptions_of_a_topic_and_a_subscription_read_back(bench: Bench) -> None:
    of_topic = {
        "default_message_time_to_live": timedelta(hours=1),
        "requires_duplicate_detection": True,
        "duplicate_detection_history_time_window": timedelta(minutes=5),
        "enable_batched_operations": False,
        "auto_delete_on_idle": timedelta(minutes=10),
        "user_metadata": "<some> & text",
    }
    of_subscription = {
        "lock_duration": timedelta(seconds=30),
        "requires_session": True,
        "dead_lettering_on_message_expiration": True,
        "dead_lettering_on_filter_evaluation_exceptions": False,
        "max_delivery_count": 3,
    }
    topic = await bench.topic(authorization_rules=[access_rule("sending", AccessRights.SEND)], **of_topic)
    await bench.admin.create_subscription(topic, "First", **of_subscription)
    found = await bench.admin.get_topic(topic)
    assert {name: getattr(found, name) for name in of_topic} == of_topic
    assert [(each.key_name, each.rights) for each in found.authorization_rules] == [("sending", ["Send"])]
    subscription = await bench.admin.get_subscription(topic, "first")
    assert {name: getattr(subscription, name) for name in of_subscription} == of_subscription
    found.user_metadata, subscription.max_delivery_count = "other", 4
    await bench.admin.update_topic(found)
    await bench.admin.update_subscription(topic, subscription)
    assert (await bench.admin.get_topic(topic)).user_metadata == "other"
    assert (await bench.admin.get_subscription(topic, "First")).max_delivery_count == 4


@check("management", of.MANAGEMENT_EXCEPTIONS)
async def an_existing_entity_is_a_conflict(bench: Bench) -> None:
    queue = await bench.queue()
    for name in (queue, queue.upper()):
        async with raising(ResourceExistsError) as caught:
            await bench.admin.create_queue(name)
        assert "SubCode=40900" in str(caught[0]), caught[0]


@check("management", of.MANAGEMENT_EXCEPTIONS)
async def a_missing_entity_is_not_found(bench: Bench) -> None:
    missing = bench.name()
    async with raising(ResourceNotFoundError):
        await bench.admin.get_queue(missing)
    async with raising(ResourceNotFoundError):
        await bench.admin.delete_queue(missing)


@check("management", f"{of.GITHUB}Azure/azure-rest-api-specs/issues/16679")
async def sessions_cannot_be_changed_later(bench: Bench) -> None:
    found = await bench.admin.get_queue(await bench.queue())
    found.requires_session = True
    async with raising(HttpResponseError) as caught:
        await bench.admin.update_queue(found)
    assert "SubCode=40000" in str(caught[0]), caught[0]


@check("management", f"{of.GITHUB}MassTransit/MassTransit/issues/1929")
async def a_name_with_a_tilde_is_refused(bench: Bench) -> None:
    async with raising(HttpResponseError) as caught:
        await bench.admin.create_queue(f"{bench.name()}~x")
    assert "SubCode=40000" in str(caught[0]), caught[0]


@check("management", f"{of.GITHUB}Azure/azure-service-bus/issues/203")
async def a_target_of_forwarding_must_exist(bench: Bench) -> None:
    async with raising(HttpResponseError):
        await bench.queue(forward_to=bench.name())


@check("management", of.MANAGEMENT)
async def messages_are_counted_by_their_place(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, *(ServiceBusMessage(str(number)) for number in range(3)))
    async with bench.sender(queue) as sender, bench.receiver(queue) as receiver:
        await sender.schedule_messages([ServiceBusMessage("later")], datetime.now(UTC) + timedelta(hours=1))
        await receiver.dead_letter_message(await one(receiver))
    found = await bench.admin.get_queue_runtime_properties(queue)
    counts = (found.active_message_count, found.dead_letter_message_count, found.scheduled_message_count)
    assert (counts, found.total_message_count) == ((2, 1, 1), 4)


@check("management", f"{of.GO}admin/admin_client_test.go")
async def a_topic_is_not_partitioned_later(bench: Bench) -> None:
    topic = await bench.admin.get_topic(await bench.topic(enable_partitioning=False))
    topic.enable_partitioning = True
    async with raising(HttpResponseError) as caught:
        await bench.admin.update_topic(topic)
    assert "Partitioning cannot be changed for Topic. " in str(caught[0]), caught[0]


@check("management", f"{of.GO}admin/admin_client_test.go")
async def a_new_topic_was_never_accessed(bench: Bench) -> None:
    topic = await bench.topic("s")
    assert (await bench.admin.get_topic_runtime_properties(topic)).accessed_at_utc.year == 1
    found = await bench.admin.get_subscription_runtime_properties(topic, "s")
    assert abs(found.accessed_at_utc - found.created_at_utc) < timedelta(seconds=MARGIN_SECONDS)


@check("management", f"{of.GO}admin/admin_client_test.go")
async def an_authorization_rule_keeps_the_times_that_it_came_with(bench: Bench) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for times in ({}, {"created_at_utc": at, "modified_at_utc": at}):
        rule = access_rule("r", AccessRights.LISTEN, **times)
        (found,) = (await bench.admin.get_queue(await bench.queue(authorization_rules=[rule]))).authorization_rules
        assert (found.created_at_utc, found.modified_at_utc) == (rule.created_at_utc, rule.modified_at_utc)


@check("duplicates", of.DUPLICATES)
async def a_partitioned_queue_compares_the_partition_key_too(bench: Bench) -> None:
    queue = await bench.queue(requires_duplicate_detection=True, enable_partitioning=True)
    for key in ("a", "b", "a"):
        await bench.send(queue, ServiceBusMessage(key, message_id="same", partition_key=key))
    async with bench.receiver(queue, receive_mode="receiveanddelete") as receiver:
        assert sorted(texts(await take(receiver, 2))) == ["a", "b"]
        await nothing(receiver)


# WebSocket


@check("WebSocket", of.PROTOCOL)
async def messages_pass_over_WebSocket(bench: Bench) -> None:  # noqa: N802  # the name in the table
    queue = await bench.queue()
    async with bench.client(websocket=True) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(b"x" * 50_000), ServiceBusMessage("second")])
        async with client.get_queue_receiver(queue) as receiver:
            first, second = await take(receiver, 2)
            assert (len(text(first)), text(second)) == (50_000, "second")
            await receiver.complete_message(first)
            await receiver.defer_message(second)
            assert len(await receiver.receive_deferred_messages(second.sequence_number)) == 1
