"""How copies come in from both namespaces, and how each is settled where it came from: as steps.

The law: a copy is in the application's hands, held, or settled, and is always settled by the SDK's receiver that it
came from. A side that fails rests for a while, and the other goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure.servicebus.exceptions import MessageLockLostError

from sbpair.azure.data_errors import UNREADABLE_HINT, is_answer, is_unused
from sbpair.errors import BothFailed, UnreadableMessage
from sbpair.failover.failures import is_passing
from sbpair.failover.side_connections import Use, closed
from sbpair.failover.steps import Call, Gather, Pause, Steps
from sbpair.replication.copies import Copies, Verdict
from sbpair.replication.events import DuplicateCompleted, NoKey, Redelivered, SideBack, SideLost, line

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.replication.events import ReplicationReporter
    from sbpair.replication.key import KeyRule
    from sbpair.replication.roles import Side
    from sbpair.replication.window import Store

TURN_SECONDS = 0.5
"""How long one side is waited for before it is the other's turn."""

OPEN_SECONDS = 10.0
SETTLE_SECONDS = 30.0

REST_SECONDS, MAX_REST_SECONDS = 1.0, 30.0
"""How long a side that failed is left alone, doubled each time, and at most."""

REST_TIMES = 4
"""Or so many times as long as it took to fail: the other side has most of the time, whatever this one does."""

MAX_HELD = 1_000
"""While so many copies are held for others to be settled, no more are taken."""

AT_ONCE_SECONDS = 0.05
"""A receive that ends sooner with nothing has not waited."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenMessage:
    """A message under lock, with the receiver that it came from."""

    side: Side
    message: ServiceBusReceivedMessage
    receiver: Any
    key: str | None

    @property
    def number(self) -> int:
        return self.message.sequence_number or 0

    @property
    def until(self) -> float:
        locked = self.message.locked_until_utc
        return locked.timestamp() if locked else 0.0


class SideReceiver:
    """One side's receivers: the one that is received from, and spent ones, whose messages are still to be settled."""

    def __init__(self, side: Side, make: Callable[[Side], Any]) -> None:
        self.side = side
        self._make = make
        self._receiver: Any = None
        self._spent: list[Any] = []
        self.failures = 0
        self.rests_until = 0.0
        self.error: Exception | None = None

    def take(self, limit: int, seconds: float, now: Callable[[], float]) -> Steps[tuple[Any, list[Any]]]:
        """The receiver, and what it has received."""
        if self._receiver is None:
            self._receiver = self._make(self.side)
            yield Call(_opening, self._receiver, OPEN_SECONDS)
        receiver, started = self._receiver, now()
        found = yield Call(_receiving(limit, seconds), receiver, seconds + OPEN_SECONDS)
        if not found and now() < started + AT_ONCE_SECONDS < started + seconds:
            # It says nothing at all of some messages that it cannot read, and never receives again.
            raise UnreadableMessage(
                f"receiving from the {self.side}: azure-servicebus receives nothing any more", hint=UNREADABLE_HINT
            )
        return receiver, found

    def failed(self, error: BaseException, receiver: Any = None) -> None:
        """What went wrong without an answer is not received from again; what it gave is settled over it still."""
        if self._receiver is not None and receiver in (None, self._receiver) and not is_answer(error):
            self._spent.append(self._receiver)
            self._receiver = None

    def rest(self, error: Exception, now: float, took_seconds: float) -> bool:
        """Leave it alone for a while; whether it was well until now."""
        self.error = error
        usual = min(REST_SECONDS * 2.0**self.failures, MAX_REST_SECONDS)
        self.rests_until = now + max(usual, took_seconds * REST_TIMES)
        self.failures += 1
        return self.failures == 1

    def recovered(self) -> bool:
        """It has answered; whether it had failed before."""
        had_failed, self.failures, self.error = self.failures > 0, 0, None
        return had_failed

    def close(self, needed: frozenset[int] | None = None) -> Steps[None]:
        """Close spent receivers that no message needs: an open link may be given one. All, where `needed` is None."""
        if needed is None and self._receiver is not None:
            self._spent.append(self._receiver)
            self._receiver = None
        idle = [each for each in self._spent if needed is None or id(each) not in needed]
        self._spent = [each for each in self._spent if each not in idle]
        for receiver in idle:
            yield from closed(receiver)


