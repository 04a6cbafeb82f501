"""A schedule out of a seed: the workload, how the syphon is run, and which faults strike when. Pure.

The vocabulary is one for the simulated runs and for those over real sockets: a kind that only one of them can do is in
SIMULATED_ONLY.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from random import Random
from typing import ClassVar, Final, NamedTuple

from sbpair.syphon.run_request import RampPlan
from tests.faults.simulation.network import Weather
from tests.faults.simulation.order import PLAIN, Order, order_of
from tests.faults.simulation.workload import INVALID, TOPIC, Goal, Stranded, goals, messages, moved

BEGAN_MS: Final = 1_767_225_600_000
"""When virtual time begins."""

BY_EMULATOR, BY_SIMULATION, ONE, SOME = "emulator", "simulation", "one", "some"


class Draw(NamedTuple):
    """How a kind of step is drawn, and who makes it happen, where only one can.

    `primary` is None for either side. `names`: it names ONE entity, or does so at times (SOME). A `harmless` kind
    leaves no doubt about any message: each has to arrive exactly once.
    """

    weight: int
    by: str = ""
    primary: bool | None = None
    names: str = ""
    numbers: Sequence[int] = range(1_000_000)
    counts: tuple[int | None, ...] = (None,)
    harmless: bool = False


DRAWS: Final = {
    "namespace-down": Draw(3, BY_EMULATOR),
    "entity-down": Draw(3, BY_EMULATOR, names=ONE),
    "partition-down": Draw(2, BY_EMULATOR, primary=True, numbers=range(16)),
    "latency": Draw(2, BY_EMULATOR, numbers=(1, 30, 500, 5_000), harmless=True),
    **dict.fromkeys(("drop", "stall", "reset"), Draw(4, BY_EMULATOR, None, SOME, range(61), (1, 2, 3))),
    "swallow-acks": Draw(4, BY_EMULATOR, primary=True, names=SOME, counts=(None, 1, 2, 5)),
    "detach": Draw(4, BY_EMULATOR, names=SOME),
    "expire-locks": Draw(4, BY_EMULATOR, primary=False, names=SOME),
    "throttle": Draw(5, BY_EMULATOR, names=SOME, counts=(None, 1, 2, 5), harmless=True),
    "clock": Draw(3, BY_EMULATOR, numbers=(1_000, 30_000, 61_000, 600_000)),
    "quota": Draw(4, primary=True, names=ONE, harmless=True),
    "disable": Draw(2, primary=True, names=ONE),
    "destination-gone": Draw(3, primary=True, names=ONE),
    "backlog-remade": Draw(3, primary=False, names=ONE),
    "crash": Draw(4),
    "freeze": Draw(3),
    "second": Draw(3),
    "stop": Draw(3, harmless=True),
    "strand": Draw(3, harmless=True),
    "hold": Draw(3, BY_SIMULATION),
    "cut": Draw(4, BY_SIMULATION),
    "silence": Draw(3, BY_SIMULATION),
    "refuse": Draw(2, BY_SIMULATION, harmless=True),
    "no-answer": Draw(1, BY_SIMULATION, harmless=True),
    "tool-clock": Draw(2, BY_SIMULATION, numbers=(-600_000, -61_000, -1_000, 1_000, 61_000, 600_000)),
}
EMULATOR: Final = frozenset(kind for kind, each in DRAWS.items() if each.by == BY_EMULATOR)
SIMULATED_ONLY: Final = frozenset(kind for kind, each in DRAWS.items() if each.by == BY_SIMULATION)
HARMLESS: Final = frozenset(kind for kind, each in DRAWS.items() if each.harmless)

SYPHON, MOVE, REDRIVE = "syphon", "move", "redrive"


@dataclass(frozen=True, slots=True)
class Step:
    """`kind` strikes at `at_ms` and lasts for `lasts_ms`, where it is something that lasts.

    `primary` is which of the namespaces; `entity` a destination or a backlog queue of it, or None; `number` and
    `count` are whatever the kind needs. `strand` and `backlog-remade` put `messages` in.
    """

    at_ms: int
    lasts_ms: int
    kind: str
    primary: bool
    entity: str | int | None = None
    number: int = 0
    count: int | None = None
    messages: tuple[Stranded, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        where = "primary" if self.primary else "secondary"
        entity = "" if self.entity is None else f" {self.entity}"
        count = "" if self.count is None else f", {self.count} times"
        return f"at {self.at_ms} ms for {self.lasts_ms} ms, {self.kind} {self.number} in the {where}{entity}{count}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter of the syphons that run among the faults: by destination, which leaves the order of each, or by number.

    The clean run in the end has none.
    """

    destinations: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        if not self.destinations:
            return "sys.SequenceNumber % 2 = 0"
        return f"path IN ({', '.join(repr(name) for name in sorted(self.destinations))})"

    def includes(self, stranded: Stranded, number: int) -> bool:
        """Return whether a message with this sequence number is chosen."""
        if not self.destinations:
            return number % 2 == 0
        return stranded.doom != INVALID and stranded.original.destination in self.destinations


