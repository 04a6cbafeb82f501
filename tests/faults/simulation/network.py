"""A network without sockets: pairs of transports in one loop, between the tool's client and the emulator's doors.

Bytes take their time, arrive in odd pieces and in order; a line can be held, cut at the n-th byte, or fall silent in
one direction. All that is left to chance comes from the Random given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.faults.simulation.loop import PROCESS, Process, VirtualLoop

EOF: Final = b"eof"
RESET: Final = b"reset"
CONNECT_TIMEOUT_SECONDS: Final = 127.0
"""As long as Linux goes on asking for a connection that nobody answers."""

SYSTEM_BUFFER: Final = 65_536


@dataclass
class Weather:
    """How the network is. `slow` and `jitter` are seconds; `pieces` is how often what is written arrives in pieces."""

    slow: float = 0.001
    jitter: float = 0.0
    pieces: float = 0.2
    window: int = 65_536


class Pipe:
    """One direction of a connection: what has been written and not been read."""

    def __init__(self, loop: VirtualLoop, random: Random, weather: Weather) -> None:
        self._loop = loop
        self._random = random
        self._weather = weather
        self.source: str
        self.reader: End
        self.writer: End
        self.buffered = 0
        self.held = False
        self.silent = False
        self.cut_after: int | None = None
        self._flight: deque[tuple[float, bytes, bool]] = deque()
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, data: bytes) -> None:
        self.buffered += len(data)
        if self.silent:
            return
        for piece in self._pieces(data):
            self._send(piece, mark=False)

    def end(self, mark: bytes) -> None:
        if not self.silent:
            self._send(mark, mark=True)

    def drop(self) -> None:
        """What is on its way does not arrive."""
        self._flight.clear()
        self.buffered = 0

    def hold(self) -> None:
        self.held = True

    def let_go(self) -> None:
        self.held = False
        self.move()

    def _pieces(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._random.random() >= self._weather.pieces:
            return [data]
        cuts = sorted({self._random.randrange(1, len(data)) for _ in range(self._random.randint(1, 6))})
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _send(self, piece: bytes, *, mark: bool) -> None:
        late = self._weather.slow + self._weather.jitter * self._random.random() ** 4
        # Strictly later than what was sent before: order is all that TCP promises.
        self._last_due = max(self._loop.time() + late, self._last_due + 2e-6)
        self._flight.append((self._last_due, piece, mark))
        self.move()

    def move(self) -> None:
        """Pass on what has arrived, and come back for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._flight and not self.held and not self.reader.reading_paused:
            due, piece, mark = self._flight[0]
            if due > self._loop.time() + 1e-6:
                self._timer = self._loop.call_at(due, self.move, context=self.reader.context)
                return
            self._flight.popleft()
            self._pass(piece, mark=mark)

    def _pass(self, piece: bytes, *, mark: bool) -> None:
        if mark:
            self.reader.ended(piece)
            return
        if self.cut_after is not None and len(piece) > self.cut_after:
            piece = piece[: self.cut_after]
        self.buffered -= len(piece)
        self.reader.arrived(piece)
        self.writer.drained()
        if self.cut_after is not None:
            self.cut_after -= len(piece)
            if self.cut_after <= 0:
                self.cut_after = None
                self.reader.network.cut(self.reader)


