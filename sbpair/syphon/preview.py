"""Forecast of a run from peeks alone: `forecast = await preview.make_forecast(request)`.

Nothing is locked, sent or settled, and no delivery count changes. Destinations are looked up by management, or by
opening a link to them that carries no message.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from sbpair import backlog
from sbpair.amqp.conditions import DISABLED_HINT
from sbpair.amqp.message import Sections
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import open_tokens
from sbpair.azure.destinations import DestinationCache, DestinationEntity, open_destinations
from sbpair.errors import EntityMissing, first_error
from sbpair.model import cost
from sbpair.model.message_state import ASIDE, MessageState, is_dead_letter_path
from sbpair.model.retries import Retrying
from sbpair.move.context import MissingDestinations
from sbpair.move.events import QueuesFound
from sbpair.move.filter import MessageFilter
from sbpair.move.message.dead_letters import NotSentReason
from sbpair.move.message.envelope import DEFERRED, SCHEDULED, message_state, restore
from sbpair.move.message.route import BACKLOG, DeadLetter, Expire, Facts, MessageForm, Route, Send, refused
from sbpair.move.peek.destination_lookup import DestinationLookup
from sbpair.move.peek.peeker import Peeked, PeekedMessage, Peeker, PeekPosition
from sbpair.move.receipt import default_ttl_note
from sbpair.move.topic_guard import takes
from sbpair.rules.filters import TopicFilters
from sbpair.rules.values import Truth
from sbpair.syphon.forecast import Forecast, ForecastBuilder, total
from sbpair.syphon.run_limits import (
    ASSUMED_FILTERS,
    DEFAULT_TIER,
    EffectiveLimits,
    EndTiers,
    effective_limits,
    tier_of,
)
from sbpair.syphon.run_request import RunRequest
from sbpair.syphon.sources import find_sources, none_found

QUEUES_AT_ONCE = 8
CLOCK_MARGIN_SECONDS = 2.0  # how far messages may be in the future, without a note about this machine's clock

OnEvent = Callable[["QueuesFound | Peeked | Retrying"], object]


async def make_forecast(
    request: RunRequest,
    *,
    only: Sequence[str] = (),
    aside: Callable[[Facts, Route], tuple[str | None, bool]] = lambda _facts, _decision: (None, False),
    effective_limits: Callable[[RunRequest, EndTiers], EffectiveLimits] = effective_limits,
    in_turn: bool = False,
    left: str = "released",
    on_event: OnEvent = lambda _event: None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Forecast:
    """Peek every backlog queue of a request's pair, or its source, and forecast the run.

    For another kind of mover, `only` are the queues to peek. `aside` returns the outcome of a message that is received
    and not sent, and whether it is a duplicate. `in_turn` is for a mover that receives everything before it sends.
    `left` is the outcome of messages for a missing destination that a run does not dead-letter.

    Peeks cost credits too. They keep to the request's credits; without, they are as fast as the service allows.

    Needs Listen on the source's namespace. With Manage there it finds stranded queues; with Manage or Send on the
    destination's it finds missing destinations, without, a note reports that they were not checked. Raises
    SbpairError if peeks fail, and EntityMissing without any backlog queue.
    """
    ends = request.ends
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        control = await enter(open_atom(ends.source))
        destinations = await enter(open_destinations(ends.destination))
        get_token = await enter(open_tokens())
        lookup = DestinationLookup(ends.destination, destinations, stack, get_token, request.words[1])
        found = await find_sources(request, control)
        tiers = EndTiers(destination=await lookup.tier(), source=await tier_of(DestinationCache(control)))
        effective = effective_limits(request, tiers)
        spent = None if request.credits is None else effective.source_credits
        peeker = Peeker(ends.source, get_token, sleep, on_event, form=request.form, credits=spent, clock=clock)
        builder = ForecastBuilder(
            request.ttl, int(now() * 1000), request.duplicate_windows, request.renames, request.default_ttl_ms
        )
        absent = MissingDestinations(None) if request.keeps_refused else request.missing()
        scan = _PreviewScan(builder, lookup, peeker, aside, absent, left, request.form, request.where)
        scan.state = request.messages
        on_event(found)
        await scan.run(tuple(only) or found.queues)
        if request.kept_out:
            scan.notes += [text async for text in _ways_back(lookup.entities(), destinations, request.kept_out)]
    if not scan.found:
        raise scan.missing if scan.missing and request.source else none_found(ends)
    absent.note_left("", scan.waiting)
    if builder.default_ttl:
        scan.notes.append(default_ttl_note(builder.default_ttl, f"the {request.words[0]}"))
    takes_dead_letters = request.takes_dead_letters or any(map(is_dead_letter_path, only))
    if lookup.unmanaged:
        scan.notes.append(f"the subscriptions of topics were not checked: {lookup.unmanaged}")
    if why := lookup.unavailable or lookup.refused:
        scan.notes.append(f"destinations were not checked: {why}")
    scan.notes += [f"{each}: {DISABLED_HINT}" for each in found.disabled]
    scan.notes += [f"{name} is {each.disabled}" for name, each in lookup.entities().items() if each.disabled]
    peeked = [flow for flow in scan.sums.flows() if flow.outcomes["scheduled"] < flow.messages]
    behind_seconds = max((flow.oldest_ms or 0 for flow in peeked), default=0) / 1000 - now()
    if behind_seconds > CLOCK_MARGIN_SECONDS:
        clock_is = f"this machine's clock is {behind_seconds:.0f} s behind that of {ends.source.name}"
        scan.notes.append(f"the age of messages is unknown: {clock_is}")
    named = {ends.destination.name: tiers.destination, ends.source.name: tiers.source}
    unknown = [name for name, tier in named.items() if not tier]
    sums, flows = scan.sums, scan.sums.flows()
    return Forecast(
        queues=tuple(scan.found),
        flows=tuple(flows),
        dead_letters=tuple(sums.dead_letters()),
        entities=lookup.entities(),
        limits=effective,
        seconds=sums.seconds(effective, in_turn=in_turn),
        estimate=cost.estimate(
            sums.operations(len(scan.found)),
            secondary=tiers.source or DEFAULT_TIER,
            primary=tiers.destination or DEFAULT_TIER,
        ),
        tiers=tiers,
        ttl=request.ttl,
        now_ms=sums.now_ms,
        notes=(*scan.notes, *(f"the tier of {name} is not known; {DEFAULT_TIER} is assumed" for name in unknown)),
        where=None if request.where is None else request.where.counts(total(flows).outcomes["skipped"]),
        to=request.to,
        missing=absent.result(),
        left_dead_letters=None if takes_dead_letters else found.dead_letters,
    )


async def _ways_back(entities: Iterable[str], destinations: DestinationCache, primary: str) -> AsyncIterator[str]:
    """Yield which destinations give messages back to the backlog."""
    for each in entities:
        if way := await destinations.way_to(each, partial(backlog.under_prefix, primary)):
            yield f"messages for {each} would come back to the backlog: {' -> '.join(way)}"


@dataclass
class _PreviewScan:
    sums: ForecastBuilder
    lookup: DestinationLookup
    peeker: Peeker
    aside: Callable[[Facts, Route], tuple[str | None, bool]]
    absent: MissingDestinations
    left: str
    form: MessageForm = BACKLOG
    where: MessageFilter | None = None
    state: MessageState = MessageState.ACTIVE
    missing: EntityMissing | None = None
    waiting: Counter[str] = field(default_factory=Counter)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(QUEUES_AT_ONCE))
    found: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def run(self, queues: tuple[str, ...]) -> None:
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for queue in queues:
                    tasks.create_task(self._peek(PeekPosition(queue)), name=f"peek {queue}")
        self.found.sort(key=queues.index)

    async def _peek(self, position: PeekPosition) -> None:
        try:
            async with self.slots:
                await self.peeker.peek(position, self._judge)
        except EntityMissing as error:
            self.notes.append(error.message)
            self.missing = error
        else:
            self.found.append(position.queue)
        if position.truncated:
            self.notes.append(f"{position.queue}: messages after an unreadable one were not peeked")

    async def _judge(self, seen: PeekedMessage) -> None:
        facts, sections = seen
        decision, stays = self.sums.decide(facts), _STAYS.get(message_state(sections))
        if self.state in ASIDE:
            if stays != self.state:
                return
            stays = None
        known = not isinstance(decision, DeadLetter) or decision.reason == NotSentReason.DUPLICATE
        path = decision.destination if isinstance(decision, Send) else facts.path or ""
        destination = self.lookup.name(path) if known else None
        if stays is not None:
            self.sums.add(facts, destination, stays, received=False)
            return
        if self.where is not None and not self.where.matches_peeked(facts, sections, self.sums.now_ms):
            self.sums.add(facts, destination, "skipped")
            return
        outcome, is_duplicate = self.aside(facts, decision)
        if is_duplicate:
            self.sums.count_duplicate(facts, destination)
        if outcome is not None:
            self.sums.add(facts, destination, outcome)
        elif isinstance(decision, Send):
            await self._judge_send(sections, facts, decision)
        elif isinstance(decision, (DeadLetter, Expire)):
            self.sums.turn_away(facts, destination, decision)

    async def _judge_send(self, sections: Sections, facts: Facts, send: Send) -> None:
        entity = await self.lookup.find(send.destination)
        destination = self.lookup.name(send.destination)
        filters: int | None = None
        topic: TopicFilters | None = None
        if isinstance(entity, DestinationEntity):
            filters, topic = entity.filters, entity.topic
            entity = _refusal(entity, sections, facts, send, self.sums.now_ms, self.form)
        is_missing = entity is not None and entity.reason == NotSentReason.MISSING
        if is_missing and not self.absent.allow(destination, 1):
            self.waiting[destination] += 1
            self.sums.add(facts, destination, self.left)
            return
        if entity is not None:
            self.sums.turn_away(facts, destination, entity)
            return
        taken: Truth = True
        if topic is not None and not topic.take_all:
            taken = takes(topic, restore(sections, send, self.sums.now_ms, self.form))
        self.sums.send(facts, destination, ASSUMED_FILTERS if filters is None else filters, taken=taken)


_STAYS = {DEFERRED: MessageState.DEFERRED, SCHEDULED: MessageState.SCHEDULED}


def _refusal(
    entity: DestinationEntity, sections: Sections, facts: Facts, send: Send, now_ms: int, form: MessageForm
) -> DeadLetter | None:
    """Return why an existing destination would refuse a message, if it would."""
    if entity.requires_session and send.session_id is None and sections.read_properties().group_id is None:
        return refused(send.destination, "it requires sessions, and the message has none")
    limit = entity.message_bytes
    # In the backlog a message is larger by its aliases.
    if limit is not None and facts.size > limit and len(restore(sections, send, now_ms, form)) > limit:
        return refused(send.destination, f"it is larger than the {limit} bytes that are allowed")
    return None
