"""Streams sent over real sockets: every message is accounted for, and the rest is a suffix."""

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from sbpair import errors
from sbpair.amqp import codec
from sbpair.amqp.message import Header, Properties, Sections, data_body, encode_map, section, value_body
from sbpair.amqp.types import (
    Byte,
    Char,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from sbpair.failover import failover_send
from sbpair.failover.entity_states import State
from sbpair.failover.events import EntityChanged, OutboxClosed, QueueLeft
from sbpair.failover.failover_send import Delivered
from sbpair.failover.outbox import Outbox, outbox_depths
from sbpair.message_io import send_lines
from sbpair.message_io.line_reader import LineReader
from sbpair.message_io.message_fields import as_sent, body_of
from sbpair.message_io.message_json import render_peeked
from sbpair.message_io.peek import PeekSource, peek_messages
from sbpair.message_io.send_lines import LineStream, SendResult, SourceLines
from sbpair.model.document import encoded
from sbpair.model.retries import Backoff
from tests.kit.failover_rig import PAIRED_CLIENTS, PRIMARY, SECONDARY, Rig
from tests.kit.proxy import closed_port
from tests.kit.stranded import put

pytestmark = PAIRED_CLIENTS


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_send, "SEND_BACKOFF", Backoff(0.01, 5.0))


async def send_text(
    rig: Rig,
    text: bytes,
    *,
    as_json: bool = False,
    skip: int = 0,
    meanwhile: Callable[[Any, asyncio.Event, asyncio.Event, int], Any] | None = None,
    **options: Any,
) -> SendResult:
    """Send a stream. `meanwhile` is called with each event, both stops, and the pipe to write to."""
    if meanwhile is not None:
        reading, writing = os.pipe()
        os.write(writing, text)
    else:
        # A pipe does not hold as much.
        reading = writing = os.memfd_create("lines")
        os.write(writing, text)
        os.lseek(reading, 0, os.SEEK_SET)

    try:
        stop, hurry = asyncio.Event(), asyncio.Event()
        heard = (lambda event: meanwhile(event, stop, hurry, writing)) if meanwhile else lambda _event: None
        of_pipe = SourceLines(reading, "stdin", LineReader(as_json=as_json), skip)
        stream = LineStream(of_pipe, options.pop("rate", None), stop, hurry, heard)
        return await send_lines.send_lines(rig.pair, options.pop("entity", "orders"), stream, **options)
    finally:
        for descriptor in {reading, writing}:
            os.close(descriptor)


def stop_at(event: Any, stop: asyncio.Event, count: int) -> None:
    if isinstance(event, Delivered) and event.primary + event.backlog >= count:
        stop.set()


async def send_until(rig: Rig, text: bytes, count: int, **options: Any) -> tuple[SendResult, list[Any]]:
    """Send a stream that does not end, and stop once a side has accepted `count` messages. Returns also all events."""
    events: list[Any] = []

    def meanwhile(event: Any, stop: asyncio.Event, *_: Any) -> None:
        events.append(event)
        stop_at(event, stop, count)

    return await send_text(rig, text, meanwhile=meanwhile, **options), events


def bodies(messages: Any) -> list[bytes]:
    """Return short bodies, which follow five bytes of their section."""
    return [each.body[5:] for each in messages]


def balanced(result: SendResult) -> bool:
    delivered = result.delivered
    ends = (delivered.primary, delivered.backlog, delivered.outbox, result.in_doubt, result.failed)
    return result.messages == sum(ends)


async def test_lines_arrive_in_order(rig: Rig) -> None:
    """They are more than are read ahead."""
    result = await send_text(rig, b"".join(b"%04d\n" % number for number in range(3_000)))
    assert (result.delivered, result.exit_code, result.next_line) == (Delivered(primary=3_000), 0, 3_001)
    assert balanced(result)
    assert bodies(rig.in_queue(rig.orders)) == [b"%04d" % number for number in range(3_000)]


async def test_lines_sent_to_the_backlog_are_counted_there(rig: Rig) -> None:
    with rig.broken("entity_down", PRIMARY, "orders"):
        result, events = await send_until(rig, b"a\nb\nc\n", 3)
    assert result.delivered == Delivered(backlog=3)
    assert (result.exit_code, result.next_line) == (0, 4)
    assert balanced(result)
    assert [each.after for each in events if isinstance(each, EntityChanged)] == [State.FAILING, State.FAILED_OVER]
    assert len(rig.in_backlog()) == 3


