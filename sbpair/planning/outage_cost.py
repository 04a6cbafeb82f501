"""Cost of an outage by tier: its messages' operations, the base price, idle polling, other costs, and when it is full.

Pure. Messages that no longer fit the backlog cost nothing: they are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, NamedTuple

from sbpair import backlog
from sbpair.azure import open_namespace
from sbpair.backlog import queue_spec
from sbpair.errors import NetworkRefused, NotAuthorized, Unavailable, UsageError
from sbpair.model import cost, tiers
from sbpair.model.cost import PRICES, MoneyRange, Operations
from sbpair.model.document import SPREAD, document
from sbpair.model.pair import Endpoint, Pair
from sbpair.model.queues import QueueState
from sbpair.model.tiers import BASIC, MEGABYTES, PARTITIONS, PREMIUM, STANDARD, Capacity
from sbpair.move.rate_limit import NAMESPACE_CREDITS, credits_of

LONG_POLL_SECONDS = 900
"""A mover that watches an empty queue receives so long: 10 queues are 40 receives an hour."""

MONTH_DAYS = 30
HOUR, DAY = 3_600, 86_400
MESSAGING_UNITS = (1, 2, 4, 8, 16)
MESSAGE_BYTES = {BASIC.name: 256 * 1024, STANDARD.name: 256 * 1024, PREMIUM.name: 100 * 1024 * 1024}
"""The largest message of each tier."""

PING_SECONDS, DEAD_SHARE = 60, 100
ALIAS_BYTES = 1024
"""A message of the backlog is larger by its aliases, and a path alone may have 260 characters."""

MAX_SECONDS, MAX_RATE = 366 * DAY, 1_000_000
QUEUE_MEGABYTES = queue_spec("any", 0).max_size_in_megabytes

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(b|kb|mb)?", re.ASCII | re.IGNORECASE)
_SIZE_BYTES = {"b": 1, "kb": 1024, "mb": 1024 * 1024}
_SIZE_HINT = "write 2KB, 500B or 1MB; a bare number is in KB"


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage, in which applications send messages."""

    seconds: Annotated[float, "Its length"]
    rate: Annotated[float, "Messages a second"]
    message_bytes: Annotated[int, "Size of a message"]

    @property
    def messages(self) -> Annotated[int, "Messages that are sent"]:
        return round(self.seconds * self.rate)

    @property
    def units(self) -> Annotated[int, "Operations that one send or receive of a message is billed as"]:
        return cost.units(self.message_bytes)


@dataclass(frozen=True, slots=True)
class BacklogRoom:
    """The queues of a backlog."""

    queues: Annotated[int, "Number of queues"] = 10
    max_bytes: Annotated[int, "Size of all of them"] = 10 * QUEUE_MEGABYTES * MEGABYTES * 1024
    used_bytes: Annotated[int, "Bytes in use"] = 0
    partitioned: Annotated[bool | None, "Whether they are partitioned; null if they were not read"] = None

    @property
    def free_bytes(self) -> int:
        return max(0, self.max_bytes - self.used_bytes)


class BacklogFill(NamedTuple):
    """The backlog queues in the outage.

    `full_in_seconds_partitioned` is that of partitioned queues in Standard; None without Standard, and for known ones.
    """

    room: Annotated[BacklogRoom, SPREAD]
    full_in_seconds: Annotated[float, "Time from the start of the outage until all are full"]
    full_in_seconds_partitioned: Annotated[float | None, "The same for partitioned queues of Standard; null if known"]
    stored: Annotated[int, "Messages that fit"]
    not_stored: Annotated[int, "Messages that do not fit"]


class StageCharge(NamedTuple):
    """A charge of the stored messages."""

    stage: Annotated[str, "Stage", {"examples": ["sent to the backlog"]}]
    article: Annotated[int, "Operations by the documentation of the feature: one for each stage"]
    billed: Annotated[int, "Operations billed today: a receive and its completion are two"]


class Polling(NamedTuple):
    """The receives of a mover that watches empty queues."""

    an_hour: Annotated[int, "In an hour"]
    in_30_days: Annotated[int, "In 30 days"]


