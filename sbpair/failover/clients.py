"""The paired clients for programs that block and for asyncio programs, and what they share: everything but `await`."""

# ruff: noqa: ASYNC109  the SDK's senders have their time-outs as arguments

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from sbpair.backlog import check_path
from sbpair.errors import UsageError
from sbpair.failover.client_syphon import AsyncBackgroundSyphon, BackgroundSyphon
from sbpair.failover.entity_states import EntityEvent, State
from sbpair.failover.events import OutboxClosed, SenderEvent, with_metrics
from sbpair.failover.failover_send import FailoverSend, OnFailure, SendPolicy, checked_retries, checked_timeout
from sbpair.failover.failures import FailoverOn, failover_rule
from sbpair.failover.outbox import MAX_BYTES, MAX_MESSAGES, Outbox
from sbpair.failover.outbox_delivery import OutboxDelivery
from sbpair.failover.sdk_send import SdkFailoverSend
from sbpair.failover.shared_state import FailoverState, SendSide
from sbpair.failover.side_connections import (
    AsyncClosable,
    ClientFactory,
    Closable,
    SyncClosable,
    close_quietly,
)
from sbpair.failover.timer_runner import DeliverEntity, TimerRunner
from sbpair.model.pair import check_when_lost
from sbpair.sync_async import GRACE_SECONDS, LoopThread, ReusableTimeout, Steps, awaiting, blocking, drive, drive_async

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Messages
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.model.pair import Pair, WhenLost
    from sbpair.move.events import SyphonEvent
    from sbpair.syphon.run_request import RunRequest

STOP_SECONDS = 15.0


SenderT = TypeVar("SenderT", bound="FailoverSend[Any]")
SyphonT = TypeVar("SyphonT", BackgroundSyphon, AsyncBackgroundSyphon)


class SenderBase(SdkFailoverSend):
    """The sender of one entity. It has connections of its own to both sides, opened when needed."""

    def __init__(self, client: ClientBase[Any, Any], entity: str) -> None:
        super().__init__(client.failover_state, entity, client.policy, client.now, client.outbox)
        self.fully_qualified_namespace = client.pair.primary.authority
        self._client = client
        self._sdk_clients: dict[SendSide, Any] = {}
        if client.outage is not None:
            self._connections.check = client.outage.check

    def _seconds(self, timeout: float | None) -> float:
        if self._closed:
            raise ValueError("the sender has been closed: get another one from the client")
        return self._client.timeout if timeout is None else checked_timeout(timeout)

    def _sdk_sender(self, side: SendSide, path: str) -> Any:
        if side not in self._sdk_clients:
            pair = self._client.pair
            endpoint = pair.primary if side == "primary" else pair.secondary
            self._sdk_clients[side] = self._client.sdk_clients.client(endpoint, self._client.timeout)
        # Topics are sent to like queues.
        return self._sdk_clients[side].get_queue_sender(path)

    def _closing(self) -> Steps[None]:
        self._closed = True
        self._client.forget(self)
        yield from self._connections.close()
        while self._sdk_clients:
            _, sdk = self._sdk_clients.popitem()
            yield from close_quietly(sdk)


