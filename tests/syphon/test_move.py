"""Moves between queues, subscriptions and dead-letter queues: every byte arrives, and what is refused stays."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.amqp import codec, splice
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.types import Int, Map, Symbol, Timestamp, UInt
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.emulator.entities.stored_message import DeadLetterReason, StoredMessage
from sbpair.model.backoff import Backoff
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Ends
from sbpair.move.context import MoveTimings
from sbpair.move.entity_address import EntityAddress
from sbpair.move.message.dead_letters import dead_letter_path
from sbpair.move.message.form import BACKLOG_DEAD_LETTERS, kept_for
from sbpair.move.missing_destinations import MissingDestinations
from sbpair.syphon import runner
from sbpair.syphon.move_checks import check_ends, check_names
from sbpair.syphon.move_spec import MoveSpec
from sbpair.syphon.preview import make_forecast
from sbpair.syphon.worker import RunTimings
from sbpair.testing import Emulator
from tests.kit.stranded import numbered, put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sbpair.emulator.entities.queue import QueueEntity

HASTY = RunTimings(
    backoff=Backoff(0.02, 60.0),
    empty_wait_seconds=0.03,
    count_wait_seconds=(0.01, 0.02),
    report_seconds=0.01,
    destinations_seconds=0.01,
    move=MoveTimings(backoff=Backoff(0.01, 60.0)),
)
TEXT = st.text(max_size=10)
VALUES = st.one_of(TEXT, st.integers(0, 9).map(Int), st.integers(0, 9).map(UInt), st.binary(max_size=9), st.booleans())
BODIES = st.one_of(
    st.binary(max_size=300).map(data_body),
    st.just(data_body(b"one") + data_body(b"two")),
    st.just(value_body(Map([("k", Int(1))]))),
    st.just(section(0x76, codec.encode([Int(1), "two"]))),
)
SOURCES = ("queue", "session queue", "subscription", "session subscription", "partitioned")
DESTINATIONS = ("queue", "session queue", "partitioned", "topic")


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    """Encoded messages, each of one of three sessions, so that any entity accepts them."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        session = draw(st.sampled_from(["a", "b", "c"]))
        annotations = {Symbol("x-own"): draw(VALUES)} if draw(st.booleans()) else {}
        found.append(
            Sections(
                header=Header(ttl=draw(st.none() | st.just(3_600_000)), priority=draw(st.none() | st.just(7))).encode(),
                message_annotations=encode_map(MESSAGE_ANNOTATIONS, annotations) if annotations else b"",
                properties=Properties(
                    message_id=f"m{number}",
                    group_id=session,
                    subject=draw(st.none() | TEXT),
                    content_type=draw(st.none() | st.just(Symbol("a/b"))),
                ).encode(),
                application_properties=draw(
                    st.just(b"")
                    | st.dictionaries(TEXT, VALUES, max_size=3).map(lambda own: encode_map(APPLICATION_PROPERTIES, own))
                ),
                body=draw(BODIES),
            ).join()
        )
    return found


