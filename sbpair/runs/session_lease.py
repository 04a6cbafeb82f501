"""What keeps movers of other machines off a pair: the lock of a session, in a queue of the secondary namespace.

The law: nothing is sent unless the link that the session was lent to is there, and the service has confirmed its lock
in the last GOOD_SECONDS. Whoever takes the session writes into its state who that is, and takes it out in the end. So a
mover that had to connect again knows whether anybody else had it meanwhile: it goes on only where nobody had. And one
that takes the session of a mover that did not give it back waits for GOOD_SECONDS: by then the other one, even if it
lives and has heard of nothing, sends no more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from sbpair.amqp_client.client import connect
from sbpair.errors import (
    AccessError,
    EntityMissing,
    LeaseHeld,
    LeaseLost,
    SbpairError,
    ServiceRefused,
    SessionLocked,
    SessionLockLost,
    TimedOut,
    Unavailable,
    Unreachable,
    UsageError,
)
from sbpair.runs import lease_terms
from sbpair.runs.database import now_ms
from sbpair.runs.lease_terms import (
    CREATE,
    GOOD_SECONDS,
    LONG_AGO,
    ClockReading,
    LeaseHolder,
    LeaseLocation,
    check_queue,
    good_for,
    session_of,
)

if TYPE_CHECKING:
    from sbpair.amqp_client.client import AmqpClient, GetToken
    from sbpair.amqp_client.session_receiver import SessionReceiver
    from sbpair.model.pair import Pair

log = logging.getLogger(__name__)

AGAIN_SECONDS, MAX_AGAIN_SECONDS = 1.0, 30.0
"""When something that failed is tried again, at first and after many times."""

RELEASE_SECONDS = 2.0
"""How long giving the lease back may take: what is not given back runs out by itself."""


@asynccontextmanager
async def hold(
    pair: Pair,
    queue: str,
    run: str,
    *,
    stop: asyncio.Event | None = None,
    get_token: GetToken | None = None,
    uptime: Callable[[], float] = lease_terms.uptime,
) -> AsyncIterator[SessionLease]:
    """Have the lease of a pair, in a queue of its secondary namespace, from here to the end of the block.

    It waits GOOD_SECONDS where the last mover has not given it back. Once `stop` is set it waits for nothing: then it
    may not be ours, as `check` says, and nothing is to be sent anyway.

    Raises LeaseHeld where another mover has it, EntityMissing where there is no such queue, UsageError where it has no
    sessions, AccessError without the Listen claim, Unavailable.
    """
    check_queue(queue)
    holder = LeaseHolder(socket.gethostname(), os.getpid(), run, now_ms())
    place = LeaseLocation(pair.secondary.name, queue, session_of(pair))
    lease = SessionLease(lambda: connect(pair.secondary, get_token=get_token), place, holder, uptime)
    keeping = asyncio.create_task(lease.keep(), name=f"keep the lease in {queue}")
    try:
        await _ready(lease, stop or asyncio.Event())
        yield lease
    finally:
        lease.let_go()
        await _ended(keeping, lease)


async def _ready(lease: SessionLease, stop: asyncio.Event) -> None:
    ready, stopped = asyncio.create_task(lease.ready()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
    finally:
        ready.cancel()
        stopped.cancel()


async def _ended(keeping: asyncio.Task[None], lease: SessionLease) -> None:
    try:
        await asyncio.wait((keeping,), timeout=RELEASE_SECONDS)
    finally:
        lease.break_off()
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


class SessionLease:
    """The right to move the messages of a pair, while `keep` runs. Made by `hold`.

    `error` is why it is lost, and None while it is not. `taken` is done once it is ours, or cannot be. `renewals` is
    how often its lock was renewed.
    """

    def __init__(
        self,
        connecting: Callable[[], AbstractAsyncContextManager[AmqpClient]],
        place: LeaseLocation,
        holder: LeaseHolder,
        uptime: Callable[[], float],
    ) -> None:
        self.place = place
        self.error: SbpairError | None = None
        self.renewals = 0
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connecting = connecting
        self._state = holder.encode()
        self._loop = asyncio.get_running_loop()
        self._uptime = uptime
        self._wire: AmqpClient | None = None
        self._session: SessionReceiver | None = None
        self._good_until = LONG_AGO
        self._sure_from = 0.0
        self._renew_at = 0.0
        self._patience = AGAIN_SECONDS
        self._closing = asyncio.Event()
        self._lost = asyncio.Event()

    # What a mover asks.

    def check(self) -> None:
        """Raise what the loss of the lease was; Unreachable where it is not sure at this moment, and may be soon."""
        if self.error is not None:
            raise self.error
        if not self._is_sure():
            raise Unreachable(f"{self.place} is not confirmed at this moment", hint="it goes on once that is so")

    def sure_for(self) -> float:
        """For how many seconds from now on nobody else relies on having it, whatever is heard of it; 0 where unsure."""
        if not self._is_sure():
            return 0.0
        now = self._now()
        return min(self._good_until.loop - now.loop, self._good_until.awake - now.awake)

    async def ready(self) -> None:
        """Wait until it is ours, and nobody else takes it for theirs. Raises why it cannot be had."""
        await asyncio.shield(self.taken)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._sure_from):
                raise await self.lost()

    async def lost(self) -> SbpairError:
        """Wait until it is lost for good; why."""
        await self._lost.wait()
        assert self.error is not None  # noqa: S101  it is said first
        return self.error

    # What keeps it.

    async def keep(self) -> None:
        """Take it and renew it, until `let_go`. Raises nothing that was expected: `taken` and `error` say it."""
        try:
            await self._keep()
        except SbpairError as error:
            self._fail(error)
        except Exception as error:
            self._fail(LeaseLost(f"{self.place} was lost: {type(error).__name__}"))
            raise

    def let_go(self) -> None:
        """Have it given back."""
        self._closing.set()
        if self._session is not None:
            self._session.interrupt()

    def break_off(self) -> None:
        """Wait for no answer any more."""
        if self._wire is not None:
            self._wire.break_off(Unreachable("no answer was waited for any more"))

    async def _keep(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                async with self._connecting() as self._wire:
                    await self._take(self._wire)
                    failures = 0
                    await self._renew(self._wire)
            except Unavailable as error:
                if not self.taken.done():
                    raise
                log.info("%s has to be taken again: %s", self.place, error.message)
            finally:
                self._session = None
            await self._rest(failures)
            failures += 1

    async def _rest(self, failures: int) -> None:
        seconds = min(MAX_AGAIN_SECONDS, AGAIN_SECONDS * 2 ** min(failures - 1, 16)) if failures else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _take(self, wire: AmqpClient) -> None:
        asked = self._now()
        try:
            session = await wire.session(self.place.queue, self.place.session_id)
        except SessionLocked as error:
            raise await self._held_by_another(wire) from error
        before = await wire.session_state(self.place.queue, self.place.session_id)
        if not self.taken.done():
            self._succeed(before)
            await wire.set_session_state(session, self._state)
        elif before != self._state:
            raise LeaseHeld(f"{LeaseHolder.decode(before) or 'another mover'} has had it")
        self._confirmed(asked, session.locked_until_ms)
        self._session = session
        if not self.taken.done():
            self.taken.set_result(None)

    async def _held_by_another(self, wire: AmqpClient) -> SbpairError:
        state: bytes | None = None
        with suppress(ServiceRefused, AccessError):
            state = await wire.session_state(self.place.queue, self.place.session_id)
        if state == self._state:
            # The link that we had before: to the service it is still there.
            return Unreachable(f"{self.place} is still held by a connection that broke")
        return LeaseHeld(
            f"{LeaseHolder.decode(state) or 'another mover'} holds {self.place}",
            hint="wait for it, or stop it; after a crash it is free once its lock has run out, in 5 minutes at most",
        )

    def _succeed(self, before: bytes | None) -> None:
        if before is not None:
            self._sure_from = self._loop.time() + GOOD_SECONDS
            whose = LeaseHolder.decode(before) or "another mover"
            log.warning("%s did not give %s back: it is waited for, for %g s", whose, self.place, GOOD_SECONDS)

    async def _renew(self, wire: AmqpClient) -> None:
        """Renew the lock for as long as the link is there, and give it back in the end. Raises why it is gone."""
        session = self._session
        assert session is not None  # noqa: S101  it was taken
        while not self._closing.is_set():
            # Nothing ever comes, since nothing is granted: this ends when it is time, or the link is gone.
            await session.take(1, seconds=max(0.0, self._renew_at - self._loop.time()))
            if self._closing.is_set():
                break
            await self._renew_once(wire, session)
        sure, self._good_until = self._is_sure(), LONG_AGO
        if sure:
            # Else somebody else may be, and whoever comes next has to wait for that.
            await wire.set_session_state(session, None)
        session.close()

    async def _renew_once(self, wire: AmqpClient, session: SessionReceiver) -> None:
        asked = self._now()
        self.renewals += 1
        try:
            async with asyncio.timeout(self._patience):
                self._confirmed(asked, await wire.renew_session(session))
        except TimeoutError:
            if not self._now().is_before(self._good_until):
                # A connection over which nothing comes any more may take minutes to be known as broken.
                wire.break_off(TimedOut(f"{self.place} was not renewed in time"))
        except Unavailable as error:
            log.info("%s was not renewed: %s", self.place, error.message)
            self._renew_at = self._loop.time() + min(AGAIN_SECONDS, self._patience)

    def _confirmed(self, asked: ClockReading, until_ms: int) -> None:
        good = good_for((until_ms - now_ms()) / 1000)
        self._good_until = asked.plus(good)
        self._renew_at = asked.loop + good / 3
        self._patience = good / 3

    def _fail(self, error: SbpairError) -> None:
        self._good_until = LONG_AGO
        if not self.taken.done():
            self.taken.set_exception(self._refusal(error))
            self.taken.exception()  # whoever waits for it is told; nobody need be waiting
        elif not self._closing.is_set():
            self.error = self._loss(error)
            self._lost.set()

    def _refusal(self, error: SbpairError) -> SbpairError:
        """Why it could not be had, as whoever asked for it understands it."""
        if isinstance(error, EntityMissing):
            text = f"there is no queue {self.place.queue!r} in {self.place.namespace}, and it was to carry the lease"
            return EntityMissing(text, entity=self.place.queue, hint=f"{CREATE} {self.place.queue}")
        if isinstance(error, ServiceRefused):
            return UsageError(
                f"{self.place.queue!r} in {self.place.namespace} cannot carry a lease: {error.message}",
                hint=f"{CREATE} {self.place.queue}",
            )
        return error

    def _loss(self, error: SbpairError) -> SbpairError:
        if isinstance(error, (AccessError, LeaseLost)):
            return error
        why = "its lock has run out" if isinstance(error, SessionLockLost) else error.message
        return LeaseLost(f"{self.place} was lost: {why}", hint="start again, unless another mover is at work now")

    def _is_sure(self) -> bool:
        if self._session is None or self._session.error is not None or self._loop.time() < self._sure_from:
            return False
        return self._now().is_before(self._good_until)

    def _now(self) -> ClockReading:
        return ClockReading(self._loop.time(), self._uptime())