class ClientBase(Closable, ABC, Generic[SenderT, SyphonT]):
    """A client of a pair whose senders fail over to the backlog while the primary is unavailable.

    Args:
        failover_on: Which errors count as unavailability: "default", "article", or a function of the error.
        on_failure: Reaction to a send that fails before the entity has failed over. "raise" raises the error. "wait"
            retries the primary until the failover or the timeout. "backlog-now" sends to the backlog at once.
        timeout: Seconds for each send that sets no timeout of its own.
        retries: How many retries follow a failed attempt, 0.8 s later, then 1.6 s and so on, while time remains.
        on_event: Called with each event of `sbpair.events`, in the thread where it happened.
        outbox: A file, used by this client alone, for messages that neither side accepts. They are delivered in order
            by this client or the next one with the same file.
        outbox_messages: Maximum number of messages in the outbox.
        outbox_bytes: Maximum size of the messages in the outbox, in bytes.
        outage: A simulated outage of this client, for rehearsals.
        when_lost: Where messages go once the primary is declared lost: to the "secondary", or to the backlog until
            `release` ("hold"). The default is the pair's.

    Raises UsageError for invalid arguments, StateRefused for an outbox of another pair or version, LeaseHeld for an
    outbox in use, MachineLacks for one that cannot be written.
    """

    _sender_class: Callable[..., SenderT]
    _syphon_class: type[SyphonT]
    _syphon: SyphonT | None = None

    def __init__(
        self,
        pair: Pair,
        *,
        failover_on: FailoverOn = "default",
        on_failure: OnFailure = "raise",
        timeout: float = 60.0,
        retries: int = 3,
        on_event: Callable[[SenderEvent], None] | None = None,
        outbox: str | os.PathLike[str] | None = None,
        outbox_messages: int = MAX_MESSAGES,
        outbox_bytes: int = MAX_BYTES,
        outage: SimulatedOutage | None = None,
        when_lost: WhenLost | None = None,
    ) -> None:
        super().__init__()
        if on_failure not in ("raise", "wait", "backlog-now"):
            raise UsageError(
                f'expected on_failure "raise", "wait" or "backlog-now", got {on_failure!r}',
                hint='"raise" is the default',
            )
        when_lost = when_lost or pair.when_lost
        check_when_lost(when_lost)
        self._loss = EntityEvent.HOLD if when_lost == "hold" else EntityEvent.LOST
        self.pair = pair
        self.timeout = checked_timeout(timeout)
        self.policy = SendPolicy(failover_rule(failover_on), on_failure, checked_retries(retries))
        self.failover_state = FailoverState(pair, with_metrics(pair.name, on_event))
        self.outage = outage
        self.now: Callable[[], float] = time.monotonic
        self.sdk_clients = ClientFactory(is_async=self._is_async)
        self._senders: list[Any] = []
        self.outbox: Outbox | None = None
        deliver: DeliverEntity | None = None
        if outbox is not None:
            self.outbox = Outbox(outbox, pair, max_messages=outbox_messages, max_bytes=outbox_bytes)
            deliver = OutboxDelivery(pair, self.failover_state, self.outbox, self.policy.counts, self.now).run
        self._timer_runner = TimerRunner(pair, self.failover_state, self.now, deliver, outage)
        self.failover_state.timers.on_earlier = self._wake_timers
        if pair.lost:
            self.failover_state.command(self._loss, None, self.now())
        for entity in self.outbox.entities() if self.outbox is not None else ():
            self.failover_state.outbox_stored(entity, None, self.now())

    def get_queue_sender(self, queue_name: str) -> SenderT:
        """Return a sender for a queue of the primary. It is not connected yet. Raises NameInvalid."""
        return self._get_sender(queue_name)

    def get_topic_sender(self, topic_name: str) -> SenderT:
        """Return a sender for a topic of the primary. It is not connected yet. Raises NameInvalid."""
        return self._get_sender(topic_name)

    def force_failover(self, entity: str | None = None) -> None:
        """Send to the backlog until `failback`: one entity, or all of them, later ones included.

        It changes nothing once the primary is declared lost, as `failback`.
        """
        self.failover_state.command(EntityEvent.FORCE, entity, self.now())

    def failback(self, entity: str | None = None) -> None:
        """Send to the primary again: one entity, or all of them."""
        self.failover_state.command(EntityEvent.FAILBACK, entity, self.now())

    def primary_lost(self) -> None:
        """Send no more to the primary, while this client lives, but to the secondary's own entities of the same names.

        With `when_lost="hold"` it sends to the backlog until `release`. Pings and its syphon end; a send in progress
        ends in its own time. `lost = "primary"` in the configuration is the lasting declaration.
        """
        if not self.failover_state.lost:
            self.failover_state.command(self._loss, None, self.now())
            self._wake_timers()
        if self._syphon is not None:
            self._syphon.end_at_once()

    def release(self, entity: str | None = None) -> None:
        """Send to the secondary's own entity: one that was held, or all of them, later ones included.

        Do so once the backlog has been delivered there. Raises UsageError unless the primary is declared lost.
        """
        if not self.failover_state.lost:
            raise UsageError(
                "nothing is held: the primary is not declared lost", hint='primary_lost() or lost = "primary" does so'
            )
        self.failover_state.command(EntityEvent.LOST, entity, self.now())

    def states(self) -> dict[str, State]:
        """Return the state of each entity that this client has a sender for."""
        return self.failover_state.states()

    def syphon(
        self,
        request: RunRequest | None = None,
        *,
        state: Path | None = None,
        on_event: Callable[[SyphonEvent], None] = lambda _event: None,
    ) -> SyphonT:
        """Move the backlog to the primary, in a thread or a task, until the client is closed or the syphon stopped.

        Once the primary is declared lost, it goes to the secondary's own entities. `request` is a `syphon_request` with
        the options of `sbpair syphon`. `state` is a directory for the journal. The syphon waits while another process
        of this user moves the pair on this machine; `lease_queue` of the request extends that to other machines.
        Whatever ends the syphon, it is retried after a pause and reported to the client's `on_event` (SyphonFaulted).
        Raises UsageError while this client has a running syphon, and PrimaryLost for a request to a lost primary.
        """
        from sbpair.syphon import run_request, runner

        if self._closed:
            raise ValueError("the client has been closed: make another one")
        lost = self.failover_state.lost
        if lost and request is not None and not request.to:
            raise self.pair.refusal
        if self._syphon is not None and self._syphon.running:
            raise UsageError("this client has a syphon already", hint="one syphon moves the whole backlog")
        request = request or run_request.syphon_request(self.pair, once=False, to=self.pair.secondary if lost else None)
        run = partial(runner.run, request, state=state, on_event=on_event)
        self._syphon = self._syphon_class(run, self.failover_state.publish)
        return self._syphon

    def forget(self, sender: FailoverSend[Any]) -> None:
        self._senders = [each for each in self._senders if each is not sender]

    @abstractmethod
    def _wake_timers(self) -> None:
        """Start the timer runner, or interrupt its wait because a timer is now due earlier."""

    def _get_sender(self, entity: str, *terms: Any) -> SenderT:
        if self._closed:
            raise ValueError("the client has been closed: make another one")
        check_path(entity, shorten="give the queue or topic a shorter name")
        self.failover_state.register(entity)
        sender = self._sender_class(self, entity, *terms)
        self._senders.append(sender)
        return sender

    def _close_outbox(self) -> None:
        if self.outbox is not None:
            outbox, self.outbox = self.outbox, None
            outbox.close()
            self.failover_state.publish(OutboxClosed(str(outbox.path), len(outbox)))


