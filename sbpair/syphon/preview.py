"""What a syphon would do, by looking alone: `forecast = await preview.run(pair)`.

Nothing is locked, sent or settled, and no delivery count is raised: the backlog is peeked at, and destinations are
asked for by management, or by opening a link to them over which nothing goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sbpair import cost
from sbpair.bus.attempts import attempt
from sbpair.bus.control import Entity
from sbpair.errors import (
    EntityMissing,
    NotAuthorized,
    ProtocolError,
    SbpairError,
    ServiceRefused,
    Throttled,
    Unavailable,
    Unreachable,
)
from sbpair.move.envelope import DEFERRED, SCHEDULED, facts_of, message_state, restored
from sbpair.move.pace import Pace
from sbpair.move.route import INVALID, DeadLetter, Expire, Facts, Send, missing, refused
from sbpair.syphon import queues
from sbpair.syphon.forecast import DESTINATIONS_MOST, OTHERS, Forecast, Sums
from sbpair.syphon.terms import ASSUMED_FILTERS, DEFAULT_TIER, Limits, Terms, Tiers, limits_of, tier_of
from sbpair.wire.client import connect

if TYPE_CHECKING:
    from sbpair.amqp.message import Sections
    from sbpair.bus.control import DestinationControl
    from sbpair.model import Endpoint, Pair, Retrying
    from sbpair.move.events import QueuesFound
    from sbpair.wire.client import GetToken, Wire

log = logging.getLogger(__name__)

PAGE = 250
"""Messages asked for in one look; the service gives fewer as it sees fit."""

QUEUES_AT_ONCE = 8
PATIENCE = 10
"""How often in a row the service may say that it is busy."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Event: so many messages of a queue have been looked at so far."""

    queue: str
    messages: int


OnEvent = Callable[["QueuesFound | Looked | Retrying"], object]
Sleep = Callable[[float], Awaitable[object]]


