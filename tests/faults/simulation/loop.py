"""An event loop whose time is virtual: when nothing is ready it jumps to the next timer, and nothing ever really waits.

What runs in a Process can be killed between two callbacks, as `kill -9` does: nothing of it runs any more, no cleanup
either. It can be frozen too, as SIGSTOP does: time goes by, and it learns of nothing. Tasks hash by their number, so
that a set of them is walked in the same order in every run.

An Order other than the plain one explores what real loops may do, and no more. The callbacks of one process run in the
order in which they were scheduled, as asyncio promises, the bytes of one connection in theirs, and the timers of one
process by their time. But a callback takes any time, so that what is due soon may come between two of them; and any
process, any connection, all timers of a process, and the result of any thread may be late by a turn. Where a set
is walked, the order is any. Two tasks of a process never change places by themselves: no loop of asyncio lets them.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from typing import Any, Final

from tests.faults.simulation.order import PLAIN, Backwards, Decisions, InOrder, Order

TURNS_AT_ONE_TIME = 10_000
"""So many turns of the loop without any time going by are a busy loop."""

MAX_TURNS = 500_000

SLOW_SECONDS: Final = 0.05
"""A callback may take so long until the next event."""

THREAD_SECONDS: Final = 0.005
"""A thread that is late takes so long."""

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)

SCATTER, SETS = 0x9E3779B1, 1 << 32
"""Tasks that hash by a multiple of their number are walked in an order that looks random."""


class Stuck(AssertionError):
    """Nothing will ever happen again, or something happens all the time and leads nowhere."""


class Cancellable:
    """A callback of a process. One that is held does not run if its handle is cancelled meanwhile."""

    def __init__(self, callback: Callable[..., object]) -> None:
        self.callback = callback
        self.handle: asyncio.Handle | None = None

    def __call__(self, *arguments: Any) -> None:
        if self.handle is None or not self.handle.cancelled():
            self.callback(*arguments)


class Process:
    """What runs together, and can be killed together.

    `work` is what it was started for; `stop` asks it to end.
    """

    work: asyncio.Task[Any]

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = self.frozen = False
        self.killed, self.stop = asyncio.Event(), asyncio.Event()
        self.tasks: list[asyncio.Task[Any]] = []
        self.lose: list[Callable[[], None]] = []
        self._held: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []

    def start(self, loop: VirtualLoop, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = copy_context()
        context.run(PROCESS.set, self)
        return loop.create_task(coroutine, context=context, name=self.name)

    async def ends(self, task: asyncio.Task[Any]) -> bool:
        """Wait until a task of it has ended, or it is killed. Return whether the task has ended."""
        killed = asyncio.create_task(self.killed.wait())
        await asyncio.wait((task, killed), return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        return task.done()

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        if self.dead or self.frozen:
            self._held.append((callback, arguments, copy_context()))
        else:
            callback(*arguments)

    def thaw(self, loop: VirtualLoop) -> None:
        """Go on with all that has come up since it was frozen, in its order."""
        self.frozen = False
        if not self.dead:
            held, self._held = self._held, []
            for callback, arguments, context in held:
                loop.call_soon(callback, *arguments, context=context)

    async def bury(self, loop: VirtualLoop) -> None:
        """Let what is left of it end, when nothing that it does can matter any more."""
        self.dead = False
        self.thaw(loop)
        for lose in self.lose:
            lose()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


class Numbered(asyncio.Task[Any]):
    def __init__(self, coroutine: Coroutine[Any, Any, Any], *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Jump(selectors.DefaultSelector):
    """Waits by moving the loop's time."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        self.loop.passed(timeout)
        return []


Lane = tuple[Process | None, str | None]
"""What comes in its own order: the bytes of one connection, or all timers of a process."""


def _process(handle: asyncio.Handle) -> Process | None:
    return handle._context.get(PROCESS)  # type: ignore[attr-defined,no-any-return]


def _name(process: Process | None) -> str:
    return process.name if process else "service"


def _busy(ready: deque[asyncio.Handle]) -> str:
    return ", ".join(dict.fromkeys(_name(_process(handle)) for handle in list(ready)))


