"""The sends of one sender with failover, as steps: to the primary, the backlog or the outbox.

Invariant: a send returns only once a side, or the outbox, has every message. It gives up only when the time is over or
no target is left. Messages sent again after an unanswered attempt are reported.

A subclass knows the form of its messages: `sdk_send` those of the SDK, `raw_send` encoded ones.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from sbpair.errors import EntityMissing, SbpairError, Throttled, UsageError
from sbpair.failover.events import SendInDoubt, SizeUnknown
from sbpair.failover.failures import (
    NotSent,
    blames_message,
    describe_error,
    is_missing,
    is_token_end,
    is_transient,
    to_sdk_error,
    too_large,
)
from sbpair.failover.property_values import MAX_PROPERTIES_BYTES
from sbpair.failover.side_connections import Closable
from sbpair.model.retries import Backoff
from sbpair.model.tiers import SMALLEST_TIER_BYTES
from sbpair.operating_system.shortages import shortage_of
from sbpair.sync_async import Action, Pause, Steps, Work

if TYPE_CHECKING:
    from sbpair.failover.outbox import Outbox
    from sbpair.failover.shared_state import FailoverState, SendSide

MessageT = TypeVar("MessageT")
OnFailure: TypeAlias = Literal["raise", "wait", "backlog-now"]

SEND_BACKOFF = Backoff(first_seconds=0.8, max_seconds=5.0)
"""Pause before the first retry, doubled for each further one as the SDK does, and its maximum."""

PRIMARY_SHARE = 0.75
"""Share of its time that a send gives to the primary if the backlog may have to take over at once."""

MIN_ATTEMPT_SECONDS = 16.0
"""Minimum time for a backlog queue, if there is as much: switching to another partition takes more than 15 s."""

LIMIT_SECONDS, LIMIT_RETRY_SECONDS = 10.0, 60.0
"""How long the backlog may take to return its size limit, and the pause after it did not."""

NOW = 0.0

SHORT_SECONDS = 15.0


class ShortTimeout(UserWarning):
    """A timeout that leaves a partitioned entity no time to switch to another partition."""


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """`counts(error)` returns whether an error counts as unavailability; `retries` follow a first attempt."""

    counts: Callable[[Exception], bool]
    on_failure: OnFailure
    retries: int


@dataclass(slots=True)
class Delivered:
    """How many messages of one sender have been accepted, by place."""

    primary: Annotated[int, "Accepted by the primary, or by the namespace that SIDE or --namespace names"] = 0
    backlog: Annotated[int, "Accepted by the backlog"] = 0
    outbox: Annotated[int, "Stored in the outbox"] = 0
    secondary: int = 0  # accepted by its own entity, while the primary is declared lost

    @property
    def total(self) -> int:
        return self.primary + self.backlog + self.outbox + self.secondary


class SecondaryNumber(int):
    """The sequence number of a message that was scheduled in the secondary: the primary has others."""


class SideCalls(Protocol):
    """The calls of senders to each side. `unanswered` is whether the last one may have sent something."""

    unanswered: bool

    def call(
        self, side: Any, path: str, action: Action, seconds: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """Perform `action` and return its result. Raises the errors of `action`, of which `failed` has been one."""


class FailoverSend(Closable, ABC, Generic[MessageT]):
    """The sends to one entity with failover. `now` is a monotonic clock, in seconds.

    `backlog_queue` is the backlog queue last used: the sender stays with it while it works. `unanswered` is whether a
    message of the last send, which failed, may have arrived all the same. `share` is the part of the time of a send
    that an attempt on the primary has.
    """

    _connections: SideCalls

    def __init__(
        self, state: FailoverState, entity: str, policy: SendPolicy, now: Callable[[], float], outbox: Outbox | None
    ) -> None:
        super().__init__()
        self.entity_name = entity
        self.backlog_queue: str | None = None
        self.unanswered = False
        self._state, self._policy, self._now, self._outbox = state, policy, now, outbox
        self._retries = policy.retries
        self._delivered = Delivered()
        self._limit_asked: float | None = None
        self._backlog_numbers = count(-1, -1)
        self.share = PRIMARY_SHARE if policy.on_failure != "raise" or state.fail_at_once else 1.0

    @abstractmethod
    def _for_backlog(self, message: MessageT) -> MessageT:
        """Return the copy for a backlog queue. Raises UsageError for a message that cannot have one."""

    @abstractmethod
    def _backlog_batches(self, copies: list[MessageT]) -> Iterator[tuple[Action, list[MessageT]]]:
        """Yield copies in order, several where they fit one batch, with the action that sends them."""

    @abstractmethod
    def _encode(self, message: MessageT) -> bytes: ...

    @abstractmethod
    def _message_ids(self, messages: Iterable[MessageT]) -> tuple[str, ...]: ...

    @abstractmethod
    def _is_small(self, message: MessageT) -> bool:
        """Return whether a backlog queue of any tier accepts it with its aliases."""

    @abstractmethod
    def _sizes(self, message: MessageT, *, with_aliases: bool) -> tuple[int, int]:
        """Return the bytes of its properties, and of all of it, as given or with its aliases."""

    @abstractmethod
    def _ask_limit(self, queue: str, seconds: float) -> Steps[int]:
        """Return the maximum message size of a backlog queue, 0 if it states none."""

    def _check_encoding(self, messages: Iterable[MessageT], error: Exception) -> None:
        """Raise UsageError if a send failed since a message cannot be encoded."""

    @property
    def delivered(self) -> Delivered:
        """How many of its messages the primary, the backlog and the outbox have accepted."""
        return replace(self._delivered)

    def _count_sent(self, messages: int) -> None:
        """Record that the primary has accepted so many messages."""
        self._delivered.primary += messages
        if self._state.unhealthy:
            self._state.primary_accepted(self.entity_name, self._now())

    def _scheduled(self, messages: list[MessageT], action: Action, deadline: float) -> Steps[list[int]]:
        """Schedule messages. Returns their numbers; negative ones are of messages that are in no entity."""
        numbers = yield from self._deliver(messages, action, deadline)
        return [next(self._backlog_numbers) for _ in messages] if numbers is None else list(numbers)

    def _deliver(
        self, messages: list[MessageT], action: Action, deadline: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """Return the entity's answer, or None after the backlog or the outbox has accepted the messages."""
        state, entity, attempts = self._state, self.entity_name, 0
        if failed is None and self._outbox is not None and self._outbox.holds(entity):
            yield from self._to_outbox(self._outbox, messages)
            return None
        while (side := self._side(failed)) != "backlog":
            left = 0.0 if failed else positive(deadline - self._now()) * self.share
            try:
                answer = yield from self._attempt(side, entity, action, left, failed)
            except Exception as error:
                failed = None
                self._check_encoding(messages, error)
                pause = self._pause_after(error, attempts, deadline, side)
                if pause is None and side == "secondary" and self._outbox is not None and self._policy.counts(error):
                    copies = list(map(self._for_backlog, messages))
                    yield from self._put_in_outbox(self._outbox, copies, error)
                    self._report_doubt(messages, error)
                    return None
                if pause is None:
                    if side == "secondary":
                        error.add_note("The primary is declared lost: the secondary's own entity has not accepted it.")
                    raise
                self._report_doubt(messages, error)
                attempts += 1
                if pause == NOW and not state.lost:
                    break
                yield Pause(pause)
            else:
                if side == "primary":
                    self._count_sent(len(messages))
                    return answer
                self._delivered.secondary += len(messages)
                # Only a schedule has an answer.
                return answer and list(map(SecondaryNumber, answer))
        yield from self._to_backlog(list(map(self._for_backlog, messages)), deadline)
        return None

    def _side(self, failed: BaseException | None) -> SendSide:
        """Return where the next attempt goes; `failed` has been one on the primary."""
        if failed is not None or not self._state.unhealthy:
            return "primary"
        return self._state.side_for(self.entity_name, self._now())

    def _attempt(
        self, side: SendSide, path: str, action: Action, seconds: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        try:
            return (yield from self._connections.call(side, path, action, seconds, failed))
        finally:
            self.unanswered = self.unanswered or self._connections.unanswered

    def _pause_after(self, error: Exception, attempts: int, deadline: float, side: SendSide) -> float | None:
        """Return the seconds until the next attempt, NOW for the backlog or the secondary at once, or None to give up.

        The first retries replace the SDK's own, which do not report messages that they send again.
        """
        now, policy, entity = self._now(), self._policy, self.entity_name
        pause = SEND_BACKOFF.seconds(attempts + 1)
        if side == "primary" and self._state.lost and now < deadline:
            return NOW
        # The end of a token is no failure: the next attempt has a new one, if there is one.
        retries = max(self._retries, int(is_token_end(error)))
        if attempts < retries and is_transient(error) and pause < (deadline - now) * self.share:
            return pause
        if not policy.counts(error):
            return None
        if side == "primary":
            self._state.primary_failed(entity, error, now)
            if now < deadline and (policy.on_failure == "backlog-now" or self._side(None) != "primary"):
                return NOW
        return pause if policy.on_failure == "wait" and now + pause < deadline else None

    def _to_backlog(self, copies: list[MessageT], deadline: float) -> Steps[None]:
        """Send to the backlog, and put messages that it does not accept into the outbox, if there is one."""
        done = 0
        for action, messages in self._backlog_batches(copies):
            try:
                yield from self._to_backlog_queue(action, messages, deadline)
            except Exception as error:
                if done:
                    error.add_note(f"{done} of the {len(copies)} messages, the first ones, are in the backlog.")
                is_mistake = isinstance(error, UsageError) and not isinstance(error, EntityMissing)
                if self._outbox is None or is_mistake or blames_message(error):
                    raise
                yield from self._put_in_outbox(self._outbox, copies[done:], error)
                if not isinstance(error, NotSent):
                    self._report_doubt(messages, error)
                return
            done += len(messages)
            self._delivered.backlog += len(messages)

    def _to_backlog_queue(self, action: Action, messages: list[MessageT], deadline: float) -> Steps[None]:
        """Try one queue after the other, while there is another one and time."""
        state, entity, token_ended = self._state, self.entity_name, False
        while True:
            if self._outbox is not None and state.target_for(entity, self.backlog_queue, self._now()) is None:
                raise NotSent(message="the primary is failed over, and no backlog queue has answered for a while")
            queue, has_alternative = state.pick_queue(self.backlog_queue)
            self.backlog_queue = queue
            left = positive(deadline - self._now())
            seconds = max(left / 2, min(left, MIN_ATTEMPT_SECONDS)) if has_alternative else left
            try:
                yield from self._attempt("backlog", queue, action, seconds)
            except Exception as error:
                if blames_message(error) or shortage_of(error) is not None:
                    raise
                self._check_encoding(messages, error)
                if not token_ended and is_token_end(error) and self._now() < deadline:
                    token_ended = True  # the queue is not to blame, and the next attempt has a new one
                    self._report_doubt(messages, error)
                    continue
                state.queue_failed(queue, error, self._now())
                if not has_alternative or self._now() >= deadline:
                    error.add_note("The primary is failed over, and no backlog queue has accepted the message.")
                    if is_missing(error):
                        error.add_note(f"There is no queue {queue}: create it with `sbpair provision`.")
                    raise
                self._report_doubt(messages, error)
            else:
                state.queue_accepted(queue, self._now())
                return

    def _to_outbox(self, outbox: Outbox, messages: list[MessageT]) -> Steps[None]:
        """Put messages behind the entity's earlier ones in the outbox, which they must not overtake."""
        state, entity = self._state, self.entity_name
        # Raises the error of a broken entity.
        state.side_for(entity, self._now())
        if (stuck := state.outbox_stuck(entity)) is not None:
            raise stuck.with_traceback(None)
        copies = list(map(self._for_backlog, messages))
        busy = to_sdk_error(Throttled(f"earlier messages for {entity!r} are still in the outbox"))
        yield from self._put_in_outbox(outbox, copies, busy)

    def _put_in_outbox(self, outbox: Outbox, copies: list[MessageT], error: Exception) -> Steps[None]:
        """Put messages into the outbox. Raises `error` if it does not accept them."""
        payloads = list(map(self._encode, copies))
        try:
            yield Work(lambda: outbox.put(self.entity_name, payloads))
        except SbpairError as why:
            error.add_note(f"The outbox has not accepted it either: {why.message}.")
            raise error from why
        else:
            self._delivered.outbox += len(copies)
        finally:
            if outbox.holds(self.entity_name):
                self._state.outbox_stored(self.entity_name, error, self._now())

    def _report_doubt(self, messages: Iterable[MessageT], error: Exception) -> None:
        if self._connections.unanswered and (ids := self._message_ids(messages)):
            self._state.publish(SendInDoubt(self.entity_name, ids, describe_error(error)))

    def _check_sizes(self, messages: list[MessageT], deadline: float) -> Steps[None]:
        """Raise MessageSizeExceededError for a message that may fit the primary but not the backlog."""
        if self._side(None) == "secondary":
            return
        for message in messages:
            if self._is_small(message):
                continue
            properties, size = self._sizes(message, with_aliases=True)
            if properties > MAX_PROPERTIES_BYTES:
                given, _ = self._sizes(message, with_aliases=False)
                raise too_large("its properties have", given, properties, MAX_PROPERTIES_BYTES)
            if size <= SMALLEST_TIER_BYTES:
                continue
            limit = yield from self._backlog_limit(size, deadline)
            if limit is not None and size > limit:
                _, given = self._sizes(message, with_aliases=False)
                raise too_large("the message has", given, size, limit)

    def _backlog_limit(self, size: int, deadline: float) -> Steps[int | None]:
        if self._state.backlog_bytes is not None:
            return self._state.backlog_bytes
        now = self._now()
        if self._limit_asked is not None and now < self._limit_asked + LIMIT_RETRY_SECONDS:
            return None
        self._limit_asked = now
        seconds = min(LIMIT_SECONDS, positive(deadline - now))
        self.backlog_queue, _ = self._state.pick_queue(self.backlog_queue)
        try:
            limit = yield from self._ask_limit(self.backlog_queue, seconds)
        except Exception as error:  # noqa: BLE001  the primary may take it all the same
            self._state.publish(SizeUnknown(self.entity_name, size, describe_error(error)))
            return None
        self._state.backlog_bytes = limit or SMALLEST_TIER_BYTES
        return self._state.backlog_bytes


def positive(seconds: float) -> float:
    """Return the time left. Raises NotSent if none is."""
    if seconds <= 0:
        raise NotSent(message="the time of the send was over")
    return seconds


def checked_retries(retries: int) -> int:
    """Return `retries`. Raises UsageError for fewer than none."""
    if retries < 0:
        raise UsageError(f"expected retries of 0 or more, got {retries}", hint="3 is the default")
    return retries


def checked_timeout(seconds: float) -> float:
    """Return `seconds`. Raises ValueError for 0 or less, as the SDK does, and warns of too few."""
    if seconds <= 0:
        raise ValueError("the timeout must be greater than 0")
    if seconds <= SHORT_SECONDS:
        text = f"a send has {seconds:g} s; it should have more than {SHORT_SECONDS:g} s, and 60 s is advised"
        warnings.warn(text, ShortTimeout, 4)
    return seconds
