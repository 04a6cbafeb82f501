"""What a message through the backlog is billed, and what that costs by a dated table."""

from dataclasses import fields
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.model.cost import PRICES, UNIT_BYTES, MoneyRange, Operations, estimate, of_units, units
from tests.kit.costs import moved, turned_away

sizes = st.integers(0, 100 * 1024 * 1024)
counts = st.integers(0, 10**11)
operations = st.builds(Operations, **{each.name: st.integers(0, 10**10) for each in fields(Operations)})
tiers = st.sampled_from([*PRICES.tariffs, "Standard", "PREMIUM"])


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 1), (1, 1), (65_535, 1), (65_536, 1), (65_537, 2), (262_144, 4), (262_145, 5)]
)
def test_a_size_counts_in_multiples_of_64_kb(size, expected):
    assert units(size) == expected


@given(sizes)
def test_a_moved_message_costs_six_operations_per_64_kb(size):
    unit = max(1, -(-size // UNIT_BYTES))
    whole = moved(size)
    assert (whole.total, whole.by_sbpair, whole.secondary, whole.primary) == (6 * unit, 3 * unit, 2 * unit, unit)
    # The article counts a receive and its completion as one.
    assert whole.stranded + whole.received // 2 + whole.sent + whole.delivered // 2 == 4 * unit
    assert (turned_away(size).by_sbpair, turned_away(size).total) == (2 * unit, 3 * unit)


@given(st.lists(sizes), st.lists(sizes))
def test_the_cost_of_many_messages_is_the_sum(moving, staying):
    one_by_one = sum(map(turned_away, staying), sum(map(moved, moving), Operations()))
    assert of_units(sum(map(units, moving)), sum(map(units, staying))) == one_by_one


@given(operations, operations)
def test_operations_add_up(one, other):
    both = one + other
    assert both == other + one
    assert both.total == one.total + other.total
    assert both.by_sbpair == one.by_sbpair + other.by_sbpair == both.primary + both.secondary
    assert one + Operations() == one


@given(tiers, counts, counts, counts)
def test_the_price_does_not_depend_on_grouping(tier, after, one, other):
    price = PRICES.tariffs[tier.lower()].price
    assert price(one + other, after=after) == price(one, after=after) + price(other, after=after + one)


@given(tiers, counts, counts)
def test_a_price_is_between_zero_and_the_dearest(tier, after, number):
    tariff = PRICES.tariffs[tier.lower()]
    assert 0 <= tariff.price(number, after=after) <= tariff.dearest(number)
    assert tariff.price(number) <= tariff.price(number + 1)


@pytest.mark.parametrize(
    ("tier", "number", "minimum", "limit"),
    [
        ("standard", 13_000_000, "0", "10.4"),
        ("standard", 14_000_000, "0.8", "11.2"),
        ("standard", 100_000_000, "69.6", "76.1"),
        ("standard", 2_600_000_000, "1289.6", "1292.2"),
        ("premium", 10**12, "0", "0"),
        ("basic", 2_000_000, "0.1", "0.1"),
    ],
)
def test_the_prices_are_those_of_the_table(tier, number, minimum, limit):
    tariff = PRICES.tariffs[tier]
    assert (tariff.price(number), tariff.dearest(number)) == (Decimal(minimum), Decimal(limit))


@given(operations, tiers, tiers)
def test_an_estimate_has_its_date_and_a_range(spent, secondary, primary):
    found = estimate(spent, secondary=secondary, primary=primary)
    assert (found.operations, found.currency, found.dated) == (spent, "USD", PRICES.dated)
    for span in (found.by_sbpair, found.delivered):
        assert 0 <= span.minimum <= span.maximum


def test_namespaces_of_one_tier_share_included_operations():
    spent = Operations(received=10_000_000, sent=10_000_000)
    assert estimate(spent, secondary="Standard", primary="Standard").by_sbpair == MoneyRange(
        Decimal("5.6"), Decimal(16)
    )
    assert estimate(spent, secondary="Standard", primary="Premium").by_sbpair == MoneyRange(Decimal(0), Decimal(8))
    assert estimate(Operations(), secondary="Basic", primary="Basic").by_sbpair == MoneyRange()


def test_a_tier_without_a_price_has_no_estimate():
    found = estimate(moved(1), secondary="Luxury", primary="Standard")
    assert found.by_sbpair is None
    assert found.delivered is not None
