"""What a namespace's tier allows: sizes, features, how many entities, and which partitions. Plain data.

The figures are the service's own. Premium is one messaging unit for each partition of its namespace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from sbpair.emulator.timespan import MAX_TICKS, TICKS_PER_DAY
from sbpair.errors import UsageError


@dataclass(frozen=True, slots=True)
class EmulatedTier:
    """`partitions` are those that a whole namespace can have; `partitioned_entities` have 16 of their own."""

    name: str
    sizes_in_megabytes: tuple[int, ...]
    default_message_kilobytes: int
    max_message_kilobytes: int
    entities: int
    partitioned_entities: int
    partitions: tuple[int, ...]
    has_all_features: bool = True
    max_ttl: int = MAX_TICKS


_GIGABYTES: Final = (1024, 2048, 3072, 4096, 5120)
_MORE_GIGABYTES: Final = (10_240, 20_480, 40_960, 81_920)

BASIC: Final = EmulatedTier("Basic", _GIGABYTES, 256, 256, 10_000, 100, (1,), False, 14 * TICKS_PER_DAY)
STANDARD: Final = EmulatedTier("Standard", _GIGABYTES, 256, 256, 10_000, 100, (1,))
PREMIUM: Final = EmulatedTier("Premium", _GIGABYTES + _MORE_GIGABYTES, 1024, 102_400, 1_000, 0, (1, 2, 4))

TIERS: Final = {tier.name.lower(): tier for tier in (BASIC, STANDARD, PREMIUM)}


class RequestedNamespace(NamedTuple):
    """A namespace that an emulator is to have. Port 0 is any free one."""

    name: str
    port: int
    tier: str = STANDARD.name
    partitions: int = 1

    def check(self) -> EmulatedTier:
        """The tier by its name; UsageError where there is none, or where it has no such number of partitions."""
        tier = TIERS.get(self.tier.lower())
        if tier is None:
            raise UsageError(f"'{self.tier}' is no tier of a namespace", hint="use basic, standard or premium")
        if self.partitions not in tier.partitions:
            raise UsageError(
                f"a {tier.name} namespace cannot have {self.partitions} partitions",
                hint="use premium with 1, 2 or 4; elsewhere partitioning is chosen for each entity",
            )
        return tier
