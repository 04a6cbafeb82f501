"""What a pair's senders know together: where each entity stands, which backlog queues serve, what is due and when.

No I/O, and no clock: the time is an argument. The law: one agenda for all entities and queues, so that one task waits
for however many timers; and whoever listens is told outside of the lock, in the order in which things happened.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Literal, NamedTuple

from sbpair.azure.data_errors import redacted
from sbpair.backlog import queue_path
from sbpair.failover.events import (
    EntityChanged,
    OutboxBegun,
    OutboxClosed,
    OutboxEmptied,
    OutboxExpired,
    OutboxRefused,
    OutboxStuck,
    QueueLeft,
    QueueReturned,
    SenderEvent,
    SendInDoubt,
    SizeUnknown,
    SyphonFaulted,
)
from sbpair.failover.failures import is_passing
from sbpair.failover.rotation import Rotation
from sbpair.failover.states import TO_THE_BACKLOG, Delays, EntityEvent, EntityStatus, State, after

if TYPE_CHECKING:
    from sbpair.model.pair import Pair

JITTER = 0.1
"""Pings and probes come so much earlier or later, as a share of their interval: clients that failed together part."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ping:
    """Send a ping to an entity of the primary, and say how it went with `pinged`."""

    entity: str


@dataclass(frozen=True, slots=True)
class Probe:
    """See whether a backlog queue can be sent to again, and say so with `probed`."""

    queue: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Take an entity's messages out of the outbox, and say so with `delivered`."""

    entity: str


Errand = Ping | Probe | Deliver


class SendTarget(NamedTuple):
    """Where messages of an entity may go: to itself, or into a backlog queue."""

    side: Literal["primary", "backlog"]
    path: str


