"""Dispositions as nearly all of them are written, read without the general machinery.

Only outcomes that say nothing but their name are known here; whatever else a peer writes goes through
`performatives.Disposition`: this is a short cut, not a dialect.
"""

from __future__ import annotations

import struct
from itertools import product

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

Tail = tuple[int, bool, Accepted | Released | None]


def _usual_tails() -> dict[bytes, Tail]:
    """What follows the ids, by its bytes: how many fields it makes, and what the first two of them say."""
    tails: dict[bytes, Tail] = {}
    for settled, state, batchable in product(_FLAGS, _STATES, (b"", *_FLAGS)):
        tails[settled + state + batchable] = (2 + bool(batchable), _FLAGS[settled], _STATES[state])
    return tails


_TAILS = _usual_tails()


def read(frame: bytes) -> Composite:
    """The performative that a frame's body, beginning as a disposition does, holds. Raises ProtocolError."""
    try:
        first, position = uint(frame, 7)
        last, position = uint(frame, position)
        number, settled, state = _TAILS[frame[position:]]
        whole = frame[3] == 0xC0 and frame[4] == len(frame) - 5 and frame[5] == 3 + number
        if whole and first is not None and frame[6] in (0x41, 0x42):
            return Disposition(frame[6] == 0x41, first, last, settled, state)
    except (IndexError, KeyError, struct.error):
        pass
    return decode_composite(frame)[0]
