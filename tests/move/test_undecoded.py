"""Messages that are not decoded until a filter chooses them: the same choice, numbers and content as decoded ones."""

from collections.abc import Sequence
from itertools import compress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp.link import Delivery
from sbpair.amqp.message import Properties
from sbpair.amqp.types import Decimal128, Int
from sbpair.backlog import Aliases
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.move.filter import MessageFilter, UndecodedMessages
from sbpair.move.raw_source import RawSource
from tests.move.test_fast_decode import ALIASES as SOME_ALIASES
from tests.move.test_fast_decode import BODIES, NOW, OWN, PROPERTIES, SEQUENCES, backlog_copy

TEXTS = [
    "a = 'x'", "b LIKE '%1'", "a = 'x' AND b IS NULL", "EXISTS(b) OR a > 3", "a + 1 = 2", "a IN (1, 2, 'x')",
    "path = 'orders'", "sys.MessageId LIKE '%1' OR a = 'x'", "sys.Size > 700", "age < '1h'",
    "sys.SequenceNumber % 2 = 0", "sys.Subject = 'x'", "sys.SessionId = 'a'", "sys.TimeToLive > '1h'",
    "enqueued > '2026-01-01' AND NOT a = 'x'",
    "b LIKE a", "sys.ContentType LIKE 'app%'", "sys.EnqueuedSequenceNumber < 400", "sys.ScheduledEnqueueTimeUtc = a",
    "a < 3 OR b IS NULL", "property('B') = 'x' OR sys.DeliveryCount = 0", "reason = 'x' OR a < b",
    "sys.PartitionKey = 'key' OR size < 500", "body LIKE '%b%' OR a = 'x'", "body IS NULL", "body = 'value'",
]  # fmt: skip
DOTNET = Decimal128(bytes.fromhex("0c3800000000000000000000075bcd15"))
VALUES = st.sampled_from(["x", "y1", "", Int(1), 2.5, b"x", None, "long" * 70, DOTNET]) | st.text(max_size=3)
NAMED = st.lists(
    st.tuples(st.sampled_from(["a", "A", "b", "B", "x-ms-path", "c", "DeadLetterReason"]), VALUES), max_size=4
)
MESSAGES = st.builds(
    backlog_copy, SEQUENCES, PROPERTIES, SOME_ALIASES, NAMED | OWN, st.none() | st.sampled_from(["key"]), BODIES
)

ALIKE = st.builds(
    backlog_copy,
    st.integers(0, 2**40),
    st.builds(Properties, message_id=st.text(min_size=1, max_size=3)),
    st.builds(Aliases, path=st.sampled_from(["orders", "x"]), session_id=st.none() | st.sampled_from(["a", "b"])),
    st.lists(st.tuples(st.sampled_from(["a", "A", "b", "c"]), VALUES), min_size=1, max_size=4),
    st.none(),
)
"""Messages that are received undecoded, if their application properties are short."""

MAX_SHORT_MAP = 260


class FakeReceiver:
    """A receiver of prepared payloads, all at once."""

    error = None

    def __init__(self, batches: Sequence[Sequence[bytes]]) -> None:
        self._batches = list(batches)

    async def take(self, _limit: int, *, seconds: float) -> list[Delivery]:
        del seconds
        return deliveries(self._batches.pop(0))


def deliveries(payloads: Sequence[bytes]) -> list[Delivery]:
    nothing: Any = None
    return [
        Delivery(nothing, number, number.to_bytes(16), 0, settled=False, payload=payload)
        for number, payload in enumerate(payloads)
    ]


def source_of(*batches: Sequence[bytes]) -> RawSource:
    wire: Any = SimpleNamespace(endpoint=SimpleNamespace(clock=NamespaceClock()))
    receiver: Any = FakeReceiver(batches)
    return RawSource(wire, receiver, "q")


async def received(payloads: list[bytes], known: bytes) -> tuple[Sequence[Any], Sequence[Any]]:
    """Receive messages decoded and undecoded, after one that both sources know."""
    early, late = source_of([known], payloads), source_of([known], payloads)
    for source in (early, late):
        await source.receive(1, seconds=0.0)
    return await early.receive(100, seconds=0.0), await late.receive_for_filter(100, seconds=0.0)


