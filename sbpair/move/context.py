"""What all lanes of a run share."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.move.batch_limits import DEFAULT_BATCH_LIMITS, BatchLimits
from sbpair.move.message.route import TimeToLive
from sbpair.move.receipt import Tally
from sbpair.move.wrong_primary import WrongPrimaryBreaker
from sbpair.runs.journal import Journal

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.events import SyphonEvent
    from sbpair.move.rate_limit import RateLimiter

Cost = Callable[[str], Awaitable[float]]


@dataclass
class MoveContext:
    """`namespace` is where the backlog is.

    `cost` tells what a message for a destination costs in credits; `now_ms` is in ms since 1970. `refusals` are how
    often the backlog has not let a message be dead-lettered, and why it last did not.
    """

    namespace: str
    tally: Tally = field(default_factory=Tally)
    journal: Journal = field(default_factory=Journal)
    on_event: Callable[[SyphonEvent], None] = lambda _event: None
    batch_limits: BatchLimits = DEFAULT_BATCH_LIMITS
    max_held: int = 1_000
    max_held_bytes: int = 16 * 1024 * 1024
    jitter: Callable[[], float] = random.random
    ordered: bool = True
    ttl: TimeToLive = TimeToLive.ORIGINAL
    rate_limiter: RateLimiter | None = None
    send_cost: Cost | None = None
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    breaker: WrongPrimaryBreaker = field(default_factory=WrongPrimaryBreaker)
    dead_letter_refusals: dict[Key, tuple[int, str]] = field(default_factory=dict)
