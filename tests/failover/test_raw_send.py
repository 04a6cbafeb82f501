"""Deliveries of encoded messages with failover: in virtual time, and over sockets to the emulator."""

import asyncio
import copy
import hashlib
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp.conditions import TOO_LARGE
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    batch_members,
    batch_of,
    data_body,
    encode_map,
)
from sbpair.amqp.types import Map, Symbol, Timestamp
from sbpair.failover.entity_states import State
from sbpair.failover.events import OutboxBegun, OutboxEmptied, SendInDoubt, SizeUnknown
from sbpair.failover.failover_send import Delivered
from sbpair.failover.outbox import Outbox
from sbpair.failover.raw_send import RawFailoverClient
from sbpair.failover.simulated_outage import SimulatedOutage
from sbpair.move.message.envelope import SCHEDULE, read_facts, restore
from sbpair.move.message.route import Send, route
from tests.failover.test_states import Middle, a_pair
from tests.faults.simulation.loop import in_virtual_time
from tests.kit.failover_rig import PAIRED_CLIENTS, PRIMARY, SECONDARY, EventLog, Rig

pytestmark = PAIRED_CLIENTS

OWN, PARTITION_KEY = Symbol("x-opt-own"), Symbol("x-opt-partition-key")
OK = None
GONE, UNSURE = errors.Unreachable("gone"), errors.InDoubt("silence")
ENDS: dict[str, Exception | None] = {
    "ok": OK,
    "gone": GONE,
    "unsure": UNSURE,
    "late": TimeoutError(),
    "busy": errors.Throttled("slow down"),
    "missing": errors.EntityMissing("no such queue"),
    "disabled": errors.DisabledEntity("disabled"),
    "refused": errors.ServiceRefused("no", condition="amqp:not-allowed"),
    "large": errors.ServiceRefused("too large", condition=TOO_LARGE),
    "denied": errors.NotAuthorized("Send is required"),
    "token": errors.TokenExpired("expired"),
}


def a_message(name: str | None, size: int = 10, **sections: bytes) -> bytes:
    properties = Properties(message_id=name).encode() if name else b""
    return Sections(**{"properties": properties, "body": data_body(b"x" * size), **sections}).join()


class Attempts:
    """A raw client whose sends end as given, each after a second; and the deliveries that were made."""

    def __init__(self, *ends: str, outbox: Outbox | None = None, **terms: Any) -> None:
        self.ends, self.log = list(ends), EventLog()
        self.tried: list[tuple[str, int]] = []
        self.taken: list[tuple[str, bytes, int]] = []
        options = {"on_failure": "backlog-now", "retries": 0, "on_event": self.log}
        given = {name: terms.pop(name) for name in (*options, "when_lost", "outage") if name in terms}
        pair = a_pair(**{"failover_interval": 60, "backlog_queues": 2} | terms)
        self.client = RawFailoverClient(pair, **options | given)
        self.client.now = asyncio.get_running_loop().time
        self.client.failover_state._random = Middle()
        self.client.failover_state.timers.on_earlier = lambda: None
        self.client.outbox = outbox
        self.client.send = self.send  # type: ignore[method-assign]
        self.state = self.client.failover_state
        self.sender = self.client.sender("orders")

    async def send(
        self, side: str, path: str, payload: bytes, message_format: int, seconds: float, begin: Callable[[], None]
    ) -> None:
        begin()
        self.tried.append((path.rpartition("/")[2], round(seconds)))
        await asyncio.sleep(1)
        end = ENDS[self.ends.pop(0) if self.ends else "ok"]
        if end is not None:
            raise copy.copy(end)
        self.taken.append((side, payload, message_format))

    async def deliver(self, *payloads: bytes, seconds: float = 40, **options: Any) -> None:
        is_batch = len(payloads) > 1
        payload = batch_of(payloads) if is_batch else payloads[0]
        await self.sender.deliver(payload, BATCH_FORMAT if is_batch else 0, seconds, **options)

    @property
    def doubts(self) -> list[tuple[str, ...]]:
        return [event.message_ids for event in self.log.of(SendInDoubt)]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with closing(Outbox(tmp_path / "outbox.db", a_pair(), max_messages=3)) as opened:
        yield opened