@dataclass(frozen=True)
class Plan:
    """`mover` is SYPHON, MOVE or REDRIVE: the last two move queue 0, or its dead letters, and leave what is refused.

    `messages` are there at the start.

    `choice` is the filter, where there is one. `remaining` is whether the time in the backlog counts; `rate` is
    messages a second, where there is a limit. `ramp` has the steps of one, where there is one.
    `pauses` are those of each syphon that runs among the faults: (ms after its start, how long).
    """

    seed: int
    queues: int
    goals: tuple[Goal, ...]
    messages: tuple[Stranded, ...]
    once: bool
    manage: bool
    hold: int
    ordered: bool
    remaining: bool
    rate: float | None
    weather: Weather
    span_ms: int
    steps: tuple[Step, ...]
    choice: Choice | None = None
    mover: str = SYPHON
    ramp: RampPlan | None = None
    pauses: tuple[tuple[int, int], ...] = ()
    order: Order = PLAIN
    kinds: frozenset[str] = field(init=False)

    PARTS: ClassVar = ("messages", "steps", "pauses")
    PLAINEST: ClassVar = {
        "weather": Weather(pieces=0.0),
        "choice": None,
        "ramp": None,
        "rate": None,
        "remaining": False,
        "hold": 1_000,
        "manage": True,
        "once": True,
    }

    def told(self) -> Iterator[str]:
        for each in self.messages:
            yield f"message: {each}"
        for step in self.steps:
            yield f"fault: {step}"
            for each in step.messages:
                yield f"message: {each}, from then on"
        for at_ms, lasts_ms in self.pauses:
            yield f"pause: {at_ms} ms after each start, for {lasts_ms} ms"
        for name, plainest in self.PLAINEST.items():
            if (value := getattr(self, name)) != plainest:
                yield f"{name}: {value}"

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", frozenset(step.kind for step in self.steps))

    @property
    def keeps_refused(self) -> bool:
        """Whether what can never arrive stays in its source."""
        return self.mover != SYPHON

    @property
    def harmless(self) -> bool:
        return self.kinds <= HARMLESS

    @property
    def backlog_is_heard(self) -> bool:
        """Whether nothing keeps what the backlog says from being heard, and nobody else keeps what is in it."""
        late = ("hold", "stall", "silence", "latency")
        alone = not self.kinds & {"second", "freeze"}
        return alone and not any(each.kind in late and not each.primary for each in self.steps)

    @property
    def locks_hold(self) -> bool:
        """Whether nothing happens to the backlog by which a lock could be lost."""
        risky = {"expire-locks", "clock", "tool-clock", "second", "crash", "freeze", "backlog-remade", "stop"}
        return not (self.kinds & risky or self.pauses) and all(
            step.primary or step.kind in HARMLESS for step in self.steps
        )


def plan(
    seed: int, *, now_ms: int = BEGAN_MS, without: frozenset[str] = frozenset(), span_ms: int | None = None
) -> Plan:
    """What happens under a seed, `without` these kinds."""
    random = Random(seed)
    queues = random.choice((1, 1, 2, 3, 5))
    to = goals(random)
    count = random.choice((3, 10, 20, 40)) + random.randrange(10)
    flawed = random.choice((0.0, 0.0, 0.05, 0.3))
    span = span_ms or random.choice((3_000, 20_000, 60_000, 240_000))
    stranded = messages(random, count, queues, to, now_ms=now_ms, flawed=flawed)
    strikes = random.choice((0, 1, 1, 2, 2, 3, 4, 6, 9))
    kinds = [kind for kind in DRAWS if kind not in without]
    drawn = random.choices(kinds, [DRAWS[kind].weight for kind in kinds], k=strikes)
    if "destination-gone" in drawn:
        # Nothing that has partitions can be deleted or made while one of them is down.
        drawn = [kind for kind in drawn if kind != "partition-down"]
    steps = sorted((drawn_step(random, kind, span, queues, to) for kind in drawn), key=lambda step: step.at_ms)
    for number, step in enumerate(steps):
        if step.kind in ("strand", "backlog-remade"):
            more = messages(random, random.randint(1, 10), queues, to, now_ms=now_ms, flawed=flawed)
            steps[number] = replace(step, messages=tuple(more))
    drawn_plan = Plan(
        seed=seed,
        queues=queues,
        goals=to,
        messages=tuple(stranded),
        once=random.random() < 0.5,
        manage=random.random() < 0.5,
        hold=random.choice((1, 2, 7, 1_000, 1_000)),
        ordered=random.random() < 0.8,
        remaining=random.random() < 0.2,
        rate=random.choice((None, None, None, 5.0, 200.0)),
        weather=drawn_weather(random),
        span_ms=span,
        steps=tuple(steps),
    )
    choice = _choice(random, to, ordered=drawn_plan.ordered)
    ramp = _ramp(random, to)
    return replace(drawn_plan, choice=choice, ramp=ramp, pauses=_pauses(seed, span), order=order_of(seed))