async def run(
    pair: Pair,
    terms: Terms | None = None,
    *,
    on_event: OnEvent = lambda _event: None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> Forecast:
    """Look at every backlog queue of `pair`, and say what a run by these terms would do now.

    Looking costs credits as well: it is held to those that were asked for, and else as fast as the service lets it.

    Needs Listen on the secondary namespace; with Manage there it finds stranded queues, and with Manage or Send on the
    primary it knows destinations that do not exist. Raises what keeps it from looking, such as EntityMissing where
    there is no backlog queue at all; where the primary cannot be asked, the forecast says so.
    """
    terms = terms or Terms()
    # The SDK takes half a second to load: a wrong option should not have to wait for it.
    from sbpair.bus.atom import open_queues
    from sbpair.bus.credentials import token_getter
    from sbpair.bus.destinations import open_destinations

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        control = await enter(open_queues(pair.secondary))
        there, here = await enter(open_destinations(pair.primary)), await enter(open_destinations(pair.secondary))
        get_token = await enter(token_getter(pair))
        places = _Places(pair.primary, there, stack, get_token)
        tiers = Tiers(await places.tier(), await tier_of(here))
        limits = limits_of(terms, tiers)
        pace = Pace(clock(), primary=limits.secondary_credits if terms.credits is not None else None)
        look = _Look(pair, Sums(terms.ttl, int(now() * 1000)), places, get_token, on_event, pace, clock, sleep)
        found = await queues.find(pair, control)
        on_event(found)
        await look.at_all(found.queues)
    if not look.there:
        raise queues.none_there(pair)
    return _forecast(look, terms, limits, tiers)


def _forecast(look: _Look, terms: Terms, limits: Limits, tiers: Tiers) -> Forecast:
    sums = look.sums
    secondary, primary = (tier or DEFAULT_TIER for tier in (tiers.secondary, tiers.primary))
    spent = sums.operations(len(look.there))
    return Forecast(
        queues=tuple(look.there),
        flows=tuple(sums.flows()),
        doomed=tuple(sums.doomed()),
        entities=look.places.entities(),
        limits=limits,
        seconds=sums.seconds(limits),
        estimate=cost.estimate(spent, secondary=secondary, primary=primary, prices=terms.prices),
        tiers=tiers,
        ttl=terms.ttl,
        now_ms=sums.now_ms,
        notes=(*look.notes, *look.places.notes, *_assumed(look.pair, tiers)),
    )


def _assumed(pair: Pair, tiers: Tiers) -> list[str]:
    sides = ((pair.primary, tiers.primary), (pair.secondary, tiers.secondary))
    return [f"the tier of {end.name} is not known, and taken to be {DEFAULT_TIER}" for end, tier in sides if not tier]


# Looking ----------------------------------------------------------------------------------------


@dataclass
class _Look:
    pair: Pair
    sums: Sums
    places: _Places
    get_token: GetToken | None
    on_event: OnEvent
    pace: Pace
    clock: Callable[[], float]
    sleep: Sleep
    there: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def at_all(self, found: tuple[str, ...]) -> None:
        turns = asyncio.Semaphore(QUEUES_AT_ONCE)

        async def look(queue: str) -> None:
            async with turns:
                await self._at(_Position(queue))

        try:
            async with asyncio.TaskGroup() as tasks:
                for queue in found:
                    tasks.create_task(look(queue), name=f"look at {queue}")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _at(self, position: _Position) -> None:
        go_on = partial(self._pages, position)
        try:
            await attempt(f"look at {position.queue}", go_on, sleep=self.sleep, on_event=self.on_event)
        except EntityMissing as error:
            self.notes.append(error.message)
        else:
            self.there.append(position.queue)

    async def _pages(self, position: _Position) -> None:
        async with connect(self.pair.secondary, get_token=self.get_token) as wire:
            while page := await self._page(wire, position):
                for payload in page:
                    await self._judge(position, payload)
                self.on_event(Looked(position.queue, position.messages))
                if not position.turn_the_page():
                    self.notes.append(f"{position.queue}: what lies behind an unreadable message was not looked at")
                    return

    async def _page(self, wire: Wire, position: _Position) -> list[bytes]:
        """The next messages, as soon as the service has time for it."""
        for _ in range(PATIENCE):
            await self.sleep(self.pace.delay(self.clock(), 1))
            try:
                page = await wire.peek(position.queue, position.start, PAGE)
            except Throttled as error:
                busy = error
                self.pace.busy(self.clock())
            else:
                self.pace.took(self.clock(), len(page))
                return page
        raise busy

    async def _judge(self, position: _Position, payload: bytes) -> None:
        position.messages += 1
        try:
            sections, facts = facts_of(position.queue, payload)
        except ProtocolError as error:
            unreadable = Facts(position.queue, 0, 0, None, None, size=len(payload))
            self.sums.turn_away(unreadable, None, DeadLetter(INVALID, error.message))
            return
        position.highest = max(position.highest, facts.sequence_number)
        decision, stays = self.sums.decide(facts), _STAYS.get(message_state(sections))
        destination = None if isinstance(decision, DeadLetter) else self.places.name(facts.path or "")
        if stays is not None:
            self.sums.stays(facts, destination, stays)
        elif isinstance(decision, Send):
            await self._judge_send(sections, facts, decision)
        elif isinstance(decision, (DeadLetter, Expire)):
            self.sums.turn_away(facts, destination, decision)

    async def _judge_send(self, sections: Sections, facts: Facts, order: Send) -> None:
        place = await self.places.find(order.destination)
        destination = self.places.name(order.destination)
        doom = _refusal(place, sections, facts, order, self.sums.now_ms) if isinstance(place, Entity) else place
        if doom is not None:
            self.sums.turn_away(facts, destination, doom)
        else:
            known = place.filters if isinstance(place, Entity) else None
            self.sums.send(facts, destination, ASSUMED_FILTERS if known is None else known)


_STAYS = {DEFERRED: "deferred", SCHEDULED: "scheduled"}


@dataclass(slots=True)
class _Position:
    """How far a queue has been looked at. In a partitioned queue, the partition is the highest part of a number."""

    queue: str
    start: int = 0
    highest: int = -1
    messages: int = 0

    def turn_the_page(self) -> bool:
        """False where this page did not say where the next one begins."""
        moved = self.highest >= self.start
        self.start = self.highest + 1
        return moved


def _refusal(entity: Entity, sections: Sections, facts: Facts, order: Send, now_ms: int) -> DeadLetter | None:
    """Why a destination that is there would not take a message, if it would not."""
    if entity.requires_session and order.session_id is None and sections.read_properties().group_id is None:
        return refused(order.destination, "it requires sessions, and the message has none")
    most = entity.message_bytes
    # In the backlog a message is larger, by its aliases.
    if most is not None and facts.size > most and len(restored(sections, order, now_ms)) > most:
        return refused(order.destination, f"it is larger than the {most} bytes that are allowed")
    return None


# Destinations -----------------------------------------------------------------------------------


class _Places:
    """The destinations in the primary, each asked for once: by management, else by a link over which nothing goes."""

    def __init__(
        self, endpoint: Endpoint, control: DestinationControl, stack: AsyncExitStack, get_token: GetToken | None
    ) -> None:
        self._endpoint = endpoint
        self._control = control
        self._stack = stack
        self._get_token = get_token
        self._names: dict[str, str] = {}
        self._found: dict[str, Entity | DeadLetter | None] = {}
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._opening = asyncio.Lock()
        self._wire: Wire | None = None
        self._managed = self._answers = True
        self.notes: list[str] = []

    async def tier(self) -> str | None:
        try:
            return await self._control.tier()
        except NotAuthorized:
            return None
        except Unavailable as error:
            self._give_up(error)
            return None

    def name(self, path: str) -> str:
        """What a destination is counted as: Service Bus compares paths without regard to case."""
        path = path.strip("/")
        if len(self._names) >= DESTINATIONS_MOST:
            return self._names.get(path.lower(), OTHERS)
        return self._names.setdefault(path.lower(), path)

    def entities(self) -> dict[str, Entity]:
        """Those that were found, by what they are counted as."""
        return {self._names[name]: found for name, found in self._found.items() if isinstance(found, Entity)}

    async def find(self, path: str) -> Entity | DeadLetter | None:
        """What is there; what would become of a message where there is nothing; None where nobody says."""
        name = self.name(path).lower()
        if name == OTHERS:
            return None
        if name not in self._found:
            async with self._asking[name]:
                if name not in self._found:
                    self._found[name] = await self._ask(path)
        return self._found[name]

    async def _ask(self, path: str) -> Entity | DeadLetter | None:
        try:
            return await self._read(path) if self._answers else None
        except EntityMissing as error:
            return missing(path, error.message)
        except ServiceRefused as error:
            return refused(path, error.message)
        except (NotAuthorized, Unavailable, ProtocolError) as error:
            self._give_up(error)
            return None

    async def _read(self, path: str) -> Entity:
        if self._managed:
            try:
                return await self._control.get(path)
            except NotAuthorized:
                self._managed = False
        return await self._by_link(path)

    async def _by_link(self, path: str) -> Entity:
        async with self._opening:
            if self._wire is None:
                connecting = connect(self._endpoint, get_token=self._get_token)
                self._wire = await self._stack.enter_async_context(connecting)
        try:
            sender = await self._wire.sender(path)
        except Unreachable:
            if self._wire.error is not None:
                raise
            return Entity(path, is_topic=None, filters=None)  # it is there, and takes nothing for now
        sender.close()
        return Entity(path, is_topic=None, filters=None, message_bytes=sender.max_message_size or None)

    def _give_up(self, error: SbpairError) -> None:
        if self._answers:
            self._answers = False
            self.notes.append(f"destinations were not checked: {error.message}")
