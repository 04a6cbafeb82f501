"""What a mover tells while it works, for people: a table that moves on a terminal, lines of text elsewhere.

Only what somebody should know becomes a line; how far each lane is, moves.
"""

import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from sbpair.cli.output import Screen, clean
from sbpair.move.events import (
    DeadLettered,
    DestinationBack,
    DestinationResting,
    LaneBlocked,
    LaneDone,
    LaneFailed,
    LaneOpened,
    Progress,
    QueuesFound,
    SyphonEvent,
)

if TYPE_CHECKING:
    from rich.table import Table

REFRESHES_A_SECOND = 4
WIDE = 90
"""From how many columns on a queue's whole path has room beside its figures."""


class Lanes:
    """The state of every lane, drawn while it is entered."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._tell = Teller(screen)
        self._rows: dict[str, tuple[Progress, str]] = {}
        self._drawing: AbstractContextManager[object] = self._live() if screen.animated else nullcontext()

    def __enter__(self) -> "Lanes":
        self._drawing.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._drawing.__exit__(*details)  # type: ignore[arg-type]  # they are what they are

    def __call__(self, event: SyphonEvent) -> None:
        """Take one event in."""
        match event:
            case Progress():
                self._rows[event.queue] = (event, "")
            case LaneOpened(queue):
                self._rows.setdefault(queue, (Progress(queue, 0, 0, 0), ""))
            case LaneDone(queue):
                self._note(queue, "done")
            case LaneBlocked(queue, destinations):
                self._note(queue, f"blocked by {', '.join(destinations)}")
            case _:
                pass
        self._tell(event)

    def _note(self, queue: str, text: str) -> None:
        progress, _old = self._rows.get(queue, (Progress(queue, 0, 0, 0), ""))
        self._rows[queue] = (progress, text)

    def _live(self) -> AbstractContextManager[object]:
        # A tenth of a second to load, for a terminal only.
        from rich.console import Console
        from rich.live import Live

        return Live(
            get_renderable=self._table,
            console=Console(stderr=True),
            refresh_per_second=REFRESHES_A_SECOND,
            transient=True,
        )

    def _table(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table("QUEUE", "RECEIVED", "SENT", "IN HAND", "LEFT", "", box=None)
        for queue, (at, note) in sorted(self._rows.items()):
            left = "" if at.remaining is None else at.remaining
            cells = (_short(queue), at.received, at.sent, at.in_hand, left, note)
            # Text and not str: what came from a service is not markup.
            table.add_row(*(Text(clean(cell)) for cell in cells))
        return table


def _short(queue: str) -> str:
    """A path whose end, which tells it from the others, is seen on a narrow terminal too."""
    return queue if shutil.get_terminal_size().columns >= WIDE else "…" + queue[queue.rfind("/") :]


class Teller:
    """Events in words, where they are worth some. What ten lanes find out at once is said once."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._resting: set[str] = set()
        self._failed: set[str] = set()

    def __call__(self, event: SyphonEvent) -> None:
        match event:
            case LaneFailed(queue, reason, retry_seconds):
                again = "" if retry_seconds is None else f"; next attempt in {retry_seconds:.1f} s"
                self._once(self._failed, reason, f"{queue}: {reason}{again}")
            case DestinationResting(_queue, destination, reason, seconds, waiting):
                count = f"{waiting} message{'s' if waiting != 1 else ''}"
                text = f"{destination} rests for {seconds:.1f} s with {count} waiting: {reason}"
                self._once(self._resting, destination, text)
            case DestinationBack(_queue, destination):
                if destination in self._resting:
                    self._resting.discard(destination)
                    self._screen.say(f"{destination} takes messages again")
            case LaneOpened():
                # Whatever has kept lanes from opening is worth a word again when it comes back.
                self._failed.clear()
            case _:
                tell(self._screen, event)

    def _once(self, said: set[str], key: str, text: str) -> None:
        if key in said:
            self._screen.detail(text)
        else:
            said.add(key)
            self._screen.warn(text)


def tell(screen: Screen, event: SyphonEvent) -> None:
    """One event in words that need no memory."""
    match event:
        case QueuesFound(queues, stranded, managed):
            screen.detail(f"{len(queues)} backlog queues{'' if managed else ', taken from the count: no Manage claim'}")
            for queue in stranded:
                screen.warn(f"{queue} lies beyond the pair's count: no client uses it, and it is emptied all the same")
        case LaneBlocked(queue, destinations):
            screen.warn(f"{queue} is blocked by {', '.join(destinations)}")
        case DeadLettered(queue, sequence_number, message_id, reason, description):
            screen.detail(f"{queue}: {message_id or sequence_number} was dead-lettered: {reason}: {description}")
        case _:
            pass
