"""A connection: bytes in -> events, calls -> bytes out, for a client and for a server.

The law of this file: it owns no socket and no clock. `receive(data, now)` and `tick(now)` are told the time (seconds,
of any monotonic clock); `take()` gives the bytes to write. After Closed, nothing more comes out of it. AMQP 1.0, part 2.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sbpair.amqp import frames
from sbpair.amqp.endpoint import Endpoint, State, Step
from sbpair.amqp.events import Closed, Event, Opened
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
    decode_composite,
)
from sbpair.amqp.sasl import OK, SaslClient, SaslServer
from sbpair.amqp.session import Session
from sbpair.errors import ProtocolError

MAX_FRAME_SIZE = 65_536
CHANNEL_MAX = 255
IDLE_SECONDS = 240.0
"""How long a silent peer is given; it is told half of it, so that its heartbeats are in time."""

_TRANSFER = b"\x00\x53\x14"


class Connection(Endpoint):
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
        self._mine = Open(container_id, hostname, max_frame_size, CHANNEL_MAX, int(idle_seconds * 500))
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
        self._over = False
        if isinstance(sasl, SaslClient):
            self._out.append(frames.SASL_HEADER)

    # What the owner does.

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take in bytes; answers what they mean. A peer that breaks the protocol is told so, and Closed follows."""
        if self._over:
            return []
        self._heard = now
        self._buffer.feed(data)
        try:
            while len(self._buffer) and not self._over and self._read():
                pass
        except ProtocolError as error:
            self.fail(Error(error.condition, error.message))
        events, self._events = self._events, []
        return events

    def take(self) -> bytes:
        """The bytes that wait to be written, in one piece."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def wrote(self, now: float) -> None:
        """Tell when bytes were last written, so that heartbeats are sent only into silence."""
        self._spoke = now

    def begin(self) -> Session:
        session = Session(self, self._free_channel())
        self._sessions[session.channel] = session
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Say goodbye; the peer's answer arrives as Closed."""
        if self.can_close:
            self.step(Step.WE_CLOSE)
            self.put(0, Close(error).encode())

    def fail(self, error: Error) -> None:
        """End the connection over something the peer did, or did not do in time."""
        if self._over:
            return
        if self.state in (State.UNMAPPED, State.OPEN_RECEIVED) and self._signed_in:
            self._open()
        self.close(error)
        self._end(error, by_peer=False)

    def tick(self, now: float) -> list[Event]:
        """Do what time demands: send a heartbeat, or give up on a peer that has gone quiet."""
        if self._over:
            return []
        if self._idle_seconds and now - self._heard >= self._idle_seconds:
            self.fail(Error("amqp:resource-limit-exceeded", f"Nothing was heard for {self._idle_seconds:g} seconds."))
        elif self._remote_idle_seconds and self.state is State.OPEN and now - self._spoke >= self._beat:
            self._out.append(frames.EMPTY_FRAME)
        events, self._events = self._events, []
        return events

    def deadline(self) -> float:
        """When `tick` is wanted next, if nothing happens before; infinity for never."""
        quiet = self._heard + self._idle_seconds if self._idle_seconds else float("inf")
        beat = self._spoke + self._beat if self._remote_idle_seconds else float("inf")
        return min(quiet, beat)

    @property
    def _beat(self) -> float:
        return self._remote_idle_seconds / 2

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    @property
    def over(self) -> bool:
        return self._over

    def put(self, channel: int, body: bytes) -> None:
        self._out.append(frames.frame(body, channel=channel))

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
            self._out.append(frames.AMQP_HEADER)
            raise ProtocolError("the peer speaks another version of AMQP", condition="amqp:not-implemented")
        self._read = self._read_frames
        self._signed_in = True
        if isinstance(self._sasl, SaslServer):
            self._out.append(frames.AMQP_HEADER)
        return True

    def _read_sasl(self) -> bool:
        for _, buffer, start, end in self._buffer.frames(frames.SASL_FRAME):
            body, _ = decode_composite(buffer[:end], start)
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
            self._put_sasl(self._sasl.init(self._mine.hostname))
        elif isinstance(self._sasl, SaslClient) and isinstance(body, SaslOutcome):
            self._signed(body)
        else:
            raise ProtocolError(f"{body.NAME} came out of turn", condition="amqp:illegal-state")

    def _signed(self, outcome: SaslOutcome) -> None:
        if outcome.code != OK:
            self.sasl_failed = True
            self._end(Error("amqp:unauthorized-access", "The sign-in was refused (SASL)."), by_peer=True)
            return
        self._signed_in = True
        self._read = self._read_header
        if isinstance(self._sasl, SaslClient):
            self._out.append(frames.AMQP_HEADER)
            self._open()

    def _put_sasl(self, body: Composite) -> None:
        self._out.append(frames.frame(body.encode(), kind=frames.SASL_FRAME))

    def _open(self) -> None:
        self.step(Step.WE_OPEN)
        self.put(0, self._mine.encode())

    # AMQP proper.

    def _read_frames(self) -> bool:
        remote, add = self._remote_sessions, self._events.append
        for channel, buffer, start, end in self._buffer.frames(frames.AMQP_FRAME):
            if start == end:
                continue
            if buffer.startswith(_TRANSFER, start):
                session = remote.get(channel)
                if session is not None and session.state is State.OPEN:
                    delivery = session.on_transfer(buffer, start, end)
                    if delivery is not None:
                        add(delivery)
                continue
            body, _ = decode_composite(buffer[:end] if len(buffer) > end else buffer, start)
            self._on_performative(channel, body)
            if self._over:
                break
        return False

    def _on_performative(self, channel: int, body: Composite) -> None:
        if isinstance(body, Open):
            self._on_open(body)
        elif isinstance(body, Close):
            self._on_close(body)
        elif self.state not in (State.OPEN, State.CLOSE_SENT):
            raise ProtocolError(f"{body.NAME} came before open", condition="amqp:illegal-state")
        elif isinstance(body, Begin):
            self._on_begin(channel, body)
        elif (session := self._remote_sessions.get(channel)) is not None:
            # What comes for a session that is gone was on its way when it ended.
            self._on_session(session, body)

    def _on_session(self, session: Session, body: Composite) -> None:
        if isinstance(body, End):
            self._events += session.on_end(body)
            self._drop(session)
            return
        if session.state is not State.OPEN:
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
        else:
            raise ProtocolError(f"{body.NAME} is no frame of a session", condition="amqp:not-allowed")
        if told is not None:
            self._events.append(told)

    def _on_open(self, remote: Open) -> None:
        self.step(Step.THEY_OPEN)
        size = frames.FRAME_MIN_MAX if remote.max_frame_size is None else remote.max_frame_size
        self.remote_max_frame_size = max(frames.FRAME_MIN_MAX, min(size, 0x7FFFFFFF))
        self._remote_channel_max = min(CHANNEL_MAX, 0xFFFF if remote.channel_max is None else remote.channel_max)
        self._remote_idle_seconds = (remote.idle_time_out or 0) / 1000
        if self.state is State.OPEN_RECEIVED:
            self._open()
        self._events.append(Opened(remote))

    def _on_close(self, close: Close) -> None:
        self.step(Step.THEY_CLOSE)
        if self.state is State.CLOSE_RECEIVED:
            self.step(Step.WE_CLOSE)
            self.put(0, Close().encode())
        self._end(close.error if isinstance(close.error, Error) else None, by_peer=True)

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None or session.remote_channel is not None:
                raise ProtocolError("begin answers a session that was not asked for", condition="amqp:not-allowed")
        else:
            if channel > CHANNEL_MAX or channel in self._remote_sessions:
                raise ProtocolError(f"channel {channel} is not free", condition="amqp:not-allowed")
            session = Session(self, self._free_channel())
            self._sessions[session.channel] = session
        session.remote_channel = channel
        self._remote_sessions[channel] = session
        begun = session.on_begin(begin)
        if session.state is State.OPEN_RECEIVED:
            session.begin()
        self._events.append(begun)

    def _drop(self, session: Session) -> None:
        self._sessions.pop(session.channel, None)
        if session.remote_channel is not None:
            self._remote_sessions.pop(session.remote_channel, None)

    def _end(self, error: Error | None, *, by_peer: bool) -> None:
        self._over = True
        self._events.append(Closed(error, by_peer))

    def _free_channel(self) -> int:
        for channel in range(self._remote_channel_max + 1):
            if channel not in self._sessions:
                return channel
        raise ProtocolError("no channel is free", condition="amqp:resource-limit-exceeded")
