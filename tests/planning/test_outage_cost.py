"""The cost of an outage: the article's figures, the price table, and a backlog that is full."""

from dataclasses import asdict
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.backlog import queue_spec
from sbpair.errors import NotAuthenticated, UsageError
from sbpair.management import create_queue
from sbpair.management.provisioning import provision
from sbpair.model.cost import EXTRAS, PRICES, MoneyRange, units
from sbpair.model.entities import Queue
from sbpair.model.tiers import BASIC, PREMIUM, STANDARD, Capacity
from sbpair.planning.outage_cost import (
    LONG_POLL_SECONDS,
    BacklogRoom,
    Outage,
    OutageCost,
    PairCapacity,
    cost_of,
    parse_size,
    read_backlog,
    room_of,
    usual_capacities,
)
from sbpair.syphon.run_request import RunTimings
from sbpair.testing import Emulator
from tests.kit.pairs import pair_on
from tests.kit.stranded import numbered, put

FOUR_HOURS = Outage(4 * 3600, 50, 2048)
GB = 1024**3


def cost(outage: Outage = FOUR_HOURS, room: BacklogRoom = room_of(10), tier: str | None = None) -> OutageCost:  # noqa: B008
    return cost_of(outage, room, usual_capacities(tier))


def test_a_watch_receives_as_long_as_the_estimate_says() -> None:
    assert RunTimings().long_poll_seconds == LONG_POLL_SECONDS


@given(st.integers(1, 10**6), st.floats(0.001, 10**6), st.integers(1, 262_144), st.integers(1, 1000))
def test_a_stored_message_has_four_charges_and_is_billed_six_times(
    seconds: int, rate: float, size: int, queues: int
) -> None:
    found = cost_of(Outage(seconds, rate, size), room_of(queues), usual_capacities())
    each = found.backlog.stored * units(size)
    assert [article for _, article, _ in found.charges] == [each] * 4
    assert sum(billed for _, _, billed in found.charges) == 6 * each
    assert found.operations.total == 6 * each + 2 * queues
    assert found.backlog.stored + found.backlog.not_stored == found.outage.messages
    assert found.backlog.stored * size <= found.backlog.room.free_bytes
    assert found.backlog.not_stored == 0 or (found.backlog.stored + 1) * size > found.backlog.room.free_bytes
    for tier in found.tiers:
        for money in (tier.operations, tier.by_sbpair, tier.idle, tier.base):
            assert 0 <= money.minimum <= money.maximum
    assert [each.name for each in found.extras] == list(EXTRAS)
    assert all(0 <= each.price.minimum <= each.price.maximum for each in found.extras)


def test_costs_beside_the_move_have_operations_and_bytes_that_cross() -> None:
    found = {each.name: each for each in cost().extras}
    month = 30 * 86_400 * 50
    assert {name: (each.operations, each.crossing_bytes) for name, each in found.items()} == {
        "bandwidth": (0, 2 * 720_000 * 2048),
        "pings": (240, 0),
        "dead-letters": (2 * 7_200, 7_200 * 2048),
        "active": (3 * month, 2 * month * 2048),
    }
    gigabytes = Decimal(2 * 720_000 * 2048) / GB
    assert found["bandwidth"].price == MoneyRange(gigabytes * Decimal("0.02"), gigabytes * Decimal("0.16"))
    assert found["pings"].price == MoneyRange(Decimal(0), 240 * Decimal("0.0000008"))
    assert cost(tier="premium").extras[1].price == MoneyRange()


def test_pings_are_billed_in_the_primary_and_the_others_in_the_secondary() -> None:
    capacity = PairCapacity(Capacity(PREMIUM, 1), Capacity(STANDARD))
    found = {each.name: each.price for each in cost_of(FOUR_HOURS, room_of(10), [capacity]).extras}
    assert found["pings"].maximum == 240 * Decimal("0.0000008")
    assert found["active"] == MoneyRange(*(cost(tier="premium").extras[3].price.minimum * each for each in (1, 8)))


def test_standard_is_priced_by_operations_and_premium_by_hours() -> None:
    standard, *premium = cost().tiers
    billed = Decimal(6 * 720_000 + 20)
    assert standard.operations == MoneyRange(Decimal(0), billed * Decimal("0.80") / 1_000_000)
    assert standard.by_sbpair.maximum == (Decimal(3 * 720_000) + 20) * Decimal("0.80") / 1_000_000
    assert standard.base == MoneyRange(4 * Decimal("0.0135"), 8 * Decimal("0.0135"))
    assert standard.move_back_seconds == 720_000 / 500
    assert [each.capacity.primary.units for each in premium] == [1, 2, 4, 8, 16]
    for each in premium:
        assert (each.operations, each.idle, each.move_back_seconds) == (MoneyRange(), MoneyRange(), None)
        price = each.capacity.primary.units * Decimal("0.928") * 2 * 4
        assert each.base == MoneyRange(price, price)


def test_two_tiers_each_have_their_own_price() -> None:
    capacity = PairCapacity(Capacity(PREMIUM, 2), Capacity(STANDARD))
    [found] = cost_of(FOUR_HOURS, room_of(10), [capacity]).tiers
    assert found.operations.maximum == PRICES.tariffs["standard"].dearest(3 * 720_000)
    assert found.base.minimum == found.base.maximum == 4 * (2 * Decimal("0.928") + Decimal("0.0135"))
    assert found.move_back_seconds == 720_000 / 500
    basic = PairCapacity(Capacity(STANDARD), Capacity(BASIC))
    assert cost_of(FOUR_HOURS, room_of(10), [basic]).tiers[0].operations.minimum == 3 * 720_000 * Decimal("0.00000005")


