"""Application properties of every type of Python, as a plain SDK sender and as a paired client deliver them."""

import uuid
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import APPLICATION_PROPERTIES, Sections, data_body, encode_map
from sbpair.amqp.types import Decimal128, Described, Int, Long, Map, Symbol, Timestamp, ULong, Value, same
from sbpair.backlog import ALIASES
from sbpair.errors import UsageError
from sbpair.failover import sdk_encoding
from sbpair.failover.entity_states import State
from sbpair.failover.sdk_messages import prepare_one
from sbpair.rules.values import rule_value
from tests.failover.test_sdk_messages import encoded
from tests.kit.failover_rig import KINDS, PAIRED_CLIENTS, PRIMARY, SECONDARY, Rig, a_message

pytestmark = [pytest.mark.usefixtures("impatient"), *PAIRED_CLIENTS]

KIB = 1024
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_767_225_600_000
GUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class Number(IntEnum):
    SEVEN = 7


class Word(StrEnum):
    RED = "red"


def span(ticks: int) -> Described:
    return Described(Symbol("com.microsoft:timespan"), Long(ticks))


def exact(digits: str) -> Decimal128:
    return Decimal128(bytes.fromhex(digits))


# The value, and its value in AMQP.
AS_THE_SDK: dict[str, tuple[Any, Value]] = {
    "text": ("größe", "größe"),
    "word": (Word.RED, "red"),
    "number": (5, Int(5)),
    "enum": (Number.SEVEN, Int(7)),
    "lowest int": (-(2**31), Int(-(2**31))),
    "highest int": (2**31 - 1, Int(2**31 - 1)),
    "yes": (True, True),
    "half": (0.5, 0.5),
    "nothing": (None, None),
    "id": (GUID, GUID),
    "bytes": (b"gr\xc3\xb6\xc3\x9fe", "größe"),
    "buffer": (bytearray(b"\x00\xff"), b"\x00\xff"),
    "utc": (NEW_YEAR, Timestamp(NEW_YEAR_MS)),
    "no zone": (NEW_YEAR.replace(tzinfo=None), Timestamp(NEW_YEAR_MS)),
    "zone": (NEW_YEAR.astimezone(timezone(timedelta(hours=5, minutes=30))), Timestamp(NEW_YEAR_MS)),
    "before 1970": (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), Timestamp(-1_000)),
    "decimal": (Decimal("12345.6789"), exact("303800000000000000000000075bcd15")),
    "negative": (Decimal("-0.5"), exact("b03e0000000000000000000000000005")),
    "largest": (Decimal(2**96 - 1), exact("30400000ffffffffffffffffffffffff")),
    "typed": ({"TYPE": "LONG", "VALUE": 5}, Long(5)),
    "described": (
        ({"TYPE": "SYMBOL", "VALUE": b"mine:unit"}, {"TYPE": "LONG", "VALUE": 5}),
        Described(Symbol("mine:unit"), Long(5)),
    ),
}

# What the SDK refuses, or alters.
BEYOND_THE_SDK: dict[str, tuple[Any, Value]] = {
    "long": (2**31, Long(2**31)),
    "lowest long": (-(2**63), Long(-(2**63))),
    "ulong": (2**64 - 1, ULong(2**64 - 1)),
    "minute": (timedelta(minutes=1), span(600_000_000)),
    "back": (timedelta(minutes=-1), span(-600_000_000)),
    "tick": (timedelta(microseconds=1), span(10)),
    "no time": (timedelta(0), span(0)),
    "exponent": (Decimal("1E+3"), exact("304000000000000000000000000003e8")),
}
ALL = AS_THE_SDK | BEYOND_THE_SDK

WRONG: dict[str, tuple[Any, str]] = {
    "list": ([1], "a list"),
    "map": ({"a": 1}, "a dict"),
    "typed list": ({"TYPE": "LIST", "VALUE": [1]}, "a dict"),
    "unknown type": ({"TYPE": "WORD", "VALUE": "x"}, "a dict"),
    "typed too large": ({"TYPE": "LONG", "VALUE": 2**70}, "cannot be encoded"),
    "described list": (({"TYPE": "SYMBOL", "VALUE": b"s"}, [1]), "a tuple"),
    "tuple": ((1, 2, 3), "a tuple"),
    "set": ({1}, "a set"),
    "view": (memoryview(b"x"), "a memoryview"),
    "date": (date(2026, 1, 1), "a date"),
    "time": (time_of_day(1, 2), "a time"),
    "object": (SimpleNamespace(), "a SimpleNamespace"),
    "huge": (2**64, "64 bits"),
    "low": (-(2**63) - 1, "64 bits"),
    "nan": (Decimal("NaN"), "decimal"),
    "infinite": (Decimal("Infinity"), "decimal"),
    "too exact": (Decimal("1E-29"), "decimal"),
    "too large": (Decimal(2**96), "decimal"),
    "exponent": (Decimal("1E+29"), "decimal"),
    "huge exponent": (Decimal("1E+999999"), "decimal"),
    "long span": (timedelta.max, "longer than"),
    "far": (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "out of range"),
    "binary": (b"\xff\x00", "UTF-8"),
    "half a pair": ("\ud800", "UTF-8"),
    "too long": ("x" * (32 * KIB + 1), "32769 bytes"),
    "too long in UTF-8": ("ä" * (16 * KIB + 1), "32770 bytes"),
    "long buffer": (bytearray(32 * KIB + 1), "32769 bytes"),
}


