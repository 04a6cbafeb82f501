"""The dead letters of a run's destinations: those that were there before are known, and all others are new.

Peeks only: nothing is locked, and no delivery count rises. Invariant: a destination is observed before the first
message is sent to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.errors import (
    AccessError,
    EntityMissing,
    NetworkRefused,
    NotAuthorized,
    ProtocolError,
    SbpairError,
)
from sbpair.model.entities import Queue, Subscription
from sbpair.move.message.dead_letters import cause_in, dead_letter_path
from sbpair.move.message.envelope import read_facts
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, Facts
from sbpair.move.peek.locked import PARTITION_BITS
from sbpair.move.receipt import NamedMessage, Tally

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.pair import Endpoint

log = logging.getLogger(__name__)

PAGE = 250
MAX_HOPS = 4
"""How often the service forwards a message before it gives up."""

FirstFrom = Callable[[int], Awaitable["int | None"]]
"""Returns the lowest sequence number from a number on; None if there is none."""


class DeadLetterPlace(NamedTuple):
    """A dead-letter queue. Unless `exact`, a queue that gets dead letters of others, besides its own messages."""

    path: str
    destination: str
    exact: bool = True


@dataclass
class _Observed:
    """A place. `before` has the highest sequence number that was there, by partition; `count`, how many there were."""

    place: DeadLetterPlace
    before: dict[int, int]
    count: int | None = None

    def is_new(self, number: int) -> bool:
        return number > self.before.get(number >> PARTITION_BITS, -1)

    def next_start(self, start: int) -> int:
        """Return where new messages may be, from `start` on."""
        return max(start, self.before.get(start >> PARTITION_BITS, -1) + 1)


@dataclass
class DeadLetterWatch:
    """The dead letters of destinations in one namespace. `source` is the path that the run receives from there.

    `uncounted` has, by destination, dead letters that only a count shows: a peek finds those behind earlier ones.
    """

    endpoint: Endpoint
    control: AtomNamespace
    get_token: GetToken | None
    tally: Tally
    source: str | None = None
    uncounted: dict[str, int] = field(default_factory=dict)
    _managed: bool = True
    _wire: AmqpClient | None = None
    _connection: AsyncExitStack = field(default_factory=AsyncExitStack)
    _destinations: dict[str, str] = field(default_factory=dict)
    _changing: dict[str, str] = field(default_factory=dict)
    _observed: dict[str, _Observed] = field(default_factory=dict)
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        await self._connection.aclose()

    async def add(self, destination: str) -> None:
        """Observe a destination from now on. No-op for an observed one; a missing one is observed once it exists.

        Raises AccessError if its dead letters cannot be observed; Unavailable.
        """
        name = destination.lower()
        if name in self._destinations:
            return
        async with self._busy:
            places = await self._places(destination)
            for place in places:
                await self._observe(place, new=False)
            self._destinations[name] = destination
            if len(places) != 1 or places[0].destination != destination:
                self._changing[name] = destination  # a topic, or missing, or it forwards

    def is_new(self, number: int) -> bool:
        """Return whether a message of the source is a dead letter that came during the run."""
        found = self._observed.get((self.source or "").lower())
        return found is not None and found.place.exact and found.is_new(number)

    async def find_new(self, *, counted: bool = True) -> list[NamedMessage]:
        """Return all dead letters that were not there before. Raises AccessError, Unavailable.

        If `counted`, also sets `uncounted`: a count costs as much as ten messages.
        """
        async with self._busy:
            for destination in self._changing.values():
                # Subscriptions, and missing destinations, may have been created since.
                for place in await self._places(destination):
                    await self._observe(place, new=place.exact)
            found: list[NamedMessage] = []
            uncounted: dict[str, int] = {}
            for observed in self._observed.values():
                new = await self._new_in(observed)
                found += new
                count = await self._count(observed.place) if counted and observed.count is not None else None
                if count is not None and observed.count is not None and count > observed.count + len(new):
                    uncounted[observed.place.destination] = count - observed.count - len(new)
            self.uncounted = uncounted
            return found

    # Where dead letters go.

    async def _places(self, destination: str) -> list[DeadLetterPlace]:
        """Return where the dead letters of a destination go; [] if it does not exist."""
        try:
            if self._managed:
                try:
                    return await self._read_places(destination)
                except (NetworkRefused, NotAuthorized) as error:
                    log.info("forwards of dead letters are not known: %s", error.message)
                    self._managed = False
            await self._check_queue(destination)
        except EntityMissing:
            return []
        except AccessError as error:
            raise _not_observable(destination, error.message) from error
        return [DeadLetterPlace(dead_letter_path(destination), destination)]

    async def _read_places(self, path: str, hops: int = MAX_HOPS) -> list[DeadLetterPlace]:
        """Follow the forwards of a queue or topic. Raises EntityMissing, NotAuthorized."""
        self.tally.spent("management_calls", 1)
        known = await self.control.queue_or_topic(path)
        entities: list[Queue] | list[Subscription]
        if isinstance(known, Queue):
            entities = [known]
        else:
            self.tally.spent("management_calls", 1)
            entities = await self.control.subscriptions(path)
        found: list[DeadLetterPlace] = []
        for each in entities:
            own = each.path if isinstance(each, Queue) else f"{each.topic}/subscriptions/{each.name}"
            found.append(DeadLetterPlace(dead_letter_path(own), own))
            if each.forward_dead_lettered_messages_to:
                found.append(DeadLetterPlace(each.forward_dead_lettered_messages_to, own, exact=False))
            if each.forward_to and hops:
                try:
                    found += await self._read_places(each.forward_to, hops - 1)
                except EntityMissing as error:
                    log.info("%s forwards to %s: %s", own, each.forward_to, error.message)
        return found

    async def _check_queue(self, destination: str) -> None:
        """Raise AccessError for a topic, whose subscriptions are not known without the Manage claim."""
        wire = await self._client()
        try:
            await wire.peek(dead_letter_path(destination), 0, 1, bodies=False)
        except EntityMissing:
            await wire.peek(destination, 0, 1, bodies=False)
            raise NotAuthorized("it is a topic, and only the Manage claim lists its subscriptions") from None

    # What is in them.

    async def _observe(self, place: DeadLetterPlace, *, new: bool) -> None:
        """Observe one more place. All that is in a `new` one has come during the run."""
        name = place.path.lower()
        if name in self._observed:
            return
        observed = _Observed(place, {})
        try:
            if not new:
                observed.before = await highest_numbers(lambda start: self._first_from(place.path, start))
            if place.exact and name != (self.source or "").lower():
                # The run takes messages out of its source.
                observed.count = 0 if new else await self._count(place)
        except AccessError as error:
            raise _not_observable(place.destination, error.message) from error
        except EntityMissing as error:
            log.info("%s is not observed: %s", place.path, error.message)
            return
        self._observed[name] = observed

    async def _new_in(self, observed: _Observed) -> list[NamedMessage]:
        place, start, found = observed.place, observed.next_start(0), list[NamedMessage]()
        try:
            while page := await self._peek(place.path, start, PAGE):
                read = [_read(place.path, payload) for payload in page]
                for sections, facts in read:
                    cause, number = cause_in(sections), facts.sequence_number
                    if observed.is_new(number) and (place.exact or cause.reason is not None):
                        reason = ": ".join(filter(None, cause)) or "no reason"
                        found.append(NamedMessage(place.path, number, facts.message_id, place.destination, reason))
                highest = max(facts.sequence_number for _, facts in read)
                if highest < start:
                    break  # an unreadable message hides the ones after it
                start = observed.next_start(highest + 1)
        except EntityMissing as error:
            log.info("%s is gone: %s", place.path, error.message)
        return found

    async def _count(self, place: DeadLetterPlace) -> int | None:
        """Count the dead letters of an entity; None if that is not permitted."""
        if not self._managed:
            return None
        self.tally.spent("management_calls", 1)
        try:
            return (await self.control.counts(place.destination)).dead_letter
        except (EntityMissing, NotAuthorized) as error:
            log.info("the dead letters of %s are not counted: %s", place.destination, error.message)
            return None

    async def _first_from(self, path: str, start: int) -> int | None:
        page = await self._peek(path, start, 1)
        return max(start, _read(path, page[0])[1].sequence_number) if page else None

    async def _peek(self, path: str, start: int, count: int) -> list[bytes]:
        self.tally.spent("management_calls", 1)
        return await (await self._client()).peek(path, start, count, bodies=False)

    async def _client(self) -> AmqpClient:
        if self._wire is None or self._wire.error is not None:
            self._wire = None
            await self._connection.aclose()
            opening = connect(self.endpoint, get_token=self.get_token)
            self._wire = await self._connection.enter_async_context(opening)
        return self._wire


async def highest_numbers(first_from: FirstFrom) -> dict[int, int]:
    """Return the highest sequence number of each partition, by few calls also for a queue of many messages."""
    found: dict[int, int] = {}
    start = 0
    while (first := await first_from(start)) is not None:
        partition = first >> PARTITION_BITS
        start = (partition + 1) << PARTITION_BITS
        found[partition] = await _highest(first_from, first, start)
    return found


async def _highest(first_from: FirstFrom, known: int, end: int) -> int:
    """Return the highest number from a `known` one on, below `end`."""
    step = 1
    while known + step < end and (found := await first_from(known + step)) is not None and found < end:
        known, step = found, 2 * step
    above = min(known + step, end)  # there is none from here on
    while above - known > 1:
        found = await first_from((known + above) // 2)
        if found is None or found >= end:
            above = (known + above) // 2
        else:
            known = found
    return known


def _read(path: str, payload: bytes) -> tuple[Sections, Facts]:
    """Return a peeked message: without sections, and with number 0, if it cannot be read."""
    try:
        return read_facts(path, payload, BACKLOG_DEAD_LETTERS)
    except ProtocolError as error:
        return Sections(), Facts(path, 0, 0, None, None, flaw=error.message)


def _not_observable(destination: str, why: str) -> SbpairError:
    return NotAuthorized(
        f"the dead letters of {destination} cannot be observed: {why}",
        hint="grant Listen on it, and Manage on a topic; or leave out --ramp and --canary",
    )
