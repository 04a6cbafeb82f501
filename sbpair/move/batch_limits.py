"""Limits of the batches that a mover forms: larger ones cost less per message, and leave more held after a kill."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """All in messages.

    `prefetch` are held, besides those of destinations that back off. `min_round` are sent without a wait for more.
    `min_contiguous` deliveries are completed together; from `max_unsettled` accepted ones, all are completed.
    """

    prefetch: int
    min_round: int
    min_contiguous: int
    max_unsettled: int


DEFAULT_BATCH_LIMITS = BatchLimits(prefetch=480, min_round=50, min_contiguous=100, max_unsettled=400)
"""For a worker: larger limits cost memory and gain nothing."""
