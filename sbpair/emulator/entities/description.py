"""The description of a queue: its properties with their defaults, and the values derived from them. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from sbpair.emulator.clock import NEVER
from sbpair.emulator.timespan import MAX_TICKS, TICKS_PER_MINUTE, TICKS_PER_MS

if TYPE_CHECKING:
    from sbpair.emulator.access.sas import AuthorizationRule
    from sbpair.emulator.entities.namespace_tiers import EmulatedTier

MEGABYTE: Final = 1024 * 1024
PARTITIONS: Final = 16
INT32_MAX: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The properties that a client can set, with the defaults of a Standard namespace. Durations are ticks."""

    lock_duration: int = TICKS_PER_MINUTE
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: int = MAX_TICKS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: int = 10 * TICKS_PER_MINUTE
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    status: str = "Active"
    forward_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle: int = MAX_TICKS
    enable_partitioning: bool = False
    forward_dead_lettered_messages_to: str | None = None
    enable_express: bool = False
    max_message_size_in_kilobytes: int = 256
    partitions: int = 1
    """The partitions of the namespace: no client sets it, and sizes are not multiplied by it."""

    @property
    def lock_ms(self) -> int:
        return max(1, self.lock_duration // TICKS_PER_MS)

    @property
    def ttl_ms(self) -> int:
        """The time to live; NEVER for TimeSpan.MaxValue."""
        ticks = self.default_message_time_to_live
        return NEVER if ticks == MAX_TICKS else ticks // TICKS_PER_MS

    @property
    def partition_count(self) -> int:
        return PARTITIONS if self._has_own_partitions else self.partitions

    @property
    def _has_own_partitions(self) -> bool:
        return self.enable_partitioning and self.partitions == 1

    @property
    def auto_delete_on_idle_ms(self) -> int:
        return NEVER if self.auto_delete_on_idle == MAX_TICKS else self.auto_delete_on_idle // TICKS_PER_MS

    @property
    def duplicate_detection_window_ms(self) -> int:
        return self.duplicate_detection_history_time_window // TICKS_PER_MS

    @property
    def total_size_in_megabytes(self) -> int:
        """The size that the service reports: each of a partitioned entity's 16 partitions has the requested size."""
        return self.max_size_in_megabytes * (PARTITIONS if self._has_own_partitions else 1)


D = TypeVar("D", bound=QueueDescription)


def default_of(description: D, tier: EmulatedTier) -> D:
    """Return `description` with the defaults of a tier."""
    return replace(
        description,
        default_message_time_to_live=tier.max_ttl,
        max_message_size_in_kilobytes=tier.default_message_kilobytes,
    )