def value_of(sections: Sections, name: str) -> Value:
    return sections.read_application_properties().get(name)


def sent_alone(value: Any) -> Sections:
    return Sections.split(encoded(prepare_one(a_message("m", application_properties={"p": value}))))


@pytest.mark.parametrize("name", ALL)
def test_a_value_has_its_type_in_amqp(name: str) -> None:
    value, expected = ALL[name]
    found = value_of(sent_alone(value), "p")
    assert same(found, expected), found
    assert not isinstance(value, timedelta | Decimal) or rule_value(found) is not None


def test_the_message_of_the_caller_is_unchanged() -> None:
    given_values = {name: value for name, (value, _) in ALL.items()}
    message = a_message("m", application_properties=given_values)
    sdk_encoding.encode(prepare_one(message))
    assert message.application_properties is given_values
    assert given_values == {name: value for name, (value, _) in ALL.items()}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_without_a_type_is_refused_by_its_name(name: str) -> None:
    value, why = WRONG[name]
    with pytest.raises(UsageError) as refused:
        prepare_one(a_message("m", application_properties={"fine": 1, "the name": value}))
    assert refused.value.message.startswith("property 'the name'")
    assert why in refused.value.message
    assert len(refused.value.message) < 200
    assert refused.value.hint


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({7: 1}, "property 7: its name is not text"),
        ({None: 1}, "property None: its name is not text"),
        ({"\ud800": 1}, r"property '\\ud800': the text is not valid UTF-8"),
        ({f"p{n}": "x" * 30_000 for n in range(3)}, "90006 bytes"),
        ({"p" * 40_000: 1, "q" * 40_000: 1}, "bytes"),
    ],
)
def test_properties_that_the_service_refuses_are_named(properties: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        prepare_one(a_message("m", application_properties=properties))
    assert len(refused.value.message) < 200


def test_properties_at_their_limits_are_sent() -> None:
    sdk_encoding.encode(prepare_one(a_message("m", application_properties={"p": "x" * 32 * KIB})))
    both = {"p": "x" * (32 * KIB - 1), "q": "x" * (32 * KIB - 1)}
    sdk_encoding.encode(prepare_one(a_message("m", application_properties=both)))


SIMPLE = (
    st.integers(-(2**63), 2**64 - 1)
    | st.timedeltas(timedelta(days=-10_000_000), timedelta(days=10_000_000))
    | st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20)
    | st.datetimes()
    | st.uuids()
    | st.text(max_size=30)
    | st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
)


@given(st.dictionaries(st.text(max_size=10).filter(lambda name: name not in ALIASES), SIMPLE, max_size=5))
def test_a_second_preparation_changes_no_value(properties: dict[str, Any]) -> None:
    once = prepare_one(a_message("m", application_properties=properties))
    assert prepare_one(once) is once
    found = Sections.split(encoded(once)).read_application_properties()
    assert list(found) == list(properties)
    for name, value in properties.items():
        if isinstance(value, int | str | float | uuid.UUID | None):
            assert found.get(name) == value


def test_a_described_number_of_a_received_message_keeps_its_meaning() -> None:
    minute = Map(
        [("took", span(600_000_000)), ("short", span(5)), ("link", Described(Symbol("com.microsoft:uri"), "a/b"))]
    )
    payload = Sections(application_properties=encode_map(APPLICATION_PROPERTIES, minute), body=data_body(b"x")).join()
    received = AmqpAnnotatedMessage(message=decode_payload(memoryview(payload)))
    found = Sections.split(encoded(prepare_one(received))).read_application_properties()
    assert same(found, minute), found


def with_all() -> ServiceBusMessage:
    return a_message("m", application_properties={name: value for name, (value, _) in ALL.items()})


def differences(sections: Sections) -> list[str]:
    return [name for name, (_, expected) in ALL.items() if not same(value_of(sections, name), expected)]


