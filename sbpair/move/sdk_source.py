"""The backlog's side of the engine on azure-servicebus: a queue, received from and settled one message at a time.

The law: somebody always receives while there is credit. What comes while nobody does, the SDK gives back, and then it
comes again behind what came later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sbpair.backlog import AliasError
from sbpair.bus import decoded
from sbpair.bus.data_errors import is_unused
from sbpair.bus.data_plane import QueueReceiver, open_receiver
from sbpair.errors import EngineLacks, InDoubt, SbpairError, Unavailable
from sbpair.move.clocks import LockClock, Now
from sbpair.move.engine import Seen
from sbpair.move.patience import Patience
from sbpair.move.route import NO_KEY, Facts

if TYPE_CHECKING:
    from sbpair.bus.decoded import Received
    from sbpair.model import Endpoint
    from sbpair.move.engine import Arrival, Failures
    from sbpair.move.route import Key

AT_ONCE = 100
"""How many messages are asked for, and how many settlements wait for their answers, at a time."""

POLL_SECONDS = 900.0

PAGE = 100

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class SdkArrival:
    facts: Facts
    lock_until: float
    message: Received
    partition_key: str | None = None
    key: Key = NO_KEY

    @property
    def turn(self) -> int:
        return self.facts.sequence_number


class SdkSource:
    """To be had from `open_source`."""

    def __init__(self, receiver: QueueReceiver, endpoint: Endpoint, queue: str, now: Now = time.time) -> None:
        self.queue = queue
        self.error: SbpairError | None = None
        self._receiver = receiver
        self._endpoint = endpoint
        self._clock = LockClock(now)
        self._loop = asyncio.get_running_loop()
        self._come: deque[SdkArrival] = deque()
        self._wanted = self._unsettled = 0
        self._careful = self._interrupted = False
        self._may, self._told, self._gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._patience = Patience()
        self._receiving: asyncio.Task[None] | None = None

    @property
    def clock_ahead_ms(self) -> int:
        return self._clock.ahead_ms

    @property
    def service_ms(self) -> int | None:
        return self._clock.service_ms

    @property
    def broken(self) -> SbpairError | None:
        """The SDK makes a new connection for a link that is gone, and for a message that it cannot read."""
        return self.error if isinstance(self.error, Unavailable) and not self._is_unused() else None

    async def lost(self) -> None:
        await self._gone.wait()

    def break_off(self, error: SbpairError) -> None:
        self._end(error)
        self._patience.end(error)

    def grant(self, most: int) -> None:
        self._wanted = most - len(self._come)
        self._may.set()
        if self.error is None and (self._receiving is None or self._receiving.done()):
            self._look()
            self._start()

    async def reopen(self) -> bool:
        if not self._is_unused():
            return False
        self.error = None
        return True

    def interrupt(self) -> None:
        self._interrupted = True
        self._told.set()

    async def take(self, most: int, *, seconds: float) -> list[SdkArrival]:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self._come or self._interrupted or self.error):
                    self._told.clear()
                    await self._told.wait()
        self._interrupted = False
        self._look()
        if self.error is not None and not self._come:
            raise self.error
        return [self._come.popleft() for _ in range(min(most, len(self._come)))]

    async def stop(self) -> None:
        await self.close()
        left = list(self._come)
        self._come.clear()
        if failures := await self.release(left):
            log.info("%d messages of %s were not released: %s", len(failures), self.queue, failures[0][1])

    async def complete(self, arrivals: Sequence[Arrival]) -> Failures:
        return await self._settle(self._receiver.complete, arrivals)

    async def release(self, arrivals: Sequence[Arrival]) -> Failures:
        return await self._settle(self._receiver.abandon, arrivals)

    async def dead_letter(self, arrival: Arrival, reason: str, description: str) -> None:
        async def settle(message: Received) -> None:
            await self._receiver.dead_letter(message, reason, description)

        for _, error in await self._settle(settle, [arrival]):
            raise error

    async def renew(self, arrivals: Sequence[Arrival]) -> None:
        mine = cast("Sequence[SdkArrival]", arrivals)
        for start in range(0, len(mine), AT_ONCE):
            chunk = mine[start : start + AT_ONCE]
            answers = await asyncio.gather(*map(self._renewed, chunk), return_exceptions=True)
            for answer in answers:
                if answer is not None:
                    raise answer

    async def pages(self) -> AsyncIterator[list[Seen]]:
        # By a receiver of its own: where the SDK cannot read what it sees, it closes what it has looked with.
        start = 0
        async with open_receiver(self._endpoint, self.queue) as receiver:
            try:
                while found := await self._peeked(receiver, start):
                    yield found
                    start = found[-1].sequence_number + 1
            except EngineLacks:
                # There is something, and nobody knows more of it.
                yield [Seen(start, 0, deferred=False)]

    async def _peeked(self, receiver: QueueReceiver, start: int) -> list[Seen]:
        async with self._patience.waiting():
            found = await receiver.peek(start, PAGE)
        return [Seen(number, decoded.enqueued_at(each), deferred=deferred) for number, each, deferred in found]

    # Receiving, beside everything else.

    def _start(self) -> None:
        self._receiving = asyncio.create_task(self._receive(), name=f"receive from {self.queue}")
        self._receiving.add_done_callback(lambda _: self.interrupt())

    async def _receive(self) -> None:
        """Take in what is granted, until cancelled or nothing more can come."""
        while self.error is None:
            most = self._receivable()
            if most == 0:
                self._may.clear()
                await self._may.wait()
                continue
            try:
                # Without a turn of the loop between two calls: see the law of this file.
                messages = await self._receiver.receive(most, POLL_SECONDS)
            except EngineLacks as error:
                # It takes those along that came just before, and the link: they come again, one by one.
                if self._careful:
                    self._end(error)
                self._careful = True
            except SbpairError as error:
                self._end(error)
            else:
                self._wanted -= len(messages)
                self._unsettled += len(messages)
                self._come.extend(map(self._arrival, messages))
            self._told.set()

    async def close(self) -> None:
        """Raises what went wrong with receiving, if that was a mistake."""
        task = self._receiving
        while task is not None and not task.done():
            # The SDK now and then misses that it is cancelled.
            task.cancel()
            await asyncio.wait([task], timeout=1.0)
        self._look()

    def _receivable(self) -> int:
        if self._careful:
            return min(1, max(0, self._wanted)) if not self._unsettled else 0
        return max(0, min(self._wanted, AT_ONCE))

    def _end(self, error: SbpairError) -> None:
        self.error = self.error or error
        self._told.set()
        if self.broken is not None:
            self._gone.set()

    def _is_unused(self) -> bool:
        return self.error is not None and is_unused(self.error.__cause__)

    def _look(self) -> None:
        task = self._receiving
        if task is not None and task.done() and not task.cancelled():
            task.result()

    # Small things.

    async def _settle(self, settle: Callable[[Received], Awaitable[None]], arrivals: Sequence[Arrival]) -> Failures:
        failures: Failures = []
        for start in range(0, len(arrivals), AT_ONCE):
            chunk = arrivals[start : start + AT_ONCE]
            answers = await asyncio.gather(*(self._settled(settle, each) for each in chunk))
            failures += [(each, error) for each, error in zip(chunk, answers, strict=True) if error is not None]
        return failures

    async def _settled(self, settle: Callable[[Received], Awaitable[None]], arrival: Arrival) -> SbpairError | None:
        if self.error is not None:
            return InDoubt(f"settling in {self.queue!r}: the connection is gone ({self.error.message})")
        try:
            async with self._patience.waiting():
                await settle(cast("SdkArrival", arrival).message)
        except (Unavailable, EngineLacks) as error:
            return InDoubt(f"settling in {self.queue!r}: no answer came ({error.message})", hint=error.hint)
        except SbpairError as error:
            return error
        finally:
            self._unsettled -= 1
            self._may.set()
        return None

    async def _renewed(self, arrival: SdkArrival) -> SbpairError | None:
        try:
            async with self._patience.waiting():
                until_ms = await self._receiver.renew(arrival.message)
        except SbpairError as error:
            return error
        self._clock.look()
        arrival.lock_until = self._clock.until(until_ms)
        return None

    def _arrival(self, message: Received) -> SdkArrival:
        self._clock.look()
        until = self._clock.until(decoded.locked_until(message))
        return SdkArrival(facts_of(self.queue, message), until, message, decoded.partition_key_of(message))


@asynccontextmanager
async def open_source(endpoint: Endpoint, queue: str) -> AsyncIterator[SdkSource]:
    """A backlog queue, received from until the end of the block. Raises EntityMissing, AccessError, Unavailable."""
    async with open_receiver(endpoint, queue) as receiver:
        source = SdkSource(receiver, endpoint, queue)
        try:
            yield source
        finally:
            await source.close()


def facts_of(queue: str, message: Received) -> Facts:
    """What is known of a message, as far as the SDK has left it. The size is about right."""
    flaw, aliases = "", None
    try:
        aliases = decoded.aliases_of(message)
    except AliasError as error:
        flaw = str(error)
    return Facts(
        queue=queue,
        sequence_number=message.sequence_number or 0,
        enqueued_at=decoded.enqueued_at(message),
        message_id=decoded.message_id_of(message),
        path=aliases.path if aliases else None,
        session_id=aliases.session_id if aliases else None,
        ttl_ticks=aliases.ttl_ticks if aliases else None,
        scheduled_at=aliases.scheduled_at if aliases else None,
        size=decoded.size_of(message),
        content_type=decoded.content_type_of(message),
        flaw=flaw,
    )
