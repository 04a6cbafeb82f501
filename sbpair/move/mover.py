"""The settle-after-accept loop: at-least-once, and this is the one place that makes it so.

The law: a delivery is completed in the backlog only after the primary has accepted the message. Whatever happens before
that, the message stays in the backlog; whatever happens after, it may be delivered again, and the journal knows it.
What leaves for a destination leaves in backlog order, also across a retry; a destination that fails rests with what it
has, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sbpair.errors import EntityMissing, InDoubt, ProtocolError, SbpairError, ServiceRefused, Throttled, Unavailable
from sbpair.move.batch_send import BatchSend
from sbpair.move.destination_queue import MAX_ROUND
from sbpair.move.destination_queues import DestinationQueues
from sbpair.move.dispatch import Dispatcher
from sbpair.move.events import DestinationBackingOff, DestinationRecovered
from sbpair.move.failure_latch import FailureLatch
from sbpair.move.interface import RoutedMessage, get_facts, get_lock_until, get_ordinal
from sbpair.move.lock_renewal import renew_locks
from sbpair.move.message.route import Send, TimeToLive, keys_of, missing, refused, router
from sbpair.move.settlement import DEAD_LETTER_TRIES, Settlement

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.context import MoveContext
    from sbpair.move.destination_queue import DestinationQueue
    from sbpair.move.interface import Destination, DestinationLink, MessageSource, ReceivedMessage

log = logging.getLogger(__name__)

LARGEST_BYTES = 1024 * 1024
"""How large a message is taken to be before the first one has come."""

_order = partial(tuple.__new__, RoutedMessage)
"""As Order(…) is, at a third of its cost."""


class Mover:
    """A lane's hands: takes arrivals over, and has each of them end in exactly one bucket of the receipt.

    `fatal` is why no message at all can be sent; `trouble` is why the backlog may not know yet what became of some.
    """

    def __init__(
        self, source: MessageSource, primary: Destination, tasks: asyncio.TaskGroup, context: MoveContext
    ) -> None:
        self._source = source
        self._primary = primary
        self._tasks = tasks
        self._context = context
        self._route = router(context.ttl, self._service_ms)
        self._loop = asyncio.get_running_loop()
        self._queue = source.queue.lower()
        self._roads = DestinationQueues(
            context.breaker, ordered=context.ordered, min_round=context.batch_limits.min_round
        )
        self._latch = FailureLatch(source.interrupt)
        self._settlement = Settlement(source, tasks, context, self._latch)
        self._departures = Dispatcher(
            self._roads,
            tasks,
            self._advance,
            stopping=self._latch.stopping,
            changed=self._latch.changed,
            ordered=context.ordered,
            gather_seconds=context.timings.gather_seconds,
        )

    # What a lane asks.

    @property
    def fatal(self) -> SbpairError | None:
        return self._latch.fatal

    @property
    def settlement_error(self) -> Unavailable | None:
        return self._settlement.error

    @property
    def held(self) -> int:
        return len(self._settlement.held)

    @property
    def room(self) -> int:
        """How many more deliveries may be taken in, if none is larger than the largest so far."""
        left = self._context.max_held_bytes - self._settlement.held.bytes
        if left <= 0:
            return 0
        resting = sum(map(len, self._roads.backing_off()))
        limit = min(self._context.max_held - self.held, self._context.batch_limits.prefetch + resting - self.held)
        return max(0, min(limit, max(1, left // (self._settlement.held.largest or LARGEST_BYTES))))

    def held_numbers(self) -> set[int]:
        """The sequence numbers of what is in hand."""
        return {arrival.facts.sequence_number for arrival in self._settlement.held}

    def backing_off(self) -> dict[str, str]:
        """Destinations that take nothing for now, and why."""
        return {road.destination: road.resting or "" for road in self._roads.backing_off()}

    def waiting(self) -> dict[str, int]:
        """How many messages wait for each destination that takes nothing for now."""
        return {road.destination: len(road) for road in self._roads.backing_off()}

    @property
    def oldest_ms(self) -> int | None:
        """When the message that is longest in hand was enqueued, in ms since 1970."""
        first = self._settlement.held.first()
        return None if first is None else first.facts.enqueued_at or None

    def stuck(self, failures: int) -> bool:
        """Whether everything in hand waits for destinations that have failed so often in a row."""
        return self._roads.stuck(failures) == self.held

    def unsettleable(self, times: int = DEAD_LETTER_TRIES) -> list[str]:
        return self._settlement.unsettleable(times)

    async def wait_changed(self, seconds: float) -> None:
        await self._latch.wait_changed(seconds)

    # What a lane does.

    def accept(self, arrivals: Sequence[ReceivedMessage]) -> None:
        """Take deliveries over."""
        come, repeats = self._by_key(arrivals), 0
        keys = come.keys()
        if len(come) == len(arrivals) and not (
            self._settlement.held.contains_any(keys) or self._context.journal.seen_any(keys)
        ):
            # As nearly always: it costs a third of looking at one after the other.
            self._settlement.held.add_all(come)
            self._direct(arrivals)
        else:
            repeats = sum([self._accept(arrival) for arrival in arrivals])
        self._settlement.held.added.set()
        self._context.tally.received(self._source.queue, len(arrivals), repeats=repeats)
        self._settlement.spend("received", arrivals)

    def _by_key(self, arrivals: Sequence[ReceivedMessage]) -> dict[Key, ReceivedMessage]:
        """Deliveries by their keys, which they are given here as `get_key` has them."""
        keys = keys_of(self._context.namespace, list(map(get_facts, arrivals)))
        for arrival, key in zip(arrivals, keys, strict=True):
            arrival.key = key
        return dict(zip(keys, arrivals, strict=True))

    def _accept(self, arrival: ReceivedMessage) -> bool:
        """Take one over. Answers whether its message has been delivered before."""
        before = self._settlement.held.add(arrival)
        seen = self._context.journal.seen(arrival.key)
        if before is None or self._succeeds(arrival, before):
            self._welcome(arrival, seen=seen)
        return seen or before is not None

    def _succeeds(self, arrival: ReceivedMessage, before: ReceivedMessage) -> bool:
        """A message came again: the one in hand has lost its lock. Whether the new one may go its way already."""
        before.lock_until = 0.0
        self._drop_lost(before)
        if before in self._settlement.held:
            # What becomes of it, decides whether the new one has to be sent at all.
            self._settlement.hold_until_ended(before, arrival, self._welcome)
            return False
        return True

    def _welcome(self, arrival: ReceivedMessage, *, seen: bool = True) -> None:
        if seen and self._context.journal.was_accepted(arrival.key):
            self._settlement.complete_already_sent(arrival)
        else:
            self._direct([arrival])

    async def finish(self) -> None:
        """Stop: what is in flight is finished and settled, the rest is released."""
        self._latch.stopping.set()
        self._settlement.flush()
        await self._source.stop()
        self._latch.abort_waits()
        while self._roads.busy or self.held > len(self._held()):
            await self.wait_changed(1.0)
        held = self._held()
        self._settlement.forget_redeliveries()
        await self._settlement.release(held)

    async def touch_link(self) -> None:
        """Give the youngest of what waits back, to have it again: a link over which nothing goes is taken away."""
        youngest = self._roads.drop_youngest()
        if youngest is not None:
            await self._settlement.release([youngest])

    def fail(self, error: SbpairError) -> None:
        self._latch.fail(error)

    def abandon_all(self) -> None:
        self._settlement.abandon_all()

    async def keep_locks(self) -> None:
        """Renew the locks of what is in hand, until cancelled."""
        await renew_locks(self._settlement.held, self._source, self._context, self._drop_lost)

    # Onto a road, and along it.

    def _direct(self, arrivals: Sequence[ReceivedMessage]) -> None:
        orders: defaultdict[str, list[RoutedMessage]] = defaultdict(list)
        decisions = self._route(list(map(get_facts, arrivals)))
        for arrival, decision, turn in zip(arrivals, decisions, map(get_ordinal, arrivals), strict=True):
            if isinstance(decision, Send):
                orders[decision.destination].append(_order((arrival, decision, turn)))
            else:
                self._settlement.dead_letter(arrival, decision)
        for destination, come in orders.items():
            road = self._roads.to(destination)
            road.add(come)
            self._departures.schedule(road)

    async def _advance(self, road: DestinationQueue) -> None:
        """One round with what is at the head of a road."""
        try:
            link = await self._may_leave(road)
            if self._context.send_cost is not None and road.cost is None:
                road.cost = await self._context.send_cost(road.destination)
            if link is not None:
                await self._send_round(road, link)
        except (Unavailable, ProtocolError) as error:
            await self._rest(road, error)
        except (ServiceRefused, EntityMissing) as error:
            self._refuse(road, road.take(self._context.breaker.limit(MAX_ROUND)), error)
        except SbpairError as error:
            self._latch.fail(error)

    async def _may_leave(self, road: DestinationQueue) -> DestinationLink | None:
        """Wait until the destination takes a message; None where `finish` has ended the wait."""
        link = await self._latch.unless_aborted(self._primary.ready(road.destination))
        if link is None:
            return None
        self._context.breaker.found()
        return None if self._latch.stopping.is_set() else link

    async def _send_round(self, road: DestinationQueue, link: DestinationLink) -> None:
        """Send what may be on its way at the same time, and see what becomes of it."""
        flights = self._pack(road, link)
        may_leave = False
        try:
            if flights and await self._pace(road, flights):
                await self._write_down(road, flights)
                may_leave = True
        finally:
            if not may_leave:
                road.put_back(order for flight in flights for order in flight.routed)
        if may_leave:
            await self._fly(road, link, flights)

    def _pack(self, road: DestinationQueue, link: DestinationLink) -> list[BatchSend]:
        flights: list[BatchSend] = []
        left_over: list[RoutedMessage] = []
        now = self._loop.time()
        for group in road.next_round(self._limit(road), link.room):
            orders = group
            if min(map(get_lock_until, group)) <= now:
                # Whatever has come in their place goes before those behind them.
                self._return_lost(group, now)
                left_over += [order for order in group if order.message.lock_until > now]
                continue
            if self._context.ttl is not TimeToLive.ORIGINAL:
                orders = [order for order in map(self._directed_anew, orders) if order is not None]
            if orders:
                parcel = link.encode(orders)
                flights.append(BatchSend(orders[: parcel.count], parcel))
                left_over += orders[parcel.count :]
        if left_over:
            road.put_back(left_over)
        return flights

    def _return_lost(self, orders: list[RoutedMessage], now: float) -> None:
        """Those whose lock is over are somebody else's by now, or will be delivered to us again."""
        for order in orders:
            if order.message.lock_until <= now:
                self._settlement.count_returned(order.message)

    def _directed_anew(self, order: RoutedMessage) -> RoutedMessage | None:
        """Where time counts, what was decided when a message came may be different by now."""
        [decision] = self._route([order.message.facts])
        if isinstance(decision, Send):
            return order._replace(send=decision)
        self._settlement.dead_letter(order.message, decision)
        return None

    async def _pace(self, road: DestinationQueue, flights: list[BatchSend]) -> bool:
        """Wait until so many may leave; False where they may not any more."""
        pace = self._context.rate_limiter
        if pace is not None:
            count = sum(len(flight.routed) for flight in flights)
            seconds = pace.reserve(self._loop.time(), count, road.cost or 1.0)
            while seconds > 0.0:
                if await self._latch.stopping_within(seconds):
                    return False
                seconds = pace.paused(self._loop.time())
            now = self._loop.time()
            return all(order.message.lock_until > now for flight in flights for order in flight.routed)
        return True

    def _limit(self, road: DestinationQueue) -> int:
        pace = self._context.rate_limiter
        if pace is None:
            return MAX_ROUND
        return min(MAX_ROUND, pace.max_batch(self._loop.time(), road.cost or 1.0))

    async def _write_down(self, road: DestinationQueue, flights: list[BatchSend]) -> None:
        journal = self._context.journal
        numbers = journal.note_sending([flight.keys for flight in flights], road.destination)
        try:
            await journal.on_disk()
            journal.may_send()  # the disk may have taken longer than a lease lasts
        except BaseException:
            for number in numbers:
                journal.unsent(number)
            raise
        for flight, number in zip(flights, numbers, strict=True):
            flight.number = number

    async def _fly(self, road: DestinationQueue, link: DestinationLink, flights: list[BatchSend]) -> None:
        """Let them leave at once, and wait for every answer. Raises the error that says why the road must rest."""
        landed: list[BatchSend] = []
        worst: SbpairError | None = None
        try:
            for flight in flights:
                if worst is not None:
                    self._unsent(road, flight)
                elif (error := flight.start(link)) is not None:
                    worst = self._failed(road, flight, error)
            for flight in flights:
                if not flight.pending:
                    continue
                error = await flight.outcome()
                if error is None:
                    landed.append(flight)
                else:
                    worst = self._failed(road, flight, error) or worst
        finally:
            for flight in flights:
                if flight.pending:
                    self._settlement.doubt(flight, "the send was cancelled")
                    road.put_back(flight.routed)
            self._accepted(road, landed)
        self._settlement.settle_soon()
        if worst is not None:
            raise worst
        self._awake(road)

    def _accepted(self, road: DestinationQueue, flights: list[BatchSend]) -> None:
        """The primary has them, whatever else goes wrong now."""
        for flight in flights:
            if len(flight.routed) == 1:
                road.answered_alone(flight.routed[0], accepted=True)
        self._settlement.record_accepted(road.destination, flights)

    def _failed(self, road: DestinationQueue, flight: BatchSend, error: SbpairError) -> SbpairError | None:
        """What becomes of messages that were not accepted. Answers why the road must rest, if it must."""
        if isinstance(error, InDoubt):
            self._settlement.doubt(flight, error.message)
            road.put_back(flight.routed)
            return error
        if isinstance(error, (ServiceRefused, EntityMissing)):
            self._context.journal.unsent(flight.number)
            if isinstance(error, ServiceRefused) and len(flight.routed) > 1:
                # One of them is to blame, or their being together: they are told apart by sending them in another way.
                road.refused_together(flight.routed)
                road.put_back(flight.routed)
            else:
                self._refuse(road, flight.routed, error)
            return None
        self._unsent(road, flight)
        return error

    def _unsent(self, road: DestinationQueue, flight: BatchSend) -> None:
        self._context.journal.unsent(flight.number)
        road.put_back(flight.routed)

    def _refuse(self, road: DestinationQueue, orders: Sequence[RoutedMessage], error: SbpairError) -> None:
        if isinstance(error, EntityMissing):
            doubt = self._context.breaker.missing(road.destination.lower(), len(orders))
            if doubt is not None:
                road.put_back(orders)
                self._latch.fail(doubt)
                return
        self._awake(road)
        decide = missing if isinstance(error, EntityMissing) else refused
        for order in orders:
            road.answered_alone(order, accepted=False)
            self._settlement.dead_letter(order.message, decide(road.destination, error.message))

    def _awake(self, road: DestinationQueue) -> None:
        if road.resting is not None:
            self._context.on_event(DestinationRecovered(self._source.queue, road.destination))
        road.resting, road.failures = None, 0

    async def _rest(self, road: DestinationQueue, error: SbpairError) -> None:
        road.failures += 1
        road.resting = error.message
        if isinstance(error, Throttled) and self._context.rate_limiter is not None:
            self._context.rate_limiter.busy(self._loop.time())
        seconds = self._context.timings.backoff.seconds(road.failures, self._context.jitter())
        self._context.on_event(
            DestinationBackingOff(self._source.queue, road.destination, error.message, seconds, len(road))
        )
        self._latch.changed.set()
        await self._latch.stopping_within(seconds)

    def _drop_lost(self, arrival: ReceivedMessage) -> None:
        # One that is on its way this very moment does not wait: its road decides.
        if self._roads.drop(arrival):
            self._settlement.count_returned(arrival)

    # Small things.

    def _service_ms(self) -> int:
        """What time it is by the service's clock, which also says when messages came; by ours, until that is known."""
        known = self._source.service_ms
        return self._context.now_ms() if known is None else known

    def _held(self) -> list[ReceivedMessage]:
        """What nothing is done with: it waits on its road, or for an elder that does."""
        return self._roads.waiting() + self._settlement.redeliveries
