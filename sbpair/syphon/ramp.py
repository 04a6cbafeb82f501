"""A ramp: a run sends in steps, and observes after each whether messages come back as dead letters.

Invariant: no more messages are received than the step permits to be sent, and none is sent to a destination whose dead
letters are not observed. The next step begins only after an observation that found none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.errors import EntityMissing, ProtocolError, RampStopped, SbpairError, Unavailable
from sbpair.move.events import RampProgress
from sbpair.move.message.envelope import read_facts
from sbpair.move.message.route import Facts, Send, route
from sbpair.move.receipt import MAX_LISTED, NamedMessage, RampRecord, RampState, RampStep
from sbpair.syphon.dead_letter_watch import PAGE, DeadLetterWatch

if TYPE_CHECKING:
    from sbpair.move.interface import ReceivedMessage
    from sbpair.syphon.run_plan import RampPlan, RunPlan

log = logging.getLogger(__name__)

MAX_LOOK_SECONDS = 5.0  # the longest time between two peeks
MIN_LOOK_SECONDS = 1.0
SETTLED_SECONDS = 0.05  # how often it checks whether a step is sent
MAX_TRIES = 10  # how often `--once` tries to peek before it ends

GATE = "ramp"


class Ramp:
    """The ramp of a run. `error` is why it ended the run. `turn` is held by the worker that receives."""

    def __init__(self, steps: RampPlan, run: RunPlan, watch: DeadLetterWatch) -> None:
        self.error: SbpairError | None = None
        self.turn = asyncio.Lock()
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
        spec = self._run.spec
        try:
            if spec.form.destination is not None:
                await self._watch.add(spec.form.destination)
                return
            async with connect(spec.ends.secondary, get_token=self._run.get_token) as client:
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
            await self._add([read_facts(queue, payload, self._run.spec.form)[1] for payload in page])
        except (EntityMissing, ProtocolError) as error:
            log.info("%s was not peeked: %s", queue, error.message)

    async def _add(self, many: Iterable[Facts]) -> None:
        decisions = {facts.path: route(facts) for facts in many if facts.path is not None}
        for decision in decisions.values():
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
                if self._run.once and failures >= MAX_TRIES:
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
async def open_ramp(steps: RampPlan, run: RunPlan, queues: Sequence[str]) -> AsyncIterator[Ramp]:
    """Open the ramp of a run, before anything is received. Raises as `Ramp.prepare` does."""
    from sbpair.azure.atom import open_atom

    ends = run.spec.ends
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(open_atom(ends.primary))
        source = run.spec.source if ends.same else None
        watch = DeadLetterWatch(ends.primary, control, run.get_token, run.context.tally, source)
        stack.push_async_callback(watch.close)
        ramp = Ramp(steps, run, watch)
        await ramp.prepare(queues)
        yield ramp
