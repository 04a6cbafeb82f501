"""The limits of each namespace tier: sizes, features, number of entities and partitions.

The figures are the service's own. A Premium namespace has one messaging unit for each of its partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from sbpair.emulator.timespan import MAX_TICKS, TICKS_PER_DAY
from sbpair.errors import UsageError


@dataclass(frozen=True, slots=True)
class EmulatedTier:
    """Limits of one tier. `partitions` are the counts that a namespace can have. `partitioned_entities` have 16."""

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
    """A namespace to create in an emulator. Port 0 is any free one."""

    name: str
    port: int
    tier: str = STANDARD.name
    partitions: int = 1

    def check(self) -> EmulatedTier:
        """Return the tier. Raises UsageError for an unknown tier, or a number of partitions that it does not have."""
        tier = TIERS.get(self.tier.lower())
        if tier is None:
            raise UsageError(
                f"expected basic, standard or premium, got '{self.tier}'", hint="choose the tier of the namespace"
            )
        if self.partitions not in tier.partitions:
            raise UsageError(
                f"a {tier.name} namespace cannot have {self.partitions} partitions",
                hint="use premium with 1, 2 or 4; elsewhere partitioning is chosen for each entity",
            )
        return tier
