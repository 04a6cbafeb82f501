"""The identity of a backlog message, by which the journal recognizes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias

Key: TypeAlias = tuple[str, str, int, int, str | None]
"""(namespace, queue, sequence number, enqueued at, message id): unique to a message.

All five are needed: a queue that was deleted and created again restarts its sequence numbers.
"""

NO_KEY: Key = ("", "", 0, 0, None)

_lower = lru_cache(4_096)(str.lower)


def message_key(namespace: str, facts: tuple[Any, ...]) -> Key:
    """Return the key of a message. `facts` begins with queue, sequence number, enqueued at and message id."""
    queue, sequence_number, enqueued_at, message_id = facts[:4]
    return (namespace, queue.lower(), sequence_number, enqueued_at, message_id)


def message_keys(namespace: str, facts: Sequence[tuple[Any, ...]]) -> list[Key]:
    """Return the key of each message, faster than `message_key` would."""
    if not facts:
        return []
    queues, numbers, times, ids, *_ = zip(*facts, strict=True)
    return list(zip(repeat(namespace), map(_lower, queues), numbers, times, ids, strict=False))
