"""The files of a run: the lease, the state database, its run record and the journal; and a run while it moves.

Invariant: the lease is taken before anything is written, and released last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sbpair.errors import ExitCode, SbpairError
from sbpair.model.pair import sign_in
from sbpair.move.events import BacklogDepth, LimitChanged
from sbpair.move.receipt import BUCKETS, Tally
from sbpair.public_names import __version__
from sbpair.runs.control import RunControl
from sbpair.runs.database import RunDatabase, now_ms
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.runs.journal import Journal
from sbpair.runs.run_log import Figures, RunEntry, new_id

if TYPE_CHECKING:
    from sbpair.model.pair import Ends
    from sbpair.move.context import Traced
    from sbpair.move.events import SyphonEvent
    from sbpair.move.rate_limit import RateLimiter
    from sbpair.move.receipt import Receipt


@dataclass(slots=True)
class LiveRun:
    """A run as others read it while it moves: given to it before it starts.

    `rate_limiter` is None before the limits are known, and without any.

    `stuck_queues` returns the queues whose workers take no more turns. `has_lease` returns whether no other mover can
    hold the lease at this moment.
    """

    id: str = field(default_factory=lambda: new_id(now_ms()))
    tally: Tally = field(default_factory=Tally)
    rate_limiter: RateLimiter | None = None
    traced: Traced | None = None
    stuck_queues: Callable[[], Sequence[str]] = tuple
    has_lease: Callable[[], bool] = lambda: True


class RunStore:
    """A context manager for one run. Without a directory no run is recorded, and the journal is in memory.

    The lease is that of the pair, or `of` other ends and a source at the secondary one.

    `control` has the requests of other processes; None without a directory.
    `receipt` returns the current figures. `may_send` raises if nothing may be sent, for a reason other than this
    machine's lease. Raises LeaseHeld, StateRefused or MachineLacks before anything is moved.
    """

    def __init__(
        self,
        pair: Ends,
        directory: Path | None,
        command: str,
        receipt: Callable[[], Receipt],
        *,
        lease: bool = True,
        of: tuple[Ends, str | None] | None = None,
        run: str | None = None,
        may_send: Callable[[], None] = lambda: None,
    ) -> None:
        self.run = run or new_id(now_ms())
        self.journal = Journal(run=self.run, may_send=may_send)
        self._receipt = receipt
        self.control: RunControl | None = None
        self._recorded: RunEntry | None = None
        self._last: Receipt | None = None
        self._depth = BacklogDepth()
        self._limit = ""
        self._settings: dict[str, object] = {}
        with ExitStack() as stack:
            if lease:
                ends, source = of or (pair, None)
                check = stack.enter_context(hold_machine_leases(ends, directory, self.run, source))
                may_send = partial(_run_both, check, may_send)
                self.journal = Journal(run=self.run, may_send=may_send)
            if directory is not None:
                self._open(stack, pair, directory, command, may_send)
            self._opened = stack.pop_all()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._opened:
            if isinstance(error, SbpairError):
                self.finish(error.exit_code, error=error.message)
            elif isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
                self.finish(ExitCode.INTERRUPTED, stopped=True)
            elif error is not None:
                self.finish(ExitCode.BUG, error=type(error).__name__)

    def describe(self, **settings: object) -> None:
        """Record options in force, besides those recorded before."""
        self._settings |= settings
        if self._recorded is not None:
            self._recorded.describe(self._settings)

    def observing(self, on_event: Callable[[SyphonEvent], None]) -> Callable[[SyphonEvent], None]:
        """Return `on_event` for a run whose timeline has the depth of its queues."""

        def take(event: SyphonEvent) -> None:
            self._depth.take(event)
            if isinstance(event, LimitChanged):
                self._limit = str(event.limit or "")
            on_event(event)

        return take

    def sample(self, *, last: bool = False) -> None:
        """Add the current figures to the timeline."""
        if self._recorded is not None:
            receipt = self._receipt()
            counts = {name: int(getattr(receipt, name)) for name in ("received", *BUCKETS)}
            depth = (self._depth.messages(), self._depth.oldest_ms())
            self._recorded.sample(Figures(counts, receipt.destinations, *depth, self._limit), last=last)

    def record(self) -> None:
        """Record the figures, if they have changed."""
        receipt = self._receipt()
        if self._recorded is not None and receipt != self._last:
            self._recorded.record(receipt.document())
            self._last = receipt

    def finish(self, exit_code: int, *, stopped: bool = False, error: str = "") -> None:
        """Record how the run ended, with a receipt that names ended doubts.

        Leaving the context with an exception records that by itself.
        """
        if self._recorded is not None:
            self.sample(last=True)
            self._recorded.finish(self._receipt().document(), exit_code, stopped=stopped, error=error)
            self.journal.note_named()

    def _open(self, stack: ExitStack, pair: Ends, directory: Path, command: str, may_send: Callable[[], None]) -> None:
        state = stack.enter_context(RunDatabase(directory, pair))
        self._recorded = RunEntry(state, command, run_id=self.run)
        stack.callback(self._recorded.close)
        self.control = RunControl(state, self.run)
        self.journal = Journal(
            state,
            run=self.run,
            earlier_doubts=self._recorded.earlier_doubts,
            unreported=self._recorded.unreported,
            may_send=may_send,
        )
        stack.callback(self.journal.close)


def ends_settings(ends: Ends) -> dict[str, object]:
    """Return how a run reaches its namespaces, without secrets, and the version that ran."""
    found: dict[str, object] = {"sbpair": __version__, "pair": ends.name}
    for side, endpoint in (("primary", ends.primary), ("secondary", ends.secondary)):
        found[side] = endpoint.authority
        found[f"{side}_transport"] = str(endpoint.transport)
        found[f"{side}_sign_in"] = sign_in(endpoint)
    return found


def _run_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
