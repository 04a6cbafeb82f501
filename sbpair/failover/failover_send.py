"""The sends of one sender with failover, as steps: to the primary, the backlog or the outbox.

Invariant: a send returns only once a side, or the outbox, has every message. It gives up only when the time is over or
no target is left. Messages sent again after an unanswered attempt are reported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusServerBusyError

from sbpair.azure.data_plane import from_sdk_error
from sbpair.errors import EntityMissing, SbpairError, UsageError
from sbpair.failover import sdk_messages
from sbpair.failover.events import SendInDoubt, SizeUnknown
from sbpair.failover.failures import describe_error, is_token_end, is_transient, joins_sdk_errors
from sbpair.failover.property_values import MAX_PROPERTIES_BYTES, properties_size
from sbpair.failover.sdk_encoding import check_encoding, encode, encoded_size
from sbpair.failover.sdk_messages import SMALLEST_TIER_BYTES, Content, Message, Messages, SizedBatch
from sbpair.failover.side_connections import (
    Closable,
    SideConnections,
    open_action,
    send_action,
)
from sbpair.model.retries import Backoff
from sbpair.operating_system.shortages import shortage_of
from sbpair.sync_async import Pause, Steps, Work

if TYPE_CHECKING:
    from sbpair.failover.outbox import Outbox
    from sbpair.failover.shared_state import FailoverState, SendSide
    from sbpair.failover.side_connections import SdkAction

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
    secondary: Annotated[int, "Accepted by the secondary's own entity, while the primary is declared lost"] = 0

    @property
    def total(self) -> int:
        return self.primary + self.backlog + self.outbox + self.secondary


class NotSent(OperationTimeoutError):
    """The message was not sent at all, so it cannot be in doubt."""


class SecondaryNumber(int):
    """The sequence number of a message that was scheduled in the secondary: the primary has others."""


class FailoverSend(Closable):
    """The sends to one entity with failover. `now` is a monotonic clock, in seconds.

    `backlog_queue` is the backlog queue last used: the sender stays with it while it works. `unanswered` is whether a
    message of the last send, which failed, may have arrived all the same.
    """

    def __init__(
        self, state: FailoverState, entity: str, policy: SendPolicy, now: Callable[[], float], outbox: Outbox | None
    ) -> None:
        super().__init__()
        self.entity_name = entity
        self.backlog_queue: str | None = None
        self.unanswered = False
        self._state, self._policy, self._now, self._outbox = state, policy, now, outbox
        self._connections: SideConnections[SendSide] = SideConnections(self._sdk_sender)
        self._delivered = Delivered()
        self._limit_asked: float | None = None
        self._backlog_numbers = count(-1, -1)
        self._share = PRIMARY_SHARE if policy.on_failure != "raise" or state.fail_at_once else 1.0

    def _sdk_sender(self, side: SendSide, path: str) -> Any:
        """Return a new SDK sender. It connects when first used."""
        raise NotImplementedError

    def _seconds(self, timeout: float | None) -> float:
        """Return the time of a send. Raises ValueError for a sender that was closed, or a wrong `timeout`."""
        raise NotImplementedError

    @property
    def delivered(self) -> Delivered:
        """How many of its messages the primary, the backlog and the outbox have accepted."""
        return replace(self._delivered)

    def _fast_path(self, message: Messages) -> Any:
        """Return the SDK sender for a message that can go to the primary without steps, or None.

        This is the common case: every entity is healthy, and the message is small and plain. The caller sends within
        `_share` of its time, then calls `_count_sent`, or `_send` with the error.
        """
        if self._state.unhealthy or type(message) is not ServiceBusMessage:
            return None
        if self._outbox is not None and self._outbox.holds(self.entity_name):
            return None
        raw = message.raw_amqp_message
        properties = raw.properties
        if raw.application_properties or raw.body_type is not sdk_messages.DATA or properties is None:
            return None
        if properties.message_id is None or sum(map(len, raw.body)) > sdk_messages.SMALL_BODY_BYTES:
            return None
        if properties.absolute_expiry_time and sdk_messages.has_long_ttl(raw):
            return None
        return self._connections.current("primary")

    def _count_sent(self, messages: int) -> None:
        """Record that the primary has accepted so many messages."""
        self._delivered.primary += messages
        if self._state.unhealthy:
            self._state.primary_accepted(self.entity_name, self._now())

    @joins_sdk_errors("sending to")
    def _send(
        self, messages: Messages, seconds: float, *, since: float | None = None, failed: BaseException | None = None
    ) -> Steps[None]:
        """Send one message, several, or a batch. Raises UsageError for a message that cannot be sent to either side.

        `failed` is the error of an attempt on the fast path, which started at `since`.
        """
        self.unanswered = False
        deadline = (self._now() if since is None else since) + seconds
        prepared, content = sdk_messages.prepare(messages)
        if content is not messages:
            failed = None  # the SDK could not encode it as it was given
        if prepared:
            if not all(map(sdk_messages.is_small, prepared)):
                yield from self._check_sizes(prepared, deadline)
            yield from self._deliver(prepared, send_action(content), deadline, failed)

    @joins_sdk_errors("sending to")
    def _schedule_messages(
        self, messages: Messages, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> Steps[list[int]]:
        """Schedule messages. Returns the numbers to cancel them with; negative ones cannot be cancelled."""
        deadline, at = self._now() + self._seconds(timeout), schedule_time_utc
        self.unanswered = False
        prepared = [sdk_messages.with_schedule(each, at) for each in sdk_messages.prepare(messages)[0]]
        if not prepared:
            return []
        yield from self._check_sizes(prepared, deadline)
        numbers = yield from self._deliver(
            prepared, lambda sender, left: sender.schedule_messages(prepared, at, timeout=left), deadline
        )
        return [next(self._backlog_numbers) for _ in prepared] if numbers is None else list(numbers)

    @joins_sdk_errors("sending to")
    def _cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> Steps[None]:
        """Cancel messages scheduled in an entity. Raises UsageError for those elsewhere, such as in the backlog."""
        seconds = self._seconds(timeout)
        wanted = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        if any(number < 0 for number in wanted):
            raise UsageError(
                "cannot cancel a message that was scheduled in the backlog or the outbox: it has no sequence number",
                hint="let the syphon move it, and cancel it in the primary by its number there",
            )
        lost = self._state.lost
        if any(isinstance(number, SecondaryNumber) is not lost for number in wanted):
            raise UsageError(
                "cannot cancel a message that was not scheduled in the secondary by this program: the primary is lost"
                if lost
                else "cannot cancel a message of the secondary: the primary is not declared lost",
                hint="cancel it with a ServiceBusSender of the namespace that gave its number",
            )
        if wanted:
            yield from self._connections.call(
                "secondary" if lost else "primary",
                self.entity_name,
                lambda sdk, left: sdk.cancel_scheduled_messages(wanted, timeout=left),
                seconds,
            )

    @joins_sdk_errors("sending to")
    def _create_message_batch(self, max_size_in_bytes: int | None = None) -> Steps[SizedBatch]:
        """Return an empty batch of the largest size that the entity accepts."""
        seconds, limit = self._seconds(None), SMALLEST_TIER_BYTES
        if (side := self._state.side_for(self.entity_name, self._now())) != "backlog":
            try:
                batch = yield from self._connections.call(side, self.entity_name, open_action, seconds)
                limit = batch.max_size_in_bytes
            except Exception as error:
                if not self._policy.counts(error):
                    raise
        if max_size_in_bytes is not None and max_size_in_bytes > limit:
            raise ValueError(f"max_size_in_bytes is {max_size_in_bytes}, and a batch takes at most {limit} bytes")
        return SizedBatch(max_size_in_bytes or limit)

    def _deliver(
        self, messages: list[Message], action: SdkAction, deadline: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """Return the entity's answer, or None after the backlog or the outbox has accepted the messages."""
        state, entity, attempts = self._state, self.entity_name, 0
        if failed is None and self._outbox is not None and self._outbox.holds(entity):
            yield from self._to_outbox(self._outbox, messages)
            return None
        while (side := self._side(failed)) != "backlog":
            left = 0.0 if failed else positive(deadline - self._now()) * self._share
            try:
                answer = yield from self._attempt(side, entity, action, left, failed)
            except Exception as error:
                failed = None
                check_encoding(messages, error)
                pause = self._pause_after(error, attempts, deadline, side)
                if pause is None and side == "secondary" and self._outbox is not None and self._policy.counts(error):
                    copies = [sdk_messages.for_backlog(each, entity) for each in messages]
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
        yield from self._to_backlog([sdk_messages.for_backlog(each, entity) for each in messages], deadline)
        return None

    def _side(self, failed: BaseException | None) -> SendSide:
        """Return where the next attempt goes; `failed` has been one on the primary."""
        if failed is not None or not self._state.unhealthy:
            return "primary"
        return self._state.side_for(self.entity_name, self._now())

    def _attempt(
        self, side: SendSide, path: str, action: SdkAction, seconds: float, failed: BaseException | None = None
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
        retries = max(policy.retries, int(is_token_end(error)))
        if attempts < retries and is_transient(error) and pause < (deadline - now) * self._share:
            return pause
        if not policy.counts(error):
            return None
        if side == "primary":
            self._state.primary_failed(entity, error, now)
            if now < deadline and (policy.on_failure == "backlog-now" or self._side(None) != "primary"):
                return NOW
        return pause if policy.on_failure == "wait" and now + pause < deadline else None

    def _to_backlog(self, copies: list[Message], deadline: float) -> Steps[None]:
        """Send to the backlog, and put messages that it does not accept into the outbox, if there is one."""
        done = 0
        for content, messages in sdk_messages.batches(
            copies, SMALLEST_TIER_BYTES, ServiceBusMessageBatch, lambda copy: copy
        ):
            try:
                yield from self._to_backlog_queue(content, messages, deadline)
            except Exception as error:
                if done:
                    error.add_note(f"{done} of the {len(copies)} messages, the first ones, are in the backlog.")
                if self._outbox is None or isinstance(error, MessageSizeExceededError | TypeError | UsageError):
                    raise
                yield from self._put_in_outbox(self._outbox, copies[done:], error)
                if not isinstance(error, NotSent):
                    self._report_doubt(messages, error)
                return
            done += len(messages)
            self._delivered.backlog += len(messages)

    def _to_backlog_queue(self, content: Content, messages: list[Message], deadline: float) -> Steps[None]:
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
                yield from self._attempt("backlog", queue, send_action(content), seconds)
            except Exception as error:
                if isinstance(error, MessageSizeExceededError | TypeError) or shortage_of(error) is not None:
                    raise
                check_encoding(messages, error)
                if not token_ended and is_token_end(error) and self._now() < deadline:
                    token_ended = True  # the queue is not to blame, and the next attempt has a new one
                    self._report_doubt(messages, error)
                    continue
                state.queue_failed(queue, error, self._now())
                if not has_alternative or self._now() >= deadline:
                    error.add_note("The primary is failed over, and no backlog queue has accepted the message.")
                    if isinstance(error, AzureError) and isinstance(from_sdk_error(error, "sending"), EntityMissing):
                        error.add_note(f"There is no queue {queue}: `sbpair provision` creates backlog queues.")
                    raise
                self._report_doubt(messages, error)
            else:
                state.queue_accepted(queue, self._now())
                return

    def _to_outbox(self, outbox: Outbox, messages: list[Message]) -> Steps[None]:
        """Put messages behind the entity's earlier ones in the outbox, which they must not overtake."""
        state, entity = self._state, self.entity_name
        # Raises the error of a broken entity.
        state.side_for(entity, self._now())
        if (stuck := state.outbox_stuck(entity)) is not None:
            raise stuck.with_traceback(None)
        copies = [sdk_messages.for_backlog(each, entity) for each in messages]
        busy = ServiceBusServerBusyError(message=f"earlier messages for {entity!r} are still in the outbox")
        yield from self._put_in_outbox(outbox, copies, busy)

    def _put_in_outbox(self, outbox: Outbox, copies: list[Message], error: Exception) -> Steps[None]:
        """Put messages into the outbox. Raises `error` if it does not accept them."""
        payloads = [encode(each) for each in copies]
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

    def _report_doubt(self, messages: Iterable[Message], error: Exception) -> None:
        if self._connections.unanswered:
            ids = sdk_messages.message_ids(messages)
            self._state.publish(SendInDoubt(self.entity_name, ids, describe_error(error)))

    def _check_sizes(self, messages: list[Message], deadline: float) -> Steps[None]:
        """Raise MessageSizeExceededError for a message that may fit the primary but not the backlog."""
        if self._side(None) == "secondary":
            return
        for message in messages:
            if sdk_messages.is_small(message):
                continue
            copy = sdk_messages.for_backlog(message, self.entity_name)
            with_aliases = properties_size(copy.application_properties or {})
            if with_aliases > MAX_PROPERTIES_BYTES:
                size = properties_size(message.application_properties or {})
                raise _too_large("its properties have", size, with_aliases, MAX_PROPERTIES_BYTES)
            size = encoded_size(copy)
            if size <= SMALLEST_TIER_BYTES:
                continue
            limit = yield from self._backlog_limit(size, deadline)
            if limit is not None and size > limit:
                raise _too_large("the message has", encoded_size(message), size, limit)

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
            yield from self._connections.call("backlog", self.backlog_queue, open_action, seconds)
            limit = yield from self._connections.call("backlog", self.backlog_queue, _link_limit, seconds)
        except Exception as error:  # noqa: BLE001  the primary may take it all the same
            self._state.publish(SizeUnknown(self.entity_name, size, describe_error(error)))
            return None
        self._state.backlog_bytes = limit or SMALLEST_TIER_BYTES
        return self._state.backlog_bytes


def _too_large(what: str, size: int, with_aliases: int, limit: int) -> MessageSizeExceededError:
    return MessageSizeExceededError(
        message=f"{what} {size} bytes, {with_aliases} with its aliases for the backlog, which accepts {limit}:"
        " it could not be sent while the primary is unavailable"
    )


def _link_limit(sender: Any, _seconds: float) -> int:
    # The SDK does not publish the maximum size of a single message.
    return getattr(sender, "_max_message_size_on_link", 0)


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
