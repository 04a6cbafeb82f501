"""How one message, or several, get to the primary or into the backlog: the whole of it, as steps.

The law: `send` returns only once one side, or the outbox, has every message; nothing is given up while there is time
and somewhere left to turn to; and what is sent again without an answer is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusServerBusyError,
)

from sbpair.azure.data_errors import from_sdk_error, is_answer
from sbpair.errors import EntityMissing, SbpairError, UsageError
from sbpair.failover import sdk_messages
from sbpair.failover.failures import is_passing
from sbpair.failover.sdk_messages import MIN_LIMIT_BYTES, Content, Message, Messages, OneMessage, SizedBatch
from sbpair.failover.steps import Pause, Steps, Work

if TYPE_CHECKING:
    from sbpair.failover.failover_state import FailoverState
    from sbpair.failover.outbox import Outbox
    from sbpair.failover.side_connections import Side, SideConnections, Use

OnFailure: TypeAlias = Literal["raise", "wait", "backlog-now"]

RETRY_SECONDS = 0.8
"""Doubled each time, as the SDK does it."""

MAX_WAIT_SECONDS = 5.0

PRIMARY_SHARE = 0.75
"""How much of its time a send gives to the primary, where the backlog may have to take over at once."""

MIN_ATTEMPT_SECONDS = 16.0
"""A backlog queue has at least so long, if there is so long: a partition needs more than 15 s to be turned to."""

LIMIT_SECONDS, ASK_AGAIN_SECONDS = 10.0, 60.0
"""How long the backlog is asked for the size that it takes, and how long it is left alone where it did not answer."""

NOW = 0.0


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """`counts` tells which errors say that the entity is away; `retries` follow a first attempt at the primary."""

    counts: Callable[[Exception], bool]
    on_failure: OnFailure
    retries: int


@dataclass(slots=True)
class Delivered:
    """How many messages of one sender have been accepted, by where."""

    primary: int = 0
    backlog: int = 0
    outbox: int = 0


class FailoverSend:
    """One sender's way to one entity. `now` is a monotonic clock, in seconds."""

    def __init__(
        self,
        known: FailoverState,
        lane: SideConnections[Side],
        entity: str,
        terms: SendPolicy,
        now: Callable[[], float],
        outbox: Outbox | None = None,
    ) -> None:
        self._known = known
        self._outbox = outbox
        self._lane = lane
        self._entity = entity
        self._terms = terms
        self._now = now
        self.share = PRIMARY_SHARE if terms.on_failure != "raise" or known.fail_at_once else 1.0
        self.queue: str | None = None
        self._limit_asked: float | None = None
        self._backlog_numbers = count(-1, -1)
        self.delivered = Delivered()

    def straight(self, message: Messages) -> Any:
        """The SDK's sender for a message that can go to the primary without any steps; None where it takes some.

        Most of the time nothing is wrong with anything, and then nothing is asked. In `share` of its time: what goes
        wrong is for `send` to hear of, and what went well for `went`.
        """
        if self._known.unwell or type(message) is not ServiceBusMessage:
            return None
        if self._outbox is not None and self._outbox.holds(self._entity):
            return None
        raw = message.raw_amqp_message
        if raw.application_properties or raw.body_type is not sdk_messages.DATA or raw.properties is None:
            return None
        if raw.properties.message_id is None or sum(map(len, raw.body)) > sdk_messages.SMALL_BODY_BYTES:
            return None
        return self._lane.opened("primary")

    def went(self, messages: int) -> None:
        """The primary has accepted so many messages."""
        self.delivered.primary += messages
        if self._known.unwell:
            self._known.sent(self._entity, self._now())

    def send(
        self, messages: Messages, seconds: float, *, since: float | None = None, failed: BaseException | None = None
    ) -> Steps[None]:
        """Messages, or one, or a batch. Raises the SDK's errors, and UsageError for what has an alias already.

        `failed` is what the straight way, taken at `since`, has raised.
        """
        deadline = (self._now() if since is None else since) + seconds
        inside, whole = parcel(messages)
        if inside:
            if not all(map(sdk_messages.is_small, inside)):
                yield from self._check_sizes(inside, deadline)
            yield from self._delivered(inside, _sending(whole), deadline, failed)

    def schedule(self, messages: Messages, at: datetime, seconds: float) -> Steps[list[int]]:
        """The numbers to cancel them by; those that went to the backlog have negative ones."""
        deadline = self._now() + seconds
        inside = [sdk_messages.scheduled(each, at) for each in parcel(messages)[0]]
        if not inside:
            return []
        yield from self._check_sizes(inside, deadline)

        def scheduling(sender: Any, left: float) -> Any:
            return sender.schedule_messages(inside, at, timeout=left)

        numbers = yield from self._delivered(inside, scheduling, deadline)
        return [next(self._backlog_numbers) for _ in inside] if numbers is None else list(numbers)

    def cancel(self, numbers: int | list[int], seconds: float) -> Steps[None]:
        """Raises UsageError for what waits in the backlog, and the SDK's errors."""
        wanted = [numbers] if isinstance(numbers, int) else list(numbers)
        if any(number < 0 for number in wanted):
            raise UsageError(
                "what is scheduled in the backlog, or the outbox, cannot be cancelled: it has no number there",
                hint="let the syphon bring it back, and cancel it in the primary by the number that it has there",
            )

        def cancelling(sender: Any, left: float) -> Any:
            return sender.cancel_scheduled_messages(wanted, timeout=left)

        if wanted:
            yield from self._lane.on("primary", self._entity, cancelling, seconds)

    def batch(self, max_bytes: int | None, seconds: float) -> Steps[SizedBatch]:
        """An empty one, as large as the entity takes; the least that any takes while nobody can be asked."""
        limit = MIN_LIMIT_BYTES
        if not self._known.to_backlog(self._entity, self._now()):
            try:
                made = yield from self._lane.on("primary", self._entity, _opening, seconds)
                limit = made.max_size_in_bytes
            except Exception as error:
                if not self._terms.counts(error):
                    raise
        if max_bytes is not None and max_bytes > limit:
            raise ValueError(f"max_size_in_bytes is {max_bytes}, and a batch takes at most {limit} bytes")
        return SizedBatch(max_bytes or limit)

    # One side or the other ----------------------------------------------------------------------

    def _delivered(
        self, messages: list[Message], use: Use, deadline: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """What the primary answered; None where the backlog, or the outbox, has taken them."""
        known, entity, attempts = self._known, self._entity, 0
        if failed is None and self._outbox is not None and self._outbox.holds(entity):
            yield from self._behind(self._outbox, messages)
            return None
        while failed is not None or not known.unwell or not known.to_backlog(entity, self._now()):
            left = 0.0 if failed else _left(deadline - self._now()) * self.share
            try:
                answer = yield from self._lane.on("primary", entity, use, left, failed)
            except Exception as error:
                failed = None
                pause = self._pause(error, attempts, deadline)
                if pause is None:
                    raise
                self._doubt(messages, error)
                attempts += 1
                if pause == NOW:
                    break
                yield Pause(pause)
            else:
                self.went(len(messages))
                return answer
        yield from self._around([sdk_messages.for_backlog(each, entity) for each in messages], deadline)
        return None

    def _around(self, copies: list[Message], deadline: float) -> Steps[None]:
        """Into the backlog; what it does not take into the outbox, where there is one."""
        done = 0
        for content, inside in sdk_messages.packed(copies, MIN_LIMIT_BYTES):
            try:
                yield from self._in_the_backlog(content, inside, deadline)
            except Exception as error:
                if done:
                    error.add_note(f"{done} of the {len(copies)} messages, the first ones, are in the backlog.")
                if self._outbox is None or isinstance(error, MessageSizeExceededError | TypeError):
                    raise
                yield from self._keep(self._outbox, copies[done:], error)
                if not isinstance(error, NotSent):
                    self._doubt(inside, error)
                return
            done += len(inside)
            self.delivered.backlog += len(inside)

    def _behind(self, outbox: Outbox, messages: list[Message]) -> Steps[None]:
        """Into the outbox, behind those of the entity that are there: none may overtake another."""
        known, entity = self._known, self._entity
        # What a broken entity is broken for is raised, and so is what the outbox is stuck for.
        known.to_backlog(entity, self._now())
        if (stuck := known.stuck(entity)) is not None:
            raise stuck.with_traceback(None)
        copies = [sdk_messages.for_backlog(each, entity) for each in messages]
        busy = ServiceBusServerBusyError(
            message=f"messages for {entity!r} that were sent before are in the outbox still"
        )
        yield from self._keep(outbox, copies, busy)

    def _keep(self, outbox: Outbox, copies: list[Message], error: Exception) -> Steps[None]:
        """Raises `error` where the outbox does not take them either."""
        payloads = [sdk_messages.encoded(each) for each in copies]
        try:
            yield Work(lambda: outbox.put(self._entity, payloads))
        except SbpairError as why:
            error.add_note(f"Nor has the outbox taken it: {why.message}.")
            raise error from why
        else:
            self.delivered.outbox += len(copies)
        finally:
            if outbox.holds(self._entity):
                self._known.kept(self._entity, error, self._now())

    def _pause(self, error: Exception, attempts: int, deadline: float) -> float | None:
        """After how long to try the primary again; NOW for the backlog at once, None for no more.

        The first ones are the retries that the SDK would make, which does not say what it sends again.
        """
        now = self._now()
        pause = min(RETRY_SECONDS * 2.0**attempts, MAX_WAIT_SECONDS)
        if attempts < self._terms.retries and is_passing(error) and pause < (deadline - now) * self.share:
            return pause
        if not self._terms.counts(error):
            return None
        self._known.failed(self._entity, error, now)
        if now < deadline and (self._terms.on_failure == "backlog-now" or self._known.to_backlog(self._entity, now)):
            return NOW
        return pause if self._terms.on_failure == "wait" and now + pause < deadline else None

    def _in_the_backlog(self, content: Content, inside: tuple[Message, ...], deadline: float) -> Steps[None]:
        """One queue after the other, while there is another and time."""
        while True:
            if self._outbox is not None and self._known.place_for(self._entity, self.queue, self._now()) is None:
                raise NotSent(message="the primary is failed over, and no backlog queue has answered for a while")
            self.queue, spares = self._known.queue_for(self.queue)
            left = _left(deadline - self._now())
            seconds = max(left / 2, min(left, MIN_ATTEMPT_SECONDS)) if spares else left
            try:
                yield from self._lane.on("backlog", self.queue, _sending(content), seconds)
            except (MessageSizeExceededError, TypeError):
                raise
            except Exception as error:
                self._known.queue_failed(self.queue, error, self._now())
                if not spares or self._now() >= deadline:
                    error.add_note("The primary is failed over, and no backlog queue has taken the message.")
                    if isinstance(error, AzureError) and isinstance(from_sdk_error(error, "sending"), EntityMissing):
                        error.add_note(f"There is no queue {self.queue}: `sbpair provision` creates backlog queues.")
                    raise
                self._doubt(inside, error)
            else:
                self._known.queue_took(self.queue, self._now())
                return

    def _doubt(self, messages: Iterable[Message], error: Exception) -> None:
        if not is_answer(error):
            self._known.in_doubt(self._entity, sdk_messages.ids_of(messages), error)

    # Sizes --------------------------------------------------------------------------------------

    def _check_sizes(self, messages: list[Message], deadline: float) -> Steps[None]:
        """Raise MessageSizeExceededError for what fits the primary perhaps, and surely not the backlog."""
        for message in messages:
            if sdk_messages.is_small(message):
                continue
            size = sdk_messages.size_of(sdk_messages.for_backlog(message, self._entity))
            if size <= MIN_LIMIT_BYTES:
                continue
            limit = yield from self._backlog_limit(size, deadline)
            if limit is not None and size > limit:
                raise MessageSizeExceededError(
                    message=f"the message has {sdk_messages.size_of(message)} bytes, and {size} with what the backlog"
                    f" adds to it, where a message may have {limit}: it could not be sent while the primary is away"
                )

    def _backlog_limit(self, size: int, deadline: float) -> Steps[int | None]:
        if self._known.backlog_bytes is not None:
            return self._known.backlog_bytes
        now = self._now()
        if self._limit_asked is not None and now < self._limit_asked + ASK_AGAIN_SECONDS:
            return None
        self._limit_asked = now
        seconds = min(LIMIT_SECONDS, _left(deadline - now))
        self.queue, _ = self._known.queue_for(self.queue)
        try:
            yield from self._lane.on("backlog", self.queue, _opening, seconds)
            limit = yield from self._lane.on("backlog", self.queue, _limit_on, seconds)
        except Exception as error:  # noqa: BLE001  the primary may take it all the same
            self._known.size_unknown(self._entity, size, error)
            return None
        self._known.backlog_bytes = limit or MIN_LIMIT_BYTES
        return self._known.backlog_bytes


def _sending(content: Content) -> Use:
    return lambda sender, seconds: sender.send_messages(content, timeout=seconds)


def _opening(sender: Any, _seconds: float) -> Any:
    return sender.create_message_batch()


def _limit_on(sender: Any, _seconds: float) -> int:
    # How large a single message may be is not among what the SDK makes public.
    return getattr(sender, "_max_message_size_on_link", 0)


class NotSent(OperationTimeoutError):
    """There was no use in trying: nothing has left, and nothing can be in doubt."""


def _left(seconds: float) -> float:
    if seconds <= 0:
        raise NotSent(message="the time of the send was over")
    return seconds


def parcel(messages: Messages) -> tuple[list[Message], Content]:
    """The messages that were given, each with an id, and what is sent where nothing has to be changed."""
    if isinstance(messages, ServiceBusMessage | AmqpAnnotatedMessage):
        one = sdk_messages.outgoing(messages)
        return [one], _unchanged(messages, one)
    if isinstance(messages, SizedBatch):
        return messages.outgoing, messages
    if isinstance(messages, ServiceBusMessageBatch):
        # One of a redacted sender: what is in it is not among what the SDK makes public.
        return [sdk_messages.outgoing(each) for each in getattr(messages, "_messages", ())], messages
    if isinstance(messages, Mapping):
        one = sdk_messages.outgoing(messages)
        return [one], one
    given = list(messages)
    inside = [sdk_messages.outgoing(each) for each in given]
    return inside, [_unchanged(each, checked) for each, checked in zip(given, inside, strict=True)]


def _unchanged(given: OneMessage, checked: Message) -> ServiceBusMessage | Message:
    """What was given, where nothing had to be added: the SDK would have to wrap the other once more."""
    return given if isinstance(given, ServiceBusMessage) and given.raw_amqp_message is checked else checked
