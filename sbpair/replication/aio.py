"""Replication for programs that await. The law: nothing is decided here."""

# ruff: noqa: ASYNC109  the SDK's senders have their time-outs as arguments

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from sbpair.azure.data_client import aio_client
from sbpair.failover.steps import Steps, run_async
from sbpair.replication import replication_base
from sbpair.replication.sdk_clients import ClientKind

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.sdk_messages import Messages
    from sbpair.replication.roles import Side


def _identity() -> Any:
    from azure.identity.aio import DefaultAzureCredential

    return DefaultAzureCredential()


class _AsyncClosable:
    _kind = ClientKind(aio_client, _identity, asyncio.Lock)
    _turn: Any

    def _closing(self) -> Steps[None]:
        raise NotImplementedError

    async def close(self) -> None:
        """Close the connections to both sides."""
        async with self._turn:
            await run_async(self._closing())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


class AsyncActiveSender(replication_base.ActiveSenderBase, _AsyncClosable):
    __doc__ = replication_base.ActiveSenderBase.__doc__

    async def send_messages(self, message: Messages, *, timeout: float | None = None) -> tuple[Side, ...]:
        """Send one message, several, or a batch to both sides. The answer is which took it, one at least.

        Raises BothFailed, and UsageError for a message that has an `x-ms-path` or another alias already.
        """
        async with self._turn:
            return await run_async(self._sending(message, timeout))


class AsyncPassiveSender(replication_base.PassiveSenderBase, _AsyncClosable):
    __doc__ = replication_base.PassiveSenderBase.__doc__

    async def send_messages(self, message: Messages, *, timeout: float | None = None) -> Side | None:
        """Send one message, several, or a batch to one side. The answer is which took it; None for no message at all.

        Raises BothFailed, the SDK's errors where they do not say that the active side may be gone, and UsageError for a
        message that has an `x-ms-path` or another alias already.
        """
        async with self._turn:
            return await run_async(self._sending(message, timeout))


class AsyncDedupReceiver(replication_base.DedupReceiverBase, _AsyncClosable):
    __doc__ = replication_base.DedupReceiverBase.__doc__

    async def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """The first copies that there are, up to so many; [] where none has come within `max_wait_time` (60 s).

        Raises BothFailed where neither side can be received from all that time, and the SDK's errors.
        """
        deadline = self._deadline(max_message_count, max_wait_time)
        while True:
            async with self._turn:
                found = await run_async(self._look(max_message_count, deadline))
            if found is not None:
                return found

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Complete it, and then the copies of it that are held. Raises MessageLockLostError, and the SDK's errors."""
        async with self._turn:
            await run_async(self._completing(message))

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give it back: it comes again, or another copy does. Raises MessageLockLostError, and the SDK's errors."""
        async with self._turn:
            await run_async(self._abandoning(message))

    async def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Dead-letter it on its side; another copy of it comes. Raises MessageLockLostError, and the SDK's errors."""
        async with self._turn:
            await run_async(self._dead_lettering(message, reason, error_description))

    async def renew_message_lock(self, message: ServiceBusReceivedMessage) -> datetime:
        """Until when it is locked now; so are the copies that are held for it. Raises the SDK's errors."""
        async with self._turn:
            until: datetime = await run_async(self._renewing(message))
        return until

    async def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        """One after the other; it ends where none has come within this receiver's `max_wait_time`, if it has one."""
        while (found := await self.receive_messages()) or self._max_wait is None:
            for message in found:
                yield message
