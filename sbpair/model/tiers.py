"""Limits of a namespace's tier for its queues and topics: sizes, partitions, features.

Pure. The figures are the service's own. A size is in megabytes, and "chosen" unless called effective.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Annotated

from sbpair.errors import ServiceRefused, UsageError

MEGABYTES = 1024
"""Megabytes of a gigabyte, as the service counts."""
MEGABYTE_BYTES = 1024 * 1024
PARTITIONS = 16
"""Partitions of a partitioned entity, except in Premium."""
PREMIUM_PARTITIONS = (1, 2, 4)
"""Possible partitions of a Premium namespace, chosen at its creation."""


@dataclass(frozen=True, slots=True)
class Tier:
    """`max_partitioned` is the limit of partitioned entities in a namespace; None for no limit.

    `whole_namespace`: partitioning is a property of the namespace, not of an entity. `has_everything` is False for the
    tier without topics and sessions. `message_kilobytes` are the default limit of a message and the largest one;
    `max_days` limits the time to live.
    """

    name: str
    sizes_gb: tuple[int, ...]
    max_partitioned: int | None = None
    whole_namespace: bool = False
    has_everything: bool = True
    message_kilobytes: tuple[int, int] = (256, 256)
    max_days: float = inf


_SMALL = (1, 2, 3, 4, 5)
BASIC = Tier("Basic", _SMALL, max_partitioned=100, has_everything=False, max_days=14)
STANDARD = Tier("Standard", _SMALL, max_partitioned=100)
PREMIUM = Tier("Premium", (*_SMALL, 10, 20, 40, 80), whole_namespace=True, message_kilobytes=(1024, 102_400))
TIERS = (BASIC, STANDARD, PREMIUM)

SMALLEST_TIER_BYTES = 1024 * STANDARD.message_kilobytes[1]
"""The maximum message size of the tiers with the smallest one."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The tier and size of a namespace; None for unknown values.

    Only Premium has messaging `units` and `partitions`; only Resource Manager returns the number of partitions.
    """

    tier: Tier
    units: Annotated[int | None, "Messaging units of a Premium namespace"] = None
    partitions: int | None = None

    @property
    def name(self) -> Annotated[str, "Its tier", {"name": "tier", "enum": ["Basic", "Standard", "Premium"]}]:
        return self.tier.name


def tier_named(name: str) -> Tier:
    """Return the tier of that name. Raises ServiceRefused for an unknown one."""
    for tier in TIERS:
        if tier.name.lower() == name.lower():
            return tier
    raise ServiceRefused(
        f"the namespace has the unknown tier {name[:40]!r}", hint="create its queues and topics in the portal"
    )


def check_size(size_gb: int, tiers: tuple[Tier, ...] = TIERS, where: str = "") -> None:
    """Raise UsageError if none of `tiers` has entities of that size. `where` is for the message."""
    if any(size_gb in tier.sizes_gb for tier in tiers):
        return
    if len(tiers) == 1:
        hint = f"choose {listed(tiers[0].sizes_gb)}{_multiplied(tiers[0])}"
    else:
        more = [size for size in PREMIUM.sizes_gb if size not in STANDARD.sizes_gb]
        hint = f"choose {listed(STANDARD.sizes_gb)}, which Standard has 16 times; on Premium also {listed(more)}"
    raise UsageError(f"a queue or topic{where} cannot have {size_gb} GB", hint=hint)


def effective_megabytes(tier: Tier, megabytes: int, *, partitioned: bool) -> int:
    """Return the effective size of an entity of that chosen size, which the service returns."""
    return megabytes * _factor(tier, partitioned=partitioned)


def chosen_megabytes(tier: Tier, effective: int, *, partitioned: bool) -> int:
    """Return the chosen size of an effective one. An effective size must never be written back."""
    size, rest = divmod(effective, _factor(tier, partitioned=partitioned))
    return effective if rest else size


def partitions_possible(namespace: Capacity, *, partitioned: bool | None) -> tuple[int, ...]:
    """Return the possible numbers of partitions of an entity; a single one if it is known.

    `partitioned` is the service's value for the entity, or for others of its namespace; None if there are none. In
    Premium the number is the namespace's, and divides its messaging units.
    """
    if not namespace.tier.whole_namespace:
        return (PARTITIONS,) if partitioned else (1,)
    if namespace.partitions is not None:
        return (namespace.partitions,)
    # An entity migrated from Standard stays partitioned in a namespace that is not.
    if partitioned is False or namespace.units == 1:
        return (1,)
    fitting = [count for count in PREMIUM_PARTITIONS if not (namespace.units and namespace.units % count)]
    return tuple(count for count in fitting if count > 1 or not partitioned) or (1,)


def _factor(tier: Tier, *, partitioned: bool) -> int:
    return PARTITIONS if partitioned and not tier.whole_namespace else 1


def listed(values: Iterable[object]) -> str:
    """Format several values as `1, 2 or 3`."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}"


def _multiplied(tier: Tier) -> str:
    if tier.whole_namespace:
        return ""
    return f": it has {PARTITIONS} partitions of that size, and 5 makes {5 * PARTITIONS} GB"
