"""Signals that stop a command.

SIGINT and SIGTERM on every system. POSIX sends SIGHUP when the terminal is lost, and `nohup` ignores it. Windows sends
SIGBREAK for Ctrl-Break.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar, Self

from sbpair.errors import ExitCode

SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)


def call_when_signalled(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> list[signal.Signals]:
    """Call back in the loop at each signal that is not ignored. Returns those signals."""
    handled = _not_ignored()
    for number in handled:
        try:
            loop.add_signal_handler(number, callback)
        except NotImplementedError:  # the loops of Windows
            signal.signal(number, _passing_on(loop, callback))
    return handled


def call_when_hung_up(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], None], on_lost: Callable[[], None]
) -> None:
    """Call back at each SIGHUP that is not ignored; `on_lost` instead, once the terminal of this process is gone.

    No-op on Windows. It replaces `call_when_signalled` for that signal.
    """
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return
    terminal = next((each for each in range(3) if os.isatty(each)), None)

    def hung_up() -> None:
        if terminal is None or os.isatty(terminal):
            callback()
        else:
            on_lost()

    with suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGHUP, hung_up)


def ignore_next(loop: asyncio.AbstractEventLoop, handled: Iterable[signal.Signals]) -> None:
    """Ignore one signal of each kind from now on. By default, it would end the process before it prints its result."""

    def ignore(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in handled:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(number)
        signal.signal(number, ignore)


def interrupt_when_signalled() -> None:
    """Raise KeyboardInterrupt in the main thread at each signal that is not ignored."""
    for number in _not_ignored():
        signal.signal(number, signal.default_int_handler)


class CommandDeadline:
    """A time after which this process gets a signal, as a context manager; `has_passed` from then on.

    The first signal of SIGTERM and SIGINT that is handled is sent to the main thread: none ends the process.
    """

    current: ClassVar["CommandDeadline | None"] = None

    def __init__(self, seconds: float) -> None:
        self.reason, self.has_passed = f"stopped by --deadline after {seconds:g} s", False
        self._ending = threading.Lock()
        self._timer = threading.Timer(seconds, self._signal)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        CommandDeadline.current = self
        self._timer.start()
        return self

    def __exit__(self, *_details: object) -> None:
        CommandDeadline.current = None
        with self._ending:  # a signal that is sent now comes before the end of the block
            self._timer.cancel()

    def _signal(self) -> None:
        with self._ending:
            if CommandDeadline.current is not self:
                return
            self.has_passed = True
            number = next((each for each in (signal.SIGTERM, signal.SIGINT) if callable(signal.getsignal(each))), None)
            if number is not None and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(threading.main_thread().ident or 0, number)
            elif number is not None:
                signal.raise_signal(number)


def stopped_by_deadline() -> str:
    """Return the reason of a stop, if it was a deadline; else ""."""
    found = CommandDeadline.current
    return found.reason if found is not None and found.has_passed else ""


def ended_code(code: int) -> int:
    """Return the exit code of this process for that of a run: an interruption by a deadline is a time-out."""
    return int(ExitCode.UNAVAILABLE if code == ExitCode.INTERRUPTED and stopped_by_deadline() else code)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore this process's handlers after a block that starts Spark, whose own one would cancel jobs at once.

    A signal takes effect after the block: a start that is cut off would leave Java running for ever. Java inherits that
    SIGHUP is ignored: when the terminal is lost, the driver stops in order.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    for number in _not_ignored():
        signal.signal(number, signal.SIG_IGN if number.name == "SIGHUP" else lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _not_ignored() -> list[signal.Signals]:
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _passing_on(
    loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        if loop.is_closed():
            signal.default_int_handler(number, frame)
        loop.call_soon_threadsafe(callback)

    return handle
