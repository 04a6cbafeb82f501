"""A failing schedule made small: fewer messages, faults and deviations from plain order, with the same kind of failure.

A plan is a dataclass with a field `order`. It names its fields that are tuples of things that may be missing, and the
plainest values of others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from tests.faults.simulation.order import PLAIN, Deviation, Order

MAX_RUNS: Final = 200

OTHER_ORDERS: Final = 2
"""So many further seeds of the order are tried with fewer messages or faults."""


SPARSE_ORDERS: Final = 10
"""So many orders with few deviations are tried at last."""


class ShrinkablePlan(Protocol):
    PARTS: ClassVar[tuple[str, ...]]
    PLAINEST: ClassVar[Mapping[str, Any]]

    @property
    def order(self) -> Order: ...
    @property
    def steps(self) -> tuple[Any, ...]: ...

    def told(self) -> Iterator[str]:
        """Yield a line for each message, fault and other thing that is not plain."""


P = TypeVar("P", bound=ShrinkablePlan)
T = TypeVar("T", bound=Hashable)


def kind_of(line: str) -> str:
    """Return what kind of failure a line of a verdict names: its words without what they are about."""
    return " ".join(re.sub(r"\([^)]*\)|\d+(\.\d+)?", "", line.partition(": ")[0]).split())


@dataclass(frozen=True)
class Shrunk(Generic[P]):
    """The smallest failing plan that was found, in so many `runs`. `before` are the sizes of what was shrunk."""

    plan: P
    verdict: Any
    before: dict[str, int]
    runs: int

    @property
    def sizes(self) -> dict[str, int]:
        return sizes_of(self.plan, self.verdict)

    @property
    def story(self) -> list[str]:
        sizes = ", ".join(f"{now} of {self.before[name]} {name}" for name, now in self.sizes.items())
        deviations = [f"order: {each}" for each in self.verdict.deviations]
        wrong = [f"wrong: {line}" for line in self.verdict.wrong]
        return [f"shrunk in {self.runs} runs to {sizes}", *self.plan.told(), *deviations, *wrong]


def sizes_of(plan: Any, verdict: Any) -> dict[str, int]:
    return {name: len(getattr(plan, name)) for name in plan.PARTS} | {"deviations": len(verdict.deviations)}


class Shrinker(Generic[P]):
    """`run` carries a plan out. What does not fail in the same way as the first verdict is not smaller, but other."""

    def __init__(self, run: Callable[[P], Any], plan: P, verdict: Any, max_runs: int = MAX_RUNS) -> None:
        self.plan = plan
        self.verdict = verdict
        self.runs = 0
        self._run = run
        self._kind = kind_of(verdict.wrong[0])
        self._drawn: Order = plan.order
        self._max_runs = max_runs

    def shrink(self) -> None:
        """Spend a quarter of the runs on the order at last: with few messages, few deviations are needed."""
        last, self._max_runs = self._max_runs, self._max_runs * 3 // 4
        if not self.plan.order.is_plain and not self._fails(order=PLAIN):
            self._shrink_order()
        self._shrink_parts()
        self._max_runs = last
        if not self.plan.order.is_plain:
            self._shrink_order()
            self._find_sparse_order()
            self._shrink_order()

    def _fails(self, *, max_deviations: int | None = None, **changes: Any) -> bool:
        """Try a changed plan, and keep it if it fails in the same way. Its order is then what was late."""
        if self.runs >= self._max_runs:
            return False
        self.runs += 1
        plan = replace(self.plan, **changes)
        verdict = self._run(plan)
        if self._kind not in map(kind_of, verdict.wrong):
            return False
        if max_deviations is not None and len(verdict.deviations) > max_deviations:
            return False
        self.plan, self.verdict = replace(plan, order=Order(deviations=verdict.deviations)), verdict
        return True

    def _fails_in_some_order(self, **changes: Any) -> bool:
        """Try a changed plan with other orders too: without a message, a decision may be about another moment."""
        order: Order = self.plan.order
        if self._fails(**changes):
            return True
        if order.is_plain:
            return False
        others = [replace(order, by_time=True)]
        others += [replace(self._drawn, seed=self._drawn.seed + more) for more in range(OTHER_ORDERS)]
        return any(self._fails(**changes, order=other) for other in others)

    def _shrink_parts(self) -> None:
        smaller = True
        while smaller and self.runs < self._max_runs:
            smaller = False
            for name in self.plan.PARTS:
                smaller |= self._shrink_part(name)
            for index in range(len(self.plan.steps)):
                smaller |= self._shrink_step(index)
            for name, value in self.plan.PLAINEST.items():
                if getattr(self.plan, name) != value:
                    smaller |= self._fails_in_some_order(**{name: value})

    def _shrink_part(self, name: str) -> bool:
        return self._drop(lambda: getattr(self.plan, name), lambda kept: self._fails_in_some_order(**{name: kept}))

    def _shrink_step(self, index: int) -> bool:
        """Let a step put fewer messages in."""

        def fails(kept: Sequence[Any]) -> bool:
            steps = list(self.plan.steps)
            steps[index] = replace(steps[index], messages=kept)
            return self._fails_in_some_order(steps=tuple(steps))

        return self._drop(lambda: getattr(self.plan.steps[index], "messages", ()), fails)

    def _find_sparse_order(self) -> None:
        """Try orders with few deviations: of many, each may be needed for the next ones to mean what they mean."""
        for more in range(SPARSE_ORDERS):
            if (count := len(self.plan.order.deviations)) > 1:
                order = Order(self._drawn.seed + more, 0.03)
                self._fails(max_deviations=count - 1, order=order)

    def _shrink_order(self) -> None:
        def fails(kept: Sequence[Deviation]) -> bool:
            return self._fails(order=Order(deviations=tuple(kept)))

        self._drop(lambda: self.plan.order.deviations, fails)

    def _drop(self, things: Callable[[], Sequence[T]], fails: Callable[[tuple[T, ...]], bool]) -> bool:
        """Leave out as many as possible: at first all, then halves, at last one by one."""
        began = size = len(things())
        while size:
            start = 0
            while start < len(things()) and self.runs < self._max_runs:
                if not fails((*things()[:start], *things()[start + size :])):
                    start += size
            size //= 2
        return len(things()) < began


def shrunk(run: Callable[[P], Any], plan: P, verdict: Any, max_runs: int = MAX_RUNS) -> Shrunk[P]:
    """Return a small plan that fails as `verdict`, that of `plan`, does."""
    shrinker = Shrinker(run, plan, verdict, max_runs)
    shrinker.shrink()
    return Shrunk(shrinker.plan, shrinker.verdict, sizes_of(plan, verdict), shrinker.runs)
