"""The files of a run: the lease, the state database, its run record and the journal; and a run while it moves.

Invariant: the lease is taken before anything is written, and released last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sbpair.errors import ExitCode, SbpairError
from sbpair.model.document import encoded
from sbpair.model.pair import sign_in
from sbpair.move.receipt import Tally
from sbpair.move.run_state import RunState
from sbpair.public_names import __version__
from sbpair.runs.control import RunControl
from sbpair.runs.database import RunDatabase, namespace_id, now_ms
from sbpair.runs.file_lease import hold_machine_leases
from sbpair.runs.journal import Journal
from sbpair.runs.run_log import Figures, RunEntry, check_returned, new_id

if TYPE_CHECKING:
    from sbpair.model.pair import Ends
    from sbpair.move.context import Traced
    from sbpair.move.events import SyphonEvent
    from sbpair.move.rate_limit import RateLimiter
    from sbpair.move.receipt import Receipt
    from sbpair.syphon.run_request import RunRequest


@dataclass(slots=True)
class LiveRun:
    """A run as others read it while it moves: given to it before it starts.

    `rate_limiter` is None before the limits are known, and without any. `state` follows from the events of the run.

    `stuck_queues` returns the queues whose workers take no more turns. `has_lease` returns whether no other mover can
    hold the lease at this moment. `halted` is why no run moves now, and another one may follow; "" while one does.
    """

    id: str = field(default_factory=lambda: new_id(now_ms()))
    tally: Tally = field(default_factory=Tally)
    state: RunState = field(default_factory=RunState)
    rate_limiter: RateLimiter | None = None
    traced: Traced | None = None
    stuck_queues: Callable[[], Sequence[str]] = tuple
    has_lease: Callable[[], bool] = lambda: True
    halted: str = ""

    def begin_again(self) -> None:
        """Make it the run that follows one that ended: its readers go on with it."""
        following = LiveRun(traced=self.traced)
        for each in fields(following):
            setattr(self, each.name, getattr(following, each.name))


class RunStore:
    """A context manager for the run `live`. Without a directory no run is recorded, and the journal is in memory.

    `control` has the requests of other processes; None without a directory. `may_send` raises if nothing may be sent,
    for a reason other than this machine's lease.

    Raises LeaseHeld, StateRefused or MachineLacks before anything is moved, and Unsafe for a primary that was lost,
    until a run has `primary_is_back`.
    """

    def __init__(
        self,
        request: RunRequest,
        directory: Path | None,
        live: LiveRun,
        *,
        may_send: Callable[[], None] = lambda: None,
    ) -> None:
        self.run = live.id
        self._tally = live.tally
        self.control: RunControl | None = None
        self._recorded: RunEntry | None = None
        self._last: Receipt | None = None
        self._state = live.state
        self._settings = {**ends_settings(request.ends), **request.settings()}
        self._clock = request.ends.source.clock
        with ExitStack() as stack:
            if request.lease:
                ends, source = request.leased
                check = stack.enter_context(hold_machine_leases(ends, directory, self.run, source))
                may_send = partial(_run_both, check, may_send)
            if directory is None:
                self.journal = Journal(run=self.run, may_send=may_send)
            else:
                self._open(stack, request, directory, may_send)
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
        """Return `on_event`, before which the state of the run takes each event in."""

        def take(event: SyphonEvent) -> None:
            with self._state.lock:
                self._state.take(event, time.monotonic())
            on_event(event)

        return take

    def sample(self, *, last: bool = False) -> None:
        """Add the current figures to the timeline."""
        if self._recorded is not None:
            tally, found = self._tally, self._state
            depth = (found.messages(), found.oldest_ms(), str(found.limit or ""))
            self._recorded.sample(Figures(tally.totals(), tally.sent_to(), *depth), last=last)

    def record(self) -> None:
        """Record the figures, if they have changed."""
        receipt = self._tally.receipt()
        if self._recorded is not None and receipt != self._last:
            self._recorded.record(encoded(receipt))
            self._last = receipt

    def finish(
        self, exit_code: int, receipt: Mapping[str, object] | None = None, *, stopped: bool = False, error: str = ""
    ) -> None:
        """Record how the run ended, with a receipt that names ended doubts: by default that of this moment.

        Leaving the context with an exception records that by itself.
        """
        if self._recorded is not None:
            self.sample(last=True)
            receipt = encoded(self._tally.receipt()) if receipt is None else receipt
            self._recorded.finish(receipt, exit_code, stopped=stopped, error=error)
            self.journal.note_named()

    def _open(self, stack: ExitStack, request: RunRequest, directory: Path, may_send: Callable[[], None]) -> None:
        state = stack.enter_context(RunDatabase(directory, request.owner or request.ends))
        if request.returns_to and not request.primary_is_back:
            check_returned(state, request.returns_to)
        command = f"{request.command} {'--once' if request.once else '--watch'}"
        command += f" --to {request.to}" if request.to else ""
        self._recorded = RunEntry(state, command, run_id=self.run)
        self.describe()
        stack.callback(self._recorded.close)
        self.control = RunControl(state, self.run)
        self.journal = Journal(
            state,
            run=self.run,
            destination_namespace=_destination_of(request, self.run),
            earlier_doubts=self._recorded.earlier_doubts,
            unreported=self._recorded.unreported,
            may_send=may_send,
            service_ms=self._clock.known_ms,
        )
        stack.callback(self.journal.close)


def _destination_of(request: RunRequest, run: str) -> str:
    """Return the name of the destination in a journal. Each run has its own: a file may have been emptied since."""
    if request.keep is not None and request.keep.id:
        return f"{request.keep.id} of run {run}"
    return "no file" if request.keep is not None else namespace_id(request.ends.destination)


def ends_settings(ends: Ends) -> dict[str, object]:
    """Return how a run reaches its namespaces, without secrets, and the version that ran."""
    found: dict[str, object] = {"sbpair": __version__, "pair": ends.name}
    for side, endpoint in (("primary", ends.destination), ("secondary", ends.source)):
        found[side] = endpoint.authority
        found[f"{side}_transport"] = str(endpoint.transport)
        found[f"{side}_sign_in"] = sign_in(endpoint)
    return found


def _run_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
