"""A connection of AMQP 1.0, checked frame by frame against the specification, as one of its two sides sees it.

Invariant: a finding is a frame of our side that breaks a rule, given all that our side has received by then. Once the
peer breaks a rule, no rule binds our side any more, and nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.strict_amqp.values import Value, Violation, check_message, decode, fields_of, name_of

OURS, THEIRS = 0, 1

OUR_CLIENTS = "sbpair-"
"""How the names of their containers begin."""

SASL, AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
MIN_MAX_FRAME_SIZE, MAX_TAG = 512, 32
SENDER, RECEIVER = False, True
SERIAL, SERIAL_HALF = 0xFFFFFFFF, 0x80000000


def behind(one: int, other: int) -> bool:
    """Return whether a serial number comes before another one."""
    return 0 < (other - one) & SERIAL < SERIAL_HALF


def end_of(start: int, window: int) -> int:
    """Return the first serial number outside of a window. One that is half of all numbers ahead would seem behind."""
    return start + min(window, SERIAL_HALF - 1) & SERIAL


@dataclass(eq=False)
class Link:
    """A link by its name; `ends` are the attaches of both sides, `closed` says which side has detached."""

    name: str
    sender: int
    ends: list[dict[str, Any] | None] = field(default_factory=lambda: [None, None])
    detached: list[bool] = field(default_factory=lambda: [False, False])
    count: int = 0
    limit: int = 0
    partial: list[Any] | None = None
    tags: dict[bytes, int] = field(default_factory=dict)


@dataclass(eq=False)
class Session:
    """A session; each list is by side. `next_out` numbers transfers, `window_end` is the first that may not be sent."""

    begins: list[dict[str, Any] | None] = field(default_factory=lambda: [None, None])
    next_out: list[int] = field(default_factory=lambda: [0, 0])
    window_end: list[int] = field(default_factory=lambda: [0, 0])
    next_delivery: list[int | None] = field(default_factory=lambda: [None, None])
    handles: list[dict[int, Link]] = field(default_factory=lambda: [{}, {}])
    links: dict[tuple[str, int], Link] = field(default_factory=dict)
    unsettled: list[dict[int, tuple[Link, bytes]]] = field(default_factory=lambda: [{}, {}])


class Checker:
    """Feed it what our side receives and sends, in that order; read `findings`.

    A peer is checked too if it is a command of ours in another process. It may not know yet what our side has written.
    """

    def __init__(self, max_frames: int = 3_000, *, messages: bool = True) -> None:
        """Check at most `max_frames`; the content of messages, and frames of a peer of ours, only with `messages`."""
        self.findings: list[str] = []
        self.frames = 0
        self._max_frames, self._messages = max_frames, messages
        self._is_own = [side == OURS for side in (0, 1)]
        self._over = False
        self._buffers = [bytearray(), bytearray()]
        self._layer = ["header", "header"]  # what comes next of each side: header, sasl, amqp header, amqp, closed
        self._opens: list[dict[str, Any] | None] = [None, None]
        self._sessions: list[dict[int, Session]] = [{}, {}]
        self._unanswered: list[dict[int, Session]] = [{}, {}]  # begun and ended before the other side's begin
        self._mechanisms: list[str] = []
        self._after_write: list[Callable[[], None]] = []

    def feed(self, data: bytes, side: int) -> None:
        if self._over:
            return
        self._buffers[side] += data
        try:
            while not self._over and self._step(side):
                pass
            if side == OURS:
                for change in self._after_write:
                    change()
                self._after_write.clear()
        except Violation as error:
            self._over = True
            if self._is_own[side]:
                self.findings.append(str(error))

    def _step(self, side: int) -> bool:
        """Check the next header or frame. Return False if it is not complete."""
        buffer, layer = self._buffers[side], self._layer[side]
        if layer in ("header", "amqp header"):
            if len(buffer) < 8:
                return False
            self._on_header(side, bytes(buffer[:8]))
            del buffer[:8]
            return True
        if len(buffer) < 8 or len(buffer) < int.from_bytes(buffer[:4]):
            return False
        size = int.from_bytes(buffer[:4])
        if size < 8:
            raise Violation(f"a frame says that it has {size} bytes")
        frame = bytes(buffer[:size])
        del buffer[:size]
        self.frames += 1
        if self.frames > self._max_frames:
            self._over = True
            return False
        self._on_frame(side, size, frame)
        return True

    def _on_header(self, side: int, header: bytes) -> None:
        if header == SASL and self._layer[side] == "header":
            self._layer[side] = "sasl"
        elif header == AMQP:
            self._layer[side] = "amqp"
        elif side == OURS:
            raise Violation(f"the header {header!r} is neither SASL's nor AMQP's")
        else:
            self._over = True

    def _on_frame(self, side: int, size: int, frame: bytes) -> None:
        offset, kind, channel = 4 * frame[4], frame[5], int.from_bytes(frame[6:8])
        layer = self._layer[side]
        if not 8 <= offset <= size:
            raise Violation(f"a frame of {size} bytes has its body at {offset}")
        if size > self._max_size(1 - side):
            raise Violation(f"a frame has {size} bytes, more than the peer's {self._max_size(1 - side)}")
        if kind != (1 if layer == "sasl" else 0):
            raise Violation(f"a frame of type {kind} in the layer {layer}")
        if layer == "closed":
            raise Violation("a frame follows close")
        if offset < size:
            body, end = decode(frame, offset)
            self._on_body(side, channel, body, frame[end:])
        elif layer == "sasl" or self._opens[side] is None:
            raise Violation("an empty frame comes before open")

    def _on_body(self, side: int, channel: int, body: Value, payload: bytes) -> None:
        name = name_of(body)
        if name is None:
            raise Violation("the body of a frame has no descriptor that is known")
        fields = fields_of(body)
        if payload and name != "transfer":
            raise Violation(f"{len(payload)} bytes follow {name}")
        if self._layer[side] == "sasl":
            self._on_sasl(side, name, fields)
        elif name == "open":
            self._on_open(side, fields)
        elif self._opens[side] is None:
            raise Violation(f"{name} comes before open")
        elif name == "close":
            self._layer[side] = "closed"
        elif name == "begin":
            self._on_begin(side, channel, fields)
        else:
            self._on_session_frame(side, channel, name, fields, payload)

    def _max_size(self, side: int) -> int:
        """Return the largest frame that a side accepts. A side that has not opened accepts the smallest maximum."""
        opened = self._opens[side]
        if opened is None:
            return MIN_MAX_FRAME_SIZE
        return SERIAL if opened["max-frame-size"] is None else opened["max-frame-size"]

    def _on_sasl(self, side: int, name: str, fields: dict[str, Any]) -> None:
        if name == "sasl-mechanisms":
            given = fields["sasl-server-mechanisms"]
            self._mechanisms = [given] if isinstance(given, str) else [each.data for each in given]
            if not self._mechanisms:
                raise Violation("no mechanism is offered")
        elif name == "sasl-init":
            if self._mechanisms and fields["mechanism"] not in self._mechanisms:
                raise Violation(f"the mechanism {fields['mechanism']} is not offered")
            self._layer[side] = "amqp header"
        elif name == "sasl-outcome":
            self._layer[side] = "amqp header"
        elif not name.startswith("sasl-"):
            raise Violation(f"{name} within SASL")

    def _on_open(self, side: int, fields: dict[str, Any]) -> None:
        if self._opens[side] is not None:
            raise Violation("a second open")
        size = fields["max-frame-size"]
        if size is not None and size < MIN_MAX_FRAME_SIZE:
            raise Violation(f"max-frame-size is {size}, less than {MIN_MAX_FRAME_SIZE}")
        self._opens[side] = fields
        self._is_own[side] = side == OURS or (self._messages and fields["container-id"].startswith(OUR_CLIENTS))

    def _on_begin(self, side: int, channel: int, fields: dict[str, Any]) -> None:
        opened = self._opens[1 - side]
        channel_max = None if opened is None else opened["channel-max"]
        if channel_max is not None and channel > channel_max:
            raise Violation(f"begin on channel {channel}, beyond the peer's channel-max {channel_max}")
        if channel in self._sessions[side]:
            raise Violation(f"begin on channel {channel}, which has a session")
        answered = fields["remote-channel"]
        asked = self._unanswered[1 - side].pop(answered, None) or self._sessions[1 - side].get(answered)
        session = Session() if answered is None else asked
        if session is None or session.begins[side] is not None:
            raise Violation(f"begin answers channel {answered}, which does not wait for an answer")
        session.begins[side] = fields
        session.next_out[side] = fields["next-outgoing-id"]
        # What a side accepts counts from the id that the other one begins with.
        theirs = session.begins[1 - side]
        if theirs is not None:
            session.window_end[1 - side] = end_of(theirs["next-outgoing-id"], fields["incoming-window"])
            session.window_end[side] = end_of(fields["next-outgoing-id"], theirs["incoming-window"])
        self._sessions[side][channel] = session

    def _on_session_frame(self, side: int, channel: int, name: str, fields: dict[str, Any], payload: bytes) -> None:
        session = self._sessions[side].get(channel)
        if session is None:
            raise Violation(f"{name} on channel {channel}, which has no session")
        if name == "attach":
            self._on_attach(session, side, fields)
        elif name == "flow":
            self._on_flow(session, side, fields)
        elif name == "transfer":
            self._on_transfer(session, side, fields, payload)
        elif name == "disposition":
            self._on_disposition(session, side, fields)
        elif name == "detach":
            self._on_detach(session, side, fields)
        elif name == "end":
            del self._sessions[side][channel]
            if session.begins[1 - side] is None:
                self._unanswered[side][channel] = session
        else:
            raise Violation(f"{name} is no frame of a session")

    def _on_attach(self, session: Session, side: int, fields: dict[str, Any]) -> None:
        handle = fields["handle"]
        theirs = session.begins[1 - side]
        limit = None if theirs is None else theirs["handle-max"]
        if limit is not None and handle > limit:
            raise Violation(f"attach with the handle {handle}, beyond the peer's handle-max {limit}")
        if handle in session.handles[side]:
            raise Violation(f"attach with the handle {handle}, which is in use")
        if fields["role"] is SENDER and fields["initial-delivery-count"] is None:
            raise Violation("a sender's attach has no initial-delivery-count")
        for terminus, name in ((fields["source"], "source"), (fields["target"], "target")):
            if terminus is not None:
                _check_terminus(fields_of(terminus), name)
        sender = side if fields["role"] is SENDER else 1 - side
        key = (fields["name"], sender)
        link = session.links.setdefault(key, Link(*key))
        if link.ends[side] is not None:
            raise Violation(f"attach of the link {fields['name']!r}, which is attached")
        link.ends[side] = fields
        link.detached[side] = False
        session.handles[side][handle] = link
        if sender == side:
            # Credit that was granted before counts from here.
            link.count = fields["initial-delivery-count"]
            link.limit = link.limit + link.count & SERIAL

    def _on_detach(self, session: Session, side: int, fields: dict[str, Any]) -> None:
        link = self._link(session, side, fields["handle"], "detach")
        del session.handles[side][fields["handle"]]
        link.detached[side] = True
        other = link.ends[1 - side]
        if other is None or link.detached[1 - side]:
            session.links.pop((link.name, link.sender), None)

    def _link(self, session: Session, side: int, handle: int, name: str) -> Link:
        link = session.handles[side].get(handle)
        if link is None:
            raise Violation(f"{name} with the handle {handle}, which is not attached")
        return link

    def _on_flow(self, session: Session, side: int, fields: dict[str, Any]) -> None:
        theirs = session.begins[1 - side]
        incoming = fields["next-incoming-id"]
        if (incoming is None) != (theirs is None) and (side == OURS or theirs is None):
            raise Violation("next-incoming-id of flow is given just when the peer's begin has come")
        if fields["next-outgoing-id"] != session.next_out[side]:
            raise Violation(f"next-outgoing-id of flow is {fields['next-outgoing-id']}, not {session.next_out[side]}")
        if incoming is not None:
            if behind(session.next_out[1 - side], incoming):
                raise Violation(f"next-incoming-id of flow is {incoming}, beyond {session.next_out[1 - side]}")
            session.window_end[1 - side] = end_of(incoming, fields["incoming-window"])
        if fields["handle"] is None:
            named = [name for name in ("delivery-count", "link-credit", "available") if fields[name] is not None]
            if named or fields["drain"]:
                raise Violation(f"flow without a handle has {', '.join(named) or 'drain'}")
            return
        self._on_link_flow(self._link(session, side, fields["handle"], "flow"), side, fields)

    def _on_link_flow(self, link: Link, side: int, fields: dict[str, Any]) -> None:
        count = fields["delivery-count"]
        if side == link.sender:
            if count is None:
                raise Violation("a sender's flow has no delivery-count")
            if count != link.count and (behind(count, link.count) or behind(link.limit, count)):
                raise Violation(f"delivery-count of flow is {count}: {link.count} were sent, {link.limit} may be")
            link.count = count
            return
        if count is None and link.ends[link.sender] is not None and side == OURS:
            raise Violation("a receiver's flow has no delivery-count, and the sender's attach has come")
        if fields["link-credit"] is not None:
            sent = link.ends[link.sender]
            known = count if count is not None else 0 if sent is None else sent["initial-delivery-count"]
            self._lower(link, known + fields["link-credit"] & SERIAL)

    def _lower(self, link: Link, limit: int) -> None:
        """Set the limit of a link. What our side has queued by then, and not written, may still follow a lower one.

        So may all that the peer sends, before it knows.
        """
        if not behind(limit, link.limit):
            link.limit = limit
        elif link.sender == OURS:
            self._after_write.append(lambda: setattr(link, "limit", limit))

    def _on_transfer(self, session: Session, side: int, fields: dict[str, Any], payload: bytes) -> None:
        link = self._link(session, side, fields["handle"], "transfer")
        if link.sender != side:
            raise Violation("transfer on a link whose receiver is its sender")
        number = session.next_out[side]
        if not behind(number, session.window_end[side]):
            raise Violation(
                f"transfer {number} is outside of the peer's window, which ends at {session.window_end[side]}"
            )
        session.next_out[side] = number + 1 & SERIAL
        if link.partial is None:
            link.partial = [*self._begin_delivery(session, link, side, fields), bytearray()]
        elif fields["delivery-id"] not in (None, link.partial[0]):
            raise Violation(f"delivery {fields['delivery-id']} begins within delivery {link.partial[0]}")
        elif fields["delivery-tag"] not in (None, link.partial[1]):
            raise Violation(f"delivery {link.partial[0]} changes its tag")
        link.partial[2] = link.partial[2] or bool(fields["settled"])
        link.partial[4] += payload
        if fields["aborted"]:
            session.unsettled[side].pop(link.partial[0], None)
            link.tags.pop(link.partial[1], None)
            link.partial = None
        elif not fields["more"]:
            self._end_delivery(session, link, side)

    def _begin_delivery(self, session: Session, link: Link, side: int, fields: dict[str, Any]) -> list[Any]:
        """Return the id, the tag, whether it is settled, and the message format."""
        number, tag = fields["delivery-id"], fields["delivery-tag"]
        if number is None or tag is None or fields["message-format"] is None:
            raise Violation("the first transfer of a delivery lacks its id, tag or message-format")
        expected = session.next_delivery[side]
        if expected is not None and number != expected:
            raise Violation(f"delivery {number} follows delivery {expected - 1}")
        session.next_delivery[side] = number + 1 & SERIAL
        if len(tag) > MAX_TAG:
            raise Violation(f"a delivery-tag has {len(tag)} bytes")
        if tag in link.tags:
            raise Violation(f"the delivery-tag {tag!r} is in use on its link")
        if not behind(link.count, link.limit):
            raise Violation(f"a delivery without credit on the link {link.name!r}")
        link.count = link.count + 1 & SERIAL
        link.tags[tag] = number
        session.unsettled[side][number] = (link, tag)
        return [number, tag, False, fields["message-format"]]

    def _end_delivery(self, session: Session, link: Link, side: int) -> None:
        number, tag, settled, message_format, partial = link.partial or ()
        payload = bytes(partial)
        link.partial = None
        sender, receiver = link.ends[side], link.ends[1 - side]
        mode = None if sender is None else sender["snd-settle-mode"]
        if mode in (0, 1) and settled != (mode == 1):
            raise Violation(f"a delivery with settled={settled} on a link with the snd-settle-mode {mode}")
        limit = 0 if receiver is None else receiver["max-message-size"] or 0
        if 0 < limit < len(payload):
            raise Violation(f"a message has {len(payload)} bytes, more than the link's {limit}")
        if settled:
            session.unsettled[side].pop(number, None)
            link.tags.pop(tag, None)
        if self._messages:
            check_message(payload, message_format)

    def _on_disposition(self, session: Session, side: int, fields: dict[str, Any]) -> None:
        sender = side if fields["role"] is SENDER else 1 - side
        first, last = fields["first"], fields["first"] if fields["last"] is None else fields["last"]
        if behind(last, first):
            raise Violation(f"disposition of {first} to {last}")
        expected = session.next_delivery[sender]
        if expected is None or not behind(last, expected):
            raise Violation(f"disposition of {last}, which was not sent")
        for number in range(first, first + (last - first & SERIAL) + 1) if fields["settled"] else ():
            link, tag = session.unsettled[sender].pop(number & SERIAL, (None, b""))
            if link is not None:
                link.tags.pop(tag, None)


def _check_terminus(fields: dict[str, Any], name: str) -> None:
    if fields.get("dynamic") and fields["address"] is not None and name == "source":
        raise Violation("a dynamic source has an address")
