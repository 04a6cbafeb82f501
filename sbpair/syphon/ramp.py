"""A ramp: a run sends in steps, and observes after each whether messages come back as dead letters.

Invariant: no more messages are received than the step permits to be sent, and none is sent to a destination whose dead
letters are not observed. The next step begins only after an observation that found none. Dead letters that were there
before the first message was sent are known, and all others are new. They are peeked: nothing is locked, and no delivery
count rises.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from sbpair.amqp_client.client import AmqpClient, GetToken, connect
from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.errors import (
    AccessError,
    EntityMissing,
    NetworkRefused,
    NotAuthorized,
    RampStopped,
    SbpairError,
    Unavailable,
)
from sbpair.model.entities import Queue, Subscription
from sbpair.model.message_state import dead_letter_path
from sbpair.model.pair import Endpoint
from sbpair.move.events import RampProgress
from sbpair.move.interface import ReceivedMessage
from sbpair.move.message.dead_letters import cause_in
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, Facts, Send, TimeToLive, router
from sbpair.move.peek.locked import PARTITION_BITS
from sbpair.move.peek.peeker import PAGE, read_peeked
from sbpair.move.receipt import MAX_LISTED, NamedMessage, RampRecord, RampState, RampStep, Tally
from sbpair.syphon.run_plan import RunPlan
from sbpair.syphon.run_request import RampPlan

log = logging.getLogger(__name__)

MAX_LOOK_SECONDS = 5.0  # the longest time between two peeks
MIN_LOOK_SECONDS = 1.0
SETTLED_SECONDS = 0.05  # how often it checks whether a step is sent
MAX_TRIES = 10  # how often `--once` tries to peek before it ends

GATE = "ramp"

MAX_HOPS = 4
"""How often the service forwards a message before it gives up."""


class Ramp:
    """The ramp of a run. `error` is why it ended the run. `turn` is held by the worker that receives."""

    def __init__(self, run: RunPlan, watch: DeadLetterWatch) -> None:
        self.error: SbpairError | None = None
        self.turn = asyncio.Lock()
        steps = cast("RampPlan", run.request.ramp)  # or it has no ramp
        self._steps, self._run, self._watch = steps, run, watch
        self._tally = run.context.tally
        self._loop = asyncio.get_running_loop()
        self._limit: int | None = steps.totals[0]
        self._at = 0
        self._observed_since: float | None = None
        self._ids: set[str] = set()
        self._record = RampRecord(steps.totals, steps.observe_seconds)

    # For workers.

    @property
    def is_limited(self) -> bool:
        """Whether a step limits what may be received."""
        return self._limit is not None

    @property
    def room(self) -> int:
        """How many more messages may be received in this step."""
        return 0 if self._limit is None else max(0, self._limit - self._tally.may_arrive)

    async def admit(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Observe the destinations of received messages before they are sent. Return False if none may be sent.

        Raises AccessError for a destination whose dead letters cannot be observed; Unavailable.
        """
        await self._add(each.facts for each in messages)
        if any(self._watch.is_new(each.facts.sequence_number) for each in messages):
            await self._look_once()  # the source has them: they came back
            return False
        self._ids.update(each.facts.message_id for each in messages if each.facts.message_id is not None)
        return True

    @property
    def place(self) -> str:
        """Where the ramp ended the run."""
        return ", ".join(self._record.destinations[:3]) or "ramp"

    # The course of it.

    async def prepare(self, queues: Sequence[str]) -> None:
        """Observe the destinations of the first messages, before anything is received. Raises AccessError.

        While a namespace is away, `admit` observes them later.
        """
        request = self._run.request
        try:
            if request.form.destination is not None:
                await self._watch.add(request.form.destination)
                return
            async with connect(request.ends.source, get_token=self._run.get_token) as client:
                for queue in queues:
                    await self._add_first(client, queue)
        except Unavailable as error:
            log.info("destinations are observed later: %s", error.message)

    async def run(self, held: Callable[[], int]) -> None:
        """Run the steps, then lift the limit. Sets `error` and stops the run instead of raising.

        `held` returns how many messages are not settled yet.
        """
        try:
            for at, total in enumerate(self._steps.totals):
                self._at, self._limit = at, total
                self._run.gate.open(GATE)
                self._note(RampState.SENDING)
                await self._sent(held)
                self._run.gate.close(GATE)
                await self._run.gate.wait_quiet()
                await self._observe()
            self._limit = None
            self._run.gate.open(GATE)
        except SbpairError as error:
            self._fail(error)

    async def finish(self) -> None:
        """Observe the last messages of a run whose source has no more. Sets `error` instead of raising."""
        if self._limit is None or self._run.stop.is_set() or not self._tally.may_arrive:
            return
        try:
            await self._observe()
            self._limit = None
        except SbpairError as error:
            self._fail(error)

    def close(self) -> None:
        """Record where the ramp is at the end of a run."""
        if self._limit is not None and self.error is None:
            self._note(self._record.state, emit=False)

    async def _add_first(self, client: AmqpClient, queue: str) -> None:
        try:
            self._tally.spent("management_calls", 1)
            page = await client.peek(queue, 0, PAGE, bodies=False)
            await self._add(read_peeked(queue, payload, self._run.request.form).facts for payload in page)
        except EntityMissing as error:
            log.info("%s was not peeked: %s", queue, error.message)

    async def _add(self, many: Iterable[Facts]) -> None:
        by_path = {facts.path: facts for facts in many if facts.path is not None}
        decide = router(TimeToLive.ORIGINAL, int, renames=self._run.request.renames)
        for decision in decide([*by_path.values()]):
            if isinstance(decision, Send):
                await self._watch.add(decision.destination)

    async def _sent(self, held: Callable[[], int]) -> None:
        """Wait until the step is sent and settled. Dead letters are observed meanwhile."""
        look_at = self._loop.time() + self._look_seconds
        while self.room or self.turn.locked() or held():
            await asyncio.sleep(SETTLED_SECONDS)
            if self._loop.time() >= look_at:
                try:
                    await self._look()
                except Unavailable as error:
                    log.info("dead letters were not observed: %s", error.message)
                look_at = self._loop.time() + self._look_seconds

    async def _observe(self) -> None:
        """Peek until the time is over. The last peek is after it, and has to succeed."""
        if self._observed_since is None:
            self._observed_since = self._loop.time()
        until = self._observed_since + self._steps.observe_seconds
        self._note(RampState.OBSERVING)
        failures = 0
        while True:
            began = self._loop.time()
            try:
                await self._look(counted=began >= until)
            except Unavailable as error:
                failures += 1
                log.info("dead letters were not observed: %s", error.message)
                if self._run.request.once and failures >= MAX_TRIES:
                    raise
                timings, context = self._run.timings, self._run.context
                await asyncio.sleep(timings.backoff.seconds(failures, context.jitter()))
                continue
            if began >= until:
                break
            failures = 0
            await asyncio.sleep(min(self._look_seconds, until - began))
        self._note(RampState.PASSED)
        self._observed_since = None

    @property
    def _look_seconds(self) -> float:
        seconds = self._steps.observe_seconds
        return min(seconds, MAX_LOOK_SECONDS, max(MIN_LOOK_SECONDS, seconds / 10))

    async def _look_once(self) -> None:
        try:
            await self._look()
            self._fail(RampStopped("moved messages came back to the source", hint=_AFTERWARDS))
        except SbpairError as error:
            self._fail(error)

    async def _look(self, *, counted: bool = False) -> None:
        """Raise RampStopped if dead letters have come."""
        new = await self._watch.find_new(counted=counted)
        if not (new or self._watch.uncounted):
            return
        mine = [each for each in new if each.message_id in self._ids]
        others = len(new) - len(mine) + sum(self._watch.uncounted.values())
        destinations = tuple(sorted({*self._watch.uncounted, *(each.destination for each in new if each.destination)}))
        nameless = sum(each.message_id is None for each in new)
        self._record = replace(
            self._record,
            came_back=tuple(mine[:MAX_LISTED]),
            came_back_total=len(mine),
            other_dead_letters=others,
            destinations=destinations,
        )
        came_back = _count_messages(mine)
        self._note(RampState.STOPPED, came_back=came_back)
        raise _stopped(came_back, others, nameless, self._sent_count())

    def _fail(self, error: SbpairError) -> None:
        self.error = self.error or error
        self._run.stop.set()

    def _sent_count(self) -> int:
        return sum(self._tally.sent_to().values())

    def _note(self, state: RampState, *, came_back: int = 0, emit: bool = True) -> None:
        """Record and report the state of the current step."""
        steps, total, sent = self._record.steps[: self._at], self._steps.totals[self._at], self._sent_count()
        observed = 0.0 if self._observed_since is None else self._loop.time() - self._observed_since
        step = RampStep(total, sent, round(observed, 1), came_back)
        self._record = replace(self._record, state=state, steps=(*steps, step))
        self._tally.ramp = self._record
        if emit:
            seconds = self._steps.observe_seconds
            event = RampProgress(self._at + 1, len(self._steps.totals), total, sent, state, seconds)
            self._run.context.on_event(event)


