"""The sends of messages of the SDK, by its senders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from sbpair.errors import UsageError
from sbpair.failover import sdk_messages
from sbpair.failover.failover_send import FailoverSend, SecondaryNumber, SendPolicy
from sbpair.failover.failures import joins_sdk_errors
from sbpair.failover.property_values import properties_size
from sbpair.failover.sdk_encoding import check_encoding, encode, encoded_size
from sbpair.failover.sdk_messages import Message, Messages, SizedBatch
from sbpair.failover.side_connections import SideConnections, open_action, send_action
from sbpair.model.tiers import SMALLEST_TIER_BYTES
from sbpair.sync_async import Action, Steps

if TYPE_CHECKING:
    from sbpair.failover.outbox import Outbox
    from sbpair.failover.shared_state import FailoverState, SendSide


class SdkFailoverSend(FailoverSend[Message]):
    """The sends to one entity by the SDK's senders, of one kind: sync or async."""

    _encode, _check_encoding = staticmethod(encode), staticmethod(check_encoding)
    _message_ids, _is_small = staticmethod(sdk_messages.message_ids), staticmethod(sdk_messages.is_small)

    def __init__(
        self, state: FailoverState, entity: str, policy: SendPolicy, now: Callable[[], float], outbox: Outbox | None
    ) -> None:
        super().__init__(state, entity, policy, now, outbox)
        self._connections: SideConnections[SendSide] = SideConnections(self._sdk_sender)

    def _sdk_sender(self, side: SendSide, path: str) -> Any:
        """Return a new SDK sender. It connects when first used."""
        raise NotImplementedError

    def _seconds(self, timeout: float | None) -> float:
        """Return the time of a send. Raises ValueError for a sender that was closed, or a wrong `timeout`."""
        raise NotImplementedError

    def _fast_path(self, message: Messages) -> Any:
        """Return the SDK sender for a small and plain message that can go to the primary without steps, or None.

        The caller sends within `share` of its time, then calls `_count_sent`, or `_send` with the error.
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
            if not all(map(self._is_small, prepared)):
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
        return (
            yield from self._scheduled(
                prepared, lambda sender, left: sender.schedule_messages(prepared, at, timeout=left), deadline
            )
        )

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

    def _for_backlog(self, message: Message) -> Message:
        return sdk_messages.for_backlog(message, self.entity_name)

    def _backlog_batches(self, copies: list[Message]) -> Iterator[tuple[Action, list[Message]]]:
        for content, messages in sdk_messages.batches(
            copies, SMALLEST_TIER_BYTES, ServiceBusMessageBatch, lambda copy: copy
        ):
            yield send_action(content), messages

    def _sizes(self, message: Message, *, with_aliases: bool) -> tuple[int, int]:
        sent = self._for_backlog(message) if with_aliases else message
        return properties_size(sent.application_properties or {}), encoded_size(sent)

    def _ask_limit(self, queue: str, seconds: float) -> Steps[int]:
        yield from self._connections.call("backlog", queue, open_action, seconds)
        limit = yield from self._connections.call("backlog", queue, _link_limit, seconds)
        return int(limit)


def _link_limit(sender: Any, _seconds: float) -> int:
    # The SDK does not publish the maximum size of a single message.
    return getattr(sender, "_max_message_size_on_link", 0)
