"""Moves between queues, subscriptions and dead-letter queues: every byte arrives, and what is refused stays."""

import asyncio
from datetime import datetime
from pathlib import Path

import pytest

from sbpair import errors
from sbpair.amqp.message import (
    Header,
    Properties,
    Sections,
    data_body,
)
from sbpair.amqp.types import Timestamp
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription
from sbpair.model.message_state import dead_letter_path
from sbpair.model.pair import Pair
from sbpair.move.context import MissingDestinations
from sbpair.move.message.route import TimeToLive, kept_for
from sbpair.syphon.move_ends import check_ends
from sbpair.syphon.preview import make_forecast
from sbpair.syphon.run_request import RunRequest
from sbpair.timespan import TICKS_PER_MS
from tests.kit.moves import bury, ids, move_terms, run_syphon, stored, world
from tests.kit.stranded import in_session, numbered, put

DAY_MS = 86_400_000


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
            put(takes, in_session(number))
        _, _, there = w.create("queue", "to")
        result = await w.move(path, "to", max_messages=7)
        assert (len(stored(there)), len(stored(has))) == (7, 33)
        assert result.receipt.sent == 7
        assert {each.delivery_count for each in has.messages.peek(0, 99)} == {0}


async def test_forecast_has_until_when_possible_duplicates_stay() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        now_ms = takes.namespace.clock.now_ms()
        for number in range(3):
            put(takes, numbered(number, "orders"))
        w.create("queue", "to")
        terms = move_terms("redrive", kept_for("to"), path)
        forecast = await make_forecast(
            RunRequest(ends=w.address(path).alone, duplicate_windows={"to": 600_000}, **terms)
        )
        assert ids(has) == ["m0", "m1", "m2"]
    [group] = forecast.dead_letters
    until = datetime.fromisoformat(group.description.rpartition(" until ")[2])
    assert (group.messages, forecast.exit_code, [flow.destination for flow in forecast.flows]) == (3, 3, ["to"])
    assert 600 <= until.timestamp() - now_ms / 1000 < 660


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("created", [None, -7_200_000])
@pytest.mark.parametrize("expires", [-3_600_000, 3_600_000, 2**42])
async def test_an_expiry_without_a_ttl_keeps_its_bytes_until_it_is_over(
    dead: bool, created: int | None, expires: int
) -> None:
    """An expiry that is over begins anew where its length is known, since the message could be dropped at once."""
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        now_ms = has.namespace.clock.now_ms()
        own = Properties(
            message_id="m1",
            creation_time=None if created is None else Timestamp(now_ms + created),
            absolute_expiry_time=Timestamp(now_ms + expires),
        )
        put(takes, Sections(properties=own.encode(), body=data_body(b"x")).join())
        _, _, there = w.create("queue", "to")
        if dead:
            bury(has)
        await w.move(dead_letter_path(path) if dead else path, "to")
        [moved] = stored(there)
    properties = moved.read_properties()
    if expires > 0 or created is None:
        assert (moved.header, moved.properties) == (b"", own.encode())
        return
    assert properties.absolute_expiry_time is not None
    assert properties.creation_time is not None
    assert properties.absolute_expiry_time - properties.creation_time == 3_600_000
    assert properties.creation_time >= now_ms - 1_000  # a Date has whole seconds


