"""Links as a program uses them: await a message, send one, settle some, each with its outcome.

The law of this file: a settlement or a send is done when the peer has said so, never when it was written. What the peer
had not answered for when a link was lost raises InDoubt: it may or may not have happened.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sbpair import errors
from sbpair.amqp import events
from sbpair.amqp.performatives import Accepted, Error, Modified, Outcome, Rejected, Released, Source, Target
from sbpair.amqp.types import Symbol
from sbpair.wire.conditions import error_of

if TYPE_CHECKING:
    from sbpair.amqp import link as amqp
    from sbpair.amqp.events import Delivery
    from sbpair.amqp.session import Session
    from sbpair.wire.stream import Stream

_names = itertools.count()

DEAD_LETTER = "com.microsoft:dead-letter"


def dead_letter(reason: str, description: str) -> Rejected:
    """The outcome that moves a message to the dead-letter sub-queue, with why."""
    info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
    return Rejected(Error(DEAD_LETTER, description, info))


class Waiting:
    """Something asked of the peer for `count` deliveries, and done when it has answered for each of them."""

    __slots__ = ("_asked", "_doing", "_left", "done")

    def __init__(self, asked: Outcome, doing: str, count: int) -> None:
        self._asked = asked
        self._doing = doing
        self._left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def disposed(self, state: Any) -> None:
        self._left -= 1
        if self.done.done():
            return
        error = self._judge(state)
        if error is not None:
            self.done.set_exception(error)
        elif self._left == 0:
            self.done.set_result(None)

    def lost(self, error: errors.SbpairError) -> None:
        if not self.done.done():
            doubt = errors.InDoubt(f"{self._doing}: no answer came ({error.message})", hint=error.hint)
            self.done.set_exception(doubt)

    def _judge(self, state: Any) -> errors.SbpairError | None:
        if isinstance(state, Rejected):
            said = state.error if isinstance(state.error, Error) else None
            asked = isinstance(self._asked, Rejected) and (said is None or said.condition == DEAD_LETTER)
            return None if asked else error_of(said or Error("amqp:not-allowed", "rejected"), self._doing)
        if type(state) is type(self._asked):
            return None
        return errors.Unreachable(
            f"{self._doing}: the service answered {type(state).__name__.lower()}", hint="it may work a little later"
        )


class Link:
    """What sender and receiver share: opening, closing, and learning that the link is gone."""

    def __init__(self, stream: Stream, link: amqp.Sender | amqp.Receiver, address: str) -> None:
        self._stream = stream
        self._amqp = link
        self.address = address
        self.error: errors.SbpairError | None = None
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        link.context = self
        stream.owners.add(self)

    async def open(self, *, source: Source, target: Target, **terms: Any) -> None:
        """Raises what the peer's refusal means: EntityMissing, NotAuthorized, …"""
        if self._stream.error is not None:
            self.on_lost(self._stream.error)
            raise self._stream.error
        self._amqp.open(source=source, target=target, **terms)
        self._stream.flush_soon()
        await self._attached

    def close(self) -> None:
        """Let go of the link; the peer's answer is not waited for."""
        if self.error is None:
            self.error = errors.Unreachable(f"the link to {self.address!r} is closed")
            self._amqp.close()
            self._stream.flush_soon()
        self._forget(self.error)

    def on_event(self, event: Any) -> None:
        if isinstance(event, events.LinkAttached):
            # A refusal is an attach to nothing, with a detach right behind it that has the reason.
            if self._has_terminus(event.link) and not self._attached.done():
                self._attached.set_result(None)
        elif isinstance(event, events.LinkDetached):
            self.on_lost(error_of(event.error, f"link to {self.address!r}"))
        self._changed.set()

    def on_lost(self, error: errors.SbpairError) -> None:
        if self.error is None:
            self.error = error
        self._forget(error)
        self._changed.set()

    def _has_terminus(self, link: Any) -> bool:
        return link.remote.source is not None and link.remote.target is not None

    def _forget(self, error: errors.SbpairError) -> None:
        self._stream.owners.discard(self)
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()  # whoever waits for it is told; nobody need be waiting
        for waiting in self._waiting():
            waiting.lost(error)

    def _waiting(self) -> list[Waiting]:
        return []


