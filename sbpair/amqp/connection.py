"""The state machine of a connection, client or server: bytes in -> events, calls -> bytes out. AMQP 1.0, part 2.4.

Invariant: it owns no socket and no clock. `now` is seconds of any monotonic clock. Nothing follows a ConnectionClosed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from sbpair.amqp import frames
from sbpair.amqp.endpoint import OPEN, EndpointState, EndpointStep, ProtocolEndpoint, first_free
from sbpair.amqp.frames import DispositionRange, read_transfers
from sbpair.amqp.link import CreditChanged, Delivery, LinkAttached, LinkAttaching, LinkDetached
from sbpair.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    decode_composite,
)
from sbpair.amqp.sasl import OK, SaslClient, SaslServer, offered, refusal
from sbpair.amqp.session import (
    Disposed,
    DrainAnswered,
    Session,
    SessionBegun,
    SessionEnded,
    SessionFailure,
    WindowOpened,
)
from sbpair.errors import ProtocolError

MAX_FRAME_SIZE = 65_536
"""The largest frame that a peer may send: the open frame announces it."""

CHANNEL_MAX = 4_999
"""As the service's: a client may begin a session for each link."""

IDLE_SECONDS = 240.0
"""How long a peer may be silent. The open frame states half of it, so that its heartbeats are in time."""

MAX_DESCRIPTION = 200
"""Characters of an error's description: any of them fit a frame of 512 bytes."""

NEVER = float("inf")

_TRANSFER = b"\x00\x53\x14"
_DISPOSITION = b"\x00\x53\x15"


@dataclass(slots=True)
class ConnectionOpened:
    """The peer has opened the connection."""

    open: Open


@dataclass(slots=True)
class ConnectionClosed:
    """The connection has ended, with all sessions and links, which are not reported one by one.

    `by_peer`: the peer closed first. Bytes may still wait to be written.
    """

    error: Error | None
    by_peer: bool


Event: TypeAlias = (
    ConnectionOpened | ConnectionClosed | SessionBegun | SessionEnded | LinkAttaching | LinkAttached | LinkDetached
    | CreditChanged | DrainAnswered | WindowOpened | Delivery | Disposed
)  # fmt: skip
"""Events come in the order in which they happened. They are facts: none needs an answer."""


