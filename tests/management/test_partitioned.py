"""Requests for partitioned entities, and their refusals before any creation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.errors import NameInvalid, ServiceRefused, UsageError
from sbpair.management import partitioning
from sbpair.management.partitioning import partitioned_queue, partitioned_topic
from sbpair.model.entities import Queue, Topic
from sbpair.model.tiers import BASIC, PREMIUM, STANDARD, Capacity

ORDERS = partitioned_queue("orders", 5)
PARTITIONED = [Queue(f"q{number}", enable_partitioning=True) for number in range(100)]

queues = st.builds(
    partitioned_queue,
    st.from_regex(r"[a-z][A-Za-z0-9._-]{0,9}(/[a-z]{1,5})?", fullmatch=True),
    st.sampled_from([1, 2, 3, 4, 5, 10, 20, 40, 80]),
    sessions=st.booleans(),
    duplicates=st.none() | st.sampled_from(["20s", "10m", "7d", "PT1H"]),
)


def test_the_size_that_is_asked_for_is_that_of_one_partition() -> None:
    assert Queue("orders", max_size_in_megabytes=5120, enable_partitioning=True) == ORDERS
    assert partitioned_topic("news", 1) == Topic("news", enable_partitioning=True)


def test_window_enables_duplicate_detection() -> None:
    made = partitioned_topic("news", 1, duplicates="1h")
    assert (made.requires_duplicate_detection, made.duplicate_detection_history_time_window) == (True, "PT3600S")
    assert not ORDERS.requires_duplicate_detection


@pytest.mark.parametrize(
    ("name", "size", "options", "message"),
    [
        ("", 5, {}, "'' is not a valid path"),
        ("/orders", 5, {}, "is not a valid path"),
        ("orders/", 5, {}, "is not a valid path"),
        ("or//ders", 5, {}, "is not a valid path"),
        ("or ders", 5, {}, "is not a valid path"),
        ("orders~0", 5, {}, "is not a valid path"),
        ("orders$", 5, {}, "is not a valid path"),
        ("../orders", 5, {}, "is not a valid path"),
        ("bestellung\N{LATIN SMALL LETTER E WITH ACUTE}", 5, {}, "is not a valid path"),
        ("a" * 261, 5, {}, "has 261 characters"),
        ("contoso/X-ServiceBus-Transfer/0", 5, {}, "is the name of a backlog queue"),
        ("orders", 0, {}, "cannot have 0 GB"),
        ("orders", -5, {}, "cannot have -5 GB"),
        ("orders", 6, {}, "cannot have 6 GB"),
        ("orders", 5120, {}, "cannot have 5120 GB"),
        ("orders", 5, {"duplicates": "19s"}, "cannot be detected for 19s"),
        ("orders", 5, {"duplicates": "7d1s"}, "cannot be detected for 7d1s"),
        ("orders", 5, {"duplicates": "20.5s"}, "cannot be detected for 20.5s"),
        ("orders", 5, {"duplicates": "-10m"}, "expected a duration such as 90s, got '-10m'"),
        ("orders", 5, {"duplicates": "soon"}, "expected a duration such as 90s, got 'soon'"),
        ("orders", 5, {"duplicates": ""}, "expected a duration such as 90s, got ''"),
        ("orders", 5, {"forward_to": "Orders"}, "cannot forward to itself"),
        ("orders", 5, {"forward_to": "a b"}, "'a b' is not a valid path"),
        ("orders", 5, {"forward_to": "next", "sessions": True}, "cannot forward its messages"),
    ],
)
def test_request_beyond_every_tier_is_refused(name, size, options, message) -> None:
    with pytest.raises(UsageError) as refused:
        partitioned_queue(name, size, **options)
    assert message in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(("size", "tier", "fits"), [(80, PREMIUM, True), (80, STANDARD, False), (10, BASIC, False)])
def test_a_size_is_the_tiers_own(size, tier, fits) -> None:
    entity = partitioned_queue("orders", size)
    if fits:
        assert partitioning.adapt_to_tier(entity, tier, "contoso") == entity
        return
    with pytest.raises(UsageError, match=f"in contoso, of the tier {tier.name}, cannot have {size} GB"):
        partitioning.adapt_to_tier(entity, tier, "contoso")


@pytest.mark.parametrize(
    ("entity", "what"),
    [
        (partitioned_topic("news", 1), "topic news: topics do not exist"),
        (partitioned_queue("orders", 1, sessions=True), "requires_session of queue orders: it is not available"),
        (partitioned_queue("orders", 1, duplicates="10m"), "requires_duplicate_detection of queue orders"),
        (partitioned_queue("orders", 1, forward_to="next"), "forward_to of queue orders"),
    ],
)
def test_basic_has_partitions_and_little_else(entity, what) -> None:
    with pytest.raises(UsageError, match=f"contoso: {what}.* in a Basic namespace"):
        partitioning.adapt_to_tier(entity, BASIC, "contoso")
    assert partitioning.adapt_to_tier(entity, STANDARD, "contoso") == entity
    assert partitioning.adapt_to_tier(ORDERS, BASIC, "contoso").default_message_time_to_live == "P14D"


@pytest.mark.parametrize(
    ("existing", "difference", "advice"),
    [
        (replace(ORDERS, enable_partitioning=False), "EnablePartitioning is false", "let orders forward to it"),
        (replace(ORDERS, requires_duplicate_detection=True), "RequiresDuplicateDetection is true", "only be chosen"),
        (replace(ORDERS, requires_session=True), "RequiresSession is true", "once its receivers have emptied it"),
        (replace(ORDERS, max_size_in_megabytes=1024), "MaxSizeInMegabytes is 1024", "never changes an existing entity"),
        (replace(ORDERS, forward_to="next"), "ForwardTo is next", "never changes an existing entity"),
    ],
)
def test_different_existing_entity_is_refused_with_advice(existing, difference, advice) -> None:
    with pytest.raises(ServiceRefused, match=f"in contoso already, and is left as it is: {difference}") as refused:
        partitioning.check_same(ORDERS, existing, "contoso")
    assert advice in refused.value.hint


@pytest.mark.parametrize(
    "existing",
    [
        replace(ORDERS, path="ORDERS"),
        replace(ORDERS, lock_duration="PT5M", max_delivery_count=3, user_metadata="ours"),
        replace(ORDERS, duplicate_detection_history_time_window="PT1M"),
    ],
)
def test_properties_not_requested_are_not_compared(existing) -> None:
    partitioning.check_same(ORDERS, existing, "contoso")


def test_a_window_is_the_same_however_it_is_written() -> None:
    wanted = partitioned_queue("orders", 5, duplicates="60m", forward_to="next")
    there = replace(wanted, duplicate_detection_history_time_window="PT1H", forward_to="Next")
    partitioning.check_same(wanted, there, "contoso")
    with pytest.raises(ServiceRefused, match="DuplicateDetectionHistoryTimeWindow is PT2H and should be PT3600S"):
        partitioning.check_same(wanted, replace(there, duplicate_detection_history_time_window="PT2H"), "contoso")


def test_the_hundred_and_first_partitioned_entity_is_refused() -> None:
    partitioning.check_room(ORDERS, PARTITIONED[1:], STANDARD, "contoso")
    plain = [Queue(f"p{number}") for number in range(500)]
    partitioning.check_room(ORDERS, [*PARTITIONED[1:], *plain], STANDARD, "contoso")
    partitioning.check_room(ORDERS, PARTITIONED, PREMIUM, "contoso")
    with pytest.raises(ServiceRefused, match="contoso has 100: no room for 1 more"):
        partitioning.check_room(
            ORDERS, [*PARTITIONED[1:], Topic("news", enable_partitioning=True)], STANDARD, "contoso"
        )


def test_forward_target_must_exist() -> None:
    forwarding = partitioned_queue("orders", 5, forward_to="next")
    partitioning.check_room(forwarding, [Topic("Next")], STANDARD, "contoso")
    with pytest.raises(UsageError, match="orders cannot forward to next: contoso has no"):
        partitioning.check_room(forwarding, PARTITIONED[:3], STANDARD, "contoso")


@pytest.mark.parametrize(
    ("tier", "others", "units", "found"),
    [
        (STANDARD, [Queue("plain")], None, (16,)),
        (BASIC, [], None, (16,)),
        (PREMIUM, [], None, (1, 2, 4)),
        (PREMIUM, [], 2, (1, 2)),
        (PREMIUM, PARTITIONED[:2], 2, (2,)),
        (PREMIUM, PARTITIONED[:2], 4, (2, 4)),
    ],
)
def test_how_many_partitions_it_would_have(tier, others, units, found) -> None:
    assert partitioning.possible_partitions(Capacity(tier, units), others, "contoso") == found


@pytest.mark.parametrize(
    ("others", "units"), [([], 1), (PARTITIONED[:1], 1), ([Queue("plain")], 4), ([*PARTITIONED[:9], Queue("plain")], 4)]
)
def test_a_premium_namespace_in_one_piece_has_nothing_partitioned(others, units) -> None:
    with pytest.raises(ServiceRefused, match="contoso is a Premium namespace that is not partitioned") as refused:
        partitioning.possible_partitions(Capacity(PREMIUM, units), others, "contoso")
    assert "create one with 2 or 4;" in refused.value.hint


@given(queues)
def test_created_entity_equals_a_second_request(made) -> None:
    partitioning.check_same(made, made, "contoso")
    assert made.enable_partitioning


@given(queues, queues)
def test_two_entities_are_the_same_either_way_or_neither(one, other) -> None:
    def same(asked: Queue, existing: Queue) -> bool:
        try:
            partitioning.check_same(asked, existing, "contoso")
        except ServiceRefused:
            return False
        return True

    assert same(one, other) == same(other, one)


@given(st.text(max_size=300))
def test_a_name_is_taken_as_it_is_or_refused(name) -> None:
    kept = name
    with suppress(NameInvalid):
        kept = partitioned_queue(name, 1).path
    assert kept == name