@pytest.mark.parametrize(
    ("fault", "in_doubt", "error"), [("throttle", 0, errors.Throttled), ("swallow_acks", 1, errors.Unavailable)]
)
async def test_raise_ends_at_the_first_failure_with_its_line(
    rig: Rig, fault: str, in_doubt: int, error: type[Exception]
) -> None:
    rig.pair = replace(rig.pair, failover_interval=60)
    with rig.broken(fault, PRIMARY, "orders"):
        result = await send_text(rig, b"a\nb\n", on_failure="raise", skip=1, seconds=1.5)
    assert (result.messages, result.failed, result.in_doubt) == (1, 1 - in_doubt, in_doubt)
    assert (result.line, result.next_line, result.exit_code, result.doubtful) == (2, 2, 6, ())
    assert isinstance(result.error, error)


@pytest.mark.parametrize("on_failure", ["raise", "wait"])
async def test_a_message_that_found_no_connection_is_failed(rig: Rig, on_failure: Any) -> None:
    """Nothing listens at the ports of the two namespaces."""
    with closed_port() as first, closed_port() as second:
        sides = {
            side: replace(getattr(rig.pair, side), host="127.0.0.1", port=port, authority=f"127.0.0.1:{port}")
            for side, port in (("primary", first), ("secondary", second))
        }
        rig.pair = replace(rig.pair, **sides, failover_interval=0.1)
        result = await send_text(rig, b"a\nb\n", on_failure=on_failure, seconds=3)
    assert (result.messages, result.failed, result.in_doubt, result.next_line, result.doubtful) == (2, 2, 0, 1, ())
    assert result.exit_code == 6


async def test_an_earlier_attempt_without_an_answer_leaves_a_message_in_doubt(rig: Rig) -> None:
    rig.pair = replace(rig.pair, failover_interval=0.1)
    with rig.broken("swallow_acks", PRIMARY, "orders"), rig.broken("namespace_down", SECONDARY):
        result = await send_text(rig, b"a\n", on_failure="backlog-now", seconds=4)
    assert (result.in_doubt, result.failed, result.exit_code) == (1, 0, 6)


async def test_an_invalid_line_ends_the_run_after_earlier_lines(rig: Rig) -> None:
    result = await send_text(rig, b'{"body": "a"}\n\n{"body": 1}\n{"body": "c"}\n', as_json=True)
    assert (result.delivered, result.next_line, result.exit_code) == (Delivered(primary=1), 2, 3)
    assert isinstance(result.error, errors.UsageError)
    assert result.error.message.startswith("stdin, line 3: body: ")
    # The corrected stream, from where the result says. Lines that are skipped are not parsed.
    again = await send_text(rig, b'not JSON\n{"body": "b"}\n{"body": "c"}', as_json=True, skip=1)
    assert (again.delivered, again.next_line) == (Delivered(primary=2), 4)
    assert bodies(rig.in_queue(rig.orders)) == [b"a", b"b", b"c"]
    assert (await send_text(rig, b"{}\n", as_json=True)).exit_code == 2, "nothing was sent before"


async def test_a_stop_does_not_wait_for_more_lines(rig: Rig) -> None:
    def meanwhile(event: Any, stop: asyncio.Event, _hurry: asyncio.Event, writing: int) -> None:
        if event == Delivered(primary=1):
            os.write(writing, b"b\n")
        stop_at(event, stop, 2)

    result = await send_text(rig, b"a\n", meanwhile=meanwhile)
    assert (result.delivered, result.stopped, result.next_line) == (Delivered(primary=2), True, 3)


async def test_hurry_abandons_the_current_send_in_doubt(rig: Rig) -> None:
    def meanwhile(event: Any, stop: asyncio.Event, hurry: asyncio.Event, _writing: int) -> None:
        if isinstance(event, EntityChanged) and event.after is State.FAILING:
            stop.set()
            hurry.set()

    rig.pair = replace(rig.pair, failover_interval=60)
    with rig.broken("throttle", PRIMARY, "orders"):
        result = await send_text(rig, b"a\nb\n", meanwhile=meanwhile)
    assert (result.messages, result.stopped, result.next_line) == (2, True, 1)
    assert balanced(result)


@pytest.mark.slow
async def test_no_line_is_lost_when_a_backlog_queue_fails(rig: Rig) -> None:
    events: list[Any] = []
    with rig.broken("entity_down", SECONDARY, rig.paths[0]):
        for _ in range(4):
            result, more = await send_until(rig, b"a\n", 1, to_backlog=True)
            assert result.exit_code == 0
            events += more
            if any(isinstance(each, QueueLeft) for each in events):
                break
    assert len(rig.in_backlog()) == len([each for each in events if isinstance(each, Delivered)])


