"""The checker accepts a correct conversation, and finds each planted breach of a rule by our side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import Header, Properties, data_body, encode_map
from sbpair.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from sbpair.amqp.types import Array, Described, Symbol, UInt
from tests.strict_amqp import generate
from tests.strict_amqp.checker import AMQP, OURS, SASL, THEIRS, Checker

SPECIFICATION = Path("/usr/share/amqp/specs/1-0")
MESSAGE = Header(durable=True).encode() + Properties(message_id="m").encode() + data_body(b"body")
SESSION_FILTER = {Symbol("com.microsoft:session-filter"): Described(Symbol("com.microsoft:session-filter"), "s")}

Said = tuple[int, bytes]


def frame(body: Composite | bytes, payload: bytes = b"", *, channel: int = 0, kind: int = 0) -> bytes:
    encoded = (body if isinstance(body, bytes) else body.encode()) + payload
    return (len(encoded) + 8).to_bytes(4) + bytes((2, kind)) + channel.to_bytes(2) + encoded


def ours(*bodies: Composite | bytes) -> list[Said]:
    return [(OURS, frame(body)) for body in bodies]


def theirs(*bodies: Composite | bytes) -> list[Said]:
    return [(THEIRS, frame(body)) for body in bodies]


def transfer(number: int, payload: bytes = MESSAGE, **terms: Any) -> list[Said]:
    given = {"delivery_id": number, "delivery_tag": b"tag%d" % number, "message_format": 0, "settled": False, **terms}
    return [(OURS, frame(Transfer(0, **given), payload))]


def sending(name: str = "to", handle: int = 0, **terms: Any) -> Attach:
    given = {"source": Source("a"), "target": Target("b"), "initial_delivery_count": 0, **terms}
    return Attach(name, handle, False, **given)


SIGN_IN = [
    (OURS, SASL),
    (THEIRS, SASL),
    (THEIRS, frame(SaslMechanisms(Array([Symbol("PLAIN")])), kind=1)),
    (OURS, frame(SaslInit("PLAIN", b""), kind=1)),
    (THEIRS, frame(SaslOutcome(0), kind=1)),
]
HEADERS = [(OURS, AMQP), (THEIRS, AMQP)]
OPEN = [*HEADERS, *ours(Open("us", max_frame_size=1_000)), *theirs(Open("them", max_frame_size=1_000))]
BEGUN = [*OPEN, *ours(Begin(None, 0, 100, 100, 7)), *theirs(Begin(0, 0, 100, 100, 7))]
THEIR_ATTACH = Attach("to", 0, True, 2, 0, Source("a"), Target("b"), max_message_size=500)
ATTACHED = [*BEGUN, *ours(sending()), *theirs(THEIR_ATTACH)]
GRANTED = [*ATTACHED, *theirs(Flow(0, 100, 0, 100, 0, 0, 2))]
SENT = [*GRANTED, *transfer(0), *theirs(Disposition(True, 0, 0, True, Accepted()))]
RECEIVING = [
    *BEGUN,
    *ours(Attach("from", 0, True, 2, 0, Source("a", filter=SESSION_FILTER), Target("b"))),
    *theirs(Attach("from", 0, False, 2, 0, Source("a"), Target("b"), initial_delivery_count=0)),
    *ours(Flow(0, 100, 0, 100, 0, 0, 1)),
    (THEIRS, frame(Transfer(0, 0, b"t", 0, False), MESSAGE)),
]


def findings(said: Sequence[Said]) -> list[str]:
    checker = Checker()
    for side, data in said:
        checker.feed(data, side)
    return checker.findings


@pytest.mark.parametrize(
    "said",
    [
        [*SIGN_IN, *SENT, *ours(Detach(0, True), End(), Close())],
        [*RECEIVING, *ours(Disposition(True, 0, 0, True, Accepted()), Detach(0, True, Error("x:y")), End(), Close())],
        [*GRANTED, *transfer(0, MESSAGE[:5], more=True), *transfer(0, MESSAGE[5:]), *transfer(1)],
        [*GRANTED, *transfer(0), *theirs(Flow(1, 100, 0, 100, 0, 1, 0)), *transfer(1)],  # it was queued by then
        [*GRANTED, *theirs(Flow(0, 2**32 - 1, 0, 100)), *transfer(0)],
        [*OPEN, *theirs(Begin(None, 0, 100, 100), End()), *ours(Begin(0, 0, 100, 100), End())],
        [*OPEN, (OURS, b"\x00\x00\x00\x08\x02\x00\x00\x00")],
        [*OPEN, *theirs(Close(), Close()), *ours(b"nonsense")],  # the peer breaks a rule first
    ],
    ids=["sends", "receives", "in parts", "queued", "widest", "ended at once", "heartbeat", "after the peer's breach"],
)
def test_a_correct_conversation_has_no_finding(said: list[Said]) -> None:
    assert findings(said) == []


@pytest.mark.parametrize(
    ("said", "finding"),
    [
        ([(OURS, b"HTTP/1.1")], "neither SASL's nor AMQP's"),
        ([*SIGN_IN[:3], (OURS, frame(SaslInit("OTHER"), kind=1))], "OTHER is not offered"),
        ([*SIGN_IN[:3], (OURS, frame(SaslInit("PLAIN")))], "a frame of type 0 in the layer sasl"),
        ([*HEADERS, *ours(Begin(None, 0, 1, 1))], "begin comes before open"),
        ([*HEADERS, *ours(Open("us" * 300))], "a frame has 6.. bytes, more than the peer's 512"),
        ([*HEADERS, *ours(Open("us", max_frame_size=100))], "max-frame-size is 100"),
        ([*OPEN, *ours(Open("us"))], "a second open"),
        ([*OPEN, *ours(Close(), Close())], "a frame follows close"),
        ([*OPEN, *ours(b"\x00\x53\x10\x45")], "open.container-id is missing"),
        ([*OPEN, *ours(b"\x00\x53\x77\x40")], "amqp-value|no frame|session"),
        ([*OPEN, *ours(b"\x00\x53\x18\xc0\x03\x02\x40\x40")], "close has 2 fields"),
        ([*OPEN, *ours(b"\x00\x53\x18\xc0\x02\x01\x52")], "cut short"),
        ([*OPEN, *ours(b"\x00\x53\x18\xc0\x04\x01\xa1\x01x")], "close.error is string, not error"),
        ([*OPEN, *ours(Begin(3, 0, 1, 1))], "channel 3, which does not wait"),
        ([*BEGUN, *ours(Begin(None, 0, 1, 1))], "channel 0, which has a session"),
        ([*OPEN, *ours(sending())], "channel 0, which has no session"),
        ([*BEGUN, *ours(sending(handle=9))], "beyond the peer's handle-max 7"),
        ([*BEGUN, *ours(sending(initial_delivery_count=None))], "no initial-delivery-count"),
        ([*BEGUN, *ours(sending(), sending("other"))], "the handle 0, which is in use"),
        ([*BEGUN, *ours(sending(), sending(handle=1))], "'to', which is attached"),
        ([*BEGUN, *ours(sending(snd_settle_mode=3))], "snd-settle-mode is 3"),
        ([*BEGUN, *ours(sending(source=Target("b")))], "target, which is no source"),
        ([*BEGUN, *ours(sending(properties={"text": True}))], "a string as a key"),
        ([*BEGUN, *ours(sending(source=Source("a", filter={Symbol("f"): "text"})))], "the filter f is not described"),
        ([*BEGUN, *ours(Detach(0, True))], "detach with the handle 0, which is not attached"),
        ([*BEGUN, *ours(Flow(None, 1, 0, 1))], "next-incoming-id"),
        ([*BEGUN, *ours(Flow(1, 1, 0, 1))], "next-incoming-id of flow is 1, beyond 0"),
        ([*BEGUN, *ours(Flow(0, 1, 5, 1))], "next-outgoing-id of flow is 5, not 0"),
        ([*BEGUN, *ours(Flow(0, 1, 0, 1, None, None, 5))], "flow without a handle has link-credit"),
        ([*GRANTED, *ours(Flow(0, 100, 0, 100, 0, None, 5))], "a sender's flow has no delivery-count"),
        ([*GRANTED, *ours(Flow(0, 100, 0, 100, 0, 9, 0))], "delivery-count of flow is 9"),
        ([*ATTACHED, *transfer(0)], "without credit"),
        ([*GRANTED, *transfer(0), *transfer(1), *transfer(2)], "without credit"),
        ([*GRANTED, *transfer(0), *transfer(2)], "delivery 2 follows delivery 0"),
        ([*GRANTED, *transfer(0), *transfer(1, delivery_tag=b"tag0")], "is in use on its link"),
        ([*GRANTED, *transfer(0, message_format=None)], "lacks its id, tag or message-format"),
        ([*GRANTED, *transfer(0, delivery_tag=b"t" * 33)], "delivery-tag has 33 bytes"),
        ([*GRANTED, *transfer(0, more=True), *transfer(1)], "begins within delivery 0"),
        ([*GRANTED, *transfer(0, data_body(b"x" * 600))], "more than the link's 500"),
        ([*GRANTED, *theirs(Flow(0, 0, 0, 100)), *ours(End())][:-1] + ours(Flow(0, 9, 0, 9)) + transfer(0), "window"),
        ([*GRANTED, *transfer(0, b"")], "a message has no body"),
        ([*GRANTED, *transfer(0, data_body(b"") + Header().encode())], "header follows data"),
        ([*GRANTED, *transfer(0, encode_map(0x74, {Symbol("k"): UInt(1)}) + data_body(b""))], "a symbol as a key"),
        ([*GRANTED, *transfer(0, encode_map(0x72, {"text": UInt(1)}) + data_body(b""))], "a string as a key"),
        ([*RECEIVING, *ours(Disposition(True, 0, 1, True, Accepted()))], "disposition of 1, which was not sent"),
        ([*RECEIVING, *ours(Disposition(True, 0, 0, True, Source("a")))], "source, which is no delivery-state"),
    ],
)
def test_a_breach_of_ours_is_found(said: list[Said], finding: str) -> None:
    (found,) = findings(said)
    assert re.search(finding, found)


@pytest.mark.skipif(not SPECIFICATION.is_dir(), reason="the package amqp-specs is not installed")
def test_the_table_is_that_of_the_published_specification() -> None:
    assert generate.TABLE.read_text() == generate.text(generate.table(SPECIFICATION))