class PairCapacity(NamedTuple):
    """The tiers of the two namespaces."""

    secondary: Annotated[Capacity, "The secondary"]
    primary: Annotated[Capacity, "The primary"]


@dataclass(frozen=True, slots=True)
class TierCost:
    """The cost of an outage in namespaces of these tiers."""

    capacity: Annotated[PairCapacity, SPREAD]
    operations: Annotated[MoneyRange, "Operations of every message, from its sender to its receiver"]
    by_sbpair: Annotated[MoneyRange, "Those of sbpair"]
    idle: Annotated[MoneyRange, "Polling of empty queues for 30 days"]
    base: Annotated[MoneyRange, "Due by the hour, with or without an outage"]
    move_back_seconds: Annotated[float | None, "Time to move the messages back; null if only the network limits it"]


@dataclass(frozen=True, slots=True)
class ExtraCost:
    """A cost beside that of the move, in all tiers of the estimate."""

    name: Annotated[str, "One of bandwidth, pings, dead-letters and active"]
    operations: Annotated[int, "Billable operations"]
    crossing_bytes: Annotated[int, "Bytes that leave a region for the other one"]
    price: Annotated[MoneyRange, "Its cost"]
    assumption: Annotated[str, "Its assumption"]


@document("sbpair/cost/1")
class OutageCost:
    """The cost of an outage. JSON Lines have the document."""

    outage: Annotated[Outage, "The outage"]
    backlog: Annotated[BacklogFill, "The backlog queues"]
    operations: Annotated[Operations, "Billable operations"]
    tiers: Annotated[tuple[TierCost, ...], "The cost by tier"]
    extras: Annotated[tuple[ExtraCost, ...], "The costs beside those of the move"] = ()
    notes: Annotated[tuple[str, ...], "Remarks and assumptions"] = ()
    live: Annotated[bool, "Whether tiers and queues were read from the pair"] = False
    currency: Annotated[str, "Currency"] = PRICES.currency
    dated: Annotated[str, "Date of the prices"] = PRICES.dated

    @property
    def polling(self) -> Annotated[Polling, "Receives of a mover that watches empty queues"]:
        return Polling(*(_polls(self.backlog.room, seconds) for seconds in (HOUR, MONTH_DAYS * DAY)))

    @property
    def charges(self) -> Annotated[tuple[StageCharge, ...], "The four charges of the stored messages"]:
        each = self.backlog.stored * self.outage.units
        return (
            StageCharge("sent to the backlog", each, each),
            StageCharge("received from the backlog", each, 2 * each),
            StageCharge("sent to the primary", each, each),
            StageCharge("received from the primary", each, 2 * each),
        )


def room_of(queues: int) -> BacklogRoom:
    """Return the room of so many backlog queues, as they are provisioned."""
    return BacklogRoom(queues, queues * QUEUE_MEGABYTES * MEGABYTES * 1024)


def usual_capacities(tier: str | None = None, units: int | None = None) -> list[PairCapacity]:
    """Return pairs of one tier each: Standard, and Premium by messaging units; with `tier` and `units`, only those.

    Raises UsageError for a tier that cannot have backlog queues.
    """
    if tier == BASIC.name.lower():
        raise basic_refused("--tier basic")
    found = [Capacity(STANDARD), *(Capacity(PREMIUM, each) for each in MESSAGING_UNITS)]
    return [
        PairCapacity(each, each)
        for each in found
        if tier in (None, each.tier.name.lower()) and (units is None or each.units == units)
    ]


def basic_refused(what: str) -> UsageError:
    return UsageError(
        f"{what}: a Basic namespace cannot have backlog queues: it keeps no message for more than 14 days",
        hint="use Standard or Premium for the secondary",
    )


