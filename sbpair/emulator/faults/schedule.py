"""Sequences of faults out of a seed: the same seed, count and span give the same faults at the same moments.

`plan` is pure; Schedule carries a plan out on the emulator's clock, so that a test can put that clock forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Final

from sbpair.emulator.clock import NEVER
from sbpair.emulator.errors import Refusal
from sbpair.emulator.faults.kinds import Fault

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

COUNT: Final = 10
SPAN_MS: Final = 60_000
_PARTS: Final = 10
"""No fault of a schedule lasts longer than this part of the whole."""


@dataclass(frozen=True, slots=True)
class Step:
    """`fault` is in force from `at_ms` after the start of the schedule, for `lasts_ms`."""

    at_ms: int
    lasts_ms: int
    fault: Fault


def plan(asked: Fault) -> tuple[Step, ...]:
    """The steps of a schedule: `count` of them (10), begun within `ms` (a minute), out of `seed` and nothing else."""
    random = Random(asked.seed)  # noqa: S311  # to be had again, not to be secret
    span = asked.ms or SPAN_MS
    starts = sorted(random.randrange(span) for _ in range(COUNT if asked.count is None else asked.count))
    return tuple(Step(at, random.randint(1, max(1, span // _PARTS)), _draw(random, asked)) for at in starts)


def _draw(random: Random, asked: Fault) -> Fault:
    makers = [maker for maker in _MAKERS if asked.entity is not None or maker is not _entity_down]
    return random.choice(makers)(random, asked)


def _outage(_: Random, asked: Fault) -> Fault:
    return Fault("namespace-down", asked.namespace)


def _entity_down(_: Random, asked: Fault) -> Fault:
    return Fault("entity-down", asked.namespace, asked.entity)


def _slow(random: Random, asked: Fault) -> Fault:
    return Fault("latency", asked.namespace, ms=random.randint(1, 500))


def _line(random: Random, asked: Fault) -> Fault:
    kind = random.choice(("drop", "stall", "reset"))
    return Fault(kind, asked.namespace, asked.entity, after_frames=random.randint(0, 50), count=random.randint(1, 3))


def _swallow(random: Random, asked: Fault) -> Fault:
    return Fault("swallow-acks", asked.namespace, asked.entity, count=random.randint(1, 5))


def _detach(_: Random, asked: Fault) -> Fault:
    return Fault("detach", asked.namespace, asked.entity)


def _expire(_: Random, asked: Fault) -> Fault:
    return Fault("expire-locks", asked.namespace, asked.entity)


def _throttle(random: Random, asked: Fault) -> Fault:
    return Fault("throttle", asked.namespace, asked.entity, count=random.randint(1, 10))


# A line breaks in three ways, so it is drawn three times as often as the others.
_MAKERS: Final[tuple[Callable[[Random, Fault], Fault], ...]] = (
    *(_line, _line, _line),
    *(_outage, _entity_down, _slow, _swallow, _detach, _expire, _throttle),
)


class Schedule:
    """An item of the agenda that begins and ends faults when their moments come."""

    def __init__(
        self,
        steps: tuple[Step, ...],
        namespace: Namespace,
        begin: Callable[[Fault], str],
        end: Callable[[str], None],
    ) -> None:
        self.due_ms = NEVER
        self._agenda = namespace.agenda
        self._begin = begin
        self._end = end
        started = namespace.clock.now_ms()
        # The running number keeps simultaneous moments in their order, and the heap from comparing faults.
        self._moments: list[tuple[int, int, Step | str]] = [
            (started + step.at_ms, number, step) for number, step in enumerate(steps)
        ]
        self._numbers = len(steps)
        heapify(self._moments)

    def start(self) -> None:
        self.due_ms = self._moments[0][0] if self._moments else NEVER
        if self._moments:
            self._agenda.enter(self.due_ms, self)

    def advance(self, now_ms: int) -> None:
        self.due_ms = NEVER
        while self._moments and self._moments[0][0] <= now_ms:
            at_ms, _, what = heappop(self._moments)
            self._do(at_ms, what)
        self.start()

    def _do(self, at_ms: int, what: Step | str) -> None:
        if isinstance(what, str):
            self._end(what)
            return
        try:
            identity = self._begin(what.fault)
        except Refusal:
            # Its entity has been deleted since.
            return
        self._numbers += 1
        heappush(self._moments, (at_ms + what.lasts_ms, self._numbers, identity))

    def stop(self) -> None:
        """End what it has begun, and begin nothing more."""
        self.due_ms = NEVER
        moments, self._moments = self._moments, []
        for _, _, what in moments:
            if isinstance(what, str):
                self._end(what)
