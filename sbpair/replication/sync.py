"""Replication for programs that block. Invariant: this module decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from sbpair.failover.client_kinds import SyncClosable
from sbpair.failover.steps import drive
from sbpair.replication import replication_base

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.sdk_messages import Messages
    from sbpair.replication.roles import Side


class ActiveSender(replication_base.ActiveSenderBase, SyncClosable):
    __doc__ = replication_base.ActiveSenderBase.__doc__

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> tuple[Side, ...]:
        """Send one message, several, or a batch to both sides. Returns the sides that accepted it, at least one.

        Raises BothFailed, and UsageError for a message that already has `x-ms-path` or another alias.
        """
        with self._turn:
            return drive(self._sending(message, timeout))


class PassiveSender(replication_base.PassiveSenderBase, SyncClosable):
    __doc__ = replication_base.PassiveSenderBase.__doc__

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> Side | None:
        """Send one message, several, or a batch to one side. Returns the side that accepted it, or None for no message.

        Raises BothFailed, the SDK's errors that do not count as an outage of the active side, and UsageError for a
        message that already has `x-ms-path` or another alias.
        """
        with self._turn:
            return drive(self._sending(message, timeout))


class DedupReceiver(replication_base.DedupReceiverBase, SyncClosable):
    __doc__ = replication_base.DedupReceiverBase.__doc__

    def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Return first copies, up to `max_message_count`, or [] if none arrived within `max_wait_time` (60 s).

        Raises BothFailed if neither side could be received from in that time, and the SDK's errors.
        """
        deadline = self._deadline(max_message_count, max_wait_time)
        while True:
            with self._turn:
                found = drive(self._polling(max_message_count, deadline))
            if found is not None:
                return found

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Complete a message and then its held copies. Raises MessageLockLostError, and the SDK's errors."""
        with self._turn:
            drive(self._completing(message))

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Release a message, so that it or a copy is delivered again. Raises MessageLockLostError and SDK errors."""
        with self._turn:
            drive(self._abandoning(message))

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Dead-letter a message on its side. A copy is delivered. Raises MessageLockLostError and SDK errors."""
        with self._turn:
            drive(self._dead_lettering(message, reason, error_description))

    def renew_message_lock(self, message: ServiceBusReceivedMessage) -> datetime:
        """Renew the locks of a message and its held copies. Returns the new expiry time. Raises SDK errors."""
        with self._turn:
            until: datetime = drive(self._renewing(message))
        return until

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        """Yield messages. Ends if none arrives within the receiver's `max_wait_time`, if it has one."""
        while (found := self.receive_messages()) or self._max_wait is None:
            yield from found
