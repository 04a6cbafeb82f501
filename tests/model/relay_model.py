"""Every interleaving of requests of a relay client, and of a command to swap roles.

The model is the code: the real client decides which side gets a request, and which one is active. What both sides
answer to each attempt is played, and whether a listener has executed it. A state is made again by its events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeAlias

from sbpair.errors import BothFailed, InDoubt, ServiceRefused, Unreachable
from sbpair.model.pair import SasKey, Side
from sbpair.relay.answer_verdicts import AnswerVerdict, Reissue
from sbpair.relay.relay_client import AsyncRelayClient, SideFailure
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair
from tests.model.search import ReplayedModel, Wrong
from tests.model.stepped_loop import SteppedLoop

Event: TypeAlias = tuple[Any, ...]
Figures: TypeAlias = tuple[Any, ...]

REQUESTS: tuple[tuple[str, Reissue], ...] = (("GET", "safe"), ("POST", "safe"), ("POST", "always"))


class Response:
    """The answer of a side."""

    def __init__(self, side: Side) -> None:
        self.side = side

    async def close(self) -> None: ...


class Client(AsyncRelayClient):
    """A client whose attempts wait for what an event tells. `attempts` are the pending ones, by request."""

    def __init__(self, pair: RelayPair) -> None:
        super().__init__(pair, first="primary", on_event=lambda _event: None)
        self.attempts: dict[int, tuple[Side, asyncio.Future[Any]]] = {}

    async def _request(self, side: Side, method: str, suffix: str, *_: object) -> Any:  # type: ignore[override]
        del method
        number = int(suffix.strip("/"))
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.attempts[number] = side, outcome
        return await outcome


class Requests:
    """A client and its requests: `executed` says which sides have executed each, `failed` which were not available."""

    def __init__(self, made: tuple[tuple[str, Reissue], ...]) -> None:
        self._made = made
        self.loop = SteppedLoop()
        key = SasKey("k", "a2V5")
        ends = [RelayEndpoint(f"{name}.example", name, key) for name in ("east", "west")]
        self.client = Client(RelayPair(*ends))
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.executed: list[list[Side]] = [[] for _ in made]
        self.failed: list[list[Side]] = [[] for _ in made]
        self.swaps_left = 1
        self._before = self.client.active
        self._last: Event = ("swap",)

    def figures(self) -> Figures:
        ends = tuple(type(self._end(at)).__name__ if self._is_over(at) else "" for at in range(len(self._made)))
        attempts = tuple(sorted((at, side) for at, (side, _) in self.client.attempts.items()))
        done = tuple((tuple(each), tuple(gone)) for each, gone in zip(self.executed, self.failed, strict=True))
        return self.client.active, self.swaps_left, frozenset(self.tasks), ends, attempts, done

    def events(self) -> Iterator[Event]:
        if self.swaps_left:
            yield ("swap",)
        for at in range(len(self._made)):
            if at not in self.tasks:
                yield "begin", at
        for at in self.client.attempts:
            yield from (("answers", at), ("refuses", at), ("absent", at), ("silent", at, True), ("silent", at, False))

    def take(self, event: Event) -> None:
        self._before, self._last = self.client.active, event
        what, *details = event
        if what == "swap":
            self.swaps_left -= 1
            self.client.swap_roles()
        elif what == "begin":
            [at] = details
            method, reissue = self._made[at]
            self.tasks[at] = self.loop.create_task(self.client.request(method, f"/{at}", reissue=reissue))
        else:
            self._answer(what, *details)
        self.loop.run_until_quiet()

    def _answer(self, what: str, at: int, was_executed: bool = False) -> None:
        side, outcome = self.client.attempts.pop(at)
        if was_executed or what == "answers":
            self.executed[at].append(side)
        if what == "answers":
            outcome.set_result(Response(side))
        elif what == "refuses":
            outcome.set_exception(ServiceRefused("no"))
        else:
            self.failed[at].append(side)
            verdict = AnswerVerdict.IN_DOUBT if what == "silent" else AnswerVerdict.NOT_EXECUTED
            outcome.set_exception(SideFailure(verdict, Unreachable("no answer")))

    def _is_over(self, at: int) -> bool:
        return at in self.tasks and self.tasks[at].done()

    def _end(self, at: int) -> Any:
        return self.tasks[at].exception() or self.tasks[at].result()

    def check(self) -> None:
        """Raise Wrong if what always holds does not."""
        for at, executed in enumerate(self.executed):
            if len(executed) > 1 and self._made[at] == ("POST", "safe"):
                raise Wrong("a request was executed twice that must not be")
            if self._is_over(at):
                self._check_end(self._end(at), executed)
        self._check_roles()

    def _check_end(self, end: Any, executed: list[Side]) -> None:
        if isinstance(end, Response):
            if end.side not in executed:
                raise Wrong("a request was answered by a side that has not executed it")
        elif isinstance(end, BothFailed):
            if not {*executed} <= {*end.in_doubt}:
                raise Wrong("a request was executed, and no error says that it may have been")
        elif executed and not isinstance(end, InDoubt):
            raise Wrong("a request was executed, and its error denies that")

    def _check_roles(self) -> None:
        """Raise Wrong if the last event has changed the roles that must not."""
        active, what = self.client.active, self._last[0]
        if what == "swap":
            return
        at = self._last[1]
        gave_up = self._is_over(at) and not isinstance(self._end(at), BothFailed | ServiceRefused)
        first = self.failed[at][0] if self.failed[at] else None
        if gave_up and first == active:
            raise Wrong("the side that failed stays active after its request went to the other")
        if active != self._before and not (gave_up and first == self._before):
            raise Wrong("the roles were swapped without a failure of the active side")

    def is_over(self) -> bool:
        return len(self.tasks) == len(self._made) and not self.client.attempts

    def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.loop.run_until_quiet()
        self.loop.close()


class RelayModel(ReplayedModel):
    """The states of a client with some of the REQUESTS, by number, for `search`."""

    free = frozenset({"begin", "answers", "refuses", "absent", "silent", "swap"})

    def __init__(self, *numbers: int) -> None:
        self._requests = tuple(REQUESTS[number] for number in numbers)
        super().__init__()

    def start(self) -> Requests:
        return Requests(self._requests)
