"""`sbpair cost`: estimates the cost of an outage by `sbpair.planning.outage_cost`."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import PairSelection, flag, option
from sbpair.cli.options.rules import goes_with, seconds_of
from sbpair.cli.options.values import selected_pair
from sbpair.cli.render.screen import Screen, amount, grouped, plural, size, spoken
from sbpair.cli.render.table import columns, wrapped
from sbpair.errors import UsageError
from sbpair.model.cost import EXTRAS, PRICES

if TYPE_CHECKING:
    from sbpair.model.cost import MoneyRange
    from sbpair.model.tiers import Capacity
    from sbpair.planning.outage_cost import OutageCost, TierCost

MAX_COUNT = 1_000


def _seconds(text: str) -> float:
    from sbpair.planning.outage_cost import MAX_SECONDS

    seconds = seconds_of("--outage", text, unit=True)
    if seconds > MAX_SECONDS:
        raise UsageError(f"--outage is {text}, and must be at most 366d", hint="write 4h, 90m or 2d")
    return seconds


def _rate(text: str) -> float:
    from sbpair.move.rate_limit import parse_rate
    from sbpair.planning.outage_cost import MAX_RATE

    rate = parse_rate(text)
    if rate > MAX_RATE:
        raise UsageError(f"--rate is {text}, and must be at most {MAX_RATE}/s", hint="write 50, 30/m or 100/h")
    return rate


def _extras(text: str) -> frozenset[str]:
    named = frozenset(each.strip() for each in text.split(",") if each.strip())
    if unknown := sorted(named - {*EXTRAS}):
        raise UsageError(f"--without: {unknown[0]!r} is not a cost", hint=f"choose from {', '.join(EXTRAS)}")
    return named


def command(
    *,
    outage: float = option("--outage DURATION", "Length of the outage, such as 4h", default=..., parse=_seconds),
    rate: float = option(
        "--rate RATE", "Messages sent meanwhile: 50 a second, 30/m or 100/h", default=..., parse=_rate
    ),
    size_: str | None = option("--size SIZE", "Size of a message: 2KB or 500B [default: the mean, with --live]"),
    tier: Literal["basic", "standard", "premium"] | None = option(
        "--tier TIER", "Only this tier [default: all]", excludes="--live"
    ),
    units: int | None = option("--units N", "Messaging units: 1, 2, 4, 8 or 16 [default: all]", needs="--tier premium"),
    count: int | None = option(
        "--count -n N", "Number of backlog queues [default: 10]", at_least=1, at_most=MAX_COUNT, excludes="--live"
    ),
    without: frozenset[str] = option(
        "--without COST[,COST]", f"Leave out {', '.join(EXTRAS[:-1])} or {EXTRAS[-1]}", default="", parse=_extras
    ),
    live: bool = flag("--live", "Read tiers, backlog queues and sizes of messages from the pair"),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Estimate the cost of an outage, and when the backlog is full.

    Nothing is contacted, unless --live is given: it needs Manage on both namespaces, and assumes what it cannot read.
    Prices are ranges: the minimum applies while a month's included operations last, and between near regions.

    Examples:
      sbpair cost --outage 4h --rate 50 --size 2KB
      sbpair cost --outage 4h --rate 50 --size 2KB --live -o json

    See also: sbpair help planning
    """
    from sbpair.planning import outage_cost

    message_bytes = None if size_ is None else outage_cost.parse_size(size_)
    if round(outage * rate) < 1:
        raise UsageError("no message is sent in such an outage", hint="raise --outage or --rate")
    if units is not None and units not in outage_cost.MESSAGING_UNITS:
        raise UsageError(f"--units is {units}, and must be 1, 2, 4, 8 or 16", hint="leave it out for all of them")
    room, capacities = outage_cost.room_of(count or 10), outage_cost.usual_capacities(tier, units)
    notes: list[str] = []
    if live:
        read = run(outage_cost.read_backlog(selected_pair(connection, screen), sizes=size_ is None))
        room, capacities, notes = read.room, [read.capacity], read.notes
        message_bytes = message_bytes or read.message_bytes
    elif given := [name for name, value in asdict(connection).items() if value is not None]:
        raise goes_with(f"--{given[0]}", "--live")
    if message_bytes is None:
        what = "no message was found, whose size --live could read" if live else "--size is missing"
        raise UsageError(what, hint="add --size 2KB" if live else "add --size 2KB, or --live to read it from the pair")
    planned = outage_cost.Outage(outage, rate, message_bytes)
    found = outage_cost.cost_of(planned, room, capacities, notes)
    found = replace(found, live=live, extras=tuple(each for each in found.extras if each.name not in without))
    screen.show(found, _table(found))
    return 0


