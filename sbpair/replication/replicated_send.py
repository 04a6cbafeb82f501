"""How a message gets to both namespaces, or to one of two: active and passive replication, as steps.

The law: one side at least has accepted every message that `send` returns for; all copies of a message have one id, from
before the first attempt; and an attempt that was never answered is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import OperationTimeoutError

from sbpair.azure.data_errors import is_answer
from sbpair.errors import BothFailed
from sbpair.failover import sdk_messages
from sbpair.failover.failover_send import MAX_WAIT_SECONDS, RETRY_SECONDS, parcel
from sbpair.failover.failures import is_passing
from sbpair.failover.side_connections import SideConnections
from sbpair.failover.steps import Gather, Pause, Steps
from sbpair.replication.events import OneSideOnly, RolesSwapped, Unanswered, line
from sbpair.replication.roles import SIDES, RoleEvent, Roles, RoleState, Side, after

if TYPE_CHECKING:
    from sbpair.failover.sdk_messages import Content, Message, Messages
    from sbpair.replication.events import ReplicationReporter

ACTIVE_SHARE = 2 / 3
"""How much of its time a passive send gives to the active side: of 60 s, 20 are left, more than a partition needs."""


@dataclass(frozen=True, slots=True)
class SideOutcome:
    """What came of a send to one side. `unanswered` is the last error after which the message may be there."""

    error: Exception | None
    unanswered: Exception | None


class SideSend:
    """The way to one namespace. `make` gives a new SDK sender for the entity, `now` is a monotonic clock in seconds."""

    def __init__(
        self, side: Side, entity: str, make: Callable[[Side, str], Any], retries: int, now: Callable[[], float]
    ) -> None:
        self.side = side
        self._lane = SideConnections(make)
        self._entity = entity
        self._retries = retries
        self._now = now
        self._open = False
        self._was_well = True

    def send(self, content: Content, deadline: float) -> Steps[SideOutcome]:
        """Try, and try again what may pass. A side that failed the last time is tried once. Raises no Exception."""
        attempts, unanswered = 0, None
        retries = self._retries if self._was_well else 0
        while True:
            try:
                yield from self._attempt(content, deadline)
            except Exception as error:  # noqa: BLE001  the other side may take it all the same
                if self._open and not is_answer(error):
                    unanswered = error
                self._open = self._open and is_answer(error)
                pause = min(RETRY_SECONDS * 2.0**attempts, MAX_WAIT_SECONDS)
                if attempts >= retries or not is_passing(error) or self._now() + pause >= deadline:
                    self._was_well = False
                    return SideOutcome(error, unanswered)
            else:
                self._was_well = True
                return SideOutcome(None, unanswered)
            attempts += 1
            yield Pause(pause)

    def close(self) -> Steps[None]:
        self._open = False
        yield from self._lane.close()

    def _attempt(self, content: Content, deadline: float) -> Steps[None]:
        """Open first: what fails before there is a link has surely not been sent."""
        if not self._open:
            yield from self._lane.on(self.side, self._entity, _opening, self._left(deadline))
            self._open = True
        yield from self._lane.on(self.side, self._entity, _sending(content), self._left(deadline))

    def _left(self, deadline: float) -> float:
        left = deadline - self._now()
        if left <= 0:
            raise OperationTimeoutError(message="the time of the send was over")
        return left


class ReplicatedSend:
    """What active and passive replication have in common: two ways to one entity, and what is told of them."""

    def __init__(
        self, ways: dict[Side, SideSend], entity: str, now: Callable[[], float], tell: ReplicationReporter
    ) -> None:
        self._ways = ways
        self._entity = entity
        self._now = now
        self._tell = tell

    def close(self) -> Steps[None]:
        yield Gather(tuple(way.close() for way in self._ways.values()))

    def _tell_doubts(self, outcomes: dict[Side, SideOutcome], inside: list[Message]) -> None:
        for side, outcome in outcomes.items():
            if outcome.unanswered is not None:
                self._tell(Unanswered(self._entity, side, sdk_messages.ids_of(inside), line(outcome.unanswered)))


class ActiveSend(ReplicatedSend):
    """Each message to both sides, at the same time."""

    def send(self, messages: Messages, seconds: float) -> Steps[tuple[Side, ...]]:
        """The sides that took all of it. Raises BothFailed, and UsageError for what has an alias already."""
        inside, content = _content(messages)
        if not inside:
            return ()
        deadline = self._now() + seconds
        found = yield Gather(tuple(self._ways[side].send(content, deadline) for side in SIDES))
        outcomes: dict[Side, SideOutcome] = dict(zip(SIDES, found, strict=True))
        self._tell_doubts(outcomes, inside)
        errors = _errors(outcomes)
        if len(errors) == len(SIDES):
            raise _both_failed(self._entity, outcomes)
        took = tuple(side for side in SIDES if side not in errors)
        for side in set(SIDES).difference(took):
            self._tell(OneSideOnly(self._entity, sdk_messages.ids_of(inside), took[0], side, line(errors[side])))
        return took


class PassiveSend(ReplicatedSend):
    """Each message to the active side, and to its backup where that may be gone."""

    def __init__(
        self,
        ways: dict[Side, SideSend],
        entity: str,
        now: Callable[[], float],
        tell: ReplicationReporter,
        gone: Callable[[Exception], bool],
    ) -> None:
        super().__init__(ways, entity, now, tell)
        self._gone = gone
        self.roles = Roles()

    def swap(self) -> None:
        """Have the sides change roles."""
        self._become(after(self.roles, RoleEvent.SWAP), RoleEvent.SWAP.value)

    def send(self, messages: Messages, seconds: float) -> Steps[Side | None]:
        """The side that took all of it; None for no message at all.

        Raises BothFailed, the SDK's error where that does not say that the active side may be gone, and UsageError for
        what has an alias already.
        """
        inside, content = _content(messages)
        if not inside:
            return None
        roles, outcomes = self.roles, dict[Side, SideOutcome]()
        for share in (ACTIVE_SHARE, 1 - ACTIVE_SHARE):
            side = roles.target
            # Each has its own time: a blocking client may need longer than it has to give a connection up.
            outcomes[side] = yield from self._ways[side].send(content, self._now() + seconds * share)
            error = outcomes[side].error
            roles = after(roles, self._event(error))
            if roles.state is RoleState.SETTLED:
                break
        self._tell_doubts(outcomes, inside)
        if error is None:
            if len(outcomes) == len(SIDES):
                self._become(roles, line(next(iter(_errors(outcomes).values()))))
            return side
        raise _both_failed(self._entity, outcomes) if len(outcomes) == len(SIDES) else error

    def _event(self, error: Exception | None) -> RoleEvent:
        if error is None:
            return RoleEvent.TOOK
        return RoleEvent.GONE if self._gone(error) else RoleEvent.REFUSED

    def _become(self, roles: Roles, reason: str) -> None:
        swapped = roles.active != self.roles.active
        self.roles = roles
        if swapped:
            self._tell(RolesSwapped(self._entity, roles.active, roles.backup, reason))


def _content(messages: Messages) -> tuple[list[Message], Content]:
    """The messages, each with an id, and what is sent: both copies are made of the same."""
    inside, _ = parcel(messages)
    return inside, inside[0] if len(inside) == 1 else inside


def _errors(outcomes: dict[Side, SideOutcome]) -> dict[str, Exception]:
    return {side: each.error for side, each in outcomes.items() if each.error is not None}


def _both_failed(entity: str, outcomes: dict[Side, SideOutcome]) -> BothFailed:
    errors = _errors(outcomes)
    doubtful = tuple(side for side, each in outcomes.items() if each.unanswered is not None)
    told = "; ".join(f"the {side}: {line(error)}" for side, error in errors.items())
    hint = f"no answer came from the {' and the '.join(doubtful)}, which may hold it all the same" if doubtful else ""
    failed = BothFailed(
        f"neither namespace has taken the message for {entity!r}: {told}",
        reasons=errors,
        in_doubt=doubtful,
        hint=hint or "send it again once one of them is back",
    )
    failed.retriable = any(is_passing(error) for error in errors.values())
    failed.__cause__ = ExceptionGroup("what the namespaces said", list(errors.values()))
    return failed


def _sending(content: Content) -> Callable[[Any, float], Any]:
    return lambda sender, seconds: sender.send_messages(content, timeout=seconds)


def _opening(sender: Any, _seconds: float) -> Any:
    return sender.create_message_batch()
