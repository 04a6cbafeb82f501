"""The four aliases: there and back, as the original's clients wrote them, and what is wrong with others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.types import Byte, Char, Described, Int, Long, Symbol, Timestamp, UInt
from sbpair.backlog import (
    ALIASES,
    PATH,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    AliasError,
    Aliases,
    read_aliases,
    write_aliases,
)

TIMESPAN = Symbol("com.microsoft:timespan")
MINUTE_TICKS = 600_000_000
NEW_YEAR_2026 = 1_767_225_600_000


@given(
    st.builds(
        Aliases,
        path=st.text(min_size=1).filter(lambda text: text.strip("/ ")),
        session_id=st.none() | st.text(),
        ttl_ticks=st.none() | st.integers(1, 2**63 - 1),
        scheduled_at=st.none() | st.integers(-(2**63), 2**63 - 1),
    )
)
def test_aliases_round_trip(aliases):
    written = write_aliases(aliases)
    assert set(written) <= ALIASES
    assert read_aliases(codec.decode_all(codec.encode(written)).pairs) == aliases


def test_a_time_span_is_written_as_the_original_did():
    value = write_aliases(Aliases("orders", ttl_ticks=MINUTE_TICKS))[TIME_TO_LIVE]
    assert codec.encode(value) == bytes.fromhex("00a316") + b"com.microsoft:timespan" + bytes.fromhex(
        "810000000023c34600"
    )


def test_a_date_is_written_as_the_original_did():
    value = write_aliases(Aliases("orders", scheduled_at=NEW_YEAR_2026))[SCHEDULED]
    assert codec.encode(value) == bytes.fromhex("830000019b76daa800")


def test_names_are_written_as_the_original_did():
    assert list(write_aliases(Aliases("orders", "s", 1, 1))) == [
        "x-ms-path",
        "x-ms-sessionid",
        "x-ms-timetolive",
        "x-ms-scheduledenqueuetimeutc",
    ]
    assert write_aliases(Aliases("orders")) == {"x-ms-path": "orders"}


@pytest.mark.parametrize("order", [1, -1])
def test_a_date_as_path_is_the_schedule(order):
    pairs = [(PATH, "orders"), (PATH, Timestamp(NEW_YEAR_2026))][::order]
    assert read_aliases(pairs) == Aliases("orders", scheduled_at=NEW_YEAR_2026)


def test_a_date_as_path_is_not_a_path():
    with pytest.raises(AliasError, match=r"no x-ms-path"):
        read_aliases([(PATH, Timestamp(NEW_YEAR_2026))])


def test_a_symbol_key_is_the_same_alias():
    assert read_aliases([(Symbol(PATH), "orders")]).path == "orders"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (PATH, None, "x-ms-path is of type null and not a string"),
        (PATH, b"orders", "x-ms-path is of type binary and not a string"),
        (PATH, Symbol("orders"), "x-ms-path is of type symbol and not a string"),
        (PATH, Char("o"), "x-ms-path is of type char and not a string"),
        (PATH, Int(3), "x-ms-path is of type int and not a string"),
        (PATH, "", "x-ms-path is empty"),
        (PATH, " / ", "x-ms-path is empty"),
        (SESSION_ID, Int(1), "x-ms-sessionid is of type int and not a string"),
        (SESSION_ID, None, "x-ms-sessionid is of type null and not a string"),
        (TIME_TO_LIVE, "00:01:00", "x-ms-timetolive is of type string and not a com.microsoft:timespan"),
        (TIME_TO_LIVE, Long(1), "x-ms-timetolive is of type long and not a com.microsoft:timespan"),
        (TIME_TO_LIVE, Described(TIMESPAN, UInt(1)), "x-ms-timetolive is described as 'com.microsoft:timespan'"),
        (TIME_TO_LIVE, Described(Symbol("com.microsoft:uri"), "x"), "is described as 'com.microsoft:uri'"),
        (TIME_TO_LIVE, Described(TIMESPAN, Long(0)), "is 0 ticks, and must be more than 0"),
        (TIME_TO_LIVE, Described(TIMESPAN, Long(-1)), "is -1 ticks"),
        (SCHEDULED, "2026-01-01", "x-ms-scheduledenqueuetimeutc is of type string and not a timestamp"),
        (SCHEDULED, Long(1), "x-ms-scheduledenqueuetimeutc is of type long and not a timestamp"),
        (SCHEDULED, 1.5, "x-ms-scheduledenqueuetimeutc is of type double and not a timestamp"),
        (SCHEDULED, True, "x-ms-scheduledenqueuetimeutc is of type boolean and not a timestamp"),
        (SCHEDULED, Byte(1), "x-ms-scheduledenqueuetimeutc is of type byte and not a timestamp"),
    ],
)
def test_an_alias_of_the_wrong_type_is_named_with_the_reason(name, value, reason):
    pairs = [(name, value)] if name == PATH else [(PATH, "orders"), (name, value)]
    with pytest.raises(AliasError) as caught:
        read_aliases(pairs)
    assert reason in str(caught.value)


def test_without_aliases_there_is_no_destination():
    with pytest.raises(AliasError, match="the message has no x-ms-path, so no destination"):
        read_aliases([("other", "x")])