def cost_of(
    outage: Outage, room: BacklogRoom, capacities: Sequence[PairCapacity], notes: Sequence[str] = ()
) -> OutageCost:
    """Return the cost of an outage in pairs of these capacities. Raises UsageError if none can have such messages."""
    possible = [each for each in capacities if outage.message_bytes <= _message_bytes(each)]
    if not possible:
        limit = max(map(_message_bytes, capacities)) // 1024
        raise UsageError(
            f"--size is {outage.message_bytes // 1024} KB, and a message has at most {limit} KB in this tier",
            hint="make the messages smaller" if any(_is_premium(each) for each in capacities) else "use Premium",
        )
    stored = min(outage.messages, room.free_bytes // outage.message_bytes)
    filling = outage.rate * outage.message_bytes
    fill_seconds = room.free_bytes / filling
    operations = cost.of_units(stored * outage.units, 0)
    operations += Operations(empty_receives=room.queues, management_calls=room.queues)
    standard = any(STANDARD in [side.tier for side in each] for each in possible)
    partitioned = PARTITIONS * fill_seconds if standard and room.partitioned is None else None
    return OutageCost(
        outage=outage,
        backlog=BacklogFill(room, fill_seconds, partitioned, stored, outage.messages - stored),
        operations=operations,
        tiers=tuple(_tier_cost(each, outage, stored, operations, _polls(room, MONTH_DAYS * DAY)) for each in possible),
        extras=tuple(_extras(outage, stored, possible)),
        notes=(*notes, *_remarks(outage, capacities)),
    )


def parse_size(text: str) -> int:
    """Parse `2KB`, `500B` or `1MB` to bytes; a bare number is in KB. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--size: expected a size such as 2KB, got {text[:40]!r}", hint=_SIZE_HINT)
    found = int(Decimal(match[1]) * _SIZE_BYTES[(match[2] or "kb").lower()])
    limit = MESSAGE_BYTES[PREMIUM.name]
    if not 1 <= found <= limit:
        raise UsageError(f"--size is {text.strip()}, and must be from 1B to {limit >> 20}MB", hint=_SIZE_HINT)
    return found


def _tier_cost(capacity: PairCapacity, outage: Outage, stored: int, operations: Operations, polls: int) -> TierCost:
    secondary, primary = (each.tier.name for each in capacity)
    rates = [rate for tier in (secondary, primary) if (rate := credits_of(None, tier)) is not None]
    return TierCost(
        capacity=capacity,
        operations=_price(
            (secondary, operations.stranded + operations.secondary),
            (primary, operations.primary + operations.delivered),
        ),
        by_sbpair=_price((secondary, operations.secondary), (primary, operations.primary)),
        idle=_price((secondary, polls)),
        base=_base(capacity, Decimal(outage.seconds) / HOUR),
        move_back_seconds=stored / min(rates) if rates else None,
    )


def _extras(outage: Outage, stored: int, capacities: Sequence[PairCapacity]) -> Iterator[ExtraCost]:
    """Yield the costs of `cost.EXTRAS`. A message in another region crosses twice: when sent and when received."""
    month, dead = round(outage.rate * MONTH_DAYS * DAY), -(-stored // DEAD_SHARE)
    each, pings = outage.units, -(-int(outage.seconds) // PING_SECONDS)
    for name, operations, crossings, side, assumption in (
        ("bandwidth", 0, 2 * stored, 0, "regions differ, and each message crosses twice: to the backlog, and back"),
        ("pings", pings, 0, 1, "one a minute, of one client for one failed entity; each further one adds its own"),
        ("dead-letters", 2 * dead * each, dead, 0, f"1 of {DEAD_SHARE} messages is dead-lettered, and redriven later"),
        ("active", 3 * month * each, 2 * month, 0, f"active replication for {MONTH_DAYS} days, without a backlog"),
    ):
        gigabytes = Decimal(crossings * outage.message_bytes) / 2**30
        billed = [_price((capacity[side].tier.name, operations)) for capacity in capacities]
        price = MoneyRange(
            min(money.minimum for money in billed) + gigabytes * PRICES.gigabyte.minimum,
            max(money.maximum for money in billed) + gigabytes * PRICES.gigabyte.maximum,
        )
        yield ExtraCost(name, operations, crossings * outage.message_bytes, price, assumption)


def _polls(room: BacklogRoom, seconds: int) -> int:
    return room.queues * seconds // LONG_POLL_SECONDS


def _price(*spent: tuple[str, int]) -> MoneyRange:
    found = cost.price_range(spent)
    assert found is not None  # noqa: S101  # for the type checker: the table has every tier
    return found


def _base(capacity: PairCapacity, hours: Decimal) -> MoneyRange:
    """Return the base price of both namespaces. Standard's is billed once a subscription, or for each namespace."""
    prices = [PRICES.tariffs[each.tier.name.lower()].hourly * (each.units or 1) * hours for each in capacity]
    standard = [price for price, each in zip(prices, capacity, strict=True) if each.tier is STANDARD]
    return MoneyRange(sum(prices, Decimal(0)) - sum(standard[1:], Decimal(0)), sum(prices, Decimal(0)))


def _remarks(outage: Outage, capacities: Sequence[PairCapacity]) -> list[str]:
    found = []
    smallest = min(map(_message_bytes, capacities))
    standard = any(not _is_premium(each) for each in capacities)
    if outage.message_bytes > smallest:
        found.append(f"Standard is left out: its messages have at most {smallest // 1024} KB")
    elif outage.message_bytes > smallest - ALIAS_BYTES:
        found.append("messages of this size may not fit the backlog, where their aliases enlarge them")
    if standard and outage.rate > NAMESPACE_CREDITS:
        rate = f"{outage.rate:g} messages a second are more than the {NAMESPACE_CREDITS:.0f} credits of Standard"
        found.append(f"{rate}: senders would be slowed down")
    return found


def _message_bytes(capacity: PairCapacity) -> int:
    return min(MESSAGE_BYTES[each.tier.name] for each in capacity)


def _is_premium(capacity: PairCapacity) -> bool:
    return all(each.tier is tiers.PREMIUM for each in capacity)


@dataclass(slots=True)
class LiveBacklog:
    """The tiers, the room and the mean size of messages of a pair as read, and a note for each assumption."""

    capacity: PairCapacity
    room: BacklogRoom
    message_bytes: int | None = None
    notes: list[str] = field(default_factory=list)


async def read_backlog(pair: Pair, *, sizes: bool = False) -> LiveBacklog:
    """Read a pair's tiers and backlog queues, and for `sizes` the primary's queues. Needs Manage.

    What cannot be read is assumed, with a note. Raises UsageError if the secondary is a Basic namespace, AccessError
    for a wrong key.
    """
    notes: list[str] = []
    primary, sending = await _read(pair.primary, "" if sizes else None, notes)
    secondary, queues = await _read(pair.secondary, backlog.prefix(pair.primary.name), notes)
    if secondary.tier is BASIC:
        raise basic_refused(pair.secondary.name)
    room = room_of(pair.backlog_queues)
    if queues:
        megabytes = sum(each.spec.max_size_in_megabytes for each in queues)
        used = sum(each.usage.size_bytes or 0 for each in queues if each.usage)
        partitioned = any(each.partitioned for each in queues)
        room = BacklogRoom(len(queues), megabytes * MEGABYTES * 1024, used, partitioned)
    elif queues is not None:
        notes.append(f"{pair.secondary.name} has no backlog queues yet; {room.queues} are assumed")
    return LiveBacklog(PairCapacity(secondary, primary), room, _mean_bytes([*(sending or ()), *(queues or ())]), notes)


def _mean_bytes(queues: Sequence[QueueState]) -> int | None:
    """Return the mean size of the messages in these queues; None without messages."""
    sizes = [(each.usage.size_bytes or 0, each.counts.total) for each in queues if each.usage and each.counts]
    messages = sum(total for _, total in sizes)
    return max(1, sum(size for size, _ in sizes) // messages) if messages else None


async def _read(endpoint: Endpoint, prefix: str | None, notes: list[str]) -> tuple[Capacity, list[QueueState] | None]:
    """Return a namespace's tier, and its queues under `prefix`; None if these are unknown."""
    try:
        async with open_namespace(endpoint) as control:
            capacity = await control.capacity()
            return capacity, await control.list_under(prefix, counts=True) if prefix is not None else None
    except (NetworkRefused, NotAuthorized, Unavailable) as error:
        notes.append(f"{endpoint.name} could not be read, and {STANDARD.name} is assumed: {error.message}")
        return Capacity(STANDARD), None
