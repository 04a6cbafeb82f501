"""Frames, which carry performatives, and the buffer that finds them in a stream.

A frame's size is limited to the agreed one, and nothing is allocated by it. AMQP 1.0, part 2.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
