"""Sessions: they number deliveries, limit both directions by windows, and carry links. AMQP 1.0, part 2.5.

A transfer leaves only while the peer's incoming window is open; later ones wait here, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from operator import attrgetter, sub
from typing import Any

from sbpair.amqp import frames, transfer
from sbpair.amqp.endpoint import OPEN, EndpointState, EndpointStep, ProtocolEndpoint, first_free
from sbpair.amqp.link import (
    SERIAL,
    SERIAL_HALF,
    Delivery,
    FrameSink,
    Link,
    LinkDetached,
    ReceivingLink,
    SendingLink,
    Sent,
)
from sbpair.amqp.performatives import Accepted, Attach, Begin, Composite, Detach, Disposition, End, Error, Flow
from sbpair.errors import ProtocolError

WINDOW = 5_000
"""Number of transfer frames that a peer may send before our next flow."""

HANDLE_MAX = 255
NO_HANDLE = (
    "Cannot allocate more handles to the current session or connection. The maximum number of handles allowed is "
    f"{HANDLE_MAX}. Please free up resources and try again."
)
"""The service's words."""

_id_of = attrgetter("id")


@dataclass(slots=True)
class SessionBegun:
    session: Session


@dataclass(slots=True)
class SessionEnded:
    """The peer has ended a session, or broken its rules, after a LinkDetached for each link.

    Our own end is not reported.
    """

    session: Session
    error: Error | None


@dataclass(slots=True)
class WindowOpened:
    """The peer has changed its window of a session: see `session.room`."""

    session: Session


@dataclass(slots=True)
class DrainAnswered(WindowOpened):
    """The peer has answered a drain: the deliveries that it had for the credit came before, and no credit is left."""

    link: ReceivingLink


@dataclass(slots=True)
class Disposed:
    """The peer's disposition of deliveries that we sent (Sent), or its answer for received ones (Delivery).

    `state` is an outcome or any other state; `settled`: the peer has forgotten them.
    """

    session: Session
    deliveries: list[Any]
    state: Any
    settled: bool


class SessionFailure(ProtocolError):
    """An error of the peer for which the session ends, and not the connection."""


