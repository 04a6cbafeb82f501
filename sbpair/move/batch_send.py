"""One flight: messages on their way to the primary, from the parcel that they leave in to its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.errors import SbpairError
from sbpair.move.interface import get_key, get_message, get_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.model.message_key import Key
    from sbpair.move.interface import Batch, DestinationLink, PendingOutcome, ReceivedMessage, RoutedMessage


class BatchSend:
    """Messages that leave together, and the journal's number for them. `away` is whether an answer is waited for."""

    def __init__(self, orders: Sequence[RoutedMessage], parcel: Batch) -> None:
        self.orders = orders
        self.arrivals: list[ReceivedMessage] = list(map(get_message, orders))
        self.keys: list[Key] = list(map(get_key, self.arrivals))
        self.number = 0
        self._parcel = parcel
        self._answer: PendingOutcome | None = None

    @property
    def away(self) -> bool:
        return self._answer is not None

    @property
    def size(self) -> int:
        """Bytes that its messages have in the backlog."""
        return sum(map(get_size, self.arrivals))

    def depart(self, link: DestinationLink) -> SbpairError | None:
        """Leave now; answers why not, where it has not left."""
        try:
            self._answer = link.send(self._parcel)
        except SbpairError as error:
            return error
        return None

    async def landed(self) -> SbpairError | None:
        """Wait for the answer. Where that is cut short, it is still away."""
        assert self._answer is not None  # noqa: S101  it has left
        error: SbpairError | None = None
        try:
            await self._answer.outcome()
        except SbpairError as refusal:
            error = refusal
        self._answer = None
        return error