def test_a_plain_sender_delivers_the_values_that_the_sdk_knows(rig: Rig) -> None:
    primary = rig.running.ready[0].connection_string
    properties = {name: value for name, (value, _) in AS_THE_SDK.items()}
    with ServiceBusClient.from_connection_string(primary) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(a_message("m", application_properties=properties))
    [arrived] = rig.in_queue(rig.orders)
    assert [name for name in differences(arrived) if name in AS_THE_SDK] == []


@KINDS
def test_all_values_arrive_alike_on_each_way_to_the_primary(rig: Rig, kind: str, tmp_path: Path) -> None:
    with rig.sending(kind, outbox=tmp_path / "outbox.db") as (sender, client, log):
        sender.send_messages(with_all())
        sender.send_messages([with_all(), with_all()])
        client.force_failover()
        sender.send_messages(with_all())
        client.failback()
        with ExitStack() as down:
            down.enter_context(rig.all_broken(("namespace_down", PRIMARY), ("namespace_down", SECONDARY)))
            sender.send_messages(with_all(), timeout=8)
        log.wait_for(lambda event: type(event).__name__ == "OutboxEmptied")
        assert sender.delivered.total == 5
    arrived = rig.brought_back()
    assert len(arrived) == 5
    assert [differences(each) for each in arrived] == [[]] * 5


@KINDS
def test_a_refused_value_is_no_outage_of_the_primary_or_the_backlog(rig: Rig, kind: str) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)

    def wrong(value: Any = frozenset()) -> ServiceBusMessage:
        return a_message("m", application_properties={"p": value})

    with rig.sending(kind) as (sender, client, log):
        sender.send_messages(a_message("first"))
        for state in (State.HEALTHY, State.FORCED):
            for attempt in (
                lambda: sender.send_messages(wrong()),
                lambda: sender.send_messages([a_message("fine"), wrong(b"\xff")]),
                lambda: sender.send_messages(wrong(timedelta.max)),
                lambda: sender.create_message_batch().add_message(wrong(2**64)),
                lambda: sender.schedule_messages(wrong("x" * 33_000), at),
            ):
                with pytest.raises(UsageError, match="property 'p'"):
                    attempt()
            assert client.states() == {"orders": state}
            client.force_failover()
        assert log.path == [State.FORCED]
        assert len(log.events) == 1
    assert (len(rig.in_queue(rig.orders)), rig.in_backlog()) == (1, [])


UNENCODABLE = {
    "subject": {"subject": "\ud800"},
    "message_id": {"message_id": "\ud800"},
    "session_id": {"session_id": "\ud800"},
    "content_type": {"content_type": SimpleNamespace()},
}


@KINDS
@pytest.mark.parametrize("field", UNENCODABLE)
def test_a_field_that_cannot_be_encoded_is_no_outage(rig: Rig, kind: str, field: str) -> None:
    wrong = ServiceBusMessage("x", **{"message_id": "wrong", **UNENCODABLE[field]})
    with rig.sending(kind) as (sender, client, log):
        sender.send_messages(a_message("first"))
        for state in (State.HEALTHY, State.FORCED):
            for messages in (wrong, [wrong, a_message("other")]):
                with pytest.raises(UsageError, match="cannot be encoded"):
                    sender.send_messages(messages)
            assert client.states() == {"orders": state}
            client.force_failover()
        assert log.path == [State.FORCED]
        client.failback()
        sender.send_messages(a_message("last"))


@KINDS
def test_a_body_that_cannot_be_encoded_is_no_outage(rig: Rig, kind: str) -> None:
    wrong = AmqpAnnotatedMessage(value_body=timedelta(1), properties={"message_id": "wrong"})
    with rig.sending(kind) as (sender, client, log):
        for _ in (State.HEALTHY, State.FORCED):
            with pytest.raises(UsageError, match="'wrong' cannot be encoded"):
                sender.send_messages(wrong)
            client.force_failover()
        assert len(log.events) == 1


@KINDS
def test_properties_too_large_for_the_backlog_are_refused_early(rig: Rig, kind: str) -> None:
    fits, large = ({"p": "x" * 32 * KIB, "q": "x" * size} for size in (32_000, 32_760))
    with rig.sending(kind) as (sender, client, log):
        sender.send_messages(a_message("fits", application_properties=fits))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"have 65530 bytes, 655\d\d with its aliases"):
                sender.send_messages(a_message("large", application_properties=large))
            client.force_failover()
        sender.send_messages(a_message("fits", application_properties=fits))
        assert len(log.events) == 1
    assert (len(rig.in_queue(rig.orders)), len(rig.in_backlog())) == (1, 1)
