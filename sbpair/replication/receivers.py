"""The deduplicating receiver, for programs that block and for asyncio.

Its docstring states the guarantees and the remaining risks.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusReceiveMode

from sbpair.backlog import check_path
from sbpair.errors import UsageError
from sbpair.failover.events import EventReporter
from sbpair.failover.side_connections import AsyncClosable, BothSides, SyncClosable
from sbpair.failover.steps import Steps, awaiting, blocking, drive, drive_async
from sbpair.replication.bulk_removal import remove_duplicates
from sbpair.replication.dedup_receive import OPEN_SECONDS, SETTLE_SECONDS, DedupReceive, SideReceiver, abandon_action
from sbpair.replication.events import SIDES, OnEvent, Side
from sbpair.replication.keys import DAY_SECONDS, KEYS, KeyOf, KeyRule, KeyStore, MemoryStore, Window

if TYPE_CHECKING:
    from datetime import datetime

    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.model.pair import Pair

MEMORY = "memory"
RECEIVE_SECONDS = 60.0
"""Default wait of a receive, as in the SDK."""


class DedupReceiverBase(BothSides):
    """Receives from an entity of both namespaces, and gives the application the first copy of each message.

    Messages are under lock (peek-lock), and are settled with this receiver, on the side that they came from. While the
    application has one, further copies are held. Once it is completed, they are completed too (event
    `DuplicateCompleted`), in bulk if they are many. If it is abandoned or dead-lettered, or loses its lock, the next
    copy is given instead: no copy is removed before another one was completed. If a completion was not answered, or the
    process ended during one, a further copy is given and reported by the event `Redelivered`.

    `entity` is a queue, or a topic with its `subscription_name`. `key` identifies copies: "id", "subject",
    "property:NAME" (an application property), or a function of the message. A message without a key is given (event
    `NoKey`). `store` holds completed keys: "memory", or the path of a file that outlives the process, for one receiver
    at a time. It holds the last `window_count` keys for `window_seconds`; None means no such limit, and one limit is
    required. A side that fails backs off while the other goes on (`SideLost`, `SideBack`).

    Raises UsageError and NameInvalid for invalid arguments, LeaseHeld for a file in use, StateRefused for a file of
    another entity or key. RECEIVE_AND_DELETE is refused, because its copies are gone before anything is completed. The
    service refuses entities that require sessions: a session's lock and state are in one namespace.

    Remaining risks:

    - A copy that arrives after its key left the window is given again, as is one that another process receives: all
      copies must come through one receiver.
    - Messages come in the order of their first copies, which may differ from the order of both sides.
    - Of different messages with the same key, only the first is given: choose a key that is unique.
    - While the application has the first copy for longer than a lock lasts, further copies are delivered repeatedly,
      which raises their delivery count: `renew_message_lock` renews all of their locks.
    - While one side stalls, a blocking receiver may wait 30 s for its connection, and then for the other side alone for
      two minutes: the SDK gives up a connection no sooner.
    """

    _noun = "receiver"

    def __init__(
        self,
        pair: Pair,
        entity: str,
        *,
        subscription_name: str | None = None,
        key: str | KeyOf = "id",
        store: str | Path = MEMORY,
        window_seconds: float | None = DAY_SECONDS,
        window_count: int | None = KEYS,
        receive_mode: ServiceBusReceiveMode | str = ServiceBusReceiveMode.PEEK_LOCK,
        max_wait_time: float | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        path = checked_source(entity, subscription_name)
        if ServiceBusReceiveMode(receive_mode) is not ServiceBusReceiveMode.PEEK_LOCK:
            raise UsageError(
                "a DedupReceiver cannot receive and delete: a copy is removed only after another one is completed",
                hint="omit receive_mode, and complete processed messages",
            )
        super().__init__(pair, path, OPEN_SECONDS)
        self._max_wait = None if max_wait_time is None else _checked_wait(max_wait_time)
        rule, window = KeyRule(key), Window(window_seconds, window_count)
        about = {
            "primary": pair.primary.authority.lower(),
            "secondary": pair.secondary.authority.lower(),
            "entity": path.lower(),
            "key": rule.name,
        }
        keys = MemoryStore(window) if store == MEMORY else KeyStore(Path(store), window, about)
        receivers = {
            side: SideReceiver(side, self._receiver, partial(remove_duplicates, pair, endpoint, path))
            for side, endpoint in zip(SIDES, (pair.primary, pair.secondary), strict=True)
        }
        self._receive = DedupReceive(
            receivers, path, rule, keys, EventReporter("replication", on_event), time.time, time.monotonic
        )

    def side_of(self, message: ServiceBusReceivedMessage) -> Side:
        """Return "primary" or "secondary" for a message that is not settled. Raises MessageLockLostError."""
        return self._receive.locked(message).side

    def _receiver(self, side: Side) -> Any:
        """Return an SDK receiver in peek-lock mode. Queues and subscriptions are received from alike, by path."""
        # Without prefetch, only requested messages are locked.
        client = self._clients[side]
        return client.get_queue_receiver(self.entity_name, prefetch_count=0, timeout=SETTLE_SECONDS / 2)

    def _poll(self, limit: int, seconds: float | None) -> Callable[[], Steps[list[ServiceBusReceivedMessage] | None]]:
        """Return the procedure to repeat until it has a result. Raises ValueError, as the SDK does."""
        if limit < 1:
            raise ValueError("max_message_count must be at least 1")
        self._open()
        wait = self._max_wait if seconds is None else _checked_wait(seconds)
        return partial(self._receive.poll, limit, time.monotonic(), RECEIVE_SECONDS if wait is None else wait)

    def _complete_message(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        """Complete a message and then its held copies. Raises MessageLockLostError, and the SDK's errors."""
        self._open()
        return self._receive.complete(message)

    def _abandon_message(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        """Release a message, so that it or a copy is delivered again. Raises MessageLockLostError and SDK errors."""
        self._open()
        return self._receive.settle(message, abandon_action(message))

    def _dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> Steps[None]:
        """Dead-letter a message on its side. A copy is delivered. Raises MessageLockLostError and SDK errors."""
        self._open()

        def dead_letter_action(receiver: Any, _seconds: float) -> Any:
            return receiver.dead_letter_message(message, reason=reason, error_description=error_description)

        return self._receive.settle(message, dead_letter_action)

    def _renew_message_lock(self, message: ServiceBusReceivedMessage) -> Steps[datetime]:
        """Renew the locks of a message and its held copies. Returns the new expiry time. Raises SDK errors."""
        self._open()
        return self._receive.renew(message)

    def _closing(self) -> Steps[None]:
        if not self._closed:
            yield from super()._closing()

    def _close_sides(self) -> Steps[None]:
        return self._receive.close()


class DedupReceiver(DedupReceiverBase, SyncClosable):
    __doc__ = DedupReceiverBase.__doc__
    complete_message = blocking(DedupReceiverBase._complete_message)
    abandon_message = blocking(DedupReceiverBase._abandon_message)
    dead_letter_message = blocking(DedupReceiverBase._dead_letter_message)
    renew_message_lock = blocking(DedupReceiverBase._renew_message_lock)

    def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Return first copies, up to `max_message_count`, or [] if none arrived within `max_wait_time` (60 s).

        Removing duplicates counts as activity: the wait begins again.

        Raises BothFailed if neither side could be received from in that time, and the SDK's errors.
        """
        poll = self._poll(max_message_count, max_wait_time)
        while True:
            with self._turn:
                found = drive(poll())
            if found is not None:
                return found

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        """Yield messages. Ends if none arrives within the receiver's `max_wait_time`, if it has one."""
        while (found := self.receive_messages()) or self._max_wait is None:
            yield from found


class AsyncDedupReceiver(DedupReceiverBase, AsyncClosable):
    __doc__ = DedupReceiverBase.__doc__
    complete_message = awaiting(DedupReceiverBase._complete_message)
    abandon_message = awaiting(DedupReceiverBase._abandon_message)
    dead_letter_message = awaiting(DedupReceiverBase._dead_letter_message)
    renew_message_lock = awaiting(DedupReceiverBase._renew_message_lock)

    async def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Return first copies, up to `max_message_count`, or [] if none arrived within `max_wait_time` (60 s).

        Removing duplicates counts as activity: the wait begins again.

        Raises BothFailed if neither side could be received from in that time, and the SDK's errors.
        """
        poll = self._poll(max_message_count, max_wait_time)
        while True:
            async with self._turn:
                found = await drive_async(poll())
            if found is not None:
                return found

    async def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        """Yield messages. Ends if none arrives within the receiver's `max_wait_time`, if it has one."""
        while (found := await self.receive_messages()) or self._max_wait is None:
            for message in found:
                yield message


def checked_source(entity: str, subscription: str | None) -> str:
    """Return the path to receive from. Raises NameInvalid."""
    check_path(entity, shorten="give the queue or topic a shorter name")
    if subscription is None:
        return entity
    check_path(subscription, shorten="give the subscription a shorter name")
    return f"{entity}/Subscriptions/{subscription}"


def _checked_wait(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError("max_wait_time must be greater than 0")
    return seconds
