"""Filters and actions, expression by expression: true, false, unknown or failed."""

import subprocess
import sys
import time
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, Properties, Sections, data_body, encode_map, section
from sbpair.amqp.types import (
    Byte,
    Decimal32,
    Decimal64,
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
    same,
)
from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.emulator.entities.rules import SqlAction, StoredView, SubscriptionRule, select_copies, selects_all
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.rules.compiler import Compiler, Dialect
from sbpair.rules.filters import (
    CorrelationRuleFilter,
    SqlRuleFilter,
    TrueRuleFilter,
)
from sbpair.rules.operators import like_pattern
from sbpair.rules.values import EvaluationFailed, RuleInvalid, from_amqp, read_typed
from tests.kit.waiting import PATIENCE_SECONDS

GUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
MINUTE_TICKS = 600_000_000
HELD = Map(
    [
        ("Color", "red"), ("n", Int(5)), ("small", Short(7)), ("big", Long(2**40)), ("unsigned", ULong(2**63)),
        ("half", 2.5), ("single", Float(1.5)), ("exact", Decimal128(((6176 - 2) << 113 | 1999).to_bytes(16))),
        ("yes", True), ("no", False), ("nothing", None), ("id", GUID), ("raw", b"\x01\x02"), ("at", Timestamp(1_000)),
        ("later", Timestamp(61_000)), ("took", Described(Symbol("com.microsoft:timespan"), Long(MINUTE_TICKS))),
        ("with space", "a]b"), ("quote", "it's"), ("percent", "50%_off"), ("symbol", Symbol("sym")),
        ("far", Timestamp(2**62)),
    ]
)  # fmt: skip


def a_message(properties: Map = HELD, **fields: Any) -> StoredMessage:
    described = {"message_id": "m-1", "subject": "bus stop", "correlation_id": GUID, **fields}
    sections = Sections(
        properties=Properties(**described).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, properties),
        body=data_body(b"body"),
    )
    return StoredMessage(sections, len(sections), ttl_ms=60_000, session_id=fields.get("group_id"))


def answer(text: str, message: StoredMessage | None = None, **parameters: Any) -> bool | None:
    found: bool | None = Compiler(Dialect(parameters)).compile("filter", text).run(StoredView(message or a_message()))
    return found


TRUE = """
    color = 'red'
    COLOR = 'red'
    user.color = 'red' AnD N = 5
    [Color] = 'red' and "color" = 'red'
    [with space] = 'a]b'
    [with space] = [WITH SPACE]
    quote = 'it''s'
    n > 4 and n >= 5 and n < 6 and n <= 5 and n <> 4 and n != 4
    n = 5.0 and 5.0 = n and half > n - 3
    n + small = 12
    -n = -5 and - - n = 5 and +n = 5
    big = 1099511627776
    unsigned > 9223372036854775807 and unsigned = +unsigned and unsigned = 9223372036854775808.0
    7 / 2 = 3 and -7 / 2 = -3 and 7 % 2 = 1 and -7 % 2 = -1
    7.0 / 2 = 3.5 and 7.5 % 2 = 1.5
    half / 0.0 > 1e308 and -half / 0.0 < -1e308
    2 + 3 * 4 = 14 and (2 + 3) * 4 = 20 and 10 - 2 - 3 = 5
    1e2 = 100 and 1.5E-1 = 0.15 and .5 = 0.5 and 2. = 2
    exact = 19.99 or exact > 19.98
    exact * 2 > 39.97 and exact + 1 > n and exact * 7 = 139.93
    'a' + 'b' = 'ab' and color + n = 'red5' and n + color = '5red'
    'a' < 'b' and 'B' < 'a'
    yes = TRUE and no = false and yes <> no
    yes = true and not no = true
    id = id
    newid() <> newid()
    at < later and later - at = took and at + took = later and took = later - at and -took < took
    color in ('blue', 'red')
    color not in ('blue', 'green')
    n in (1, 2 + 3)
    color like 'r%' and color like '%d' and color like 'r_d' and color like '%e%' and color like '%'
    color not like 'R%'
    color not like 'r_'
    percent like '50\\%\\_off' escape '\\'
    percent like '50!%%' escape '!'
    symbol = 'sym'
    exists(color) and EXISTS(nothing) and not exists(missing) and exists([with space])
    nothing is null and missing is null and color is not null and sys.to is null
    property('co' + 'lor') = 'red' and p('n') = 5
    sys.label = 'bus stop' and sys.Subject LIKE '%bus%' and sys.messageid = 'm-1'
    sys.correlationid = '12345678-1234-5678-1234-567812345678'
    exists(sys.label) and not exists(sys.replyto)
    sys.size > 0 and sys.deliverycount = 0 and sys.timetolive = took and sys.scheduledenqueuetimeutc is null
    missing = 1 or n = 5
    n = 5 or missing = 1
    n = 5 or color > 1
    1 = 1
    not not n = 5
"""

