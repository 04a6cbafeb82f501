"""What a namespace's tier lets its queues and topics be: sizes, partitions, features.

Pure. The figures are the service's own. A size is megabytes and "chosen", unless it is called effective.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbpair.errors import ServiceRefused, UsageError

MEGABYTES = 1024
"""Of a gigabyte, as the service counts."""
PARTITIONS = 16
"""Of a partitioned entity, but in Premium."""
PREMIUM_PARTITIONS = (1, 2, 4)
"""That a whole Premium namespace may be in. Which of them is chosen when it is made."""


@dataclass(frozen=True, slots=True)
class Tier:
    """`partitioned_most` is how many partitioned entities a namespace may have; None where there is no such limit.

    `whole_namespace`: partitioning is a property of the namespace, and of no entity of it by itself.
    """

    name: str
    sizes_gb: tuple[int, ...]
    max_partitioned: int | None = None
    whole_namespace: bool = False
    has_everything: bool = True


_SMALL = (1, 2, 3, 4, 5)
BASIC = Tier("Basic", _SMALL, max_partitioned=100, has_everything=False)
STANDARD = Tier("Standard", _SMALL, max_partitioned=100)
PREMIUM = Tier("Premium", (*_SMALL, 10, 20, 40, 80), whole_namespace=True)
TIERS = (BASIC, STANDARD, PREMIUM)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a namespace is. None is what it does not tell, or has not.

    Only Premium has messaging `units` and `partitions`, and Resource Manager alone tells the number of partitions.
    """

    tier: Tier
    units: int | None = None
    partitions: int | None = None


def named(name: str) -> Tier:
    """The tier that a namespace says it is of. Raises ServiceRefused for one that is not known here."""
    for tier in TIERS:
        if tier.name.lower() == name.lower():
            return tier
    raise ServiceRefused(
        f"the namespace is of the tier {name[:40]!r}, and nothing is known of that one here",
        hint="queues and topics can still be made with the portal",
    )


def check_size(size_gb: int, tiers: tuple[Tier, ...] = TIERS, where: str = "") -> None:
    """Raise UsageError where none of `tiers` has entities of that size. `where` is for its message."""
    sizes = sorted({size for tier in tiers for size in tier.sizes_gb})
    if size_gb not in sizes:
        *limit, last = sizes
        raise UsageError(
            f"a queue or topic{where} cannot be of {size_gb} GB",
            hint=f"choose {', '.join(map(str, limit))} or {last}{_multiplied(tiers)}",
        )


def effective_megabytes(tier: Tier, megabytes: int, *, partitioned: bool) -> int:
    """What an entity of that chosen size can hold, and what the service gives back as its size."""
    return megabytes * _factor(tier, partitioned=partitioned)


def chosen_megabytes(tier: Tier, effective: int, *, partitioned: bool) -> int:
    """The size that was asked for, of one that was read; what was read must never be written back as it is."""
    size, rest = divmod(effective, _factor(tier, partitioned=partitioned))
    return effective if rest else size


def partitions_possible(namespace: Capacity, *, partitioned: bool | None) -> tuple[int, ...]:
    """How many partitions an entity may have; one number where it is known.

    `partitioned` is what the service says of the entity, or of the others of its namespace; None where there is none.
    In Premium the number is the namespace's, and divides its messaging units.
    """
    if not namespace.tier.whole_namespace:
        return (PARTITIONS,) if partitioned else (1,)
    if namespace.partitions is not None:
        return (namespace.partitions,)
    # What came from Standard in a migration stays partitioned also in a namespace that is not.
    if partitioned is False or namespace.units == 1:
        return (1,)
    fitting = [count for count in PREMIUM_PARTITIONS if not (namespace.units and namespace.units % count)]
    return tuple(count for count in fitting if count > 1 or not partitioned) or (1,)


def _factor(tier: Tier, *, partitioned: bool) -> int:
    return PARTITIONS if partitioned and not tier.whole_namespace else 1


def _multiplied(tiers: tuple[Tier, ...]) -> str:
    if any(tier.whole_namespace for tier in tiers):
        return ""
    return f": it has {PARTITIONS} partitions of that size, and 5 makes {5 * PARTITIONS} GB"
