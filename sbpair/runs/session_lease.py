"""The lease that keeps movers of other machines off a pair: a locked session of a queue in the secondary namespace.

Invariant: nothing is sent unless the link that holds the session is open, and the service has confirmed its lock in the
last VALID_SECONDS. The holder writes its name into the session's state, and clears it when it releases the lease. So a
mover that reconnects sees whether another mover held the lease meanwhile, and stops if so. A mover that finds the state
of one that did not release the lease waits VALID_SECONDS: by then the other one sends no more, even if it is alive and
knows nothing of this.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import NamedTuple

from sbpair import backlog
from sbpair.amqp_client.client import AmqpClient, GetToken, SessionReceiver, connect
from sbpair.errors import (
    AccessError,
    EntityMissing,
    LeaseHeld,
    LeaseLost,
    NameInvalid,
    SbpairError,
    ServiceRefused,
    SessionLocked,
    SessionLockLost,
    TimedOut,
    Unavailable,
    Unreachable,
    UsageError,
)
from sbpair.http_tunnel import ask_time
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.pair import Ends
from sbpair.model.retries import Backoff
from sbpair.operating_system import uptime as seconds_since_boot
from sbpair.runs.database import now_ms

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_HELD_HINT = "wait until it ends, or stop it; after a crash its lock expires within 5 minutes"
LEASE_BACKOFF = Backoff(first_seconds=RETRY_SECONDS, max_seconds=30.0)
"""Delay before a failed operation is tried again: the first, and the longest."""

RELEASE_SECONDS = 2.0
"""Limit for releasing the lease; an unreleased one expires by itself."""


@asynccontextmanager
async def hold_lease(
    ends: Ends,
    queue: str,
    run: str,
    *,
    source: str | None = None,
    stop: asyncio.Event | None = None,
    get_token: GetToken | None = None,
    uptime: Callable[[], float] = seconds_since_boot,
) -> AsyncIterator[SessionLease]:
    """Hold the lease of a pair, in a queue of its secondary namespace, until the end of the block.

    With a `source`, hold that of one entity of the secondary.

    Waits VALID_SECONDS if the last mover did not release it. Once `stop` is set it waits for nothing: the lease may
    then not be held, as `check` reports, and nothing is to be sent anyway.

    Raises LeaseHeld if another mover has it, EntityMissing if the queue does not exist, UsageError if it has no
    sessions, AccessError without the Listen claim, Unavailable.
    """
    check_queue(queue)
    holder = LeaseHolder(socket.gethostname(), os.getpid(), run, now_ms())
    location = LeaseLocation(ends.source.name, queue, lease_session_id(ends, source))
    clock = ends.source.clock
    lease = SessionLease(lambda: connect(ends.source, get_token=get_token), location, holder, uptime, clock)
    await ask_time(ends.source)
    keeping = asyncio.create_task(lease.keep(), name=f"keep the lease in {queue}")
    try:
        await _ready(lease, stop or asyncio.Event())
        yield lease
    finally:
        lease.release()
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
        lease.abort()
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


class SessionLease:
    """The right to move the messages of a pair, while `keep` runs. Created by `hold_lease`.

    `error` is why it was lost, else None. `acquired` is done once the lease is held, or cannot be. `renewals` counts
    renewals of its lock.
    """

    def __init__(
        self,
        connecting: Callable[[], AbstractAsyncContextManager[AmqpClient]],
        location: LeaseLocation,
        holder: LeaseHolder,
        uptime: Callable[[], float],
        clock: NamespaceClock,
    ) -> None:
        self._clock = clock
        self.location = location
        self.error: SbpairError | None = None
        self.renewals = 0
        self.acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connecting = connecting
        self._state = holder.encode()
        self._loop = asyncio.get_running_loop()
        self._uptime = uptime
        self._client: AmqpClient | None = None
        self._session: SessionReceiver | None = None
        self._valid_until = LONG_AGO
        self._sure_from = 0.0
        self._renew_at = 0.0
        self._renew_timeout = RETRY_SECONDS
        self._closing = asyncio.Event()
        self._lost = asyncio.Event()

    # For the mover.

    def check(self) -> None:
        """Raise the error that lost the lease, or Unreachable if it is unconfirmed at this moment."""
        if self.error is not None:
            raise self.error
        if not self._is_sure():
            raise Unreachable(f"{self.location} is not confirmed at this moment", hint="sending resumes once it is")

    def confirmed_seconds(self) -> float:
        """Return for how many seconds no other mover can hold the lease, whatever happens; 0 if unconfirmed."""
        if not self._is_sure():
            return 0.0
        now = self._now()
        return min(self._valid_until.loop - now.loop, self._valid_until.awake - now.awake)

    async def ready(self) -> None:
        """Wait until the lease is held and no other mover relies on it. Raises why it cannot be held."""
        await asyncio.shield(self.acquired)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._sure_from):
                raise await self.lost()

    async def lost(self) -> SbpairError:
        """Wait until the lease is lost for good; return why."""
        await self._lost.wait()
        assert self.error is not None  # noqa: S101  set first
        return self.error

    # Maintenance.

    async def keep(self) -> None:
        """Acquire and renew the lease, until `release`. Expected errors are not raised: see `acquired` and `error`."""
        try:
            await self._keep()
        except SbpairError as error:
            self._fail(error)
        except Exception as error:
            self._fail(LeaseLost(f"{self.location} was lost: {type(error).__name__}"))
            raise

    def release(self) -> None:
        self._closing.set()
        if self._session is not None:
            self._session.interrupt()

    def abort(self) -> None:
        if self._client is not None:
            self._client.abort(Unreachable("stopped waiting for an answer"))

    async def _keep(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                async with self._connecting() as self._client:
                    await self._take(self._client)
                    failures = 0
                    await self._renew(self._client)
            except Unavailable as error:
                if not self.acquired.done():
                    raise
                log.info("%s has to be acquired again: %s", self.location, error.message)
            finally:
                self._session = None
            await self._wait_to_retry(failures)
            failures += 1

    async def _wait_to_retry(self, failures: int) -> None:
        seconds = LEASE_BACKOFF.seconds(failures) if failures else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _take(self, client: AmqpClient) -> None:
        asked = self._now()
        try:
            session = await client.session(self.location.queue, self.location.session_id)
        except SessionLocked as error:
            raise await self._held_by_another(client) from error
        before = await client.session_state(self.location.queue, self.location.session_id)
        if not self.acquired.done():
            if before is not None:
                self._sure_from = self._loop.time() + VALID_SECONDS
                whose = LeaseHolder.decode(before) or "another mover"
                log.warning("%s did not release %s: waiting %g s", whose, self.location, VALID_SECONDS)
            await client.set_session_state(session, self._state)
        elif before != self._state:
            raise LeaseHeld(f"{LeaseHolder.decode(before) or 'another mover'} has had it", hint=_HELD_HINT)
        self._confirmed(asked, session.locked_until_ms)
        self._session = session
        if not self.acquired.done():
            self.acquired.set_result(None)

    async def _held_by_another(self, client: AmqpClient) -> SbpairError:
        state: bytes | None = None
        with suppress(ServiceRefused, AccessError):
            state = await client.session_state(self.location.queue, self.location.session_id)
        if state == self._state:
            # Our earlier link: to the service it still exists.
            return Unreachable(f"{self.location} is still held by a connection that broke")
        return LeaseHeld(
            f"{LeaseHolder.decode(state) or 'another mover'} holds {self.location}",
            hint=_HELD_HINT,
        )

    async def _renew(self, client: AmqpClient) -> None:
        """Renew the lock while the link lives, and release it in the end. Raises why the link was lost."""
        session = self._session
        assert session is not None  # noqa: S101  acquired before
        while not self._closing.is_set():
            # No credit, so no message: this ends when the time is over, or the link is lost.
            await session.take(1, seconds=max(0.0, self._renew_at - self._loop.time()))
            if self._closing.is_set():
                break
            await self._renew_once(client, session)
        sure, self._valid_until = self._is_sure(), LONG_AGO
        if sure:
            # Do not clear the state while unsure: the next holder must observe the grace period.
            await client.set_session_state(session, None)
        session.close()

    async def _renew_once(self, client: AmqpClient, session: SessionReceiver) -> None:
        asked = self._now()
        self.renewals += 1
        try:
            async with asyncio.timeout(self._renew_timeout):
                self._confirmed(asked, await client.renew_session(session))
        except TimeoutError:
            if not self._now().is_before(self._valid_until):
                # A silent connection may take minutes to be detected as broken.
                client.abort(TimedOut(f"{self.location} was not renewed in time"))
        except Unavailable as error:
            log.info("%s was not renewed: %s", self.location, error.message)
            self._renew_at = self._loop.time() + min(RETRY_SECONDS, self._renew_timeout)

    def _confirmed(self, asked: ClockReading, until_ms: int) -> None:
        good = valid_seconds(until_ms / 1000 - self._clock.now())
        self._valid_until = asked.plus(good)
        self._renew_at = asked.loop + good / 3
        self._renew_timeout = good / 3

    def _fail(self, error: SbpairError) -> None:
        self._valid_until = LONG_AGO
        if not self.acquired.done():
            self.acquired.set_exception(self._refusal(error))
            self.acquired.exception()  # mark as retrieved: there may be no waiter
        elif not self._closing.is_set():
            self.error = self._loss(error)
            self._lost.set()

    def _refusal(self, error: SbpairError) -> SbpairError:
        if isinstance(error, EntityMissing):
            text = f"the queue of the lease, {self.location.queue!r}, does not exist in {self.location.namespace}"
            return EntityMissing(text, entity=self.location.queue, hint=f"{CREATE} {self.location.queue}")
        if isinstance(error, ServiceRefused):
            return UsageError(
                f"{self.location.queue!r} in {self.location.namespace} cannot carry a lease: {error.message}",
                hint=f"{CREATE} {self.location.queue}",
            )
        return error

    def _loss(self, error: SbpairError) -> SbpairError:
        if isinstance(error, (AccessError, LeaseLost)):
            return error
        why = "its lock expired" if isinstance(error, SessionLockLost) else error.message
        return LeaseLost(f"{self.location} was lost: {why}", hint="start again, unless another mover is running now")

    def _is_sure(self) -> bool:
        if self._session is None or self._session.error is not None or self._loop.time() < self._sure_from:
            return False
        return self._now().is_before(self._valid_until)

    def _now(self) -> ClockReading:
        return ClockReading(self._loop.time(), self._uptime())


VALID_SECONDS = 20.0
"""Maximum validity of a lock's confirmation, however long the lock is: clocks may differ, and the service may drop a
link before the client notices. All movers must agree on it.
"""

MIN_LOCK_SECONDS = 5.0
"""The shortest lock of Service Bus, assumed if the clocks contradict each other: the time could not be asked for."""

MAX_SESSION_ID = 128

CREATE = (
    "create it with sessions and a lock of 30 s or more:"
    " az servicebus queue create --enable-session true --lock-duration PT1M --name"
)


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The holder of a lease, as its session's state names it. `since_ms` is ms since 1970, by the holder's clock."""

    host: str
    pid: int
    run: str
    since_ms: int

    def encode(self) -> bytes:
        return json.dumps({"schema": "sbpair/lease/1", **asdict(self)}).encode()

    @classmethod
    def decode(cls, state: bytes | None) -> LeaseHolder | None:
        """Return the holder, or None for an empty or unreadable state."""
        try:
            found = json.loads(state or b"")
            holder = cls(str(found["host"])[:255], int(found["pid"]), str(found["run"])[:64], int(found["since_ms"]))
            return holder if (holder.host + holder.run).isprintable() and str(holder) else None
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, OSError):
            return None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_ms / 1000))
        return f"process {self.pid} on {self.host} (run {self.run}, since {since} UTC)"


