"""The options of a run, the steps of its ramp, its timings, and its plan, which all its workers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.errors import UsageError
from sbpair.move.context import DEFAULT_MAX_SKIPPED, MAX_MISSING, MoveContext
from sbpair.move.filter import MessageFilter, marked
from sbpair.move.message.dead_letters import is_dead_letter_path, parent_path
from sbpair.move.peek.locked import ASSUMED_LOCK_SECONDS
from sbpair.move.timings import DEFAULT_BACKOFF, DEFAULT_MOVE_TIMINGS, MoveTimings
from sbpair.runs.database import now_ms
from sbpair.syphon.intake_gate import IntakeGate
from sbpair.syphon.worker_connections import PairState
from sbpair.timespan import TICKS_PER_SECOND, ticks

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.retries import Backoff
    from sbpair.runs.session_lease import SessionLease
    from sbpair.syphon.move_spec import MoveLimits, MoveSpec


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


MAX_RAMP = 100_000
"""The limit of a ramp's last step: the ids of its messages are kept in memory."""

OBSERVE_SECONDS = 30.0
RAMP_HINT = "write rising totals of sent messages, as in --ramp 1,10,100"


@dataclass(frozen=True, slots=True)
class RampPlan:
    """`totals` are rising numbers of messages sent since the start, after each of which the run observes.

    Raises UsageError.
    """

    totals: tuple[int, ...]
    observe_seconds: float = OBSERVE_SECONDS

    def __post_init__(self) -> None:
        for before, total in zip((0, *self.totals), self.totals, strict=False):
            if mistake := _mistake(total, before):
                raise UsageError(f"ramp: {mistake}", hint=RAMP_HINT)
        if not self.totals or not self.observe_seconds > 0:
            raise UsageError("a ramp needs a step, and a time to observe", hint=RAMP_HINT)


def read_totals(text: str, limit: int | None = None) -> tuple[int, ...]:
    """Return the totals of `1,10,100`, at most the `limit` of --max. Raises UsageError, with the place of a mistake."""
    totals: list[int] = []
    at = 0
    for part in text.split(","):
        word, before = part.strip(), totals[-1] if totals else 0
        mistake = "expected a number" if not word else f"{word[:20]!r} is not a whole number"
        if word.isascii() and word.isdecimal():
            number = int(word) if len(word) < 10 else MAX_RAMP + 1
            mistake = _mistake(number, before) or _beyond(number, limit)
            totals.append(number)
        if mistake:
            place = at + len(part) - len(part.lstrip())
            error = UsageError(f"--ramp: {mistake} (column {place + 1})", hint=RAMP_HINT)
            error.excerpt = marked(text, place)
            raise error
        at += len(part) + 1
    return tuple(totals)


def _mistake(total: int, before: int) -> str:
    if total < 1:
        return f"{total} is not at least 1"
    if total > MAX_RAMP:
        return f"a step is at most {MAX_RAMP} messages"
    return "" if total > before else f"{total} is not greater than {before} before it"


def _beyond(total: int, limit: int | None) -> str:
    return "" if limit is None or total <= limit else f"a step of {total} is never reached: --max is {limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """How a run moves messages.

    `ordered` keeps the order of a queue's messages for a destination. `limits` bound the rate, and select the time to
    live; None is as fast as possible. At most `max_held` messages are held for destinations that back off.

    After `max_missing` dead-lettered messages of a destination that the primary lacks, its other messages stay in the
    backlog, unless `allow_missing`. So do those of a topic that no subscription of it takes, and all behind them, after
    `max_discard` such messages; None sends them all. Without the Manage claim on the primary, that is not known, and
    they are sent.

    With `where`, only messages are moved for which that filter is true. The others are `skipped`: kept locked until the
    run ends, at most `max_skipped` of them, and released with their delivery counts unchanged. A run with `once` waits
    for messages that others have locked; without `wait_for_locks` it leaves them, and counts them as `locked`.

    A worker that has lost a connection ends the other one and opens both again. If `reconnect` is False,
    ConnectionFaulted ends it, and a watch as a whole. With `sample_seconds`, `on_event` also gets the progress of
    destinations, and with the Manage claim the depth of each queue, at most that often. With `count_remaining`, a run
    that may leave messages counts them in the end.
    """

    ordered: bool = True
    limits: MoveLimits | None = None
    max_held: int = 1_000
    max_missing: int = MAX_MISSING
    allow_missing: bool = False
    max_discard: int | None = 0
    where: MessageFilter | None = None
    max_skipped: int = DEFAULT_MAX_SKIPPED
    wait_for_locks: bool = True
    reconnect: bool = True
    ramp: RampPlan | None = None
    sample_seconds: float | None = None
    count_remaining: bool = False
    timings: RunTimings | None = None


DEFAULT_OPTIONS = MoveOptions()


@dataclass
class RunPlan:
    """Everything that the workers of a run share.

    `started_ms` is when the run began, in ms since 1970. `lease` keeps movers on other machines away. While `gate` is
    closed, nothing is received, sent or held.

    Set before anything is received: `get_token`; `control` of the sources' namespace, with the Manage claim there; and
    `source_lock_seconds`, the lock duration of the sources, None if unknown.
    """

    once: bool
    context: MoveContext
    stop: asyncio.Event
    spec: MoveSpec
    options: MoveOptions = DEFAULT_OPTIONS
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
