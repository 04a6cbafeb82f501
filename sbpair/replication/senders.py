"""The senders of active and passive replication, for programs that block and for asyncio.

Invariant: only `blocking` and `awaiting` differ. The docstrings state the guarantees and the remaining risks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sbpair.backlog import check_path
from sbpair.errors import UsageError
from sbpair.failover.base import checked_timeout
from sbpair.failover.failures import FailoverOn, failover_rule
from sbpair.failover.side_connections import AsyncClosable, ClientKind, SyncClosable
from sbpair.failover.steps import awaiting, blocking
from sbpair.replication.events import OnEvent, reporter
from sbpair.replication.replicated_send import ACTIVE_SHARE, ActiveSend, PassiveSend, ReplicatedSend, SideSend
from sbpair.replication.roles import SIDES, Side
from sbpair.replication.sdk_clients import SHORTER, SdkClients

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Messages
    from sbpair.failover.steps import Steps
    from sbpair.model.pair import Pair


class _ReplicatingSenderBase:
    _kind: ClientKind
    _replication: ReplicatedSend
    _share = 1.0

    def __init__(
        self, pair: Pair, entity: str, *, timeout: float = 60.0, retries: int = 3, on_event: OnEvent | None = None
    ) -> None:
        check_path(entity, shorten=SHORTER)
        if retries < 0:
            raise UsageError(f"expected retries of 0 or more, got {retries}", hint="3 is the default")
        self.pair = pair
        self.entity_name = entity
        self.timeout = checked_timeout(timeout)
        self._report = reporter(on_event)
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

    def _send_messages(self, message: Messages, *, timeout: float | None = None) -> Steps[tuple[Side, ...]]:
        """Send one message, several, or a batch to both sides. Returns the sides that accepted it, at least one.

        Raises BothFailed, and UsageError for a message that already has `x-ms-path` or another alias.
        """
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

    def _send_messages(self, message: Messages, *, timeout: float | None = None) -> Steps[Side | None]:
        """Send one message, several, or a batch to one side. Returns the side that accepted it, or None for no message.

        Raises BothFailed, the SDK's errors that do not count as an outage of the active side, and UsageError for a
        message that already has `x-ms-path` or another alias.
        """
        return self._replication.send(message, self._seconds(timeout))


class ActiveSender(ActiveSenderBase, SyncClosable):
    __doc__ = ActiveSenderBase.__doc__
    send_messages = blocking(ActiveSenderBase._send_messages)


class AsyncActiveSender(ActiveSenderBase, AsyncClosable):
    __doc__ = ActiveSenderBase.__doc__
    send_messages = awaiting(ActiveSenderBase._send_messages)


class PassiveSender(PassiveSenderBase, SyncClosable):
    __doc__ = PassiveSenderBase.__doc__
    send_messages = blocking(PassiveSenderBase._send_messages)


class AsyncPassiveSender(PassiveSenderBase, AsyncClosable):
    __doc__ = PassiveSenderBase.__doc__
    send_messages = awaiting(PassiveSenderBase._send_messages)
