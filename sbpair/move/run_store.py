"""The files of a run: the lease, the state database, its run record and the journal.

Invariant: the lease is taken before anything is written, and released last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sbpair.errors import ExitCode, SbpairError
from sbpair.runs.database import RunDatabase, now_ms
from sbpair.runs.journal import Journal
from sbpair.runs.lease import hold_machine_leases
from sbpair.runs.run_log import RunEntry, new_id

if TYPE_CHECKING:
    from sbpair.model.pair import Ends
    from sbpair.move.receipt import Receipt


class RunStore:
    """A context manager for one run. Without a directory no run is recorded, and the journal is in memory.

    The lease is that of the pair, or of one `source`: the ends of its move, and its path.

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
        source: tuple[Ends, str] | None = None,
        run: str | None = None,
        may_send: Callable[[], None] = lambda: None,
    ) -> None:
        self.run = run or new_id(now_ms())
        self.journal = Journal(run=self.run, may_send=may_send)
        self._receipt = receipt
        self._recorded: RunEntry | None = None
        self._last: Receipt | None = None
        with ExitStack() as stack:
            if lease:
                of, entity = source or (pair, None)
                check = stack.enter_context(hold_machine_leases(of, directory, self.run, entity))
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

    def record(self) -> None:
        """Record the figures, if they have changed."""
        receipt = self._receipt()
        if self._recorded is not None and receipt != self._last:
            self._recorded.record(receipt.document())
            self._last = receipt

    def finish(self, exit_code: int, *, stopped: bool = False, error: str = "") -> None:
        """Record how the run ended. Leaving the context with an exception records that by itself."""
        if self._recorded is not None:
            self._recorded.finish(self._receipt().document(), exit_code, stopped=stopped, error=error)

    def _open(self, stack: ExitStack, pair: Ends, directory: Path, command: str, may_send: Callable[[], None]) -> None:
        state = stack.enter_context(RunDatabase(directory, pair))
        self._recorded = RunEntry(state, command, run_id=self.run)
        stack.callback(self._recorded.close)
        self.journal = Journal(state, run=self.run, earlier_doubts=self._recorded.earlier_doubts, may_send=may_send)
        stack.callback(self.journal.close)


def _run_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()