def _choice(random: Random, to: tuple[Goal, ...], *, ordered: bool) -> Choice | None:
    if random.random() < 0.75:
        return None
    if not ordered and random.random() < 0.5:
        return Choice()
    return Choice(frozenset(goal.name for goal in random.sample(to, random.randint(1, len(to)))))


def move_plan(seed: int) -> Plan:
    """What happens to a move, or to a redrive of dead letters, under a seed: as to a syphon of one queue.

    The messages of a move have no `path` to choose by.
    """
    drawn = plan(seed, without=frozenset({"backlog-remade", "strand"}))
    mover = (MOVE, REDRIVE)[seed % 2]
    to = drawn.goals[:1] if mover == MOVE else drawn.goals
    random = Random(f"{mover} {seed}")
    made = messages(random, len(drawn.messages), 1, to, now_ms=BEGAN_MS, flawed=random.choice((0.0, 0.1)))
    steps = tuple(replace(each, entity=_only(each.entity, to)) for each in drawn.steps)
    return replace(
        drawn,
        queues=1,
        goals=to,
        messages=tuple([moved(each, to[0]) for each in made] if mover == MOVE else made),
        remaining=False,
        steps=steps,
        choice=None if mover == MOVE and drawn.choice and drawn.choice.destinations else drawn.choice,
        mover=mover,
    )


def _only(entity: str | int | None, to: tuple[Goal, ...]) -> str | int | None:
    """Return an entity that a schedule of one queue has, instead of one that may be missing."""
    if isinstance(entity, int):
        return 0
    return entity if entity is None or entity in {goal.name for goal in to} else to[0].name


def _pauses(seed: int, span: int) -> tuple[tuple[int, int], ...]:
    """Some, in two of five schedules: mostly while the first messages are on their way."""
    random = Random(f"pauses {seed}")
    count = random.choice((0, 0, 0, 1, 4))
    starts = sorted(int(exp(random.uniform(0.0, log(span)))) for _ in range(count))
    return tuple((at, random.choice((0, 1, 50, 2_000, 20_000))) for at in starts)


def _ramp(random: Random, to: tuple[Goal, ...]) -> RampPlan | None:
    """Some steps, in a third of all schedules. What a topic gives to whom is known with Manage only."""
    totals = random.choice((None, None, None, None, (1, 3), (1, 2, 10, 1_000)))
    seconds = random.choice((0.5, 3.0, 30.0))
    return RampPlan(totals, seconds) if totals and not any(goal.kind == TOPIC for goal in to) else None


def drawn_weather(random: Random) -> Weather:
    return Weather(
        slow=random.choice((0.000_1, 0.001, 0.02)),
        jitter=random.choice((0.0, 0.005, 0.1, 1.0)),
        pieces=random.choice((0.0, 0.2, 0.9)),
        window=random.choice((300, 4_096, 65_536, 65_536)),
    )


def drawn_step(random: Random, kind: str, span: int, queues: int, to: tuple[Goal, ...]) -> Step:
    draw = DRAWS[kind]
    primary = random.random() < 0.6 if draw.primary is None else draw.primary
    one = random.choice(to).name if primary else random.randrange(queues)
    named = draw.names == ONE or (draw.names == SOME and random.random() < 0.5)
    return Step(
        # As often in the first milliseconds as in the last seconds: most of the work is done soon.
        at_ms=int(exp(random.uniform(0.0, log(span)))),
        lasts_ms=random.choice((0, 50, 1_000, 10_000, 90_000)),
        kind=kind,
        primary=primary,
        entity=one if named else None,
        number=random.choice(draw.numbers),
        count=None if len(draw.counts) == 1 else random.choice(draw.counts),
    )
