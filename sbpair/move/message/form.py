"""The form of a source's messages: where each of them goes, and which of its application properties a move removes."""

from __future__ import annotations

from dataclasses import dataclass

from sbpair.backlog import ALIASES
from sbpair.move.message.dead_letters import DESCRIPTION, REASON

CAUSE = frozenset((REASON, DESCRIPTION))


@dataclass(frozen=True, slots=True)
class MessageForm:
    """`removed` are application properties that a move takes off.

    With a `destination`, all messages go there and are otherwise kept as they are. Without, the aliases of each message
    name its destination, session, time to live and schedule, which are restored.
    """

    removed: frozenset[str]
    destination: str | None = None


BACKLOG = MessageForm(ALIASES)
BACKLOG_DEAD_LETTERS = MessageForm(ALIASES | CAUSE)
"""Dead letters of a backlog queue."""


def kept_for(destination: str) -> MessageForm:
    """Return the form of messages that all go to `destination`, without the cause if they are dead letters."""
    return MessageForm(CAUSE, destination)
