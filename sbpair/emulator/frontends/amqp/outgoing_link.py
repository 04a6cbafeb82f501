"""The endpoint of a link on which a client receives messages from an entity.

Invariant: a message leaves its queue only if it can be sent at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.performatives import Accepted, Outcome, Rejected
from sbpair.emulator.access.sas import AccessRight
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.frontends.amqp.link_endpoint import PRE_SETTLED, amqp_error, id_ranges
from sbpair.emulator.frontends.amqp.outcomes import settle_all
from sbpair.emulator.service_errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sbpair.amqp.link import SendingLink, Sent
    from sbpair.emulator.entities.namespace import AddressTarget
    from sbpair.emulator.entities.sessions import HeldSession
    from sbpair.emulator.entities.stored_message import StoredMessage
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.faults.fault_points import FaultPoints
    from sbpair.emulator.frontends.amqp.link_endpoint import LinkConnection

FIRST_SLICE: Final = 8
MAX_SLICE: Final = 250
SLICE_BYTES: Final = 262_144
"""Bytes taken from a queue in one go, so that other links get their turn and a slow peer shows.

The number of messages follows from the size of the last ones.
"""


class OutgoingLink:
    """A link out of an entity. It waits as a Consumer of its queue while it has credit left."""

    rights: tuple[AccessRight, ...] = (AccessRight.LISTEN,)

    def __init__(
        self, connection: LinkConnection, link: SendingLink, target: AddressTarget, path: str, fault_points: FaultPoints
    ) -> None:
        self.path = path
        self._fault_points = fault_points
        self._connection = connection
        self._link = link
        self._target = target
        self._slice = FIRST_SLICE
        self._completed: list[Sent] = []
        self._pre_settled = link.remote.snd_settle_mode == PRE_SETTLED
        self._queue = self._open(target)
        self._idle = connection.watch_idle(link)

    def _open(self, target: AddressTarget) -> SubQueue | HeldSession:
        """Accept the link and return its source of messages."""
        self._link.accept(max_message_size=target.entity.max_message_bytes)
        return target.messages

    def touch(self) -> None:
        """Record a use of the link by way of the management node."""
        self._idle.touch()

    def check_open(self) -> None:
        self._target.check_receive()

    # Sending

    def wake(self) -> None:
        self.pull()
        self._connection.flush_soon()

    def pull(self) -> None:
        """Send messages as far as credit, session window and the peer's reading allow."""
        wanted = self._wanted()
        if not wanted:
            return
        messages = self._queue.receive(wanted, self)
        self._send(messages)
        if len(messages) == wanted and self._link.credit:
            self._connection.pull_soon(self)

    def on_flow(self) -> None:
        """React to a change of credit."""
        if self._link.draining:
            self._queue.remove_consumer(self)
            self._drain()
        elif self._link.credit:
            self.pull()
        else:
            self._queue.remove_consumer(self)

    def _drain(self) -> None:
        while wanted := self._wanted():
            messages = self._queue.receive(wanted)
            self._send(messages)
            if len(messages) < wanted:
                break
        self._link.drained()

    def _wanted(self) -> int:
        link = self._link
        if self._connection.blocked or not link.is_open:
            return 0
        wanted = max(0, min(link.credit, link.session.room, self._slice))
        # A link that may take nothing does not wait at the queue: the meter resumes it.
        meter = self._fault_points.meter
        return wanted if meter is None else meter.allowed(wanted, self.path)

    def _send(self, messages: list[StoredMessage]) -> None:
        if self._fault_points.meter is not None:
            self._fault_points.meter.record(len(messages), self.path)
        size = self._send_settled(messages) if self._pre_settled else self._send_locked(messages)
        if size:
            self._idle.touch()
            self._slice = max(1, min(MAX_SLICE, SLICE_BYTES * len(messages) // size))
            self._connection.count_output(size)

    def _send_locked(self, messages: list[StoredMessage]) -> int:
        parts = [(message.lock_token, *service_envelope.encode_delivery_parts(message)) for message in messages]
        self._link.send_all(parts)
        return sum([len(beginning) + len(rest) for _, beginning, rest in parts])

    def _send_settled(self, messages: list[StoredMessage]) -> int:
        size = 0
        for message in messages:
            payload = service_envelope.encode_peeked(message)
            self._queue.complete(message.lock_token)
            self._link.send(payload, message.lock_token, settled=True)
            size += len(payload)
        return size

    # Settling

    def settle(self, deliveries: list[Sent], state: Any, *, settled: bool) -> None:
        """Apply an outcome to deliveries of this link and confirm it, unless the peer has settled them itself."""
        tokens = [delivery.context for delivery in deliveries]
        failed = settle_all(self._queue, tokens, state, settled=settled)
        if settled or failed is None:
            return
        done = deliveries if not failed else [each for each in deliveries if each.context not in failed]
        if isinstance(state, Accepted):
            self._completed += done
        else:
            self._confirm(done, state)
        if failed:
            self._reject([each for each in deliveries if each.context in failed], failed)

    def _reject(self, deliveries: list[Sent], failed: dict[bytes, ServiceError]) -> None:
        for delivery in deliveries:
            state = Rejected(amqp_error(failed[delivery.context]))
            self._link.session.dispose(delivery.id, delivery.id, state, receiver=False, settled=True)

    def flush(self) -> None:
        """Confirm completed deliveries in ranges: many clients complete each message by itself."""
        self._idle.touch()
        self._confirm(self._completed, Accepted())
        self._completed = []

    def _confirm(self, deliveries: list[Sent], state: Outcome) -> None:
        # A rejected with an error would mean that the settlement itself has failed.
        confirmed = Rejected() if isinstance(state, Rejected) else state
        for first, last in id_ranges(deliveries):
            self._link.session.dispose(first, last, confirmed, receiver=False, settled=True)

    def on_detached(self, unsettled: Iterable[Sent], *, released: bool) -> None:
        self._idle.stop()
        self._queue.remove_consumer(self)
        give_back = self._queue.release if released else self._queue.abandon
        for delivery in unsettled:
            try:
                give_back(delivery.context)
            except ServiceError:
                # Its lock has expired, or it was settled by way of the management node.
                continue
