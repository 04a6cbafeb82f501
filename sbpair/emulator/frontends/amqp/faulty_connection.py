"""Layers between a socket and its AMQP connection; among them the one that is present while a fault needs it.

That one delays, stalls or breaks off.

It counts the frames that the client sends: SASL's too, protocol headers and heartbeats not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.emulator.faults.fault_points import ActingFault
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection

_HEADER: Final = b"AMQP"
_EMPTY_FRAME = 8


class TransportLayer(asyncio.Transport, asyncio.Protocol):
    """The protocol of the transport below, and the transport of the protocol above. By default, it passes calls on."""

    _transport: asyncio.Transport
    _above: asyncio.Protocol | None = None

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    # For faults

    def drop(self) -> None:
        """Close without a word to the peer."""
        self._transport.close()

    def hold(self) -> None:
        """Stop answering until `release`."""

    def release(self) -> None:
        """Answer what came since `hold`."""


class FrameCounter:
    """A finder of frame boundaries in a stream."""

    __slots__ = ("_counts", "_head", "_missing")

    def __init__(self, begun: bytes = b"") -> None:
        self._head = b""
        self._missing = 0
        self._counts = False
        self.ends(begun)

    def ends(self, data: bytes) -> list[int]:
        """Return the end positions in `data` of the frames that it completes."""
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


@dataclass(frozen=True, slots=True)
class _Stall:
    """The bytes that a stalled connection holds back in each direction; None is the end of output."""

    fault: ActingFault
    received: list[bytes] = field(default_factory=list)
    output: list[bytes | None] = field(default_factory=list)


class FaultyConnection(TransportLayer):
    """The layer of a connection on which faults act."""

    def __init__(self, inner: AmqpConnection) -> None:
        super().__init__()
        self._transport = inner.output.transport
        self._above = inner
        self._layer = self._transport if isinstance(self._transport, TransportLayer) else None
        self._inner = inner
        self._points = inner.namespace.fault_points
        self._loop = asyncio.get_running_loop()
        self._counter = FrameCounter(inner.unread)
        self._faults: Sequence[ActingFault] = ()
        self._due: dict[ActingFault, int] = {}
        self._stall: _Stall | None = None
        self._late: deque[bytes | None] = deque()
        self._last_due = 0.0
        self._ended = False
        self._transport.set_protocol(self)
        inner.output.transport = self

    # Faults

    def apply(self, faults: Sequence[ActingFault]) -> None:
        """Begin those of these faults that are new, and end the earlier ones that are not among them."""
        before, self._faults = self._faults, tuple(faults)
        self._due |= {fault: fault.after_frames for fault in faults if fault not in before}
        for fault in before:
            if fault not in faults:
                self._end(fault)

    def _end(self, fault: ActingFault) -> None:
        """End a fault and pass on all bytes it held back."""
        self._due.pop(fault, None)
        stall = self._stall
        if stall is None or stall.fault is not fault:
            return
        self._stall = None
        for piece in stall.output:
            self._send(piece)
        for data in stall.received:
            self.data_received(data)
        if self._layer is not None and self._stall is None:
            self._layer.release()

    def unwrap(self) -> bool:
        """Remove the wrapper and return True, unless data is still held back."""
        if self._late or self._stall is not None or self._ended:
            return False
        self._transport.set_protocol(self._inner)
        self._inner.output.transport = self._transport
        return True

    # Protocol of the socket's transport

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._stall is not None:
            self._stall.received.append(data)
            return
        through, fault = self._let_through(data)
        if through:
            self._inner.data_received(data[:through])
        if fault is not None and not self._ended:
            self._strike(fault, data[through:])

    def _let_through(self, data: bytes) -> tuple[int, ActingFault | None]:
        """Return how many bytes may pass, and the fault that acts after them."""
        through = 0
        for end in self._counter.ends(data):
            fault = next((fault for fault, left in self._due.items() if not left and fault.strikes(self._inner)), None)
            if fault is not None:
                return through, fault
            self._due = {fault: max(0, left - 1) for fault, left in self._due.items()}
            through = end
        return len(data), None

    def _strike(self, fault: ActingFault, rest: bytes) -> None:
        if fault.fault.kind == "stall":
            del self._due[fault]
            self._stall = _Stall(fault, [rest])
            # These frames are counted again when they are passed on.
            self._counter = FrameCounter(self._inner.unread)
            if self._layer is not None:
                self._layer.hold()
            return
        self._ended = True
        if fault.fault.kind == "reset":
            linger(self._transport)
            self._transport.abort()
        elif self._layer is not None:
            self._layer.drop()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._late.clear()
        self._points.wrapped.discard(self._inner)
        self._inner.connection_lost(exc)

    # Transport of the connection

    def write(self, data: Any) -> None:
        self._send(bytes(data))

    def close(self) -> None:
        self._send(None)

    def _send(self, piece: bytes | None) -> None:
        """Send a piece of output, or close for None."""
        if self._stall is not None:
            self._stall.output.append(piece)
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


def linger(transport: asyncio.Transport) -> None:
    """Make closing the socket reset the connection, as a crash of the machine would."""
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
