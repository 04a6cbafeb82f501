"""A rehearsal of relays on an emulator of its own: a service and its client, while the namespaces fail and recover.

result = await sbpair.drill.relay_drill.run_relay_drill()

Invariant: each phase ends with its expected event, not after a time. Each request is accounted for, by the answer that
its sender got and by the number of times that the service executed it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Final, Literal, TypeAlias

from sbpair.drill.drill_messages import MAX_EXAMPLES
from sbpair.drill.drill_pair import (
    PRIMARY,
    SECONDARY,
    Awaited,
    DrillPhase,
    EmitPhase,
    EmulatedOutages,
    Timeline,
    emulated_pair,
    in_background,
)
from sbpair.errors import BothFailed, ExitCode, InDoubt, SbpairError
from sbpair.model.document import SPREAD, document
from sbpair.model.pair import SIDES, Side
from sbpair.move.failure_latch import set_within
from sbpair.relay import RelayAnswer, RelayEndpoint, RelayPair
from sbpair.relay.aio import RelayClient, RelayListener
from sbpair.relay.answer_verdicts import IDEMPOTENT
from sbpair.relay.events import RelayRolesSwapped, RelaySideDown, RelaySideUp
from sbpair.relay.handled_request import RelayRequest

PATHS: Final[dict[Side, str]] = {"primary": "service-east", "secondary": "service-west"}
RATE = 50.0
MAX_PHASE_SECONDS = 90.0
MAX_OPEN = 50
"""Requests on their way at the same time."""

MIN_REQUESTS = 10
"""So many requests have the outcome of a phase before the next one begins."""

LARGE = 150_000
"""Bytes of a body that is too large for the control channel."""

Outcome: TypeAlias = Literal["", "answered", "in doubt", "failed", "refused"]


@dataclass(slots=True)
class DrillRequest:
    """One request. `outcome` is "" on its way, "failed" if neither side took it. `problem`: what is wrong with it."""

    request_id: str
    method: str
    body: bytes
    answer_bytes: int
    outcome: Outcome = ""
    side: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class DoubtfulRequest:
    """A request that the client named as in doubt, and how often the service executed it."""

    request_id: Annotated[str, "Its id"]
    method: Annotated[str, "Its method"]
    executions: Annotated[int, "Times that the service executed it"]


RequestProblem: TypeAlias = Annotated[
    tuple[Annotated[str, "Id of the request"], Annotated[str, "The problem"]], "One problem"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTally:
    """The account of all requests.

    `failed` were taken by neither side. `repeated` were executed more than once: idempotent ones, which the client
    reissued. `wrong` have a problem; `problems` are (request id, problem) of the first ones.
    """

    sent: Annotated[int, "Requests"]
    answered: Annotated[int, "Requests with an answer"]
    primary: Annotated[int, "Answers by the primary"]
    secondary: Annotated[int, "Answers by the secondary"]
    in_doubt: Annotated[int, "Requests that the client named as in doubt"]
    failed: Annotated[int, "Requests that neither side took"]
    repeated: Annotated[int, "Requests that were executed more than once"]
    wrong: Annotated[int, "Requests whose outcome does not fit their executions, or whose answer is another one"]
    doubtful: Annotated[tuple[DoubtfulRequest, ...], "Requests in doubt"] = ()
    problems: Annotated[tuple[RequestProblem, ...], "The first problems"] = ()


@document("sbpair/relay-drill/1", kw_only=True)
class RelayDrillResult:
    """The verdict of sbpair drill --relay: sent = answered + in_doubt + failed, if nothing is wrong."""

    tally: Annotated[RelayTally, SPREAD]
    seconds: Annotated[float, "Duration"]
    timeline: Annotated[tuple[DrillPhase, ...], "Steps"] = ()

    @property
    def exit_code(self) -> int:
        return ExitCode.PARTIAL_OR_FINDINGS if self.tally.wrong else ExitCode.DONE


class Service:
    """A service that counts executions. `waiting` has side and method of requests that wait until `answers` is set."""

    def __init__(self, changed: asyncio.Event) -> None:
        self.executions: Counter[str] = Counter()
        self.waiting: set[tuple[str, str]] = set()
        self._changed = changed
        self.answers = asyncio.Event()
        self.answers.set()

    async def handle(self, request: RelayRequest) -> RelayAnswer:
        """Handle a request, whose path ends with its id and the size of its answer."""
        body = await request.read()
        _, request_id, size = request.target.rsplit("/", 2)
        self.executions[request_id] += 1
        kind = (request.side, request.method)
        self.waiting.add(kind)
        self._changed.set()
        await self.answers.wait()
        self.waiting.discard(kind)
        return RelayAnswer(200, {"X-Side": request.side}, expected_answer(request_id, body, int(size)))


class RelayApplication(Awaited):
    """A service that listens on both sides, and a client that sends requests to it. `requests` are all that it sent."""

    max_phase_seconds = MAX_PHASE_SECONDS

    def __init__(self, pair: RelayPair, emit: EmitPhase, rate: float, seed: int) -> None:
        self.changed = asyncio.Event()
        self.service = Service(self.changed)
        self.requests: list[DrillRequest] = []
        self.problems: list[tuple[str, str]] = []
        self.swaps = 0
        self.before_loss: int | None = None
        self._emit = emit
        self._seconds = 1 / rate
        self._chance = random.Random(seed)  # noqa: S311  a drill is repeatable on purpose
        self.listener = RelayListener(pair, self.service.handle, on_event=self._on_event)
        self.client = RelayClient(pair, first="primary", on_event=self._on_event)

    def count(self, outcome: Outcome, side: str = "") -> int:
        return sum(each.outcome == outcome and side in ("", each.side) for each in self.requests)

    async def until_more(self, outcome: Outcome, side: str = "") -> None:
        """Wait until a few more requests have this outcome."""
        enough = self.count(outcome, side) + MIN_REQUESTS
        where = f" by the {side}" if side else ""
        await self.until(f"requests {outcome}{where}", lambda: self.count(outcome, side) >= enough)

    async def until_up(self) -> None:
        await self.until("the service to listen on both sides", lambda: self.listener.up_sides == SIDES)

    @asynccontextmanager
    async def executing_on(self, side: Side) -> AsyncIterator[None]:
        """Hold back answers; enter when the service has executed a POST and another request of this side."""
        self.service.answers.clear()
        try:
            await self.until(
                f"requests that are executed by the {side}",
                lambda: {(side, "POST"), (side, "GET")} <= self.service.waiting,
            )
            yield
        finally:
            self.service.answers.set()

    async def send_until(self, stop: asyncio.Event) -> None:
        """Send requests steadily, and wait for those on their way at the end."""
        turn = asyncio.Semaphore(MAX_OPEN)
        async with asyncio.TaskGroup() as sends:
            for number in count():
                request = described(number, self._chance)
                self.requests.append(request)
                await turn.acquire()
                sends.create_task(self._send(request, turn), name="send a request")
                if await set_within(stop, self._seconds):
                    return

    async def _send(self, request: DrillRequest, turn: asyncio.Semaphore) -> None:
        suffix = f"/{request.request_id}/{request.answer_bytes}"
        try:
            response = await self.client.request(request.method, suffix, body=request.body or None)
            request.side, answer = response.side, await response.read()
        except BothFailed as error:
            request.outcome = "in doubt" if error.in_doubt else "failed"
        except InDoubt:
            request.outcome = "in doubt"
        except SbpairError as error:
            request.outcome, request.problem = "refused", error.message
        else:
            request.outcome = "answered"
            if response.status != 200:
                request.problem = f"it was answered with the status {response.status}"
            elif answer != expected_answer(request.request_id, request.body, request.answer_bytes):
                request.problem = "its answer is not the one to this request"
        finally:
            turn.release()
            self.changed.set()

    def _on_event(self, event: object) -> None:
        self.swaps += isinstance(event, RelayRolesSwapped)
        if isinstance(event, (RelaySideUp, RelaySideDown, RelayRolesSwapped)):
            self._emit("relay", str(event))
        self.changed.set()


async def run_relay_drill(
    *,
    rate: float = RATE,
    seed: int = 0,
    lost: bool = False,
    on_event: Callable[[DrillPhase], object] = lambda _event: None,
) -> RelayDrillResult:
    """Run the drill. It uses nothing outside this machine and leaves nothing behind.

    `rate` is requests a second. With `lost`, the primary is deleted, and the secondary answers all. Raises MachineLacks
    where the emulator cannot start, TimedOut where a phase does not complete.
    """
    timeline = Timeline(on_event)
    timeline("start", "starting an emulator with a relay in each namespace")
    async with emulated_pair(1, {PRIMARY: PATHS["primary"], SECONDARY: PATHS["secondary"]}) as (pair, outages):
        relay = RelayPair(
            RelayEndpoint.of_namespace(pair.primary, PATHS["primary"]),
            RelayEndpoint.of_namespace(pair.secondary, PATHS["secondary"]),
        )
        running = RelayApplication(relay, timeline, rate, seed)
        async with running.client, running.listener, in_background(running.send_until):
            await _play(running, outages, timeline, lost=lost)
        for each in running.requests[running.before_loss :] if running.before_loss else ():
            if each.side != "secondary":
                running.problems.append((each.request_id, "the secondary, which is alone, did not answer it"))
        timeline("compare", "comparing each answer byte for byte, and the executions of each request")
        tally = accounted(running.requests, running.service.executions, running.problems)
    return RelayDrillResult(tally=tally, seconds=timeline.seconds, timeline=tuple(timeline.phases))


async def _play(running: RelayApplication, outages: EmulatedOutages, emit: EmitPhase, *, lost: bool) -> None:
    """Run every phase, from a healthy pair to a healthy pair, or to the loss of the primary. Raises TimedOut."""
    emit("sending", f"a service listens on {PATHS['primary']} and {PATHS['secondary']}; a client sends requests")
    await running.until_up()
    await running.until_more("answered", "primary")
    emit("primary-down", f"{PRIMARY} stops, while the service executes requests of it")
    try:
        async with running.executing_on("primary"):
            outages.stop_relay(PRIMARY)
        await running.until("the secondary to be active", lambda: running.client.active == "secondary")
        await running.until_more("answered", "secondary")
        if lost:
            emit("delete", f"{PRIMARY} is deleted, and its port is closed: {SECONDARY} serves everything")
            await outages.emulator.delete_namespace(PRIMARY)
            running.before_loss = len(running.requests)
            await running.until_more("answered", "secondary")
            return
        emit("secondary-down", f"{SECONDARY} stops, too: requests fail on both sides")
        async with running.executing_on("secondary"):
            outages.stop_relay(SECONDARY)
        await running.until_more("failed")
        before = running.swaps
        await running.until_more("failed")
        if running.swaps != before:
            running.problems.append(("", "the roles were swapped while neither side was available"))
        emit("up", f"both are up again; the service connects again, and the {running.client.active} is active")
    finally:
        outages.restore()
    await running.until_up()
    await running.until_more("answered")


def described(number: int, chance: random.Random) -> DrillRequest:
    """Return a request. Some bodies and answers are too large for the control channel."""
    method = ("GET", "POST", "PUT", "POST", "DELETE")[number % 5]
    body = b""
    if method in ("POST", "PUT"):
        body = chance.randbytes(LARGE if number % 7 == 3 else chance.randrange(1, 2_000))
    return DrillRequest(f"r{number:06d}-{chance.getrandbits(32):08x}", method, body, LARGE if number % 11 == 5 else 100)


def expected_answer(request_id: str, body: bytes, size: int) -> bytes:
    """Return the answer to a request, which depends on every byte of it."""
    return hashlib.shake_256(request_id.encode() + b"\0" + body).digest(size)


def accounted(
    requests: Iterable[DrillRequest], executions: Mapping[str, int], found: Iterable[tuple[str, str]] = ()
) -> RelayTally:
    """Compare the outcome of every request with its executions. `found` are problems of no single request."""
    sent = {each.request_id: each for each in requests}
    problems = [*found, *((each, "it was executed, and never sent") for each in executions if each not in sent)]
    for each in sent.values():
        problem = each.problem or _mismatch(each, executions.get(each.request_id, 0))
        if problem:
            problems.append((each.request_id, f"{each.method}: {problem}"))
    outcomes = Counter((each.outcome, each.side) for each in sent.values())
    totals = Counter(each.outcome for each in sent.values())
    return RelayTally(
        sent=len(sent),
        answered=totals["answered"],
        primary=outcomes["answered", "primary"],
        secondary=outcomes["answered", "secondary"],
        in_doubt=totals["in doubt"],
        failed=totals["failed"],
        repeated=sum(times > 1 for times in executions.values()),
        wrong=len(problems),
        doubtful=tuple(
            DoubtfulRequest(each.request_id, each.method, executions.get(each.request_id, 0))
            for each in sent.values()
            if each.outcome == "in doubt"
        ),
        problems=tuple(problems[:MAX_EXAMPLES]),
    )


def _mismatch(request: DrillRequest, times: int) -> str:
    """Return why an outcome does not fit the number of executions, or ""."""
    if request.outcome == "":
        return "it has no outcome"
    if request.outcome == "answered" and not times:
        return "it was answered, and never executed"
    if request.outcome in ("failed", "refused") and times:
        return f"it was executed, and reported as {request.outcome}"
    if times > 1 and request.method not in IDEMPOTENT:
        return f"it was executed {times} times"
    return ""
