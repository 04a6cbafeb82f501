"""Partitioned entities: requests and their refusals, and entities created and listed by the rules of each tier."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from sbpair import errors
from sbpair.amqp.message import Sections
from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.errors import ServiceRefused, UsageError
from sbpair.management import partitioning
from sbpair.management.partitioning import (
    PartitionedEntityState,
    PartitionReport,
    create_partitioned,
    list_partitions,
    partition_exit_code,
    partitioned_queue,
    partitioned_topic,
)
from sbpair.model.entities import Queue
from sbpair.model.pair import Endpoint, ResourceGroup
from sbpair.model.report import Outcome
from sbpair.model.tiers import PREMIUM
from sbpair.testing import Emulator, EmulatorOptions
from sbpair.timespan import TICKS_PER_SECOND
from tests.kit.pairs import endpoint_on, use_identity
from tests.kit.waiting import no_wait

TIERS = [("contoso", 0), ("basic", 0, "basic"), ("wide", 0, "premium", 2), ("whole", 0, "premium")]
ORDERS = partitioned_queue("orders", 5)
GROUP = ResourceGroup("00000000-0000-0000-0000-000000000000", "messaging")
PARTITIONED = QueueDescription(enable_partitioning=True)
FOURTEEN_DAYS = 14 * 86_400 * TICKS_PER_SECOND


def at(emulator: Emulator, *names: str) -> list[Endpoint]:
    return [endpoint_on(emulator, name) for name in names]


def outcomes(report: PartitionReport) -> list[Outcome]:
    return [item.outcome for item in report]


async def test_partitioned_entity_has_the_requested_properties() -> None:
    async with Emulator(TIERS) as emulator:
        queue = partitioned_queue("orders", 1, sessions=True, duplicates="1h")
        await create_partitioned(at(emulator, "contoso"), queue)
        await create_partitioned(at(emulator, "contoso"), partitioned_topic("news", 3, duplicates="20s"))
        await create_partitioned(at(emulator, "contoso"), partitioned_queue("feed", sessions=True, forward_to="News"))
        namespace = emulator.namespaces["contoso"]
        orders, news, feed = (namespace.entity(name).description for name in ("orders", "news", "feed"))
        assert (orders.requires_session, orders.requires_duplicate_detection) == (True, True)
        assert orders.duplicate_detection_window_ms == 3_600_000
        assert (news.duplicate_detection_window_ms, news.max_size_in_megabytes) == (20_000, 3072)
        assert str(feed.forward_to).endswith("/News")
        assert (feed.requires_session, feed.max_size_in_megabytes) == (True, 1024)
        assert all(each.enable_partitioning for each in (orders, news, feed))
        with pytest.raises(errors.UsageError, match="more cannot forward to nowhere: contoso has no"):
            await create_partitioned(at(emulator, "contoso"), partitioned_queue("more", 2, forward_to="nowhere"))
        for entity in (queue, partitioned_queue("feed", sessions=True, forward_to="NEWS")):
            assert outcomes(await create_partitioned(at(emulator, "contoso"), entity)) == [Outcome.EXISTING]


@pytest.mark.parametrize(("units", "there"), [(1, None), (4, None), (4, "orders"), (4, "plain")])
async def test_premium_without_partitions_is_known_by_units_entities_or_attempt(units, there) -> None:
    async with Emulator(TIERS) as emulator:
        namespace = emulator.namespaces["whole"]
        namespace.messaging_units = units
        if there:
            namespace.create_queue(there)
        if units == 1 or there:
            emulator.faults.refuse_requests("whole", 403, method="PUT")
        with pytest.raises(errors.ServiceRefused, match="whole is a Premium namespace that is not partitioned"):
            await create_partitioned(at(emulator, "whole"), ORDERS)


async def test_basic_has_partitioned_queues_and_little_else() -> None:
    async with Emulator(TIERS) as emulator:
        [made] = await create_partitioned(at(emulator, "basic"), ORDERS)
        assert made.detail == PartitionedEntityState("basic", "Basic", "queue", (16,), 5120, 81920)
        assert emulator.namespaces["basic"].queue("orders").description.default_message_time_to_live == FOURTEEN_DAYS
        for entity, what in (
            (partitioned_topic("news", 1), "topic news: topics do not exist"),
            (partitioned_queue("more", 1, sessions=True), "requires_session of queue more: it is not available"),
            (partitioned_queue("more", 1, duplicates="10m"), "requires_duplicate_detection of queue more"),
            (partitioned_queue("more", 1, forward_to="orders"), "forward_to of queue more"),
        ):
            with pytest.raises(errors.UsageError, match=f"basic: {what}.* in a Basic namespace"):
                await create_partitioned(at(emulator, "basic"), entity)
        assert [item.name for item in await list_partitions(at(emulator, "basic"))] == ["orders"]


async def test_the_hundred_and_first_is_refused_without_an_attempt() -> None:
    async with Emulator(TIERS) as emulator:
        namespace = emulator.namespaces["contoso"]
        for number in range(99):
            namespace.create_queue(f"q{number}", PARTITIONED)
        namespace.create_queue("plain")
        assert outcomes(await create_partitioned(at(emulator, "contoso"), ORDERS)) == [Outcome.CREATED]
        emulator.faults.refuse_requests("contoso", 403, method="PUT")
        with pytest.raises(errors.ServiceRefused, match="contoso has 100: no room for 1 more") as refused:
            await create_partitioned(at(emulator, "contoso"), partitioned_topic("news", 1))
        assert refused.value.condition == "40300"
        assert outcomes(await create_partitioned(at(emulator, "contoso"), ORDERS)) == [Outcome.EXISTING]


async def test_report_has_the_creation_before_the_other_side_failed() -> None:
    async with Emulator(TIERS) as emulator:
        fault = emulator.faults.refuse_requests("wide", 500, method="PUT")
        both = at(emulator, "contoso", "wide")
        report = await create_partitioned(both, ORDERS, sleep=no_wait)
        assert outcomes(report) == [Outcome.CREATED, Outcome.FAILED]
        assert partition_exit_code(report) == 3
        emulator.faults.end(fault)
        assert outcomes(await create_partitioned(both, ORDERS)) == [Outcome.EXISTING, Outcome.CREATED]


async def test_two_at_once_both_find_it_there() -> None:
    async with Emulator(TIERS) as emulator:
        for name in ("contoso", "wide"):
            runs = (create_partitioned(at(emulator, name), ORDERS, sleep=no_wait) for _ in range(4))
            found = [outcomes(report)[0] for report in await asyncio.gather(*runs)]
            assert sorted(found) == [Outcome.CREATED, *[Outcome.EXISTING] * 3]


@pytest.mark.parametrize(("status", "error"), [(429, errors.Throttled), (500, errors.Unavailable)])
async def test_transient_error_is_retried_and_a_lasting_one_reported(status, error) -> None:
    async with Emulator(TIERS) as emulator:
        emulator.faults.refuse_requests("contoso", status, method="PUT", count=1)
        assert outcomes(await create_partitioned(at(emulator, "contoso"), ORDERS, sleep=no_wait)) == [Outcome.CREATED]
        emulator.faults.refuse_requests("contoso", status)
        with pytest.raises(error):
            await create_partitioned(at(emulator, "contoso"), partitioned_queue("more", 1), sleep=no_wait)


async def test_a_namespace_that_cannot_be_listed_hides_no_other() -> None:
    async with Emulator(TIERS) as emulator:
        emulator.namespaces["wide"].create_queue("large")
        outage = emulator.faults.namespace_down("contoso")
        report = await list_partitions(at(emulator, "contoso", "wide"), sleep=no_wait)
        assert [(item.name, item.outcome) for item in report] == [("contoso", Outcome.FAILED), ("large", Outcome.OK)]
        assert partition_exit_code(report) == 3
        with pytest.raises(errors.Unavailable):
            await list_partitions(at(emulator, "contoso"), sleep=no_wait)
        emulator.faults.end(outage)
        assert outcomes(await list_partitions(at(emulator, "contoso", "wide"))) == [Outcome.OK]


@asynccontextmanager
async def signed_in(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Emulator]:
    async with Emulator(TIERS, options=EmulatorOptions(identity=True)) as emulator:
        use_identity(emulator, monkeypatch)
        yield emulator


async def test_resource_manager_creates_and_lists_like_atom(monkeypatch: pytest.MonkeyPatch) -> None:
    async with signed_in(monkeypatch) as emulator:
        everywhere = at(emulator, "contoso", "wide", "basic")
        made = await create_partitioned(everywhere, ORDERS, group=GROUP)
        assert outcomes(made) == [Outcome.CREATED] * 3
        over_atom = await create_partitioned(everywhere, ORDERS)
        assert outcomes(over_atom) == [Outcome.EXISTING] * 3
        assert [item.detail for item in made] == [item.detail for item in over_atom]
        assert outcomes(await create_partitioned(everywhere, ORDERS, group=GROUP)) == [Outcome.EXISTING] * 3
        emulator.namespaces["contoso"].queue("orders").send([StoredMessage(Sections(), 100_000)])
        emulator.namespaces["wide"].create_topic("news")
        listed = await list_partitions(everywhere, group=GROUP)
        assert listed == await list_partitions(everywhere)
        assert any(item.detail.size_bytes for item in listed if item.detail)
        with pytest.raises(errors.ServiceRefused, match="RequiresSession is false and should be true"):
            await create_partitioned(at(emulator, "wide"), partitioned_queue("orders", 5, sessions=True), group=GROUP)


async def test_resource_manager_reports_the_partitions_of_premium(monkeypatch: pytest.MonkeyPatch) -> None:
    async with signed_in(monkeypatch) as emulator:
        [looked] = await create_partitioned(at(emulator, "wide"), ORDERS, dry_run=True, group=GROUP)
        assert looked.detail.partitions == (2,)
        with pytest.raises(errors.ServiceRefused, match="whole is a Premium namespace that is not partitioned"):
            await create_partitioned(at(emulator, "whole"), ORDERS, dry_run=True, group=GROUP)


@pytest.mark.parametrize(
    ("name", "size", "options", "message"),
    [
        ("", 5, {}, "'' is not a valid path"),
        ("or ders", 5, {}, "is not a valid path"),
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
        ("orders", 5, {"forward_to": "Orders"}, "cannot forward to itself"),
        ("orders", 5, {"forward_to": "a b"}, "'a b' is not a valid path"),
    ],
)
def test_request_beyond_every_tier_is_refused(name, size, options, message) -> None:
    with pytest.raises(UsageError) as refused:
        partitioned_queue(name, size, **options)
    assert message in refused.value.message
    assert refused.value.hint


LASTING = partitioned_queue("orders", 5, duplicates="60m", forward_to="next")


@pytest.mark.parametrize(
    ("wanted", "changed", "difference", "advice"),
    [
        (ORDERS, {"enable_partitioning": False}, "EnablePartitioning is false", "let orders forward to it"),
        (ORDERS, {"requires_duplicate_detection": True}, "RequiresDuplicateDetection is true", "only be chosen"),
        (ORDERS, {"requires_session": True}, "RequiresSession is true", "once its receivers have emptied it"),
        (ORDERS, {"max_size_in_megabytes": 1024}, "MaxSizeInMegabytes is 1024", "an existing entity is never changed"),
        (ORDERS, {"forward_to": "next"}, "ForwardTo is next", "an existing entity is never changed"),
        (LASTING, {"duplicate_detection_history_time_window": "PT2H"}, "DuplicateDetectionHistoryTimeWindow is", ""),
        # The same, however it is written, and what was not asked for.
        (LASTING, {"duplicate_detection_history_time_window": "PT1H", "forward_to": "Next"}, None, ""),
        (ORDERS, {"path": "ORDERS"}, None, ""),
        (ORDERS, {"lock_duration": "PT5M", "max_delivery_count": 3, "user_metadata": "ours"}, None, ""),
        (ORDERS, {"duplicate_detection_history_time_window": "PT1M"}, None, ""),
    ],
)
def test_a_different_existing_entity_is_refused_with_advice(wanted, changed, difference, advice) -> None:
    existing = replace(wanted, **changed)
    if difference is None:
        partitioning.check_same(wanted, existing, "contoso")
        return
    with pytest.raises(ServiceRefused, match=f"in contoso already, and is left as it is: {difference}") as refused:
        partitioning.check_same(wanted, existing, "contoso")
    assert advice in refused.value.hint


def test_premium_has_no_limit_of_partitioned_entities() -> None:
    others = [Queue(f"q{number}", enable_partitioning=True) for number in range(100)]
    partitioning.check_number(1, others, PREMIUM, "contoso")
