"""Active and passive replication: sends to both namespaces, or to one of two, as steps.

Invariant: at least one side has accepted every message that `send` returns for. All copies of a message share an id,
set before the first attempt. An attempt that was never answered is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import OperationTimeoutError

from sbpair.azure.data_errors import is_answer
from sbpair.errors import BothFailed
from sbpair.failover import failover_send, sdk_messages
from sbpair.failover.failures import describe_error, is_transient
from sbpair.failover.side_connections import SideConnections, open_action, send_action
from sbpair.failover.steps import Gather, Pause, Steps
from sbpair.replication.events import OneSideOnly, RolesSwapped, Unanswered
from sbpair.replication.roles import SIDES, RoleEvent, Roles, RoleState, Side, next_roles

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Content, Message, Messages
    from sbpair.replication.events import ReplicationReporter

ACTIVE_SHARE = 2 / 3
"""Share of a passive send's time for the active side. Of 60 s it leaves 20, more than a partition needs."""


@dataclass(frozen=True, slots=True)
class SideOutcome:
    """The result of a send to one side. `unanswered` is the last error after which the message may be there."""

    error: Exception | None
    unanswered: Exception | None


@dataclass(eq=False, repr=False)
class SideSend:
    """Sends to one namespace. `make` returns a new SDK sender; `now` is a monotonic clock in seconds."""

    side: Side
    entity: str
    make: Callable[[Side, str], Any]
    retries: int
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self._connections = SideConnections(self.make)
        self._open = False
        self._was_available = True

    def send(self, content: Content, deadline: float) -> Steps[SideOutcome]:
        """Send, and retry transient errors. A side that failed last time is tried once. Raises no Exception."""
        attempts, unanswered = 0, None
        retries = self.retries if self._was_available else 0
        while True:
            try:
                yield from self._attempt(content, deadline)
            except Exception as error:  # noqa: BLE001  the other side may accept the message
                if self._open and not is_answer(error):
                    unanswered = error
                self._open = self._open and is_answer(error)
                pause = failover_send.BACKOFF.seconds(attempts + 1)
                if attempts >= retries or not is_transient(error) or self.now() + pause >= deadline:
                    self._was_available = False
                    return SideOutcome(error, unanswered)
            else:
                self._was_available = True
                return SideOutcome(None, unanswered)
            attempts += 1
            yield Pause(pause)

    def close(self) -> Steps[None]:
        self._open = False
        yield from self._connections.close()

    def _attempt(self, content: Content, deadline: float) -> Steps[None]:
        """Open the link first: a failure before that has surely not sent anything."""
        if not self._open:
            yield from self._connections.call(self.side, self.entity, open_action, self._left(deadline))
            self._open = True
        yield from self._connections.call(self.side, self.entity, send_action(content), self._left(deadline))

    def _left(self, deadline: float) -> float:
        left = deadline - self.now()
        if left <= 0:
            raise OperationTimeoutError(message="the time of the send was over")
        return left


@dataclass(eq=False, repr=False)
class ReplicatedSend:
    """Shared part of active and passive replication: two sides of one entity, and the events of their sends."""

    sends: dict[Side, SideSend]
    entity: str
    now: Callable[[], float]
    report: ReplicationReporter

    def close(self) -> Steps[None]:
        yield Gather(tuple(each.close() for each in self.sends.values()))

    def _report_unanswered(self, outcomes: dict[Side, SideOutcome], prepared: list[Message]) -> None:
        for side, outcome in outcomes.items():
            if outcome.unanswered is not None:
                self.report(
                    Unanswered(
                        self.entity, side, sdk_messages.message_ids(prepared), describe_error(outcome.unanswered)
                    )
                )


