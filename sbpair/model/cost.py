"""Billable operations, and what they cost by a dated table of prices. Pure.

Prices change, and differ by region and contract: every estimate names the date of its table, and is a span. The least
is what it costs while a month's included operations last, the most what it costs once they are used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal

UNIT_BYTES = 64 * 1024
"""A message is billed as one operation for each of these that it begins."""

STAGES = 4
"""How often a message that goes through the backlog is billed as a message: sent to it, received from it, and again."""

MILLION = Decimal(1_000_000)


# Operations -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operations:
    """Billable operations by what they are done for; they add up with `+`.

    `stranded`: messages were sent into the backlog, which has been paid for. `received`: they are received from it and
    settled in it. `sent`: to the primary. `renewals` of locks, `empty_receives` that nothing came of, and
    `management_calls`: queues counted, pages peeked at. `delivered`: what one receiver of each message in the
    primary is going to spend; a topic's subscriptions each have their own.
    """

    stranded: int = 0
    received: int = 0
    sent: int = 0
    delivered: int = 0
    renewals: int = 0
    empty_receives: int = 0
    management_calls: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def secondary(self) -> int:
        """What a move itself spends where the backlog is."""
        return self.received + self.renewals + self.empty_receives + self.management_calls

    @property
    def primary(self) -> int:
        """What a move itself spends where messages are brought back to."""
        return self.sent

    @property
    def by_sbpair(self) -> int:
        return self.secondary + self.primary

    @property
    def total(self) -> int:
        """From the client that could not reach the primary to the one that receives there in the end."""
        return self.stranded + self.by_sbpair + self.delivered


def units(size: int) -> int:
    """How many operations it is to send or receive a message of `size` bytes; to settle it is billed alike."""
    return max(1, -(-size // UNIT_BYTES))


def moved(size: int) -> Operations:
    """A message that goes the whole way: send, receive and complete, send, receive and complete."""
    return of_units(units(size), 0)


def turned_away(size: int) -> Operations:
    """A message that ends in the backlog's dead-letter queue."""
    return of_units(0, units(size))


def of_units(moved: int, turned_away: int) -> Operations:
    """The same of many messages, whose `units` have been added up."""
    both = moved + turned_away
    return Operations(stranded=both, received=2 * both, sent=moved, delivered=2 * moved)


# Prices -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PriceStep:
    """Up to that many operations a month, counted from the first (None: all beyond), a million costs so much."""

    up_to: int | None
    per_million: Decimal


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a namespace of one tier costs. `hourly` is there anyway, and in no estimate; the rest is by operation."""

    hourly: Decimal
    steps: tuple[PriceStep, ...]

    def price(self, operations: int, *, after: int = 0) -> Decimal:
        """What so many operations cost in a month in which there have been `after` others."""
        total, begin, end = Decimal(0), 0, after + operations
        for step in self.steps:
            limit = end if step.up_to is None else min(step.up_to, end)
            total += max(0, limit - max(begin, after)) * step.per_million / MILLION
            begin = max(begin, limit)
        return total

    def dearest(self, operations: int) -> Decimal:
        """The most that so many operations can cost, whatever else there is in the month."""
        begins = (0, *(step.up_to for step in self.steps if step.up_to is not None))
        return max(self.price(operations, after=begin) for begin in begins)


@dataclass(frozen=True, slots=True)
class Prices:
    """A table of prices, by tier in lower case, and the day on which it was true."""

    dated: str
    currency: str
    tariffs: Mapping[str, Tariff]


PRICES = Prices(
    "2026-10",
    "USD",
    {
        "standard": Tariff(
            Decimal("0.0135"),
            (
                PriceStep(13_000_000, Decimal(0)),
                PriceStep(100_000_000, Decimal("0.80")),
                PriceStep(2_500_000_000, Decimal("0.50")),
                PriceStep(None, Decimal("0.20")),
            ),
        ),
        # Its messaging units are paid by the hour, and operations are free.
        "premium": Tariff(Decimal("0.928"), (PriceStep(None, Decimal(0)),)),
        "basic": Tariff(Decimal(0), (PriceStep(None, Decimal("0.05")),)),
    },
)
"""As last seen, in US dollars, without tax; Premium's hour is that of one messaging unit."""


@dataclass(frozen=True, slots=True)
class MoneyRange:
    """An amount of money that is not known more exactly."""

    minimum: Decimal = Decimal(0)
    maximum: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a move costs. `by_sbpair` is its own part, `delivered` what receivers in the primary are going to add.

    Both are None where the table has no price for one of the tiers; `dated` is the table's day.
    """

    operations: Operations
    by_sbpair: MoneyRange | None
    delivered: MoneyRange | None
    currency: str
    dated: str


def estimate(operations: Operations, *, secondary: str, primary: str) -> Estimate:
    """The price of `operations` in namespaces of these tiers. Those of one tier share what a month includes."""
    spent = ((secondary, operations.secondary), (primary, operations.primary))
    return Estimate(
        operations,
        _span(spent),
        _span([(primary, operations.delivered)]),
        PRICES.currency,
        PRICES.dated,
    )


def _span(spent: Iterable[tuple[str, int]]) -> MoneyRange | None:
    by_tier: dict[str, int] = {}
    for tier, operations in spent:
        by_tier[tier.lower()] = by_tier.get(tier.lower(), 0) + operations
    if not by_tier.keys() <= PRICES.tariffs.keys():
        return None
    tariffs = [(PRICES.tariffs[tier], operations) for tier, operations in by_tier.items()]
    return MoneyRange(
        sum((tariff.price(operations) for tariff, operations in tariffs), Decimal(0)),
        sum((tariff.dearest(operations) for tariff, operations in tariffs), Decimal(0)),
    )
