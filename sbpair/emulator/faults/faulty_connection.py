"""What stands between a socket and a door while a fault wants it: it counts frames, delays, holds back and breaks off.

A door that no fault is meant for has none of this on its way. Frames are counted as the client sends them: SASL's too,
protocol headers and heartbeats not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from sbpair.emulator.faults.fault_points import FaultPoints

Action: TypeAlias = Literal["drop", "stall", "reset"]

_AT_ONCE = struct.pack("ii", 1, 0)
_HEADER: Final = b"AMQP"
_EMPTY_FRAME = 8


class Frontend(Protocol):
    """What a line, and every other fault, needs of the door at its end."""

    @property
    def unread(self) -> bytes:
        """What has come of a frame that is not whole yet."""

    @property
    def transport(self) -> asyncio.Transport:
        """What the door speaks through."""

    def reach(self, transport: asyncio.Transport) -> None:
        """Speak through this from now on."""

    def serves(self, entity: str) -> bool:
        """Whether there is a link to that entity, given in lower case; of any where it is empty."""

    def detach(self, entity: str, condition: str, text: str) -> None:
        """End the links of that entity; of all of them where it is empty."""

    def resume(self) -> None:
        """Something that held deliveries back has ended."""

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class FrameCounter:
    """Finds where the frames of a stream end."""

    __slots__ = ("_counts", "_head", "_missing")

    def __init__(self, begun: bytes = b"") -> None:
        self._head = b""
        self._missing = 0
        self._counts = False
        self.ends(begun)

    def ends(self, data: bytes) -> list[int]:
        """The positions in `data` behind each frame that has become whole with it."""
        found: list[int] = []
        position = 0
        while position < len(data):
            if not self._missing:
                position += self._begin(data[position : position + 4 - len(self._head)])
                continue
            step = min(self._missing, len(data) - position)
            self._missing -= step
            position += step
            if not self._missing and self._counts:
                found.append(position)
        return found

    def _begin(self, data: bytes) -> int:
        self._head += data
        if len(self._head) == 4:
            size = _EMPTY_FRAME if self._head == _HEADER else int.from_bytes(self._head)
            self._counts = size > _EMPTY_FRAME
            self._missing = max(size, _EMPTY_FRAME) - 4
            self._head = b""
        return len(data)


class ConnectionFault:
    """Lets `after_frames` frames of a connection through, then does `action` to it; to `count` connections at most.

    Where an entity is named, only connections with a link to it are meant.
    """

    def __init__(self, action: Action, after_frames: int = 0, count: int | None = None, entity: str = "") -> None:
        self.action = action
        self.after_frames = after_frames
        self._entity = entity
        self._left = count

    def strikes(self, door: Frontend) -> bool:
        """Whether this connection is hit; if so, it counts."""
        if self._left == 0 or not door.serves(self._entity):
            return False
        if self._left is not None:
            self._left -= 1
        return True


class FaultyConnection(asyncio.Transport, asyncio.Protocol):
    """A door's transport and a transport's protocol at once."""

    def __init__(self, transport: asyncio.Transport, door: Frontend, points: FaultPoints) -> None:
        super().__init__()
        self._transport = transport
        self._door = door
        self._points = points
        self._loop = asyncio.get_running_loop()
        self._counter = FrameCounter(door.unread)
        self._due: dict[ConnectionFault, int] = {}
        self._stalled: ConnectionFault | None = None
        self._held_in: list[bytes] = []
        self._held_out: list[bytes | None] = []
        self._late: deque[bytes | None] = deque()
        self._last_due = 0.0
        self._ended = False
        transport.set_protocol(self)
        door.reach(self)

    # Faults

    def put(self, fault: ConnectionFault) -> None:
        self._due[fault] = fault.after_frames

    def lift(self, fault: ConnectionFault) -> None:
        """The fault has ended: what it held goes on its way."""
        self._due.pop(fault, None)
        if self._stalled is not fault:
            return
        self._stalled = None
        waiting, self._held_out = self._held_out, []
        for piece in waiting:
            self._send(piece)
        arrived, self._held_in = self._held_in, []
        for data in arrived:
            self.data_received(data)

    def leave(self) -> bool:
        """Take the line out again, if nothing is under way on it."""
        if self._late or self._stalled is not None or self._ended:
            return False
        self._transport.set_protocol(_as_protocol(self._door))
        self._door.reach(self._transport)
        return True

    # The socket's side

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._stalled is not None:
            self._held_in.append(data)
            return
        through, fault = self._let_through(data)
        if through:
            self._door.data_received(data[:through])
        if fault is not None and not self._ended:
            self._strike(fault, data[through:])

    def _let_through(self, data: bytes) -> tuple[int, ConnectionFault | None]:
        """How much of it may pass, and what strikes behind that."""
        through = 0
        for end in self._counter.ends(data):
            fault = next((fault for fault, left in self._due.items() if not left and fault.strikes(self._door)), None)
            if fault is not None:
                return through, fault
            self._due = {fault: max(0, left - 1) for fault, left in self._due.items()}
            through = end
        return len(data), None

    def _strike(self, fault: ConnectionFault, rest: bytes) -> None:
        if fault.action == "stall":
            del self._due[fault]
            self._stalled = fault
            # These frames were counted when they came, and are counted anew when they go on.
            self._counter = FrameCounter(self._door.unread)
            self._held_in.append(rest)
            return
        self._ended = True
        if fault.action == "reset":
            linger(self._transport)
            self._transport.abort()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._late.clear()
        self._points.lines.pop(self._door, None)
        self._door.connection_lost(exc)

    def pause_writing(self) -> None:
        self._door.pause_writing()

    def resume_writing(self) -> None:
        self._door.resume_writing()

    # The door's side

    def write(self, data: Any) -> None:
        self._send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._send(b"".join(list_of_data))

    def close(self) -> None:
        self._send(None)

    def _send(self, piece: bytes | None) -> None:
        """A piece of output, or None for the end of it."""
        if self._stalled is not None:
            self._held_out.append(piece)
            return
        now = self._loop.time()
        due = max(now + self._points.latency_seconds, self._last_due)
        if due <= now:
            self._pass_on(piece)
            return
        self._last_due = due
        self._late.append(piece)
        self._loop.call_at(due, self._send_late)

    def _send_late(self) -> None:
        if self._late:
            self._pass_on(self._late.popleft())

    def _pass_on(self, piece: bytes | None) -> None:
        if piece is None:
            self._transport.close()
        elif not self._ended:
            self._transport.write(piece)

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._ended or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


def linger(transport: asyncio.Transport) -> None:
    """Make closing the socket break the connection at once, as a crash of the peer's machine would."""
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def _as_protocol(door: Frontend) -> asyncio.BaseProtocol:
    assert isinstance(door, asyncio.BaseProtocol)  # noqa: S101  # every door is
    return door
