"""How many messages the sources of a run still have, and since when the oldest waits: from the run's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.move.events import QueueDepths, QueueProgress, QueuesFound

if TYPE_CHECKING:
    from sbpair.move.events import SyphonEvent


class BacklogDepth:
    """Takes the events of a run. A queue is counted now and then; in between, its messages follow from its progress."""

    def __init__(self) -> None:
        self._progress: dict[str, QueueProgress | None] = {}
        self._counted: dict[str, tuple[int, int]] = {}  # its messages, and how many had left it by then
        self._peeked: dict[str, int | None] = {}

    def take(self, event: SyphonEvent) -> None:
        """Take one event; most kinds have no effect."""
        match event:
            case QueuesFound(queues):
                for queue in queues:
                    self._progress.setdefault(queue, None)
            case QueueProgress(queue):
                self._progress[queue] = event
                if event.remaining is not None:
                    self._counted[queue] = event.remaining, event.gone
            case QueueDepths(queue, messages, oldest_ms):
                progress = self._progress.get(queue)
                self._counted[queue] = messages, progress.gone if progress else 0
                self._peeked[queue] = oldest_ms

    def by_queue(self) -> dict[str, tuple[int | None, int | None]]:
        """Return the messages of each queue, and when the oldest was enqueued, in ms since 1970; None if unknown."""
        return {
            queue: (self._left(queue, progress), self._oldest_ms(queue, progress))
            for queue, progress in self._progress.items()
        }

    def messages(self) -> int | None:
        """Return the messages of all queues; None until each has been counted."""
        left = [self._left(queue, progress) for queue, progress in self._progress.items()]
        known = [each for each in left if each is not None]
        return sum(known) if known and len(known) == len(left) else None

    def oldest_ms(self) -> int | None:
        """Return when the oldest known message was enqueued, in ms since 1970."""
        found = (self._oldest_ms(queue, progress) for queue, progress in self._progress.items())
        return min((each for each in found if each is not None), default=None)

    def _oldest_ms(self, queue: str, progress: QueueProgress | None) -> int | None:
        if progress is not None and progress.oldest_ms is not None:
            return progress.oldest_ms
        # The last peek is the best known while nothing is held, unless the queue is empty.
        return self._peeked.get(queue) if self._left(queue, progress) else None

    def _left(self, queue: str, progress: QueueProgress | None) -> int | None:
        if queue not in self._counted:
            return None
        messages, gone = self._counted[queue]
        return max(0, messages - (progress.gone - gone if progress else 0), progress.held if progress else 0)