class World:
    """Two namespaces, and moves between entities of them."""

    def __init__(self, emulator: Emulator) -> None:
        self.namespaces = [emulator.namespaces[name] for name in ("contoso", "contoso-dr")]
        self.endpoints = [
            endpoint_from_connection_string(each.connection_string, name=each.name) for each in self.namespaces
        ]

    def create(self, kind: str, name: str, side: int = 0) -> tuple[str, QueueEntity, QueueEntity]:
        """Create an entity. Returns its path, the entity that takes messages, and the one that has them."""
        namespace, sessions = self.namespaces[side], "session" in kind
        if kind in ("topic", "subscription", "session subscription"):
            topic = namespace.create_topic(name)
            made = topic.create_subscription("s", SubscriptionDescription(requires_session=sessions))
            return (name if kind == "topic" else f"{name}/subscriptions/s"), topic, made
        terms = {"requires_session": sessions, "enable_partitioning": kind == "partitioned"}
        queue = namespace.create_queue(name, QueueDescription(**terms))
        return name, queue, queue

    def address(self, path: str, side: int = 0) -> EntityAddress:
        return EntityAddress(("primary", "secondary")[side], self.endpoints[side], path)

    async def move(self, source: str, to: str, *, sides: tuple[int, int] = (0, 0), **more: Any) -> runner.SyphonResult:
        ends = Ends("p", self.endpoints[sides[1]], self.endpoints[sides[0]])
        start, end = self.address(source, sides[0]), self.address(to, sides[1])
        check_names(start, end)
        checked = await check_ends(start, end, None)
        terms = {name: more.pop(name) for name in ("max_messages", "duplicate_window_ms") if name in more}
        spec = MoveSpec(ends, "move", kept_for(to), source, checked.sessions, keeps_refused=True, **terms)
        more = {"timings": HASTY, "once": True, "lease": False, "max_missing": 0, **more}
        result = await runner.run(ends, spec=spec, **more)
        assert result.receipt.balanced
        return result


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with Emulator() as emulator:
        yield World(emulator)


def peeked(queue: QueueEntity, *, dead: bool = False) -> list[StoredMessage]:
    """Return all messages: one peek returns those of one partition."""
    found: list[StoredMessage] = []
    while page := (queue.dead_letters if dead else queue.messages).peek(
        found[-1].sequence_number + 1 if found else 0, 10_000
    ):
        found += page
    return found


def stored(queue: QueueEntity, *, dead: bool = False) -> list[Sections]:
    return [each.sections for each in peeked(queue, dead=dead)]


def bury(queue: QueueEntity) -> None:
    """Add a dead letter for each message."""
    for each in peeked(queue):
        queue.dead_letters.add_dead_letter(each.as_dead_letter(DeadLetterReason("Bad", "why", queue.path)))


def by_session(found: list[Sections]) -> dict[str | None, list[tuple[object, ...]]]:
    """Return all bytes that a move keeps, in order within a session."""
    sessions = defaultdict(list)
    for each in found:
        annotations = [pair for key, pair, _ in splice.map_pairs(each.message_annotations) if key == "x-own"]
        header, properties = each.read_header(), each.read_properties()
        kept = each.properties, each.application_properties, each.body, each.footer, tuple(annotations)
        sessions[properties.group_id].append((*kept, header.ttl, header.priority))
    return dict(sessions)


def ids(queue: QueueEntity, *, dead: bool = False) -> list[object]:
    return [each.read_properties().message_id for each in stored(queue, dead=dead)]


