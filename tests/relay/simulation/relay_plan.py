"""The plan of a schedule, drawn from its seed: requests and WebSockets of clients, listeners, and faults. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from sbpair.model.pair import SIDES, Side
from tests.faults.simulation.network import Weather
from tests.faults.simulation.order import PLAIN, Order, order_of

GENTLE: Final = ("drop-listeners", "latency", "restart")
"""Faults that lose no answer of a request that was executed."""

ROUGH: Final = (
    *GENTLE,
    *("down", "no-listeners", "swallow", "cut", "token-refused", "kill", "freeze", "unreachable", "outage", "hold"),
)
METHODS: Final = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH")
BODILESS: Final = ("GET", "HEAD", "OPTIONS", "DELETE")
SIZES: Final = (0, 10, 1_000, 30_000, 70_000, 200_000)
PAUSES: Final = (0.0, 0.0, 0.3, 3.0)
WORK: Final = (0.0, 0.0, 0.1, 2.0, 10.0)
"""Seconds of a request's execution."""

STATUSES: Final = (200, 200, 200, 201, 404, 500, 503, 504)
"""The listener's own statuses: none of them swaps roles."""

PROBES: Final = 4


@dataclass(frozen=True)
class RelayStep:
    """One fault. `number` chooses within its kind."""

    at: float
    lasts: float
    kind: str
    side: Side
    number: int


@dataclass(frozen=True)
class PlannedBody:
    """A body that repeats the name of its request. `parts` is 1 for bytes; a stream pauses between its parts."""

    name: str
    size: int
    parts: int
    pause: float

    @property
    def content(self) -> bytes:
        text = f"[{self.name}]".encode()
        return (text * math.ceil(self.size / len(text)))[: self.size]


@dataclass(frozen=True)
class PlannedRequest:
    number: int
    at: float
    client: int
    method: str
    always: bool
    sent: PlannedBody
    answer: PlannedBody
    status: int
    work: float
    early: bool = False
    """Whether the answer begins before the body is read."""

    abandoned: bool = False
    """Whether the client closes the answer without reading it."""

    timeout: float | None = None
    pause: float = 0.0
    """How long the client stops within the answer."""

    @property
    def seconds(self) -> float:
        """The least time that it takes."""
        return (
            self.work + self.pause + sum(body.parts * body.pause for body in (self.sent, self.answer) if body.parts > 1)
        )

    @property
    def may_repeat(self) -> bool:
        """Whether the client may execute it twice."""
        return self.always or self.method not in ("POST", "PATCH")


@dataclass(frozen=True)
class PlannedSocket:
    """A WebSocket that sends messages of these sizes, each after the echo of the one before."""

    number: int
    at: float
    client: int
    sizes: tuple[int, ...]
    pause: float


@dataclass(frozen=True)
class RelayPlan:
    """`probes` are requests that are sent when all faults are over."""

    seed: int
    listeners: int
    weather: Weather
    steps: tuple[RelayStep, ...]
    requests: tuple[PlannedRequest, ...]
    probes: tuple[PlannedRequest, ...]
    sockets: tuple[PlannedSocket, ...]
    order: Order = PLAIN

    PARTS: ClassVar = ("requests", "sockets", "steps")
    PLAINEST: ClassVar = {"weather": Weather(pieces=0.0), "listeners": 1}

    def told(self) -> Iterator[str]:
        for name, things in {"request": self.requests, "socket": self.sockets, "fault": self.steps}.items():
            for each in things:
                yield f"{name}: {each}"

    @property
    def all_requests(self) -> dict[int, PlannedRequest]:
        return {each.number: each for each in (*self.requests, *self.probes)}

    @property
    def is_gentle(self) -> bool:
        return all(step.kind in GENTLE for step in self.steps)


def relay_plan(seed: int) -> RelayPlan:
    """Return the plan of a seed."""
    random = Random(seed)
    span = random.choice((20.0, 60.0, 200.0))
    kinds = GENTLE if random.random() < 0.2 else random.sample(ROUGH, random.randint(1, 5))
    listeners = random.choice((1, 1, 2))
    weather = Weather(
        slow=random.choice((0.001, 0.02)), jitter=random.choice((0.0, 0.3)), pieces=random.choice((0, 0.3))
    )
    count, moments = random.randint(8, 20), [random.uniform(0.5, span) for _ in range(random.randint(3, 20))]
    steps = [
        _step(random, random.choice(kinds), random.choice(moments))
        for _ in range(random.randint(1, 8 if kinds != GENTLE else 24))
    ]
    # A loop may begin what is due at the same time in any order.
    requests = [_request(random, number, random.choice(moments) + number / 1_000) for number in range(count)]
    probes = tuple(_probe(random, count + number) for number in range(PROBES))
    sockets = [_socket(random, number, span) for number in range(random.randint(0, 4))]
    steps.sort(key=lambda step: step.at)
    return RelayPlan(seed, listeners, weather, tuple(steps), tuple(requests), probes, tuple(sockets), order_of(seed))


def _step(random: Random, kind: str, moment: float) -> RelayStep:
    """Return a fault that begins before requests of this moment, or while they or their answers are on their way."""
    at = max(0.0, moment + random.choice((-2.0, *WORK)) + random.uniform(0.0, random.choice((0.1, 0.5, 3.0))))
    lasts = random.choice((0.5, 5.0, 30.0, 90.0))
    return RelayStep(at, lasts, kind, random.choice(SIDES), random.randrange(1_000_000))


def _body(random: Random, name: str, sizes: tuple[int, ...] = SIZES) -> PlannedBody:
    size = random.choice(sizes)
    parts = random.randint(2, 5) if size > 10 and random.random() < 0.4 else 1
    return PlannedBody(name, size, parts, random.choice(PAUSES))


def _request(random: Random, number: int, at: float) -> PlannedRequest:
    method = random.choice(METHODS)
    sent = _body(random, f"request {number}", (0,) if method in BODILESS else SIZES)
    answer = _body(random, f"answer {number}", (0,) if method == "HEAD" else SIZES)
    work = random.choice((*WORK, 65.0)) if random.random() < 0.2 else random.choice(WORK)
    return PlannedRequest(
        number,
        at,
        random.randrange(2),
        method,
        random.random() < 0.1,
        sent,
        answer,
        random.choice(STATUSES),
        work,
        early=random.random() < 0.1,
        abandoned=random.random() < 0.05,
        timeout=random.choice((0.5, 5.0)) if random.random() < 0.1 else None,
        pause=12.0 if random.random() < 0.1 else 0.0,
    )


def _probe(random: Random, number: int) -> PlannedRequest:
    sent, answer = _body(random, f"request {number}"), _body(random, f"answer {number}")
    return PlannedRequest(number, math.inf, number % 2, "POST", False, sent, answer, 200, 0.0)


def _socket(random: Random, number: int, span: float) -> PlannedSocket:
    sizes = tuple(random.choice((1, 100, 60_000, 200_000)) for _ in range(random.randint(1, 6)))
    return PlannedSocket(number, random.uniform(0.5, span), random.randrange(2), sizes, random.choice((0.0, 1.0, 20.0)))
