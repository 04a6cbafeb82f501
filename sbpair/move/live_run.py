"""A run as others read it while it moves: its id, its counts and its limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from sbpair.move.receipt import Tally
from sbpair.runs.database import now_ms
from sbpair.runs.run_log import new_id

if TYPE_CHECKING:
    from sbpair.move.interface import Destination
    from sbpair.move.rate_limit import RateLimiter

Traced: TypeAlias = "Callable[[str, Destination], Destination]"
"""Wraps the destination of the worker of a queue, to record its sends."""


@dataclass(slots=True)
class LiveRun:
    """Given to a run before it starts. `rate_limiter` is None before the limits are known, and without any.

    `stuck_queues` returns the queues whose workers take no more turns. `has_lease` returns whether no other mover can
    hold the lease at this moment.
    """

    id: str = field(default_factory=lambda: new_id(now_ms()))
    tally: Tally = field(default_factory=Tally)
    rate_limiter: RateLimiter | None = None
    traced: Traced | None = None
    stuck_queues: Callable[[], Sequence[str]] = tuple
    has_lease: Callable[[], bool] = lambda: True