DELIVERIES = """
on failure|retries|failover interval| ends of attempts | attempts | outcome | doubts
backlog-now|0|60| ok                  | orders 30                      | primary, healthy     | 0
backlog-now|0|60| gone                | orders 30, 0 20                | backlog, failing     | 0
backlog-now|0|60| unsure              | orders 30, 0 20                | backlog, failing     | 1
backlog-now|0|60| late                | orders 30, 0 20                | backlog, failing     | 1
backlog-now|1|60| busy, busy          | orders 30, orders 29, 0 19     | backlog, failing     | 0
backlog-now|3|60| missing             | orders 30                      | raised, healthy      | 0
backlog-now|3|60| disabled            | orders 30                      | raised, healthy      | 0
backlog-now|3|60| denied              | orders 30                      | raised, healthy      | 0
backlog-now|0|60| token, ok           | orders 30, orders 29           | primary, healthy     | 0
raise      |0|60| gone                | orders 40                      | raised, failing      | 0
raise      |0|60| unsure              | orders 40                      | raised, failing      | 1
raise      |0| 0| gone, missing       | orders 30, 0 20, 1 38          | backlog, failed over | 0
raise      |0| 0| gone, unsure        | orders 30, 0 20, 1 38          | backlog, failed over | 1
raise      |0| 0| gone, large         | orders 30, 0 20                | raised, failed over  | 0
raise      |0| 0| gone, token, ok     | orders 30, 0 20, 0 19          | backlog, failed over | 0
raise      |0| 0| gone, busy, unsure  | orders 30, 0 20, 1 38          | raised, failed over  | 1
"""
"""The attempts of a delivery, with their seconds; a last one without an answer leaves a doubt, too."""


@pytest.mark.parametrize("row", DELIVERIES.strip().splitlines()[1:], ids=lambda row: row.replace(" ", ""))
@in_virtual_time
async def test_a_delivery_goes_where_a_send_of_a_paired_client_goes(row: str) -> None:
    on_failure, retries, interval, ends, tried, outcome, doubts = re.split(r" *\| *", row)
    terms: dict[str, Any] = {"on_failure": on_failure, "retries": int(retries), "failover_interval": float(interval)}
    attempts = Attempts(*ends.split(", "), **terms)
    accepted, _, entity = outcome.partition(", ")
    with pytest.raises(errors.SbpairError) if accepted == "raised" else nullcontext():
        await attempts.deliver(a_message("m"))
    assert ", ".join(f"{name} {seconds}" for name, seconds in attempts.tried) == tried
    assert attempts.client.states()["orders"].value == entity
    assert attempts.sender.delivered == Delivered(**({} if accepted == "raised" else {accepted: 1}))
    assert attempts.doubts == [("m",)] * int(doubts)
    for side, payload, message_format in attempts.taken:
        assert (side, message_format) == (accepted, 0)
        assert (payload if side == "primary" else restored(payload)) == a_message("m")


def restored(payload: bytes) -> bytes:
    sections, facts = read_facts("q", payload)
    decision = route(facts)
    assert isinstance(decision, Send), facts.flaw
    assert decision.destination == "orders"
    return restore(sections, decision, 0)


@in_virtual_time
async def test_a_batch_is_regrouped_by_key_and_size_for_the_backlog() -> None:
    attempts = Attempts()
    attempts.client.force_failover()
    keys = ("a", "a", None, None, "b")
    annotated = [
        {"message_annotations": encode_map(MESSAGE_ANNOTATIONS, {PARTITION_KEY: key})} if key else {} for key in keys
    ]
    messages = [a_message(f"m{number}", **own) for number, own in enumerate(annotated)]
    messages += [a_message("large", 300_000)]
    await attempts.deliver(*messages)
    kinds = [(len(batch_members(payload)) if kind else 1) for _, payload, kind in attempts.taken]
    assert (kinds, attempts.sender.delivered) == ([2, 2, 1, 1], Delivered(backlog=6))
    found = [each for _, payload, kind in attempts.taken for each in (batch_members(payload) if kind else [payload])]
    assert list(map(restored, found)) == messages


@pytest.mark.parametrize("with_outbox", [False, True])
@in_virtual_time
async def test_members_before_a_refused_part_are_named(outbox: Outbox, with_outbox: bool) -> None:
    attempts = Attempts("ok", "gone", "unsure", outbox=outbox if with_outbox else None)
    attempts.client.force_failover()
    batch = [a_message(name, 100_000) for name in ("a", "b", "c")]
    with nullcontext() if with_outbox else pytest.raises(errors.InDoubt):
        await attempts.deliver(*batch)
    assert attempts.sender.delivered == Delivered(backlog=2, outbox=with_outbox)
    assert attempts.doubts == ([("c",)] if with_outbox else [("c",), ("a", "b")])
    if with_outbox:
        assert [restored(each.message) for each in outbox.peek("orders", 9, 10**6)] == batch[2:]
    else:
        assert attempts.log.of(SendInDoubt)[1].reason.startswith("the backlog has them, and not the rest")