FALSE = """
    color = 'Red'
    color = 'blue' or n = 6
    n = 6 and missing = 1
    missing = 1 and n = 6
    n = 6 and color > 1
    not exists(color)
    color is null
    missing is not null
    color in ('blue')
    n not in (4, 5)
    color like 'e'
    color like ''
    percent like '50\\_%' escape '\\'
    1 > 1
    exact > half / 0.0 - half / 0.0
"""

UNKNOWN = """
    missing = 1
    missing <> 1
    nothing = NULL
    n = NULL
    missing + 1 > 0
    -missing < 0
    not missing = 1
    missing = 1 and n = 5
    missing = 1 or n = 6
    missing in (1, 2)
    missing not in (1, 2)
    n in (1, missing)
    n not in (1, missing)
    missing like '%'
    color like missing
    missing not like '%'
    p(missing) = 1
    p('missing') = 1
    sys.to = 'x'
"""

IMPOSSIBLE = """
    color > 1
    color = 1
    n = '5'
    yes > no
    yes = 1
    id = '12345678-1234-5678-1234-567812345678'
    id < id
    raw < raw
    n like '5'
    color like 5
    color like 'r%' escape 'ab'
    color like 'r!' escape '!'
    n in (1, 'x')
    n / 0 = 1
    n % 0 = 1
    color - 1 = 0
    -'a' = 1
    -color = 1
    yes + 1 = 2
    at + at = at
    at + 'x' = 'x'
    at = took
    p(1) = 1
    unsigned * 2 = 0
    unsigned + 1 = 0
    9223372036854775807 + 1 = 0
"""


def each(lines: str) -> list[str]:
    return [line.strip() for line in lines.replace("\\\\", "\\").strip().splitlines()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(text, expected) for lines, expected in ((TRUE, True), (FALSE, False), (UNKNOWN, None)) for text in each(lines)],
)
def test_an_expression_is_true_false_or_unknown(text: str, expected: bool | None) -> None:
    assert answer(text) is expected


@pytest.mark.parametrize("text", each(IMPOSSIBLE))
def test_an_expression_that_cannot_be_calculated_fails(text: str) -> None:
    run = Compiler(Dialect()).compile("filter", text).run
    with pytest.raises(EvaluationFailed):
        run(StoredView(a_message()))


BAD = [
    ("", 1, 0),
    ("color", 1, 0),
    ("color =", 1, 7),
    ("color == 1", 1, 7),
    ("a = 1 AND", 1, 9),
    ("a = 1)", 1, 5),
    ("(a = 1", 1, 6),
    ("a = 1\nAND b ~ 2", 2, 6),
    ("a = 1\nAND\nb ~ 2", 3, 2),
    ("a = 'open", 1, 4),
    ("a = [open", 1, 4),
    ("[] = 1", 1, 0),
    ("a IS 5", 1, 5),
    ("5 IS NULL", 1, 0),
    ("EXISTS('a')", 1, 7),
    ("(a = 1) = (b = 2)", 1, 1),
    ("NOT a", 1, 4),
    ("a AND b = 1", 1, 0),
    ("a = 1 b = 2", 1, 6),
    ("a LIKE", 1, 6),
    ("a IN ()", 1, 6),
    ("1a = 1", 1, 1),
    ("_a = 1", 1, 0),
    ("and = 1", 1, 0),
    ("set = 1", 1, 0),
    ("a-b-c", 1, 0),
    ("sys.Nothing = 1", 1, 4),
    ("other.a = 1", 1, 0),
    ("upper(a) = 'A'", 1, 0),
    ("newid(1) = 1", 1, 0),
    ("p() = 1", 1, 0),
    ("a = @p", 1, 4),
    ("a = 9223372036854775808", 1, 4),
    ("SET a = 1", 1, 0),
    ("a = 1; b = 2", 1, 5),
]


