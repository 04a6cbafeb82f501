"""`sbpair emulator` in a process of its own, with somebody looking on: what the real schedules are played against.

python -m tests.faults.observed SEED NOW_MS BEGAN

It answers on its ports, and on its control door, like any other. Beside that it tells what happens to every message on
stdout, a JSON line each, and judges it in the end. On stdin it is told what only the inside can do: to strand messages,
to change entities, and to kill a syphon in the very moment in which something happens.
"""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from random import Random
from typing import Any, Final, Self

from sbpair.emulator import server
from sbpair.move.receipt import NamedMessage, Receipt
from sbpair.testing import Emulator
from tests.faults.simulation.checker import Course, check
from tests.faults.simulation.faults import KINDS, make_backlog, make_goal
from tests.faults.simulation.history import History
from tests.faults.simulation.plan import SIMULATED_ONLY, Plan, Step, plan
from tests.faults.simulation.workload import messages

PRIMARY, SECONDARY = "contoso", "contoso-dr"

INSIDE: Final = frozenset({"quota", "disable", "destination-gone", "backlog-remade", "strand", "crash"})
"""Kinds of steps that are taken here."""

SPAN_MS: Final = 6_000
MAX_LASTS_MS: Final = 2_000
MAX_JUMP_MS: Final = 30_000
SLOW: Final = 5.0
"""A rate that a plan may have, in messages a second."""