class Sender(Link):
    """Sends encoded messages; each `send` returns once the peer has accepted, and raises where it has not."""

    def __init__(self, stream: Stream, session: Session, address: str) -> None:
        self._link = session.sender(f"sbpair-{next(_names)}")
        super().__init__(stream, self._link, address)
        self._tags = itertools.count()
        self._sent: set[Waiting] = set()

    async def attach(self) -> None:
        await self.open(source=Source(f"sbpair-{self._link.name}"), target=Target(self.address), snd_settle_mode=0)

    @property
    def max_message_size(self) -> int:
        """Bytes that the peer takes in one message; 0 where it did not say."""
        return self._link.remote.max_message_size or 0

    async def send(self, payload: bytes, *, message_format: int = 0) -> None:
        """Send one message and wait for the outcome.

        Raises what the peer's refusal means; InDoubt where the message has left and no answer came.
        """
        if 0 < self.max_message_size < len(payload):
            raise errors.ServiceRefused(
                f"sending to {self.address!r}: the message has {len(payload)} bytes, at most {self.max_message_size} "
                "are allowed",
                condition="amqp:link:message-size-exceeded",
                hint="the same message would be refused again",
            )
        await self._credit()
        waiting = Waiting(_ACCEPTED, f"sending to {self.address!r}", 1)
        tag = next(self._tags).to_bytes(4)
        self._sent.add(waiting)
        try:
            self._link.send(payload, tag, message_format=message_format, context=waiting)
            self._stream.flush_soon()
            await waiting.done
        finally:
            self._sent.discard(waiting)

    async def _credit(self) -> None:
        while True:
            if self.error is not None:
                raise self.error
            if self._link.credit > 0:
                await self._stream.writable()
                if self._link.credit > 0:
                    return
                continue
            self._changed.clear()
            await self._changed.wait()

    def _waiting(self) -> list[Waiting]:
        return list(self._sent)


_ACCEPTED = Accepted()


class Receiver(Link):
    """Receives under lock. Takes no more than it was granted; what is not settled is released by closing."""

    def __init__(self, stream: Stream, session: Session, address: str) -> None:
        self._link = session.receiver(f"sbpair-{next(_names)}")
        super().__init__(stream, self._link, address)
        self._arrived: deque[Delivery] = deque()
        self._settling: set[Waiting] = set()
        self._interrupted = False

    async def attach(self) -> None:
        await self.open(
            source=Source(self.address),
            target=Target(f"sbpair-{self._link.name}"),
            snd_settle_mode=0,
            rcv_settle_mode=1,
        )

    def on_event(self, event: Any) -> None:
        if isinstance(event, events.Delivery):
            self._arrived.append(event)
        super().on_event(event)

    def grant(self, credit: int) -> None:
        """Let `credit` more deliveries come than have been taken in; granting 0 stops them."""
        if self.error is None:
            self._link.grant(credit)
            self._stream.flush_soon()

    @property
    def credit(self) -> int:
        """Deliveries that the peer may still send."""
        return self._link.credit

    async def take(self, most: int, *, seconds: float) -> list[Delivery]:
        """What has arrived, at most `most`; waits for the first for `seconds`, and answers [] when none came.

        Raises when the link is gone and everything that came before that has been taken.
        """
        try:
            async with asyncio.timeout(seconds):
                while not self._arrived and not self._interrupted:
                    if self.error is not None:
                        raise self.error
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return []
        self._interrupted = False
        return [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]

    def interrupt(self) -> None:
        """Make a `take` that waits, or the next one, answer at once."""
        self._interrupted = True
        self._changed.set()

    async def settle(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Settle deliveries alike and wait until the peer confirms. Raises MessageLockLost where it came too late."""
        if not deliveries:
            return
        if self.error is not None:
            raise self.error
        waiting = Waiting(outcome, f"settling in {self.address!r}", len(deliveries))
        self._settling.add(waiting)
        for delivery in deliveries:
            delivery.context = waiting
        for first, last in ranges([delivery.id for delivery in deliveries]):
            self._link.session.dispose(first, last, outcome, receiver=True, settled=False)
        self._stream.flush_soon()
        try:
            await waiting.done
        finally:
            self._settling.discard(waiting)

    def close(self) -> None:
        """Let go of the link and its session: the peer releases what was not settled."""
        session = self._link.session
        super().close()
        session.end()
        self._stream.flush_soon()

    def _waiting(self) -> list[Waiting]:
        return list(self._settling)


def ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of delivery ids that follow one another: nothing that was not asked for may fall into a range."""
    found: list[tuple[int, int]] = []
    for number in ids:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


RELEASED = Released()
ABANDONED = Modified(delivery_failed=True)
ACCEPTED = _ACCEPTED
