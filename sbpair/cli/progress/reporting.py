"""The three forms of progress on stderr: a live table on a terminal, JSON lines for a program, or text."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Self, TypeVar

from sbpair.cli.logs import utc
from sbpair.cli.render.screen import Document, Screen

Form = TypeVar("Form")


class Progress:
    """Receives events while it is entered. `shown` is entered with it, such as a live table."""

    def __init__(self, shown: AbstractContextManager[object] | None = None) -> None:
        self._shown = shown or nullcontext()

    def __enter__(self) -> Self:
        self._shown.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._shown.__exit__(*details)


def write_lines(screen: Screen, lines: Iterable[Document]) -> None:
    """Write events as JSON lines to stderr. After stderr fails, messages are moved all the same."""
    with suppress(OSError):
        for line in lines:
            screen.event(line)


def event_line(schema: str, name: str, now_ms: int, *, level: str = "info") -> dict[str, object]:
    """Return the keys that every event line begins with."""
    return {"schema": schema, "time": utc(now_ms / 1000), "level": level, "event": name}


def choose_form(screen: Screen, live: Form, lines: Form, text: Form) -> Form:
    """Return the form that suits stderr."""
    if screen.animated:
        return live
    return lines if screen.eventful else text


def wall_clock_ms() -> int:
    return int(time.time() * 1000)