@pytest.mark.parametrize(("text", "line", "column"), BAD)
def test_an_invalid_filter_is_refused_with_its_position(text: str, line: int, column: int) -> None:
    with pytest.raises(RuleInvalid) as refused:
        SqlRuleFilter(text)
    assert (refused.value.line, refused.value.column) == (line, column)
    assert refused.value.message.startswith("There was an error parsing the SQL expression. [Token line=")


def test_parameters_are_given_by_name_in_any_case() -> None:
    named = (("@Limit", read_typed("int", "4")), ("@since", read_typed("dateTime", "1970-01-01T00:00:00Z")))
    assert SqlRuleFilter("n > @limit AND at > @since", named).matches(StoredView(a_message())) is True
    with pytest.raises(RuleInvalid, match="applies to a property only") as refused:
        SqlRuleFilter("n > @limit AND @since IS NULL", named)
    assert refused.value.column == 15


def test_an_expression_is_bounded_in_length_and_in_depth() -> None:
    SqlRuleFilter("a = '" + "x" * 1018 + "'")
    with pytest.raises(RuleInvalid, match="1024 at most"):
        SqlRuleFilter("a = '" + "x" * 1019 + "'")
    with pytest.raises(RuleInvalid, match="deeper"):
        SqlRuleFilter("(" * 100 + "a = 1" + ")" * 100)
    with pytest.raises(RuleInvalid, match="deeper"):
        SqlRuleFilter("a = " + "p(" * 100 + "a" + ")" * 100)
    assert answer("NOT " * 200 + "n = 5") is True
    assert answer("n = " + "-" * 200 + "5") is True
    assert answer(" OR ".join(["n = 0"] * 100) + " OR n = 5") is True


def test_matching_a_pattern_takes_bounded_time() -> None:
    started = time.process_time()
    assert like_pattern("%a" * 400 + "b").fullmatch("a" * 30_000) is None
    assert like_pattern("%_a" * 300 + "%b%").fullmatch("a" * 30_000) is None
    assert time.process_time() - started < 5


@given(st.text(alphabet="ab%_", max_size=8), st.text(alphabet="ab%_", max_size=6))
def test_like_matches_its_definition(text: str, wanted: str) -> None:
    def slow(text: str, pattern: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "%":
            return slow(text, pattern[1:]) or (bool(text) and slow(text[1:], pattern))
        return bool(text) and pattern[0] in ("_", text[0]) and slow(text[1:], pattern[1:])

    assert bool(like_pattern(wanted).fullmatch(text)) is slow(text, wanted)


OPERANDS = st.sampled_from(["a", "n", "missing", "1", "-2", "0", "2.5", "'x'", "color", "yes", "NULL"])
EXPRESSIONS = st.recursive(
    OPERANDS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda p: f"({' '.join(p)})"),
    max_leaves=5,
)
CONDITIONS = st.recursive(
    st.tuples(EXPRESSIONS, st.sampled_from(["=", "<>", "<", ">="]), EXPRESSIONS).map(" ".join),
    lambda inner: st.one_of(
        inner.map(lambda one: f"NOT ({one})"),
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=1000)
@given(CONDITIONS)
def test_a_condition_and_its_negation_never_agree(text: str) -> None:
    try:
        one, other = answer(text), answer(f"NOT ({text})")
    except EvaluationFailed:
        return
    assert (one is None and other is None) or one is (not other)


# Numbers of every width


WIDTHS = st.sampled_from([UByte, UShort, UInt, ULong, Byte, Short, Int, Long])
INTEGERS = WIDTHS.flatmap(lambda width: st.integers(width.LOW, width.HIGH).map(width))


@given(INTEGERS, WIDTHS)
def test_an_integer_is_the_same_number_in_each_width(value: int, width: Any) -> None:
    message = a_message(Map([("n", value)]))
    number = int(value)
    assert answer("n = @p AND n <= @p AND n IN (@p)", message, p=number) is True
    if width.LOW <= number <= width.HIGH:
        wanted = (("n", from_amqp(width(number))),)
        assert CorrelationRuleFilter(properties=wanted).matches(StoredView(message)) is True
    if number <= Long.HIGH:
        assert answer("n + 0 = @p", message, p=number) is True
    else:
        with pytest.raises(EvaluationFailed, match="overflow"):
            answer("n + 0 = @p", message, p=number)


@given(INTEGERS, INTEGERS)
def test_an_action_keeps_the_width_of_a_property_where_the_number_fits(old: Any, new: int) -> None:
    found = changed("SET n = @p", a_message(Map([("n", old)])), p=new).sections.read_application_properties()["n"]
    assert found == int(new)
    if old.LOW <= new <= old.HIGH:
        assert same(found, type(old)(new))
    else:
        assert type(found) in (Long, ULong)


@given(st.floats(allow_nan=False, width=32))
def test_a_float_is_the_same_number_as_a_double(value: float) -> None:
    message = a_message(Map([("n", Float(value))]))
    assert answer("n = @p AND n >= @p AND NOT n > @p", message, p=value) is True


# Correlation filters


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({"label": "bus stop"}, True),
        ({"label": "Bus stop"}, False),
        ({"message_id": "m-1", "correlation_id": str(GUID)}, True),
        ({"message_id": "m-1", "to": "nobody"}, False),
        ({"properties": {"n": Int(5)}}, True),
        ({"properties": {"N": Long(5)}}, True),
        ({"properties": {"n": 5.0}}, True),
        ({"properties": {"n": "5"}}, False),
        ({"properties": {"yes": True}}, True),
        ({"properties": {"yes": Int(1)}}, False),
        ({"properties": {"color": "red", "n": Int(6)}}, False),
        ({"properties": {"missing": "x"}}, False),
        ({"properties": {"at": Timestamp(1_000)}}, True),
        ({"properties": {"id": GUID}, "label": "bus stop"}, True),
    ],
)
def test_a_correlation_filter_compares_values_and_their_kinds(wanted: dict[str, Any], matches: bool) -> None:
    properties = tuple((name, from_amqp(value)) for name, value in wanted.pop("properties", {}).items())
    assert CorrelationRuleFilter(**wanted, properties=properties).matches(StoredView(a_message())) is matches


