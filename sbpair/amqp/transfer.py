"""The transfer performative, which every message needs, read and written directly.

A fast path only: any uncommon encoding goes through `performatives.Transfer`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import product
from typing import Any

from sbpair.amqp.performatives import Transfer, decode_composite
from sbpair.errors import ProtocolError

Fields = tuple[int, int | None, bytes | None, int, bool, bool, bool, int, Any]
"""(handle, delivery id, tag, message format, settled, more, aborted, where the payload starts, state)"""

_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">4sBBBIBIBB")
_FRAME = struct.Struct(">IBBH4sBBBIBIBB")
_START = b"\x00\x53\x14\xc0"
_OFF = b"\x40\x40\x42\x42\x42"  # no settle mode, no state, not resumed, not aborted, not batchable
_FLAGS = {
    (False, False): b"\x42\x42" + _OFF,
    (False, True): b"\x42\x41" + _OFF,
    (True, False): b"\x41\x42" + _OFF,
    (True, True): b"\x41\x41" + _OFF,
}


def _common_tails() -> dict[bytes, tuple[int, bool, bool]]:
    """Return the common encodings of the fields after the message format.

    {bytes of the fields: (number of fields, settled, more)}, with one-byte and two-byte booleans.
    """
    tails = {}
    for no, yes in ((b"\x42", b"\x41"), (b"\x56\x00", b"\x56\x01")):
        off, flag = (b"\x40", no), (b"\x40", no, yes)
        modes = (b"\x40", b"\x43", b"\x50\x00", b"\x50\x01")
        fields = (flag, flag, modes, (b"\x40",), off, off, flag)
        for number in range(2, 8):
            for tail in product(*fields[:number]):
                tails[b"".join(tail)] = (number, tail[0] == yes, tail[1] == yes)
    return tails


_TAILS = _common_tails()


def decode_transfer(buffer: bytes, start: int, end: int) -> Fields:
    """Return the fields of the transfer at `start`. Raises ProtocolError."""
    # Hot path: few calls, and errors are detected at the end.
    try:
        stop = start + 5 + buffer[start + 4]
        handle: int | None
        delivery_id: int | None
        message_format: int | None
        if buffer[start + 6] == 0x43:
            handle, position = 0, start + 7
        else:
            handle, position = uint(buffer, start + 6)
        if buffer[position] == 0x70:
            delivery_id = _U32.unpack_from(buffer, position + 1)[0]
            position += 5
        else:
            delivery_id, position = uint(buffer, position)
        binary = buffer[position]
        after_tag = position + 2 + buffer[position + 1]
        if buffer[after_tag] == 0x43:
            message_format, tail_at = 0, after_tag + 1
        else:
            message_format, tail_at = uint(buffer, after_tag)
        number, settled, more = _TAILS[buffer[tail_at:stop]]
        narrow = buffer[start + 3] == 0xC0 and buffer[start + 5] == 4 + number
        if narrow and binary == 0xA0 and handle is not None and stop <= end:
            tag = buffer[position + 2 : after_tag]
            return handle, delivery_id, tag, message_format or 0, settled, more, False, stop, None
    except (IndexError, KeyError, struct.error):
        pass
    return _decode_any(buffer, start, end)


def uint(buffer: bytes, position: int) -> tuple[int | None, int]:
    """Return a uint or null, and the position after it. Raises IndexError for any other value."""
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


def _decode_any(buffer: bytes, start: int, end: int) -> Fields:
    transfer, length = decode_composite(buffer[start:end])
    if not isinstance(transfer, Transfer) or transfer.handle is None:
        raise ProtocolError("a transfer is malformed")
    flags = bool(transfer.settled), bool(transfer.more), bool(transfer.aborted)
    message_format = transfer.message_format or 0
    fields = transfer.handle, transfer.delivery_id, transfer.delivery_tag, message_format
    return *fields, *flags, start + length, transfer.state


def frame_head(channel: int, handle: int, tag_size: int) -> Callable[[int, int, bytes], bytes]:
    """Return a function of (payload size, delivery id, tag) that writes a frame up to its payload.

    For unsettled messages that fit one frame: the constant part of a link is computed once.
    """
    end = b"\x43" + _FLAGS[False, False]
    body = _HEAD.size + tag_size + len(end)
    pack, size = _FRAME.pack, 8 + body

    def write_head(payload_size: int, delivery_id: int, tag: bytes) -> bytes:
        whole = size + payload_size
        head = pack(whole, 2, 0, channel, _START, body - 5, 11, 0x70, handle, 0x70, delivery_id, 0xA0, tag_size)
        return head + tag + end

    return write_head


def encode_transfer(
    handle: int, delivery_id: int, tag: bytes, message_format: int, *, settled: bool, more: bool, state: Any = None
) -> bytes:
    """Return a transfer performative with all eleven fields."""
    if state is not None:
        return Transfer(handle, delivery_id, tag, message_format, settled, more, state=state).encode()
    size = len(tag)
    end = b"\x43" if message_format == 0 else b"\x70" + _U32.pack(message_format)
    end += _FLAGS[settled, more]
    head = _HEAD.pack(_START, 13 + size + len(end), 11, 0x70, handle, 0x70, delivery_id, 0xA0, size)
    return head + tag + end
