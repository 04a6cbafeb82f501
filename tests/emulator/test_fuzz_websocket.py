"""Valid AMQP conversations over WebSocket, cut into any frames and then broken, through memory.

No error is swallowed, output has a bound, and a correct client is served afterwards. `-m slow` runs more examples.
"""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Opcode
from websockets.protocol import Protocol, Side

from sbpair.amqp_server.websocket_frontend import WebSocketFrontend
from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection
from tests.emulator.test_fuzz_amqp import (
    CONVERSATIONS,
    LONG,
    QUICK,
    Memory,
    recorded,
    repeated_ids,  # noqa: F401  # a fixture of every test here too: conversations name their transactions by it
    settled,
    survive,
)
from tests.emulator.test_websocket import frame, handshake

Draw = Any
CONTROL = [(Opcode.PING, b""), (Opcode.PING, b"x" * 125), (Opcode.PONG, b"unasked"), (Opcode.BINARY, b"")]


def cuts(draw: Draw, size: int) -> list[int]:
    return sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=8))})


@st.composite
def framed_conversations(draw: Draw) -> tuple[bytes, list[bytes]]:
    """Draw what a client says, and the same in frames: some in several parts, some with control frames between."""
    said = b"".join(recorded(draw(st.sampled_from(sorted(CONVERSATIONS)))))
    ends = cuts(draw, len(said))
    frames, inside = [], False
    for start, end in pairwise(ends):
        fin = end == len(said) or draw(st.booleans())
        frames.append(frame(Opcode.CONT if inside else Opcode.BINARY, said[start:end], fin=fin))
        inside = not fin
        opcode, data = draw(st.sampled_from(CONTROL))
        if draw(st.booleans()) and not (inside and opcode is Opcode.BINARY):
            frames.append(frame(opcode, data))
    return said, frames


@st.composite
def broken_conversations(draw: Draw) -> list[bytes]:
    """Draw reads of a handshake and frames, with some bytes changed, lost or repeated."""
    _, frames = draw(framed_conversations())
    pieces = [handshake(), *frames]
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, len(pieces) - 1))
        piece = pieces[number]
        # The header of a frame is at most 14 bytes long.
        position = draw(st.integers(0, max(0, min(len(piece), 400 if number == 0 else 14) - 1)))
        rest = piece[position:]
        pieces[number] = draw(
            st.sampled_from(
                [
                    piece[:position],
                    piece[:position] + rest[1:],
                    piece[:position] + bytes([draw(st.integers(0, 255))]) + rest[1:],
                    piece[:position] + bytes([draw(st.integers(0, 255))]) + rest,
                    piece[:position] + b"\xff" * 9 + rest,
                    piece + piece,
                    bytes([draw(st.integers(0, 255))]) + frame(Opcode.BINARY, rest[:125])[1:],
                    b"",
                ]
            )
        )
    sent = b"".join(pieces)
    ends = cuts(draw, len(sent))
    return [sent[start:end] for start, end in pairwise(ends)]


class Listener(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


@settings(QUICK, max_examples=100)
@given(framed_conversations(), st.data())
async def test_any_frames_carry_the_same_stream(conversation: tuple[bytes, list[bytes]], data: Any) -> None:
    said, frames = conversation
    listener = Listener()
    transport = Memory(WebSocketFrontend(listener))
    asked = handshake()
    for start, end in pairwise(cuts(data.draw, len(asked))):
        transport.hear(asked[start:end])
    assert transport.take().startswith(b"HTTP/1.1 101 ")
    sent = b"".join(frames)
    ends = cuts(data.draw, len(sent))
    for start, end in pairwise(ends):
        transport.hear(sent[start:end])
    assert listener.received == said
    answers = Protocol(Side.CLIENT)
    answers.receive_data(transport.take())
    pongs = [event.opcode for event in answers.events_received()]
    assert pongs == [Opcode.PONG] * sum(each[0] == 0x89 for each in frames)
    transport.close()
    await settled()


@pytest.mark.parametrize("effort", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)])
def test_broken_frames_harm_no_other_client(caplog: pytest.LogCaptureFixture, effort: settings) -> None:
    @effort
    @given(broken_conversations())
    def attack(reads: list[bytes]) -> None:
        survive(caplog, reads, lambda namespace: WebSocketFrontend(AmqpConnection(namespace)))

    attack()