def test_only_sections_that_a_rule_needs_are_decoded() -> None:
    broken = StoredMessage(Sections(properties=b"\x00\x53\x73broken", application_properties=b"broken"), 10)
    assert select_copies([SubscriptionRule()], StoredView(broken)).copies[0].sections is broken.sections
    selection = select_copies([SubscriptionRule("r", SqlRuleFilter("a = 1"))], StoredView(broken))
    assert selection.copies == []
    assert selection.failure is not None
    assert selection.failure.reason == "FilterException"


# Actions


def changed(text: str, message: StoredMessage | None = None, **parameters: Any) -> StoredMessage:
    named = tuple((f"@{name}", from_amqp(value)) for name, value in parameters.items())
    selection = select_copies(
        [SubscriptionRule("named", TrueRuleFilter(), SqlAction(text, named))], StoredView(message or a_message())
    )
    assert selection.failure is None
    return selection.copies[0]


SOUND_ACTIONS = [
    ("SET new = 'x'", "new", "x"),
    ("SET new = 1", "new", Long(1)),
    ("SET new = 9223372036854775807", "new", Long(2**63 - 1)),
    ("SET new = 1.5;", "new", 1.5),
    ("SET new = TRUE", "new", True),
    ("SET new = NULL", "new", None),
    ("SET new = missing", "new", None),
    ("SET new = small", "new", Short(7)),
    ("SET new = unsigned", "new", ULong(2**63)),
    ("SET new = took", "new", Described(Symbol("com.microsoft:timespan"), Long(MINUTE_TICKS))),
    ("SET new = later - at", "new", Described(Symbol("com.microsoft:timespan"), Long(MINUTE_TICKS))),
    ("SET new = at + took", "new", Timestamp(61_000)),
    ("SET new = exact", "new", HELD["exact"]),
    ("SET new = id", "new", GUID),
    ("SET new = @given", "new", Long(9)),
    ("SET new = +unsigned", "new", ULong(2**63)),
    ("SET new = sys.Label", "new", "bus stop"),
    ("SET n = n / 2", "n", Int(2)),
    ("SET N = 9", "n", Int(9)),
    ("SET n = 2.5", "n", 2.5),
    ("SET n = 5000000000", "n", Long(5_000_000_000)),
    ("SET n = 'text'", "n", "text"),
    ("SET half = n", "half", 5.0),
    ("SET single = 2", "single", Float(2.0)),
    ("SET single = 3.4028234663852886e38", "single", Float(3.4028234663852886e38)),
    ("SET single = 1e300", "single", 1e300),
    ("SET single = 1e300 * 1e300", "single", Float("inf")),
    ("SET color = color + '!'", "Color", "red!"),
    ("SET a = n SET b = a + 1", "b", Long(6)),
    ("SET n = n + 1; SET n = n + 1;;", "n", Int(7)),
    ("SET n = n + 1 " * 32, "n", Int(37)),
]


