"""A link on which a client sends messages, that stays open while the primary is away.

Invariant: a transfer is accepted towards the client only after the primary, a backlog queue or the outbox has accepted
all of it. Transfers go in their order: those behind one that is tried again wait. While all is well, each goes to the
twin at once, and several are in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.conditions import TOO_LARGE, error_of, lost_error
from sbpair.amqp.link import Delivery, LinkDetached, StatefulDelivery
from sbpair.amqp.performatives import Accepted, Error, Outcome, Rejected, TransactionalState
from sbpair.amqp.types import Map, Symbol, ULong
from sbpair.errors import InDoubt, SbpairError, ServiceRefused, TimedOut, Unreachable
from sbpair.failover.events import UnpairedSize
from sbpair.failover.raw_send import SMALL_BYTES
from sbpair.gateway.client_errors import BUSY, end_of_link, passed_on, refusal
from sbpair.gateway.mirrored_links import MAX_MESSAGE, MirroredSender, send_up

if TYPE_CHECKING:
    from sbpair.amqp.link import Link
    from sbpair.amqp_server.shared_access import AccessRight
    from sbpair.failover.shared_state import SendSide
    from sbpair.gateway.mirrored_connection import MirroredConnection

BATCH_SIZE: Final = Symbol("com.microsoft:max-message-batch-size")
ALIASES_BYTES: Final = 2048
"""Room that the largest message leaves for the aliases of the backlog."""

SHARE_BYTES: Final = 64 * 1024 * 1024
"""How much the sending links of one connection may hold that no side has accepted yet."""

MAX_CREDIT: Final = 100
"""Credit of a client without the primary's."""

SMALLEST_MESSAGE: Final = 1024.0
"""Bytes of the smallest message, where bytes become credit."""


WAITED_SECONDS: Final = 1.0
"""How long a transfer may have waited and still be retried as often as one that comes alone."""


@dataclass(slots=True, eq=False)
class Passing:
    """A client's delivery that no side has accepted yet. `fits`: the backlog would take it with its aliases.

    It came at `since`, as the client's own time for it began. `failed` is the error of an attempt on the twin; `answer`
    is the outcome for one that waits.
    """

    delivery: Delivery
    fits: bool
    since: float
    failed: SbpairError | None = None
    answer: asyncio.Future[None] | None = None


