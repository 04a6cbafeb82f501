"""The one performative that every message pays for, read and written without the general machinery.

Whatever is not as peers usually write it goes through `performatives.Transfer`: this is a short cut, not a dialect.
"""

from __future__ import annotations

import struct

from sbpair.amqp.performatives import Transfer, decode_composite
from sbpair.errors import ProtocolError

_U32 = struct.Struct(">I")
_REST_OFF = b"\x40\x40\x42\x42\x42"  # no settle mode, no state, not resumed, not aborted, not batchable
_USUAL_RESTS = frozenset(
    mode + b"\x40" + resume + aborted + batchable
    for mode in (b"\x40", b"\x43", b"\x50\x00", b"\x50\x01")
    for resume in (b"\x40", b"\x42")
    for aborted in (b"\x40", b"\x42")
    for batchable in (b"", b"\x40", b"\x41", b"\x42")
) | {b""}

Fields = tuple[int, int | None, bytes | None, int, bool, bool, bool, int]
"""(handle, delivery id, tag, message format, settled, more, aborted, where the payload starts)"""


def read(buffer: bytes, start: int, end: int) -> Fields:
    """The fields of the transfer that stands at `start`. Raises ProtocolError."""
    try:
        quick = _read_usual(buffer, start, end)
    except (IndexError, struct.error):
        quick = None
    return quick or _read_any(buffer, start, end)


def _read_usual(buffer: bytes, start: int, end: int) -> Fields | None:
    if buffer[start + 3] != 0xC0:
        return None
    stop = start + 5 + buffer[start + 4]
    if buffer[start + 5] < 6 or stop > end:
        return None
    handle, position = _uint(buffer, start + 6)
    delivery_id, position = _uint(buffer, position)
    tag: bytes | None = None
    if buffer[position] == 0xA0:
        tag = buffer[position + 2 : position + 2 + buffer[position + 1]]
        position += 2 + len(tag)
    elif buffer[position] == 0x40:
        position += 1
    else:
        return None
    message_format, position = _uint(buffer, position)
    settled, more = buffer[position], buffer[position + 1]
    if handle is None or settled not in (0x40, 0x41, 0x42) or more not in (0x40, 0x41, 0x42):
        return None
    if position + 2 > stop or buffer[position + 2 : stop] not in _USUAL_RESTS:
        return None
    return handle, delivery_id, tag, message_format or 0, settled == 0x41, more == 0x41, False, stop


def _uint(buffer: bytes, position: int) -> tuple[int | None, int]:
    code = buffer[position]
    if code == 0x52:
        return buffer[position + 1], position + 2
    if code == 0x43:
        return 0, position + 1
    if code == 0x70:
        return _U32.unpack_from(buffer, position + 1)[0], position + 5
    if code == 0x40:
        return None, position + 1
    raise IndexError


def _read_any(buffer: bytes, start: int, end: int) -> Fields:
    transfer, stop = decode_composite(buffer[:end], start)
    if not isinstance(transfer, Transfer) or transfer.handle is None:
        raise ProtocolError("a transfer cannot be read")
    return (
        transfer.handle,
        transfer.delivery_id,
        transfer.delivery_tag,
        transfer.message_format or 0,
        bool(transfer.settled),
        bool(transfer.more),
        bool(transfer.aborted),
        stop,
    )


def write(handle: int, delivery_id: int, tag: bytes, message_format: int, *, settled: bool, more: bool) -> bytes:
    """A transfer's performative, all eleven fields of it."""
    body = b"".join(
        (
            b"\x0b\x70",
            _U32.pack(handle),
            b"\x70",
            _U32.pack(delivery_id),
            bytes((0xA0, len(tag))),
            tag,
            b"\x70" + _U32.pack(message_format) if message_format else b"\x43",
            b"\x41" if settled else b"\x42",
            b"\x41" if more else b"\x42",
            _REST_OFF,
        )
    )
    return b"\x00\x53\x14\xc0" + bytes((len(body),)) + body
