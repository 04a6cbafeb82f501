"""The states of messages in an entity, and the paths of its dead-letter queues. Pure.

Invariant: the case of a path does not matter, as to the service.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class MessageState(StrEnum):
    """A state by which messages of an entity are chosen."""

    ACTIVE = "active"
    DEAD = "dead"
    SCHEDULED = "scheduled"
    DEFERRED = "deferred"
    TRANSFER_DEAD = "transfer-dead"


SUFFIXES: Final = {MessageState.TRANSFER_DEAD: "/$Transfer/$DeadLetterQueue", MessageState.DEAD: "/$deadletterqueue"}
"""The ends of the paths of dead-letter queues: the longer one first, whose end is that of the other."""

ASIDE: Final = frozenset((MessageState.SCHEDULED, MessageState.DEFERRED))
"""The states of messages that no receiver gets before they are due, or asked for by their sequence numbers."""


def split_state(path: str) -> tuple[str, MessageState]:
    """Return the entity of a path, and whether its dead letters are meant: ACTIVE for any other path."""
    for state, suffix in SUFFIXES.items():
        if path.lower().endswith(suffix.lower()):
            return path[: -len(suffix)], state
    return path, MessageState.ACTIVE


def path_of(entity: str, state: MessageState) -> str:
    """Return the path at which the messages of an entity in a state are received or peeked."""
    return entity + SUFFIXES.get(state, "")


def dead_letter_path(path: str) -> str:
    return path_of(path, MessageState.DEAD)


def is_dead_letter_path(path: str) -> bool:
    """Return whether a path is of dead letters, also of those that could not be forwarded."""
    return split_state(path)[1] != MessageState.ACTIVE


def parent_path(path: str) -> str:
    """Return the entity of a dead-letter queue; any other path unchanged."""
    return split_state(path)[0]


def dead_letters_of(path: str) -> str:
    """Return the name of a dead-letter queue in lists: its entity, unless its messages could not be forwarded."""
    entity, state = split_state(path)
    return path if state == MessageState.TRANSFER_DEAD else entity
