"""The limits of each tier and their errors."""

import pytest

from sbpair import timespan
from sbpair.amqp.message import Sections
from sbpair.amqp_server.refusals import ArgumentInvalid, EntityFull, MessageTooLarge
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import (
    BASIC,
    PREMIUM,
    QUEUE,
    STANDARD,
    TIERS,
    EmulatedTier,
    QueueDescription,
    TopicDescription,
)
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.partitions import partition_of
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.frontends.http import atom_xml
from sbpair.emulator.frontends.http.management_parts import queues_of
from sbpair.emulator.server import Emulator, RequestedNamespace
from sbpair.errors import UsageError

DAY = timespan.TICKS_PER_DAY


def described(tier: EmulatedTier, **values: str) -> QueueDescription:
    return queues_of(namespace(tier)).describe(values)


def namespace(tier: EmulatedTier, partitions: int = 1) -> Namespace:
    return Namespace("contoso", ManualClock(), tier=tier, partitions=partitions)


ENTITY_SIZE, MESSAGE_SIZE = "MaxSizeInMegabytes", "MaxMessageSizeInKilobytes"


@pytest.mark.parametrize(
    ("tier", "name", "size", "error"),
    [
        (BASIC, ENTITY_SIZE, "5120", None),
        (STANDARD, ENTITY_SIZE, "5120", None),
        (STANDARD, ENTITY_SIZE, "10240", r";\d+\."),
        (PREMIUM, ENTITY_SIZE, "10240", None),
        (PREMIUM, ENTITY_SIZE, "81920", None),
        (PREMIUM, ENTITY_SIZE, "6144", r";\d+\."),
        (PREMIUM, ENTITY_SIZE, "163840", r";\d+\."),
        (STANDARD, MESSAGE_SIZE, "256", None),
        (STANDARD, MESSAGE_SIZE, "1024", "Bad Request"),
        (PREMIUM, MESSAGE_SIZE, "1024", None),
        (PREMIUM, MESSAGE_SIZE, "102400", None),
        (PREMIUM, MESSAGE_SIZE, "102401", "must be between 1024 and 102400 .*'Premium' tier"),
        (PREMIUM, MESSAGE_SIZE, "256", "must be between 1024 and 102400 .*'Premium' tier"),
    ],
)
def test_a_tier_limits_sizes(tier, name, size, error) -> None:
    if error is None:
        assert QUEUE.properties[name].text(described(tier, **{name: size})) == size
        return
    with pytest.raises(ArgumentInvalid, match=error):
        described(tier, **{name: size})


def test_the_defaults_of_each_tier() -> None:
    assert [described(tier).max_message_size_in_kilobytes for tier in TIERS.values()] == [256, 256, 1024]
    assert described(BASIC).default_message_time_to_live == 14 * DAY
    assert described(PREMIUM).default_message_time_to_live == timespan.MAX_TICKS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RequiresSession", "true"),
        ("RequiresDuplicateDetection", "true"),
        ("ForwardTo", "sb://here/other"),
        ("ForwardDeadLetteredMessagesTo", "sb://here/other"),
        ("DuplicateDetectionHistoryTimeWindow", "PT1M"),
        ("AutoDeleteOnIdle", "PT1H"),
        ("EnableExpress", "true"),
        ("DefaultMessageTimeToLive", "P1D"),
        ("DefaultMessageTimeToLive", "P10675199DT2H48M5.4775807S"),
    ],
)
def test_basic_refuses_features_of_standard(name, value) -> None:
    with pytest.raises(ArgumentInvalid) as refused:
        described(BASIC, **{name: value})
    assert refused.value.message == (
        f"The property '{name}' cannot be set when creating a Queue because the namespace 'contoso' is using the "
        "'Basic' Tier. This operation is only supported in 'Standard' or 'Premium' tier."
    )
    described(STANDARD, **{name: value})


def test_basic_has_no_topics() -> None:
    with pytest.raises(ArgumentInvalid, match=r"type Topic .*'Basic' tier") as refused:
        namespace(BASIC).create_topic("news")
    assert (refused.value.status, refused.value.sub_code) == (400, 40000)
    namespace(PREMIUM).create_topic("news")


