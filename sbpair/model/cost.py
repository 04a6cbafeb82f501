"""Billable operations, and their cost by a dated table of prices. Pure.

Prices change, and differ by region and contract, so each estimate carries the table's date and is a range. Its minimum
applies while a month's included operations last, its maximum once they are used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Annotated

UNIT_BYTES = 64 * 1024
"""A message is billed as one operation per started unit."""

MILLION = Decimal(1_000_000)

EXTRAS = ("bandwidth", "pings", "dead-letters", "active")
"""Costs beside those of a move: of regions, clients, dead letters, and of active replication in place of a backlog."""


# Operations -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoverOperations:
    """Billable operations of a mover by purpose."""

    received: Annotated[int, "Operations to receive and settle"] = 0
    sent: Annotated[int, "Operations to send"] = 0
    renewals: Annotated[int, "Lock renewals"] = 0
    empty_receives: Annotated[int, "Receives without a message"] = 0
    management_calls: Annotated[int, "Counts and peeks"] = 0

    @property
    def secondary(self) -> int:
        return self.received + self.renewals + self.empty_receives + self.management_calls

    @property
    def primary(self) -> int:
        return self.sent

    @property
    def by_sbpair(self) -> Annotated[int, "All operations of sbpair"]:
        return self.secondary + self.primary


@dataclass(frozen=True, slots=True)
class Operations(MoverOperations):
    """Billable operations by purpose; they add up with `+`.

    `delivered` is the future cost of one receiver of each message; each of a topic's subscriptions adds its own.
    """

    stranded: Annotated[int, "Operations of the applications to send to the backlog, already paid"] = 0
    delivered: Annotated[int, "Operations of the receivers in the primary"] = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def total(self) -> int:
        """All operations, from the client that could not reach the primary to the final receiver."""
        return self.stranded + self.by_sbpair + self.delivered


def units(size: int) -> int:
    """Return how many operations it is to send, receive or settle a message of `size` bytes."""
    return max(1, -(-size // UNIT_BYTES))


def of_units(moved: int, turned_away: int) -> Operations:
    """Return the operations of many messages, from the sums of their `units`.

    A moved one is sent, received and completed twice; one turned away ends in the backlog's dead-letter queue.
    """
    both = moved + turned_away
    return Operations(stranded=both, received=2 * both, sent=moved, delivered=2 * moved)


# Prices -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PriceStep:
    """The price of a million operations, up to `up_to` operations a month (None: all beyond)."""

    up_to: int | None
    per_million: Decimal


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices of a tier's operations, and its base price an hour, which is no part of an estimate.

    In Premium, the base price is that of one messaging unit.
    """

    steps: tuple[PriceStep, ...]
    hourly: Decimal = Decimal(0)

    def price(self, operations: int, *, after: int = 0) -> Decimal:
        """Return the price of operations in a month that already had `after` others."""
        total, begin, end = Decimal(0), 0, after + operations
        for step in self.steps:
            limit = end if step.up_to is None else min(step.up_to, end)
            total += max(0, limit - max(begin, after)) * step.per_million / MILLION
            begin = max(begin, limit)
        return total

    def dearest(self, operations: int) -> Decimal:
        """Return the highest price of the operations, whatever else the month has."""
        begins = (0, *(step.up_to for step in self.steps if step.up_to is not None))
        return max(self.price(operations, after=begin) for begin in begins)


@dataclass(frozen=True, slots=True)
class MoneyRange:
    """Bounds of a cost."""

    minimum: Annotated[Decimal, "Lower bound"] = Decimal(0)
    maximum: Annotated[Decimal, "Upper bound"] = Decimal(0)


@dataclass(frozen=True, slots=True)
class Prices:
    """A table of prices, by tier in lower case, and its date. `gigabyte` is the price of data that leaves a region."""

    dated: str
    currency: str
    tariffs: Mapping[str, Tariff]
    gigabyte: MoneyRange


PRICES = Prices(
    "2026-10",
    "USD",
    {
        "standard": Tariff(
            (
                PriceStep(13_000_000, Decimal(0)),
                PriceStep(100_000_000, Decimal("0.80")),
                PriceStep(2_500_000_000, Decimal("0.50")),
                PriceStep(None, Decimal("0.20")),
            ),
            hourly=Decimal("0.0135"),
        ),
        # Messaging units are billed by the hour; operations are free.
        "premium": Tariff((PriceStep(None, Decimal(0)),), hourly=Decimal("0.928")),
        "basic": Tariff((PriceStep(None, Decimal("0.05")),)),
    },
    # From within Europe or North America, to out of South America.
    gigabyte=MoneyRange(Decimal("0.02"), Decimal("0.16")),
)
"""In US dollars, without tax."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a move. `by_sbpair` is the move's own part, `delivered` that of receivers in the primary.

    Both are None if the table lacks a price for one of the tiers; `dated` is the table's date.
    """

    operations: Operations
    by_sbpair: Annotated[MoneyRange | None, "Operations of sbpair"]
    delivered: Annotated[MoneyRange | None, "Operations of the receivers in the primary"]
    currency: Annotated[str, "Currency"]
    dated: Annotated[str, "Date of the prices"]


def estimate(operations: Operations, *, secondary: str, primary: str) -> Estimate:
    """Return the price of `operations` in namespaces of these tiers. Namespaces of one tier share the included
    operations.
    """
    spent = ((secondary, operations.secondary), (primary, operations.primary))
    delivered = price_range([(primary, operations.delivered)])
    return Estimate(operations, price_range(spent), delivered, PRICES.currency, PRICES.dated)


def price_range(spent: Iterable[tuple[str, int]]) -> MoneyRange | None:
    """Return the price of operations, each number with its tier; None if the table lacks a tier."""
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