async def test_the_next_run_delivers_the_outbox(rig: Rig, tmp_path: Path) -> None:
    outbox = tmp_path / "outbox.db"
    with rig.broken("throttle", PRIMARY, "orders"), rig.broken("namespace_down", SECONDARY):
        result, events = await send_until(rig, b"a\nb\n", 0, outbox=outbox, drain_seconds=0.1, seconds=6)
    assert (result.delivered.outbox, result.failed, result.in_doubt) == (result.messages, 0, 0)
    assert any(isinstance(each, OutboxClosed) for each in events)
    assert (await send_text(rig, b"c\n", outbox=outbox, drain_seconds=5.0)).exit_code == 0
    assert outbox_depths(outbox) == {}
    with closing(Outbox(outbox, rig.pair)), pytest.raises(errors.LeaseHeld):
        await send_text(rig, b"d\n", outbox=outbox)
    assert bodies(rig.in_queue(rig.orders)) == [b"a", b"b", b"c"]


async def test_the_rate_is_kept_in_the_first_batch_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    reserve = send_lines.RateLimiter.reserve

    def counted(self: Any, now: float, messages: int, cost_each: float = 1.0) -> float:
        asked.append(messages)
        return reserve(self, now, messages, cost_each)

    monkeypatch.setattr(send_lines.RateLimiter, "reserve", counted)
    assert (await send_text(rig, b"a\n" * 50, rate=100.0)).delivered == Delivered(primary=50)
    assert (sum(asked), max(asked)) == (50, 10)


TYPED = Map(
    [
        *((kind.__name__, kind(7)) for kind in (UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Timestamp)),
        ("far", Timestamp(2**62)),
        ("big", Long(2**60 + 1)),
        ("double", 1.0),
        ("none", float("nan")),
        ("float", Float(1.5)),
        ("char", Char("€")),
        ("uuid", UUID(int=7)),
        ("money", Decimal128(bytes.fromhex("303c0000000000000000000000003039"))),
        ("span", Described(Symbol("com.microsoft:timespan"), Long(12_345))),
        ("offset", Described(Symbol("com.microsoft:datetime-offset"), Long(638_000_000_000_000_000))),
    ]
)
FIELDS = Properties(
    message_id=ULong(5), user_id=b"u\xff", to="t", reply_to="r", content_encoding="gzip", group_sequence=3
)
COPIED = [
    Sections(
        properties=replace(FIELDS, reply_to_group_id="rs").encode(),
        application_properties=encode_map(0x74, TYPED),
        body=value_body(TYPED),
    ),
    Sections(
        header=Header(durable=True, priority=7).encode(),
        delivery_annotations=encode_map(0x71, {Symbol("d"): Int(1)}),
        message_annotations=encode_map(0x72, {Symbol("x-opt-partition-key"): "k", Symbol("x-opt-own"): ULong(2**63)}),
        properties=Properties(message_id="two").encode(),
        body=data_body(b"a") + data_body(b"\xff"),
        footer=encode_map(0x78, {Symbol("f"): "x"}),
    ),
    Sections(properties=section(0x73, codec.encode(["short"])), body=value_body(Map([("k", [Int(1), b"2"])]))),
    Sections(
        properties=Properties(message_id="four").encode(),
        body=section(0x76, codec.encode([Long(1)])) + section(0x76, codec.encode([])),
    ),
]


async def test_a_peeked_copy_arrives_byte_for_byte(rig: Rig) -> None:
    for each in COPIED:
        rig.do(lambda each=each: put(rig.orders, each.join()))
    found = await peek_messages(rig.pair.ends, [PeekSource("primary", "orders")], limit=9)
    shown = [render_peeked("primary", each, body_of(each.sections)) for _, each in found.messages]
    lines = [json.dumps({"schema": "sbpair/peek/1", **encoded(each)}).encode() + b"\n" for each in shown]
    result = await send_text(rig, b"".join(lines), as_json=True)
    assert (result.error, result.delivered) == (None, Delivered(primary=len(COPIED)))
    assert [as_sent(each) for each in rig.in_queue(rig.orders)] == COPIED * 2


async def test_a_pipe_that_was_cut_is_named_after_it_was_sent(rig: Rig) -> None:
    end = b'{"schema": "sbpair/peek-end/1", "messages": 2, "sha256": ""}\n'
    result = await send_text(rig, b'{"body": "a"}\n' + end, as_json=True, meanwhile=lambda *_: None)
    assert result.error is not None
    assert (result.delivered, result.exit_code) == (Delivered(primary=1), 3)
    assert result.error.message == "stdin, line 2: it counts 2 messages and follows 1: some are missing"
