"""The three forms of progress on stderr: a live table on a terminal, JSON lines for a program, or text."""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sbpair.cli.render.screen import Document, Screen, utc

if TYPE_CHECKING:
    from rich.console import RenderableType

Reporter = TypeVar("Reporter")
Sample = TypeVar("Sample")


class Progress:
    """Receives events while it is entered. `shown` is entered with it, such as a live table."""

    def __init__(self, shown: AbstractContextManager[object] | None = None) -> None:
        self._shown = shown or nullcontext()

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, traceback)


class LineWriter:
    """Writes events as JSON lines to stderr. After stderr fails, messages are moved all the same."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, lines: Iterable[Document]) -> None:
        try:
            for line in lines:
                self._screen.event(line)
        except OSError:
            return


def event_line(schema: str, name: str, now_ms: int, *, level: str = "info") -> dict[str, object]:
    """Return the keys that every event line begins with."""
    return {"schema": schema, "time": utc(now_ms / 1000), "level": level, "event": name}


def live_table(
    sample: Callable[[], Sample], draw: "Callable[[Sample, int, int], RenderableType]"
) -> AbstractContextManager[Any]:
    """Return a live table. Loads rich, which takes a tenth of a second."""
    from sbpair.cli.progress.live_table import LiveTable

    return LiveTable(sample, draw)


def choose_form(
    screen: Screen,
    live: Callable[[Screen], Reporter],
    lines: Callable[[Screen], Reporter],
    text: Callable[[Screen], Reporter],
) -> Reporter:
    """Return the form that suits stderr."""
    if screen.animated:
        return live(screen)
    return lines(screen) if screen.eventful else text(screen)


def wall_clock_ms() -> int:
    return int(time.time() * 1000)
