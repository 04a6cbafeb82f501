"""What the sync and the async senders and receivers have in common, which is all but the words `async` and `await`.

Here is also what they promise, and what can still go wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusReceiveMode

from sbpair.backlog import check_path
from sbpair.errors import UsageError
from sbpair.failover.client_base import checked_timeout
from sbpair.failover.failures import FailoverOn, counting
from sbpair.replication.dedup_receive import OPEN_SECONDS, SETTLE_SECONDS, DedupReceive, SideReceiver, abandoning
from sbpair.replication.events import ReplicationEvent, ReplicationReporter
from sbpair.replication.key import KeyOf, KeyRule
from sbpair.replication.key_store import KeyStore
from sbpair.replication.replicated_send import ACTIVE_SHARE, ActiveSend, PassiveSend, ReplicatedSend, SideSend
from sbpair.replication.roles import SIDES, Side
from sbpair.replication.sdk_clients import ClientKind, SdkClients
from sbpair.replication.window import DAY_SECONDS, KEYS, Memory, Window

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.sdk_messages import Messages
    from sbpair.failover.steps import Steps
    from sbpair.model.pair import Pair

OnEvent = Callable[[ReplicationEvent], None]

MEMORY = "memory"
RECEIVE_SECONDS = 60.0
"""How long a receive waits that does not say, as the SDK's."""

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
            raise UsageError(f"retries is {retries}", hint="0 is none, 3 the default")
        self.pair = pair
        self.entity_name = entity
        self.timeout = checked_timeout(timeout)
        self._tell = ReplicationReporter(on_event)
        self._ends = SdkClients(pair, self._kind, self.timeout * self._share)
        self._ways = {side: SideSend(side, entity, self._ends.sender, retries, time.monotonic) for side in SIDES}
        self._turn = self._kind.lock()
        self._closed = False

    def _time(self, timeout: float | None) -> float:
        if self._closed:
            raise ValueError("the sender has been closed: make another one")
        self._ends.open()
        return self.timeout if timeout is None else checked_timeout(timeout)

    def _closing(self) -> Steps[None]:
        self._closed = True
        yield from self._replication.close()
        yield from self._ends.close()


class ActiveSenderBase(_ReplicatingSenderBase):
    """Active replication: every message goes to an entity of the same name in both namespaces, as two copies of one id.

    A message without an id is given one before the first attempt. Both sides are tried at the same time, and a send is
    over when both have answered, or its `timeout` (seconds) is; it has succeeded where one side took it. What only one
    side holds is told by the event `OneSideOnly`. `retries` follow a first attempt that failed in a way that may pass;
    a side that failed the last time is tried once. Receive with a DedupReceiver. Raises BothFailed, with both reasons,
    where neither side took it; UsageError for arguments that make no sense, NameInvalid for a name that cannot be one.

    What can still go wrong:

    - Every message costs twice, and every send takes as long as the slower side; while one stalls, as `timeout`, and a
      blocking client may need 30 s to give up a connection that is not answered.
    - A copy that only one side holds is lost with that side, or is there once it is back: long after its message was
      dealt with, and to be told as a duplicate only by a receiver whose window reaches so far.
    - The copies of several messages have no common order: each side has its own, and where sends fail they differ.
    - A side that accepted a copy and did not answer may be sent it again: it has two of one id (event `Unanswered`).
      Where BothFailed is raised it may hold it all the same (`in_doubt`).
    """

    _replication: ActiveSend

    def __init__(
        self, pair: Pair, entity: str, *, timeout: float = 60.0, retries: int = 3, on_event: OnEvent | None = None
    ) -> None:
        super().__init__(pair, entity, timeout=timeout, retries=retries, on_event=on_event)
        self._replication = ActiveSend(self._ways, entity, time.monotonic, self._tell)

    def _sending(self, message: Messages, timeout: float | None) -> Steps[tuple[Side, ...]]:
        return self._replication.send(message, self._time(timeout))


