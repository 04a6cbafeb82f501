"""What the sync and the async paired client have in common, which is all but the words `async` and `await`."""

from __future__ import annotations

import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sbpair.backlog import check_path
from sbpair.errors import UsageError
from sbpair.failover.failover_send import Delivered, FailoverSend, OnFailure, SendPolicy
from sbpair.failover.failover_state import FailoverState
from sbpair.failover.failures import FailoverOn, counting
from sbpair.failover.metrics import counted
from sbpair.failover.outbox import MAX_BYTES, MAX_MESSAGES, Outbox
from sbpair.failover.outbox_delivery import Deliveries
from sbpair.failover.side_connections import Side, SideConnections, closed
from sbpair.failover.simulated_outage import OutageProxy

if TYPE_CHECKING:
    from sbpair.failover.events import SenderEvent
    from sbpair.failover.pinger import DeliverEntity
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.failover.states import State
    from sbpair.failover.steps import Steps
    from sbpair.model.pair import Endpoint, Pair

SHORT_SECONDS = 15.0

SenderT = TypeVar("SenderT", bound="SenderBase")


class ShortTimeout(UserWarning):
    """A send has too little time for a partitioned entity to turn to another partition: its time-out says little."""


class SenderBase:
    """One entity's sender. Each has connections of its own to both sides, made when they are needed."""

    def __init__(self, client: ClientBase[Any], entity: str, topic: bool) -> None:
        self.entity_name = entity
        self.fully_qualified_namespace = client.pair.primary.authority
        self._client = client
        self._topic = topic
        self._clients: dict[Side, Any] = {}
        self._lane = SideConnections(self._sdk_sender)
        self._exchange = FailoverSend(client.known, self._lane, entity, client.terms, client.now, client.outbox)
        self._closed = False

    @property
    def delivered(self) -> Delivered:
        """How many of its messages have been accepted so far, by the primary and by the backlog."""
        return replace(self._exchange.delivered)

    @property
    def backlog_queue(self) -> str | None:
        """The backlog queue that it has sent to last, and stays with while that works."""
        return self._exchange.queue

    def _seconds(self, timeout: float | None) -> float:
        if self._closed:
            raise ValueError("the sender has been closed: get another one from the client")
        return self._client.timeout if timeout is None else checked_timeout(timeout)

    def _sdk_sender(self, side: Side, path: str) -> Any:
        if side not in self._clients:
            pair = self._client.pair
            endpoint = pair.primary if side == "primary" else pair.secondary
            self._clients[side] = self._client.sdk_client(endpoint)
        sdk, outage = self._clients[side], self._client.outage
        made = sdk.get_topic_sender(path) if self._topic and side == "primary" else sdk.get_queue_sender(path)
        return made if outage is None else OutageProxy(made, outage, side, path)

    def _closing(self) -> Steps[None]:
        self._closed = True
        self._client.forget(self)
        yield from self._lane.close()
        while self._clients:
            _, sdk = self._clients.popitem()
            yield from closed(sdk)


class ClientBase(ABC, Generic[SenderT]):
    """A client of a pair. `failover_on` is "default", "article", or a function that says whether an error counts.

    `on_failure` is what a send does that failed while its entity is not failed over yet: "raise" the error, as the
    original did; "wait", trying the primary on until it is, or time is over; or "backlog-now", into the backlog with
    this one. `timeout` is in seconds, for each send that names none. `retries` follow a failed attempt, 0.8 s later,
    then 1.6 s and so on, while there is time. `on_event` is told what happens (`sbpair.failover.events`), in whichever
    thread it happened.

    `outbox` is a file of this client alone, which takes messages while neither side does, up to `outbox_messages` and
    `outbox_bytes`; they are delivered in their order, by this client or the next one that is given the file.

    With an `outage`, what that says is away is so for this client: a rehearsal.

    Raises UsageError for what is none of this, StateRefused for an outbox of another pair or version, LeaseHeld for one
    that another client has, MachineLacks where it cannot be written.
    """

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
    ) -> None:
        if on_failure not in ("raise", "wait", "backlog-now"):
            raise UsageError(f"on_failure is {on_failure!r}", hint='say "raise", "wait" or "backlog-now"')
        if retries < 0:
            raise UsageError(f"retries is {retries}", hint="0 is none, 3 the default")
        self.pair = pair
        self.timeout = checked_timeout(timeout)
        self.terms = SendPolicy(counting(failover_on), on_failure, retries)
        self.known = FailoverState(pair, counted(pair.name, on_event))
        self.known.on_sooner = self._wake
        self.outage = outage
        self.now: Callable[[], float] = time.monotonic
        self._senders: list[SenderT] = []
        self._closed = False
        self.outbox: Outbox | None = None
        self._deliver: DeliverEntity | None = None
        if outbox is not None:
            self.outbox = Outbox(outbox, pair, max_messages=outbox_messages, max_bytes=outbox_bytes)
            self._deliver = Deliveries(pair, self.known, self.outbox, self.terms.counts, self.now).run
            for entity in self.outbox.entities():
                self.known.kept(entity, None, self.now())

    def get_queue_sender(self, queue_name: str) -> SenderT:
        """A sender for a queue of the primary. Raises NameInvalid; nothing is connected yet."""
        return self._get(queue_name, topic=False)

    def get_topic_sender(self, topic_name: str) -> SenderT:
        """A sender for a topic of the primary. Raises NameInvalid; nothing is connected yet."""
        return self._get(topic_name, topic=True)

    def force_failover(self, entity: str | None = None) -> None:
        """Send to the backlog until `failback`: one entity, or all of them, also those that come later."""
        self.known.force(entity, self.now())

    def failback(self, entity: str | None = None) -> None:
        """Send to the primary again: one entity, or all of them."""
        self.known.failback(entity, self.now())

    def states(self) -> dict[str, State]:
        """Where each entity stands that this client has a sender for."""
        return self.known.states()

    @abstractmethod
    def sdk_client(self, endpoint: Endpoint) -> Any:
        """The SDK's client for one side, for one sender alone."""

    @abstractmethod
    def _wake(self) -> None:
        """Something is due, and sooner than what was waited for."""

    @abstractmethod
    def _make(self, entity: str, topic: bool) -> SenderT: ...

    def forget(self, sender: SenderBase) -> None:
        self._senders = [each for each in self._senders if each is not sender]

    def _close_outbox(self) -> None:
        if self.outbox is not None:
            left, self.outbox = self.outbox, None
            left.close()
            self.known.outbox_closed(str(left.path), len(left))

    def _get(self, entity: str, *, topic: bool) -> SenderT:
        if self._closed:
            raise ValueError("the client has been closed: make another one")
        check_path(entity, shorten="give the queue or topic a shorter name")
        self.known.register(entity)
        sender = self._make(entity, topic)
        self._senders.append(sender)
        return sender


def checked_timeout(seconds: float) -> float:
    """`seconds`. Raises ValueError for none at all, as the SDK does, and warns of too few."""
    if seconds <= 0:
        raise ValueError("the timeout must be greater than 0")
    if seconds <= SHORT_SECONDS:
        warnings.warn(
            f"a send has {seconds:g} s; it should have more than {SHORT_SECONDS:g} s, and 60 s is advised",
            ShortTimeout,
            4,
        )
    return seconds