@pytest.mark.parametrize(("text", "name", "value"), SOUND_ACTIONS)
def test_an_action_keeps_the_type_of_a_property(text: str, name: str, value: Any) -> None:
    found = changed(text, given=UInt(9)).sections.read_application_properties()
    assert name in list(found)
    assert same(found[name], value)


def test_an_action_leaves_all_other_bytes_unchanged() -> None:
    before = a_message()
    after = changed("SET new = 'x'; REMOVE Color", before).sections
    assert after.properties == before.sections.properties
    assert after.body is before.sections.body
    found = after.read_application_properties()
    assert [pair for pair in HELD.pairs if pair[0] != "Color"] == list(found.pairs[:-2])
    assert dict(found.pairs[-2:]) == {"new": "x", "RuleName": "named"}
    assert before.sections.read_application_properties() == HELD


def test_an_action_sets_and_removes_system_properties() -> None:
    text = (
        "SET sys.Label = 'l' SET sys.CorrelationId = 'c' SET sys.ContentType = 'text/plain' SET sys.To = 't' "
        "SET sys.ReplyTo = 'r' SET sys.ReplyToSessionId = 'rs' SET sys.SessionId = 's' SET sys.MessageId = 'm'"
    )
    after = changed(text)
    found = after.sections.read_properties()
    assert (found.subject, found.correlation_id, found.content_type, found.to) == ("l", "c", "text/plain", "t")
    assert (found.reply_to, found.reply_to_group_id, found.group_id, found.message_id) == ("r", "rs", "s", "m")
    assert (type(found.subject), type(found.content_type)) == (str, Symbol)
    assert after.session_id == "s"
    assert changed("REMOVE sys.Label").sections.read_properties().subject is None


def test_an_action_sets_the_time_to_live_and_the_partition_key() -> None:
    after = changed("SET sys.TimeToLive = took; SET sys.PartitionKey = 'k'; SET sys.ScheduledEnqueueTimeUtc = at")
    assert after.ttl_ms == 60_000
    assert after.sections.read_header().ttl == 60_000
    assert after.sections.read_message_annotations()["x-opt-partition-key"] == "k"
    assert after.scheduled_at_ms is None
    tick = Map([("tick", Described(Symbol("com.microsoft:timespan"), Long(1)))])
    assert changed("SET sys.TimeToLive = tick", a_message(tick)).ttl_ms == 1


@pytest.mark.parametrize(
    "text",
    ["", "SET", "SET a", "SET a =", "REMOVE", "SET 1 = 2", "a = 1", "SET a = b = c", "SET sys.Nothing = 1",
     "SET sys.SequenceNumber = 1", "REMOVE sys.Size", "SET a = @p", "SET a = 1, SET b = 2", ";",
     "SET a = 1 " * 33],
)  # fmt: skip
def test_an_invalid_action_is_refused(text: str) -> None:
    with pytest.raises(RuleInvalid):
        SqlAction(text)


@pytest.mark.parametrize(
    "text",
    ["SET a = n / 0", "SET a = far - at", "SET sys.Label = 5", "SET sys.TimeToLive = 5", "SET sys.ContentType = 'ä'"],
)
def test_a_failed_action_fails_its_rule_only(text: str) -> None:
    rules = [SubscriptionRule("plain"), SubscriptionRule("bad", TrueRuleFilter(), SqlAction(text))]
    selection = select_copies(rules, StoredView(a_message()))
    assert len(selection.copies) == 1
    assert selection.failure is not None
    assert selection.failure.reason == "RuleActionException"


def test_rules_without_action_share_a_copy_others_have_their_own() -> None:
    rules = [
        SubscriptionRule("one"),
        SubscriptionRule("two", SqlRuleFilter("n = 5"), SqlAction("SET by = 'two'")),
        SubscriptionRule("three", SqlRuleFilter("color = 'red'")),
        SubscriptionRule("four", TrueRuleFilter(), SqlAction("SET by = 'four'")),
        SubscriptionRule("five", SqlRuleFilter("n = 6"), SqlAction("SET by = 'five'")),
    ]
    message = a_message()
    copies = select_copies(rules, StoredView(message)).copies
    assert copies[0].sections is message.sections
    properties = [copy.sections.read_application_properties() for copy in copies[1:]]
    assert [(one["by"], one["RuleName"]) for one in properties] == [("two", "two"), ("four", "four")]