class PairedSender(SenderBase, SyncClosable):
    """Sends to one queue or topic of the primary, or to the backlog, with the methods of a ServiceBusSender.

    Threads may share it. They take turns, because an SDK sender is for one thread. The time of a send
    begins with its turn.
    """

    def send_messages(self, message: Messages, *, timeout: float | None = None) -> None:
        """Send one message, several, or a batch. Returns once a side, or the outbox, has accepted all of it.

        Raises errors of `sbpair.errors` that are also of the SDK's class, and UsageError for a message that cannot be
        sent: with a property of another type, or an alias such as `x-ms-path`.
        """
        seconds = self._seconds(timeout)
        with self._turn:
            sender = self._fast_path(message)
            if sender is None:
                return drive(self._send(message, seconds))
            since = self._now()
            try:
                sender.send_messages(message, timeout=seconds * self.share)
            except BaseException as error:  # noqa: BLE001  the steps decide, an interrupt included
                drive(self._send(message, seconds, since=since, failed=error))
            else:
                self._count_sent(1)
            return None

    create_message_batch = blocking(SenderBase._create_message_batch)
    schedule_messages = blocking(SenderBase._schedule_messages)
    cancel_scheduled_messages = blocking(SenderBase._cancel_scheduled_messages)


class PairedClient(ClientBase[PairedSender, BackgroundSyphon], SyncClosable):
    __doc__ = ClientBase.__doc__
    _sender_class = PairedSender
    _syphon_class = BackgroundSyphon
    _timer_thread: LoopThread | None = None

    def close(self) -> None:
        """Stop its syphon and its pings, and close its senders. Messages in the outbox stay in its file."""
        if self._syphon is not None:
            self._syphon.stop()
        self._closed = True
        if self._timer_thread is not None:
            self._timer_thread.end(STOP_SECONDS)
        for sender in self._senders:
            sender.close()
        self._close_outbox()
        drive(self.sdk_clients.close())

    def _wake_timers(self) -> None:
        if self._closed:
            return
        if self._timer_thread is None:
            self._timer_thread = LoopThread("sbpair timers", self._timer_runner.run())
        self._timer_thread.call(self._timer_runner.wake)


