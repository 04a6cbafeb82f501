"""The settle-after-accept loop: at-least-once, and this is the one place that makes it so.

The law: a delivery is completed in the backlog only after the primary has accepted the message. Whatever happens before
that, the message stays in the backlog; whatever happens after, it may be delivered again, and the journal knows it.
Messages of one destination are sent one after the other, in backlog order, also across a retry; a destination that
fails rests with what it has, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.errors import (
    EntityMissing,
    InDoubt,
    MessageLockLost,
    ProtocolError,
    SbpairError,
    ServiceRefused,
    Unavailable,
)
from sbpair.move.events import DeadLettered, DestinationBack, DestinationResting, SyphonEvent
from sbpair.move.journal import Journal
from sbpair.move.receipt import Named, Tally
from sbpair.move.route import DeadLetter, Expire, Send, key_of, missing, refused, route

if TYPE_CHECKING:
    from sbpair.move.engine import Arrival, Destination, Source
    from sbpair.move.route import Facts, Key

log = logging.getLogger(__name__)

REST_SECONDS, REST_MOST_SECONDS = 1.0, 60.0

RENEW_LEFT_SECONDS = 25.0
"""Locks are renewed when this much is left of them."""

RENEW_REST_SECONDS = 1.0
"""How often locks are looked at in the worst case: those of a queue whose lock is shorter than what should be left."""

LARGEST_BYTES = 1024 * 1024
"""How large a message is taken to be before the first one has come."""


@dataclass
class Setting:
    """What all lanes of a run share. `namespace` is where the backlog is."""

    namespace: str
    tally: Tally = field(default_factory=Tally)
    journal: Journal = field(default_factory=Journal)
    on_event: Callable[[SyphonEvent], None] = lambda _event: None
    hold: int = 1_000
    hold_bytes: int = 16 * 1024 * 1024
    jitter: Callable[[], float] = random.random


class _Road:
    """One destination: what waits for it, in order, and how it has been behaving."""

    def __init__(self, destination: str) -> None:
        self.destination = destination
        self.waiting: deque[Arrival] = deque()
        self.failures = 0
        self.resting: str | None = None
        self.working = False
        self.patience: asyncio.Timeout | None = None


class Mover:
    """A lane's hands: takes arrivals over, and has each of them end in exactly one bucket of the receipt.

    `fatal` is why no message at all can be sent; `trouble` is why the backlog may not know yet what became of some.
    """

    def __init__(self, source: Source, primary: Destination, tasks: asyncio.TaskGroup, setting: Setting) -> None:
        self._source = source
        self._primary = primary
        self._tasks = tasks
        self._setting = setting
        self._loop = asyncio.get_running_loop()
        self._roads: dict[str, _Road] = {}
        self._hands: dict[int, Arrival] = {}
        self._by_key: dict[Key, Arrival] = {}
        self._bytes = 0
        self._largest = 0
        self._doubtful: set[int] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self.fatal: SbpairError | None = None
        self.trouble: Unavailable | None = None

    # What a lane asks.

    @property
    def in_hand(self) -> int:
        return len(self._hands)

    @property
    def room(self) -> int:
        """How many more deliveries may be taken in, if none is larger than the largest so far."""
        left = self._setting.hold_bytes - self._bytes
        if left <= 0:
            return 0
        return max(0, min(self._setting.hold - len(self._hands), max(1, left // (self._largest or LARGEST_BYTES))))

    def holds(self) -> set[int]:
        """The sequence numbers of what is in hand."""
        return {arrival.facts.sequence_number for arrival in self._hands.values()}

    def resting(self) -> dict[str, str]:
        """Destinations that take nothing for now, and why."""
        return {road.destination: road.resting for road in self._roads.values() if road.resting is not None}

    def stuck(self, failures: int) -> bool:
        """Whether everything in hand waits for destinations that have failed so often in a row."""
        waiting = sum(len(road.waiting) for road in self._roads.values() if road.failures >= failures)
        return waiting == len(self._hands)

    async def changed(self, seconds: float) -> None:
        """Wait until something has ended or begun to rest, but not longer."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    # What a lane does.

    def accept(self, arrivals: Sequence[Arrival]) -> None:
        """Take deliveries over."""
        for arrival in arrivals:
            key = self._key(arrival.facts)
            before = self._by_key.get(key)
            repeat = before is not None or self._setting.journal.seen(key)
            self._setting.tally.received(self._source.queue, repeat=repeat)
            self._hands[id(arrival)] = self._by_key[key] = arrival
            self._bytes += arrival.facts.size
            self._largest = max(self._largest, arrival.facts.size)
            if before is not None:
                # It came again: the one in hand has lost its lock.
                before.lock_until = 0.0
                self._drop_lost(before)
            if self._setting.journal.was_accepted(key):
                self._confirm(arrival)
            else:
                self._direct(arrival)
        self._taken.set()

    async def finish(self) -> None:
        """Stop: what is in flight is finished and settled, the rest is released."""
        self._stopping.set()
        await self._source.stop()
        for road in self._roads.values():
            if road.patience is not None:
                road.patience.reschedule(self._loop.time())
        while any(road.working for road in self._roads.values()) or len(self._hands) > len(self._held()):
            await self.changed(1.0)
        await self._release(self._held())

    def write_off(self) -> None:
        """The source is gone, and with it every lock: what has not ended goes back to the backlog by itself."""
        for arrival in list(self._hands.values()):
            self._return(arrival)

    async def keep_locks(self) -> None:
        """Renew the locks of what is in hand, until cancelled."""
        while True:
            locked = [arrival for arrival in self._hands.values() if arrival.lock_until > 0.0]
            if not locked:
                self._taken.clear()
                await self._taken.wait()
                continue
            # A lock that is taken later runs out later: nothing that arrives while this sleeps is more urgent.
            soonest = min(arrival.lock_until for arrival in locked)
            await asyncio.sleep(max(RENEW_REST_SECONDS, soonest - RENEW_LEFT_SECONDS - self._loop.time()))
            await self._renew([each for each in self._hands.values() if self._ends_soon(each)])

    # One destination.

    def _direct(self, arrival: Arrival) -> None:
        decision = route(arrival.facts)
        if isinstance(decision, Send):
            road = self._roads.setdefault(decision.destination.lower(), _Road(decision.destination))
            road.waiting.append(arrival)
            if not road.working:
                road.working = True
                self._tasks.create_task(self._work(road), name=f"send to {road.destination}")
        elif isinstance(decision, (DeadLetter, Expire)):
            self._spawn(self._dead_letter(arrival, decision), arrival)

    async def _work(self, road: _Road) -> None:
        try:
            while road.waiting and not self._stopping.is_set():
                await self._advance(road)
        finally:
            road.working = False
            self._changed.set()

    async def _advance(self, road: _Road) -> None:
        """One try with the message at the head of a road."""
        arrival = road.waiting[0]
        if arrival.lock_until <= self._loop.time():
            # It is somebody else's by now, or will be delivered to us again.
            road.waiting.popleft()
            self._return(arrival)
            return
        if self._setting.journal.was_accepted(self._key(arrival.facts)):
            # It lost its lock in our hands, came again, and was sent in its first life.
            road.waiting.popleft()
            self._confirm(arrival)
            return
        try:
            if await self._may_leave(road):
                await self._send(road, arrival)
        except (Unavailable, ProtocolError) as error:
            await self._rest(road, error.message)
        except (ServiceRefused, EntityMissing) as error:
            road.waiting.popleft()
            self._awake(road)
            decide = missing if isinstance(error, EntityMissing) else refused
            await self._dead_letter(arrival, decide(road.destination, error.message))
        except SbpairError as error:
            self._give_up(error)

    async def _may_leave(self, road: _Road) -> bool:
        """Wait until the destination takes a message; False where `finish` has ended the wait."""
        try:
            async with asyncio.timeout(None) as road.patience:
                await self._primary.ready(road.destination)
        except TimeoutError:
            return False
        finally:
            road.patience = None
        return not self._stopping.is_set()

    async def _send(self, road: _Road, arrival: Arrival) -> None:
        decision = route(arrival.facts)
        assert isinstance(decision, Send)  # noqa: S101  nothing else gets onto a road
        journal = self._setting.journal
        flight = journal.sending([self._key(arrival.facts)], road.destination)
        try:
            await self._primary.send(arrival, decision)
        except asyncio.CancelledError:
            self._doubt(arrival, flight, "the send was cancelled")
            raise
        except InDoubt as error:
            self._doubt(arrival, flight, error.message)
            raise
        except SbpairError:
            journal.unsent(flight)
            raise
        road.waiting.popleft()
        self._setting.tally.sent(self._source.queue, road.destination, arrival.facts.size)
        self._spawn(self._complete(arrival), arrival)
        self._awake(road)
        # Last, since it raises where it cannot be written down, and accepted it is all the same.
        journal.accepted(flight)

    def _give_up(self, error: SbpairError) -> None:
        """No message's fault: every one of them would meet the same."""
        self.fatal = self.fatal or error
        self._stopping.set()
        self._source.interrupt()

    def _awake(self, road: _Road) -> None:
        if road.resting is not None:
            self._setting.on_event(DestinationBack(self._source.queue, road.destination))
        road.resting, road.failures = None, 0

    async def _rest(self, road: _Road, reason: str) -> None:
        road.failures += 1
        road.resting = reason
        longest = min(REST_MOST_SECONDS, REST_SECONDS * 2 ** min(road.failures - 1, 16))
        seconds = longest * (0.5 + self._setting.jitter() / 2)
        self._setting.on_event(
            DestinationResting(self._source.queue, road.destination, reason, seconds, len(road.waiting))
        )
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # The ends that a delivery can come to.

    def _confirm(self, arrival: Arrival) -> None:
        """The primary has it from before: only the backlog is still to be told."""
        self._setting.tally.ended(self._source.queue, "already_sent")
        self._spawn(self._complete(arrival), arrival)

    async def _complete(self, arrival: Arrival) -> None:
        """Settle what the primary has. A settlement that fails changes nothing about that."""
        try:
            await self._source.complete([arrival])
        except SbpairError as error:
            self._not_settled("completed", [arrival], error)
        else:
            self._setting.journal.completed([self._key(arrival.facts)])
        self._end(arrival, None)

    async def _dead_letter(self, arrival: Arrival, decision: DeadLetter | Expire) -> None:
        facts = arrival.facts
        try:
            await self._source.dead_letter(arrival, decision.reason, decision.description)
        except SbpairError as error:
            self._not_settled("dead-lettered", [arrival], error)
            self._return(arrival)
            return
        named = self._named(facts, decision.description)
        bucket = "expired" if isinstance(decision, Expire) else "dead_lettered"
        self._setting.tally.dead_lettered(named, bucket=bucket)
        self._setting.on_event(
            DeadLettered(named.queue, named.sequence_number, named.message_id, decision.reason, named.reason)
        )
        self._setting.journal.completed([self._key(facts)])
        self._end(arrival, None)

    async def _release(self, arrivals: list[Arrival]) -> None:
        try:
            await self._source.release(arrivals)
        except SbpairError as error:
            # Their locks run out, or have: they are back either way.
            self._not_settled("released", arrivals, error)
        for arrival in arrivals:
            self._return(arrival)

    def _not_settled(self, what: str, arrivals: Sequence[Arrival], error: SbpairError) -> None:
        numbers = ", ".join(str(arrival.facts.sequence_number) for arrival in arrivals[:10])
        log.info("%s: not %s: %s: %s", self._source.queue, what, numbers, error)
        if isinstance(error, Unavailable):
            self.trouble = error

    def _return(self, arrival: Arrival) -> None:
        if id(arrival) not in self._hands:
            return
        key = self._key(arrival.facts)
        if self._setting.journal.was_accepted(key):
            self._end(arrival, None)  # it was counted when the primary took it
            return
        self._setting.journal.returned([key])
        self._end(arrival, "in_doubt" if id(arrival) in self._doubtful else "released")

    def _end(self, arrival: Arrival, bucket: str | None) -> None:
        if self._hands.pop(id(arrival), None) is None:
            return
        key = self._key(arrival.facts)
        if self._by_key.get(key) is arrival:
            del self._by_key[key]
        self._bytes -= arrival.facts.size
        self._doubtful.discard(id(arrival))
        if bucket is not None:
            self._setting.tally.ended(self._source.queue, bucket)
        self._changed.set()

    # Locks.

    def _ends_soon(self, arrival: Arrival) -> bool:
        return 0.0 < arrival.lock_until <= self._loop.time() + RENEW_LEFT_SECONDS

    async def _renew(self, arrivals: list[Arrival]) -> None:
        if not arrivals:
            return
        try:
            await self._source.renew(arrivals)
        except MessageLockLost:
            if len(arrivals) == 1:
                arrivals[0].lock_until = 0.0
                self._drop_lost(arrivals[0])
                return
            for arrival in arrivals:
                if id(arrival) in self._hands:
                    await self._renew([arrival])
        except SbpairError as error:
            log.info("locks of %s were not renewed: %s", self._source.queue, error)

    def _drop_lost(self, arrival: Arrival) -> None:
        for road in self._roads.values():
            # The head may be on its way this very moment: its road decides.
            if arrival in road.waiting and road.waiting[0] is not arrival:
                road.waiting.remove(arrival)
                self._return(arrival)

    # Small things.

    def _held(self) -> list[Arrival]:
        return [arrival for road in self._roads.values() for arrival in road.waiting]

    def _spawn(self, ending: Coroutine[object, object, None], arrival: Arrival) -> None:
        self._tasks.create_task(ending, name=f"settle {arrival.facts.sequence_number}")

    def _doubt(self, arrival: Arrival, flight: int, why: str) -> None:
        """Sent, and no answer: it is named once, and stays named, for it may be there twice."""
        self._setting.journal.doubtful(flight)
        if id(arrival) not in self._doubtful:
            self._doubtful.add(id(arrival))
            self._setting.tally.doubtful(self._named(arrival.facts, why))

    def _key(self, facts: Facts) -> Key:
        return key_of(self._setting.namespace, facts)

    def _named(self, facts: Facts, reason: str) -> Named:
        return Named(self._source.queue, facts.sequence_number, facts.message_id, facts.path, reason)
