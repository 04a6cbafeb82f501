"""The senders of active and passive replication, for programs that block and for asyncio.

Invariant: at least one side has accepted every message of a send that returns. All copies of a message share an id, set
before the first attempt. An attempt that was never answered is reported. Only `blocking` and `awaiting` differ.

The docstrings state the guarantees and the remaining risks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sbpair.backlog import check_path
from sbpair.errors import BothFailed
from sbpair.failover import failover_send, sdk_messages
from sbpair.failover.events import EventReporter
from sbpair.failover.failover_send import checked_retries, checked_timeout, positive
from sbpair.failover.failures import (
    FailoverOn,
    NotSent,
    both_failed,
    describe_error,
    failover_rule,
    is_transient,
    joins_sdk_errors,
)
from sbpair.failover.sdk_messages import Message, Messages
from sbpair.failover.side_connections import (
    AsyncClosable,
    BothSides,
    SideConnections,
    SyncClosable,
    send_action,
)
from sbpair.model.pair import SIDES, Pair, Side
from sbpair.replication.events import OneSideOnly, OnEvent, ReplicationReporter, RolesSwapped, Unanswered
from sbpair.sync_async import Gather, Pause, Steps, awaiting, blocking

ACTIVE_SHARE = 2 / 3
"""Share of a passive send's time for the active side. Of 60 s it leaves 20, more than a partition needs."""


@dataclass(frozen=True, slots=True)
class SideOutcome:
    """The result of a send to one side. `unanswered` is the last error after which the message may be there."""

    error: Exception | None
    unanswered: Exception | None


@dataclass(eq=False, repr=False)
class SideSend:
    """Sends to one namespace. `make` returns a new SDK sender."""

    side: Side
    entity: str
    make: Callable[[Side, str], Any]
    retries: int

    def __post_init__(self) -> None:
        self._connections = SideConnections(self.make)
        self._was_available = True

    def send(self, messages: list[Message], deadline: float) -> Steps[SideOutcome]:
        """Send, and retry transient errors. A side that failed last time is tried once. Raises no Exception."""
        attempts, unanswered = 0, None
        retries = self.retries if self._was_available else 0
        action = send_action(messages if len(messages) > 1 else messages[0])
        while True:
            try:
                yield from self._connections.call(self.side, self.entity, action, positive(deadline - time.monotonic()))
            except Exception as error:  # noqa: BLE001  the other side may accept the message
                if self._connections.unanswered and not isinstance(error, NotSent):
                    unanswered = error
                pause = failover_send.SEND_BACKOFF.seconds(attempts + 1)
                if attempts >= retries or not is_transient(error) or time.monotonic() + pause >= deadline:
                    self._was_available = False
                    return SideOutcome(error, unanswered)
            else:
                self._was_available = True
                return SideOutcome(None, unanswered)
            attempts += 1
            yield Pause(pause)

    def close(self) -> Steps[None]:
        return self._connections.close()