class Connection(ProtocolEndpoint):
    """One side of an AMQP connection. A client has a SaslClient, a server a SaslServer.

    Its many attributes are the state that AMQP 1.0, part 2.4, gives a connection: parts of it would share all of them.
    """

    def __init__(
        self,
        sasl: SaslClient | SaslServer,
        *,
        container_id: str,
        hostname: str | None = None,
        idle_seconds: float = IDLE_SECONDS,
        max_frame_size: int = MAX_FRAME_SIZE,
        now: float = 0.0,
    ) -> None:
        super().__init__()
        self.remote_max_frame_size = frames.FRAME_MIN_MAX
        self._sasl = sasl
        self._open_frame = Open(container_id, hostname, max_frame_size, CHANNEL_MAX, int(idle_seconds * 500) or None)
        self._idle_seconds = idle_seconds
        self._remote_idle_seconds = 0.0
        self.last_received = now  # by the clock of `receive`
        self._last_sent = now
        self._buffer = frames.FrameBuffer(max_frame_size)
        self._read: Callable[[], bool] | None = self._read_header  # None once the headers have been read
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._sessions: dict[int, Session] = {}
        self._remote_sessions: dict[int, Session] = {}
        self._remote_channel_max = CHANNEL_MAX
        self._init_sent = self._signed_in = self._header_sent = self._close_sent = False
        self.over = False
        if isinstance(sasl, SaslClient):
            self._out.append(frames.SASL_HEADER)

    # For the owner.

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Return the events in the bytes. A protocol error by the peer ends the connection with an error."""
        return [event for events in self.receive_in_turn(data, now) for event in events]

    def receive_in_turn(self, data: bytes, now: float) -> Iterator[list[Event]]:
        """Yield the same events in parts: the owner answers each before the next frame, which we may answer, is read.

        Transfers and dispositions come together, up to the next other frame.
        """
        if not self.over:
            self.last_received = now
            try:
                more = self._buffer.feed(data)
                while more and not self.over and self._read is not None:
                    more = self._read()
                if more:
                    yield from self._read_frames()
            except ProtocolError as error:
                self.fail(Error(error.condition, error.message))
        yield self._take_events()

    def take(self) -> bytes:
        """Return and remove the bytes to write."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def wrote(self, now: float) -> None:
        """Record when bytes were last written: heartbeats are sent only after silence."""
        self._last_sent = now

    def begin(self) -> Session:
        """Begin a session; SessionBegun follows. Raises ProtocolError if the connection is not open."""
        if not self.usable or self.over:
            raise ProtocolError("a session needs an open connection", condition="amqp:illegal-state")
        session = Session(self, first_free(self._sessions, self._remote_channel_max, "channel"))
        self._sessions[session.channel] = session
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Send close; ConnectionClosed follows the peer's answer, however late. Before open it follows at once."""
        if self.can_close:
            self.step(EndpointStep.WE_CLOSE)
            self._send_close(Close(error))
        elif self.state is EndpointState.UNMAPPED and not self.over:
            self._end(error, by_peer=False)

    def fail(self, error: Error) -> None:
        """End the connection because of the peer's error or silence. ConnectionClosed follows, with `error`."""
        if self.over:
            return
        if self.state is EndpointState.UNMAPPED and self._header_sent:
            self._open()
        if self.can_close:
            self.close(Error(error.condition, (error.description or "")[:MAX_DESCRIPTION], error.info))
        self._end(error, by_peer=False)

    def tick(self, now: float) -> list[Event]:
        """Send a heartbeat if due, or fail a silent peer."""
        if not self.over:
            if now >= self._silence_ends_at:
                text = f"Nothing was heard for {self._idle_seconds:g} seconds."
                self.fail(Error("amqp:resource-limit-exceeded", text))
            elif now >= self._heartbeat_at:
                self._out.append(frames.EMPTY_FRAME)
                self._last_sent = now
        return self._take_events()

    def deadline(self) -> float:
        """Return when `tick` is due next; infinity for never."""
        return NEVER if self.over else min(self._silence_ends_at, self._heartbeat_at)

    @property
    def _silence_ends_at(self) -> float:
        return self.last_received + self._idle_seconds if self._idle_seconds else NEVER

    @property
    def _heartbeat_at(self) -> float:
        return self._last_sent + self._remote_idle_seconds / 2 if self._remote_idle_seconds and self.is_open else NEVER

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    @property
    def unread(self) -> bytes:
        """The bytes of an incomplete frame."""
        return self._buffer.unread

    def put(self, channel: int, body: bytes) -> None:
        # Dropped after close: the owner may still settle a delivery that came just before the peer's close.
        if self._close_sent:
            return
        if self.state is OPEN and len(body) + 8 > self.remote_max_frame_size:
            text = f"A frame of {len(body) + 8} bytes is more than the peer's {self.remote_max_frame_size}."
            self.fail(Error("amqp:frame-size-too-small", text))
            return
        self._out.append(frames.frame(body, channel=channel))

    def put_transfer(self, channel: int, head: bytes, payload: bytes) -> None:
        """Queue a frame that fits the peer's size. The payload is copied once, by `take`."""
        if not self._close_sent:
            self._out.append(frames.head(len(head) + len(payload), channel) + head)
            self._out.append(payload)

    def put_frames(self, pieces: list[bytes]) -> None:
        """Queue encoded frames, in pieces."""
        if not self._close_sent:
            self._out += pieces

    def _send_close(self, close: Close) -> None:
        self.put(0, close.encode())
        self._close_sent = True

    # Headers and SASL. Each reader returns whether to go on.

    def _read_header(self) -> bool:
        header = self._buffer.protocol_header()
        if header is None:
            return False
        if header == frames.SASL_HEADER and not self._signed_in:
            self._read = self._read_sasl
            if isinstance(self._sasl, SaslServer):
                self._out.append(frames.SASL_HEADER)
                self._put_sasl(self._sasl.offer())
            return True
        if header != frames.AMQP_HEADER:
            if isinstance(self._sasl, SaslServer):
                self._out.append(frames.AMQP_HEADER)
            raise ProtocolError("the peer speaks another version of AMQP", condition="amqp:not-implemented")
        if isinstance(self._sasl, SaslClient) and not self._signed_in:
            raise ProtocolError("the peer offers no SASL sign-in", condition="amqp:not-implemented")
        self._read = None
        self._signed_in = True
        if isinstance(self._sasl, SaslServer):
            self._send_header()
        return True

    def _read_sasl(self) -> bool:
        for _, buffer, start, end in self._buffer.frames(frames.SASL_FRAME):
            body, _ = decode_composite(buffer[start:end])
            self._on_sasl(body)
            if self._read != self._read_sasl or self.over:
                return True
        return False

    def _on_sasl(self, body: Composite) -> None:
        if isinstance(self._sasl, SaslServer) and isinstance(body, SaslInit):
            outcome = self._sasl.judge(body)
            self._put_sasl(outcome)
            self._signed(outcome)
        elif isinstance(self._sasl, SaslClient) and isinstance(body, SaslMechanisms) and not self._init_sent:
            if self._sasl.mechanism not in offered(body):
                text = f"The peer does not offer to sign in by {self._sasl.mechanism}."
                self._end(Error("amqp:unauthorized-access", text), by_peer=False)
            else:
                self._init_sent = True
                self._put_sasl(self._sasl.init(self._open_frame.hostname))
        elif isinstance(body, SaslOutcome) and self._init_sent:
            self._signed(body)
        else:
            raise ProtocolError(f"{body.NAME} came out of turn", condition="amqp:illegal-state")

    def _signed(self, outcome: SaslOutcome) -> None:
        if outcome.code != OK:
            self._end(refusal(outcome), by_peer=isinstance(self._sasl, SaslClient))
            return
        self._signed_in = True
        self._read = self._read_header
        if isinstance(self._sasl, SaslClient):
            self._send_header()
            self._open()

    def _send_header(self) -> None:
        self._header_sent = True
        self._out.append(frames.AMQP_HEADER)

    def _put_sasl(self, body: Composite) -> None:
        self._out.append(frames.frame(body.encode(), kind=frames.SASL_FRAME))

    def _open(self) -> None:
        self.step(EndpointStep.WE_OPEN)
        self.put(0, self._open_frame.encode())

    # AMQP.

    def _read_frames(self) -> Iterator[list[Event]]:
        remote, dispositions = self._remote_sessions, DispositionRange(self._on_performative)
        try:
            for channel, buffer, start, end in self._buffer.frames(frames.AMQP_FRAME):
                if start == end:
                    continue
                if buffer.startswith(_DISPOSITION, start):
                    self._buffer.skip_to(dispositions.add(channel, buffer, start, end))
                    continue
                dispositions.end()
                if buffer.startswith(_TRANSFER, start):
                    session = remote.get(channel)
                    if session is not None and session.state is OPEN:
                        self._read_transfers(session, buffer, start, end)
                        continue
                if self._events:
                    yield self._take_events()
                if not self.over:
                    frame = buffer[start:end]
                    self._on_performative(channel, decode_composite(frame)[0], frame)
                    yield self._take_events()
                if self.over:
                    break
        finally:
            dispositions.end()

    def _read_transfers(self, session: Session, buffer: bytes, start: int, end: int) -> None:
        """Read a transfer, and if it is a whole delivery, those after it that are encoded alike."""
        try:
            event = session.on_transfer(buffer, start, end)
        except SessionFailure as failure:
            self._events += session.fail(failure)
            return
        if event is None:
            return
        self._events.append(event)
        if isinstance(event, Delivery) and frames.same_head(buffer, start, end):
            deliveries, end = read_transfers(event.link, buffer, start, end, self._buffer.max_frame_size)
            session.on_burst(event.link, deliveries)
            self._events += deliveries
            self._buffer.skip_to(end)

    def _on_performative(self, channel: int, body: Composite, frame: bytes = b"") -> None:
        if isinstance(body, Open):
            self._on_open(body)
        elif isinstance(body, Close):
            self._on_close(body)
        elif self.state not in (EndpointState.OPEN, EndpointState.CLOSE_SENT):
            raise ProtocolError(f"{body.NAME} came before open", condition="amqp:illegal-state")
        elif isinstance(body, Begin):
            self._on_begin(channel, body)
        elif (session := self._remote_sessions.get(channel)) is not None:
            try:
                self._on_session(session, body, frame)
            except SessionFailure as failure:
                self._events += session.fail(failure)
        elif not isinstance(body, Detach | End):  # some clients detach after an end
            raise ProtocolError(f"channel {channel} has no session", condition="amqp:not-found")

    def _on_session(self, session: Session, body: Composite, frame: bytes) -> None:
        if isinstance(body, End):
            self._events += session.on_end(body)
            self._drop(session)
            return
        if session.state is not EndpointState.OPEN:
            return  # sent before the peer saw our end
        handle = _SESSION_FRAMES.get(type(body))
        if handle is not None:
            event = handle(session, body)
        elif isinstance(body, Transfer):
            event = session.on_transfer(frame, 0, len(frame))
        else:
            raise ProtocolError(f"{body.NAME} is not a session frame", condition="amqp:not-allowed")
        if event is not None:
            self._events.append(event)

    def _on_open(self, remote: Open) -> None:
        self.step(EndpointStep.THEY_OPEN)
        self.remote_max_frame_size = max(frames.FRAME_MIN_MAX, min(remote.max_frame_size or 0, 0x7FFFFFFF))
        self._remote_channel_max = min(CHANNEL_MAX, remote.channel_max or 0)
        self._remote_idle_seconds = (remote.idle_time_out or 0) / 1000
        if self.state is EndpointState.OPEN_RECEIVED:
            self._open()
        self._events.append(ConnectionOpened(remote))

    def _on_close(self, close: Close) -> None:
        self.step(EndpointStep.THEY_CLOSE)
        by_peer = self.state is EndpointState.CLOSE_RECEIVED
        if by_peer:
            self.step(EndpointStep.WE_CLOSE)
            self._send_close(Close())
        self._end(close.error if isinstance(close.error, Error) else None, by_peer=by_peer)

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if channel > CHANNEL_MAX or channel in self._remote_sessions:
            raise ProtocolError(f"channel {channel} is not free", condition="amqp:not-allowed")
        if begin.remote_channel is None:
            session = Session(self, first_free(self._sessions, self._remote_channel_max, "channel"))
            self._sessions[session.channel] = session
        else:
            asked = self._sessions.get(begin.remote_channel)
            if asked is None or asked.remote_channel is not None:
                raise ProtocolError("begin answers a session that was not asked for", condition="amqp:not-allowed")
            session = asked
        session.remote_channel = channel
        self._remote_sessions[channel] = session
        begun = session.on_begin(begin)
        if begun is not None:
            self._events.append(begun)

    def _drop(self, session: Session) -> None:
        self._sessions.pop(session.channel, None)
        if session.remote_channel is not None:
            self._remote_sessions.pop(session.remote_channel, None)

    def _end(self, error: Error | None, *, by_peer: bool) -> None:
        self.over = True
        self._events.append(ConnectionClosed(error, by_peer))


_SESSION_FRAMES: dict[type[Composite], Callable[[Session, Any], Any]] = {
    Flow: Session.on_flow,
    Disposition: Session.on_disposition,
    Attach: Session.on_attach,
    Detach: Session.on_detach,
}
