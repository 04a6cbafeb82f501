"""What all lanes of a run share."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.move.guard import Guard
from sbpair.move.journal import Journal
from sbpair.move.receipt import Tally
from sbpair.move.route import TimeToLive
from sbpair.move.stride import USUAL, Stride

if TYPE_CHECKING:
    from sbpair.move.events import SyphonEvent
    from sbpair.move.pace import Pace
    from sbpair.move.route import Key

Cost = Callable[[str], Awaitable[float]]


@dataclass
class Setting:
    """`namespace` is where the backlog is.

    `cost` tells what a message for a destination costs in credits; `now_ms` is in ms since 1970. `refusals` are how
    often the backlog has not let a message be dead-lettered, and why it last did not.
    """

    namespace: str
    tally: Tally = field(default_factory=Tally)
    journal: Journal = field(default_factory=Journal)
    on_event: Callable[[SyphonEvent], None] = lambda _event: None
    stride: Stride = USUAL
    hold: int = 1_000
    hold_bytes: int = 16 * 1024 * 1024
    jitter: Callable[[], float] = random.random
    ordered: bool = True
    ttl: TimeToLive = TimeToLive.ORIGINAL
    pace: Pace | None = None
    cost: Cost | None = None
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    guard: Guard = field(default_factory=Guard)
    refusals: dict[Key, tuple[int, str]] = field(default_factory=dict)