class DedupReceive:
    """One application's receiving from both sides. `now` is in seconds since 1970, `clock` a monotonic one."""

    def __init__(
        self,
        wells: dict[Side, SideReceiver],
        entity: str,
        rule: KeyRule,
        store: Store,
        tell: ReplicationReporter,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._wells = wells
        self._entity = entity
        self._rule = rule
        self._store = store
        self._tell = tell
        self._now = now
        self._clock = clock
        self._copies: Copies[TakenMessage] = Copies(store)
        self._arrived: deque[TakenMessage] = deque()
        self._surplus: deque[TakenMessage] = deque()
        self._given: dict[int, TakenMessage] = {}
        self._turns = list(reversed(wells.values()))

    # Receiving ----------------------------------------------------------------------------------

    def look(self, limit: int, deadline: float) -> Steps[list[ServiceBusReceivedMessage] | None]:
        """One look at each side: the first copies that there are, [] once the time is over, and None before.

        Raises BothFailed where time is over and neither side can be received from, and the SDK's errors where they say
        that trying again will not help.
        """
        yield from self._complete_surplus()
        if given := self._dealt_out(limit):
            return given
        asked = False
        for well in self._whose_turn():
            asked = True
            yield from self._take(well, limit, deadline)
            if given := self._dealt_out(limit):
                return given
        yield from self._complete_surplus()
        left = deadline - self._clock()
        if left > 0:
            if not asked:
                yield Pause(min(TURN_SECONDS, left))
            return None
        self._refuse_to_be_deaf()
        return []

    def _whose_turn(self) -> Iterator[SideReceiver]:
        now, room = self._clock(), len(self._copies.waiting) < MAX_HELD
        self._turns.reverse()
        yield from [each for each in self._turns if room and each.rests_until <= now]

    def _take(self, well: SideReceiver, limit: int, deadline: float) -> Steps[None]:
        seconds = min(TURN_SECONDS, max(deadline - self._clock(), 2 * AT_ONCE_SECONDS))
        started = self._clock()
        yield from well.close(self._needed())
        try:
            receiver, found = yield from well.take(limit, seconds, self._clock)
        except BaseException as error:
            well.failed(error)
            if is_unused(error):
                return
            if not isinstance(error, Exception) or not is_passing(error):
                raise
            self._rest(well, error, self._clock() - started)
            return
        if well.recovered():
            self._tell(SideBack(self._entity, well.side))
        self._arrived.extend(self._received(well.side, each, receiver) for each in found)

    def _received(self, side: Side, message: ServiceBusReceivedMessage, receiver: Any) -> TakenMessage:
        reason = "it has no such property, or nothing in it"
        try:
            key = self._rule.of(message)
        except Exception as error:  # noqa: BLE001  a user's function; the message is under lock, and must go on
            key, reason = None, line(error)
        if key is None:
            self._tell(NoKey(self._entity, side, message.sequence_number or 0, f"{self._rule.name}: {reason}"))
        return TakenMessage(side, message, receiver, key)

    def _dealt_out(self, limit: int) -> list[ServiceBusReceivedMessage]:
        """First copies, the application's from now on. Nothing waits in here: nothing is lost on the way."""
        now = self._now()
        self._copies.expire(now)
        self._given = {key: each for key, each in self._given.items() if each.until > now}
        given: list[ServiceBusReceivedMessage] = []
        while len(given) < limit and (found := self._next(now)):
            taken, again = found
            match self._copies.arrived(taken, now):
                case Verdict.DUPLICATE:
                    self._surplus.append(taken)
                case Verdict.HOLD:
                    pass
                case verdict:
                    again = again or verdict is Verdict.GIVE_AGAIN
                    self._given[id(taken.message)] = taken
                    given.append(taken.message)
                    if again:
                        self._tell_again(taken, verdict)
        return given

    def _next(self, now: float) -> tuple[TakenMessage, bool] | None:
        if found := self._copies.next(now):
            return found
        while self._arrived:
            taken = self._arrived.popleft()
            if taken.until > now:
                return taken, False
        return None

    def _tell_again(self, taken: TakenMessage, verdict: Verdict) -> None:
        lost = "the lock of the copy that was given before ran out"
        reason = verdict.value if verdict is Verdict.GIVE_AGAIN else lost
        self._tell(Redelivered(self._entity, taken.side, taken.key or "", taken.number, reason))

    def _refuse_to_be_deaf(self) -> None:
        errors: dict[str, Exception] = {
            side: well.error for side, well in self._wells.items() if well.error is not None
        }
        if len(errors) == len(self._wells):
            told = "; ".join(f"the {side}: {line(error)}" for side, error in errors.items())
            raise BothFailed(
                f"nothing can be received from {self._entity!r} in either namespace: {told}",
                reasons=errors,
                hint="try again once one of them is back",
            ) from ExceptionGroup("what the namespaces said", list(errors.values()))

    # Settling -----------------------------------------------------------------------------------

    def complete(self, message: ServiceBusReceivedMessage) -> Steps[None]:
        taken = self.taken(message)
        self._copies.completing(taken, self._now())
        yield from self._settle(taken, _completing(message))
        self._surplus.extend(self._copies.completed(taken, self._now()))
        yield from self._complete_surplus()

    def give_up(self, message: ServiceBusReceivedMessage, use: Use) -> Steps[None]:
        """Settle it in any other way."""
        taken = self.taken(message)
        yield from self._settle(taken, use)
        self._copies.given_up(taken)

    def renew(self, message: ServiceBusReceivedMessage) -> Steps[Any]:
        """Renew its lock, and those of the copies that are held for it."""
        taken = self.taken(message)
        until = yield Call(_renewing(message), taken.receiver, SETTLE_SECONDS)
        for each in self._copies.held_with(taken):
            yield from self._try(each, _renewing(each.message))
        return until

    def close(self) -> Steps[None]:
        """Give back what was given to nobody, and close everything."""
        for taken in [*self._copies.waiting, *self._arrived, *self._surplus]:
            yield from self._try(taken, abandoning(taken.message))
        self._given.clear()
        yield Gather(tuple(well.close() for well in self._wells.values()))
        self._store.close()

    def taken(self, message: ServiceBusReceivedMessage) -> TakenMessage:
        """What is known of a message that is the application's. Raises MessageLockLostError where it is not."""
        found = self._given.get(id(message))
        if found is None:
            raise MessageLockLostError(
                message="the message is settled, or its lock has run out, or it is not of this receiver"
            )
        return found

    def _settle(self, taken: TakenMessage, use: Use) -> Steps[None]:
        try:
            yield Call(use, taken.receiver, SETTLE_SECONDS)
        except MessageLockLostError:
            self._given.pop(id(taken.message), None)
            self._copies.given_up(taken, again=True)
            raise
        except BaseException as error:
            self._wells[taken.side].failed(error, taken.receiver)
            raise
        self._given.pop(id(taken.message), None)

    def _complete_surplus(self) -> Steps[None]:
        while self._surplus:
            taken = self._surplus.popleft()
            done = yield from self._try(taken, _completing(taken.message))
            if done:
                self._tell(DuplicateCompleted(self._entity, taken.side, taken.key or "", taken.number))

    def _try(self, taken: TakenMessage, use: Use) -> Steps[bool]:
        """Settle a copy that nobody was given. Where that fails, the service delivers it again, to be judged anew."""
        well = self._wells[taken.side]
        if well.rests_until > self._clock() or taken.until <= self._now():
            return False
        try:
            yield Call(use, taken.receiver, SETTLE_SECONDS)
        except Exception as error:  # noqa: BLE001  it concerns nobody
            well.failed(error, taken.receiver)
            if is_passing(error):
                self._rest(well, error, 0.0)
            return False
        return True

    def _rest(self, well: SideReceiver, error: Exception, took_seconds: float) -> None:
        if well.rest(error, self._clock(), took_seconds):
            self._tell(SideLost(self._entity, well.side, line(error)))

    def _needed(self) -> frozenset[int]:
        """The receivers of messages that are to be settled yet."""
        out = (*self._given.values(), *self._copies.waiting, *self._arrived, *self._surplus)
        return frozenset(id(each.receiver) for each in out)


def _opening(receiver: Any, _seconds: float) -> Any:
    """Both kinds of receivers connect when they are entered."""
    return (getattr(receiver, "__aenter__", None) or receiver.__enter__)()


def _receiving(limit: int, seconds: float) -> Use:
    return lambda receiver, _: receiver.receive_messages(max_message_count=limit, max_wait_time=seconds)


def _completing(message: ServiceBusReceivedMessage) -> Use:
    return lambda receiver, _: receiver.complete_message(message)


def abandoning(message: ServiceBusReceivedMessage) -> Use:
    """Give it back, which counts as a delivery."""
    return lambda receiver, _: receiver.abandon_message(message)


def _renewing(message: ServiceBusReceivedMessage) -> Use:
    return lambda receiver, _: receiver.renew_message_lock(message)
