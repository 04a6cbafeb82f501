"""The shared part of the sync and the async senders and receivers: everything but `await`.

Their docstrings state the guarantees and the remaining risks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusReceiveMode

from sbpair.backlog import check_path
from sbpair.errors import UsageError
from sbpair.failover.base import checked_timeout
from sbpair.failover.failures import FailoverOn, failover_rule
from sbpair.replication.dedup_receive import SETTLE_SECONDS, DedupReceive
from sbpair.replication.events import ReplicationEvent, ReplicationReporter
from sbpair.replication.key import KeyOf, KeyRule
from sbpair.replication.key_store import KeyStore
from sbpair.replication.replicated_send import ACTIVE_SHARE, ActiveSend, PassiveSend, ReplicatedSend, SideSend
from sbpair.replication.roles import SIDES, Side
from sbpair.replication.sdk_clients import SdkClients
from sbpair.replication.side_receiver import OPEN_SECONDS, SideReceiver, abandon_action
from sbpair.replication.window import DAY_SECONDS, KEYS, MemoryStore, Window

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.client_kinds import ClientKind
    from sbpair.failover.sdk_messages import Messages
    from sbpair.failover.steps import Steps
    from sbpair.model.pair import Pair

OnEvent = Callable[[ReplicationEvent], None]

MEMORY = "memory"
RECEIVE_SECONDS = 60.0
"""Default wait of a receive, as in the SDK."""

_SHORTER = "give the queue or topic a shorter name"


class _ReplicatingSenderBase:
    _kind: ClientKind
    _replication: ReplicatedSend
    _share = 1.0

    def __init__(
        self, pair: Pair, entity: str, *, timeout: float = 60.0, retries: int = 3, on_event: OnEvent | None = None
    ) -> None:
        check_path(entity, shorten=_SHORTER)
        if retries < 0:
            raise UsageError(f"expected retries of 0 or more, got {retries}", hint="3 is the default")
        self.pair = pair
        self.entity_name = entity
        self.timeout = checked_timeout(timeout)
        self._report = ReplicationReporter(on_event)
        self._clients = SdkClients(pair, self._kind, self.timeout * self._share)
        self._sends = {side: SideSend(side, entity, self._clients.sender, retries, time.monotonic) for side in SIDES}
        self._turn = self._kind.lock()
        self._closed = False

    def _seconds(self, timeout: float | None) -> float:
        if self._closed:
            raise ValueError("the sender has been closed: make another one")
        self._clients.open()
        return self.timeout if timeout is None else checked_timeout(timeout)

    def _closing(self) -> Steps[None]:
        self._closed = True
        yield from self._replication.close()
        yield from self._clients.close()


class ActiveSenderBase(_ReplicatingSenderBase):
    """Active replication: sends every message to an entity of the same name in both namespaces, as copies with one id.

    A message without an id gets one before the first attempt. Both sides are tried concurrently. A send ends when both
    have answered or its `timeout` (seconds) is over, and succeeds if one side accepted the message. The event
    `OneSideOnly` reports a missing copy. `retries` follow a first attempt with a transient error; a side that failed
    last time is tried once. Receive with a DedupReceiver. Raises BothFailed, with both reasons, if neither side
    accepted the message; UsageError and NameInvalid for invalid arguments.

    Remaining risks:

    - Every message costs twice. A send takes as long as the slower side; while one stalls, that is `timeout`, and a
      blocking client may need 30 s to give up an unanswered connection.
    - A copy that only one side has is lost with that side, or arrives when it returns, long after its message was
      processed. A receiver recognizes it as a duplicate only if its window reaches back far enough.
    - The copies have no common order: each side has its own, and failed sends make them differ.
    - A side that accepted a copy without answering may get it again, with the same id (event `Unanswered`). After
      BothFailed it may have the copy as well (`in_doubt`).
    """

    _replication: ActiveSend

    def __init__(
        self, pair: Pair, entity: str, *, timeout: float = 60.0, retries: int = 3, on_event: OnEvent | None = None
    ) -> None:
        super().__init__(pair, entity, timeout=timeout, retries=retries, on_event=on_event)
        self._replication = ActiveSend(self._sends, entity, time.monotonic, self._report)

    def _sending(self, message: Messages, timeout: float | None) -> Steps[tuple[Side, ...]]:
        return self._replication.send(message, self._seconds(timeout))


class PassiveSenderBase(_ReplicatingSenderBase):
    """Passive replication: sends to the active namespace, or to its backup if the active one may be gone.

    At first the primary is active. If a send to the active side ends with an error that counts as an outage, the
    message goes to the backup. If the backup accepts it, the two swap roles for all later messages (event
    `RolesSwapped`). Only the next such error, or `swap_roles`, swaps them back. If both fail, the roles stay and
    BothFailed is raised with both reasons.

    These errors count after `retries`: timeouts, broken or refused connections, the SDK's communication errors, and a
    busy service. Others are raised, and nothing is sent to the backup: a wrong key, a missing claim, a missing,
    disabled or full entity, a message that is too large or refused. `failover_on` may be "article" or a function of the
    error instead. The active side has two thirds of `timeout` (seconds).

    Remaining risks:

    - A message that the active side accepted, and that was not received before its data center failed, is late by the
      length of the outage, or lost with it.
    - Messages sent to the backup meanwhile overtake it: there is no order across the swap.
    - If the error came after the message was accepted, both sides have it, and it arrives twice (event `Unanswered`)
      unless a DedupReceiver removes the second copy.
    - Receivers must receive from both sides: they are not notified of a swap.
    """

    _share = ACTIVE_SHARE
    _replication: PassiveSend

    def __init__(
        self,
        pair: Pair,
        entity: str,
        *,
        failover_on: FailoverOn = "default",
        timeout: float = 60.0,
        retries: int = 3,
        on_event: OnEvent | None = None,
    ) -> None:
        super().__init__(pair, entity, timeout=timeout, retries=retries, on_event=on_event)
        self._replication = PassiveSend(self._sends, entity, time.monotonic, self._report, failover_rule(failover_on))

    @property
    def active(self) -> Side:
        """The side that messages go to: "primary" or "secondary"."""
        return self._replication.roles.active

    def swap_roles(self) -> None:
        """Swap the roles: back to the primary after an outage, or away from it before one."""
        self._replication.swap()

    def _sending(self, message: Messages, timeout: float | None) -> Steps[Side | None]:
        return self._replication.send(message, self._seconds(timeout))


class DedupReceiverBase:
    """Receives from an entity of both namespaces, and gives the application the first copy of each message.

    Messages are under lock (peek-lock), and are settled with this receiver, on the side that they came from. While the
    application has one, further copies are held. Once it is completed, they are completed too (event
    `DuplicateCompleted`). If it is abandoned or dead-lettered, or loses its lock, the next copy is given instead: no
    copy is removed before another one was completed. If a completion was not answered, or the process ended during one,
    a further copy is given and reported by the event `Redelivered`.

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

    _kind: ClientKind

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
        self.pair = pair
        self.entity_name = path
        self._max_wait = None if max_wait_time is None else _checked_wait(max_wait_time)
        rule, window = KeyRule(key), Window(window_seconds, window_count)
        about = {
            "primary": pair.primary.authority.lower(),
            "secondary": pair.secondary.authority.lower(),
            "entity": path.lower(),
            "key": rule.name,
        }
        self._clients = SdkClients(pair, self._kind, OPEN_SECONDS)
        keys = MemoryStore(window) if store == MEMORY else KeyStore(Path(store), window, about)
        receivers = {side: SideReceiver(side, self._receiver) for side in SIDES}
        self._receive = DedupReceive(
            receivers, path, rule, keys, ReplicationReporter(on_event), time.time, time.monotonic
        )
        self._turn = self._kind.lock()
        self._closed = False

    def side_of(self, message: ServiceBusReceivedMessage) -> Side:
        """Return "primary" or "secondary" for a message that is not settled. Raises MessageLockLostError."""
        return self._receive.locked(message).side

    def _receiver(self, side: Side) -> Any:
        return self._clients.receiver(side, self.entity_name, SETTLE_SECONDS / 2)

    def _polling(self, limit: int, deadline: float) -> Steps[list[ServiceBusReceivedMessage] | None]:
        return self._receive.poll(limit, deadline)

    def _deadline(self, limit: int, seconds: float | None) -> float:
        """Return the end of a receive on the monotonic clock. Raises ValueError, as the SDK does."""
        if limit < 1:
            raise ValueError("max_message_count must be at least 1")
        self._check_open()
        self._clients.open()
        wait = self._max_wait if seconds is None else _checked_wait(seconds)
        return time.monotonic() + (RECEIVE_SECONDS if wait is None else wait)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the receiver has been closed: make another one")

    def _completing(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        self._check_open()
        return self._receive.complete(message)

    def _abandoning(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        self._check_open()
        return self._receive.settle(message, abandon_action(message))

    def _dead_lettering(
        self, message: ServiceBusReceivedMessage, reason: str | None, error_description: str | None
    ) -> Steps[None]:
        self._check_open()

        def dead_letter_action(receiver: Any, _seconds: float) -> Any:
            return receiver.dead_letter_message(message, reason=reason, error_description=error_description)

        return self._receive.settle(message, dead_letter_action)

    def _renewing(self, message: ServiceBusReceivedMessage) -> Steps[Any]:
        self._check_open()
        return self._receive.renew(message)

    def _closing(self) -> Steps[None]:
        if not self._closed:
            self._closed = True
            yield from self._receive.close()
            yield from self._clients.close()


def checked_source(entity: str, subscription: str | None) -> str:
    """Return the path to receive from. Raises NameInvalid."""
    check_path(entity, shorten=_SHORTER)
    if subscription is None:
        return entity
    check_path(subscription, shorten="give the subscription a shorter name")
    return f"{entity}/Subscriptions/{subscription}"


def _checked_wait(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError("max_wait_time must be greater than 0")
    return seconds
