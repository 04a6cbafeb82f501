"""The paired client for programs that block. The law: nothing is decided here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.azure.data_client import signed, sync_client
from sbpair.failover import client_base
from sbpair.failover.pinger import PingerThread
from sbpair.failover.steps import Steps, run

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.identity import DefaultAzureCredential
    from azure.servicebus import ServiceBusClient

    from sbpair.failover.sdk_messages import Messages, SizedBatch
    from sbpair.model.pair import Endpoint

T = TypeVar("T")


class PairedSender(client_base.SenderBase):
    """Sends to one queue or topic of the primary, or into the backlog while that is away: a ServiceBusSender otherwise.

    Threads may share it, and take turns: the SDK's own senders are for one thread.
    """

    def __init__(self, paired: FailoverClient, entity: str, topic: bool) -> None:
        super().__init__(paired, entity, topic)
        self._turn = threading.RLock()

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> None:
        """Send one message, several in one batch, or a batch; returns once a side, or the outbox, has all of it.

        Raises the SDK's errors, and UsageError for a message that has an `x-ms-path` or another alias already.
        """
        exchange, seconds = self._exchange, self._seconds(timeout)
        with self._turn:
            sender = exchange.straight(message)
            if sender is None:
                return run(exchange.send(message, seconds))
            since = self._client.now()
            try:
                sender.send_messages(message, timeout=seconds * exchange.share)
            except BaseException as error:  # noqa: BLE001  the steps decide, an interrupt included
                run(exchange.send(message, seconds, since=since, failed=error))
            else:
                exchange.went(1)
            return None

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> SizedBatch:
        """An empty batch, as large as the entity takes."""
        return self._run(None, self._exchange.batch, max_size_in_bytes)

    def schedule_messages(
        self, messages: Messages, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Send for later. The numbers are to cancel by; negative ones are of messages in the backlog or the outbox."""
        return self._run(timeout, self._exchange.schedule, messages, schedule_time_utc)

    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], *, timeout: float | None = None) -> None:
        """Cancel what waits in the primary. Raises UsageError for what waits elsewhere."""
        self._run(timeout, self._exchange.cancel, sequence_numbers)

    def close(self) -> None:
        with self._turn:
            run(self._closing())

    def __enter__(self) -> PairedSender:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _run(self, timeout: float | None, steps: Callable[..., Steps[T]], *about: Any) -> T:
        with self._turn:
            return run(steps(*about, self._seconds(timeout)))


class FailoverClient(client_base.ClientBase[PairedSender]):
    __doc__ = client_base.ClientBase.__doc__
    _pinger: PingerThread | None = None
    _identity: DefaultAzureCredential | None = None

    def close(self) -> None:
        """Close its senders, and ping no more. What is in the outbox stays in its file."""
        self._closed = True
        if self._pinger is not None:
            self._pinger.stop()
        for sender in self._senders:
            sender.close()
        self._close_outbox()
        if self._identity is not None:
            self._identity.close()

    def __enter__(self) -> FailoverClient:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def sdk_client(self, endpoint: Endpoint) -> ServiceBusClient:
        return sync_client(endpoint, signed(endpoint) or self._signed_in(), self.timeout)

    def _wake(self) -> None:
        if self._closed:
            return
        if self._pinger is None:
            self._pinger = PingerThread(self.pair, self.known, self.now, self._deliver, self.outage)
        self._pinger.wake()

    def _make(self, entity: str, topic: bool) -> PairedSender:
        return PairedSender(self, entity, topic)

    def _signed_in(self) -> TokenCredential:
        if self._identity is None:
            from azure.identity import DefaultAzureCredential

            self._identity = DefaultAzureCredential()
        return self._identity
