"""Values of rules as typed text, as Atom has them."""

import math
from typing import Any

import pytest

from sbpair.amqp.types import (
    Byte,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    same,
)
from sbpair.rules.values import RuleInvalid, from_amqp, read_typed
from tests.emulator.test_rules import GUID, MINUTE_TICKS


@pytest.mark.parametrize(
    ("kind", "text", "original"),
    [
        ("string", " x ", " x "),
        ("int", "-5", Int(-5)),
        ("long", "5", Long(5)),
        ("short", "5", Short(5)),
        ("unsignedByte", "5", UByte(5)),
        ("unsignedShort", "5", UShort(5)),
        ("unsignedInt", "5", UInt(5)),
        ("unsignedLong", "5", ULong(5)),
        ("boolean", "true", True),
        ("double", "2.5", 2.5),
        ("double", "INF", math.inf),
        ("double", "-INF", -math.inf),
        ("double", "NaN", math.nan),
        ("float", "2.5", Float(2.5)),
        ("byte", "-5", Byte(-5)),
        ("guid", str(GUID), GUID),
        ("dateTime", "1970-01-01T00:00:01Z", Timestamp(1000)),
        ("dateTime", "1970-01-01T00:00:01", Timestamp(1000)),
        ("duration", "PT1M", Described(Symbol("com.microsoft:timespan"), Long(MINUTE_TICKS))),
    ],
)
def test_typed_text_is_an_amqp_value(kind: str, text: str, original: Any) -> None:
    typed = read_typed(kind, text)
    assert same(typed.original, original)
    assert (typed.kind, typed.text) == (kind, text)
    again = from_amqp(original)
    assert again.kind == kind
    assert again.text in (text, f"{text}Z")
    assert same(read_typed(again.kind, again.text).original, original)


def test_a_time_with_an_offset_is_shown_to_the_microsecond() -> None:
    ticks = 621_355_968_000_000_000 + 12_345_678
    typed = from_amqp(Described(Symbol("com.microsoft:datetime-offset"), Long(ticks)))
    assert (typed.kind, typed.text, typed.value) == ("dateTime", "1970-01-01T00:00:01.234567Z", ticks)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int", "x"), ("int", "4294967296"), ("boolean", "maybe"), ("nothing", "1"), ("guid", "1"), ("dateTime", "now"),
     ("duration", "1 minute"), ("decimal", "NaN"), ("decimal", "1e999"), ("char", "-1"), ("double", "")],
)  # fmt: skip
def test_an_invalid_typed_text_is_refused(kind: str, text: str) -> None:
    with pytest.raises(RuleInvalid):
        read_typed(kind, text)
