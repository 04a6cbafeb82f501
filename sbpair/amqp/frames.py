"""Frames: the envelopes that performatives travel in, and the buffer that finds them in a stream.

A size field is believed only up to the size that was agreed on; nothing is allocated for it. AMQP 1.0, part 2.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from sbpair.errors import ProtocolError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE = 8
FRAME_MIN_MAX = 512
"""The smallest max-frame-size that a peer may ask for."""

AMQP_FRAME, SASL_FRAME = 0x00, 0x01

_HEAD = struct.Struct(">IBBH")
EMPTY_FRAME = _HEAD.pack(8, 2, AMQP_FRAME, 0)
"""A heartbeat."""


def head(size: int, channel: int) -> bytes:
    """What goes before the `size` bytes of an AMQP frame's body."""
    return _HEAD.pack(8 + size, 2, AMQP_FRAME, channel)


def frame(body: bytes, *, channel: int = 0, kind: int = AMQP_FRAME) -> bytes:
    return _HEAD.pack(8 + len(body), 2, kind, channel) + body


class FrameBuffer:
    """Cuts a stream into its protocol headers and frames."""

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._data = b""
        self._late: list[bytes] = []
        self._missing = self._read = 0

    def feed(self, data: bytes) -> bool:
        """Take in a piece of the stream; answers whether it is worth looking for more than there was before.

        The pieces of a large frame are put together once, when the last of them is there.
        """
        self._late.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return False
        self._data = b"".join((self._data, *self._late)) if self._data or len(self._late) > 1 else bytes(data)
        self._late.clear()
        self._missing = 0
        return bool(self._data)

    @property
    def unread(self) -> bytes:
        """What has come of a frame that is not whole yet."""
        return b"".join((self._data, *self._late))

    def protocol_header(self) -> bytes | None:
        """The eight bytes of a protocol header, taken off, or None while they are not all there."""
        if self._data[:4] != b"AMQP"[: len(self._data)]:
            raise ProtocolError("the peer does not speak AMQP", condition="amqp:connection:framing-error")
        if len(self._data) < HEADER_SIZE:
            return None
        header, self._data = self._data[:HEADER_SIZE], self._data[HEADER_SIZE:]
        return header

    def frames(self, kind: int) -> Iterator[tuple[int, bytes, int, int]]:
        """Each whole frame of `kind`, as (channel, buffer, start of its body, end). Raises ProtocolError.

        The buffer may be left between any two frames: what has been given out is taken off.
        """
        data, self._read = self._data, 0
        length, limit, unpack = len(data), self.max_frame_size, _HEAD.unpack_from
        try:
            while length - (position := self._read) >= HEADER_SIZE:
                size, offset, found, channel = unpack(data, position)
                start, end = position + 4 * offset, position + size
                if size > limit or offset < 2 or start > end:
                    raise ProtocolError(
                        f"a frame claims {size} bytes; {limit} are agreed on",
                        condition="amqp:connection:framing-error",
                    )
                if found != kind:
                    raise ProtocolError(
                        f"a frame of type {found} came where one of type {kind} belongs",
                        condition="amqp:connection:framing-error",
                    )
                if end > length:
                    self._missing = end - length
                    return
                self._read = end
                yield channel, data, start, end
        finally:
            self._data = data[self._read :]

    def skip_to(self, position: int) -> None:
        """Whoever reads the frames has read on by itself, in the buffer that it was given, to the end of a frame."""
        self._read = position
