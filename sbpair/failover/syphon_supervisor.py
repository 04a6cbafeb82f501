"""A syphon beside a paired client, for as long as the client is open. The law: what goes wrong with it is an event, is
tried again, and is nothing that the application has to deal with.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sbpair.errors import LeaseHeld, SbpairError, UsageError
from sbpair.failover.events import SyphonFaulted
from sbpair.syphon import runner

if TYPE_CHECKING:
    from sbpair.failover.failover_state import FailoverState
    from sbpair.model.pair import Pair
    from sbpair.move.events import SyphonEvent
    from sbpair.syphon.limits import MoveLimits
    from sbpair.syphon.runner import SyphonResult

FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 1.0, 300.0
LEASE_WAIT_SECONDS = 30.0
"""How often it is seen whether another mover has ended."""

CLOSE_SECONDS = 5.0
"""How long what is in flight is waited for when the client is closed; then it is left in doubt, and locks go back."""

HURRY_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SyphonOptions:
    """As `sbpair.syphon.run` has them. `on_event` is told what the syphon does, in its thread or task."""

    state: Path | None = None
    lease_queue: str | None = None
    limits: MoveLimits | None = None
    max_held: int = 1_000
    ordered: bool = True
    allow_missing: bool = False
    on_event: Callable[[SyphonEvent], None] = lambda _event: None


class SyphonSupervisor:
    """Runs a syphon again and again, until `stop` is set. To be made in the loop that runs it."""

    def __init__(self, pair: Pair, options: SyphonOptions, tell: Callable[[SyphonFaulted], object]) -> None:
        self._pair = pair
        self._options = options
        self._tell = tell
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.result: SyphonResult | None = None

    async def run(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while True:
            began = time.monotonic()
            fault = await self._once()
            if self.stop.is_set():
                return
            if time.monotonic() - began > wait:
                wait = FIRST_WAIT_SECONDS
            seconds = LEASE_WAIT_SECONDS if isinstance(fault, LeaseHeld) else wait
            self._tell(SyphonFaulted(_line(fault), seconds))
            wait = min(wait * 2, MAX_WAIT_SECONDS)
            if await self._stopped_within(seconds):
                return

    async def _once(self) -> Exception:
        """Why it has ended."""
        options = self._options
        try:
            self.result = await runner.run(
                self._pair,
                once=False,
                stop=self.stop,
                hurry=self.hurry,
                on_event=options.on_event,
                max_held=options.max_held,
                state=options.state,
                lease_queue=options.lease_queue,
                ordered=options.ordered,
                limits=options.limits,
                allow_missing=options.allow_missing,
            )
        except SbpairError as error:
            return error
        except Exception as error:
            log.exception("the syphon has failed in a way that nobody expected")
            return error
        failures = self.result.failures
        return failures[0][1] if failures else SbpairError("it has ended")

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self.stop.wait()
        except TimeoutError:
            return False


def _line(error: Exception) -> str:
    return error.message if isinstance(error, SbpairError) else f"unexpected {type(error).__name__}"


class RunningSyphon(Protocol):
    @property
    def running(self) -> bool: ...


S = TypeVar("S", bound=RunningSyphon)


class SyphonMixin(Generic[S]):
    """What a client has that may have a syphon beside it. `_begun` makes one that is at work."""

    pair: Pair
    known: FailoverState
    _closed: bool
    _syphon: S | None = None

    def _begun(self, options: SyphonOptions) -> S:
        raise NotImplementedError

    def syphon(
        self,
        *,
        state: Path | None = None,
        lease_queue: str | None = None,
        limits: MoveLimits | None = None,
        max_held: int = 1_000,
        ordered: bool = True,
        allow_missing: bool = False,
        on_event: Callable[[SyphonEvent], None] = lambda _event: None,
    ) -> S:
        """Bring the backlog back, in a thread or a task, until the client is closed or the syphon is stopped.

        With `state`, a directory, what it moves is written down, and it waits while another process of this machine
        moves the pair with the same directory; with `lease_queue` while one of any machine does. It is tried again
        whatever ends it, and the client's `on_event` is told (SyphonFaulted). Raises UsageError where there is one.
        """
        if self._closed:
            raise ValueError("the client has been closed: make another one")
        if self._syphon is not None and self._syphon.running:
            raise UsageError("this client has a syphon already", hint="one brings all of the backlog back")
        self._syphon = self._begun(
            SyphonOptions(state, lease_queue, limits, max_held, ordered, allow_missing, on_event)
        )
        return self._syphon