_AFTERWARDS = "the others stay in the source: find the cause, then run it again"


def _stopped(mine: int, others: int, nameless: int, sent: int) -> RampStopped:
    parts = []
    if mine:
        parts.append(f"{mine} of {sent} sent message{'s' if sent > 1 else ''} came back as dead letters")
    if others:
        unknown = f", {nameless} of them without a message id" if nameless else ""
        what = f"{others} other dead letter{'s' if others > 1 else ''} came"
        parts.append(f"{what}{unknown}" if mine else f"{what}{unknown}: none is known to be a moved message")
    return RampStopped("; ".join(parts), hint=_AFTERWARDS)


def _count_messages(found: Sequence[NamedMessage]) -> int:
    """Count the messages of dead letters: one that was sent to a topic may come back in each subscription."""
    in_places = Counter((each.message_id, each.queue) for each in found)
    most = Counter[str | None]()
    for (message_id, _), number in in_places.items():
        most[message_id] = max(most[message_id], number)
    return most.total()


@asynccontextmanager
async def open_ramp(run: RunPlan, queues: Sequence[str]) -> AsyncIterator[Ramp]:
    """Open the ramp of a run, before anything is received. Raises as `Ramp.prepare` does."""
    ends = run.request.ends
    async with open_atom(ends.destination) as control:
        source = run.request.source if ends.same else None
        watch = DeadLetterWatch(ends.destination, control, run.get_token, run.context.tally, source)
        ramp = Ramp(run, watch)
        try:
            await ramp.prepare(queues)
            yield ramp
        finally:
            await watch.close()


# The dead letters of the destinations

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
                read = [read_peeked(place.path, payload, BACKLOG_DEAD_LETTERS) for payload in page]
                for facts, sections in read:
                    cause, number = cause_in(sections), facts.sequence_number
                    if observed.is_new(number) and (place.exact or cause.reason is not None):
                        reason = ": ".join(filter(None, cause)) or "no reason"
                        found.append(NamedMessage(place.path, number, facts.message_id, place.destination, reason))
                highest = max(facts.sequence_number for facts, _ in read)
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
        if not page:
            return None
        return max(start, read_peeked(path, page[0], BACKLOG_DEAD_LETTERS).facts.sequence_number)

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


def _not_observable(destination: str, why: str) -> SbpairError:
    return NotAuthorized(
        f"the dead letters of {destination} cannot be observed: {why}",
        hint="grant Listen on it, and Manage on a topic; or leave out --ramp and --canary",
    )