class PassiveSenderBase(_ReplicatingSenderBase):
    """Passive replication: messages go to the active namespace, and to its backup once that may be gone.

    The primary is the active one at first. Where a send to the active side ends with an error that says that its data
    center may be gone, the message goes to the backup, and where that takes it the two have swapped roles (event
    `RolesSwapped`), for this and all later messages; nothing swaps them back but the next such error, or `swap_roles`.
    Where both fail the roles stay, and BothFailed is raised with both reasons.

    Such errors are, once `retries` have not helped: time-outs, broken connections, connections that cannot be made,
    what the SDK calls communication errors, and a service that stays busy. Others are raised as they are, and nothing
    is sent to the backup: a wrong key, a missing claim, a missing or disabled entity, a full one, a message that is too
    large or refused. `failover_on` may be a function of the error that says otherwise, or "article". `timeout` is in
    seconds, of which the active side has two thirds.

    What can still go wrong:

    - A message that the active side accepted, and that nobody has received when its data center is gone, is late by the
      length of the outage, or lost with it.
    - Messages that are sent to the backup meanwhile overtake it: there is no order across the swap.
    - Where the error came after the message had been accepted, both sides hold it: it arrives twice (event
      `Unanswered`), unless a DedupReceiver removes the second.
    - Receivers must look at both sides: nobody tells them of a swap.
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
        self._replication = PassiveSend(self._ways, entity, time.monotonic, self._tell, counting(failover_on))

    @property
    def active(self) -> Side:
        """The side that messages go to: "primary" or "secondary"."""
        return self._replication.roles.active

    def swap_roles(self) -> None:
        """Have the sides change roles: back to the primary after an outage, or away from it before one."""
        self._replication.swap()

    def _sending(self, message: Messages, timeout: float | None) -> Steps[Side | None]:
        return self._replication.send(message, self._time(timeout))


class DedupReceiverBase:
    """Receives from an entity of both namespaces, and gives the application the first copy of each message that comes.

    Messages are under lock (peek-lock), and are settled over this receiver, on the side that they came from. While the
    application has one, further copies are held; once it is completed they are completed too (event
    `DuplicateCompleted`). Where it is abandoned or dead-lettered, or its lock is lost, the next copy is given instead:
    no copy is dropped before another one was completed. Where a completion was not answered, or the process ended in
    the middle of one, a further copy is given and named by the event `GivenAgain`.

    `entity` is a queue, or a topic with its `subscription_name`. `key` is what copies are known by: "id", "subject",
    "property:NAME" (an application property), or a function of the message; what has no key is given as it is (event
    `NoKey`). `store` is where completed keys are remembered: "memory", or the path of a file that outlives the process,
    for one receiver at a time. Of keys the last `window_count` are remembered, for `window_seconds`; None is no such
    bound, and one there must be. A side that fails rests while the other goes on (`SideLost`, `SideBack`).

    Raises UsageError for arguments that make no sense, NameInvalid for names that cannot be one, LeaseHeld for a file
    that another receiver has, StateRefused for one of another entity or key. The mode RECEIVE_AND_DELETE is refused:
    its copies are gone before anything is completed. Entities that require sessions are refused by the service: a
    session's lock and state are in one namespace alone.

    What can still go wrong:

    - A copy that comes once its key is out of the window is given a second time, as is one that another process
      receives: all copies have to come through one receiver.
    - The order is that in which copies come first, which need not be that of either side.
    - Messages of one key that are no copies of each other are lost but for the first: choose one that tells them apart.
    - While the first copy is in hand for longer than a lock lasts, further copies come again and again, which counts as
      deliveries: `renew_message_lock` renews them all.
    - While one side stalls, a blocking receiver may wait 30 s for its connection, and then for the other side alone for
      two minutes: the SDK gives a connection up no sooner.
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
                "a DedupReceiver cannot receive and delete: a copy may go only once another one is completed",
                hint="leave receive_mode out, and complete what was dealt with",
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
        self._ends = SdkClients(pair, self._kind, OPEN_SECONDS)
        kept = Memory(window) if store == MEMORY else KeyStore(Path(store), window, about)
        wells = {side: SideReceiver(side, self._receiver) for side in SIDES}
        self._intake = DedupReceive(wells, path, rule, kept, ReplicationReporter(on_event), time.time, time.monotonic)
        self._turn = self._kind.lock()
        self._closed = False

    def side_of(self, message: ServiceBusReceivedMessage) -> Side:
        """Where a message came from, "primary" or "secondary", until it is settled. Raises MessageLockLostError."""
        return self._intake.taken(message).side

    def _receiver(self, side: Side) -> Any:
        return self._ends.receiver(side, self.entity_name, SETTLE_SECONDS / 2)

    def _look(self, limit: int, deadline: float) -> Steps[list[ServiceBusReceivedMessage] | None]:
        return self._intake.look(limit, deadline)

    def _deadline(self, limit: int, seconds: float | None) -> float:
        """When a receive is over, on the monotonic clock. Raises ValueError, as the SDK does."""
        if limit < 1:
            raise ValueError("max_message_count must be at least 1")
        self._check_open()
        self._ends.open()
        wait = self._max_wait if seconds is None else _checked_wait(seconds)
        return time.monotonic() + (RECEIVE_SECONDS if wait is None else wait)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the receiver has been closed: make another one")

    def _completing(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        self._check_open()
        return self._intake.complete(message)

    def _abandoning(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        self._check_open()
        return self._intake.give_up(message, abandoning(message))

    def _dead_lettering(
        self, message: ServiceBusReceivedMessage, reason: str | None, error_description: str | None
    ) -> Steps[None]:
        self._check_open()

        def use(receiver: Any, _seconds: float) -> Any:
            return receiver.dead_letter_message(message, reason=reason, error_description=error_description)

        return self._intake.give_up(message, use)

    def _renewing(self, message: ServiceBusReceivedMessage) -> Steps[Any]:
        self._check_open()
        return self._intake.renew(message)

    def _closing(self) -> Steps[None]:
        if not self._closed:
            self._closed = True
            yield from self._intake.close()
            yield from self._ends.close()


def checked_source(entity: str, subscription: str | None) -> str:
    """The path that is received from. Raises NameInvalid."""
    check_path(entity, shorten=_SHORTER)
    if subscription is None:
        return entity
    check_path(subscription, shorten="give the subscription a shorter name")
    return f"{entity}/Subscriptions/{subscription}"


def _checked_wait(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError("max_wait_time must be greater than 0")
    return seconds