@pytest.mark.parametrize("days", [1, 60])
@pytest.mark.parametrize("ttl", [TimeToLive.ORIGINAL, TimeToLive.DROP_DEFAULT])
async def test_a_default_time_to_live_is_told_and_left_out_if_wanted(ttl: TimeToLive, days: int) -> None:
    """The service writes it into each message that has none or a longer one, as if its sender had."""
    default_ms, names = days * DAY_MS, {"none": None, "short": 60_000, "same": DAY_MS, "long": 2 * DAY_MS}
    sent = {name: Properties(message_id=name).encode() for name in names}
    like = ["none", "same", "long"] if days == 1 else ["none"]
    async with world() as w:
        given = QueueDescription(default_message_time_to_live=default_ms * TICKS_PER_MS)
        takes = w.namespaces[0].create_queue("from", given)
        for name, own in names.items():
            header = b"" if own is None else Header(ttl=own).encode()
            put(takes, Sections(header=header, properties=sent[name], body=data_body(b"x")).join())
        _, _, there = w.create("queue", "to")
        terms = {**move_terms("move", kept_for("to"), "from"), "names": ("a:from", "a:to"), "ttl": ttl}
        asked = RunRequest(ends=w.address("from").alone, default_ttl_ms=default_ms, **terms)
        notes = (await make_forecast(asked)).notes
        receipt = (await w.move("from", "to", ttl=ttl)).receipt
        arrived = {each.read_properties().message_id: each for each in stored(there)}
    told = f"{len(like)} of them have the default time to live of the source"
    assert any(note.startswith(told) for note in notes)
    assert (receipt.sent, receipt.default_ttl) == (4, len(like))
    for name, each in arrived.items():
        times, is_default = each.read_properties(), name in like
        if ttl is TimeToLive.DROP_DEFAULT and is_default:
            assert (each.header, each.properties) == (b"", sent[str(name)]), name
        else:
            life_ms = default_ms if is_default else names[str(name)]
            assert each.read_header().ttl == min(life_ms or 0, 2**32 - 1), name
            assert (times.absolute_expiry_time is None) is (name in ("same", *sorted({*names} - {*like})))


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


async def test_active_messages_of_a_backlog_queue_need_the_lease_of_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with world() as w:
        path, takes, has = w.create("queue", "contoso/x-servicebus-transfer/0", side=1)
        w.create("queue", "to")
        put(takes, numbered(1, "to"))
        bury(has)
        stop, started = asyncio.Event(), asyncio.Event()
        pair = Pair("another-name", *w.endpoints, backlog_queues=1)
        syphon = run_syphon(pair, once=False, stop=stop, on_event=lambda _: started.set(), state=tmp_path / "s")
        watching = asyncio.create_task(syphon)
        await started.wait()
        # The name of the pair, and whether it is known at all, do not matter.
        for state in (None, tmp_path / "s", tmp_path / "t"):
            with pytest.raises(errors.LeaseHeld, match="is moving messages of this pair"):
                await w.move(path.upper(), "to", sides=(1, 0), lease=True, state=state)
        result = await w.move(dead_letter_path(path), "to", sides=(1, 0), lease=True)
        assert result.receipt.sent == 1
        stop.set()
        await watching


async def test_a_topic_that_would_drop_all_messages_is_refused() -> None:
    async with world() as w:
        path, takes, has = w.create("queue", "from")
        put(takes, numbered(1, "orders"))
        topic = w.namespaces[0].create_topic("to")
        for _ in range(2):
            with pytest.raises(errors.UsageError, match="to has no subscription that accepts messages") as refused:
                await w.move(path, "to")
            assert "--allow-discard" in refused.value.hint
            assert ids(has) == ["m1"]
            if not topic.subscriptions:
                topic.create_subscription("s").remove_rule("$Default")
        subscription = topic.create_subscription("t")
        await w.move(path, "to")
        assert ids(subscription) == ["m1"]
        source, destination = w.address(path), w.address("to")
        assert not (await check_ends(source, destination, None, allow_discard=True)).sessions


async def test_a_forward_over_several_hops_back_to_the_source_is_refused() -> None:
    async with world() as w:
        w.create("queue", "from")
        w.namespaces[0].create_queue("second", QueueDescription(forward_to="from"))
        topic = w.namespaces[0].create_topic("first")
        topic.create_subscription("s", SubscriptionDescription(forward_to="second"))
        with pytest.raises(errors.UsageError, match="first -> first/subscriptions/s -> second -> from"):
            await w.move("from", "first")
        # Dead letters of the same queue do not come back as dead letters.
        assert (await w.move("from/$deadletterqueue", "first")).exit_code == 0


@pytest.mark.parametrize(
    ("source", "destination", "why"),
    [
        ("from", "FROM", "both the source and the destination"),
        ("from", "to/$deadletterqueue", "nothing can be sent to it"),
        ("from", "t/subscriptions/s", "accepts no messages"),
        ("t/Subscriptions/s", "T", "come back to the source"),
        ("t", "from", "is a topic"),
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
        result = await run_syphon(w.address(path).alone, **move_terms("move", kept_for("gone"), path))
        assert ids(has) == ["m1"]
        assert not has.dead_letters.peek(0, 1)
    assert result.exit_code == 3
    missing = MissingDestinations(0)
    missing.allow("gone", 1)
    assert "stay" in missing.hold_error("gone").message