def test_premium_partitions_the_whole_namespace() -> None:
    wanted = described(PREMIUM, EnablePartitioning="true")
    with pytest.raises(ArgumentInvalid, match="EnablePartitioning"):
        namespace(PREMIUM).create_queue("orders", wanted)
    assert namespace(PREMIUM, 2).create_queue("orders", wanted).partitions.count == 2
    with pytest.raises(ArgumentInvalid, match="Non-partitioned entities are not allowed") as refused:
        namespace(PREMIUM, 2).create_queue("orders", described(PREMIUM))
    assert (refused.value.status, refused.value.sub_code) == (400, 40000)
    asked = described(PREMIUM, MaxSizeInMegabytes="5120", EnablePartitioning="true")
    queue = namespace(PREMIUM, 4).create_queue("orders", asked)
    sent = [StoredMessage(Sections(), 10) for _ in range(8)]
    for message in sent:
        queue.send([message])
    assert sorted(partition_of(message.sequence_number) for message in sent) == [0, 0, 1, 1, 2, 2, 3, 3]
    larger = {"MaxSizeInMegabytes": "81920"}
    queue.update(queues_of(namespace(PREMIUM)).describe(larger, queue.description))
    assert queue.description.total_size_in_megabytes == 81920
    assert namespace(PREMIUM).create_queue("orders").partitions is None


@pytest.mark.parametrize(
    ("tier", "partitions", "partitioned", "limit", "text"),
    [
        (STANDARD, 1, False, 10_000, "10000 entities"),
        (PREMIUM, 2, False, 2_000, "2000 entities"),
        (STANDARD, 1, True, 100, "100 partitioned"),
    ],
)
def test_a_tier_limits_the_entities_of_a_namespace(tier, partitions, partitioned, limit, text) -> None:
    full = namespace(tier, partitions)
    wanted = QueueDescription(enable_partitioning=True) if partitioned else None
    for number in range(limit):
        full.create_queue(f"q{number}", wanted)
    of_topic = TopicDescription(enable_partitioning=True) if partitioned else None
    for create, description in ((full.create_queue, wanted), (full.create_topic, of_topic)):
        with pytest.raises(EntityFull, match=text) as refused:
            create("one-too-many", description)
        assert (refused.value.status, refused.value.sub_code) == (403, 40300)
    if partitioned:
        full.create_queue("plain")


def test_a_large_message_cannot_be_batched() -> None:
    queue = namespace(PREMIUM).create_queue("orders", described(PREMIUM, MaxMessageSizeInKilobytes="102400"))
    queue.send([StoredMessage(Sections(), 100 * 1024 * 1024)])
    with pytest.raises(MessageTooLarge):
        queue.send([StoredMessage(Sections(), 100 * 1024 * 1024 + 1)])
    with pytest.raises(MessageTooLarge, match="1048576"):
        queue.send([StoredMessage(Sections(), 600_000) for _ in range(2)])
    with pytest.raises(ArgumentInvalid):
        queue.send([StoredMessage(Sections(), 1) for _ in range(4501)])
    assert queue.counts().total == 1


@pytest.mark.parametrize(("tier", "partitions"), [(BASIC, 1), (STANDARD, 1), (PREMIUM, 4)])
def test_a_namespace_reports_its_tier_and_premium_its_units(tier, partitions) -> None:
    text = atom_xml.namespace_xml(namespace(tier, partitions))
    assert f"<MessagingSKU>{tier.name}</MessagingSKU>" in text
    assert ("<MessagingUnits>4</MessagingUnits>" in text, "MessagingUnits" in text) == (tier is PREMIUM,) * 2


@pytest.mark.parametrize(
    "wanted",
    [
        RequestedNamespace("contoso", 0, "gold"),
        RequestedNamespace("contoso", 0, "premium", 3),
        RequestedNamespace("contoso", 0, "standard", 2),
    ],
)
def test_an_invalid_tier_is_refused(wanted) -> None:
    with pytest.raises(UsageError):
        Emulator([wanted])