def content(message: Any) -> tuple[Any, ...]:
    made = message.content
    return message.facts, made and made.split().join(), message.partition_key, message.ordinal, message.delivery.tag


def damaged(payload: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, len(payload) - 1))
    return payload[:at] + bytes((data.draw(st.integers(0, 255)),)) + payload[at + 1 :]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([True, True, True, False]), st.sampled_from(TEXTS), st.data())
async def test_undecoded_messages_are_chosen_as_decoded_ones(alike: bool, text: str, data: st.DataObject) -> None:
    messages = data.draw(st.lists(ALIKE if alike else MESSAGES, min_size=1, max_size=6))
    payloads = [each.join() for each in messages] * 2
    broken = data.draw(st.lists(st.integers(0, len(payloads) - 1), max_size=2))
    for at in broken:
        payloads[at] = damaged(payloads[at], data)
    early, late = await received(payloads, messages[0].join())
    if alike and not broken and not early[0].facts.flaw:
        has_long_maps = any(len(each.application_properties) > MAX_SHORT_MAP for each in messages)
        assert isinstance(late, UndecodedMessages) or has_long_maps
    one, other = MessageFilter(text), MessageFilter(text)
    now_ms = NOW + 10_000
    chosen = one.choose(early, now_ms)
    assert other.choose(late, now_ms) == chosen
    assert other == one
    if isinstance(late, UndecodedMessages):
        assert list(late.numbers.sequence_numbers) == [each.facts.sequence_number for each in early]
        assert list(late.numbers.enqueued_at) == [each.facts.enqueued_at for each in early]
        assert late.sizes == [each.facts.size for each in early]
        left = [not each for each in chosen]
        wanted = [
            (each.facts.sequence_number, each.delivery.tag)
            for each, is_left in zip(early, left, strict=True)
            if is_left
        ]
        assert [(each.number, each.delivery.tag) for each in late.keep(left)] == wanted
        selected = list(map(content, compress(early, chosen)))
        assert [content(each) for each in late.select(chosen)] == selected
    assert list(map(content, late)) == list(map(content, early))


@pytest.mark.parametrize(
    ("text", "needs_facts"),
    [
        ("path = 'orders'", True),
        ("color = 'red'", False),
        ("age < '1h' AND enqueued > '2026-01-01'", False),
        ("sys.Subject = 'x' OR sys.To = 'x'", False),
    ],
)
async def test_messages_are_decoded_at_once_after_a_filter_needed_their_facts(text: str, needs_facts: bool) -> None:
    aliases = Aliases(path="orders", session_id=None, ttl_ticks=600_000_000)
    payload = backlog_copy(1, Properties(message_id="m"), aliases, [("color", "red")], None).join()
    source = source_of([payload], [payload], [payload])
    await source.receive(1, seconds=0.0)
    first = await source.receive_for_filter(1, seconds=0.0)
    assert isinstance(first, UndecodedMessages)
    MessageFilter(text).choose(first, NOW)
    second = await source.receive_for_filter(1, seconds=0.0)
    assert isinstance(second, UndecodedMessages) is not needs_facts
    assert list(map(content, second)) == list(map(content, first))


@pytest.mark.parametrize("is_wide", [False, True])
async def test_a_value_that_looks_like_the_next_property_is_not_taken_for_it(is_wide: bool) -> None:
    def payload(value: bytes) -> bytes:
        made = backlog_copy(1, Properties(message_id="m"), Aliases("orders"), [("a", value), ("b", "1")], None)
        if is_wide:
            head, size = made.application_properties[:4], made.application_properties[4]
            rest = made.application_properties[5:].replace(b"\xa0", b"\xb0\0\0\0", 1)
            made.application_properties = head + bytes((size + 3,)) + rest
        return made.join()

    usual = payload(b"x")
    _, late = await received([usual, payload(b"x\xa1\x01b\xa1\x012"), usual], usual)
    assert isinstance(late, UndecodedMessages)
    assert MessageFilter("b = '1'").choose(late, NOW) == [True] * 3