def test_a_backlog_is_full_when_its_bytes_are_used() -> None:
    found = cost(Outage(86_400, 100, 100 * 1024))
    assert found.backlog.full_in_seconds == 50 * GB / (100 * 100 * 1024)
    assert found.backlog.full_in_seconds_partitioned == 16 * found.backlog.full_in_seconds
    assert (found.backlog.stored, found.backlog.not_stored) == (50 * GB // 102_400, 8_640_000 - 50 * GB // 102_400)
    assert cost(FOUR_HOURS, tier="premium").backlog.full_in_seconds_partitioned is None
    assert cost(FOUR_HOURS, BacklogRoom(1, GB, partitioned=False)).backlog.full_in_seconds_partitioned is None


def test_bytes_in_use_leave_less_room() -> None:
    half = cost(FOUR_HOURS, BacklogRoom(1, 2 * GB, used_bytes=GB, partitioned=False))
    assert half.backlog.full_in_seconds == GB / (50 * 2048)
    full = cost(FOUR_HOURS, BacklogRoom(1, GB, used_bytes=GB + 1, partitioned=False))
    assert (full.backlog.full_in_seconds, full.backlog.stored, full.backlog.not_stored) == (0, 0, 720_000)
    assert full.operations.total == 2


@pytest.mark.parametrize(
    ("rate", "size", "tier", "notes"),
    [
        (50, 2048, None, []),
        (1, 256 * 1024, None, ["messages of this size may not fit the backlog"]),
        (1, 256 * 1024 + 1, None, ["Standard is left out: its messages have at most 256 KB"]),
        (1001, 1024, None, ["1001 messages a second are more than the 1000 credits of Standard: senders would be"]),
        (1001, 1024, "premium", []),
    ],
)
def test_what_a_tier_cannot_do_is_noted(rate: float, size: int, tier: str | None, notes: list[str]) -> None:
    found = cost(Outage(3600, rate, size), tier=tier)
    assert len(found.notes) == len(notes)
    assert all(note.startswith(start) for note, start in zip(found.notes, notes, strict=True))
    assert (STANDARD in [each.capacity.secondary.tier for each in found.tiers]) is (tier is None and size <= 256 * 1024)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2KB", 2048), ("2", 2048), ("2 kb", 2048), ("500B", 500), ("0.5", 512), ("1MB", 1048576), ("100mb", 104857600)],
)
def test_a_size_has_a_unit_or_is_in_kb(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KB", "-1KB", "0", "0B", "0.0001", "1GB", "101MB", "1e3", "1,5", "2K B", "²KB"])
def test_another_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--size"):
        parse_size(text)


async def test_tiers_sizes_and_bytes_in_use_are_read() -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0, "premium", 1)]) as emulator:
        pair = pair_on(emulator, 3)
        await provision(pair)
        found = await read_backlog(pair)
        assert (found.capacity.secondary.tier, found.capacity.primary.tier) == (PREMIUM, STANDARD)
        assert (found.room, found.notes) == (BacklogRoom(3, 15 * GB, 0, partitioned=False), [])
        assert (found.message_bytes, (await read_backlog(pair, sizes=True)).message_bytes) == (None, None)


async def test_the_mean_size_is_of_the_primary_and_the_backlog() -> None:
    async with Emulator() as emulator:
        await provision(pair_on(emulator, 2))
        emulator.namespaces["contoso"].create_queue("orders")
        for name, path, length in (
            ("contoso", "orders", 3000),
            ("contoso-dr", "contoso/x-servicebus-transfer/1", 1000),
        ):
            put(emulator.namespaces[name].queue(path), numbered(1, "orders", size=length))
        found = await read_backlog(pair_on(emulator, 2), sizes=True)
        assert found.message_bytes is not None
        assert 2000 < found.message_bytes < 2600
        assert (await read_backlog(pair_on(emulator, 2))).message_bytes in range(1000, 1600)


async def test_a_partitioned_queue_has_room_for_its_size_in_every_partition() -> None:
    async with Emulator() as emulator:
        pair = pair_on(emulator, 2)
        await provision(pair)
        await create_queue(pair.secondary, Queue(**asdict(queue_spec("contoso", 2)), enable_partitioning=True))
        assert (await read_backlog(pair)).room == BacklogRoom(3, (5 + 5 + 80) * GB, 0, partitioned=True)


async def test_without_queues_or_permission_the_rest_is_assumed() -> None:
    async with Emulator() as emulator:
        pair = pair_on(emulator, 4)
        found = await read_backlog(pair)
        assert (found.room, found.notes) == (room_of(4), ["contoso-dr has no backlog queues yet; 4 are assumed"])
        for namespace in emulator.namespaces.values():
            namespace.keys = (AuthorizationRule("listen", "key", "other", frozenset({AccessRight.LISTEN})),)
        found = await read_backlog(pair_on(emulator, 4))
        assert (found.capacity.secondary.tier, found.room) == (STANDARD, room_of(4))
        assert [note.split(":")[0] for note in found.notes] == [
            "contoso could not be read, and Standard is assumed",
            "contoso-dr could not be read, and Standard is assumed",
        ]


async def test_a_wrong_key_is_an_error_and_so_is_a_basic_secondary() -> None:
    async with Emulator([("contoso", 0), ("contoso-dr", 0, "basic")]) as emulator:
        pair = pair_on(emulator)
        with pytest.raises(UsageError, match="contoso-dr: a Basic namespace cannot have backlog queues"):
            await read_backlog(pair)
        emulator.namespaces["contoso"].keys = (
            AuthorizationRule("RootManageSharedAccessKey", "key", "other", frozenset(AccessRight)),
        )
        with pytest.raises(NotAuthenticated):
            await read_backlog(pair)
