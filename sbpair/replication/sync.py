"""Replication for programs that block. The law: nothing is decided here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from sbpair.azure.data_client import sync_client
from sbpair.failover.steps import Steps, run
from sbpair.replication import replication_base
from sbpair.replication.sdk_clients import ClientKind

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.sdk_messages import Messages
    from sbpair.replication.roles import Side


def _identity() -> Any:
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


class _Closable:
    _kind = ClientKind(sync_client, _identity, threading.RLock)
    _turn: Any

    def _closing(self) -> Steps[None]:
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections to both sides."""
        with self._turn:
            run(self._closing())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class ActiveSender(replication_base.ActiveSenderBase, _Closable):
    __doc__ = replication_base.ActiveSenderBase.__doc__

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> tuple[Side, ...]:
        """Send one message, several, or a batch to both sides. The answer is which took it, one at least.

        Raises BothFailed, and UsageError for a message that has an `x-ms-path` or another alias already.
        """
        with self._turn:
            return run(self._sending(message, timeout))


class PassiveSender(replication_base.PassiveSenderBase, _Closable):
    __doc__ = replication_base.PassiveSenderBase.__doc__

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> Side | None:
        """Send one message, several, or a batch to one side. The answer is which took it; None for no message at all.

        Raises BothFailed, the SDK's errors where they do not say that the active side may be gone, and UsageError for a
        message that has an `x-ms-path` or another alias already.
        """
        with self._turn:
            return run(self._sending(message, timeout))


class DedupReceiver(replication_base.DedupReceiverBase, _Closable):
    __doc__ = replication_base.DedupReceiverBase.__doc__

    def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """The first copies that there are, up to so many; [] where none has come within `max_wait_time` (60 s).

        Raises BothFailed where neither side can be received from all that time, and the SDK's errors.
        """
        deadline = self._deadline(max_message_count, max_wait_time)
        while True:
            with self._turn:
                found = run(self._look(max_message_count, deadline))
            if found is not None:
                return found

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Complete it, and then the copies of it that are held. Raises MessageLockLostError, and the SDK's errors."""
        with self._turn:
            run(self._completing(message))

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give it back: it comes again, or another copy does. Raises MessageLockLostError, and the SDK's errors."""
        with self._turn:
            run(self._abandoning(message))

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Dead-letter it on its side; another copy of it comes. Raises MessageLockLostError, and the SDK's errors."""
        with self._turn:
            run(self._dead_lettering(message, reason, error_description))

    def renew_message_lock(self, message: ServiceBusReceivedMessage) -> datetime:
        """Until when it is locked now; so are the copies that are held for it. Raises the SDK's errors."""
        with self._turn:
            until: datetime = run(self._renewing(message))
        return until

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        """One after the other; it ends where none has come within this receiver's `max_wait_time`, if it has one."""
        while (found := self.receive_messages()) or self._max_wait is None:
            yield from found
