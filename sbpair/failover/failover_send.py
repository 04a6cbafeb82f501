"""A send with failover, as steps: to the primary, the backlog or the outbox.

Invariant: `send` returns only once a side, or the outbox, has every message. It gives up only when the time is over or
no target is left. Messages sent again after an unanswered attempt are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError, ServiceBusServerBusyError

from sbpair.azure.data_errors import from_sdk_error
from sbpair.errors import EntityMissing, SbpairError, UsageError
from sbpair.failover import sdk_messages
from sbpair.failover.events import SendInDoubt, SizeUnknown
from sbpair.failover.failures import describe_error, is_transient
from sbpair.failover.sdk_messages import SMALLEST_TIER_BYTES, Content, Message, Messages, SizedBatch
from sbpair.failover.side_connections import open_action, send_action
from sbpair.failover.steps import Pause, Steps, Work
from sbpair.model.backoff import Backoff

if TYPE_CHECKING:
    from sbpair.failover.outbox import Outbox
    from sbpair.failover.shared_state import FailoverState
    from sbpair.failover.side_connections import SdkAction, Side, SideConnections

OnFailure: TypeAlias = Literal["raise", "wait", "backlog-now"]

BACKOFF = Backoff(first_seconds=0.8, max_seconds=5.0)
"""Pause before the first retry, doubled for each further one as the SDK does, and its maximum."""

PRIMARY_SHARE = 0.75
"""Share of its time that a send gives to the primary if the backlog may have to take over at once."""

MIN_ATTEMPT_SECONDS = 16.0
"""Minimum time for a backlog queue, if there is as much: switching to another partition takes more than 15 s."""

LIMIT_SECONDS, LIMIT_RETRY_SECONDS = 10.0, 60.0
"""How long the backlog may take to return its size limit, and the pause after it did not."""

NOW = 0.0


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """`counts(error)` returns whether an error counts as unavailability; `retries` follow a first attempt."""

    counts: Callable[[Exception], bool]
    on_failure: OnFailure
    retries: int


@dataclass(slots=True)
class Delivered:
    """How many messages of one sender have been accepted, by place."""

    primary: int = 0
    backlog: int = 0
    outbox: int = 0

    @property
    def total(self) -> int:
        return self.primary + self.backlog + self.outbox


class NotSent(OperationTimeoutError):
    """The message was not sent at all, so it cannot be in doubt."""


@dataclass(eq=False, repr=False)
class FailoverSend:
    """The sends of one sender to one entity. `now` is a monotonic clock, in seconds.

    `unanswered` is whether an attempt of the last send may have arrived without an answer.
    """

    state: FailoverState
    connections: SideConnections[Side]
    entity: str
    policy: SendPolicy
    now: Callable[[], float]
    outbox: Outbox | None = None
    queue: str | None = field(default=None, init=False)
    delivered: Delivered = field(default_factory=Delivered, init=False)
    limit_asked: float | None = field(default=None, init=False)
    backlog_numbers: Iterator[int] = field(default_factory=lambda: count(-1, -1), init=False)
    unanswered: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.share = PRIMARY_SHARE if self.policy.on_failure != "raise" or self.state.fail_at_once else 1.0

    def fast_path(self, message: Messages) -> Any:
        """Return the SDK sender for a message that can go to the primary without steps, or None.

        This is the common case: every entity is healthy, and the message is small and plain. The caller sends within
        `share` of its time, then calls `count_sent`, or `send` with the error.
        """
        if self.state.unhealthy or type(message) is not ServiceBusMessage:
            return None
        if self.outbox is not None and self.outbox.holds(self.entity):
            return None
        raw = message.raw_amqp_message
        if raw.application_properties or raw.body_type is not sdk_messages.DATA or raw.properties is None:
            return None
        if raw.properties.message_id is None or sum(map(len, raw.body)) > sdk_messages.SMALL_BODY_BYTES:
            return None
        return self.connections.current("primary")

    def count_sent(self, messages: int) -> None:
        """Record that the primary has accepted so many messages."""
        self.delivered.primary += messages
        if self.state.unhealthy:
            self.state.primary_accepted(self.entity, self.now())

    def send(
        self, messages: Messages, seconds: float, *, since: float | None = None, failed: BaseException | None = None
    ) -> Steps[None]:
        """Send one message, several, or a batch. Raises the SDK's errors, and UsageError for a message with an alias.

        `failed` is the error of an attempt on the fast path, which started at `since`.
        """
        self.unanswered = False
        deadline = (self.now() if since is None else since) + seconds
        prepared, content = sdk_messages.prepare(messages)
        if prepared:
            if not all(map(sdk_messages.is_small, prepared)):
                yield from self._check_sizes(prepared, deadline)
            yield from self._deliver(prepared, send_action(content), deadline, failed)

    def schedule(self, messages: Messages, at: datetime, seconds: float) -> Steps[list[int]]:
        """Schedule messages. Returns the numbers to cancel them with: negative in the backlog and the outbox."""
        self.unanswered = False
        deadline = self.now() + seconds
        prepared = [sdk_messages.with_schedule(each, at) for each in sdk_messages.prepare(messages)[0]]
        if not prepared:
            return []
        yield from self._check_sizes(prepared, deadline)
        numbers = yield from self._deliver(
            prepared, lambda sender, left: sender.schedule_messages(prepared, at, timeout=left), deadline
        )
        return [next(self.backlog_numbers) for _ in prepared] if numbers is None else list(numbers)

    def cancel(self, numbers: int | list[int], seconds: float) -> Steps[None]:
        """Cancel scheduled messages. Raises UsageError for those in the backlog, and the SDK's errors."""
        wanted = [numbers] if isinstance(numbers, int) else list(numbers)
        if any(number < 0 for number in wanted):
            raise UsageError(
                "cannot cancel a message that was scheduled in the backlog or the outbox: it has no sequence number",
                hint="let the syphon move it, and cancel it in the primary by its number there",
            )
        if wanted:
            yield from self.connections.call(
                "primary", self.entity, lambda sdk, left: sdk.cancel_scheduled_messages(wanted, timeout=left), seconds
            )

    def batch(self, max_bytes: int | None, seconds: float) -> Steps[SizedBatch]:
        """Return an empty batch of the entity's maximum size, or of the smallest tier's while the primary is out."""
        limit = SMALLEST_TIER_BYTES
        if not self.state.to_backlog(self.entity, self.now()):
            try:
                batch = yield from self.connections.call("primary", self.entity, open_action, seconds)
                limit = batch.max_size_in_bytes
            except Exception as error:
                if not self.policy.counts(error):
                    raise
        if max_bytes is not None and max_bytes > limit:
            raise ValueError(f"max_size_in_bytes is {max_bytes}, and a batch takes at most {limit} bytes")
        return SizedBatch(max_bytes or limit)

    def _deliver(
        self, messages: list[Message], action: SdkAction, deadline: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        """Return the primary's answer, or None after the backlog or the outbox has accepted the messages."""
        state, entity, attempts = self.state, self.entity, 0
        if failed is None and self.outbox is not None and self.outbox.holds(entity):
            yield from self._to_outbox(self.outbox, messages)
            return None
        while failed is not None or not state.unhealthy or not state.to_backlog(entity, self.now()):
            left = 0.0 if failed else _positive(deadline - self.now()) * self.share
            try:
                answer = yield from self._attempt("primary", entity, action, left, failed)
            except Exception as error:
                failed = None
                pause = self._pause_after(error, attempts, deadline)
                if pause is None:
                    raise
                self._report_doubt(messages, error)
                attempts += 1
                if pause == NOW:
                    break
                yield Pause(pause)
            else:
                self.count_sent(len(messages))
                return answer
        yield from self._to_backlog([sdk_messages.for_backlog(each, entity) for each in messages], deadline)
        return None

    def _attempt(
        self, side: Side, path: str, action: SdkAction, seconds: float, failed: BaseException | None = None
    ) -> Steps[Any]:
        try:
            return (yield from self.connections.call(side, path, action, seconds, failed))
        finally:
            self.unanswered = self.unanswered or self.connections.unanswered

    def _pause_after(self, error: Exception, attempts: int, deadline: float) -> float | None:
        """Return the seconds until the next attempt, NOW for the backlog at once, or None to give up.

        The first retries replace the SDK's own, which do not report messages that they send again.
        """
        now = self.now()
        pause = BACKOFF.seconds(attempts + 1)
        if attempts < self.policy.retries and is_transient(error) and pause < (deadline - now) * self.share:
            return pause
        if not self.policy.counts(error):
            return None
        self.state.primary_failed(self.entity, error, now)
        if now < deadline and (self.policy.on_failure == "backlog-now" or self.state.to_backlog(self.entity, now)):
            return NOW
        return pause if self.policy.on_failure == "wait" and now + pause < deadline else None

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
                if self.outbox is None or isinstance(error, MessageSizeExceededError | TypeError):
                    raise
                yield from self._put_in_outbox(self.outbox, copies[done:], error)
                if not isinstance(error, NotSent):
                    self._report_doubt(messages, error)
                return
            done += len(messages)
            self.delivered.backlog += len(messages)

    def _to_backlog_queue(self, content: Content, messages: list[Message], deadline: float) -> Steps[None]:
        """Try one queue after the other, while there is another one and time."""
        while True:
            if self.outbox is not None and self.state.target_for(self.entity, self.queue, self.now()) is None:
                raise NotSent(message="the primary is failed over, and no backlog queue has answered for a while")
            self.queue, has_alternative = self.state.pick_queue(self.queue)
            left = _positive(deadline - self.now())
            seconds = max(left / 2, min(left, MIN_ATTEMPT_SECONDS)) if has_alternative else left
            try:
                yield from self._attempt("backlog", self.queue, send_action(content), seconds)
            except (MessageSizeExceededError, TypeError):
                raise
            except Exception as error:
                self.state.queue_failed(self.queue, error, self.now())
                if not has_alternative or self.now() >= deadline:
                    error.add_note("The primary is failed over, and no backlog queue has accepted the message.")
                    if isinstance(error, AzureError) and isinstance(from_sdk_error(error, "sending"), EntityMissing):
                        error.add_note(f"There is no queue {self.queue}: `sbpair provision` creates backlog queues.")
                    raise
                self._report_doubt(messages, error)
            else:
                self.state.queue_accepted(self.queue, self.now())
                return

    def _to_outbox(self, outbox: Outbox, messages: list[Message]) -> Steps[None]:
        """Put messages behind the entity's earlier ones in the outbox, which they must not overtake."""
        state, entity = self.state, self.entity
        # Raises the error of a broken entity.
        state.to_backlog(entity, self.now())
        if (stuck := state.outbox_stuck(entity)) is not None:
            raise stuck.with_traceback(None)
        copies = [sdk_messages.for_backlog(each, entity) for each in messages]
        busy = ServiceBusServerBusyError(message=f"earlier messages for {entity!r} are still in the outbox")
        yield from self._put_in_outbox(outbox, copies, busy)

    def _put_in_outbox(self, outbox: Outbox, copies: list[Message], error: Exception) -> Steps[None]:
        """Put messages into the outbox. Raises `error` if it does not accept them."""
        payloads = [sdk_messages.encode(each) for each in copies]
        try:
            yield Work(lambda: outbox.put(self.entity, payloads))
        except SbpairError as why:
            error.add_note(f"The outbox has not accepted it either: {why.message}.")
            raise error from why
        else:
            self.delivered.outbox += len(copies)
        finally:
            if outbox.holds(self.entity):
                self.state.outbox_stored(self.entity, error, self.now())

    def _report_doubt(self, messages: Iterable[Message], error: Exception) -> None:
        if self.connections.unanswered:
            self.state.publish(SendInDoubt(self.entity, sdk_messages.message_ids(messages), describe_error(error)))

    def _check_sizes(self, messages: list[Message], deadline: float) -> Steps[None]:
        """Raise MessageSizeExceededError for a message that may fit the primary but not the backlog."""
        for message in messages:
            if sdk_messages.is_small(message):
                continue
            size = sdk_messages.encoded_size(sdk_messages.for_backlog(message, self.entity))
            if size <= SMALLEST_TIER_BYTES:
                continue
            limit = yield from self._backlog_limit(size, deadline)
            if limit is not None and size > limit:
                raise MessageSizeExceededError(
                    message=f"the message has {sdk_messages.encoded_size(message)} bytes, {size} with its aliases for"
                    f" the backlog, which accepts {limit}: it could not be sent while the primary is unavailable"
                )

    def _backlog_limit(self, size: int, deadline: float) -> Steps[int | None]:
        if self.state.backlog_bytes is not None:
            return self.state.backlog_bytes
        now = self.now()
        if self.limit_asked is not None and now < self.limit_asked + LIMIT_RETRY_SECONDS:
            return None
        self.limit_asked = now
        seconds = min(LIMIT_SECONDS, _positive(deadline - now))
        self.queue, _ = self.state.pick_queue(self.queue)
        try:
            yield from self.connections.call("backlog", self.queue, open_action, seconds)
            limit = yield from self.connections.call("backlog", self.queue, _link_limit, seconds)
        except Exception as error:  # noqa: BLE001  the primary may take it all the same
            self.state.publish(SizeUnknown(self.entity, size, describe_error(error)))
            return None
        self.state.backlog_bytes = limit or SMALLEST_TIER_BYTES
        return self.state.backlog_bytes


def _link_limit(sender: Any, _seconds: float) -> int:
    # The SDK does not publish the maximum size of a single message.
    return getattr(sender, "_max_message_size_on_link", 0)


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise NotSent(message="the time of the send was over")
    return seconds