def _lane(handle: asyncio.Handle) -> Lane:
    """Return the lane of a timer. An object whose method is called may name its `source`."""
    process, callback = _process(handle), handle._callback  # type: ignore[attr-defined]
    if process is not None:
        callback = handle._args[0].callback  # type: ignore[attr-defined]
    return process, getattr(getattr(callback, "__self__", None), "source", None)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, order: Order = PLAIN) -> None:
        self._now = 0.0
        self.decisions = Decisions(order)
        self._is_plain = order.is_plain
        self._resting: list[asyncio.Handle] = []
        self._late: list[asyncio.Handle] = []
        self._turns = self._turns_now = self._tasks_made = 0
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6
        self.broken: list[dict[str, Any]] = []
        self.connect: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.broken.append(context))
        self._scatters = not self._is_plain and self._is_late("sets", "are walked in another order")
        self.sets = Backwards if self._scatters else InOrder

    def time(self) -> float:
        return self._now

    def passed(self, seconds: float | None) -> None:
        """Let time go by until the next turn, and choose what that turn runs."""
        self._count(0 if self._resting or self._late else seconds)
        if not self._is_plain:
            self._arrange()

    def _count(self, seconds: float | None) -> None:
        self._turns += 1
        if seconds is None:
            raise Stuck(f"nothing will ever happen after {self._now:.3f} s")
        if seconds > 0:
            self._now += seconds
            self._turns_now = 0
            return
        self._turns_now += 1
        if self._turns_now > TURNS_AT_ONE_TIME or self._turns > MAX_TURNS:
            raise Stuck(f"a busy loop at {self._now:.3f} s")

    def _arrange(self) -> None:
        """Decide what of the next turn is late.

        asyncio calls this between its look at what is ready and its look at the timers.
        """
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        ready.extendleft(reversed(self._resting))
        self._resting.clear()
        if ready and (soon := self._next_time()) is not None and 0 < soon - self._now <= SLOW_SECONDS:
            if self._is_late("clock", lambda: f"goes on to the next event while {_busy(ready)} is busy"):
                self._now = soon
            elif self._is_late("callback", lambda: f"of {_busy(ready)} takes {SLOW_SECONDS:g} s"):
                self._now += SLOW_SECONDS
        due = self._due()
        resting: set[Process | None] = self._rest(ready) if len(ready) > 1 else set()
        if not ready and len(due) == 1:
            ready.append(due.pop())
        if not due:
            return
        lanes = dict.fromkeys(map(_lane, due))
        rivals = Counter(process for process, _ in lanes)
        rivals.update({_process(handle) for handle in list(ready)})
        late: set[Lane] = set()
        for lane in lanes:
            process, source = lane
            subject = source or f"timers of {_name(process)}"
            if process in resting or (rivals[process] > 1 and self._is_late(subject, "waits a turn")):
                late.add(lane)
        for handle in due:
            (self._late if _lane(handle) in late else ready).append(handle)

    def _is_late(self, subject: str, what: str | Callable[[], str]) -> bool:
        return self.decisions.is_late(subject, self._now, what)

    def _rest(self, ready: deque[asyncio.Handle]) -> set[Process | None]:
        """Choose processes that do not run in this turn, while another does."""
        # What garbage that is collected schedules meanwhile comes behind.
        handles = [ready.popleft() for _ in range(len(ready))]
        awake = list(dict.fromkeys(map(_process, handles)))
        resting: set[Process | None] = set()
        for process in awake:
            if len(resting) < len(awake) - 1 and self._is_late(_name(process), "rests for a turn"):
                resting.add(process)
        if resting:
            self._resting += [handle for handle in handles if _process(handle) in resting]
            handles = [handle for handle in handles if _process(handle) not in resting]
        ready.extendleft(reversed(handles))
        return resting

    def _next_time(self) -> float | None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            self._pop_timer()
        return timers[0].when() if timers else None

    def _pop_timer(self) -> asyncio.TimerHandle:
        timer: Any = heapq.heappop(self._scheduled)  # type: ignore[attr-defined]
        timer._scheduled = False
        if timer.cancelled():
            self._timer_cancelled_count -= 1
        return timer  # type: ignore[no-any-return]

    def _due(self) -> list[asyncio.Handle]:
        """Return what was late in the last turn, and the timers of which it is time."""
        due, self._late = [handle for handle in self._late if not handle.cancelled()], []
        while (when := self._next_time()) is not None and when < self._now + self._clock_resolution:
            due.append(self._pop_timer())
        return due

    def end_all(self, burial: Coroutine[Any, Any, None] | None = None) -> None:
        """End what was killed or is stuck, so that nothing of it is left to complain later."""
        self._turns = self._turns_now = 0
        if burial is not None:
            self.run_until_complete(burial)
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.wait(left, timeout=900.0))

    def _make_task(self, _: Any, coroutine: Any, **options: Any) -> Numbered:
        self._tasks_made += 1
        number = self._tasks_made * SCATTER % SETS if self._scatters else self._tasks_made
        task = Numbered(coroutine, number=number, loop=self, **options)
        context = options.get("context")
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.append(task)
            task.add_done_callback(process.tasks.remove, context=Context())
        return task

    def call_soon(self, callback: Any, *arguments: Any, context: Context | None = None) -> asyncio.Handle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            held = Cancellable(callback)
            held.handle = super().call_soon(process.run, held, *arguments, context=context)
            return held.handle
        return super().call_soon(callback, *arguments, context=context)

    def call_at(
        self, when: float, callback: Any, *arguments: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            held = Cancellable(callback)
            held.handle = timer = super().call_at(when, process.run, held, *arguments, context=context)
            return timer
        return super().call_at(when, callback, *arguments, context=context)

    def run_in_executor(self, executor: Any, func: Any, *arguments: Any) -> Any:
        """Threads have a time of their own: what they are wanted for is done at once, or later."""
        del executor
        done: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                result = func(*arguments)
            except Exception as error:  # noqa: BLE001  it belongs to whoever waits
                done.cancelled() or done.set_exception(error)
            else:
                done.cancelled() or done.set_result(result)

        if not self._is_plain and self._is_late(f"thread of {_name(PROCESS.get())}", "begins later"):
            self.call_later(THREAD_SECONDS, work)
        else:
            work()
        return done

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        del options
        assert self.connect is not None, "there is no network"
        return await self.connect(factory, host, port)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return a test that runs in a loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*arguments, **options))

    return run
