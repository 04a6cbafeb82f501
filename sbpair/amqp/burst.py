"""Transfers that follow one another on one link, each a whole message and written as the one before: read as one run.

A short cut, not a dialect: it ends at the first frame that is any different, and `transfer` reads that one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from sbpair.amqp import transfer
from sbpair.amqp.events import Delivery

if TYPE_CHECKING:
    from sbpair.amqp.link import ReceivingLink

_HANDLE_SIZES = {0x43: 1, 0x52: 2}
_NO_EXTENSION = 2


def follows(buffer: bytes, start: int, end: int) -> bool:
    """Whether the frame behind `end` begins as the one does whose body stands at `start`, up to its handle."""
    return buffer[start - 4 : start + 8] == buffer[end + 4 : end + 16]


def read_on(link: ReceivingLink, buffer: bytes, start: int, end: int, max_frame: int) -> tuple[list[Delivery], int]:
    """The deliveries behind the whole one whose body stands from `start` to `end`, and where the last of them ends."""
    found: list[Delivery] = []
    _, first_id, tag, message_format, settled, _, _, payload_at = transfer.read(buffer, start, end)
    id_at = start + 6 + _HANDLE_SIZES.get(buffer[start + 6], 5)
    tag_at = id_at + 7
    if not tag or buffer[id_at : tag_at + len(tag)] != _usual(first_id, tag) or buffer[start - 4] != _NO_EXTENSION:
        return found, end
    # What is the same in all of them stands before the delivery id, before the tag, and behind it.
    before, between, behind = (
        buffer[start - 4 : id_at + 1],
        buffer[id_at + 5 : tag_at],
        buffer[tag_at + len(tag) : payload_at],
    )
    pattern = struct.Struct(f">I{len(before)}sI2s{len(tag)}s{len(behind)}s")
    unpack, head = pattern.unpack_from, pattern.size
    limit = min(max_frame, head + link.max_message_size) if link.max_message_size else max_frame
    there, constants, add = len(buffer), (before, between, behind), found.append
    while end + head <= there:
        size, same, delivery_id, as_well, tag, too = unpack(buffer, end)
        next_one = end + size
        if (same, as_well, too) != constants or not head <= size <= limit or next_one > there:
            break
        add(Delivery(link, delivery_id, tag, message_format, settled, buffer[end + head : next_one]))
        end = next_one
    return found, end


def _usual(delivery_id: int | None, tag: bytes) -> bytes:
    """An id and a tag as nearly all peers write them."""
    return struct.pack(">BIBB", 0x70, delivery_id or 0, 0xA0, len(tag)) + tag
