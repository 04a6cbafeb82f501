"""Every state of the sending of an archive: its tasks, which may die or lose their driver, and the files they leave.

The model is the code: the real source, mover and ledger send, and the real proof counts, over real files. What the
primary answers is played. A state is made again by its events.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import compress, product
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch
from weakref import finalize

from sbpair import errors
from sbpair.model.retries import Backoff
from sbpair.move.context import MoveContext
from sbpair.move.timings import MoveTimings
from sbpair.replay import send_task
from sbpair.replay.archive import DOUBTFUL, LEDGER, NOT_SENT, OUTCOMES, Archive
from sbpair.replay.ledger import Key, Ledger, held_by_attempts
from sbpair.replay.run_description import ReplayOptions, ReplayRun
from sbpair.replay.send_task import LedgerTally, ShardReader, ShardSource, send_source
from sbpair.replay.verify import verify
from sbpair.runs.journal import Journal
from tests.kit.stranded import stranded
from tests.model.move_code import AT_ONCE, MEMORY, Call, Connection
from tests.model.search import ReplayedModel, Wrong
from tests.model.stepped_loop import SteppedLoop
from tests.replay.segments import rows_of, write_segment
from tests.replay.tasks import planned

Event: TypeAlias = tuple[Any, ...]
Figures: TypeAlias = tuple[Any, ...]

QUEUE, RUN = "contoso/x-servicebus-transfer/0", "r1"
FULL = errors.MachineLacks("the disk is full", hint="")


class Budget(NamedTuple):
    """How many of each are left: tasks that die, drivers that do, answers that are lost, disks that are full."""

    deaths: int = 0
    drivers: int = 0
    answers: int = 0
    disks: int = 0


class Files(Archive):
    """The archive as one task sees it. `full`: it can write nothing more."""

    full = False

    def write_table(self, *arguments: Any, **more: Any) -> None:
        self._check()
        super().write_table(*arguments, **more)

    def write_line(self, *arguments: Any, **more: Any) -> None:
        self._check()
        super().write_line(*arguments, **more)

    def remove(self, *arguments: Any, **more: Any) -> None:
        if not self.full:
            super().remove(*arguments, **more)

    def _check(self) -> None:
        if self.full:
            raise FULL


class Attempt:
    """A task from its start to its end. `has_driver`: it may send."""

    def __init__(self, directory: Path, rows: list[Any], number: int, known: set[int]) -> None:
        """Start. `known` are the messages that the ledger has by now."""
        self.number = number
        self.known = known
        self.has_driver = True
        self.loop = SteppedLoop()
        self.calls: list[Call] = []
        self.files = Files(str(directory), RUN)
        self.ledger = Ledger(self.files, 1, str(number))
        reader = ShardReader(iter(rows), self.files, self.ledger)
        self.source = ShardSource(reader, self.files, self.ledger, self._wait_allowed)
        context = MoveContext(
            "contoso-dr",
            tally=LedgerTally(self.ledger),
            journal=Journal(may_send=self._may_send),
            batch_limits=AT_ONCE,
            timings=MoveTimings(backoff=Backoff(1.0, 1.0)),
        )
        primary: Any = Connection(None, self.calls, settles_left=True)  # type: ignore[arg-type]  # it only sends
        self.task = self.loop.create_task(send_source(self.source, primary, context), name="attempt")
        self.loop.run_until_quiet()

    async def _wait_allowed(self) -> None:
        self.may_refuse()

    def may_refuse(self) -> None:
        """Check as for a send. Apart from that, so that a test can leave it out."""
        self._may_send()

    def _may_send(self) -> None:
        if not self.has_driver:
            raise errors.LeaseLost("the driver is dead", hint="")

    def call(self, destination: str) -> Call:
        return next(each for each in self.calls if each.messages[0].facts.path == destination)

    def numbers(self, destination: str) -> list[int]:
        """Return the messages of a pending send."""
        return [_number(message.row) for message in self.call(destination).messages]

    def destinations(self) -> list[str]:
        """Return the destinations of pending sends."""
        return sorted({each.messages[0].facts.path for each in self.calls})

    def waiting(self) -> list[str]:
        """Return the destinations that are left in peace for a while."""
        names = {name for name, _, handle, *_ in self.loop.timers if not handle.cancelled() and handle.when() > 0.0}
        to = sorted(name.removeprefix("send to ") for name in names if name.startswith("send to "))
        return [each for each in to if each not in self.destinations()]

    def figures(self) -> Figures:
        sent = tuple(tuple(_number(each.row) for each in call.messages) for call in self.calls)
        accepted = tuple(_number(each.row) for each in self.source._accepted)
        doubtful = frozenset(_number(each.key) for each in self.ledger._doubtful)
        return self.number, self.has_driver, self.files.full, sent, tuple(self.waiting()), accepted, doubtful

    def answer(self, call: Call, error: Exception | None) -> None:
        if error is not None:
            call.answer.set_exception(error)
        else:
            call.answer.set_result(None)
        self.loop.run_until_quiet()

    def close(self) -> None:
        """End it at once: nothing more is written."""
        self.files.full = True
        self.task.cancel()
        self.loop.run_until_quiet()
        for call in list(self.calls):
            self.answer(call, errors.InDoubt("no answer came"))
        with suppress(asyncio.CancelledError):
            self.task.exception()
        self.loop.close()


def _number(key: Key) -> int:
    return _place({"message_id": key[3]})


def _place(named: dict[str, Any]) -> int:
    """Return which message it is, by its id: a doubt has no other part of its key."""
    return int(named["message_id"][1:]) - 1


class Sending:
    """An archive, its tasks, and how often the primary has each message.

    What the primary refuses once, it refuses from each task.
    """

    def __init__(self, source: Path, rows: list[Any], count: int, budget: Budget) -> None:
        self._directory = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        shutil.copytree(source, self._directory, dirs_exist_ok=True)
        self._archive = Archive(str(self._directory), RUN)
        self._run = ReplayRun(RUN, {}, (QUEUE,), 1, 1, ReplayOptions())
        self._rows = rows
        self.copies = [0] * count
        self.refused: set[int] = set()
        self.budget = budget
        self.attempts: list[Attempt] = []
        self._started = 0
        self._now = 0.0
        self._patches = ExitStack()
        self._patches.enter_context(patch.object(asyncio, "to_thread", _at_once))
        self._patches.enter_context(patch.object(send_task, "time", SimpleNamespace(monotonic=lambda: self._now)))

    def figures(self) -> Figures:
        rows = ((kind, row) for kind in (*OUTCOMES, DOUBTFUL) for row in rows_of(self._archive, kind))
        ended = Counter((kind, row["attempt"], _place(row)) for kind, row in rows)
        held = ((_number(key), number) for key, number in held_by_attempts(self._archive))
        attempts = tuple(each.figures() for each in self.attempts)
        primary = tuple(self.copies), frozenset(self.refused)
        return *primary, self.budget, attempts, frozenset(ended.items()), frozenset(held)

    def _ended(self, *kinds: str) -> list[int]:
        """Return the messages with these outcomes, as often as they have them."""
        return [_place(row) for kind in kinds for row in rows_of(self._archive, kind)]

    def is_over(self) -> bool:
        return not self.attempts and len({*self._ended(*OUTCOMES)}) == len(self.copies)

    def events(self) -> Iterator[Event]:
        if not any(each.has_driver for each in self.attempts) and not self.is_over():
            yield ("start",)
        for at, attempt in enumerate(self.attempts):
            for destination in attempt.destinations():
                yield from self._answers(at, destination, attempt.numbers(destination))
            yield from (("retry", at, destination) for destination in attempt.waiting())
            if self.budget.deaths:
                pending = [each for each in attempt.destinations() if self.refused.isdisjoint(attempt.numbers(each))]
                for choice in product((True, False), repeat=len(pending)):
                    yield "die", at, tuple(compress(pending, choice))
            if self.budget.drivers and attempt.has_driver:
                yield "lose driver", at
            if self.budget.disks and not attempt.files.full:
                yield "fill", at

    def _answers(self, at: int, destination: str, numbers: list[int]) -> Iterator[Event]:
        if not self.refused.isdisjoint(numbers):
            yield "refuse", at, destination
            return
        yield from (("accept", at, destination, soon) for soon in (True, False))
        if self.budget.answers:
            yield from (("doubt", at, destination, has_arrived) for has_arrived in (True, False))
            yield "away", at, destination
            if len(numbers) == 1 and not self.copies[numbers[0]]:
                yield "refuse", at, destination

    def take(self, event: Event) -> None:
        what, *details = event
        if what == "start":
            self._started += 1
            self.attempts.append(Attempt(self._directory, self._rows, self._started, {*self._ended(LEDGER)}))
        else:
            at, *more = details
            getattr(self, f"_{what.replace(' ', '_')}")(self.attempts[at], *more)
        for attempt in [each for each in self.attempts if each.task.done()]:
            error = attempt.task.exception()
            if error is not None and not isinstance(error, errors.SbpairError):
                raise error
            self.attempts.remove(attempt)
            attempt.close()

    def _spend(self, name: str) -> None:
        self.budget = self.budget._replace(**{name: getattr(self.budget, name) - 1})

    def _arrive(self, attempt: Attempt, call: Call) -> None:
        for message in call.messages:
            if _number(message.row) in attempt.known:
                raise Wrong("a message is sent again that the ledger has")
            self.copies[_number(message.row)] += 1

    def _accept(self, attempt: Attempt, destination: str, soon: bool) -> None:
        self._now += 0.0 if soon else 2 * send_task.CHUNK_SECONDS
        call = attempt.call(destination)
        self._arrive(attempt, call)
        attempt.answer(call, None)

    def _doubt(self, attempt: Attempt, destination: str, has_arrived: bool) -> None:
        self._spend("answers")
        call = attempt.call(destination)
        if has_arrived:
            self._arrive(attempt, call)
        attempt.answer(call, errors.InDoubt("no answer came"))

    def _away(self, attempt: Attempt, destination: str) -> None:
        self._spend("answers")
        attempt.answer(attempt.call(destination), errors.Unreachable("it is away"))

    def _refuse(self, attempt: Attempt, destination: str) -> None:
        numbers = attempt.numbers(destination)
        if self.refused.isdisjoint(numbers):
            self._spend("answers")
            self.refused.update(numbers)
        attempt.answer(attempt.call(destination), errors.ServiceRefused("no"))

    def _retry(self, attempt: Attempt, destination: str) -> None:
        attempt.loop.end_wait(f"send to {destination}")

    def _die(self, attempt: Attempt, reached: tuple[str, ...]) -> None:
        self._spend("deaths")
        for destination in reached:
            self._arrive(attempt, attempt.call(destination))
        self.attempts.remove(attempt)
        attempt.close()

    def _lose_driver(self, attempt: Attempt) -> None:
        self._spend("drivers")
        attempt.has_driver = False

    def _fill(self, attempt: Attempt) -> None:
        self._spend("disks")
        attempt.files.full = True

    def check(self) -> None:
        """Raise Wrong if what always holds does not."""
        acknowledged, unsent = {*self._ended(LEDGER)}, self._ended(*NOT_SENT)
        if not all(self.copies[number] for number in acknowledged):
            raise Wrong("the ledger has a message that the primary does not have")
        if len({*unsent}) < len(unsent):
            raise Wrong("a message that cannot arrive is kept twice, for two to send it again")
        if self.attempts:
            return
        proof = verify(self._archive, self._run)
        named, ended = {_place({"message_id": each.message_id}) for each in proof.doubtful}, {*acknowledged, *unsent}
        twice = {number for number, times in enumerate(self.copies) if times > 1}
        if twice & ended - named:
            raise Wrong("a message is there twice, and the proof does not name it")
        if proof.contradictions or proof.unknown or proof.unsent != len(self.copies) - len(ended):
            raise Wrong("a message has no outcome, or two")

    def close(self) -> None:
        for attempt in self.attempts:
            attempt.close()
        self._patches.close()
        shutil.rmtree(self._directory)


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class ReplayModel(ReplayedModel):
    """The states of the sending of messages to these destinations, for `search`."""

    free = frozenset({"start", "accept", "retry", "refuse"})

    def __init__(self, to: str, budget: Budget) -> None:
        self._to, self._budget = to, budget
        self._source = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        finalize(self, shutil.rmtree, self._source)
        archive = Archive(str(self._source), RUN)
        archive.create()
        keys: list[Key] = [(QUEUE, number, 1, f"m{number}") for number in range(1, len(to) + 1)]
        messages = [stranded(f"m{number}", each) for number, each in enumerate(to, start=1)]
        write_segment(archive, "s", keys, messages, shards=1)
        self._rows = planned(archive)
        super().__init__()

    def start(self) -> Sending:
        return Sending(self._source, self._rows, len(self._to), self._budget)
