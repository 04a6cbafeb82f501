"""What a syphon would do, by looking alone: `forecast = await preview.make_forecast(pair)`.

Nothing is locked, sent or settled, and no delivery count is raised: the backlog is peeked at, and destinations are
asked for by management, or by opening a link to them over which nothing goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.azure.interfaces import DestinationEntity
from sbpair.errors import EntityMissing
from sbpair.model import cost
from sbpair.move import backlog_queues
from sbpair.move.message.envelope import DEFERRED, SCHEDULED, message_state, restore
from sbpair.move.message.route import DeadLetter, Expire, Facts, Send, refused
from sbpair.move.peek.destination_lookup import DestinationLookup
from sbpair.move.peek.peeker import Peeker, PeekPosition
from sbpair.move.rate_limit import RateLimiter
from sbpair.syphon.forecast import Forecast, ForecastBuilder
from sbpair.syphon.limits import (
    ASSUMED_FILTERS,
    DEFAULT_TIER,
    EffectiveLimits,
    MoveLimits,
    PairTiers,
    effective_limits,
    tier_of,
)

if TYPE_CHECKING:
    from sbpair.amqp.message import Sections
    from sbpair.model.pair import Pair
    from sbpair.model.queues import Retrying
    from sbpair.move.events import QueuesFound
    from sbpair.move.message.route import Route, TimeToLive
    from sbpair.move.peek.peeker import Peeked, PeekedMessage

log = logging.getLogger(__name__)

QUEUES_AT_ONCE = 8

Aside = Callable[["Facts", "Route"], tuple[str | None, bool]]
OnEvent = Callable[["QueuesFound | Peeked | Retrying"], object]
Sleep = Callable[[float], Awaitable[object]]


async def make_forecast(
    pair: Pair,
    limits: MoveLimits | None = None,
    *,
    only: Sequence[str] = (),
    aside: Aside = lambda _facts, _decision: (None, False),
    effective_limits: Callable[[MoveLimits, PairTiers], EffectiveLimits] = effective_limits,
    in_turn: bool = False,
    on_event: OnEvent = lambda _event: None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> Forecast:
    """Look at every backlog queue of `pair`, and say what a run by these terms would do now.

    What another mover would do is told with `only`, the queues to look at; `aside`, which answers what becomes of a
    message that it takes and does not send, and whether it repeats another one; its own limits; and `in_turn`, where it
    receives everything before it sends.

    Looking costs credits as well: it is held to those that were asked for, and else as fast as the service lets it.

    Needs Listen on the secondary namespace; with Manage there it finds stranded queues, and with Manage or Send on the
    primary it knows destinations that do not exist. Raises what keeps it from looking, such as EntityMissing where
    there is no backlog queue at all; where the primary cannot be asked, the forecast says so.
    """
    limits = limits or MoveLimits()
    # The SDK takes half a second to load: a wrong option should not have to wait for it.
    from sbpair.azure.atom import open_atom
    from sbpair.azure.credentials import token_getter
    from sbpair.azure.destinations import open_destinations

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        control = await enter(open_atom(pair.secondary))
        there, here = await enter(open_destinations(pair.primary)), await enter(open_destinations(pair.secondary))
        get_token = await enter(token_getter(pair))
        places = DestinationLookup(pair.primary, there, stack, get_token)
        tiers = PairTiers(await places.tier(), await tier_of(here))
        effective = effective_limits(limits, tiers)
        pace = RateLimiter(clock(), primary=effective.secondary_credits if limits.credits is not None else None)
        looker = Peeker(pair.secondary, get_token, pace, clock, sleep, on_event)
        look = _PreviewScan(ForecastBuilder(limits.ttl, int(now() * 1000)), places, looker, aside)
        found = await backlog_queues.find(pair, control)
        on_event(found)
        await look.at_all(tuple(only) or found.queues)
    if not look.there:
        raise backlog_queues.none_found(pair)
    return _forecast(pair, look, limits.ttl, effective, tiers, look.sums.seconds(effective, in_turn=in_turn))


def _forecast(
    pair: Pair, look: _PreviewScan, ttl: TimeToLive, limits: EffectiveLimits, tiers: PairTiers, seconds: float | None
) -> Forecast:
    sums = look.sums
    secondary, primary = (tier or DEFAULT_TIER for tier in (tiers.secondary, tiers.primary))
    spent = sums.operations(len(look.there))
    return Forecast(
        queues=tuple(look.there),
        flows=tuple(sums.flows()),
        dead_letters=tuple(sums.dead_letters()),
        entities=look.places.entities(),
        limits=limits,
        seconds=seconds,
        estimate=cost.estimate(spent, secondary=secondary, primary=primary),
        tiers=tiers,
        ttl=ttl,
        now_ms=sums.now_ms,
        notes=(*look.notes, *_unchecked(look.places), *_assumed(pair, tiers)),
    )


def _unchecked(places: DestinationLookup) -> list[str]:
    return [f"destinations were not checked: {places.unavailable}"] if places.unavailable else []


def _assumed(pair: Pair, tiers: PairTiers) -> list[str]:
    sides = ((pair.primary, tiers.primary), (pair.secondary, tiers.secondary))
    return [f"the tier of {end.name} is not known, and taken to be {DEFAULT_TIER}" for end, tier in sides if not tier]


# Looking ----------------------------------------------------------------------------------------


@dataclass
class _PreviewScan:
    sums: ForecastBuilder
    places: DestinationLookup
    looker: Peeker
    aside: Aside
    there: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def at_all(self, found: tuple[str, ...]) -> None:
        turns = asyncio.Semaphore(QUEUES_AT_ONCE)

        async def look(queue: str) -> None:
            async with turns:
                await self._at(PeekPosition(queue))

        try:
            async with asyncio.TaskGroup() as tasks:
                for queue in found:
                    tasks.create_task(look(queue), name=f"look at {queue}")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _at(self, position: PeekPosition) -> None:
        try:
            await self.looker.peek(position, self._judge)
        except EntityMissing as error:
            self.notes.append(error.message)
        else:
            self.there.append(position.queue)
        if position.truncated:
            self.notes.append(f"{position.queue}: what lies behind an unreadable message was not looked at")

    async def _judge(self, seen: PeekedMessage) -> None:
        facts, sections = seen
        decision, stays = self.sums.decide(facts), _STAYS.get(message_state(sections))
        destination = None if isinstance(decision, DeadLetter) else self.places.name(facts.path or "")
        if stays is not None:
            self.sums.stays(facts, destination, stays)
            return
        fate, again = self.aside(facts, decision)
        if again:
            self.sums.count_duplicate(facts, destination)
        if fate is not None:
            self.sums.keep(facts, destination, fate)
        elif isinstance(decision, Send):
            await self._judge_send(sections, facts, decision)
        elif isinstance(decision, (DeadLetter, Expire)):
            self.sums.turn_away(facts, destination, decision)

    async def _judge_send(self, sections: Sections, facts: Facts, order: Send) -> None:
        place = await self.places.find(order.destination)
        destination = self.places.name(order.destination)
        doom = (
            _refusal(place, sections, facts, order, self.sums.now_ms) if isinstance(place, DestinationEntity) else place
        )
        if doom is not None:
            self.sums.turn_away(facts, destination, doom)
        else:
            known = place.filters if isinstance(place, DestinationEntity) else None
            self.sums.send(facts, destination, ASSUMED_FILTERS if known is None else known)


_STAYS = {DEFERRED: "deferred", SCHEDULED: "scheduled"}


def _refusal(
    entity: DestinationEntity, sections: Sections, facts: Facts, order: Send, now_ms: int
) -> DeadLetter | None:
    """Why a destination that is there would not take a message, if it would not."""
    if entity.requires_session and order.session_id is None and sections.read_properties().group_id is None:
        return refused(order.destination, "it requires sessions, and the message has none")
    limit = entity.message_bytes
    # In the backlog a message is larger, by its aliases.
    if limit is not None and facts.size > limit and len(restore(sections, order, now_ms)) > limit:
        return refused(order.destination, f"it is larger than the {limit} bytes that are allowed")
    return None