@in_virtual_time
async def test_a_full_outbox_refuses_a_delivery(outbox: Outbox) -> None:
    attempts = Attempts(*["gone"] * 3, failover_interval=0, outbox=outbox)
    await attempts.deliver(a_message("a"))
    assert attempts.log.of(OutboxBegun) == [OutboxBegun("orders", "Unreachable: gone")]
    await attempts.deliver(a_message("b"), a_message("c"))
    with pytest.raises(errors.Throttled, match="still in the outbox") as raised:
        await attempts.deliver(a_message("d"))
    assert "is full" in raised.value.__notes__[0]
    assert ([each.tried for each in outbox.peek("orders", 9, 10**6)], len(attempts.tried)) == ([False] * 3, 3)


@in_virtual_time
async def test_deliveries_that_failed_together_follow_the_first(outbox: Outbox) -> None:
    attempts = Attempts(*["gone"] * 3, failover_interval=0, retries=1, outbox=outbox)
    since = attempts.client.now()
    assert attempts.sender.is_direct
    await asyncio.gather(
        *(attempts.deliver(a_message(name), since=since, failed=UNSURE) for name in ("a", "b")),
    )
    assert not attempts.sender.is_direct
    # The first one alone is retried.
    assert ([name for name, _ in attempts.tried], attempts.doubts) == (["orders", "0", "1"], [("a",), ("b",)])
    assert [restored(each.message) for each in outbox.peek("orders", 9, 10**6)] == [a_message("a"), a_message("b")]
    attempts.client.failback()
    assert not attempts.sender.is_direct
    await attempts.deliver(a_message("c"), failed=GONE)
    assert (len(outbox), len(attempts.tried)) == (3, 3)
    outbox.remove("orders", outbox.peek("orders", 9, 10**6))
    assert attempts.sender.is_direct
    attempts.sender.accepted(3)
    assert attempts.sender.delivered == Delivered(primary=3, outbox=3)


@in_virtual_time
async def test_an_attempt_of_the_caller_is_the_first() -> None:
    attempts = Attempts(retries=1)
    await asyncio.sleep(5)
    await attempts.deliver(a_message("m"), since=attempts.client.now() - 5, failed=UNSURE)
    assert (attempts.tried, attempts.doubts) == ([("orders", 26)], [("m",)])
    with pytest.raises(errors.Unreachable, match="gone"):
        await attempts.deliver(a_message("n"), since=attempts.client.now() - 41, failed=GONE)
    with pytest.raises(errors.TimedOut, match="time of the send was over"):
        await attempts.deliver(a_message("n"), since=attempts.client.now() - 41)
    assert attempts.doubts == [("m",)]


@in_virtual_time
async def test_a_message_without_an_id_is_named_by_its_bytes() -> None:
    attempts, message = Attempts("unsure"), a_message(None)
    await attempts.deliver(message)
    [[name]] = attempts.doubts
    assert re.fullmatch(rf"sha256:{hashlib.sha256(message).hexdigest()} of \d{{4}}-[\d-]+T[\d:]+Z", name)
    assert restored(attempts.taken[0][1]) == message


@in_virtual_time
async def test_a_message_that_cannot_go_to_the_backlog_is_refused() -> None:
    attempts = Attempts()
    attempts.client.force_failover()
    reserved = a_message("m", application_properties=encode_map(APPLICATION_PROPERTIES, Map([("x-ms-path", "a")])))
    with pytest.raises(errors.UsageError, match="x-ms-path"):
        await attempts.deliver(reserved)
    with pytest.raises(errors.ProtocolError):
        await attempts.deliver(b"no message")
    assert (attempts.tried, attempts.log.of(SendInDoubt)) == ([], [])


