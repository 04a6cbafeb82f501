"""Guards a run against topics that would discard its messages: a topic keeps none that no subscription takes.

Invariant: the workers of a run share one count. Beyond its limit a destination is held: its messages stay in the
source, and its rules are read again before the next try.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from sbpair import backlog
from sbpair.amqp.message import Sections
from sbpair.errors import EntityMissing, NetworkRefused, NotAuthorized, ProtocolError, SbpairError, Unavailable
from sbpair.model.entities import subscription_of
from sbpair.rules.filters import Unknowable
from sbpair.rules.view import MessageView

if TYPE_CHECKING:
    from sbpair.azure.destinations import DestinationCache
    from sbpair.move.interface import RoutedMessage
    from sbpair.move.message.route import Facts
    from sbpair.move.receipt import Tally
    from sbpair.rules.filters import TopicFilters
    from sbpair.rules.values import Instant, Truth
    from sbpair.runs.journal import Key

log = logging.getLogger(__name__)

REREAD_SECONDS = 300.0
"""How long the rules of a topic are used that takes its messages."""

HINT = "create a subscription or a rule that takes them, or pass --allow-discard"


class ArrivingMessage(MessageView):
    """A message as its destination gets it. What that decides itself is unknowable."""

    __slots__ = ("_sections",)

    def __init__(self, payload: bytes) -> None:
        self._sections = Sections.split(payload)

    @property
    def sections(self) -> Sections:
        return self._sections

    @property
    def delivery_count(self) -> int:
        return 0

    @property
    def scheduled_at(self) -> Instant | None:
        found: Instant | None = self.annotation("x-opt-scheduled-enqueue-time")
        return found

    def _unknowable(self) -> NoReturn:
        raise Unknowable

    sequence_number = enqueued_sequence_number = enqueued_at = size = time_to_live = property(_unknowable)


class TopicGuard:
    """`limit` is how many messages a run may send that no subscription takes; None for all. `tally` counts them.

    `on_unchecked` is told once why rules cannot be read. `hint` says what to do about a held destination. With
    `kept_out`, destinations that forward to the backlog of that primary are held, too.
    """

    def __init__(
        self,
        destinations: DestinationCache,
        tally: Tally,
        limit: int | None = 0,
        on_unchecked: Callable[[str], object] = lambda _why: None,
        hint: str = HINT,
        kept_out: str = "",
    ) -> None:
        self._kept_out = kept_out
        self._hint = hint
        self._destinations = destinations
        self._tally = tally
        self._limit = math.inf if limit is None else limit
        self._on_unchecked = on_unchecked
        self._known: dict[str, tuple[TopicFilters | None, float]] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._may_ask = True
        self._discarding: set[Key] = set()
        self._unknown: set[Key] = set()

    async def filters(self, destination: str, *, again: bool) -> TopicFilters | None:
        """Return the filters to evaluate; None for a queue, a topic that takes all, or one whose rules are unknown.

        Raises Unavailable for a topic without a subscription, unless the run may send all.
        """
        name = destination.lower()
        known = self._known.get(name)
        if known is None or again or (known[0] is not None and time.monotonic() - known[1] > REREAD_SECONDS):
            async with self._locks[name]:
                if self._known.get(name) is known:
                    self._known[name] = await self._ask(destination, known), time.monotonic()
                known = self._known[name]
        filters = known[0]
        if filters is None or filters.take_all:
            return None
        if not filters.subscriptions and self._limit != math.inf:
            raise Unavailable(
                "it is a topic without a subscription, which would discard its messages: they stay in the source",
                hint=self._hint,
            )
        return filters

    async def _ask(self, destination: str, known: tuple[TopicFilters | None, float] | None) -> TopicFilters | None:
        if self._kept_out:
            leads_back = partial(backlog.under_prefix, self._kept_out)
            if leads_back(destination):
                _refuse_way([destination])
            if self._may_ask:
                _refuse_way(await self._destinations.way_to(destination, leads_back))
        if not self._may_ask:
            return None
        try:
            return (await self._destinations.get(destination, again=known is not None)).topic
        except EntityMissing:
            return None  # the link to it will say so
        except SbpairError as error:
            self._may_ask = not isinstance(error, (NetworkRefused, NotAuthorized))
            if not self._tally.topics_unchecked:
                needs = "; rules are read with the Manage claim" if isinstance(error, NotAuthorized) else ""
                self._tally.topics_unchecked = error.message + needs
                self._on_unchecked(self._tally.topics_unchecked)
            return None if known is None else known[0]

    def admit(
        self, filters: TopicFilters, routed: Sequence[RoutedMessage], now_ms: int
    ) -> tuple[int, Unavailable | None]:
        """Return how many of these messages may be sent, the first ones, and why not all of them."""
        for place, (message, send, _) in enumerate(routed):
            if message.key in self._discarding or message.key in self._unknown:
                continue
            taken = takes(filters, b"".join(message.content.restore(send, now_ms)[1]))
            if taken is None:
                self._unknown.add(message.key)
            elif not taken:
                if self._tally.discarded.total() + len(self._discarding) >= self._limit:
                    return place, self._hold_error(message.facts)
                self._discarding.add(message.key)
        return len(routed), None

    def _hold_error(self, facts: Facts) -> Unavailable:
        so_far = f", after {self._limit:g} others" if self._limit else ""
        return Unavailable(
            f"no subscription of it takes message {facts.message_id or facts.sequence_number}{so_far}, which it would"
            " discard: its messages stay in the source",
            hint=self._hint,
        )

    def accepted(self, destination: str, keys: Sequence[Key]) -> None:
        """Count sent messages that no subscription took, or perhaps none did."""
        for counted, pending in (
            (self._tally.discarded, self._discarding),
            (self._tally.not_evaluated, self._unknown),
        ):
            if pending and (found := pending.intersection(keys)):
                pending.difference_update(found)
                counted[destination] += len(found)


def _refuse_way(way: Sequence[str]) -> None:
    """Raise for a way back to the backlog; warn of one through a topic, whose other subscriptions get messages."""
    text = f"its messages would come back to the backlog: {' -> '.join(way)}"
    if any(map(subscription_of, way)):
        log.warning("%s", text)
    elif way:
        raise Unavailable(text, hint="change the forwarding, or choose another entity with --map")


def takes(filters: TopicFilters, payload: bytes) -> Truth:
    """Return whether a topic keeps a message as it arrives; None if that is not known."""
    try:
        return filters.take(ArrivingMessage(payload))
    except ProtocolError:
        return None