class AsyncPairedSender(SenderBase, AsyncClosable):
    """Sends to one queue or topic of the primary, or to the backlog, with the methods of a ServiceBusSender.

    Tasks may share it. They take turns, because an SDK sender is for one task. The time of a send
    begins with its turn.
    """

    def __init__(self, client: AsyncPairedClient, entity: str) -> None:
        super().__init__(client, entity)
        self._timeout = ReusableTimeout()

    async def send_messages(self, message: Messages, *, timeout: float | None = None) -> None:
        seconds = self._seconds(timeout)
        async with self._turn:
            sender = self._fast_path(message)
            if sender is None:
                return await drive_async(self._send(message, seconds))
            since, left = self._now(), seconds * self.share
            try:
                with self._timeout.limit(left + GRACE_SECONDS):
                    await sender.send_messages(message, timeout=left)
            except BaseException as error:  # noqa: BLE001  the steps decide, a cancellation included
                await drive_async(self._send(message, seconds, since=since, failed=error))
            else:
                self._count_sent(1)
            return None

    send_messages.__doc__ = PairedSender.send_messages.__doc__
    create_message_batch = awaiting(SenderBase._create_message_batch)
    schedule_messages = awaiting(SenderBase._schedule_messages)
    cancel_scheduled_messages = awaiting(SenderBase._cancel_scheduled_messages)

    def _closing(self) -> Steps[None]:
        self._timeout.cancel()
        return super()._closing()


class AsyncClientBase(ClientBase[SenderT, AsyncBackgroundSyphon], AsyncClosable):
    """A client whose pings and syphon are tasks."""

    _syphon_class = AsyncBackgroundSyphon
    _timer_task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop its syphon and its pings, and close its senders. Messages in the outbox stay in its file."""
        if self._syphon is not None:
            await self._syphon.stop()
        self._closed = True
        if self._timer_task is not None:
            self._timer_task.cancel()
            await asyncio.wait((self._timer_task,))
        for sender in self._senders:
            await sender.close()
        self._close_outbox()

    async def __aenter__(self) -> Self:
        self._start_late_timers()
        return self

    def _wake_timers(self) -> None:
        if self._closed:
            return
        if self._timer_task is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                # The client was created before the loop. It starts with `async with` or the first sender.
                return
            self._timer_task = loop.create_task(self._timer_runner.run(), name="sbpair timers")
        self._timer_runner.wake()

    def _start_late_timers(self) -> None:
        if self._timer_task is None and self.failover_state.next_due() is not None:
            self._wake_timers()

    def _get_sender(self, entity: str, *terms: Any) -> SenderT:
        self._start_late_timers()
        return super()._get_sender(entity, *terms)


class AsyncPairedClient(AsyncClientBase[AsyncPairedSender]):
    __doc__ = ClientBase.__doc__
    _sender_class = AsyncPairedSender

    async def close(self) -> None:
        await super().close()
        await drive_async(self.sdk_clients.close())

    close.__doc__ = AsyncClientBase.close.__doc__
