"""The plan of a schedule of a paired client, drawn from its seed: its options, sends and faults. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from tests.faults.simulation.network import Weather
from tests.faults.simulation.order import PLAIN, Order, order_of
from tests.faults.simulation.plan import Step, drawn_step, drawn_weather
from tests.faults.simulation.workload import PLAIN as PLAIN_QUEUE
from tests.faults.simulation.workload import Goal

KINDS: Final = (
    *("namespace-down", "namespace-down", "entity-down", "latency", "drop", "stall", "reset", "swallow-acks", "detach"),
    *("throttle", "hold", "cut", "silence", "refuse", "no-answer", "freeze", "crash"),
)
NAMES: Final = ("orders", "billing/invoices")
SIZES: Final = (10, 10, 1_000, 100_000)


@dataclass(frozen=True)
class PlannedSend:
    """A message, at a time of the schedule, and the seconds that its send has."""

    id: str
    at: float
    entity: str
    size: int
    timeout: float

    @property
    def body(self) -> bytes:
        return (self.id.encode() * (self.size // len(self.id) + 1))[: self.size]


@dataclass(frozen=True)
class FailoverPlan:
    """`sends` begin in the order of their times, several at the same time. Intervals are those of the pair."""

    seed: int
    entities: tuple[Goal, ...]
    queues: int
    sends: tuple[PlannedSend, ...]
    steps: tuple[Step, ...]
    weather: Weather
    outbox: bool
    on_failure: str
    retries: int
    failover_interval: float
    ping_interval: float
    order: Order = PLAIN

    PARTS: ClassVar = ("sends", "steps")
    PLAINEST: ClassVar = {"weather": Weather(pieces=0.0), "outbox": False, "on_failure": "raise", "retries": 0}

    def told(self) -> Iterator[str]:
        for send in self.sends:
            yield f"send: {send}"
        for step in self.steps:
            yield f"fault: {step}"
        for name in (*self.PLAINEST, "failover_interval", "ping_interval"):
            yield f"{name}: {getattr(self, name)}"


def failover_plan(seed: int) -> FailoverPlan:
    random = Random(f"failover {seed}")
    span = random.choice((20.0, 60.0, 200.0))
    entities = tuple(Goal(name, PLAIN_QUEUE) for name in NAMES[: random.randint(1, 2)])
    queues = random.choice((1, 2, 3))
    sends = [
        PlannedSend(
            f"m{number}",
            round(random.uniform(0.0, span), random.choice((0, 3))),
            random.choice(entities).name,
            random.choice(SIZES),
            random.choice((3.0, 20.0, 60.0)),
        )
        for number in range(random.randint(3, 25))
    ]
    kinds = random.choices(KINDS, k=random.choice((0, 1, 2, 3, 5)))
    steps = sorted(
        (drawn_step(random, kind, round(span * 1000), queues, entities) for kind in kinds), key=lambda step: step.at_ms
    )
    return FailoverPlan(
        seed=seed,
        entities=entities,
        queues=queues,
        sends=tuple(sorted(sends, key=lambda send: send.at)),
        steps=tuple(steps),
        weather=drawn_weather(random),
        outbox=random.random() < 0.6,
        on_failure=random.choice(("raise", "wait", "backlog-now")),
        retries=random.choice((0, 3)),
        failover_interval=random.choice((0.0, 0.0, 5.0, 30.0)),
        ping_interval=random.choice((1.0, 10.0, 60.0)),
        order=order_of(seed),
    )
