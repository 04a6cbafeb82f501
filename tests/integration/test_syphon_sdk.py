"""The syphon with `engine="sdk"`: what azure-servicebus makes of messages, as documented, and what it cannot read."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest

from sbpair import errors, syphon
from sbpair.amqp import codec
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
)
from sbpair.amqp.types import Described, Float, Int, Long, Map, Symbol, Timestamp, UInt, ULong, type_of
from sbpair.backlog import TICKS_PER_MS, Aliases, queue_path, write_aliases
from sbpair.emulator.access.sas import sign
from sbpair.emulator.entities import envelope
from sbpair.emulator.setup import Setup
from sbpair.emulator.testing import Emulator
from sbpair.model import Pair, SasToken, endpoint_from_connection_string
from sbpair.move import mover
from tests.integration.test_syphon import (
    World,
    _impatient,
    after,
    held_in,
    ids,
    moving,
    names,
    put,
    stranded,
    sync,
    world,
)

__all__ = ["_impatient", "moving"]

pytestmark = [
    pytest.mark.parametrize("moving", [syphon.SDK], indirect=True),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TIMESPAN, DATETIMEOFFSET = Symbol("com.microsoft:timespan"), Symbol("com.microsoft:datetime-offset")
DAY_TICKS = 24 * 60 * 60 * 1000 * TICKS_PER_MS
ID = uuid.UUID(int=7)

CHANGES = [
    ("text", "ä", "ä"),
    ("flag", True, True),
    ("nothing", None, None),
    ("id", ID, ID),
    ("double", 1.5, 1.5),
    ("int", Int(-70_000), Int(-70_000)),
    ("long", Long(2**40), Long(2**40)),
    ("ulong", ULong(2**63), ULong(2**63)),
    ("timespan", Described(TIMESPAN, Long(-5)), Described(TIMESPAN, Long(-5))),
    ("offset", Described(DATETIMEOFFSET, Long(2**50)), Described(DATETIMEOFFSET, Long(2**50))),
    ("no text", b"\xff\xfe", b"\xff\xfe"),
    # From here on it is another than it was.
    ("small long", Long(5), Int(5)),
    ("uint", UInt(5), Int(5)),
    ("time", Timestamp(1_767_225_600_000), Long(1_767_225_600_000)),
    ("float", Float(0.5), 0.5),
    ("symbol", Symbol("s"), "s"),
    ("bytes of text", b"text", "text"),
]


def with_own(own: dict[str, Any], **sections: bytes) -> bytes:
    properties = encode_map(APPLICATION_PROPERTIES, {**write_aliases(Aliases("orders")), **own})
    given = {"properties": Properties(message_id="m1").encode(), "body": data_body(b"x"), **sections}
    return Sections(application_properties=properties, **given).join()


async def moved(w: World, payload: bytes) -> Sections:
    put(w.backlog(), payload)
    result = await w.run()
    assert (result.exit_code, result.engine) == (0, "sdk"), result
    (message,) = held_in(w.destination())
    sections: Sections = message.sections
    return sections


def typed(value: Any) -> tuple[type, Any]:
    return type_of(value), value


@sync
async def test_application_properties_arrive_as_the_table_says() -> None:
    async with world() as w:
        sections = await moved(w, with_own({name: before for name, before, _ in CHANGES}))
        arrived = {key: typed(value) for key, value in sections.read_application_properties().pairs}
        assert arrived == {name: typed(after) for name, _, after in CHANGES}


@sync
async def test_broker_properties_are_kept() -> None:
    had = Properties(
        message_id=ULong(7),
        user_id=b"\xffme",
        to="to",
        subject="subject",
        reply_to="reply",
        correlation_id=ID,
        content_type=Symbol("application/json"),
        content_encoding=Symbol("gzip"),
        group_sequence=UInt(3),
        reply_to_group_id="r",
    )
    annotations = encode_map(
        MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): "k", Symbol("x-opt-mine"): Long(2**40)}
    )
    async with world() as w:
        header = Header(durable=True, priority=7, ttl=3_600_000).encode()
        payload = with_own({}, properties=had.encode(), message_annotations=annotations, header=header)
        sections = await moved(w, payload)
        arrived = sections.read_properties()
        # Whoever sends with the SDK and a time to live, states the expiry as well.
        assert arrived.absolute_expiry_time - arrived.creation_time == 3_600_000
        assert replace(arrived, absolute_expiry_time=None, creation_time=None) == had
        header = sections.read_header()
        assert (header.durable, header.priority, header.ttl) == (True, 7, 3_600_000)
        kept = sections.read_message_annotations()
        assert (kept.get("x-opt-partition-key"), kept.get("x-opt-mine")) == ("k", 2**40)


BODIES = [
    (data_body(b"\x00\xff") + data_body(b""), data_body(b"\x00\xff") + data_body(b"")),
    *((section(0x77, codec.encode(before)), section(0x77, codec.encode(after))) for before, after in [
        ("text", "text"),
        (b"\xff", b"\xff"),
        (Int(-5), Int(-5)),
        (Map([("a", 1.5), (Int(1), Map([(Long(2**40), Long(2**41))]))]),) * 2,
        (Described(TIMESPAN, Long(5)), Described(TIMESPAN, Long(5))),
        ([Long(1), Long(2**40), "a"], [Int(1), Long(2**40), "a"]),
        (Long(5), Int(5)),
    ]),
    (section(0x76, codec.encode(["a", Int(1)])), section(0x76, codec.encode(["a", Int(1)]))),
    (section(0x77, codec.encode(None)), b""),
]  # fmt: skip


@sync
async def test_a_body_stays_what_it_was_or_becomes_what_the_sdk_makes_of_its_values() -> None:
    async with world() as w:
        for before, _ in BODIES:
            put(w.backlog(), with_own({}, body=before))
        assert (await w.run()).exit_code == 0
        arrived = [message.sections.body for message in held_in(w.destination())]
        assert list(map(decoded, arrived)) == [decoded(after) for _, after in BODIES]


def decoded(body: bytes) -> Any:
    """A value with its types, whichever encodings were chosen for it."""
    return repr(codec.decode_all(body)) if body[:3] == b"\x00\x53\x77" else body


@sync
async def test_what_the_sdk_can_read_but_not_write_is_dead_lettered_with_the_reason() -> None:
    async with world() as w:
        put(w.backlog(), with_own({}, body=section(0x77, codec.encode(Long(2**40)))))
        w.strand(2)
        result = await w.run()
        assert (result.exit_code, ids(w.destination())) == (3, names(2))
        (dead,) = held_in(w.backlog(), dead=True)
        assert "the SDK cannot encode it" in dead.dead_letter.description


@sync
async def test_a_time_to_live_is_kept_also_above_what_a_header_holds() -> None:
    days = [1, 49, 50, 3_650]
    async with world() as w:
        for number in days:
            w.strand(number, ttl_ticks=number * DAY_TICKS)
        assert (await w.run()).exit_code == 0
        assert [message.ttl_ms for message in held_in(w.destination())] == [
            number * DAY_TICKS // TICKS_PER_MS for number in days
        ]


def with_property(name: str, value: Any) -> dict[str, bytes]:
    return {
        "application_properties": encode_map(APPLICATION_PROPERTIES, {**write_aliases(Aliases("orders")), name: value})
    }


NOWHERE = [
    ({"application_properties": b""}, "the message has no x-ms-path"),
    (with_property("x-ms-path", Int(1)), "x-ms-path is of type int"),
    (with_property("x-ms-path", Timestamp(1)), "x-ms-path is of type int"),
    (with_property("x-ms-path", " / "), "x-ms-path is empty"),
    (with_property("x-ms-path", b"\xff"), "x-ms-path is of type binary"),
    (with_property("x-ms-path", "nowhere"), "there is no queue or topic 'nowhere' in the primary namespace: "),
    (with_property("x-ms-path", "no such/name!"), "no entity can have that path"),
    (with_property("x-ms-sessionid", Int(1)), "x-ms-sessionid is of type int"),
    (with_property("x-ms-sessionid", None), "x-ms-sessionid is of type null"),
    (with_property("x-ms-timetolive", Long(1)), "x-ms-timetolive is of type int"),
    (with_property("x-ms-timetolive", Described(DATETIMEOFFSET, Long(1))), "described as"),
    (with_property("x-ms-timetolive", Described(TIMESPAN, Long(0))), "a time to live is more than none"),
    (with_property("x-ms-scheduledenqueuetimeutc", "x"), "x-ms-scheduledenqueuetimeutc is of type string"),
    (with_property("x-ms-scheduledenqueuetimeutc", True), "x-ms-scheduledenqueuetimeutc is of type boolean"),
]


@sync
async def test_messages_that_can_go_nowhere_are_dead_lettered_with_the_reason() -> None:
    async with world() as w:
        for number, (sections, _) in enumerate(NOWHERE):
            (bad,) = envelope.take_in(stranded(number, "orders"), 0)
            for name, raw in sections.items():
                setattr(bad.sections, name, raw)
            w.backlog().send([bad])
        w.strand(99)
        result = await w.run()
        assert (result.exit_code, result.receipt.sent, result.receipt.dead_lettered) == (3, 1, len(NOWHERE))
        told = {message.sections.read_properties().message_id: message for message in held_in(w.backlog(), dead=True)}
        for number, (_, why) in enumerate(NOWHERE):
            assert why in told[f"m{number}"].dead_letter.description


@sync
async def test_an_integer_for_a_schedule_is_taken_for_a_time_since_the_sdk_cannot_tell() -> None:
    async with world() as w:
        later = w.emulator.clock.now_ms() + 3_600_000
        sections = await moved(w, with_own({"x-ms-scheduledenqueuetimeutc": Long(later)}))
        assert typed(sections.read_message_annotations().get("x-opt-scheduled-enqueue-time")) == typed(Timestamp(later))


@pytest.mark.parametrize("value", [b"\x73\x00\x00\x00A", b"\x74\x00\x00\x00\x01", b"\x84" + b"\x01" * 8])
@sync
async def test_what_the_sdk_cannot_read_ends_its_lane_and_harms_nothing(value: bytes) -> None:
    """A char and two decimals. What came before them is moved, and so are other queues; wire moves the rest."""
    async with world(2) as w:
        w.strand(1, 2)
        (bad,) = envelope.take_in(stranded(3, "orders"), 0)
        pairs = codec.encode("x-ms-path") + codec.encode("orders") + codec.encode("c") + value
        bad.sections.application_properties = b"\x00\x53\x74\xc1" + bytes((len(pairs) + 1, 4)) + pairs
        w.backlog().send([bad])
        w.strand(4)
        w.strand(5, index=1)
        result = await w.run()
        assert result.exit_code == 3
        ((queue, error),) = result.failures
        assert (queue, type(error)) == (queue_path("contoso", 0), errors.EngineLacks)
        assert "--engine wire" in error.hint
        assert sorted(ids(w.destination())) == names(1, 2, 5)
        assert (ids(w.backlog()), held_in(w.backlog(), dead=True)) == (names(3, 4), [])
        w.engine = syphon.WIRE
        w.emulator.advance(61_000)
        assert (await w.run()).exit_code == 0
        assert sorted(ids(w.destination())) == names(1, 2, 3, 4, 5)


@sync
async def test_messages_of_several_sizes_and_sessions_arrive_in_order() -> None:
    async with world() as w:
        for number in range(40):
            w.strand(number, size=(20, 200_000)[number % 5 == 0], session_id=f"s{number % 3}")
        result = await w.run()
        assert (result.exit_code, result.receipt.sent, result.receipt.doubtful) == (0, 40, ())
        assert ids(w.destination()) == names(*range(40))
        sessions = [message.sections.read_properties().group_id for message in held_in(w.destination())]
        assert sessions == [f"s{number % 3}" for number in range(40)]


@sync
async def test_cancelled_after_any_message_it_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "ROUND_MOST", 1)
    async with world() as w:
        w.strand(*range(6))
        for number in range(3):
            task = asyncio.create_task(w.run())
            after(w.destination().messages, "enqueue", task.cancel, skip=number)
            await asyncio.gather(task, return_exceptions=True)
        everywhere = set(ids(w.destination())) | set(ids(w.backlog()))
        assert everywhere == set(names(*range(6)))
        assert held_in(w.backlog(), dead=True) == []


@pytest.mark.parametrize("kind", ["key", "signature"])
@sync
async def test_it_connects_over_tls_to_any_port_by_a_ca_file(kind: str) -> None:
    async with Emulator(setup=Setup(tls=True)) as emulator:
        w = World(emulator, 1)
        ends = [
            endpoint_from_connection_string(each.tls_connection_string, name=each.name, ca_file=emulator.ready.ca_file)
            for each in emulator.ready.namespaces
        ]
        assert all(end.tls for end in ends)
        if kind == "signature":
            soon = emulator.clock.now_ms() // 1000 + 600
            ends = [
                replace(end, credential=SasToken(sign(each.keys[0], f"sb://{end.authority}", soon)))
                for end, each in zip(ends, (w.primary, w.secondary), strict=True)
            ]
        w.pair = Pair("p", *ends, backlog_queues=1)
        w.destination()
        w.strand(1, 2)
        result = await w.run()
        assert (result.exit_code, ids(w.destination())) == (0, names(1, 2)), result


@sync
async def test_an_engine_that_there_is_not_is_a_usage_error() -> None:
    async with world() as w:
        with pytest.raises(errors.UsageError, match="no engine 'sidecar'"):
            await w.run(engine="sidecar")
