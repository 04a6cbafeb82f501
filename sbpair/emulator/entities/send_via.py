"""Messages sent to one entity by way of another, so that one transaction can have both ("send via")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sbpair.emulator.entities.partitions import transfer_key_of

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.stored_message import StoredMessage


class SendVia:
    """The way to `destination` through `via`, which stores messages unseen and forwards them at once.

    Messages that `destination` refuses go to the transfer dead-letter queue of `via`.
    """

    credits_per_message = 1

    def __init__(self, via: QueueEntity, destination: QueueEntity) -> None:
        self.via = via
        self.destination = destination
        self.description = via.description
        self.max_message_bytes = via.max_message_bytes

    def check_send(self) -> None:
        self.via.check_send()

    def try_send_each(self, messages: Sequence[StoredMessage]) -> bool:
        """Refuse: each delivery is checked by `send`."""
        del messages
        return False

    def send(self, messages: Sequence[StoredMessage]) -> None:
        """Store messages for the destination. Raises the errors of a `send` to `via`."""
        self.check_batch(messages)
        self.store(messages)

    def check_batch(self, messages: Sequence[StoredMessage], pending_bytes: int = 0) -> None:
        """Raise the error of a `send`; `pending_bytes` are to be stored before."""
        via, partitions = self.via, self.via.partitions
        via.check_send()
        keys = {transfer_key_of(message) for message in messages} if partitions is not None else set()
        for key in keys:
            if partitions is not None and key is not None:
                partitions.check(partitions.for_key(key))
        via.check_quota(via.check_sizes(messages) + pending_bytes)

    def store(self, messages: Sequence[StoredMessage]) -> None:
        self.via.transfers_to(self.destination.path).enqueue(messages)