def test_rules_that_select_all_decode_nothing() -> None:
    assert selects_all([SubscriptionRule()])
    assert not selects_all([])
    assert not selects_all([SubscriptionRule(), SubscriptionRule("sql", SqlRuleFilter("a = 1"))])
    assert not selects_all([SubscriptionRule("r", TrueRuleFilter(), SqlAction("SET a = 1"))])


@pytest.mark.parametrize("name", ["", "x" * 51, "a/b", "a?b", "a#b", "a@b", "a*b", "a\\b", "a\nb", " "])
def test_an_invalid_rule_name_is_refused(name: str) -> None:
    with pytest.raises(ArgumentInvalid):
        SubscriptionRule(name)


def test_decimal_arithmetic_is_exact() -> None:
    assert read_typed("decimal", "19.990").value == Decimal("19.990")
    assert answer("exact = @price", price=Decimal("19.99")) is True


@pytest.mark.parametrize(
    ("kind", "raw", "number"),
    [
        # IEEE 754, 3.5.2: a sign, a biased exponent, and the coefficient as an integer.
        (Decimal32, "318007cf", "19.99"), (Decimal64, "b1800000000007cf", "-19.99"),
        (Decimal64, "31c0000000000000", "0"),
        (Decimal128, f"303c{1999:028x}", "19.99"), (Decimal128, f"b03c{1999:028x}", "-19.99"),
        (Decimal128, f"3000{5:028x}", "5e-32"), (Decimal128, f"3042{5:028x}", "50"),
        (Decimal128, f"3041{0:028x}", str(2**112)),
        # Large coefficients begin after two ones; those with too many digits are 0.
        (Decimal32, "6ca00000", "8388608"), (Decimal32, "eca00001", "-8388609"), (Decimal32, "6cbfffff", "0"),
        (Decimal64, "6c70000000000001", str(2**53 + 1)), (Decimal128, f"6c10{7:028x}", "0"),
        # .NET's own form, without bits of the exponent.
        (Decimal128, f"0c38{123456789:028x}", "12345.6789"), (Decimal128, f"8c40{7:028x}", "-7"),
        (Decimal128, f"0c08{2**96 - 1:028x}", "7.9228162514264337593543950335"),
    ],
)  # fmt: skip
def test_a_decimal_is_its_number(kind: Any, raw: str, number: str) -> None:
    message = a_message(Map([("n", kind(bytes.fromhex(raw)))]))
    assert answer("n = @p", message, p=Decimal(number)) is True
    assert from_amqp(kind(bytes.fromhex(raw))).value == Decimal(number)


@pytest.mark.parametrize("kind", [Decimal32, Decimal64, Decimal128])
def test_a_decimal_without_a_number_is_not_compared(kind: Any) -> None:
    with pytest.raises(EvaluationFailed):
        answer("n = 1", a_message(Map([("n", kind(b"\x78" + bytes(kind.WIDTH - 1)))])))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("price + 0.01", f"0c38{123456889:028x}"), ("-price", f"8c38{123456789:028x}"),
        ("price / 7", f"0c0e{17636684142857142857142857143:028x}"), ("price * 100", f"0c38{12345678900:028x}"),
    ],
)  # fmt: skip
def test_an_action_writes_a_decimal_as_dotnet_does(text: str, written: str) -> None:
    message = a_message(Map([("price", Decimal128(bytes.fromhex(f"0c38{123456789:028x}")))]))
    pairs = dict(
        changed(f"SET result = {text}; SET price = price * 1e30", message).sections.read_application_properties().pairs
    )
    assert same(pairs["result"], Decimal128(bytes.fromhex(written)))
    assert pairs["price"] == 1.23456789e34


def test_a_field_beyond_the_last_is_unknown() -> None:
    message = a_message()
    message.sections.properties = section(PROPERTIES, codec.encode(["m", None]))
    assert answer("sys.To IS NULL AND sys.MessageId = 'm'", message) is True
    message.sections.properties = b""
    assert answer("sys.To IS NULL AND sys.MessageId IS NULL", message) is True


def test_the_parser_library_is_imported_with_the_first_expression_only() -> None:
    code = (
        "import sys, sbpair.emulator.server, sbpair.emulator.frontends.amqp.amqp_connection; "
        "import sbpair.emulator.frontends.http.atom_frontend; "
        "assert 'lark' not in sys.modules; "
        "from sbpair.emulator.entities.rules import SubscriptionRule; SubscriptionRule(); "
        "assert 'lark' not in sys.modules; "
        "from sbpair.rules.filters import SqlRuleFilter; SqlRuleFilter('a = 1'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)
