"""Stories of moves and replays: `stories.txt` has their events, and what rows, lines and text show of them.

A story begins with `== its title`. `%` is an event, after a number many times; `@` are the seconds since the start. `$`
shows rows with their values, `notices`, the `line` of progress, new JSON `lines` (the `last` ones, too) or `text`, or a
drawing on a terminal of that size.
`python tests/cli/test_golden.py` writes it again.
"""

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from sbpair.cli.options.common import Display, LogFormat
from sbpair.cli.progress.boards import Board
from sbpair.cli.progress.live_table import draw_board, draw_phase
from sbpair.cli.progress.move_progress import EventLines, EventPrinter, progress_text
from sbpair.cli.progress.replay_progress import JsonReplayProgress, ReplayProgress
from sbpair.cli.render.screen import Screen
from sbpair.move import events
from sbpair.move.run_state import RunState
from sbpair.replay import progress
from sbpair.replay.progress import Event
from tests.kit.command import untimed

STORIES = Path(__file__).parent / "stories.txt"
NOW_MS = 1_800_000_000_000
START = 64.0
QUEUE = "contoso/x-servicebus-transfer/0"
NAMES = {**vars(events), **vars(progress), "q": QUEUE, "ms": NOW_MS}


class Story:
    """A run whose events go to all that show them."""

    def __init__(self) -> None:
        self.now = START
        self._state = RunState()
        self._board = Board(self._state, START, "connecting to contoso")
        self._lines, self._due = EventLines(self._state, START), list[Any]()
        self._printer = EventPrinter(Screen(Display()))
        self._is_replay = False
        self._replay = ReplayProgress(Screen(Display()))
        self._replay_lines = JsonReplayProgress(Screen(Display(log_format=LogFormat.JSON)))

    @property
    def now_ms(self) -> int:
        return NOW_MS + int(1000 * (self.now - START))

    def take(self, event: Any) -> None:
        # Requests to a run are events of both.
        self._is_replay |= isinstance(event, Event) and not isinstance(event, events.SyphonEvent)
        if self._is_replay:
            self._replay(event)
            with redirect_stderr(io.StringIO()) as lines:
                self._replay_lines(event)
            self._due += map(json.loads, lines.getvalue().splitlines())
        else:
            self._state.take(event, self.now)
            self._due += self._lines.take(event, self.now, self.now_ms)
            self._printer(event)

    def shown(self, what: str, err: io.StringIO) -> Iterator[str]:
        view = self._board.view(self.now, self.now_ms)
        match what:
            case "queues" | "destinations":
                yield from map(_row, getattr(view, what))
            case "total":
                yield _row(view.total)
            case "notices":
                yield from view.notices
            case "line":
                yield progress_text(view)
            case "phase":
                phase = self._replay._view()
                yield f"{phase.phase} since {phase.seconds:g} s, by {phase.heading}"
                yield from map(_row, (*phase.rows, phase.total))
            case "text":
                self._printer.ended_queues()
                self._printer.dead_letters()
                yield from untimed(err.getvalue()).splitlines()
                err.truncate(err.seek(0))
            case _ if "x" in what:
                *words, size = what.split()
                width, lines = map(int, size.split("x"))
                now = replace(view, is_stopping="stopping" in words)
                phase = self._replay._view()
                drawing = draw_phase(phase, width, lines) if "phase" in words else draw_board(now, width, lines)
                yield from drawn(drawing, width, lines)
            case _:
                due = [*self._due, *self._lines.tick(self.now, self.now_ms, last=what == "last lines")]
                self._due.clear()
                yield from (json.dumps(each) for each in due)


def drawn(drawing: RenderableType, width: int, lines: int) -> list[str]:
    """Return the lines of a drawing, which fit a terminal and have no control characters."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(drawing)
    found = [line.rstrip() for line in captured.get().splitlines()]
    assert len(found) <= lines
    assert all(cell_len(line) <= width and line.isprintable() for line in found)
    return found


def _row(row: Any) -> str:
    """Return the name of a row, and its values other than their defaults."""
    name, *others = fields(row)
    values = {each.name: getattr(row, each.name) for each in others if getattr(row, each.name) != each.default}
    values["eta"] = getattr(row, "eta_seconds", None)
    shown = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value!r}" for key, value in values.items())
    return " ".join([f"{getattr(row, name.name)}:", *(each for each in shown if each != "eta=None")])


def stories() -> dict[str, str]:
    return dict(each.split("\n", 1) for each in STORIES.read_text().split("== ")[1:])


def told(text: str) -> str:
    """Return the text of a story with what it shows now."""
    found = []
    with ExitStack() as patches, redirect_stderr(io.StringIO()) as err:
        for module in ("move_progress", "replay_progress"):
            place = f"sbpair.cli.progress.{module}"
            patches.enter_context(mock.patch(f"{place}.wall_clock_ms", lambda: story.now_ms))  # noqa: PT008  it changes
        clock = mock.Mock()
        patches.enter_context(mock.patch("sbpair.cli.progress.replay_progress.time", clock))
        clock.monotonic = lambda: START
        story = Story()
        clock.monotonic = lambda: story.now
        for line in text.splitlines():
            before, sign, rest = line.partition(" ") if line[:1] in "@$" else line.partition("% ")
            if sign == "% " and (not before or before.strip().isdecimal()):
                for _ in range(int(before or 1)):
                    made = eval(rest, dict(NAMES))  # noqa: S307  the stories are the tests' own
                    for event in made if isinstance(made, list) else [made]:
                        story.take(event)
            elif before == "@":
                story.now = START + float(rest)
            elif before != "$":
                continue
            found += [line, *(story.shown(rest, err) if before == "$" else ())]
    return "".join(f"{line}\n" for line in found)


@pytest.mark.parametrize("title", stories())
def test_a_story_shows_what_it_did(title: str) -> None:
    text = stories()[title]
    assert told(text) == text, "if it should change: python tests/cli/test_golden.py"


def test_every_event_is_in_a_story() -> None:
    assert [
        kind.__name__ for kind in get_args(events.SyphonEvent) if f"% {kind.__name__}(" not in STORIES.read_text()
    ] == []


def regenerate() -> None:
    """Write what each story shows now."""
    STORIES.write_text("".join(f"== {title}\n{told(text)}" for title, text in stories().items()))
