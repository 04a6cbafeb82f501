"""One batch on its way to the primary, from the journal's entry to its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.errors import SbpairError
from sbpair.move.interface import get_key, get_message, get_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.model.message_key import Key
    from sbpair.move.interface import Batch, DestinationLink, PendingOutcome, ReceivedMessage, RoutedMessage


class BatchSend:
    """Messages that are accepted or refused together. `number` is the journal's for them."""

    def __init__(self, routed: Sequence[RoutedMessage], batch: Batch) -> None:
        self.routed = routed
        self.messages: list[ReceivedMessage] = list(map(get_message, routed))
        self.keys: list[Key] = list(map(get_key, self.messages))
        self.number = 0
        self._batch = batch
        self._outcome: PendingOutcome | None = None

    @property
    def pending(self) -> bool:
        """Whether it was sent and has no outcome yet."""
        return self._outcome is not None

    @property
    def size(self) -> int:
        """Bytes of its messages in the backlog."""
        return sum(map(get_size, self.messages))

    def start(self, link: DestinationLink) -> SbpairError | None:
        """Send it. Return why it was not sent, or None."""
        try:
            self._outcome = link.send(self._batch)
        except SbpairError as error:
            return error
        return None

    async def outcome(self) -> SbpairError | None:
        """Wait for the outcome: None if accepted. If the wait is cancelled, it stays pending."""
        assert self._outcome is not None  # noqa: S101  it was started
        error: SbpairError | None = None
        try:
            await self._outcome.outcome()
        except SbpairError as refusal:
            error = refusal
        self._outcome = None
        return error