class Session(ProtocolEndpoint):
    def __init__(self, connection: FrameSink, channel: int) -> None:
        super().__init__()
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.sent: dict[int, Sent] = {}
        self.received: dict[int, Delivery] = {}
        self._links: dict[int, Link] = {}
        self._remote_links: dict[int, Link] = {}
        self.numbered = 0  # the id of the next delivery
        self._next_outgoing_id = self._next_incoming_id = 0
        self._incoming_window = WINDOW
        self._remote_window = 0
        self._handle_max = HANDLE_MAX  # the peer's, if that is lower
        self._waiting: deque[tuple[SendingLink, bytes | None, bytes, bool]] = deque()
        self._end_sent = False

    # For the owner.

    def begin(self) -> None:
        self.step(EndpointStep.WE_OPEN)
        self.put(Begin(self.remote_channel, self._next_outgoing_id, WINDOW, WINDOW, HANDLE_MAX))

    def end(self, error: Error | None = None) -> None:
        """End the session, and every link in it."""
        if self.can_close:
            self.step(EndpointStep.WE_CLOSE)
            self._send_end(End(error))
            for link in self.links:
                link.cut()

    def sender(self, name: str) -> SendingLink:
        link = SendingLink(self, name, first_free(self._links, self._handle_max, "handle"))
        self._links[link.handle] = link
        return link

    def receiver(self, name: str) -> ReceivingLink:
        link = ReceivingLink(self, name, first_free(self._links, self._handle_max, "handle"))
        self._links[link.handle] = link
        return link

    def dispose(self, first: int, last: int, state: Any, *, receiver: bool, settled: bool) -> None:
        """Send the state of deliveries `first` to `last`; with `settled`, forget them."""
        if type(state) is Accepted:
            self._put_raw(frames.write_accepted(first, last, role=receiver, settled=settled))
        else:
            self.put(Disposition(receiver, first, last, settled, state))
        if settled:
            known: dict[int, Any] = self.received if receiver else self.sent
            ids = _range(first, last, known)
            if len(ids) == len(known):
                known.clear()
                return
            for delivery_id in ids:
                del known[delivery_id]

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(self._links.values())

    @property
    def is_full(self) -> bool:
        """Whether no handle is free for another link."""
        return len(self._links) > self._handle_max

    @property
    def room(self) -> int:
        """How many transfer frames would leave at once; more would wait here, in memory."""
        return self._remote_window - len(self._waiting)

    # For links.

    def put(self, body: Composite) -> None:
        self._put_raw(body.encode())

    def _put_raw(self, body: bytes) -> None:
        # Dropped after end: the owner may still settle a delivery that came just before the peer's end.
        if not self._end_sent:
            self.connection.put(self.channel, body)

    def _send_end(self, end: End) -> None:
        self.put(end)
        self._end_sent = True

    def put_transfer(self, link: SendingLink, head: bytes, payload: bytes, *, last: bool) -> None:
        """Send one frame of a delivery once the window allows; `last` completes the delivery."""
        if self._remote_window > 0 and not self._waiting:
            self._leave(link, head, payload, last)
        else:
            self._waiting.append((link, head, payload, last))
            link.queued += last

    def put_frames(self, link: SendingLink, frames: list[bytes]) -> None:
        """Send whole frames, each one delivery in two pieces. The window must have room for them."""
        count = len(frames) // 2
        self.numbered = (self.numbered + count) & SERIAL
        self._remote_window -= count
        self._next_outgoing_id = (self._next_outgoing_id + count) & SERIAL
        link.delivery_count = (link.delivery_count + count) & SERIAL
        link.credit -= count
        self.connection.put_frames(frames)

    def after_queued(self, link: SendingLink) -> None:
        """Report the link as drained once its queued deliveries have left."""
        self._waiting.append((link, None, b"", False))

    def put_flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        self._incoming_window = WINDOW
        flow = Flow(
            self._next_incoming_id if self.state is not EndpointState.OPEN_SENT else None,
            WINDOW,
            self._next_outgoing_id,
            max(0, WINDOW - len(self._waiting)),
            drain=drain,
        )
        if link is not None:
            flow.handle, flow.delivery_count, flow.link_credit = link.handle, link.delivery_count, link.credit
            flow.available = 0
            if isinstance(link, SendingLink):
                flow.link_credit, flow.available = link.credit + link.queued, link.queued
            elif link.state is EndpointState.OPEN_SENT:
                flow.delivery_count = None
        self.put(flow)

    def next_delivery_id(self) -> int:
        delivery_id = self.numbered
        self.numbered = (delivery_id + 1) & SERIAL
        return delivery_id

    def forget(self, link: Link) -> None:
        """Drop a closed link's deliveries: they cannot be settled. Its handle is free once both sides have closed."""
        link.lose()
        if self._waiting:
            self._waiting = deque(item for item in self._waiting if item[0] is not link)
        self.sent = {key: sent for key, sent in self.sent.items() if sent.link is not link}
        self.received = {key: got for key, got in self.received.items() if got.link is not link}
        if link.state is EndpointState.CLOSED:
            self._links.pop(link.handle, None)
            if link.remote_handle is not None:
                self._remote_links.pop(link.remote_handle, None)

    # From the peer.

    def on_begin(self, begin: Begin) -> SessionBegun | None:
        self._next_incoming_id = begin.next_outgoing_id or 0
        self._remote_window = begin.incoming_window or 0
        self._handle_max = min(HANDLE_MAX, begin.handle_max or 0)
        self.step(EndpointStep.THEY_OPEN)
        if self.state is EndpointState.OPEN_RECEIVED:
            self.begin()
        return SessionBegun(self) if self.state is EndpointState.OPEN else None

    def on_end(self, end: End) -> list[SessionEnded | LinkDetached]:
        self.step(EndpointStep.THEY_CLOSE)
        if self.state is not EndpointState.CLOSE_RECEIVED:
            return []
        return self._finish(End(), end.error if isinstance(end.error, Error) else None)

    def fail(self, failure: SessionFailure) -> list[SessionEnded | LinkDetached]:
        """End the session because of the peer's error, and report it as the peer's end."""
        error = Error(failure.condition, failure.message)
        return self._finish(End(error), error)

    def _finish(self, end: End, error: Error | None) -> list[SessionEnded | LinkDetached]:
        self.step(EndpointStep.WE_CLOSE)
        self._send_end(end)
        # An owner that has closed its link knows already.
        return [*(LinkDetached(link, error) for link in self.links if link.cut()), SessionEnded(self, error)]

    def on_attach(self, attach: Attach) -> Any:
        handle = attach.handle or 0
        if handle in self._remote_links:
            raise SessionFailure(f"handle {handle} is in use", condition="amqp:session:handle-in-use")
        link = self._link_answered_by(attach)
        if handle > HANDLE_MAX or (link is None and self.is_full):
            raise SessionFailure(NO_HANDLE, condition="amqp:resource-limit-exceeded")
        if link is None:
            name = attach.name or ""
            link = self.sender(name) if attach.role else self.receiver(name)
        self._remote_links[handle] = link
        return link.on_attach(attach)

    def on_flow(self, flow: Flow) -> Any:
        # A peer that has not seen our begin counts from our first transfer, 0.
        in_flight = (self._next_outgoing_id - (flow.next_incoming_id or 0)) & SERIAL
        # A shrunk window may be less than the transfers already sent.
        self._remote_window = max(0, (flow.incoming_window or 0) - (in_flight if in_flight < SERIAL_HALF else 0))
        event: Any = None
        if flow.handle is not None:
            link = self._attached(flow.handle)
            # A receiver may grant credit right after its attach, before our answer.
            active = (EndpointState.OPEN, EndpointState.OPEN_RECEIVED)
            event = link.on_flow(flow) if link.state in active else None
            if flow.drain and isinstance(link, ReceivingLink) and not link.credit:
                event = DrainAnswered(self, link)
        elif flow.echo:
            self.put_flow()
        self._flush()
        return event or WindowOpened(self)

    def on_transfer(self, buffer: bytes, start: int, end: int) -> Delivery | LinkDetached | None:
        fields = transfer.decode_transfer(buffer, start, end)
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL
        self._incoming_window -= 1
        if self._incoming_window < WINDOW // 2:
            self.put_flow()
        link = self._attached(fields[0])
        if not isinstance(link, ReceivingLink):
            raise SessionFailure("a transfer on a link for sending", condition="amqp:session:errant-link")
        if link.state is EndpointState.OPEN_RECEIVED:
            error = Error("amqp:link:transfer-limit-exceeded", "A transfer came before the link was attached.")
            link.close(error)
            return LinkDetached(link, error)
        return link.on_transfer(fields, buffer, end) if link.state is OPEN else None

    def on_burst(self, link: ReceivingLink, deliveries: list[Delivery]) -> None:
        """Add whole deliveries of one link, as `on_transfer` adds each."""
        count = len(deliveries)
        self._next_incoming_id = (self._next_incoming_id + count) & SERIAL
        self._incoming_window -= count
        if self._incoming_window < WINDOW // 2:
            self.put_flow()
        link.count(count)
        if deliveries and not deliveries[0].settled:
            self.received.update(zip(map(_id_of, deliveries), deliveries, strict=True))

    def on_disposition(self, body: Disposition) -> Disposed | None:
        known: dict[int, Any] = self.sent if body.role else self.received
        first = body.first or 0
        last = first if body.last is None else body.last
        ids = _range(first, last, known)
        deliveries = list(map(known.pop if body.settled else known.__getitem__, ids))
        if not deliveries:
            return None
        return Disposed(self, deliveries, body.state, bool(body.settled))

    def on_detach(self, detach: Detach) -> LinkDetached | None:
        link = self._remote_links.get(detach.handle or 0)
        return link.on_detach(detach) if link is not None else None

    def _attached(self, handle: int) -> Link:
        link = self._remote_links.get(handle)
        if link is None:
            raise SessionFailure(f"handle {handle} is not attached", condition="amqp:session:unattached-handle")
        return link

    def _link_answered_by(self, attach: Attach) -> Link | None:
        """Return the local link that this attach answers: same name, other role."""
        for link in self._links.values():
            waiting = link.state in (EndpointState.OPEN_SENT, EndpointState.CLOSE_PIPE)
            if waiting and link.name == attach.name and link.IS_RECEIVER is not attach.role:
                return link
        return None

    def _flush(self) -> None:
        while self._waiting:
            link, head, payload, last = self._waiting[0]
            if head is not None and self._remote_window <= 0:
                return
            self._waiting.popleft()
            if head is not None:
                link.queued -= last
                self._leave(link, head, payload, last)
            elif link.draining:
                link.drained()

    def _leave(self, link: SendingLink, head: bytes, payload: bytes, last: bool) -> None:
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & SERIAL
        if last:
            link.delivery_count = (link.delivery_count + 1) & SERIAL
        self.connection.put_transfer(self.channel, head, payload)


def _range(first: int, last: int, known: dict[int, Any]) -> list[int]:
    """Return the known ids from `first` to `last`, which may wrap. The cost does not depend on the range's width."""
    width = (last - first) & SERIAL
    if width >= SERIAL_HALF:
        raise ProtocolError(f"a disposition ends at {last}, before its first {first}", condition="amqp:invalid-field")
    if width == 0:
        return [first] if first in known else []
    if width <= len(known) and first <= last:
        return list(filter(known.__contains__, range(first, last + 1)))
    if width <= len(known):
        return [key for key in ((first + step) & SERIAL for step in range(width + 1)) if key in known]
    return [key for key in known if (key - first) & SERIAL <= width]


def id_ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Group consecutive delivery ids into ranges: a range must contain no other id."""
    if ids and ids == list(range(ids[0], ids[0] + len(ids))):
        return [(ids[0], ids[-1])]
    breaks = [at for at, step in enumerate(map(sub, ids[1:], ids), 1) if step != 1]
    starts, ends = [0, *breaks], [*breaks, len(ids)]
    return [(ids[start], ids[end - 1]) for start, end in zip(starts, ends, strict=True)] if ids else []
