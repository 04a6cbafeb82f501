"""A connection: bytes in -> events, calls -> bytes out, for a client and for a server.

The law of this file: it owns no socket and no clock. `receive(data, now)` and `tick(now)` are told the time (seconds,
of any monotonic clock); `take()` gives the bytes to write. After Closed, which comes once, nothing more is said or
heard. AMQP 1.0, part 2.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbpair.amqp import burst, frames
from sbpair.amqp.disposition import DispositionRange
from sbpair.amqp.endpoint import OPEN, EndpointState, EndpointStep, ProtocolEndpoint
from sbpair.amqp.events import ConnectionClosed, ConnectionOpened, Event
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
from sbpair.amqp.sasl import OK, SaslClient, SaslServer, offered
from sbpair.amqp.session import Session
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.link import ReceivingLink

MAX_FRAME_SIZE = 65_536
CHANNEL_MAX = 255
IDLE_SECONDS = 240.0
"""How long a silent peer is given; it is told half of it, so that its heartbeats are in time."""

MAX_DESCRIPTION = 200
"""Characters of an error's description: a frame of 512 bytes has room for them, whatever they are."""

NEVER = float("inf")

_TRANSFER = b"\x00\x53\x14"
_DISPOSITION = b"\x00\x53\x15"


class Connection(ProtocolEndpoint):
    """One side of an AMQP connection. A client has a SaslClient, a server a SaslServer."""

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
        self.sasl_failed = False
        self._sasl = sasl
        self._mine = Open(container_id, hostname, max_frame_size, CHANNEL_MAX, int(idle_seconds * 500) or None)
        self._idle_seconds = idle_seconds
        self._remote_idle_seconds = 0.0
        self._heard = self._spoke = now
        self._buffer = frames.FrameBuffer(max_frame_size)
        self._read: Callable[[], bool] = self._read_header
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._sessions: dict[int, Session] = {}
        self._remote_sessions: dict[int, Session] = {}
        self._remote_channel_max = CHANNEL_MAX
        self._signed_in = False
        self._greeted = False
        self._said_goodbye = False
        self._over = False
        if isinstance(sasl, SaslClient):
            self._out.append(frames.SASL_HEADER)

    # What the owner does.

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take in bytes; answers what they mean. A peer that breaks the protocol is told so, and Closed follows."""
        if not self._over:
            self._heard = now
            try:
                more = self._buffer.feed(data)
                while more and not self._over:
                    more = self._read()
            except ProtocolError as error:
                self.fail(Error(error.condition, error.message))
        return self._told()

    def take(self) -> bytes:
        """The bytes that wait to be written, in one piece."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def wrote(self, now: float) -> None:
        """Tell when bytes were last written, so that heartbeats are sent only into silence."""
        self._spoke = now

    def begin(self) -> Session:
        """Begin a session; SessionBegun answers. Raises ProtocolError before we have opened, and after the end."""
        if not self.usable or self._over:
            raise ProtocolError("a session needs an open connection", condition="amqp:illegal-state")
        session = Session(self, self._free_channel())
        self._sessions[session.channel] = session
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Say goodbye; the peer's answer arrives as Closed. Before we have opened nothing is said, and Closed follows.

        A peer that never answers is not given up on here: how long that may take is the owner's to say.
        """
        if self.can_close:
            self.step(EndpointStep.WE_CLOSE)
            self._goodbye(Close(error))
        elif self.state is EndpointState.UNMAPPED and not self._over:
            self._end(error, by_peer=False)

    def fail(self, error: Error) -> None:
        """End the connection over something the peer did, or did not do in time. Closed follows, with `error`."""
        if self._over:
            return
        if self.state is EndpointState.UNMAPPED and self._greeted:
            self._open()
        if self.can_close:
            self.close(Error(error.condition, (error.description or "")[:MAX_DESCRIPTION], error.info))
        self._end(error, by_peer=False)

    def tick(self, now: float) -> list[Event]:
        """Do what time demands: send a heartbeat, or give up on a peer that has gone quiet."""
        if not self._over:
            if now >= self._quiet_at:
                text = f"Nothing was heard for {self._idle_seconds:g} seconds."
                self.fail(Error("amqp:resource-limit-exceeded", text))
            elif now >= self._beat_at:
                self._out.append(frames.EMPTY_FRAME)
                self._spoke = now
        return self._told()

    def deadline(self) -> float:
        """When `tick` is wanted next, if nothing happens before; infinity for never."""
        return NEVER if self._over else min(self._quiet_at, self._beat_at)

    @property
    def heard(self) -> float:
        """When anything came last, by the clock that `receive` is told."""
        return self._heard

    @property
    def _quiet_at(self) -> float:
        return self._heard + self._idle_seconds if self._idle_seconds else NEVER

    @property
    def _beat_at(self) -> float:
        return self._spoke + self._remote_idle_seconds / 2 if self._remote_idle_seconds and self.is_open else NEVER

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    @property
    def over(self) -> bool:
        return self._over

    @property
    def unread(self) -> bytes:
        """What has come of a frame that is not whole yet."""
        return self._buffer.unread

    def put(self, channel: int, body: bytes) -> None:
        # What its owner still says of a delivery that came just before the peer's close is for nobody.
        if self._said_goodbye:
            return
        if self.state is OPEN and len(body) + 8 > self.remote_max_frame_size:
            text = f"A frame of {len(body) + 8} bytes is more than the peer's {self.remote_max_frame_size}."
            self.fail(Error("amqp:frame-size-too-small", text))
            return
        self._out.append(frames.frame(body, channel=channel))

    def put_transfer(self, channel: int, head: bytes, payload: bytes) -> None:
        """A frame that its link has cut to the peer's size. The payload is copied once, when it is taken."""
        if not self._said_goodbye:
            self._out.append(frames.head(len(head) + len(payload), channel) + head)
            self._out.append(payload)

    def put_frames(self, pieces: list[bytes]) -> None:
        """Frames as they leave, in pieces."""
        if not self._said_goodbye:
            self._out += pieces

    def _goodbye(self, close: Close) -> None:
        self.put(0, close.encode())
        self._said_goodbye = True

    # Signing in: headers and SASL, step by step. Each reader answers whether to go on.

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
            raise ProtocolError("the peer does not let anybody sign in", condition="amqp:not-implemented")
        self._read = self._read_frames
        self._signed_in = True
        if isinstance(self._sasl, SaslServer):
            self._greet()
        return True

    def _read_sasl(self) -> bool:
        for _, buffer, start, end in self._buffer.frames(frames.SASL_FRAME):
            body, _ = decode_composite(buffer[start:end])
            self._on_sasl(body)
            if self._read != self._read_sasl or self._over:
                return True
        return False

    def _on_sasl(self, body: Composite) -> None:
        if isinstance(self._sasl, SaslServer) and isinstance(body, SaslInit):
            outcome = self._sasl.judge(body)
            self._put_sasl(outcome)
            self._signed(outcome)
        elif isinstance(self._sasl, SaslClient) and isinstance(body, SaslMechanisms):
            if self._sasl.mechanism not in offered(body):
                self._refused(f"The peer does not offer to sign in by {self._sasl.mechanism}.", by_peer=False)
            else:
                self._put_sasl(self._sasl.init(self._mine.hostname))
        elif isinstance(self._sasl, SaslClient) and isinstance(body, SaslOutcome):
            self._signed(body)
        else:
            raise ProtocolError(f"{body.NAME} came out of turn", condition="amqp:illegal-state")

    def _signed(self, outcome: SaslOutcome) -> None:
        if outcome.code != OK:
            self._refused("The sign-in was refused (SASL).", by_peer=isinstance(self._sasl, SaslClient))
            return
        self._signed_in = True
        self._read = self._read_header
        if isinstance(self._sasl, SaslClient):
            self._greet()
            self._open()

    def _refused(self, text: str, *, by_peer: bool) -> None:
        self.sasl_failed = True
        self._end(Error("amqp:unauthorized-access", text), by_peer=by_peer)

    def _greet(self) -> None:
        self._greeted = True
        self._out.append(frames.AMQP_HEADER)

    def _put_sasl(self, body: Composite) -> None:
        self._out.append(frames.frame(body.encode(), kind=frames.SASL_FRAME))

    def _open(self) -> None:
        self.step(EndpointStep.WE_OPEN)
        self.put(0, self._mine.encode())

    # AMQP proper.

    def _read_frames(self) -> bool:
        remote, add, dispositions = self._remote_sessions, self._events.append, DispositionRange(self._on_performative)
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
                        delivery = session.on_transfer(buffer, start, end)
                        if delivery is not None:
                            add(delivery)
                            if burst.follows(buffer, start, end):
                                self._buffer.skip_to(self._read_burst(session, delivery.link, buffer, start, end))
                        continue
                frame = buffer[start:end]
                self._on_performative(channel, decode_composite(frame)[0], frame)
                if self._over:
                    break
        finally:
            dispositions.end()
        return False

    def _read_burst(self, session: Session, link: ReceivingLink, buffer: bytes, start: int, end: int) -> int:
        """Read on behind a delivery, while what follows is written as it is; answers where that ends."""
        deliveries, end = burst.read_on(link, buffer, start, end, self._buffer.max_frame_size)
        session.on_burst(link, deliveries)
        self._events += deliveries
        return end

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
            # What comes for a session that is gone was on its way when it ended.
            self._on_session(session, body, frame)

    def _on_session(self, session: Session, body: Composite, frame: bytes) -> None:
        if isinstance(body, End):
            self._events += session.on_end(body)
            self._drop(session)
            return
        if session.state is not EndpointState.OPEN:
            return
        told: Any
        if isinstance(body, Flow):
            told = session.on_flow(body)
        elif isinstance(body, Disposition):
            told = session.on_disposition(body)
        elif isinstance(body, Attach):
            told = session.on_attach(body)
        elif isinstance(body, Detach):
            told = session.on_detach(body)
        elif isinstance(body, Transfer):
            told = session.on_transfer(frame, 0, len(frame))
        else:
            raise ProtocolError(f"{body.NAME} is no frame of a session", condition="amqp:not-allowed")
        if told is not None:
            self._events.append(told)

    def _on_open(self, remote: Open) -> None:
        self.step(EndpointStep.THEY_OPEN)
        size = frames.FRAME_MIN_MAX if remote.max_frame_size is None else remote.max_frame_size
        self.remote_max_frame_size = max(frames.FRAME_MIN_MAX, min(size, 0x7FFFFFFF))
        self._remote_channel_max = min(CHANNEL_MAX, 0xFFFF if remote.channel_max is None else remote.channel_max)
        self._remote_idle_seconds = (remote.idle_time_out or 0) / 1000
        if self.state is EndpointState.OPEN_RECEIVED:
            self._open()
        self._events.append(ConnectionOpened(remote))

    def _on_close(self, close: Close) -> None:
        self.step(EndpointStep.THEY_CLOSE)
        by_peer = self.state is EndpointState.CLOSE_RECEIVED
        if by_peer:
            self.step(EndpointStep.WE_CLOSE)
            self._goodbye(Close())
        self._end(close.error if isinstance(close.error, Error) else None, by_peer=by_peer)

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if channel > CHANNEL_MAX or channel in self._remote_sessions:
            raise ProtocolError(f"channel {channel} is not free", condition="amqp:not-allowed")
        if begin.remote_channel is None:
            session = Session(self, self._free_channel())
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
        self._over = True
        self._events.append(ConnectionClosed(error, by_peer))

    def _free_channel(self) -> int:
        for channel in range(self._remote_channel_max + 1):
            if channel not in self._sessions:
                return channel
        raise ProtocolError("no channel is free", condition="amqp:resource-limit-exceeded")