def _table(found: "OutageCost") -> Iterator[str]:
    outage = found.outage
    total = size(outage.messages * outage.message_bytes)
    yield from wrapped(
        f"{spoken(outage.seconds)} at {outage.rate:g} messages a second of {size(outage.message_bytes)}:"
        f" {grouped(outage.messages)} messages, {total}"
    )
    yield ""
    whole = tuple(map(sum, zip(*(each[1:] for each in found.charges), strict=True)))
    yield from columns([("CHARGE", "ARTICLE", "BILLED TODAY"), *found.charges, ("in all", *whole)])
    yield ""
    yield from columns([("TIER", "OPERATIONS", "BY SBPAIR", "MOVE BACK", "IDLE 30D", "BASE"), *map(_row, found.tiers)])
    if found.extras:
        yield ""
        rows = [(each.name, each.operations, size(each.crossing_bytes), _money(each.price)) for each in found.extras]
        yield from columns([("BESIDE", "OPERATIONS", "CROSSING", "COST"), *rows])
    for line in (
        *(f"{each.name}: {each.assumption}" for each in found.extras),
        _full(found),
        *_assumptions(found),
        *(f"note: {each}" for each in found.notes),
    ):
        yield from wrapped(line)


def _row(each: "TierCost") -> tuple[str, ...]:
    secondary, primary = map(_tier, each.capacity)
    seconds = each.move_back_seconds
    return (
        secondary if secondary == primary else f"{secondary}, primary {primary}",
        _money(each.operations),
        _money(each.by_sbpair),
        "by network" if seconds is None else spoken(seconds),
        _money(each.idle),
        _money(each.base),
    )


def _tier(capacity: "Capacity") -> str:
    return capacity.tier.name + (f" {capacity.units} MU" if capacity.units else "")


def _money(found: "MoneyRange") -> str:
    least, most = amount(found.minimum), amount(found.maximum)
    return least if least == most else f"{least} to {most}"


def _full(found: "OutageCost") -> str:
    fill, room = found.backlog, found.backlog.room
    whole = "" if room.queues == 1 else " in all"
    text = f"full: {plural(room.queues, 'backlog queue')} of {size(room.max_bytes)}{whole}"
    if room.used_bytes:
        text += f", {size(room.used_bytes)} of it in use,"
    text += f" {'is' if room.queues == 1 else 'are'} full after {spoken(fill.full_in_seconds)}"
    if fill.full_in_seconds_partitioned is not None:
        text += f" (partitioned in Standard: {spoken(fill.full_in_seconds_partitioned)})"
    if fill.not_stored:
        text += (
            f"; {grouped(fill.not_stored)} messages do not fit: their sends fail, or go to the application's outbox,"
            " and add no cost here"
        )
    return text


def _assumptions(found: "OutageCost") -> Iterator[str]:
    yield (
        f"idle: a mover that watches empty queues receives {found.polling.an_hour} times an hour, and"
        f" {grouped(found.polling.in_30_days)} times in 30 days"
    )
    yield (
        f"prices: {PRICES.currency} of {PRICES.dated}, without tax; BASE is due for both namespaces with or without an"
        " outage"
    )
    yield ("assumed: senders use all queues alike, one receiver for each message, no filters; aliases are not counted")
