"""The faults of one AMQP connection, which delay, stall or break off what it receives and sends.

They count the frames that the client sends: SASL's too, protocol headers and heartbeats not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sbpair.amqp_server.server_connection import AnsweringTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbpair.emulator.faults.fault_points import ActingFault, FaultPoints

_HEADER: Final = b"AMQP"
_EMPTY_FRAME = 8


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


class ConnectionFaults:
    """The faults that act on a connection, between its transport and its frames.

    `process` takes what passes; `unread` returns the beginning of a frame that it has taken.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        points: FaultPoints,
        process: Callable[[bytes], None],
        unread: Callable[[], bytes],
        has_link_to: Callable[[str], bool],
    ) -> None:
        self._transport = transport
        self._process, self._unread, self._has_link_to = process, unread, has_link_to
        self._answering = self._transport if isinstance(self._transport, AnsweringTransport) else None
        self._points = points
        self._loop = asyncio.get_running_loop()
        self._counter = FrameCounter(unread())
        self._faults: Sequence[ActingFault] = ()
        self._due: dict[ActingFault, int] = {}
        self._stall: _Stall | None = None
        self._late: deque[bytes | None] = deque()
        self._last_due = 0.0
        self._ended = False

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
            self.send(piece)
        for data in stall.received:
            self.receive(data)
        if self._answering is not None and self._stall is None:
            self._answering.release()

    @property
    def hold_nothing(self) -> bool:
        """Whether the connection could go on without this object."""
        return not (self._late or self._stall is not None or self._ended)

    def end(self) -> None:
        """Forget what is held back: the connection is lost."""
        self._ended = True
        self._late.clear()

    # Received

    def receive(self, data: bytes) -> None:
        if self._ended:
            return
        if self._stall is not None:
            self._stall.received.append(data)
            return
        through, fault = self._let_through(data)
        if through:
            self._process(data[:through])
        if fault is not None and not self._ended:
            self._strike(fault, data[through:])

    def _let_through(self, data: bytes) -> tuple[int, ActingFault | None]:
        """Return how many bytes may pass, and the fault that acts after them."""
        through = 0
        for end in self._counter.ends(data):
            linked = (each for each, left in self._due.items() if not left and self._has_link_to(each.path))
            fault = next((each for each in linked if each.hit()), None)
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
            self._counter = FrameCounter(self._unread())
            if self._answering is not None:
                self._answering.hold()
            return
        self._ended = True
        if fault.fault.kind == "reset":
            linger(self._transport)
            self._transport.abort()
        elif self._answering is not None:
            self._answering.drop()
        else:
            self._transport.close()

    # Sent

    def send(self, piece: bytes | None) -> None:
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


def linger(transport: asyncio.Transport) -> None:
    """Make closing the socket reset the connection, as a crash of the machine would."""
    connected = transport.get_extra_info("socket")
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
