"""A namespace one of whose AMQP frames is changed on the way: `--once` ends by its receipt or a designed error."""

import asyncio
import math
import struct
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from sbpair.amqp import transfer
from sbpair.amqp.frames import AMQP_FRAME, AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, frame
from sbpair.amqp.performatives import Close, Detach, Error, SaslOutcome, decode_composite
from sbpair.amqp_client.limits import ANSWER_SECONDS
from sbpair.errors import SbpairError
from tests.faults.simulation.stage import Stage, play, played

FLOW, TRANSFER, DISPOSITION = 0x13, 0x14, 0x15
EVIL = Error("amqp:internal-error", "\x1b[31m\x1b]0;title\x07 \x9b2J \u202e evil\r\nerror: forged\x00")
LISTS_IN_LISTS = b"\x00\x53\x12\xd0" + b"\x00\x00\x10\x00\x00\x00\x00\x01\xd0" * 400
POSITIONS = (0, 2, 5, 9, 16)
"""Which frame of a connection is changed, and all after it where that is said."""

CHANGED_CONNECTIONS = 3
"""The first so many connections to a side; later ones are honest."""

LIMIT_SECONDS = 900.0
Change = Callable[[Random, int, int, bytes], bytes]


def whole(kind: int, channel: int, body: bytes) -> bytes:
    return frame(body, channel=channel, kind=kind)


def of_wrong_size(random: Random, *given: Any) -> bytes:
    made = whole(*given)
    return struct.pack(">I", random.choice((0, 7, len(made) - 3, len(made) + 9, 2**32 - 1))) + made[4:]


def flipped(random: Random, kind: int, channel: int, body: bytes) -> bytes:
    damaged = bytearray(body)
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return whole(kind, channel, bytes(damaged))


def closed(random: Random, kind: int, *_: Any) -> bytes:
    if kind == SASL_FRAME:
        return frame(SaslOutcome(random.choice((1, 2, 3, 99))).encode(), kind=SASL_FRAME)
    return frame(Close(random.choice((EVIL, Error("amqp:unauthorized-access", "no")))).encode())


def endless_transfer(_: Random, kind: int, channel: int, body: bytes) -> bytes:
    """Return parts of a message that never ends, in place of a transfer."""
    if kind != AMQP_FRAME or body[2] != TRANSFER:
        return whole(kind, channel, body)
    found: Any = decode_composite(body)[0]
    part = transfer.encode_transfer(found.handle, 7, b"t" * 16, 0, settled=False, more=True)
    return frame(part + bytes(30_000), channel=channel) * 20


ONE: dict[str, Change] = {
    "wrong size": of_wrong_size,
    "wrong channel": lambda random, kind, _, body: whole(kind, random.choice((1, 255, 65_535)), body),
    "wrong type": lambda random, _, channel, body: whole(random.choice((0, 1, 9)), channel, body),
    "flipped": flipped,
    "twice": lambda _, *given: whole(*given) * 2,
    "dropped": lambda *_: b"",
    "cut": lambda random, *given: whole(*given)[: random.randrange(8 + len(given[2]))],
    "garbage": lambda random, *_: random.randbytes(500),
    "closed": closed,
    "detached": lambda _, *given: frame(Detach(0, True, EVIL).encode(), channel=given[1]) + whole(*given),
    "no performative": lambda _, kind, channel, __: whole(kind, channel, b"\x54\x01"),
    "lists in lists": lambda _, kind, channel, __: whole(kind, channel, LISTS_IN_LISTS),
    "huge list": lambda _, kind, channel, __: whole(kind, channel, b"\x00\x53\x14\xd0" + b"\xff" * 8),
    "header again": lambda _, *given: AMQP_HEADER + whole(*given),
    "other version": lambda *_: b"AMQP\x00\x02\x00\x00",
}
ALL: dict[str, Change] = {
    "silence": lambda *_: b"",
    "heartbeats": lambda *_: EMPTY_FRAME * 100,
    "no credit": lambda _, *given: b"" if given[0] == AMQP_FRAME and given[2][2] == FLOW else whole(*given),
    "no outcome": lambda _, *given: b"" if given[0] == AMQP_FRAME and given[2][2] == DISPOSITION else whole(*given),
    "endless transfer": endless_transfer,
}


def frames(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield headers as (-1, 0, bytes), and frames as (type, channel, body)."""
    while data:
        if data.startswith(b"AMQP"):
            yield -1, 0, data[:8]
            data = data[8:]
        else:
            size, offset, kind, channel = struct.unpack(">IBBH", data[:8])
            yield kind, channel, data[4 * offset : size]
            data = data[size:]


def change_frames(stage: Stage, side: str, how: str, position: int, left: float = CHANGED_CONNECTIONS) -> None:
    """Let one frame of the first connections to a side be changed, or all from there on."""
    random, honest = Random(f"{side} {how} {position}"), stage.network._doors[stage.host(side)]

    def door() -> Any:
        nonlocal left
        made: Any = honest()
        connection_made, passed = made.connection_made, 0
        left -= 1
        if left < 0:
            return made

        def connected(transport: Any) -> None:
            write = transport.write

            def changed(data: bytes) -> None:
                nonlocal passed
                for kind, channel, body in frames(data):
                    is_changed = kind >= 0 and body and (passed == position or (passed > position and how in ALL))
                    passed += kind >= 0 and bool(body)
                    unchanged = body if kind < 0 else whole(kind, channel, body)
                    write((ONE | ALL)[how](random, kind, channel, body) if is_changed else unchanged)

            transport.write = changed
            connection_made(transport)

        made.connection_made = connected
        return made

    stage.network.serve(stage.host(side), door)


async def run(stage: Stage) -> int:
    """Move what is in the backlog, and return the exit code."""
    moving = stage.start(once=True, wait_for_locks=False)
    try:
        result = await asyncio.wait_for(moving, LIMIT_SECONDS)
    except SbpairError as error:
        return error.exit_code
    assert result.receipt.balanced
    return result.exit_code


@pytest.mark.odd_messages
@pytest.mark.parametrize("side", ["primary", "backlog"])
@pytest.mark.parametrize("how", [*ONE, *ALL])
def test_a_changed_frame_ends_a_run_as_designed_and_loses_nothing(how: str, side: str) -> None:
    async def scene(position: int, stage: Stage) -> None:
        stage.destination()
        stage.strand(*range(20))
        change_frames(stage, side, how, position)
        assert await run(stage) in (0, 3, 5, 6)
        if side == "primary" and how != "flipped":
            found = {*stage.ids(stage.destination()), *stage.ids(stage.backlog())}
            assert found == {f"m{number}" for number in range(20)}
        await asyncio.sleep(LIMIT_SECONDS)

    for position in POSITIONS:
        play(partial(scene, position))


@played()
async def test_once_leaves_a_destination_that_never_answers(stage: Stage) -> None:
    there = stage.destination()
    stage.strand(*range(20))
    change_frames(stage, "primary", "no outcome", 11, math.inf)  # later than its sign-in
    # Each connection is lost with its answers, and comes back at once: three attempts, and a fourth may begin.
    result = await asyncio.wait_for(stage.start(once=True), 5 * ANSWER_SECONDS)
    receipt = result.receipt
    assert (result.exit_code, receipt.sent, receipt.in_doubt, receipt.doubtful_total) == (3, 0, 20, 20)
    assert len(stage.ids(stage.backlog())) == 20
    assert len(stage.ids(there)) in (60, 80)
