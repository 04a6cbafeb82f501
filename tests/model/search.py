"""Explicit-state search: every state that a model can reach, each visited once, nearest first."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

MAX_WALK, MAX_WAY_ON = 100, 4
"""The transitions of one walk, and those on the way to the next one that none has taken."""


class Wrong(Exception):
    """A property of a model does not hold."""


class Model(Protocol):
    """`next` iterates over the events that may come in a state, each with the state after it. Both may raise Wrong.

    `ends` returns whether nothing remains to be done. Events whose names are in `free` are no faults.
    """

    first: Any
    free: frozenset[str]

    def next(self, state: Any) -> Iterable[tuple[tuple[Any, ...], Any]]: ...

    def check(self, state: Any) -> None: ...

    def ends(self, state: Any) -> bool: ...


class System(Protocol):
    """The code itself, in one state of its model. `figures` are all that tells its states apart."""

    def figures(self) -> Hashable: ...

    def events(self) -> Iterable[tuple[Any, ...]]: ...

    def take(self, event: tuple[Any, ...]) -> None: ...

    def check(self) -> None: ...

    def is_over(self) -> bool: ...

    def close(self) -> None: ...


class ReplayedModel(ABC):
    """A model that is the code itself. It cannot be copied: a state is made again by the events that lead to it.

    A walk goes on from there while it can take transitions that none has taken, since events are dear.
    """

    free: frozenset[str]

    def __init__(self) -> None:
        self._ways: dict[Any, tuple[tuple[Any, ...], ...]] = {}
        self._untaken: dict[Any, list[tuple[Any, ...]]] = {}
        self._after: dict[Any, list[tuple[tuple[Any, ...], Any]]] = {}
        self._over: set[Any] = set()
        system = self.start()
        self.first = self._note(system, ())
        system.close()

    @abstractmethod
    def start(self) -> System: ...

    def ends(self, state: Any) -> bool:
        return state in self._over

    def next(self, state: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        while self._untaken[state]:
            self._walk(state)
        for event, after in self._after[state]:
            if isinstance(after, Wrong):
                raise after
            yield event, after

    def _walk(self, state: Any) -> None:
        """Take transitions from a state on. The limit is for code with a defect, whose states may have no end."""
        system = self.start()
        try:
            for event in self._ways[state]:
                system.take(event)
            assert system.figures() == state, "the figures lack what tells two states apart"
            for _ in range(MAX_WALK):
                for event, after in self._way_on(state):
                    system.take(event)
                    state = after
                if not self._untaken[state]:
                    return
                event = self._untaken[state].pop()
                way = (*self._ways[state], event)
                try:
                    system.take(event)
                    system.check()
                except Wrong as wrong:
                    self._after[state].append((event, wrong))
                    return
                after = self._note(system, way)
                self._after[state].append((event, after))
                state = after
        finally:
            system.close()

    def _way_on(self, state: Any) -> list[tuple[tuple[Any, ...], Any]]:
        """Return a short way to a state from where not all transitions are taken, if there is one. Each step has its
        event, and the state after it.
        """
        ways: dict[Any, list[tuple[tuple[Any, ...], Any]]] = {state: []}
        for at in (left := [state]):
            if self._untaken[at]:
                return ways[at]
            if len(ways[at]) < MAX_WAY_ON:
                new = {after: event for event, after in self._after[at] if after not in ways and after in self._ways}
                ways |= {after: [*ways[at], (event, after)] for after, event in new.items()}
                left.extend(new)
        return []

    def _note(self, system: System, way: tuple[tuple[Any, ...], ...]) -> Any:
        """Return the state that a system is in, with its events and the shortest known way there."""
        state = system.figures()
        if state not in self._ways:
            self._untaken[state], self._after[state] = list(system.events()), []
            if system.is_over():
                self._over.add(state)
        if len(way) <= len(self._ways.get(state, way)):
            self._ways[state] = way
        return state

    def check(self, state: Any) -> None:
        """Each state is checked when it is made."""
        del state


@dataclass(frozen=True)
class Found:
    """`wrong` is the property that does not hold, and `trace` the shortest way there."""

    states: int
    transitions: int
    seconds: float
    wrong: str = ""
    trace: tuple[tuple[Any, ...], ...] = ()


def search(model: Model) -> Found:
    """Visit every state, and check each. A state that does not end, and in which only faults can come, is wrong too."""
    began = time.perf_counter()
    before: dict[Hashable, tuple[Any, Any]] = {model.first: (None, None)}
    left = deque([model.first])
    transitions, wrong, state = 0, "", model.first
    while left and not wrong:
        state = left.popleft()
        goes_on = model.ends(state)
        try:
            model.check(state)
            for event, after in model.next(state):
                transitions += 1
                goes_on = goes_on or event[0] in model.free
                if after not in before:
                    before[after] = state, event
                    left.append(after)
        except Wrong as error:
            wrong = str(error)
        else:
            wrong = "" if goes_on else "nothing goes on without a fault"
    trace: list[Any] = []
    while wrong and state != model.first:
        state, event = before[state]
        trace.insert(0, event)
    return Found(len(before), transitions, time.perf_counter() - began, wrong, tuple(trace))


def has_loop(model: Model) -> bool:
    """Return whether events that are no faults can go on for ever."""
    is_open: dict[Any, bool] = {}
    for start in _reachable(model):
        ways = [(start, iter(_free_steps(model, start)))]
        if start in is_open:
            continue
        is_open[start] = True
        while ways:
            state, steps = ways[-1]
            after = next(steps, None)
            if after is None:
                is_open[state] = False
                ways.pop()
            elif is_open.get(after):
                return True
            elif after not in is_open:
                is_open[after] = True
                ways.append((after, iter(_free_steps(model, after))))
    return False


def _free_steps(model: Model, state: Any) -> list[Any]:
    return [after for event, after in model.next(state) if event[0] in model.free and after != state]


def _reachable(model: Model) -> Iterable[Any]:
    found, left = {model.first}, [model.first]
    while left:
        new = {after for _, after in model.next(left.pop())} - found
        found |= new
        left += new
    return found


def walks(model: Model) -> Iterator[list[tuple[Any, ...]]]:
    """Iterate over traces from the first state that together take every transition of the model, each as long as new
    transitions follow.
    """
    ways: dict[Any, list[tuple[Any, ...]]] = {model.first: []}
    left = {model.first: list(model.next(model.first))}
    starts = [model.first]
    while starts:
        at = starts[-1]
        if not left[at]:
            starts.pop()
            continue
        trace = [*ways[at]]
        while left[at]:
            event, at = left[at].pop()
            trace.append(event)
            if at not in ways:
                ways[at] = [*trace]
                left[at] = list(model.next(at))
                starts.append(at)
        yield trace
