"""The descriptions of entities: defaults, limits and immutable properties."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import (
    QUEUE,
    STANDARD,
    SUBSCRIPTION,
    TOPIC,
    DescriptionSchema,
    QueueDescription,
    check_path,
    validate,
)
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.frontends.http.management_parts import queues_of

FOR_EVER = "P10675199DT2H48M5.4775807S"


def read(existing=None, schema: DescriptionSchema = QUEUE, **values) -> Any:
    of_queues = queues_of(Namespace("contoso", ManualClock()))
    return replace(of_queues, schema=schema).describe(values, existing)


def test_omitted_values_are_the_services_defaults() -> None:
    shown = {name: each.text(read()) for name, each in QUEUE.properties.items()}
    assert shown == {
        "LockDuration": "PT1M",
        "MaxSizeInMegabytes": "1024",
        "RequiresDuplicateDetection": "false",
        "RequiresSession": "false",
        "DefaultMessageTimeToLive": FOR_EVER,
        "DeadLetteringOnMessageExpiration": "false",
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
        "MaxDeliveryCount": "10",
        "EnableBatchedOperations": "true",
        "Status": "Active",
        "ForwardTo": None,
        "UserMetadata": None,
        "AutoDeleteOnIdle": FOR_EVER,
        "EnablePartitioning": "false",
        "ForwardDeadLetteredMessagesTo": None,
        "EnableExpress": "false",
        "MaxMessageSizeInKilobytes": "256",
    }


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("LockDuration", "PT300S", "PT5M"),
        ("MaxSizeInMegabytes", "5120", "5120"),
        ("MaxDeliveryCount", "1", "1"),
        ("MaxDeliveryCount", "2147483647", "2147483647"),
        ("DefaultMessageTimeToLive", "P14D", "P14D"),
        ("AutoDeleteOnIdle", "PT5M", "PT5M"),
        ("DuplicateDetectionHistoryTimeWindow", "PT20S", "PT20S"),
        ("EnableBatchedOperations", "0", "false"),
        ("RequiresSession", "TRUE", "true"),
        ("UserMetadata", " kept as it is ", " kept as it is "),
        ("Status", "SendDisabled", "SendDisabled"),
    ],
)
def test_a_value_is_written_as_the_service_writes_it(name, text, shown) -> None:
    assert QUEUE.properties[name].text(read(**{name: text})) == shown


@pytest.mark.parametrize(
    ("schema", "name", "text"),
    [
        (TOPIC, "MaxSizeInMegabytes", "1000"),
        (SUBSCRIPTION, "LockDuration", "PT6M"),
        (SUBSCRIPTION, "Status", "Asleep"),
        (QUEUE, "LockDuration", "PT5M0.0000001S"),
        (QUEUE, "LockDuration", "PT0S"),
        (QUEUE, "LockDuration", "soon"),
        (QUEUE, "MaxSizeInMegabytes", "0"),
        (QUEUE, "MaxSizeInMegabytes", "1500"),
        (QUEUE, "MaxSizeInMegabytes", "81920"),
        (QUEUE, "MaxSizeInMegabytes", "9" * 5000),
        (QUEUE, "MaxDeliveryCount", "0"),
        (QUEUE, "MaxDeliveryCount", "2147483648"),
        (QUEUE, "DefaultMessageTimeToLive", "PT0.9999999S"),
        (QUEUE, "DefaultMessageTimeToLive", "P10675199DT2H48M5.477581S"),
        (QUEUE, "DefaultMessageTimeToLive", "-P1D"),
        (QUEUE, "AutoDeleteOnIdle", "PT4M59S"),
        (QUEUE, "DuplicateDetectionHistoryTimeWindow", "PT19S"),
        (QUEUE, "DuplicateDetectionHistoryTimeWindow", "P7DT1S"),
        (QUEUE, "RequiresSession", "yes"),
        (QUEUE, "Status", "Deleting"),
        (QUEUE, "Status", ""),
        (QUEUE, "UserMetadata", "x" * 1025),
    ],
)
def test_a_value_outside_the_services_limits_is_refused_by_name(schema, name, text) -> None:
    with pytest.raises(ArgumentInvalid, match=rf"\b{name}\b") as refused:
        read(schema=schema, **{name: text})
    assert (refused.value.status, refused.value.sub_code) == (400, 40000)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("schema", "name", "text"),
    [
        (QUEUE, "RequiresDuplicateDetection", "RequiresDuplicateDetection"),
        (QUEUE, "RequiresSession", "RequiresSession"),
        (QUEUE, "EnablePartitioning", "EnablePartitioning"),
        (TOPIC, "RequiresDuplicateDetection", "RequiresDuplicateDetection"),
        (TOPIC, "EnablePartitioning", r"Partitioning cannot be changed for Topic\. "),
        (SUBSCRIPTION, "RequiresSession", "RequiresSession"),
    ],
)
def test_an_update_keeps_immutable_values_and_resets_the_others(schema, name, text) -> None:
    existing = read(schema=schema, DefaultMessageTimeToLive="P1D", **{name: "true"})
    updated = read(existing, schema, EnableBatchedOperations="false")
    names = (name, "DefaultMessageTimeToLive", "EnableBatchedOperations")
    shown = [schema.properties[each].text(updated) for each in names]
    assert shown == ["true", FOR_EVER, "false"]
    with pytest.raises(ArgumentInvalid, match=text):
        read(existing, schema, **{name: "false"})


def test_a_partitioned_queue_keeps_sixteen_times_its_size() -> None:
    made = read(EnablePartitioning="true", MaxSizeInMegabytes="5120")
    for queue in (made, read(made, MaxSizeInMegabytes="81920")):
        assert QUEUE.properties["MaxSizeInMegabytes"].text(queue) == "81920"
    with pytest.raises(ArgumentInvalid, match="MaxSizeInMegabytes"):
        read(made, MaxSizeInMegabytes="16384")


def a_rule(name: str = "r", primary: str = "1", secondary: str = "2", rights: str = "SEND") -> AuthorizationRule:
    return AuthorizationRule(name, primary, secondary, frozenset(AccessRight[each] for each in rights.split()))


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ([a_rule(str(number)) for number in range(12)], None),
        ([a_rule(str(number)) for number in range(13)], "AuthorizationRules"),
        ([a_rule(), a_rule(rights="LISTEN")], "AuthorizationRules"),
        ([a_rule("x" * 256, rights="MANAGE SEND LISTEN")], None),
        ([a_rule("x" * 257)], "KeyName"),
        ([a_rule("")], "KeyName"),
        ([a_rule(primary="")], "PrimaryKey"),
        ([a_rule(secondary="")], "PrimaryKey"),
        ([a_rule(rights="")], "Rights"),
        ([a_rule(rights="MANAGE SEND")], "Rights"),
    ],
)
def test_keys_outside_the_services_limits_are_refused_by_name(rules, name) -> None:
    with nullcontext() if name is None else pytest.raises(ArgumentInvalid, match=rf"\b{name}\b"):
        validate(replace(QueueDescription(), authorization_rules=tuple(rules)), STANDARD)


@pytest.mark.parametrize("path", ["orders", "contoso/x-servicebus-transfer/0", "A.b-c_d/1", "x" * 260])
def test_a_valid_path_is_accepted(path) -> None:
    check_path(path)


@pytest.mark.parametrize("path", ["", "/orders", "a//b", "a/", "contoso~x/0", "größe", "a b", "$cbs", "x" * 261, "a\n"])
def test_an_invalid_path_is_refused(path) -> None:
    with pytest.raises(ArgumentInvalid):
        check_path(path)
