"""The plan of a run, which all its workers share, and its timings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.move.context import DEFAULT_BACKOFF, DEFAULT_MOVE_TIMINGS, MoveTimings
from sbpair.move.raw_source import LOCK_SECONDS
from sbpair.syphon.intake_gate import IntakeGate
from sbpair.syphon.worker_connections import PairState

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.model.backoff import Backoff
    from sbpair.move.context import MoveContext
    from sbpair.runs.session_lease import SessionLease
    from sbpair.syphon.move_spec import MoveSpec

Count = Callable[[str], Awaitable[int]]
LockSeconds = Callable[[str], Awaitable[float]]


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


@dataclass(frozen=True)
class RunPlan:
    """Everything that the workers of a run share.

    `count` returns how many messages a queue has, locked ones included, and `lock_seconds` its lock duration; None
    without the Manage claim. `source_lock_seconds` is that of the sources, None if unknown. `wait_for_locks` is whether
    `--once` waits for messages that others have locked.
    `started_ms` is when the run began, in ms since 1970. `reconnect` is whether a lost connection is opened again.
    `lease` keeps movers on other machines away. While `gate` is closed, nothing is received, sent or held. With
    `in_turn`, one worker works at a time.
    """

    once: bool
    context: MoveContext
    stop: asyncio.Event
    spec: MoveSpec
    get_token: GetToken | None
    started_ms: int
    count: Count | None = None
    lock_seconds: LockSeconds | None = None
    source_lock_seconds: float | None = LOCK_SECONDS
    reconnect: bool = True
    wait_for_locks: bool = True
    lease: SessionLease | None = None
    timings: RunTimings = DEFAULT_TIMINGS
    sides: PairState = field(default_factory=PairState)
    gate: IntakeGate = field(default_factory=IntakeGate)
    in_turn: asyncio.Lock | None = None