def real_plan(seed: int, now_ms: int) -> Plan:
    """The plan of a seed, made shorter. The clocks may differ by less than a minute, however often one jumps."""
    drawn = plan(seed, now_ms=now_ms, without=SIMULATED_ONLY, span_ms=SPAN_MS)
    jumps = max(1, sum(step.kind == "clock" for step in drawn.steps))
    steps = tuple(
        replace(
            step,
            lasts_ms=min(step.lasts_ms, MAX_LASTS_MS),
            number=min(step.number, MAX_JUMP_MS // jumps) if step.kind == "clock" else min(step.number, 500),
        )
        if step.kind in ("clock", "latency")
        else replace(step, lasts_ms=min(step.lasts_ms, MAX_LASTS_MS))
        for step in drawn.steps
    )
    return _busy(replace(drawn, steps=steps), now_ms)


def _busy(drawn: Plan, now_ms: int) -> Plan:
    """With more to do: what is there at the start is moved within milliseconds, and faults would strike the idle."""
    if "freeze" in drawn.kinds:
        return drawn  # it wants a backlog that nothing is added to
    random = Random(f"more for {drawn.seed}")
    moments = [max(0, step.at_ms - random.randrange(40)) for step in drawn.steps]
    moments += [random.randrange(SPAN_MS) for _ in range(4)]
    flawed, limit = random.choice((0.0, 0.05)), 3 if drawn.rate == SLOW else 30
    steps = list(drawn.steps)
    for at_ms in moments:
        step = Step(at_ms, 0, "strand", primary=False, number=random.randrange(1_000_000))
        count = random.randint(1, limit)
        more = messages(random, count, drawn.queues, drawn.goals, now_ms=now_ms, flawed=flawed)
        steps.append(replace(step, messages=tuple(more)))
    return replace(drawn, steps=tuple(sorted(steps, key=lambda each: each.at_ms)))


class Observer:
    """Looks on from inside. Faults see it as their stage; `world` has what they want of one."""

    def __init__(self, the_plan: Plan, emulator: Emulator, began: float) -> None:
        """`began` is what the monotonic clock of this machine showed when the schedule began."""
        self.plan = the_plan
        self.world = self
        self.primary, self.secondary = emulator.namespaces[PRIMARY], emulator.namespaces[SECONDARY]
        self.history = Told(lambda: round((time.monotonic() - began) * 1000), self._holder, self._sender)
        self.course = Course(the_plan, self.history)
        self.missing = self.course.missing
        self._connections: dict[Any, int] = {}
        self._syphons: dict[str, int] = {}
        self._under_way: dict[int, AbstractContextManager[None]] = {}

    def set_the_stage(self) -> None:
        for goal in self.plan.goals:
            self.history.watch_primary(make_goal(self.primary, goal))
        for index in range(self.plan.queues):
            queue = make_backlog(self.secondary, index)
            self.history.watch_backlog(queue)
            self.history.strand(queue, [each for each in self.plan.messages if each.queue == index])

    def _holder(self, consumer: Any) -> tuple[str, int]:
        door = getattr(consumer, "_connection", None)
        return ("syphon", self._connections.setdefault(door, len(self._connections)))

    def _sender(self) -> str | None:
        # Of two at the same time nobody here can say which it was.
        return None if "second" in self.plan.kinds else "syphon"

    def kill(self) -> None:
        for name, process in self._syphons.items():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                self.history.tell(f"kill {name}")
        for track in self.history.tracks.values():
            if self._syphons and track.held_by and (not track.completed or len(track.arrivals) > 1):
                self.course.in_flight_at_death.add(track.stranded.id)

    kill_soon = kill

    def obey(self, command: dict[str, Any]) -> None:
        """One command; its name is the key."""
        for name, value in command.items():
            getattr(self, f"_obey_{name}")(value)

    def _obey_tell(self, text: str) -> None:
        self.history.tell(text)

    def _obey_accuse(self, text: str) -> None:
        self.history.accuse(text)

    def _obey_started(self, syphon: list[Any]) -> None:
        name, pid = syphon
        # Not its number, which another process may have by the time that it is wanted. It may be over already.
        with suppress(ProcessLookupError):
            self._syphons[name] = os.pidfd_open(pid)

    def _obey_ended(self, name: str) -> None:
        process = self._syphons.pop(name, None)
        if process is not None:
            os.close(process)

    def _obey_begin(self, number: int) -> None:
        step = self.plan.steps[number]
        self._under_way[number] = KINDS[step.kind](self, step)  # type: ignore[arg-type]  # it has what they want
        self._under_way[number].__enter__()

    def _obey_end(self, number: int) -> None:
        self._under_way.pop(number).__exit__(None, None, None)

    def _obey_judge(self, receipts: list[dict[str, Any]]) -> None:
        self.course.receipts.extend(map(receipt_of, receipts))
        history = self.history
        wrong, lines = check(self.course), history.lines
        say({"wrong": wrong, "lines": lines, "messages": len(history.tracks), "again": history.again})


class Told(History):
    """Whoever has started this hears every line at once, and how many messages are in the backlog still."""

    def tell(self, text: str) -> None:
        super().tell(text)
        left = sum(not (each.completed or each.dead or each.deleted) for each in self.tracks.values())
        say({"line": text, "left": left})


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def receipt_of(document: dict[str, Any]) -> Receipt:
    known = {name: value for name, value in document.items() if name in Receipt.__dataclass_fields__}
    for name in ("dead_letters", "doubtful"):
        known[name] = tuple(
            NamedMessage(**{key: each.get(key) for key in NamedMessage.__dataclass_fields__})
            for each in document.get(name, ())
        )
    return Receipt(**known)


class Orders(asyncio.Protocol):
    """What comes on stdin. Its end is the end: nobody is there any more who would stop it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._unread = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._observer.obey(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        os.kill(os.getpid(), signal.SIGTERM)


def main(seed: int, now_ms: int, began: float) -> None:
    class Observed(Emulator):
        async def __aenter__(self) -> Self:
            await super().__aenter__()
            observer = Observer(real_plan(seed, now_ms), self, began)
            observer.set_the_stage()
            await asyncio.get_running_loop().connect_read_pipe(lambda: Orders(observer), sys.stdin)
            return self

    from sbpair.__main__ import run

    server.Emulator = Observed  # type: ignore[misc]  # the command starts whatever is there
    sys.exit(run(["emulator", "--namespace", f"{PRIMARY}=0", "--namespace", f"{SECONDARY}=0", "--output", "json"]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
