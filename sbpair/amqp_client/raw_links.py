"""Asynchronous links: receive a message, send one, settle several, each with its outcome.

Invariant: a settlement or a send is done when the peer has confirmed it, not when it was written. If the link is lost
first, it raises InDoubt: it may or may not have happened.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

from sbpair import errors
from sbpair.amqp.conditions import RETRY_HINT, TOO_LARGE, error_of, is_idle_detach, lost_error
from sbpair.amqp.link import Delivery, LinkAttached, LinkDetached, Sent
from sbpair.amqp.performatives import Accepted, Error, Modified, Outcome, Rejected, Released, Source, Target
from sbpair.amqp.session import WindowOpened, id_ranges
from sbpair.amqp.types import Symbol
from sbpair.amqp_client.limits import ANSWER_SECONDS, MAX_RECEIVED, STOP_SECONDS

if TYPE_CHECKING:
    from sbpair.amqp import link as amqp
    from sbpair.amqp.session import Session
    from sbpair.amqp_client.stream import Stream

_names = count()

ACCEPTED, RELEASED, ABANDONED = Accepted(), Released(), Modified(delivery_failed=True)
DEAD_LETTER = "com.microsoft:dead-letter"

_id_of, _context_of, _settled_of = map(attrgetter, ("id", "context", "settled"))


def dead_letter(reason: str, description: str) -> Rejected:
    """Return the outcome that moves a message to the dead-letter queue, with the reason."""
    info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
    return Rejected(Error(DEAD_LETTER, description, info))


class PendingSettlement:
    """A request about deliveries, until the peer has answered for each of them.

    `failures` are deliveries that it refused or did not answer for, with the reason.
    """

    __slots__ = ("_asked", "_doing", "_done", "_link", "_open", "failures")

    def __init__(self, asked: Outcome, doing: str, link: ClientLink, deliveries: Sequence[Delivery] = ()) -> None:
        self.failures: list[tuple[Delivery | None, errors.SbpairError]] = []
        self._asked = asked
        self._doing = doing
        self._open: dict[int, Delivery | None] = dict(zip(map(_id_of, deliveries), deliveries, strict=True))
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link = link
        link.waiting[self] = None

    def sent(self, delivery_id: int) -> None:
        """Add a sent delivery."""
        self._open[delivery_id] = None

    async def wait(self, seconds: float) -> None:
        """Wait for the answers, at most `seconds`: unanswered deliveries are then failures. Raises nothing itself."""
        loop = asyncio.get_running_loop()
        # Half of the cost of asyncio.timeout.
        timer = loop.call_later(seconds, self._expire, seconds, loop.time())
        try:
            if self._open:
                await self._done
        finally:
            timer.cancel()
            self._link.waiting.pop(self, None)

    async def outcome(self, seconds: float) -> None:
        """Wait like `wait`, and raise the first failure; InDoubt if no answer came."""
        await self.wait(seconds)
        for _, error in self.failures:
            raise error

    def disposed_all(self, deliveries: Sequence[Sent | Delivery], state: Any) -> bool:
        """Record one outcome for several deliveries; return False if they must be judged one by one."""
        if not (type(state) is Accepted is type(self._asked)) or set(map(_context_of, deliveries)) != {self}:
            return False
        deque(map(self._open.pop, map(_id_of, deliveries), repeat(None)), maxlen=0)
        self._check_done()
        return True

    def disposed(self, delivery: Sent | Delivery, state: Any) -> None:
        if delivery.id not in self._open:
            return
        mine = self._open.pop(delivery.id)
        error = None if type(state) is Accepted is type(self._asked) else self._judge(state)
        if error is not None:
            self.failures.append((mine, error))
        self._check_done()

    def lost(self, error: errors.SbpairError) -> None:
        self.refused(self._doubt(f"({error.message})", error.hint))

    def refused(self, error: errors.SbpairError) -> None:
        """Fail everything still unanswered."""
        self.failures += [(delivery, error) for delivery in self._open.values()]
        self._open.clear()
        self._check_done()

    def _expire(self, seconds: float, asked_at: float) -> None:
        self.refused(self._doubt(f"within {seconds:g} s", RETRY_HINT))
        self._link.stream.check_silence(asked_at)

    def _check_done(self) -> None:
        if not self._open and not self._done.done():
            self._done.set_result(None)

    def _doubt(self, why: str, hint: str) -> errors.InDoubt:
        return errors.InDoubt(f"{self._doing}: no answer came {why}", hint=hint)

    def _judge(self, state: Any) -> errors.SbpairError | None:
        if isinstance(state, Rejected):
            return self._judge_rejected(state.error if isinstance(state.error, Error) else None)
        if type(state) is type(self._asked):
            return None
        if not isinstance(state, Outcome):
            return self._doubt("(it was settled without an outcome that is known)", RETRY_HINT)
        return errors.Unreachable(
            f"{self._doing}: the service answered {type(state).__name__.lower()}", hint=RETRY_HINT
        )

    def _judge_rejected(self, reported: Error | None) -> errors.SbpairError | None:
        if isinstance(self._asked, Rejected) and (reported is None or reported.condition == DEAD_LETTER):
            return None
        error = error_of(reported or Error("amqp:not-allowed", "rejected"), self._doing)
        # The service timed out: it may have accepted the message.
        return self._doubt(f"({error.message})", RETRY_HINT) if isinstance(error, errors.TimedOut) else error


class ClientLink:
    """The common part of sender and receiver: opening, closing and losing the link.

    `detached_idle` is whether the peer detached the link only because it was idle. `waiting` are the requests without
    an answer.
    """

    def __init__(self, stream: Stream, link: amqp.SendingLink | amqp.ReceivingLink, address: str) -> None:
        self.stream = stream
        self._amqp = link
        self.name, self.address = link.name, address
        self.error: errors.SbpairError | None = None
        self.detached_idle = False
        self._attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self.waiting: dict[PendingSettlement, None] = {}
        self._terms: dict[str, Any] = {}  # of our attach
        self._attach_seconds = ANSWER_SECONDS
        link.context = self
        stream.when_lost[self.on_lost] = None

    async def attach(self) -> Self:
        """Attach the link as its kind is. Raises the peer's refusal: EntityMissing, NotAuthorized, …; TimedOut."""
        if self.stream.error is not None:
            self.on_lost(self.stream.error)
            raise self.stream.error
        asked_at = asyncio.get_running_loop().time()
        try:
            self._amqp.open(**self._terms)
            self.stream.flush_soon()
            async with asyncio.timeout(self._attach_seconds):
                await self._attached
        except TimeoutError:
            self.close()
            self.stream.check_silence(asked_at)
            raise errors.TimedOut(
                f"link to {self.address!r}: no answer within {self._attach_seconds:g} s", hint=RETRY_HINT
            ) from None
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Detach the link, without waiting for the peer's answer."""
        self._amqp.close()
        self.stream.flush_soon()
        self.on_lost(errors.Unreachable(f"the link to {self.address!r} is closed"))

    def on_event(self, event: Any) -> None:
        if isinstance(event, LinkAttached):
            # A refusal is an attach without a terminus, followed by a detach with the reason.
            terms = event.link.remote
            if terms.source is not None and terms.target is not None and not self._attached.done():
                self._attached.set_result(None)
        elif isinstance(event, LinkDetached):
            self._on_detached(event.error)
        self._changed.set()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Receive messages; overridden by receiving links."""

    def on_lost(self, error: errors.SbpairError) -> None:
        self.error = error = self.error or error
        self.stream.when_lost.pop(self.on_lost, None)
        if not self._attached.done():
            self._attached.set_exception(error)
            self._attached.exception()  # mark as retrieved: there may be no waiter
        for waiting in tuple(self.waiting):
            waiting.lost(error)
        self._changed.set()

    def _on_detached(self, error: Error | None) -> None:
        doing = f"link to {self.address!r}"
        if not self._attached.done():
            # A link that ends with its session was not refused.
            refused = self._amqp.session.is_open
            self.on_lost(error_of(error, doing) if refused else lost_error(error, doing))
            return
        self.detached_idle = is_idle_detach(error)
        waiting = tuple(self.waiting)
        if error is not None and error.condition == TOO_LARGE and len(waiting) == 1:
            # Some peers refuse a message by detaching the link.
            waiting[0].refused(error_of(error, doing))
        self.on_lost(lost_error(error, doing))


class RawSender(ClientLink):
    """Sends encoded messages. `send` returns once the peer has accepted, and raises otherwise."""

    def __init__(self, stream: Stream, session: Session, address: str, source: str = "") -> None:
        self._link = session.sender(f"sbpair-{next(_names)}")
        super().__init__(stream, self._link, address)
        source = source or f"sbpair-{self.name}"
        self._terms = {"source": Source(source), "target": Target(address), "snd_settle_mode": 0}
        self._tags = count()

    @property
    def max_message_size(self) -> int:
        """The peer's limit of bytes in a message; 0 if not stated."""
        return self._link.remote.max_message_size or 0

    @property
    def max_batch_size(self) -> int:
        """The peer's limit of bytes in a batch; if not stated, it follows from that of a message."""
        limit_stated = (self._link.remote.properties or {}).get(BATCH_SIZE)
        limit = self.max_message_size or LARGE
        return min(limit, int(limit_stated) if limit_stated else LARGE if limit >= LARGE else SMALL)

    @property
    def credit(self) -> int:
        """How many messages may be sent now."""
        return max(0, min(self._link.credit, self._link.session.room)) if self.error is None else 0

    @property
    def idle(self) -> bool:
        """Whether no outcome is pending."""
        return not self.waiting

    async def ready(self, *, seconds: float = ANSWER_SECONDS) -> None:
        """Wait until a message can be sent without delay. Raises Unavailable."""
        if self.credit > 0 and self.stream.is_writable:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._credit()
        except TimeoutError:
            raise errors.TimedOut(f"{self.address!r} granted no credit for {seconds:g} s", hint=RETRY_HINT) from None

    async def send(self, payload: bytes, *, message_format: int = 0, seconds: float = ANSWER_SECONDS) -> None:
        """Send one message and wait for the outcome.

        Raises the peer's refusal; InDoubt if the message was sent and no answer came.
        """
        self._check_size(payload)
        await self.ready(seconds=seconds)
        await self.send_nowait(payload, message_format=message_format).outcome(seconds)

    def send_nowait(self, payload: bytes, *, message_format: int = 0) -> PendingSettlement:
        """Send one message now, and return its pending outcome.

        Raises ServiceRefused if it is too large, TimedOut without credit, or why the link was lost.
        """
        self._check_size(payload)
        if self.error is not None:
            raise self.error
        if self.credit == 0:
            raise errors.TimedOut(f"{self.address!r} has no credit now", hint=RETRY_HINT)
        waiting = PendingSettlement(ACCEPTED, f"sending to {self.address!r}", self)
        tag = next(self._tags).to_bytes(8)
        waiting.sent(self._link.send(payload, tag, message_format=message_format, context=waiting))
        self.stream.flush_soon()
        return waiting

    def _check_size(self, payload: bytes) -> None:
        if 0 < self.max_message_size < len(payload):
            raise errors.ServiceRefused(
                f"sending to {self.address!r}: the message has {len(payload)} bytes;"
                f" the limit is {self.max_message_size}",
                condition=TOO_LARGE,
                hint="the same message would be refused again",
            )

    async def _credit(self) -> None:
        while True:
            if self.error is not None:
                raise self.error
            await self.stream.writable()
            if self.credit > 0:
                return
            self._changed.clear()
            await self._changed.wait()


BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")

LARGE, SMALL = 1024 * 1024, 256 * 1024
"""The size of a batch in a namespace with large messages, and in others."""


class RawReceiver(ClientLink):
    """Receives under lock, no more than granted; closing releases unsettled messages."""

    def __init__(self, stream: Stream, session: Session, address: str) -> None:
        self._link = session.receiver(f"sbpair-{next(_names)}")
        self._link.max_message_size = MAX_RECEIVED
        super().__init__(stream, self._link, address)
        self._terms = {"source": Source(address), "target": Target(f"sbpair-{self.name}")}
        self._terms |= {"snd_settle_mode": 0, "rcv_settle_mode": 1}
        self._arrived: deque[Delivery] = deque()
        self.lost: list[Delivery] = []
        self._interrupted = False
        self._windows_seen = 0

    def on_event(self, event: Any) -> None:
        if isinstance(event, WindowOpened):
            self._windows_seen += 1
        super().on_event(event)

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        self._arrived += deliveries
        self._changed.set()

    def grant(self, limit: int) -> None:
        """Limit deliveries not yet taken, on their way or arrived, to `limit`."""
        if self.error is None:
            self._link.grant(max(0, limit - len(self._arrived)))
            self.stream.flush_soon()

    @property
    def credit(self) -> int:
        """Deliveries that the peer may still send."""
        return self._link.credit

    async def take(self, limit: int, *, seconds: float) -> list[Delivery]:
        """Return up to `limit` arrived deliveries; wait up to `seconds` for the first, else return [].

        Raises if the link was lost and no earlier delivery is left.
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
        if limit >= len(self._arrived):
            arrived, self._arrived = list(self._arrived), deque()
            return arrived
        return [self._arrived.popleft() for _ in range(limit)]

    def interrupt(self) -> None:
        """End a waiting `take`, or the next one, at once."""
        self._interrupted = True
        self._changed.set()

    async def stop(self, *, seconds: float = STOP_SECONDS) -> list[Delivery]:
        """Stop receiving. Return deliveries not taken; a peer that does not confirm is not waited for long.

        Raises nothing: a lost link has nothing to return.
        """
        self.grant(0)
        await self.drain(seconds=seconds)
        return self.take_remaining()

    async def drain(self, *, seconds: float = STOP_SECONDS) -> None:
        """Use up the credit: wait until the peer has sent what it has now, and gives the rest of the credit back."""
        before = self._windows_seen
        self._link.drain()
        self.stream.flush_soon()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.error is None and self._windows_seen == before:
                    self._changed.clear()
                    await self._changed.wait()

    def take_remaining(self) -> list[Delivery]:
        """Remove and return deliveries not yet taken; if the link was lost, [], and they are kept as `lost`."""
        left, lost = list(self._arrived), self.error is not None
        self._arrived.clear()
        if lost:
            self.lost += left
        return [] if lost else left

    async def settle(
        self, deliveries: Sequence[Delivery], outcome: Outcome, *, seconds: float = ANSWER_SECONDS
    ) -> None:
        """Settle deliveries alike and wait for the peer's confirmation.

        Raises MessageLockLost if it was too late for one of them; InDoubt if no answer came.
        """
        if self.error is not None:
            raise self.error
        for _, error in await self.settle_each(deliveries, outcome, seconds=seconds):
            raise error

    async def settle_each(
        self, deliveries: Sequence[Delivery], outcome: Outcome, *, seconds: float = ANSWER_SECONDS
    ) -> list[tuple[Delivery, errors.SbpairError]]:
        """Settle like `settle`; return the unconfirmed deliveries with their errors. Raises nothing."""
        if self.error is not None:
            return [(delivery, self.error) for delivery in deliveries]
        # Hot path: calls for all deliveries at once.
        taken_back: list[Delivery] = []
        open_ones = deliveries
        if any(map(_settled_of, deliveries)):
            taken_back = [delivery for delivery in deliveries if delivery.settled]
            open_ones = [delivery for delivery in deliveries if not delivery.settled]
        waiting = PendingSettlement(outcome, f"settling in {self.address!r}", self, open_ones)
        for delivery in open_ones:
            delivery.context = waiting
        for first, last in id_ranges(list(map(_id_of, open_ones))):
            self._link.session.dispose(first, last, outcome, receiver=True, settled=False)
        self.stream.flush_soon()
        await waiting.wait(seconds)
        lost = errors.MessageLockLost(f"settling in {self.address!r}: the lock was lost", hint=RETRY_HINT)
        failures = [(delivery, error) for delivery, error in waiting.failures if delivery is not None]
        return failures + [(delivery, lost) for delivery in taken_back]

    def close(self) -> None:
        """Close the link and its session. Unsettled messages stay locked until their lock expires."""
        super().close()
        self._link.session.end()
        self.stream.flush_soon()