class End(asyncio.Transport):
    """One end of a connection, as its protocol sees it."""

    def __init__(self, network: Network, protocol: asyncio.BaseProtocol, context: Context, way_out: Pipe) -> None:
        super().__init__()
        self.network = network
        self.context = context
        self.out = way_out
        self.peer: End
        self.reading_paused = False
        self.lost = False
        self._protocol: Any = protocol
        self._closing = self._has_sent_eof = False
        self._writing_paused = False
        self._high, self._low = network.weather.window, network.weather.window // 4

    # The protocol's side

    def write(self, data: Any) -> None:
        if self._closing or self.lost:
            return
        self.out.put(bytes(data))
        if self.out.buffered > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self._closing or self.lost or self._has_sent_eof):
            self._has_sent_eof = True
            self.out.end(EOF)

    def close(self) -> None:
        if self._closing or self.lost:
            return
        self.write_eof()
        self._closing = True
        if self.out.buffered <= SYSTEM_BUFFER:
            self._later(self.lose, None)

    def abort(self) -> None:
        self._closing = True
        if self.lost:
            return
        self.out.drop()
        self.out.end(RESET)
        self._later(self.lose, None)

    def is_closing(self) -> bool:
        return self._closing or self.lost

    def get_write_buffer_size(self) -> int:
        return self.out.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = min(high or 65_536, self.network.weather.window)
        self._low = low if low is not None else self._high // 4

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            self._later(self.peer.out.move)

    def is_reading(self) -> bool:
        return not self.reading_paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    # The network's side

    def _later(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.network.loop.call_soon(callback, *arguments, context=self.context)

    def _inside(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call the protocol as its own side's loop would."""
        process = self.context.get(PROCESS)
        if process is not None and process.dead:
            return
        if process is not None and process.frozen:
            self.context.copy().run(process.run, callback, *arguments)
            return
        before, self.network.speaking = self.network.speaking, self
        try:
            self.context.copy().run(callback, *arguments)
        finally:
            self.network.speaking = before

    def made(self) -> None:
        self._inside(self._protocol.connection_made, self)

    def arrived(self, data: bytes) -> None:
        if not self.lost and data:
            self._inside(self._protocol.data_received, data)

    def drained(self) -> None:
        if self._closing and not self.lost and self.out.buffered <= SYSTEM_BUFFER:
            self._later(self.lose, None)
        if self._writing_paused and not self.lost and self.out.buffered <= self._low:
            self._writing_paused = False
            self._inside(self._protocol.resume_writing)

    def ended(self, mark: bytes) -> None:
        if self.lost:
            return
        if mark == RESET:
            self.lose(ConnectionResetError(104, "Connection reset by peer"))
        else:
            self._inside(self._protocol.eof_received)
            self.close()

    def lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self._inside(self._protocol.connection_lost, error)

    def die(self, *, flushed: bool) -> None:
        """Its process was killed: what the system has is still sent, or is not."""
        self.lost = True
        if not flushed:
            self.out.drop()
        self.out.end(EOF if flushed else RESET)

    def lose_at_last(self) -> None:
        self.lost = False
        self.lose(None)


@dataclass(eq=False)
class Line:
    """A connection from end to end."""

    number: int
    namespace: str
    process: Process | None
    client: End
    server: End

    @property
    def open(self) -> bool:
        return not (self.client.lost and self.server.lost)


class Network:
    """`serve` names who answers at a host: what makes a protocol for a connection, or None where nobody answers."""

    def __init__(self, loop: VirtualLoop, random: Random, weather: Weather, tell: Callable[[str], None]) -> None:
        self.loop = loop
        self.weather = weather
        self.lines: list[Line] = []
        self.speaking: End | None = None
        self.refusing: dict[str, int] = {}
        self.swallowing: dict[str, int] = {}
        self.holding: dict[str, int] = {}
        self._random = random
        self._tell = tell
        self._outside = copy_context()
        self._doors: dict[str, Callable[[], asyncio.Protocol | None]] = {}
        self._made = 0
        loop.connect = self._connect

    def serve(self, host: str, make: Callable[[], asyncio.Protocol | None]) -> None:
        self._doors[host] = make

    async def _connect(self, factory: Callable[[], asyncio.Protocol], host: str, _port: int) -> Any:
        await asyncio.sleep(self.weather.slow + self.weather.jitter * self._random.random())
        if self.swallowing.get(host):
            await asyncio.sleep(CONNECT_TIMEOUT_SECONDS)
            raise TimeoutError(110, "Connection timed out")
        door = None if self.refusing.get(host) else self._doors[host]()
        if door is None:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        line = self._line(host, protocol, door)
        line.server.made()
        line.client.made()
        return line.client, protocol

    def _line(self, host: str, protocol: asyncio.Protocol, door: asyncio.Protocol) -> Line:
        there, back = (Pipe(self.loop, Random(self._random.random()), self.weather) for _ in range(2))
        client = End(self, protocol, copy_context(), there)
        server = End(self, door, self._outside.copy(), back)
        client.peer, server.peer = server, client
        there.writer, there.reader, back.writer, back.reader = client, server, server, client
        self._made += 1
        line = Line(self._made, host, PROCESS.get(), client, server)
        there.source = f"bytes of line {line.number} to {host}"
        back.source = f"bytes of line {line.number} from {host}"
        if self.holding.get(host):
            there.hold()
            back.hold()
        self.lines = [each for each in self.lines if each.open]
        self.lines.append(line)
        self._tell(f"line {line.number} to {host} by {line.process.name if line.process else '?'}")
        return line

    # What can happen to it

    def lines_to(self, host: str) -> list[Line]:
        return [line for line in self.lines if line.namespace == host and line.open]

    def line_of(self, end: End | None) -> Line | None:
        return next((line for line in self.lines if end in (line.client, line.server)), None)

    def cut(self, end: End) -> None:
        """Both ends learn at once that the connection is gone."""
        for each in (end, end.peer):
            each.out.drop()
            each._later(each.lose, ConnectionResetError(104, "Connection reset by peer"))

    def hold(self, host: str) -> None:
        self.holding[host] = self.holding.get(host, 0) + 1
        for line in self.lines_to(host):
            line.client.out.hold()
            line.server.out.hold()

    def let_go(self, host: str) -> None:
        self.holding[host] -= 1
        if not self.holding[host]:
            for line in self.lines_to(host):
                line.client.out.let_go()
                line.server.out.let_go()

    def kill(self, process: Process) -> None:
        process.dead = True
        for line in self.lines:
            if line.process is process and not line.client.lost:
                line.client.die(flushed=self._random.random() < 0.5)
                process.lose.append(line.client.lose_at_last)
        process.killed.set()
