"""Explicit-state search: every state that a model can reach, each visited once, nearest first."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


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


class ReplayedModel(ABC):
    """A model that is the code itself. It cannot be copied: a state is known by its figures, and made by its events."""

    free: frozenset[str]

    def __init__(self) -> None:
        self.first, events = self.made(())
        self._known: dict[Any, tuple[tuple[Any, ...], list[Any]]] = {self.first: ((), events)}

    @abstractmethod
    def made(self, way: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """Take events from the start. Return the figures, and the events that may follow. Raises Wrong."""

    @abstractmethod
    def ends(self, state: Any) -> bool: ...

    def next(self, state: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        way, events = self._known[state]
        for event in events:
            after, following = self.made((*way, event))
            self._known.setdefault(after, ((*way, event), following))
            yield event, after

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