class FailingSender(MirroredSender):
    """`idle` is set while nothing waits and nothing is in flight."""

    def __init__(self, owner: MirroredConnection, link: Link, address: str, rights: tuple[AccessRight, ...]) -> None:
        super().__init__(owner, link, address, rights)
        self._gateway = owner.gateway
        self._failover = owner.gateway.failover
        self._send = self._failover.sender(self.path, self._send_raw)
        self._seconds = owner.gateway.options.timeout
        self._waiting: deque[Passing] = deque()
        self._in_flight: dict[int, Passing] = {}
        self._held_bytes = 0
        self._typical_bytes = SMALLEST_MESSAGE
        self._working = False
        self._timer: asyncio.TimerHandle | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    # Attaching

    async def attach(self) -> None:
        """Attach the twin, or accept the client's link without it while the primary is away."""
        await self._gateway.backlog_limit_known()
        await self._namesake_idle()
        if self._gateway.side_for(self.path) != "backlog":
            try:
                async with asyncio.timeout(self._gateway.attach_seconds):
                    await super().attach()
                    await self.answered()
            except TimeoutError:
                self._close_twin()
            except SbpairError as error:
                if not self._failover.policy.counts(error):
                    raise
            else:
                return
        if not self.is_over:
            self._accept()

    async def _namesake_idle(self) -> None:
        """Wait until the link that this one replaces has sent its messages: the twins have one name, too."""
        sending = [each for each in self._owner.sending if isinstance(each, FailingSender)]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._gateway.attach_seconds):
                for each in sending:
                    if each.session is self.session and each._link.name == self._link.name:
                        await each.idle.wait()

    @property
    def is_needed(self) -> bool:
        return not (self.is_over and self.idle.is_set())

    def _on_attached(self) -> None:
        terms = self.twin.remote  # type: ignore[union-attr]  # the event is of the twin
        if terms.source is None or terms.target is None:
            return
        properties = terms.properties if isinstance(terms.properties, Map) else Map()
        batch: Any = properties.get(BATCH_SIZE) or 0
        backlog = self._failover.failover_state.backlog_bytes
        self._gateway.limits.note(self.path, (terms.max_message_size or 0, int(batch)), backlog)
        if not self._link.is_open:
            self._accept(properties)
        self.pull_up()

    def _accept(self, properties: Map | None = None) -> None:
        """Accept the client's link with the smaller of the primary's limit and the backlog's."""
        size, batch = self._gateway.limits.get(self.path)
        backlog = self._failover.failover_state.backlog_bytes
        if backlog and not self._gateway.options.allow_unpaired_size:
            size = min(size or backlog, backlog - ALIASES_BYTES)
        terms = [(key, value) for key, value in (properties or Map()).pairs if key != BATCH_SIZE]
        if batch:
            terms.append((BATCH_SIZE, ULong(min(batch, size or batch))))
        self._link.accept(max_message_size=size or None, properties=Map(terms))
        self._link.max_message_size = MAX_MESSAGE
        self._grant_client()
        self._output.flush_soon()

    # From the client

    def receive(self, delivery: Delivery) -> None:
        size = len(delivery.payload)
        self._held_bytes += size
        self._owner.hold(size)
        self._typical_bytes += (max(size, SMALLEST_MESSAGE) - self._typical_bytes) / 8
        # One of a transaction never goes to the backlog.
        fits = size <= SMALL_BYTES or type(delivery) is StatefulDelivery
        fits = fits or (self._gateway.options.allow_unpaired_size and size <= (self._limit or size))
        passing = Passing(delivery, fits, self._failover.now())
        if not self._waiting and self._is_direct(passing):
            self._send_direct(passing)
        else:
            self._waiting.append(passing)
            self._owner.sending.add(self)
            self.idle.clear()

    def flush(self) -> None:
        self.pull_up()
        self._owner.upstream.flush()

    def _is_direct(self, passing: Passing) -> bool:
        """Return whether a delivery may go to the twin at once: all is well, and the backlog would take it, too."""
        twin = self.twin
        if twin is None or twin.credit <= 0 or not twin.is_open or passing.failed is not None:
            return False
        return passing.fits and self._send.is_direct

    def _send_direct(self, passing: Passing) -> None:
        size, limit = len(passing.delivery.payload), self._failover.failover_state.backlog_bytes
        if limit and size > limit - ALIASES_BYTES and self._gateway.options.allow_unpaired_size:
            self._failover.failover_state.publish(UnpairedSize(self.path, size, limit))
        self._in_flight[send_up(self.twin, passing.delivery)] = passing  # type: ignore[arg-type]  # it is open
        if self._timer is None:
            self._owner.sending.add(self)
            self.idle.clear()
            self._set_timer(passing.since)

    def pull_up(self) -> None:
        while self._waiting and not self._working and self._is_direct(self._waiting[0]):
            self._send_direct(self._waiting.popleft())
        if self._waiting and not self._working and not self._waits_for_credit():
            self._working = True
            self._gateway.spawn(self._work(), f"send to {self.path}")
        self._grant_client()

    def _waits_for_credit(self) -> bool:
        twin, first = self.twin, self._waiting[0]
        is_direct = first.fits and first.failed is None and self._send.is_direct
        # The timer ends the wait if nothing in flight is answered.
        return twin is not None and twin.is_open and twin.credit <= 0 and is_direct and bool(self._in_flight)

    def _grant_client(self) -> None:
        """Give the client the smaller of the primary's credit and its share of the memory."""
        link, twin = self._link, self.twin
        if not link.is_open:
            return
        left = SHARE_BYTES // max(1, len(self._owner.sending)) - self._held_bytes
        credit = max(int(left / self._typical_bytes), 0 if self._held_bytes else 1)
        credit = min(credit, (twin.credit if twin is not None and twin.is_open else MAX_CREDIT) - len(self._waiting))
        if credit > link.credit and (link.credit <= credit // 2 or twin is not None):
            link.grant(credit)
            self._output.flush_soon()

    # From the primary, of what was sent at once

    def on_disposed(self, deliveries: list[Any], state: Any, *, settled: bool) -> None:
        if not settled and isinstance(state, TransactionalState):
            self.answer([each.context for each in deliveries], state, settled=False)
            return
        passed = [found for each in deliveries if (found := self._in_flight.pop(each.id, None)) is not None]
        if not settled and isinstance(state, Outcome) and self.twin is not None:
            for each in deliveries:
                self.twin.session.dispose(each.id, each.id, state, receiver=False, settled=True)
        direct = [each for each in passed if each.answer is None]
        if type(state) is Accepted:
            self._send.accepted(len(direct))
            self._settle(direct, state)
        elif direct:
            self._judge(direct, state)
        for each in passed:
            _tell(each.answer, state, self.path)
        if self._waiting:
            self.pull_up()
        self._check_idle()

    def _judge(self, passed: list[Passing], state: Any) -> None:
        """Pass a lasting refusal on, and try again, or elsewhere, what may be taken later."""
        reported = state.error if isinstance(state, Rejected) and isinstance(state.error, Error) else None
        error = error_of(reported, f"sending to {self.path!r}")
        stateful = any(type(each.delivery) is StatefulDelivery for each in passed)
        lasting = reported is not None and not self._failover.policy.counts(error)
        if stateful or lasting or not isinstance(state, Outcome):
            self._settle(passed, state)
        else:
            self._fail(passed, error)

    def _fail(self, passed: list[Passing], error: SbpairError) -> None:
        """Put deliveries of the twin back in front, with the error of their attempt."""
        for each in passed:
            each.failed = error
        self._waiting.extendleft(reversed([each for each in passed if not self._is_transactional(each)]))
        self.pull_up()

    def _is_transactional(self, passing: Passing) -> bool:
        """Return whether a delivery is of a transaction, and refuse it then: that needs the primary."""
        if type(passing.delivery) is not StatefulDelivery:
            return False
        text = f"The primary namespace is away: transactional sends to '{self.path}' are not possible until it is back."
        self._settle([passing], Rejected(Error("amqp:not-allowed", text, Map())))
        return True

    def _on_twin_detached(self, event: LinkDetached) -> None:
        error = event.error
        if not (self._link.is_open or self.is_over):
            # The primary has refused the link itself.
            if error is not None and self._failover.policy.counts(error_of(error, self.path)):
                self._accept()
            else:
                self.end(passed_on(error, f"link to {self.path!r}"), closed=event.closed)
            return
        if error is not None and not self._failover.policy.counts(error_of(error, self.path)):
            self._refuse_by_end(error, closed=event.closed)
        self._end_flight(lost_error(error, f"link to {self.path!r}"))

    def _refuse_by_end(self, error: Error, *, closed: bool) -> None:
        """Refuse the messages that the service refuses by ending the link: too large, or of no transaction."""
        for number, each in list(self._in_flight.items()):
            if type(each.delivery) is StatefulDelivery:
                self.end(error, closed=closed)
            elif error.condition == TOO_LARGE and len(each.delivery.payload) > self._limit:
                del self._in_flight[number]
                if each.answer is None:
                    self._settle([each], Rejected(error))
                _tell(each.answer, Rejected(error), self.path)

    def on_lost(self, error: SbpairError) -> None:
        self.twin = None
        if not (self._link.is_open or self.is_over):
            if self._failover.policy.counts(error):
                self._accept()
            else:
                self.end(end_of_link(error))
        self._end_flight(error)

    def _end_flight(self, error: SbpairError) -> None:
        """Fail everything in flight: it may have arrived."""
        self._changed.set()
        flight, self._in_flight = list(self._in_flight.values()), {}
        doubt = InDoubt(f"sending to {self.path!r}: no answer came ({error.message})", hint=error.hint)
        for each in flight:
            if each.answer is not None and not each.answer.done():
                each.answer.set_exception(doubt)
        self._fail([each for each in flight if each.answer is None], doubt)
        self._check_idle()

    def settle_up(self, deliveries: list[Delivery], state: Any, *, settled: bool) -> None:
        """Pass the end of deliveries of a transaction on. Others are sent all the same, and are answered no more."""
        for each in deliveries:
            each.settled = each.settled or settled
            if type(each) is StatefulDelivery and each.context in self._in_flight:
                super().settle_up([each], state, settled=settled)
                if settled:
                    self._settle([self._in_flight.pop(each.context)], state)
        self._check_idle()

    # The time of an attempt

    def _set_timer(self, since: float) -> None:
        left = since + self._seconds * self._send.share - self._failover.now()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        oldest = next((each for each in self._in_flight.values() if each.answer is None), None)
        if oldest is None:
            return
        if self._failover.now() < oldest.since + self._seconds * self._send.share:
            self._set_timer(oldest.since)
            return
        self._give_up()

    def _give_up(self) -> None:
        """End a twin that does not answer."""
        error = TimedOut("the primary did not answer in time")
        self._close_twin()
        self._end_flight(error)
        self._owner.upstream.break_blocked(error)

    # One after the other

    async def _work(self) -> None:
        """Deliver waiting messages until the next one may go to the twin at once again."""
        try:
            while self._waiting and not self._is_direct(self._waiting[0]):
                passing = self._waiting.popleft()
                if type(passing.delivery) is StatefulDelivery and await self._has_twin():
                    self._waiting.appendleft(passing)
                elif self._is_transactional(passing):
                    continue
                elif passing.fits or passing.failed is not None:
                    await self._deliver(passing)
                elif await self._is_fitting(passing):
                    self._waiting.appendleft(passing)
        finally:
            self._working = False
            self.pull_up()
            self._owner.upstream.flush()
            self._check_idle()

    async def _has_twin(self) -> bool:
        """Return whether a delivery may go to the twin, which is attached again if need be."""
        with suppress(SbpairError, TimeoutError):
            async with asyncio.timeout(self._seconds * self._send.share):
                if self._send.is_direct:
                    await self._twin_with_credit()
                    return True
        return False

    async def _is_fitting(self, passing: Passing) -> bool:
        """Return whether the primary and the backlog would take a delivery; reject it otherwise.

        The primary ends the link for one that is too large, as it would do at each further attempt.
        """
        delivery, limit = passing.delivery, self._limit
        try:
            if 0 < limit < len(delivery.payload):
                text = f"the message has {len(delivery.payload)} bytes, and {self.path!r} takes at most {limit}"
                raise ServiceRefused(text, condition=TOO_LARGE)
            if not self._gateway.options.allow_unpaired_size:
                await self._send.check_sizes(delivery.payload, delivery.format, self._seconds)
        except SbpairError as error:
            self._reject(passing, error)
            return False
        passing.fits = True
        return True

    @property
    def _limit(self) -> int:
        """The largest message that the primary takes; 0 if it is not known."""
        return self._gateway.limits.get(self.path)[0]

    async def _deliver(self, passing: Passing) -> None:
        delivery, since = passing.delivery, passing.since
        # One that has waited for another one goes to the backlog at once if the primary fails again.
        retries = 0 if self._failover.now() - since > WAITED_SECONDS else None
        try:
            await self._send.deliver(
                delivery.payload, delivery.format, self._seconds, since=since, failed=passing.failed, retries=retries
            )
        except SbpairError as error:
            self._reject(passing, error)
        except Exception:
            # The client would wait for ever.
            self._reject(passing, InDoubt(f"sending to {self.path!r} failed because of a bug"))
            raise
        else:
            self._settle([passing], Accepted())

    async def _send_raw(self, side: SendSide, path: str, payload: bytes, message_format: int, seconds: float) -> None:
        """Send one delivery on the twin, which is attached again if need be, and wait for its outcome."""
        del side, path
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent = False
        try:
            async with asyncio.timeout(seconds):
                await self._twin_with_credit()
                delivery = Delivery(
                    self._link, 0, self._gateway.next_tag(), message_format, settled=True, payload=payload
                )
                number = send_up(self.twin, delivery)  # type: ignore[arg-type]  # it has credit
                self._in_flight[number] = Passing(delivery, True, self._failover.now(), answer=answer)
                self._owner.upstream.flush()
                sent = True
                await answer
        except TimeoutError:
            self._give_up()
            if sent:
                raise InDoubt(f"sending to {self.path!r}: no answer came within {seconds:g} s") from None
            raise TimedOut(f"sending to {self.path!r}: the primary gave no credit within {seconds:g} s") from None

    async def _twin_with_credit(self) -> None:
        """Wait until a message may be sent on the twin. Raises the error that ends it, and as `attach` does."""
        while self.twin is None or not self.twin.is_open or self.twin.credit <= 0:
            self._changed.clear()
            if self.twin is None:
                await super().attach()
            else:
                await self._changed.wait()
            if self.twin is None:
                raise Unreachable(f"the link to {self.path!r} has ended", hint="retry in a minute")

    # The end of a delivery, and of the link

    def _settle(self, passed: Iterable[Passing], state: Any) -> None:
        deliveries = [each.delivery for each in passed]
        for each in deliveries:
            self._held_bytes -= len(each.payload)
            self._owner.hold(-len(each.payload))
            each.payload = b""
        self._owner.figures.sent += len(deliveries)
        self.answer(deliveries, state)
        self._grant_client()

    def _reject(self, passing: Passing, error: SbpairError) -> None:
        """Reject a delivery."""
        self._settle([passing], Rejected(refusal(error)))

    def _check_idle(self) -> None:
        if self._waiting or self._in_flight or self._working:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owner.sending.discard(self)
        self.idle.set()
        self._gateway.changed.set()
        if self.is_over:
            self._let_go()

    def end(self, error: Error | None, *, closed: bool = True) -> None:
        super().end(error, closed=closed)
        self.on_detached()

    def on_client_detached(self, event: LinkDetached) -> None:
        del event
        self.on_detached()

    def on_detached(self) -> None:
        """Close the twin once the last messages are accepted: a client may detach right after a send."""
        if self.idle.is_set():
            self._let_go()

    def _let_go(self) -> None:
        self._close_twin()
        self._gateway.spawn(self._send.close(), f"close the sender to {self.path}")


def _tell(answer: asyncio.Future[None] | None, state: Any, path: str) -> None:
    """Give the outcome of a delivery to the attempt that waits for it."""
    if answer is None or answer.done():
        return
    if type(state) is Accepted:
        answer.set_result(None)
        return
    reported = state.error if isinstance(state, Rejected) and isinstance(state.error, Error) else None
    fallback = Error(BUSY, f"the service answered {type(state).__name__.lower()}")
    answer.set_exception(error_of(reported or fallback, f"sending to {path!r}"))