@in_virtual_time
async def test_scheduled_messages_have_numbers_only_in_an_entity() -> None:
    attempts = Attempts()
    asked: list[tuple[str, float]] = []

    async def attempt(side: str, seconds: float) -> list[int]:
        asked.append((side, seconds))
        return [7, 8]

    schedule = encode_map(MESSAGE_ANNOTATIONS, {SCHEDULE: Timestamp(5_000)})
    messages = [a_message(name, message_annotations=schedule) for name in ("a", "b")]
    assert await attempts.sender.schedule(messages, 40, attempt) == [7, 8]
    attempts.client.force_failover()
    assert [await attempts.sender.schedule(each, 40, attempt) for each in (messages, messages[:1])] == [[-1, -2], [-3]]
    assert asked == [("primary", 30)]
    [(_, payload, _), _] = attempts.taken
    assert list(map(restored, batch_members(payload))) == messages
    attempts.client.primary_lost()
    assert await attempts.sender.schedule(messages, 40, attempt) == [7, 8]
    assert asked[1:] == [("secondary", 40 * attempts.sender.share)]


@in_virtual_time
async def test_a_sender_of_its_own_serves_the_entity_and_not_the_backlog() -> None:
    attempts, own = Attempts(), list[tuple[str, str]]()

    async def send(side: str, path: str, _payload: bytes, _message_format: int, _seconds: float) -> None:
        own.append((side, path))

    attempts.sender = attempts.client.sender("orders", send)
    for command in (attempts.client.failback, attempts.client.force_failover, attempts.client.primary_lost):
        command()
        await attempts.deliver(a_message("m"))
    assert own == [("primary", "orders"), ("secondary", "orders")]
    assert attempts.sender.delivered == Delivered(primary=1, backlog=1, secondary=1)


@in_virtual_time
async def test_a_simulated_outage_refuses_deliveries() -> None:
    outage = SimulatedOutage()
    attempts = Attempts(outage=outage)
    outage.begin("primary")
    await attempts.deliver(a_message("m"))
    assert (attempts.sender.delivered, attempts.doubts) == (Delivered(backlog=1), [])


WIDE = [("k" * 1000 + str(number), "v" * 1000) for number in range(32)]


@pytest.mark.parametrize(
    ("limit", "size", "own", "refused"),
    [
        (262_144, 100, [], False),
        (262_144, 250_000, [], False),
        (262_144, 262_100, [], True),
        (0, 262_100, [], True),
        (1_000_000, 262_100, [], False),
        (None, 262_100, [], False),
        (1_000_000, 10, WIDE, False),
        (1_000_000, 10, [*WIDE, ("m" * 500, "n" * 1000)], True),
    ],
)
@in_virtual_time
async def test_a_message_that_the_backlog_would_not_accept_is_refused(
    limit: int | None, size: int, own: list[Any], refused: bool
) -> None:
    attempts = Attempts()
    asked: list[str] = []

    async def max_message_size(queue: str, _seconds: float) -> int:
        asked.append(queue)
        if limit is None:
            raise GONE
        return limit

    attempts.client.max_message_size = max_message_size  # type: ignore[method-assign]
    payload = a_message("m", size, application_properties=encode_map(APPLICATION_PROPERTIES, Map(own)))
    for given, message_format in ((payload, 0), (batch_of([a_message("n"), payload]), BATCH_FORMAT)):
        with pytest.raises(errors.ServiceRefused, match="with its aliases") if refused else nullcontext() as raised:
            await attempts.sender.check_sizes(given, message_format, 10)
        assert raised is None or raised.value.condition == TOO_LARGE
    assert len(asked) <= 1
    assert attempts.state.backlog_bytes == (limit or 262_144 if asked and limit is not None else None)
    assert len(attempts.log.of(SizeUnknown)) == (1 if limit is None else 0)
    attempts.client.primary_lost()
    await attempts.sender.check_sizes(payload, 0, 10)


@in_virtual_time
async def test_a_large_body_is_copied_twice_at_most() -> None:
    size = 8_000_000
    attempts, payload = Attempts(), a_message("m", size)
    attempts.client.force_failover()
    tracemalloc.start()
    try:
        await attempts.deliver(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.1 * size


# Over sockets.


HOUR_MS = 3_600_000


def of_a_client(name: str, **properties: Any) -> bytes:
    return Sections(
        header=Header(durable=True, ttl=HOUR_MS).encode(),
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, {OWN: name}),
        properties=Properties(message_id=name, group_id="s", **properties).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, Map([("x-ms", 1.5), ("name", name)])),
        body=data_body(name.encode() * 40),
    ).join()


