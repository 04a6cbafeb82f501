"""The identity of a backlog message, by which the journal knows it."""

from __future__ import annotations

from typing import TypeAlias

Key: TypeAlias = tuple[str, str, int, int, str | None]
"""(namespace, queue, sequence number, enqueued at, message id): what tells a message from every other one.

All five, since a queue that was deleted and made again starts its sequence numbers anew.
"""


NO_KEY: Key = ("", "", 0, 0, None)
