"""The state that all workers of a run share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.model.message_state import ASIDE, parent_path, split_state
from sbpair.model.namespace_clock import ASSUMED_LOCK_SECONDS
from sbpair.syphon.intake_gate import IntakeGate
from sbpair.syphon.run_request import DEFAULT_TIMINGS
from sbpair.syphon.worker_connections import EndStates
from sbpair.timespan import TICKS_PER_SECOND, ticks

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.azure.atom import AtomNamespace
    from sbpair.move.context import MoveContext
    from sbpair.runs.session_lease import SessionLease
    from sbpair.syphon.run_request import RunRequest, RunTimings


@dataclass
class RunPlan:
    """Everything that the workers of a run share.

    `started_at` is when the run began, by the clock of the event loop. `lease` keeps movers on other machines away.
    While `gate` is closed, nothing is received, sent or held.

    Set before anything is received: `get_token`; `control` of the sources' namespace, with the Manage claim there; and
    `source_lock_seconds`, the lock duration of the sources, None if unknown.
    """

    request: RunRequest
    context: MoveContext
    stop: asyncio.Event
    timings: RunTimings = DEFAULT_TIMINGS
    lease: SessionLease | None = None
    gate: IntakeGate = field(default_factory=IntakeGate)
    get_token: GetToken | None = None
    control: AtomNamespace | None = None
    source_lock_seconds: float | None = ASSUMED_LOCK_SECONDS
    started_at: float = field(kw_only=True)
    ends: EndStates = field(default_factory=EndStates)
    in_turn: asyncio.Lock | None = field(init=False)
    """With it, one worker works at a time."""

    def __post_init__(self) -> None:
        # The limit is that of all queues: no worker may receive what another one may still send.
        has_shared_limit = self.request.max_messages is not None and self.request.source is None
        self.in_turn = asyncio.Lock() if has_shared_limit else None

    async def count(self, queue: str) -> int | None:
        """Count the messages of a queue, locked ones included; None if unknown. Raises SbpairError."""
        if self.control is None:
            return None
        self.context.tally.spent("management_calls", 1)
        entity, state = split_state(queue)
        return (await self.control.counts(entity)).of(
            self.request.messages if self.request.messages in ASIDE else state
        )

    async def lock_seconds(self, queue: str) -> float | None:
        """Return the lock duration of a queue; None without the Manage claim. Raises SbpairError."""
        if self.control is None:
            return None
        self.context.tally.spent("management_calls", 1)
        return ticks((await self.control.get(parent_path(queue))).spec.lock_duration) / TICKS_PER_SECOND