def arrived(rig: Rig, *names: str) -> None:
    """Check the messages in the primary, after the syphon has moved the backlog."""
    found = {each.read_properties().message_id: each for each in rig.brought_back()}
    assert found.keys() == set(names)
    for name, each in found.items():
        sent = Sections.split(of_a_client(name))
        assert (each.properties, each.application_properties) == (sent.properties, sent.application_properties)
        assert (each.body, each.read_header().durable) == (sent.body, True)
        # In the outbox, the time to live goes on.
        assert HOUR_MS - 60_000 < each.read_header().ttl <= HOUR_MS
        assert each.read_message_annotations().get("x-opt-own") == name


async def until(log: EventLog, fits: Callable[[Any], bool]) -> None:
    await asyncio.to_thread(log.wait_for, fits)


def test_deliveries_outlast_an_outage_over_sockets(rig: Rig) -> None:
    log = EventLog()

    async def send() -> Delivered:
        options: dict[str, Any] = {"on_failure": "backlog-now", "timeout": 20, "retries": 0, "on_event": log}
        async with RawFailoverClient(rig.pair, **options) as client:
            sender = client.sender("orders")
            await sender.deliver(of_a_client("before"), 0, 20)
            with rig.broken("namespace_down", PRIMARY):
                assert sender.is_direct
                await sender.deliver(of_a_client("m0"), 0, 20)
                assert not sender.is_direct
                await sender.deliver(batch_of([of_a_client("m1"), of_a_client("m2")]), BATCH_FORMAT, 20)
                await sender.check_sizes(of_a_client("large"), 0, 20)
                with pytest.raises(errors.ServiceRefused):
                    await sender.check_sizes(a_message("large", 1_100_000), 0, 20)
                assert client.failover_state.backlog_bytes is not None
            await until(log, lambda event: getattr(event, "after", None) is State.HEALTHY)
            await sender.deliver(of_a_client("after"), 0, 20)
            await sender.close()
            return sender.delivered

    assert asyncio.run(send()) == Delivered(primary=2, backlog=3)
    assert log.path == [State.FAILING, State.FAILED_OVER, State.HEALTHY]
    assert len(rig.in_backlog()) == 3
    arrived(rig, "before", "m0", "m1", "m2", "after")


@pytest.mark.parametrize("fault", ["throttle", "swallow_acks", "entity_down"])
def test_deliveries_outlast_a_fault_of_the_entity_over_sockets(rig: Rig, fault: str) -> None:
    log = EventLog()

    async def send() -> Delivered:
        options: dict[str, Any] = {"on_failure": "backlog-now", "timeout": 4, "retries": 0, "on_event": log}
        async with RawFailoverClient(rig.pair, **options) as client:
            sender = client.sender("orders")
            await sender.deliver(of_a_client("before"), 0, 4)
            with rig.broken(fault, PRIMARY, "orders"):
                await sender.deliver(of_a_client("m0"), 0, 4)
            return sender.delivered

    assert asyncio.run(send()) == Delivered(primary=1, backlog=1)
    assert log.doubtful_ids == (set() if fault == "throttle" else {"m0"})
    if fault != "swallow_acks":
        arrived(rig, "before", "m0")


def test_the_outbox_keeps_deliveries_until_a_side_is_back(rig: Rig, tmp_path: Path) -> None:
    log = EventLog()

    async def send() -> None:
        options: dict[str, Any] = {"timeout": 20, "retries": 0, "on_event": log, "outbox": tmp_path / "outbox.db"}
        async with RawFailoverClient(rig.pair, **options) as client:
            sender = client.sender("orders")
            with rig.broken("namespace_down", PRIMARY):
                with rig.broken("namespace_down", SECONDARY):
                    await sender.deliver(of_a_client("m0"), 0, 20)
                    await sender.deliver(batch_of([of_a_client("m1"), of_a_client("m2")]), BATCH_FORMAT, 20)
                    assert sender.delivered == Delivered(outbox=3)
                await until(log, lambda event: isinstance(event, OutboxEmptied))

    asyncio.run(send())
    assert [each.read_properties().message_id for each in rig.in_backlog()] == ["m0", "m1", "m2"]
    arrived(rig, "m0", "m1", "m2")


def test_a_link_that_does_not_open_leaves_no_doubt(rig: Rig) -> None:
    async def send() -> None:
        async with RawFailoverClient(rig.pair, timeout=20) as client:
            with rig.broken("stall", PRIMARY), pytest.raises(errors.TimedOut):
                await client.send("primary", "orders", of_a_client("m"), 0, 1)

    asyncio.run(send())