class FailoverState:
    """Shared by all senders of one client. Every method may be called from any thread; none waits for anything."""

    def __init__(
        self,
        pair: Pair,
        on_event: Callable[[SenderEvent], None] | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._chance = chance or random.Random()  # noqa: S311  it spreads load, and guards nothing
        self._interval = pair.ping_interval
        self._delays = Delays(pair.failover_interval, self._ping_delay)
        self._rotation = Rotation([queue_path(pair.primary.name, index) for index in range(pair.backlog_queues)])
        self._paths: dict[str, str] = {}
        self._standings: dict[str, EntityStatus] = {}
        self.unwell: set[str] = set()
        """The entities that are not healthy."""
        self._agenda: list[tuple[float, int, Errand]] = []
        self._probes: dict[str, float] = {}
        self._deliveries: dict[str, float | None] = {}
        self._stuck: dict[str, Exception] = {}
        self._held_for: dict[str, str] = {}
        self._counted = 0
        self._all_forced = False
        self._on_event = on_event
        self._untold: deque[SenderEvent] = deque()
        self._lock = RLock()
        self._depth = 0
        self._telling = RLock()
        self.on_sooner: Callable[[], None] = lambda: None
        self.fail_at_once = pair.failover_interval == 0
        self.backlog_bytes: int | None = None

    # What senders ask, and what they report -----------------------------------------------------

    def register(self, entity: str) -> None:
        """Know an entity. Case does not count, in any of these methods."""
        with self._lock:
            key = entity.lower()
            if key not in self._paths:
                self._paths[key] = entity
                self._standings[key] = EntityStatus(State.FORCED if self._all_forced else State.HEALTHY)
                if self._all_forced:
                    self.unwell.add(key)

    def to_backlog(self, entity: str, now: float) -> bool:
        """Whether messages for it go to the backlog. Raises what a broken entity is broken for."""
        standing = self._standings[entity.lower()]
        if standing.state is State.HEALTHY:
            return False
        if standing.timer is not None and standing.timer <= now and standing.state is State.FAILING:
            standing = self._happened(entity, EntityEvent.TIME_UP, now)
        if standing.state is State.BROKEN and standing.error is not None:
            raise standing.error.with_traceback(None)
        return standing.state in TO_THE_BACKLOG

    def sent(self, entity: str, now: float) -> None:
        if self._standings[entity.lower()].state is not State.HEALTHY:
            self._happened(entity, EntityEvent.SENT, now)

    def failed(self, entity: str, error: Exception, now: float) -> None:
        """A send to the primary failed with an error that counts."""
        self._happened(entity, EntityEvent.FAILED, now, error)
        # An interval of 0 has passed as soon as it begins.
        standing = self._standings[entity.lower()]
        if standing.state is State.FAILING and standing.timer is not None and standing.timer <= now:
            self._happened(entity, EntityEvent.TIME_UP, now)

    def queue_for(self, current: str | None) -> tuple[str, bool]:
        """The backlog queue to send to, and whether there would be another if it failed."""
        with self._lock:
            queue = self._rotation.pick(current, self._chance.choice)
            return queue, self._rotation.spares(queue)

    def queue_failed(self, queue: str, error: Exception, now: float) -> None:
        with self._changing():
            if self._rotation.fail(queue):
                self._untold.append(QueueLeft(queue, _line(error)))
                self._probe_later(queue, now)

    def queue_took(self, queue: str, now: float) -> None:
        if queue in self._rotation.out:
            self.probed(queue, None, now)

    def in_doubt(self, entity: str, message_ids: tuple[str, ...], error: Exception) -> None:
        with self._changing():
            self._untold.append(SendInDoubt(entity, message_ids, _line(error)))

    def size_unknown(self, entity: str, size: int, error: Exception) -> None:
        with self._changing():
            self._untold.append(SizeUnknown(entity, size, _line(error)))

    def tell(self, event: SenderEvent) -> None:
        """Have whoever listens be told of something that happened beside the senders."""
        with self._changing():
            self._untold.append(event)

    def place_for(self, entity: str, queue: str | None, now: float) -> SendTarget | None:
        """Where something may be sent with some hope; None where both sides are away. `queue` is the last one used."""
        if self._standings[entity.lower()].state is State.BROKEN:
            return None
        if not self.to_backlog(entity, now):
            return SendTarget("primary", self._paths[entity.lower()])
        queue, _ = self.queue_for(queue)
        return None if queue in self._rotation.out else SendTarget("backlog", queue)

    # What there is in the outbox ----------------------------------------------------------------

    def kept(self, entity: str, error: Exception | None, now: float) -> None:
        """The outbox has messages of an entity: `error` is why, None where they are from before."""
        with self._changing():
            self.register(entity)
            if entity.lower() in self._deliveries:
                return
            if error is not None:
                self._untold.append(OutboxBegun(entity, _line(error)))
            self._deliver_at(entity.lower(), now if error is None else now + self._ping_delay())

    def stuck(self, entity: str) -> Exception | None:
        """What the entity itself refuses the outbox's messages with, where that will not pass."""
        return self._stuck.get(entity.lower())

    def emptied(self, entity: str) -> None:
        """A delivery ended with nothing left."""
        with self._changing():
            key = entity.lower()
            self._stuck.pop(key, None)
            self._held_for.pop(key, None)
            if self._deliveries.pop(key, 0.0) is None:
                self._untold.append(OutboxEmptied(self._paths[key]))

    def held(self, entity: str, error: Exception | None, place: SendTarget | None, now: float) -> None:
        """A delivery ended with something left: by an error at this place, or where its turn was over without one."""
        with self._changing():
            key = entity.lower()
            self._stuck.pop(key, None)
            self._deliver_at(key, now if place is not None and error is None else now + self._ping_delay())
            if error is None or is_passing(error):
                return
            if place is not None and place.side == "primary":
                self._stuck[key] = error
            if self._held_for.get(key) != _line(error):
                self._held_for[key] = _line(error)
                self._untold.append(OutboxStuck(self._paths[key], _line(error)))

    def refused(self, entity: str, message_ids: tuple[str, ...], error: Exception) -> None:
        with self._changing():
            self._untold.append(OutboxRefused(entity, message_ids, _line(error)))

    def expired(self, entity: str, message_ids: tuple[str, ...]) -> None:
        with self._changing():
            self._untold.append(OutboxExpired(entity, message_ids))

    def outbox_closed(self, path: str, messages: int) -> None:
        with self._changing():
            self._untold.append(OutboxClosed(path, messages))

    # What an operator commands, and asks --------------------------------------------------------

    def force(self, entity: str | None, now: float) -> None:
        """To the backlog until `failback`; None is every entity, also those that come later."""
        self._command(EntityEvent.FORCE, entity, now)

    def failback(self, entity: str | None, now: float) -> None:
        """To the primary at once; None is every entity."""
        self._command(EntityEvent.FAILBACK, entity, now)

    def states(self) -> dict[str, State]:
        with self._lock:
            return {path: self._standings[key].state for key, path in self._paths.items()}

    @property
    def queues_out(self) -> frozenset[str]:
        return self._rotation.out

    # What the one timer does --------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When something will be due; None for nothing."""
        with self._lock:
            while self._agenda and not self._is_current(*self._agenda[0]):
                heapq.heappop(self._agenda)
            return self._agenda[0][0] if self._agenda else None

    def due(self, now: float) -> Errand | None:
        """The next errand whose time has come, if there is one. Failovers that are due happen on the way."""
        with self._changing():
            while (when := self.next_due()) is not None and when <= now:
                errand = heapq.heappop(self._agenda)[2]
                if isinstance(errand, Probe):
                    del self._probes[errand.queue]
                    return errand
                if isinstance(errand, Deliver):
                    if self._may_deliver(errand.entity, now):
                        return errand
                    continue
                was_pinging = self._standings[errand.entity.lower()].pinging
                if self._happened(errand.entity, EntityEvent.TIME_UP, now).pinging and not was_pinging:
                    return errand
        return None

    def pinged(self, entity: str, error: Exception | None, for_good: bool, now: float) -> None:
        """A ping ended: with an error, or accepted. `for_good` is whether the error will not pass."""
        refused = EntityEvent.PING_REFUSED if for_good else EntityEvent.PING_UNANSWERED
        self._happened(entity, EntityEvent.PING_ACCEPTED if error is None else refused, now, error)

    def probed(self, queue: str, error: Exception | None, now: float) -> None:
        """A probe of a backlog queue ended."""
        with self._changing():
            if error is not None:
                if queue in self._rotation.out:
                    self._probe_later(queue, now)
            elif self._rotation.succeed(queue):
                self._probes.pop(queue, None)
                self._untold.append(QueueReturned(queue))
                for key in self._deliveries:
                    self._deliver_now(key, now)

    # Inside -------------------------------------------------------------------------------------

    def _happened(self, entity: str, event: EntityEvent, now: float, error: Exception | None = None) -> EntityStatus:
        with self._changing():
            key = entity.lower()
            before = self._standings[key]
            standing = self._standings[key] = after(before, event, now, self._delays, error)
            self.unwell.discard(key) if standing.state is State.HEALTHY else self.unwell.add(key)
            if standing.timer is not None and standing.timer != before.timer:
                self._put(standing.timer, Ping(self._paths[key]))
            if standing.state is not before.state:
                reason = f"{event.value}: {_line(error)}" if error else event.value
                self._untold.append(EntityChanged(self._paths[key], before.state, standing.state, reason))
                self._deliver_now(key, now)
        return standing

    def _command(self, event: EntityEvent, entity: str | None, now: float) -> None:
        with self._changing():
            if entity is None:
                self._all_forced = event is EntityEvent.FORCE
            else:
                self.register(entity)
            for path in [entity] if entity is not None else list(self._paths.values()):
                self._happened(path, event, now)

    def _probe_later(self, queue: str, now: float) -> None:
        self._probes[queue] = now + self._ping_delay()
        self._put(self._probes[queue], Probe(queue))

    def _may_deliver(self, entity: str, now: float) -> bool:
        if self.place_for(entity, None, now) is None:
            # Whatever brings a side back makes it due at once.
            self._deliver_at(entity.lower(), now + self._ping_delay())
            return False
        self._deliveries[entity.lower()] = None
        return True

    def _deliver_now(self, key: str, now: float) -> None:
        """Unless there is nothing to deliver, or a delivery is under way: that one looks where it may go itself."""
        if self._deliveries.get(key) is not None:
            self._deliver_at(key, now)

    def _deliver_at(self, key: str, when: float) -> None:
        self._deliveries[key] = when
        self._put(when, Deliver(self._paths[key]))

    def _put(self, when: float, errand: Errand) -> None:
        first = self._agenda[0][0] if self._agenda else None
        self._counted += 1
        heapq.heappush(self._agenda, (when, self._counted, errand))
        if first is None or when < first:
            self.on_sooner()

    def _is_current(self, when: float, _number: int, errand: Errand) -> bool:
        if isinstance(errand, Probe):
            return self._probes.get(errand.queue) == when
        if isinstance(errand, Deliver):
            return self._deliveries.get(errand.entity.lower()) == when
        return self._standings[errand.entity.lower()].timer == when

    def _ping_delay(self) -> float:
        return self._interval * self._chance.uniform(1 - JITTER, 1 + JITTER)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock, and tell what happened once the outermost change is over."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                outermost = not self._depth
        if outermost and self._untold:
            self._tell()

    def _tell(self) -> None:
        """What a listener raises is its own affair, and no message's."""
        with self._telling:
            while self._untold:
                event = self._untold.popleft()
                log.log(_LEVELS[type(event)], "%s", event)
                if self._on_event is None:
                    continue
                try:
                    self._on_event(event)
                except Exception:
                    log.exception("a listener to the sender's events failed")


_LEVELS = {
    EntityChanged: logging.WARNING,
    QueueLeft: logging.WARNING,
    QueueReturned: logging.INFO,
    SendInDoubt: logging.WARNING,
    SizeUnknown: logging.WARNING,
    SyphonFaulted: logging.WARNING,
    OutboxBegun: logging.WARNING,
    OutboxStuck: logging.WARNING,
    OutboxRefused: logging.WARNING,
    OutboxExpired: logging.WARNING,
    OutboxEmptied: logging.INFO,
    OutboxClosed: logging.INFO,
}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {redacted(error)}"