class ActiveSend(ReplicatedSend):
    """Sends each message to both sides concurrently."""

    def send(self, messages: Messages, seconds: float) -> Steps[tuple[Side, ...]]:
        """Return the sides that accepted all messages. Raises BothFailed, and UsageError for an alias."""
        prepared, content = _content(messages)
        if not prepared:
            return ()
        deadline = self.now() + seconds
        found = yield Gather(tuple(self.sends[side].send(content, deadline) for side in SIDES))
        outcomes: dict[Side, SideOutcome] = dict(zip(SIDES, found, strict=True))
        self._report_unanswered(outcomes, prepared)
        errors = _errors(outcomes)
        if len(errors) == len(SIDES):
            raise _both_failed(self.entity, outcomes)
        accepted = tuple(side for side in SIDES if side not in errors)
        for side in set(SIDES).difference(accepted):
            self.report(
                OneSideOnly(
                    self.entity, sdk_messages.message_ids(prepared), accepted[0], side, describe_error(errors[side])
                )
            )
        return accepted


@dataclass(eq=False, repr=False)
class PassiveSend(ReplicatedSend):
    """Sends each message to the active side, or to its backup if the active side may be gone."""

    counts: Callable[[Exception], bool]
    roles: Roles = field(default_factory=Roles)

    def swap(self) -> None:
        """Swap the roles of the sides."""
        self._become(next_roles(self.roles, RoleEvent.SWAP), RoleEvent.SWAP.value)

    def send(self, messages: Messages, seconds: float) -> Steps[Side | None]:
        """Return the side that accepted all messages, or None for no message.

        Raises BothFailed, an SDK error that does not count as an outage, and UsageError for a message with an alias.
        """
        prepared, content = _content(messages)
        if not prepared:
            return None
        roles, outcomes = self.roles, dict[Side, SideOutcome]()
        for share in (ACTIVE_SHARE, 1 - ACTIVE_SHARE):
            side = roles.target
            # Each side has its own time: a blocking client may exceed its share to give up a connection.
            outcomes[side] = yield from self.sends[side].send(content, self.now() + seconds * share)
            error = outcomes[side].error
            roles = next_roles(roles, self._event(error))
            if roles.state is RoleState.SETTLED:
                break
        self._report_unanswered(outcomes, prepared)
        if error is None:
            if len(outcomes) == len(SIDES):
                self._become(roles, describe_error(next(iter(_errors(outcomes).values()))))
            return side
        raise _both_failed(self.entity, outcomes) if len(outcomes) == len(SIDES) else error

    def _event(self, error: Exception | None) -> RoleEvent:
        if error is None:
            return RoleEvent.ACCEPTED
        return RoleEvent.GONE if self.counts(error) else RoleEvent.REFUSED

    def _become(self, roles: Roles, reason: str) -> None:
        swapped = roles.active != self.roles.active
        self.roles = roles
        if swapped:
            self.report(RolesSwapped(self.entity, roles.active, roles.backup, reason))


def _content(messages: Messages) -> tuple[list[Message], Content]:
    """Return the messages, each with an id, and the content for both sides."""
    prepared, _ = sdk_messages.prepare(messages)
    return prepared, prepared[0] if len(prepared) == 1 else prepared


def _errors(outcomes: dict[Side, SideOutcome]) -> dict[str, Exception]:
    return {side: each.error for side, each in outcomes.items() if each.error is not None}


def _both_failed(entity: str, outcomes: dict[Side, SideOutcome]) -> BothFailed:
    errors = _errors(outcomes)
    doubtful = tuple(side for side, each in outcomes.items() if each.unanswered is not None)
    reasons = "; ".join(f"the {side}: {describe_error(error)}" for side, error in errors.items())
    hint = f"the {' and the '.join(doubtful)} did not answer, and may have accepted it" if doubtful else ""
    failed = BothFailed(
        f"neither namespace has accepted the message for {entity!r}: {reasons}",
        reasons=errors,
        in_doubt=doubtful,
        hint=hint or "send it again once one of them is available",
    )
    failed.retriable = any(is_transient(error) for error in errors.values())
    failed.__cause__ = ExceptionGroup("errors of both namespaces", list(errors.values()))
    return failed
