"""The description of a move: which messages, from where to where, and how their bytes change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sbpair.backlog import prefix, primary_of
from sbpair.move.message.dead_letters import dead_letter_path, is_dead_letter_path
from sbpair.move.message.form import BACKLOG, BACKLOG_DEAD_LETTERS, MessageForm

if TYPE_CHECKING:
    from sbpair.model.pair import Ends


@dataclass(frozen=True, slots=True)
class MoveSpec:
    """A move between two ends: of one `source`, or of the backlog queues or their dead letters if that is None.

    `command` is its name in the list of runs, `names` are the ends as a user names them. `sessions` is whether the
    source has sessions. A run ends after `max_messages` were sent. With `keeps_refused`, a message that the destination
    refuses stays in its source, and so does one that was enqueued within the last `duplicate_window_ms`: the
    destination may know its id.
    """

    ends: Ends
    command: str = "syphon"
    form: MessageForm = BACKLOG
    source: str | None = None
    sessions: bool = False
    max_messages: int | None = None
    keeps_refused: bool = False
    duplicate_window_ms: int = 0
    names: tuple[str, str] | None = None

    @property
    def takes_dead_letters(self) -> bool:
        """Whether it moves the dead letters of all backlog queues."""
        return self.source is None and self.form == BACKLOG_DEAD_LETTERS

    @property
    def words(self) -> tuple[str, str]:
        """The words for its source and its destination in messages."""
        return ("backlog", "primary") if self.source is None else ("source", "destination")

    @property
    def leased(self) -> tuple[Ends, str | None]:
        """The pair, or the source at the secondary end, that no other mover may move at the same time.

        For the active messages of a backlog queue that is the whole pair: beside a syphon, they would lose their order.
        The dead letters of all backlog queues of a pair are one source.
        """
        source, ends = self.source, self.ends
        if source is not None:
            primary = primary_of(source)
            if primary is None:
                return ends, source
            ends = replace(ends, primary=replace(ends.primary, name=primary))
        has_dead_letters = self.takes_dead_letters if source is None else is_dead_letter_path(source)
        return ends, dead_letter_path(f"{prefix(ends.primary.name)}*") if has_dead_letters else None