class LeaseLocation(NamedTuple):
    """The address of a lease: a session of a queue of a namespace."""

    namespace: str
    queue: str
    session_id: str

    def __str__(self) -> str:
        return f"the lease of {self.session_id} (queue {self.queue} in {self.namespace})"


class ClockReading(NamedTuple):
    """One moment by two clocks, in seconds: the loop's clock may stop while the machine sleeps."""

    loop: float
    awake: float

    def plus(self, seconds: float) -> ClockReading:
        return ClockReading(self.loop + seconds, self.awake + seconds)

    def is_before(self, other: ClockReading) -> bool:
        """Return whether it is earlier by both clocks."""
        return self.loop < other.loop and self.awake < other.awake


LONG_AGO = ClockReading(float("-inf"), float("-inf"))


def valid_seconds(lock_seconds: float) -> float:
    """Return the validity of a confirmation, counted from its request, for a lock of this length."""
    return min(VALID_SECONDS, max(lock_seconds, MIN_LOCK_SECONDS) * 2 / 3)


def lease_session_id(ends: Ends, source: str | None = None) -> str:
    """Return the session that stands for a pair: its backlog queues' namespace, whatever the pair's local name.

    That of a `source` stands for one entity. Raises NameInvalid.
    """
    if source is not None:
        return source.lower() if len(source) <= MAX_SESSION_ID else sha256(source.lower().encode()).hexdigest()
    name = ends.backlog_of.lower()
    if len(name) > MAX_SESSION_ID:
        raise NameInvalid(f"the name of the primary has more than {MAX_SESSION_ID} characters", hint="shorten it")
    return name


def check_queue(queue: str) -> None:
    """Raise NameInvalid or UsageError for a queue that cannot carry a lease."""
    backlog.check_path(queue, shorten="name the queue as its namespace does")
    if backlog.TRANSFER_SEGMENT in queue.lower().split("/"):
        raise UsageError(f"{queue} is a backlog queue and cannot carry a lease", hint=f"{CREATE} sbpair-lease")
