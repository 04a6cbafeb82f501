"""Billable operations, and what they cost by a dated table of prices. Pure.

Prices change, and differ by region and contract: every estimate names the date of its table, and is a span. The least
is what it costs while a month's included operations last, the most what it costs once they are used up.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime
from decimal import Decimal
from typing import NoReturn

from sbpair.errors import UsageError

UNIT_BYTES = 64 * 1024
"""A message is billed as one operation for each of these that it begins."""

STAGES = 4
"""How often a message that goes through the backlog is billed as a message: sent to it, received from it, and again."""

MILLION = Decimal(1_000_000)


# Operations -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operations:
    """Billable operations by what they are done for; they add up with `+`.

    `stranded`: messages were sent into the backlog, which has been paid for. `taken`: they are received from it and
    settled in it. `sent`: to the primary. `renewals` of locks, `empty_receives` that nothing came of, and `looks`:
    queues counted, pages peeked at. `delivered`: what one receiver of each message in the primary is going to spend; a
    topic's subscriptions each have their own.
    """

    stranded: int = 0
    taken: int = 0
    sent: int = 0
    delivered: int = 0
    renewals: int = 0
    empty_receives: int = 0
    looks: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def secondary(self) -> int:
        """What a move itself spends where the backlog is."""
        return self.taken + self.renewals + self.empty_receives + self.looks

    @property
    def primary(self) -> int:
        """What a move itself spends where messages are brought back to."""
        return self.sent

    @property
    def own(self) -> int:
        return self.secondary + self.primary

    @property
    def total(self) -> int:
        """From the client that could not reach the primary to the one that receives there in the end."""
        return self.stranded + self.own + self.delivered


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
    return Operations(stranded=both, taken=2 * both, sent=moved, delivered=2 * moved)


# Prices -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """Up to that many operations a month, counted from the first (None: all beyond), a million costs so much."""

    up_to: int | None
    per_million: Decimal


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a namespace of one tier costs. `hourly` is there anyway, and in no estimate; the rest is by operation."""

    hourly: Decimal
    steps: tuple[Step, ...]

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
                Step(13_000_000, Decimal(0)),
                Step(100_000_000, Decimal("0.80")),
                Step(2_500_000_000, Decimal("0.50")),
                Step(None, Decimal("0.20")),
            ),
        ),
        # Its messaging units are paid by the hour, and operations are free.
        "premium": Tariff(Decimal("0.928"), (Step(None, Decimal(0)),)),
        "basic": Tariff(Decimal(0), (Step(None, Decimal("0.05")),)),
    },
)
"""As last seen, in US dollars, without tax; Premium's hour is that of one messaging unit."""


@dataclass(frozen=True, slots=True)
class Span:
    """An amount of money that is not known more exactly."""

    least: Decimal = Decimal(0)
    most: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a move costs. `own` is its own part, `delivered` what receivers in the primary are going to add.

    Both are None where the table has no price for one of the tiers; `dated` is the table's day.
    """

    operations: Operations
    own: Span | None
    delivered: Span | None
    currency: str
    dated: str


def estimate(operations: Operations, *, secondary: str, primary: str, prices: Prices = PRICES) -> Estimate:
    """The price of `operations` in namespaces of these tiers. Those of one tier share what a month includes."""
    own = ((secondary, operations.secondary), (primary, operations.primary))
    return Estimate(
        operations,
        _span(own, prices),
        _span([(primary, operations.delivered)], prices),
        prices.currency,
        prices.dated,
    )


def _span(spent: Iterable[tuple[str, int]], prices: Prices) -> Span | None:
    by_tier: dict[str, int] = {}
    for tier, operations in spent:
        by_tier[tier.lower()] = by_tier.get(tier.lower(), 0) + operations
    if not by_tier.keys() <= prices.tariffs.keys():
        return None
    tariffs = [(prices.tariffs[tier], operations) for tier, operations in by_tier.items()]
    return Span(
        sum((tariff.price(operations) for tariff, operations in tariffs), Decimal(0)),
        sum((tariff.dearest(operations) for tariff, operations in tariffs), Decimal(0)),
    )


# A table of one's own ---------------------------------------------------------------------------

_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)
_KEYS = frozenset({"hourly", "steps", "beyond"})
_HINT = (
    'write date = 2026-10-01, currency = "EUR", and for each tier a table such as'
    " [standard] hourly = 0.0135, steps = [[13000000, 0], [100000000, 0.80]], beyond = 0.50"
)


def read_prices(text: str, place: str) -> Prices:
    """A user's table, in TOML; it stands for the whole of ours. Raises UsageError that begins with `place`.

    `date` and `currency`, and a table for each tier that is to have a price, with `hourly` (0), `steps` (none) of
    `[up to so many operations a month, price of a million]` in rising order, and `beyond`, the price of a million after
    the last step.
    """
    reader = _Reader(place)
    try:
        table = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        reader.refuse(f"it is not TOML: {error}")
    dated, currency = reader.date(table.pop("date", None)), table.pop("currency", None)
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        reader.refuse("currency must be three capital letters in quotes")
    if not table:
        reader.refuse("it has no tier")
    return Prices(dated, currency, {tier: reader.tariff(tier, entries) for tier, entries in table.items()})


@dataclass(frozen=True, slots=True)
class _Reader:
    place: str

    def refuse(self, what: str) -> NoReturn:
        raise UsageError(f"{self.place}: {what}", hint=_HINT)

    def date(self, value: object) -> str:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value.isoformat()
        if not isinstance(value, str) or not _DATE.fullmatch(value):
            self.refuse("date must say of which day its prices are")
        return value

    def tariff(self, tier: str, entries: object) -> Tariff:
        if tier not in PRICES.tariffs:
            self.refuse(f"{tier[:40]!r} is no tier: there are {', '.join(PRICES.tariffs)}")
        if not isinstance(entries, dict):
            self.refuse(f"{tier} must be a table")
        if unknown := entries.keys() - _KEYS:
            self.refuse(f"[{tier}] has an unknown key {min(unknown)[:40]!r}")
        if "beyond" not in entries:
            self.refuse(f"[{tier}] has no price beyond its steps")
        beyond = Step(None, self.amount(entries["beyond"], f"[{tier}] beyond"))
        hourly = self.amount(entries.get("hourly", 0), f"[{tier}] hourly")
        return Tariff(hourly, (*self.steps(tier, entries.get("steps", [])), beyond))

    def steps(self, tier: str, entries: object) -> list[Step]:
        found: list[Step] = []
        for entry in entries if isinstance(entries, list) else [None]:
            if not isinstance(entry, list) or len(entry) != 2 or type(entry[0]) is not int:
                self.refuse(f"[{tier}] steps must be pairs: up to how many operations, and the price of a million")
            if entry[0] <= (found[-1].up_to or 0 if found else 0):
                self.refuse(f"[{tier}] steps must rise, and {entry[0]} does not")
            found.append(Step(entry[0], self.amount(entry[1], f"[{tier}] steps")))
        return found

    def amount(self, value: object, what: str) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            self.refuse(f"{what}: a price must be a number")
        amount = Decimal(value)
        if not amount.is_finite() or amount < 0:
            self.refuse(f"{what}: a price must be a number that is not negative")
        return amount
