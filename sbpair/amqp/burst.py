"""Consecutive transfers of one link, each a whole message encoded like the one before, read as one burst.

A fast path only: it ends at the first frame that differs, and leaves that one to `transfer`.
"""

from __future__ import annotations

import struct

from sbpair.amqp import transfer
from sbpair.amqp.link import Delivery, ReceivingLink

_HANDLE_SIZES = {0x43: 1, 0x52: 2}
_NO_EXTENSION = 2


def read_on(link: ReceivingLink, buffer: bytes, start: int, end: int, max_frame: int) -> tuple[list[Delivery], int]:
    """Return the deliveries that follow the whole one with its body from `start` to `end`, and the end of the last."""
    found: list[Delivery] = []
    _, first_id, tag, message_format, settled, _, _, payload_at = transfer.decode_transfer(buffer, start, end)
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