@given(messages(), st.sampled_from(SOURCES), st.booleans(), st.sampled_from(DESTINATIONS), st.sampled_from([0, 1]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_byte_arrives_whatever_the_kinds_of_source_and_destination(
    payloads: list[bytes], source: str, dead: bool, destination: str, side: int
) -> None:
    async def main() -> None:
        async with world() as w:
            path, takes, has = w.create(source, "from")
            for payload in payloads:
                put(takes, payload)
            if dead:
                path = dead_letter_path(path)
                bury(has)
            wanted = by_session(stored(has, dead=dead))
            to, _, there = w.create(destination, "to", side)
            result = await w.move(path, to, sides=(0, side))
            assert result.receipt.sent == len(payloads)
            assert result.exit_code == 0
            assert by_session(stored(there)) == wanted
            assert not stored(has, dead=dead)

    asyncio.run(main())


async def test_the_official_client_reads_a_moved_dead_letter_without_its_cause() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        put(takes, numbered(1, "orders"))
        bury(has)
        w.create("queue", "to")
        await w.move(dead_letter_path(path), "to")

        def read() -> Any:
            with (
                ServiceBusClient.from_connection_string(w.namespaces[0].connection_string) as client,
                client.get_queue_receiver("to") as receiver,
            ):
                return receiver.receive_messages(1, max_wait_time=10)[0]

        message = await asyncio.to_thread(read)
    assert (message.message_id, message.dead_letter_reason, message.dead_letter_source) == ("m1", None, None)


async def test_a_refused_message_stays_and_is_named_and_the_others_are_moved() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        plain = Properties(message_id="plain").encode()
        put(takes, Sections(properties=plain, body=data_body(b"x")).join())
        put(takes, Sections(properties=Properties(message_id="s", group_id="a").encode(), body=data_body(b"x")).join())
        bury(has)
        w.create("session queue", "to")
        result = await w.move(dead_letter_path(path), "to")
        counts = [each.delivery_count for each in has.dead_letters.peek(0, 9)]
        assert ids(has, dead=True) == ["plain"]
    receipt = result.receipt
    assert (receipt.sent, receipt.skipped, receipt.dead_lettered, result.exit_code) == (1, 1, 0, 3)
    assert [each.message_id for each in receipt.stayed] == ["plain"]
    assert counts == [0]


async def test_refused_messages_of_sessions_stay_and_each_is_received_once() -> None:
    async with world() as w:
        path, takes, has = w.create("session queue", "from")
        for number in range(4):
            for size in (10, 2_000):
                properties = Properties(message_id=f"m{number}-{size}", group_id=f"S{number}").encode()
                put(takes, Sections(properties=properties, body=data_body(b"x" * size)).join())
        small = w.namespaces[0].create_queue("to", QueueDescription(max_message_size_in_kilobytes=1))
        result = await w.move(path, "to")
        assert sorted(map(str, ids(small))) == [f"m{number}-10" for number in range(4)]
        assert sorted(map(str, ids(has))) == [f"m{number}-2000" for number in range(4)]
    assert (result.receipt.sent, result.receipt.skipped, result.receipt.received) == (4, 4, 8)
    assert result.exit_code == 3


@pytest.mark.parametrize("kind", ["queue", "session queue"])
async def test_a_limited_move_ends_after_so_many_messages(kind: str) -> None:
    async with world() as w:
        path, takes, has = w.create(kind, "from")
        for number in range(40):
            properties = Properties(message_id=f"m{number}", group_id=f"S{number % 3}").encode()
            put(takes, Sections(properties=properties, body=data_body(b"x")).join())
        _, _, there = w.create("queue", "to")
        result = await w.move(path, "to", max_messages=7)
        assert (len(stored(there)), len(stored(has))) == (7, 33)
        assert result.receipt.sent == 7
        assert {each.delivery_count for each in has.messages.peek(0, 99)} == {0}


async def test_messages_that_the_destination_may_know_stay_until_its_window_ends() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        put(takes, numbered(1, "orders"))
        w.create("queue", "to")
        result = await w.move(path, "to", duplicate_window_ms=600_000)
        assert ids(has) == ["m1"]
    [stayed] = result.receipt.stayed
    assert "detects duplicates" in stayed.reason
    assert result.exit_code == 3


async def test_forecast_has_until_when_possible_duplicates_stay() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        now_ms = takes.namespace.clock.now_ms()
        for number in range(3):
            put(takes, numbered(number, "orders"))
        w.create("queue", "to")
        ends = Ends("p", w.endpoints[0], w.endpoints[0])
        spec = MoveSpec(ends, "redrive", kept_for("to"), path, keeps_refused=True, duplicate_window_ms=600_000)
        forecast = await make_forecast(ends, spec=spec)
        assert ids(has) == ["m0", "m1", "m2"]
    [group] = forecast.dead_letters
    until = datetime.fromisoformat(group.description.rpartition(" until ")[2])
    assert (group.messages, forecast.exit_code) == (3, 3)
    assert 600 <= until.timestamp() - now_ms / 1000 < 660


async def test_a_stale_absolute_expiry_does_not_expire_a_moved_message() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        now_ms = has.namespace.clock.now_ms()
        expiry = Properties(
            message_id="m1",
            creation_time=Timestamp(now_ms - 7_200_000),
            absolute_expiry_time=Timestamp(now_ms - 3_600_000),
        )
        put(takes, Sections(properties=expiry.encode(), body=data_body(b"x")).join())
        _, _, there = w.create("queue", "to")
        await w.move(path, "to")
        [moved] = stored(there)
        properties = moved.read_properties()
    assert properties.absolute_expiry_time is not None
    assert properties.creation_time is not None
    assert properties.absolute_expiry_time - properties.creation_time == 3_600_000
    assert properties.creation_time >= now_ms


async def test_dead_letters_of_a_backlog_queue_go_where_their_aliases_say(tmp_path: Path) -> None:
    async with world() as w:
        backlog = w.namespaces[1].create_queue("contoso/x-servicebus-transfer/0")
        for number in range(3):
            put(backlog, numbered(number, "orders"))
        bury(backlog)
        orders = w.namespaces[0].create_queue("orders")
        ends = Ends("p", *w.endpoints)
        source = dead_letter_path(backlog.path)
        spec = MoveSpec(ends, "redrive", BACKLOG_DEAD_LETTERS, source, keeps_refused=True)
        result = await runner.run(ends, once=True, spec=spec, timings=HASTY, state=tmp_path, lease=False)
        assert result.receipt.sent == 3
        names = [str(name) for each in stored(orders) for name in each.read_application_properties()]
        assert not [name for name in names if name.startswith(("x-ms-", "DeadLetter"))]
        assert ids(orders) == ["m0", "m1", "m2"]
        assert len(stored(backlog)) == 3
        assert not stored(backlog, dead=True)


async def test_two_moves_of_one_source_exclude_each_other_and_of_two_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with world() as w:
        for name in ("one", "two", "to"):
            w.create("queue", name)
        stop = asyncio.Event()
        started = asyncio.Event()
        watching = asyncio.create_task(
            w.move(
                "one", "to", once=False, stop=stop, lease=True, state=tmp_path / "s", on_event=lambda _: started.set()
            )
        )
        await started.wait()
        with pytest.raises(errors.LeaseHeld, match="is moving messages of ONE"):
            await w.move("ONE", "to", lease=True, state=tmp_path / "s")
        await w.move("two", "to", lease=True, state=tmp_path / "s")
        stop.set()
        await watching


async def test_a_forward_over_several_hops_back_to_the_source_is_refused() -> None:
    async with world() as w:
        w.create("queue", "from")
        w.namespaces[0].create_queue("second", QueueDescription(forward_to="from"))
        topic = w.namespaces[0].create_topic("first")
        topic.create_subscription("s", SubscriptionDescription(forward_to="second"))
        with pytest.raises(errors.UsageError, match="first -> first/subscriptions/s -> second -> from"):
            await w.move("from", "first")


@pytest.mark.parametrize(
    ("source", "destination", "why"),
    [
        ("from", "FROM", "both the source and the destination"),
        ("from", "to/$deadletterqueue", "nothing can be sent to it"),
        ("from", "t/subscriptions/s", "accepts no messages"),
        ("t/Subscriptions/s", "T", "come back to the source"),
        ("t", "from", "is a topic"),
        ("from", "nowhere", "nowhere does not exist in contoso"),
        ("nowhere", "from", "nowhere does not exist in contoso"),
    ],
)
async def test_impossible_ends_are_refused_before_anything_is_received(source: str, destination: str, why: str) -> None:
    async with world() as w:
        w.create("queue", "from")
        w.create("subscription", "t")
        with pytest.raises(errors.UsageError, match=why) as refused:
            await w.move(source, destination)
    assert refused.value.hint


async def test_messages_stay_while_their_destination_is_missing() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        put(takes, numbered(1, "orders"))
        ends = Ends("p", w.endpoints[0], w.endpoints[0])
        spec = MoveSpec(ends, "move", kept_for("gone"), path, keeps_refused=True)
        result = await runner.run(ends, once=True, spec=spec, timings=HASTY, lease=False, max_missing=0)
        assert ids(has) == ["m1"]
        assert not has.dead_letters.peek(0, 1)
    assert result.exit_code == 3
    missing = MissingDestinations(0)
    missing.allow("gone", 1)
    assert "stay" in missing.hold_error("gone").message