class _ReplicatingSenderBase(BothSides):
    _noun = "sender"
    _share = 1.0

    def __init__(
        self, pair: Pair, entity: str, *, timeout: float = 60.0, retries: int = 3, on_event: OnEvent | None = None
    ) -> None:
        check_path(entity, shorten="give the queue or topic a shorter name")
        self.timeout = checked_timeout(timeout)
        super().__init__(pair, entity, self.timeout * self._share)
        self._report: ReplicationReporter = EventReporter("replication", on_event)
        self._sends = {side: SideSend(side, entity, self._sender, checked_retries(retries)) for side in SIDES}

    def _sender(self, side: Side, entity: str) -> Any:
        """Return an SDK sender. Queues and topics are sent to alike."""
        return self._clients[side].get_queue_sender(entity)

    def _seconds(self, timeout: float | None) -> float:
        self._open()
        return self.timeout if timeout is None else checked_timeout(timeout)

    def _close_sides(self) -> Steps[None]:
        yield Gather(tuple(each.close() for each in self._sends.values()))

    def _report_unanswered(self, outcomes: dict[Side, SideOutcome], prepared: list[Message]) -> None:
        for side, outcome in outcomes.items():
            if outcome.unanswered is not None:
                reason = describe_error(outcome.unanswered)
                self._report(Unanswered(self.entity_name, side, sdk_messages.message_ids(prepared), reason))

    def _both_failed(self, outcomes: dict[Side, SideOutcome]) -> BothFailed:
        doubtful = tuple(side for side, each in outcomes.items() if each.unanswered is not None)
        hint = f"the {' and the '.join(doubtful)} did not answer, and may have accepted it" if doubtful else ""
        return both_failed(
            f"neither namespace has accepted the message for {self.entity_name!r}",
            _errors(outcomes),
            hint or "send it again once one of them is available",
            doubtful,
        )


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

    def _send_messages(self, message: Messages, *, timeout: float | None = None) -> Steps[tuple[Side, ...]]:
        """Send one message, several, or a batch to both sides. Returns the sides that accepted it, at least one.

        Raises BothFailed, and UsageError for a message that cannot be sent.
        """
        deadline = time.monotonic() + self._seconds(timeout)
        prepared, _ = sdk_messages.prepare(message)
        if not prepared:
            return ()
        found = yield Gather(tuple(self._sends[side].send(prepared, deadline) for side in SIDES))
        outcomes: dict[Side, SideOutcome] = dict(zip(SIDES, found, strict=True))
        self._report_unanswered(outcomes, prepared)
        errors = _errors(outcomes)
        accepted = tuple(side for side in SIDES if side not in errors)
        if not accepted:
            raise self._both_failed(outcomes)
        for side in set(SIDES).difference(accepted):
            ids = sdk_messages.message_ids(prepared)
            self._report(OneSideOnly(self.entity_name, ids, accepted[0], side, describe_error(errors[side])))
        return accepted


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
        self._counts = failover_rule(failover_on)
        self._active: Side = "primary"

    @property
    def active(self) -> Side:
        """The side that messages go to: "primary" or "secondary"."""
        return self._active

    def swap_roles(self) -> None:
        """Swap the roles: back to the primary after an outage, or away from it before one."""
        self._become(_other(self._active), "a swap was commanded")

    @joins_sdk_errors("sending to")
    def _send_messages(self, message: Messages, *, timeout: float | None = None) -> Steps[Side | None]:
        """Send one message, several, or a batch to one side. Returns the side that accepted it, or None for no message.

        Raises BothFailed, errors that do not count as an outage of the active side, of both `sbpair.errors` and the
        SDK's class, and UsageError for a message that cannot be sent.
        """
        seconds, active = self._seconds(timeout), self._active
        prepared, _ = sdk_messages.prepare(message)
        if not prepared:
            return None
        outcomes: dict[Side, SideOutcome] = {}
        for side, share in (active, ACTIVE_SHARE), (_other(active), 1 - ACTIVE_SHARE):
            # Each side has its own time: a blocking client may exceed its share to give up a connection.
            outcomes[side] = yield from self._sends[side].send(prepared, time.monotonic() + seconds * share)
            error = outcomes[side].error
            if error is None or not self._counts(error):
                break
        self._report_unanswered(outcomes, prepared)
        if error is not None:
            raise self._both_failed(outcomes) if side != active else error
        if side != active:
            self._become(side, describe_error(_errors(outcomes)[active]))
        return side

    def _become(self, active: Side, reason: str) -> None:
        swapped = active != self._active
        self._active = active
        if swapped:
            self._report(RolesSwapped(self.entity_name, active, _other(active), reason))


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


def _other(side: Side) -> Side:
    return "secondary" if side == "primary" else "primary"


def _errors(outcomes: dict[Side, SideOutcome]) -> dict[str, Exception]:
    return {side: each.error for side, each in outcomes.items() if each.error is not None}
