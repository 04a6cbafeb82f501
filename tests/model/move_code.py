"""Follows traces of the model of the move with the real worker, mover, journal and records of runs.

The two namespaces are played, message by message, and answer as an event says; time stands still, and a timer is over
when an event wants it. After each event the code must be where the model is: the same messages on both sides, the same
calls on their way, the same entries on disk, and at the end of a run the same names in its receipt.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from sbpair import errors
from sbpair.amqp_client.raw_links import ACCEPTED
from sbpair.model.retries import Backoff
from sbpair.move.context import BatchLimits, MoveContext
from sbpair.move.message.route import Facts
from sbpair.move.receipt import Tally
from sbpair.move.timings import MoveTimings
from sbpair.runs import journal as journals
from sbpair.syphon import runner, worker
from sbpair.syphon.run_plan import RunPlan
from sbpair.syphon.run_request import syphon_request
from sbpair.syphon.run_store import LiveRun, RunStore
from sbpair.syphon.worker_connections import WorkerConnections
from tests.model import move_model as model
from tests.model.move_model import BURIES, DEAD, GONE, LEFT, LOCKED, READY, RELEASES, SENDS, SETTLES
from tests.model.search import walks
from tests.model.stepped_loop import SteppedLoop
from tests.move.memory import FakeBatch, FakeMessage
from tests.runs.states import PAIR

MEMORY = Path("/dev/shm")  # noqa: S108  the directories are made by tempfile

QUEUE = "contoso/x-servicebus-transfer/0"
AWAY = errors.Unreachable("it is away")
LATE = errors.MessageLockLost("too late")
AT_ONCE = BatchLimits(prefetch=480, min_round=1, min_contiguous=1_000, max_unsettled=1)


def _at(message: FakeMessage) -> int:
    """Return the place of a message in the model."""
    return message.ordinal - 1


class Call:
    """A call on its way, with its messages: SENDS, SETTLES, BURIES or RELEASES. It returns what it is answered."""

    def __init__(self, kind: str, messages: Sequence[Any]) -> None:
        self.kind = kind
        self.messages = messages
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Namespaces:
    """Both namespaces: where each message is, who has it locked, and how often the primary has it."""

    def __init__(self, count: int, limit: int | None, *, detects_duplicates: bool) -> None:
        self.where = [READY] * count
        self.holder: list[FakeMessage | None] = [None] * count
        self.deliveries = [0] * count
        self.copies = [0] * count
        self._limit = limit
        self._most = 1 if detects_duplicates else 2

    def has(self, message: FakeMessage) -> bool:
        """Whether a delivery still has the lock."""
        return self.holder[_at(message)] is message

    def end(self, message: FakeMessage, where: str) -> None:
        self.where[_at(message)], self.holder[_at(message)] = where, None

    def expire(self, at: int) -> None:
        self.holder[at] = None
        self.deliveries[at] += self._limit is not None
        self.where[at] = DEAD if self._limit is not None and self.deliveries[at] >= self._limit else READY

    def arrive(self, call: Call) -> None:
        """Take what a call brings, and return what its answer is."""
        if call.kind == SENDS:
            for message in call.messages:
                self.copies[_at(message)] = min(self._most, self.copies[_at(message)] + 1)
            return
        for message in call.messages:
            if self.has(message):
                self.end(message, {SETTLES: GONE, BURIES: DEAD}.get(call.kind, READY))

    def disconnect(self) -> None:
        self.where = [LEFT if where == LOCKED else where for where in self.where]


class Connection:
    """A connection to the backlog, and a link to each destination. `calls` are on their way."""

    queue = QUEUE
    service_ms = None
    clock_ahead_ms = 0
    credit = 100
    lost: Sequence[Any] = ()

    def __init__(self, namespaces: Namespaces, calls: list[Call], *, settles_left: bool) -> None:
        self._namespaces = namespaces
        self._calls = calls
        self._settles_left = settles_left
        self._arrived: list[FakeMessage] = []
        self._wake = asyncio.Event()
        self._is_interrupted = False
        self._ended = asyncio.Event()
        self.error = self.broken = None

    # What the worker calls.

    async def receive(self, limit: int, *, seconds: float) -> list[FakeMessage]:
        del limit, seconds
        while not (self._arrived or self._is_interrupted or self.error):
            self._wake.clear()
            await self._wake.wait()
        if self.error is not None:
            raise self.error
        self._is_interrupted = False
        arrived, self._arrived = self._arrived, []
        return arrived

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._wake.set()

    def grant(self, limit: int) -> None:
        del limit

    async def stop(self) -> None:
        self._is_interrupted = False

    async def reopen(self) -> bool:
        return False

    async def unlock(self, deliveries: Sequence[Any]) -> None:
        assert not deliveries

    async def wait_lost(self) -> None:
        await self._ended.wait()

    async def complete(self, messages: Sequence[FakeMessage]) -> list[Any]:
        return await self._settle(SETTLES, messages)

    async def release(self, messages: Sequence[FakeMessage]) -> list[Any]:
        return await self._settle(RELEASES, messages)

    async def _settle(self, kind: str, messages: Sequence[FakeMessage]) -> list[Any]:
        if not messages:
            return []
        if self.error is not None:
            return [(message, self.error) for message in messages]
        return await self._called(kind, messages)

    async def dead_letter(self, message: FakeMessage, reason: str, description: str) -> None:
        del reason, description
        failures = await self._settle(BURIES, [message])
        if failures:
            raise failures[0][1]

    async def settle_by_token(self, messages: Sequence[FakeMessage], outcome: object) -> list[Any]:
        if not self._settles_left:
            return [(message, AWAY) for message in messages]
        failed = [(message, LATE) for message in messages if not self._namespaces.has(message)]
        for message in messages:
            if self._namespaces.has(message):
                self._namespaces.end(message, GONE if outcome is ACCEPTED else READY)
        return failed

    async def renew(self, messages: Sequence[FakeMessage]) -> None:
        if not all(map(self._namespaces.has, messages)):
            raise LATE

    async def ready(self, destination: str) -> Connection:
        del destination
        return self

    def encode(self, routed: Sequence[Any]) -> FakeBatch:
        return FakeBatch([each.message for each in routed])

    def send(self, batch: FakeBatch) -> Callable[[], Any]:
        call = Call(SENDS, batch.messages)
        self._calls.append(call)
        return partial(self._outcome, call)

    async def _called(self, kind: str, messages: Sequence[FakeMessage]) -> Any:
        call = Call(kind, messages)
        self._calls.append(call)
        return await self._outcome(call)

    async def _outcome(self, call: Call) -> Any:
        try:
            return await call.answer
        finally:
            if call in self._calls:
                self._calls.remove(call)

    # What events do.

    def deliver(self, message: FakeMessage) -> None:
        self._arrived.append(message)
        self._wake.set()

    def end(self) -> None:
        self.error = self.broken = errors.InDoubt("the connection is lost")
        self._wake.set()
        self._ended.set()


class Primary(SimpleNamespace):
    """The connection to the primary, which is never lost: only answers of it are."""

    broken = None

    async def wait_lost(self) -> None:
        await asyncio.Event().wait()

    def abort(self, error: Exception) -> None:
        raise NotImplementedError


class Run:
    """A run of the real code, from its start to its receipt or its crash."""

    def __init__(self, namespaces: Namespaces, to: str, directory: Path) -> None:
        self._namespaces, self._to = namespaces, to
        self.loop = SteppedLoop()
        self.calls: list[Call] = []
        self.settles_left = True
        self.buried: set[int] = set()
        """Messages that it has dead-lettered, and knows that."""
        self.connection: Connection | None = None
        self.tally = Tally()
        self.request = syphon_request(PAIR, once=False)
        self.store = RunStore(self.request, directory, LiveRun(tally=self.tally))
        context = MoveContext(
            PAIR.secondary.name,
            tally=self.tally,
            journal=self.store.journal,
            batch_limits=AT_ONCE,
            timings=MoveTimings(backoff=Backoff(1.0, 1.0), renew_before_seconds=10_000.0),
        )
        self.plan = RunPlan(self.request, context, asyncio.Event(), started_at=0.0)
        self.worker = worker.QueueWorker(QUEUE, self.plan)
        self._patch = patch.object(worker, "open_connections", self.connections)
        self._patch.start()
        self.task = self.loop.create_task(self.worker.run(), name="worker")
        self.loop.run_until_quiet()

    @asynccontextmanager
    async def connections(self, *_: object) -> AsyncIterator[WorkerConnections]:
        self.connection = Connection(self._namespaces, self.calls, settles_left=self.settles_left)
        primary = Primary(ready=self.connection.ready)
        yield WorkerConnections(self.connection, primary)  # type: ignore[arg-type]  # both are played

    def pending(self) -> dict[str, list[int]]:
        """Return the calls on their way, by the names that they have in the model, with the numbers of messages."""
        names = {}
        for call in self.calls:
            numbers = sorted({_at(message) for message in call.messages})
            to = f"{SENDS} {self._to[numbers[0]]}" if call.kind == SENDS else ""
            names[to or (RELEASES if call.kind == RELEASES else f"{call.kind}{numbers[0]}")] = numbers
        assert len(names) == len(self.calls), self.calls
        return names

    def call(self, name: str) -> Call:
        return self.calls[list(self.pending()).index(name)]

    def answer(self, call: Call, answer: object) -> None:
        if isinstance(answer, Exception):
            call.answer.set_exception(answer)
        else:
            call.answer.set_result(answer)
        self.loop.run_until_quiet()

    def crash(self) -> None:
        """End it at once: nothing more is written."""
        state = self.store.journal._state
        assert state is not None
        state.read("PRAGMA query_only = 1")
        if self.connection is not None:
            self.connection.error = self.connection.error or AWAY
        self.task.cancel()
        self.loop.run_until_quiet()
        for call in list(self.calls):
            self.answer(call, AWAY if call.kind == SENDS else [(each, AWAY) for each in call.messages])
        self.loop.run_until_quiet()
        assert self.task.done(), self.task
        self.store._opened.close()
        self.close()

    def close(self) -> None:
        self._patch.stop()
        self.loop.close()

    def end(self) -> set[int]:
        """End it with a receipt, and return the messages that it names."""
        self.task.result()
        runner._name_possible_duplicates(self.tally, self.store.journal, self.store.run, self.request)
        receipt = self.tally.receipt()
        assert receipt.balanced, receipt
        assert {named.sequence_number - 1 for named in receipt.dead_letters} == self.buried
        with self.store:
            self.store.finish(0)
        self.close()
        return {named.sequence_number - 1 for named in receipt.doubtful}


class Follower:
    """Carries out the events of a trace one after the other."""

    def __init__(self, made: model.MoveModel, directory: Path) -> None:
        self._model, self._directory = made, directory
        count = len(made.to)
        self._namespaces = Namespaces(count, made.limit, detects_duplicates=made.detects_duplicates)
        self._run: Run | None = None
        self._told: set[int] = set()

    def follow(self, event: tuple[Any, ...]) -> None:
        """Carry out an event."""
        what, *details = event
        space, run = self._namespaces, self._run
        if what == "start":
            self._run = Run(space, self._model.to, self._directory)
            self._start_second()
        elif what == "free" or what == "expire":
            space.expire(details[0])
        else:
            assert run is not None
            assert run.connection is not None
            getattr(self, f"_{what.replace(' ', '_')}")(run, run.connection, *details)
            if self._run is not None and run.task.done():
                self._told |= run.end()
                self._run = None

    def _start_second(self) -> None:
        """A second mover is refused."""
        try:
            RunStore(syphon_request(PAIR, once=False), self._directory, LiveRun())
        except errors.LeaseHeld:
            return
        raise AssertionError("two movers have the lease")

    def _deliver(self, run: Run, connection: Connection, at: int) -> None:
        number = at + 1
        message = FakeMessage(Facts(QUEUE, number, 1, f"m{number}", self._model.to[at], size=10), 1_000.0)
        self._namespaces.where[at], self._namespaces.holder[at] = LOCKED, message
        connection.deliver(message)
        run.loop.run_until_quiet()

    def _accept(self, run: Run, _: Connection, destination: str) -> None:
        call = run.call(f"{SENDS} {destination}")
        self._namespaces.arrive(call)
        run.answer(call, None)

    def _doubt(self, run: Run, _: Connection, destination: str, has_arrived: bool) -> None:
        call = run.call(f"{SENDS} {destination}")
        if has_arrived:
            self._namespaces.arrive(call)
        run.answer(call, errors.InDoubt("no answer came"))

    def _put_off(self, run: Run, _: Connection, destination: str) -> None:
        run.answer(run.call(f"{SENDS} {destination}"), AWAY)

    def _refuse(self, run: Run, _: Connection, destination: str) -> None:
        run.answer(run.call(f"{SENDS} {destination}"), errors.ServiceRefused("no"))

    def _retry(self, run: Run, _: Connection, destination: str) -> None:
        run.loop.end_wait(f"send to {destination}")

    def _settle(self, run: Run, _: Connection, name: str) -> None:
        call = run.call(name)
        late = [(message, LATE) for message in call.messages if not self._namespaces.has(message)]
        self._namespaces.arrive(call)
        run.buried |= {_at(message) for message in call.messages if call.kind == BURIES and not late}
        run.answer(call, late)

    def _notice(self, run: Run, _: Connection) -> None:
        run.loop.end_wait("renew_locks")

    def _pause(self, run: Run, _: Connection) -> None:
        run.loop.do(partial(run.plan.gate.close, "request"))

    def _resume(self, run: Run, _: Connection) -> None:
        run.loop.do(partial(run.plan.gate.open, "request"))

    def _stop(self, run: Run, _: Connection) -> None:
        run.loop.do(run.plan.stop.set, run.plan.gate.end, run.worker.interrupt)

    _end = _stop

    def _crash(self, run: Run, _: Connection, reached: frozenset[str]) -> None:
        for name in reached:
            self._namespaces.arrive(run.call(name))
        self._namespaces.disconnect()
        run.crash()
        self._run = None

    def _lose(self, run: Run, connection: Connection, reached: frozenset[str]) -> None:
        for name in reached:
            self._namespaces.arrive(run.call(name))
        self._namespaces.disconnect()
        connection.end()
        for call in [each for each in run.calls if each.kind != SENDS]:
            assert connection.error is not None
            call.answer.set_result([(message, connection.error) for message in call.messages])
        run.loop.run_until_quiet()

    def _connect(self, run: Run, _: Connection, settles_left: bool) -> None:
        run.settles_left = settles_left
        run.plan.gate.open("request")
        run.loop.end_wait("worker")

    def close(self) -> None:
        if self._run is not None:
            self._namespaces.disconnect()
            self._run.crash()

    # Where the code is, and where the model is.

    def seen(self) -> dict[str, object]:
        space, run = self._namespaces, self._run
        return {
            "where": space.where,
            "deliveries": space.deliveries,
            "copies": space.copies,
            "calls": {} if run is None else run.pending(),
            "held": 0 if run is None else run.worker.held,
            "journal": self._entries(run),
            "told": self._told,
        }

    def _entries(self, run: Run | None) -> dict[str, set[int]]:
        """Return the numbers of messages on disk, by what is written of them."""
        found: dict[str, set[int]] = {"known": set(), "perhaps": set()}
        state = None if run is None else run.store.journal._state
        if state is not None:
            for kind, text in state.read("SELECT state, keys FROM flights WHERE state <> ?", (journals.NAMED,)):
                numbers = {number - 1 for number, _, _ in journals._decode_keys(state, text)}
                found["known" if kind == journals.ACCEPTED else "perhaps"] |= numbers
        return found

    def expected(self, state: model.State) -> dict[str, object]:
        messages = list(enumerate(state.messages))
        calls: dict[str, list[int]] = {}
        for at, m in messages:
            if m.hold not in ("", model.WAITS):
                name = f"{SENDS} {self._model.to[at]}" if m.hold == SENDS else m.hold
                calls.setdefault(name, []).append(at)
        is_on = state.run != model.OFF
        return {
            "where": [m.source for _, m in messages],
            "deliveries": [m.deliveries for _, m in messages],
            "copies": [m.copies for _, m in messages],
            "calls": calls,
            "held": sum((m.hold != "" and m.lost != 3) + m.again for _, m in messages),
            "journal": {
                "known": {at for at, m in messages if is_on and m.row and m.row in "aueAUE"},
                "perhaps": {at for at, m in messages if is_on and (m.doubt or m.row in ("s", "S"))},
            },
            "told": {at for at, m in messages if m.told},
        }


def follow(made: model.MoveModel, trace: Sequence[model.Event], directory: Path) -> None:
    """Carry out a trace, and compare the code with the model after each event. Raises AssertionError."""
    follower, state = Follower(made, directory), made.first
    with (
        patch.dict(os.environ, XDG_STATE_HOME=str(directory / "leases")),
        patch("sbpair.runs.file_lease.MACHINE", str(directory)),
        closing(follower),
    ):
        for at, event in enumerate(trace):
            state = dict(made.next(state))[event]
            try:
                follower.follow(event)
                seen, expected = follower.seen(), follower.expected(state)
            except Exception as error:
                raise AssertionError(f"{event} fails after {trace[:at]}") from error
            assert seen == expected, f"after {trace[: at + 1]}: {seen}, expected {expected}"


def follow_all(made: model.MoveModel) -> tuple[int, int]:
    """Follow traces that take every transition of a model. Return how many there are, and how many events."""
    traces = events = 0
    for trace in walks(made):
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
            follow(made, trace, Path(directory))
        traces += 1
        events += len(trace)
    return traces, events
