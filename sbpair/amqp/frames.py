"""Frames, the buffer that finds them in a stream, and runs of frames encoded alike, which are read at once.

A frame's size is limited to the agreed one, and nothing is allocated by it. AMQP 1.0, part 2.3. Runs are a fast path
for whole messages of one link, and for dispositions without details, whose ranges are joined; all other dispositions go
through `performatives.Disposition`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import product

from sbpair.amqp.link import Delivery, ReceivingLink
from sbpair.amqp.performatives import Accepted, Composite, Disposition, Released, decode_composite
from sbpair.amqp.transfer import decode_transfer, uint
from sbpair.errors import ProtocolError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE = 8
FRAME_MIN_MAX = 512
"""The smallest max-frame-size that a peer may state."""

AMQP_FRAME, SASL_FRAME = 0x00, 0x01

_HEAD = struct.Struct(">IBBH")
EMPTY_FRAME = _HEAD.pack(8, 2, AMQP_FRAME, 0)
"""A heartbeat."""


def head(size: int, channel: int) -> bytes:
    """Return the head of an AMQP frame whose body has `size` bytes."""
    return _HEAD.pack(8 + size, 2, AMQP_FRAME, channel)


def frame(body: bytes, *, channel: int = 0, kind: int = AMQP_FRAME) -> bytes:
    return _HEAD.pack(8 + len(body), 2, kind, channel) + body


def _framing_error(text: str) -> ProtocolError:
    return ProtocolError(text, condition="amqp:connection:framing-error")


def same_head(buffer: bytes, start: int, end: int) -> bool:
    """Return whether the frame after `end` equals, up to its first handle or id, the one whose body is at `start`."""
    return buffer[start - 4 : start + 8] == buffer[end + 4 : end + 16]


class FrameBuffer:
    """Splits a stream into protocol headers and frames."""

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._data = b""
        self._pieces: list[bytes] = []
        self._missing = self._read = 0

    def feed(self, data: bytes) -> bool:
        """Add bytes of the stream. Return whether new frames may be complete.

        The pieces of a large frame are joined once, after the last.
        """
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return False
        self._data = b"".join((self._data, *self._pieces)) if self._data or len(self._pieces) > 1 else bytes(data)
        self._pieces.clear()
        self._missing = 0
        return bool(self._data)

    @property
    def unread(self) -> bytes:
        """The bytes of an incomplete frame."""
        return b"".join((self._data, *self._pieces))

    def protocol_header(self) -> bytes | None:
        """Remove and return the eight bytes of a protocol header, or None while they are incomplete."""
        if self._data[:4] != b"AMQP"[: len(self._data)]:
            raise _framing_error("the peer does not speak AMQP")
        if len(self._data) < HEADER_SIZE:
            return None
        header, self._data = self._data[:HEADER_SIZE], self._data[HEADER_SIZE:]
        return header

    def frames(self, kind: int) -> Iterator[tuple[int, bytes, int, int]]:
        """Yield each complete frame of `kind`, as (channel, buffer, start of its body, end). Raises ProtocolError.

        The caller may stop between any two frames: yielded ones are removed.
        """
        data, self._read = self._data, 0
        length, limit, unpack = len(data), self.max_frame_size, _HEAD.unpack_from
        try:
            while length - (position := self._read) >= HEADER_SIZE:
                size, offset, found, channel = unpack(data, position)
                start, end = position + 4 * offset, position + size
                if size > limit or offset < 2 or start > end:
                    raise _framing_error(f"a frame claims {size} bytes; {limit} are agreed on")
                if found != kind:
                    raise _framing_error(f"expected a frame of type {kind}, got type {found}")
                if end > length:
                    self._missing = end - length
                    return
                self._read = end
                yield channel, data, start, end
        finally:
            self._data = data[self._read :]

    def skip_to(self, position: int) -> None:
        """Continue at `position`: the caller has read on to there, in the yielded buffer."""
        self._read = position


_HANDLE_SIZES = {0x43: 1, 0x52: 2}
_NO_EXTENSION = 2

ACCEPTED, RELEASED = Accepted(), Released()
_FLAGS = {b"\x41": True, b"\x42": False, b"\x40": False}
_STATES = {
    b"\x40": None,
    b"\x00\x53\x24\x45": ACCEPTED,
    b"\x00\x53\x24\xc0\x01\x00": ACCEPTED,
    b"\x00\x53\x26\x45": RELEASED,
    b"\x00\x53\x26\xc0\x01\x00": RELEASED,
}

_WIDE = struct.Struct(">IxI").unpack_from
_MESSAGE_HEAD = struct.Struct(">6sBBIBI")
_START = b"\x00\x53\x15\xc0\x14\x06"
_ENDS = {True: b"\x41\x00\x53\x24\xc0\x01\x00\x42", False: b"\x42\x00\x53\x24\xc0\x01\x00\x42"}

Contents = tuple[bool, int, bool, Accepted | Released | None]
"""(role, number of fields, settled, state)"""


def _common_contents() -> dict[tuple[int, bytes], Contents]:
    """Return the contents by (byte of the role, bytes after the ids)."""
    found: dict[tuple[int, bytes], Contents] = {}
    for role, settled, state, batchable in product((0x41, 0x42), _FLAGS, _STATES, (b"", *_FLAGS)):
        fields = 5 + bool(batchable)
        found[role, settled + state + batchable] = (role == 0x41, fields, _FLAGS[settled], _STATES[state])
    return found


_CONTENTS = _common_contents()


class DispositionRange:
    """Consecutive dispositions. Those with equal contents for adjacent deliveries are reported as one."""

    __slots__ = ("_channel", "_contents", "_first", "_last", "_on_performative")

    def __init__(self, on_performative: Callable[[int, Composite], None]) -> None:
        self._on_performative = on_performative
        self._contents: Contents | None = None
        self._channel = self._first = self._last = 0

    def add(self, channel: int, buffer: bytes, start: int, end: int) -> int:
        """Read a disposition's frame, and those after it that continue it. Return where the last of them ends.

        Raises ProtocolError.
        """
        frame = buffer[start:end]
        common = _read_common(frame)
        if common is None:
            self.end()
            self._on_performative(channel, decode_composite(frame)[0])
            return end
        first, last, contents = common
        if contents is not self._contents or first != self._last + 1 or channel != self._channel:
            self.end()
            self._contents, self._channel, self._first = contents, channel, first
        self._last = last
        if same_head(buffer, start, end) and frame[7] == 0x70 == frame[12]:
            self._last, end = _read_on(buffer, start - HEADER_SIZE, end)
        return end

    def end(self) -> None:
        """Report the pending range."""
        if self._contents is not None:
            (role, _, settled, state), self._contents = self._contents, None
            self._on_performative(self._channel, Disposition(role, self._first, self._last, settled, state))


def _read_common(frame: bytes) -> tuple[int, int, Contents] | None:
    """Return (first, last, contents) of a disposition in the common encoding, else None."""
    try:
        if frame[7] == 0x70 and frame[12] == 0x70:
            first, last = _WIDE(frame, 8)
            position = 17
        else:
            first, position = uint(frame, 7)
            last, position = uint(frame, position)
        contents = _CONTENTS[frame[6], frame[position:]]
        if first is not None and frame[3] == 0xC0 and frame[4] == len(frame) - 5 and frame[5] == contents[1]:
            return first, first if last is None else last, contents
    except (IndexError, KeyError, struct.error):
        pass
    return None


def _read_on(buffer: bytes, start: int, end: int) -> tuple[int, int]:
    """Read on after a frame with four-byte ids, while the next continues it. Return (last id, end)."""
    size = end - start
    pattern = struct.Struct(f">16sI1sI{size - 25}s")
    before, _, between, last, behind = pattern.unpack_from(buffer, start)
    if before.startswith(size.to_bytes(4)):  # else the header has an extension
        whole = memoryview(buffer)[end : len(buffer) - (len(buffer) - end) % size]
        for head, first, middle, its_last, tail in pattern.iter_unpack(whole):
            if first != last + 1 or head != before or tail != behind or middle != between or its_last < first:
                break
            last, end = its_last, end + size
    return last, end


def write_accepted(first: int, last: int, *, role: bool, settled: bool) -> bytes:
    """Return the disposition `accepted`, with all six fields."""
    return _MESSAGE_HEAD.pack(_START, 0x41 if role else 0x42, 0x70, first, 0x70, last) + _ENDS[settled]


def read_transfers(
    link: ReceivingLink, buffer: bytes, start: int, end: int, max_frame: int
) -> tuple[list[Delivery], int]:
    """Return the deliveries that follow the whole one with its body from `start` to `end`, and the end of the last.

    They end at the first frame that differs, which is left to `transfer`.
    """
    found: list[Delivery] = []
    _, first_id, tag, message_format, settled, _, _, payload_at, state = decode_transfer(buffer, start, end)
    if state is not None:
        return found, end
    id_at = start + 6 + _HANDLE_SIZES.get(buffer[start + 6], 5)
    tag_at = id_at + 7
    if not tag or buffer[id_at : tag_at + len(tag)] != _common_id(first_id, tag) or buffer[start - 4] != _NO_EXTENSION:
        return found, end
    # The constant parts: before the delivery id, before the tag, and after it.
    before, between, behind = (
        buffer[start - 4 : id_at + 1],
        buffer[id_at + 5 : tag_at],
        buffer[tag_at + len(tag) : payload_at],
    )
    pattern = struct.Struct(f">I{len(before)}sI2s{len(tag)}s{len(behind)}s")
    unpack, head = pattern.unpack_from, pattern.size
    limit = min(max_frame, head + link.max_message_size) if link.max_message_size else max_frame
    available, constants, add = len(buffer), (before, between, behind), found.append
    while end + head <= available:
        size, head_part, delivery_id, middle, tag, tail = unpack(buffer, end)
        next_one = end + size
        if (head_part, middle, tail) != constants or not head <= size <= limit or next_one > available:
            break
        add(Delivery(link, delivery_id, tag, message_format, settled, buffer[end + head : next_one]))
        end = next_one
    return found, end


def _common_id(delivery_id: int | None, tag: bytes) -> bytes:
    """Return an id and a tag in the common encoding."""
    return struct.pack(">BIBB", 0x70, delivery_id or 0, 0xA0, len(tag)) + tag
