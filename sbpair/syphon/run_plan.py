"""The plan of a run, which all its workers share, and its timings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.model.durations import ticks
from sbpair.move.context import DEFAULT_BACKOFF, DEFAULT_MOVE_TIMINGS, MoveTimings
from sbpair.move.message.dead_letters import is_dead_letter_path, parent_path
from sbpair.move.peek.locked import ASSUMED_LOCK_SECONDS
from sbpair.runs.database import now_ms
from sbpair.syphon.intake_gate import IntakeGate
from sbpair.syphon.worker_connections import PairState
from sbpair.timespan import TICKS_PER_SECOND

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.backoff import Backoff
    from sbpair.move.context import MoveContext
    from sbpair.runs.session_lease import SessionLease
    from sbpair.syphon.move_spec import MoveSpec


@dataclass(frozen=True, slots=True)
class RunTimings:
    """`backoff` is for connections. `long_poll_seconds`: how long a receive waits on an idle queue in a watch.

    `count_wait_seconds`: how long `--once` waits for a message before each count or peek. `empty_wait_seconds`: how
    long it waits for held messages.
    `report_seconds` and `destinations_seconds`: how often progress is emitted, at most. `stuck_seconds`: longer than
    any wait of a worker whose namespaces can be reached.
    """

    backoff: Backoff = DEFAULT_BACKOFF
    long_poll_seconds: float = 900.0
    empty_wait_seconds: float = 5.0
    count_wait_seconds: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0)
    report_seconds: float = 0.25
    destinations_seconds: float = 1.0
    stuck_seconds: float = 1_080.0
    move: MoveTimings = DEFAULT_MOVE_TIMINGS


DEFAULT_TIMINGS = RunTimings()


@dataclass
class RunPlan:
    """Everything that the workers of a run share.

    `wait_for_locks` is whether `--once` waits for messages that others have locked. `started_ms` is when the run began,
    in ms since 1970. `reconnect` is whether a lost connection is opened again. `lease` keeps movers on other machines
    away. While `gate` is closed, nothing is received, sent or held.

    Set before anything is received: `get_token`; `control` of the sources' namespace, with the Manage claim there; and
    `source_lock_seconds`, the lock duration of the sources, None if unknown.
    """

    once: bool
    context: MoveContext
    stop: asyncio.Event
    spec: MoveSpec
    reconnect: bool = True
    wait_for_locks: bool = True
    lease: SessionLease | None = None
    timings: RunTimings = DEFAULT_TIMINGS
    gate: IntakeGate = field(default_factory=IntakeGate)
    get_token: GetToken | None = None
    control: AtomNamespace | None = None
    source_lock_seconds: float | None = ASSUMED_LOCK_SECONDS
    started_ms: int = field(default_factory=now_ms)
    sides: PairState = field(default_factory=PairState)
    in_turn: asyncio.Lock | None = field(init=False)
    """With it, one worker works at a time."""

    def __post_init__(self) -> None:
        # The limit is that of all queues: no worker may receive what another one may still send.
        has_shared_limit = self.spec.max_messages is not None and self.spec.source is None
        self.in_turn = asyncio.Lock() if has_shared_limit else None

    async def count(self, queue: str) -> int | None:
        """Count the messages of a queue, locked ones included; None without the Manage claim. Raises SbpairError."""
        if self.control is None:
            return None
        self.context.tally.spent("management_calls", 1)
        counts = await self.control.counts(parent_path(queue))
        return counts.dead_letter if is_dead_letter_path(queue) else counts.active

    async def lock_seconds(self, queue: str) -> float | None:
        """Return the lock duration of a queue; None without the Manage claim. Raises SbpairError."""
        if self.control is None:
            return None
        self.context.tally.spent("management_calls", 1)
        return ticks((await self.control.get(parent_path(queue))).spec.lock_duration) / TICKS_PER_SECOND
