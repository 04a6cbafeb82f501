"""Dispositions as nearly all of them are written, read without the general machinery.

Only outcomes that say nothing but their name are known here; whatever else a peer writes goes through
`performatives.Disposition`: this is a short cut, not a dialect.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import product

from sbpair.amqp import frames
from sbpair.amqp.burst import follows
from sbpair.amqp.performatives import Accepted, Composite, Disposition, Released, decode_composite
from sbpair.amqp.transfer import uint

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
_HEAD = struct.Struct(">6sBBIBI")
_START = b"\x00\x53\x15\xc0\x14\x06"
_ENDS = {True: b"\x41\x00\x53\x24\xc0\x01\x00\x42", False: b"\x42\x00\x53\x24\xc0\x01\x00\x42"}

Said = tuple[bool, int, bool, Accepted | Released | None]
"""(role, how many fields say so, settled, state)"""


def _usual() -> dict[tuple[int, bytes], Said]:
    """What is said by the byte of the role and the bytes behind the ids."""
    usual: dict[tuple[int, bytes], Said] = {}
    for role, settled, state, batchable in product((0x41, 0x42), _FLAGS, _STATES, (b"", *_FLAGS)):
        fields = 5 + bool(batchable)
        usual[role, settled + state + batchable] = (role == 0x41, fields, _FLAGS[settled], _STATES[state])
    return usual


_SAID = _usual()


class DispositionRange:
    """Dispositions that come in one go. Those that say the same of one delivery after the other are heard as one."""

    __slots__ = ("_channel", "_first", "_hear", "_last", "_said")

    def __init__(self, hear: Callable[[int, Composite], None]) -> None:
        self._hear = hear
        self._said: Said | None = None
        self._channel = self._first = self._last = 0

    def add(self, channel: int, buffer: bytes, start: int, end: int) -> int:
        """Take the body of a frame, beginning as a disposition does, and those behind it that go on with what it says.

        Answers where the last of them ends. Raises ProtocolError.
        """
        frame = buffer[start:end]
        usual = _read_usual(frame)
        if usual is None:
            self.end()
            self._hear(channel, decode_composite(frame)[0])
            return end
        first, last, said = usual
        if said is not self._said or first != self._last + 1 or channel != self._channel:
            self.end()
            self._said, self._channel, self._first = said, channel, first
        self._last = last
        if follows(buffer, start, end) and frame[7] == 0x70 == frame[12]:
            self._last, end = _read_on(buffer, start - frames.HEADER_SIZE, end)
        return end

    def end(self) -> None:
        """Nothing follows on."""
        if self._said is not None:
            (role, _, settled, state), self._said = self._said, None
            self._hear(self._channel, Disposition(role, self._first, self._last, settled, state))


def _read_usual(frame: bytes) -> tuple[int, int, Said] | None:
    """(first, last, what is said of them) where it is written as nearly all are."""
    try:
        if frame[7] == 0x70 and frame[12] == 0x70:
            first, last = _WIDE(frame, 8)
            position = 17
        else:
            first, position = uint(frame, 7)
            last, position = uint(frame, position)
        said = _SAID[frame[6], frame[position:]]
        if first is not None and frame[3] == 0xC0 and frame[4] == len(frame) - 5 and frame[5] == said[1]:
            return first, first if last is None else last, said
    except (IndexError, KeyError, struct.error):
        pass
    return None


def _read_on(buffer: bytes, start: int, end: int) -> tuple[int, int]:
    """Read on behind a frame with wide ids, while each says the same of the next deliveries: (last one, end)."""
    size = end - start
    pattern = struct.Struct(f">16sI1sI{size - 25}s")
    before, _, between, last, behind = pattern.unpack_from(buffer, start)
    if before.startswith(size.to_bytes(4)):  # a frame whose header has an extension is left alone
        whole = memoryview(buffer)[end : len(buffer) - (len(buffer) - end) % size]
        for same, first, as_well, its_last, too in pattern.iter_unpack(whole):
            if first != last + 1 or same != before or too != behind or as_well != between or its_last < first:
                break
            last, end = its_last, end + size
    return last, end


def write_accepted(first: int, last: int, *, role: bool, settled: bool) -> bytes:
    """A disposition that says that deliveries were accepted, all six fields of it."""
    return _HEAD.pack(_START, 0x41 if role else 0x42, 0x70, first, 0x70, last) + _ENDS[settled]
