"""Messages in doubt that may come again: those of earlier runs on disk, and those of the current run.

Invariant: a doubt stays open on disk until a run that ended its message, by a send or otherwise, has named it in its
receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.model.message_key import Key


@dataclass(frozen=True, slots=True)
class Doubt:
    """A message sent without an outcome: the primary may have it. `run` is the run that sent it."""

    run: str
    queue: str
    sequence_number: int
    message_id: str | None
    destination: str


class OpenDoubts:
    """Batches in doubt by their number, and which of their messages ended in this run. A `limit` bounds the messages.

    A message ends when it is sent again and accepted, completed, or dead-lettered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: dict[int, Sequence[Key]] = {}
        self._open: dict[Key, Doubt] = {}
        self._ended: dict[Key, tuple[Doubt, bool]] = {}

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    def add(self, batch: int, keys: Sequence[Key], run: str, destination: str) -> None:
        """Add a batch in doubt. Beyond the limit, no more is added: such a message is not named again."""
        if len(self._open) + len(keys) <= self._limit:
            self._batches[batch] = keys
            for key in keys:
                self._ended.pop(key, None)
                self._open[key] = Doubt(run, key[1], key[2], key[4], destination)

    def end(self, keys: Iterable[Key], *, sent: bool) -> None:
        """Record that messages ended. `sent`: by another send, which the primary accepted."""
        for key in keys:
            doubt = self._open.pop(key, None)
            if doubt is not None:
                self._ended[key] = doubt, sent

    def ended(self) -> list[tuple[Doubt, bool]]:
        """Return doubts whose message ended in this run, and whether by another send."""
        return list(self._ended.values())

    def split_ended(self) -> list[tuple[int, list[Key], list[Key]]]:
        """Return each batch with ended messages: its number, those, and its other messages."""
        split = []
        for batch, keys in self._batches.items():
            ended = [key for key in keys if key in self._ended]
            if ended:
                split.append((batch, ended, [key for key in keys if key not in self._ended]))
        return split
