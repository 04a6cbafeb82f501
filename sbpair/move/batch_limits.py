"""How much a mover does at a time: the more, the less a message costs, and the more is in hand when it is killed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """All in messages.

    `moving` are in hand beyond those of resting destinations. `round_least` leave without waiting for others: what a
    round costs, they share. `whole` that stand together are worth a settlement, and with `settled` nothing waits any
    more for what stands between.
    """

    prefetch: int
    min_round: int
    min_contiguous: int
    max_unsettled: int


DEFAULT_BATCH_LIMITS = BatchLimits(prefetch=480, min_round=50, min_contiguous=100, max_unsettled=400)
"""Of a lane: more costs memory and gains nothing."""
