"""Filters: true, false, unknown or failed for a message; mistakes with their column; and another opinion."""

import uuid
from typing import Any

import pytest
from hypothesis import given, settings

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    VALUE,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.types import Decimal128, Described, Float, Int, Long, Map, Symbol, Timestamp, UInt, ULong
from sbpair.backlog import Aliases, write_aliases
from sbpair.drill.original_reading import WRAPPED_TTL_MS
from sbpair.model.message_state import MessageState
from sbpair.model.sequence_ranges import SequenceRanges
from sbpair.move.filter import MAX_TEXT, FilteredMessage, FilterInvalid, MessageFilter
from sbpair.move.message.decode import Decoder
from sbpair.rules import view
from tests.move import filter_trees as trees
from tests.move.test_binary_xml import BODIES

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
GUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
TIMESPAN, OFFSET = Symbol("com.microsoft:timespan"), Symbol("com.microsoft:datetime-offset")
USER = Map(
    [
        ("Color", "red"), ("n", Int(5)), ("big", ULong(2**64 - 1)), ("half", 2.5), ("single", Float(1.5)),
        ("exact", Decimal128(((6176 - 2) << 113 | 1999).to_bytes(16))), ("yes", True), ("nothing", None), ("id", GUID),
        ("raw", b"\x01"), ("at", Timestamp(NOW_MS)), ("took", Described(TIMESPAN, Long(600_000_000))),
        ("offset", Described(OFFSET, Long(NOW_MS * 10_000 + 621_355_968_000_000_000))), ("symbol", Symbol("sym")),
        ("with space", "a]b"), ("size", "own"), ("x-y", Int(1)), ("COLOR", "second"), ("list", [Int(1)]),
        ("link", Described(Symbol("com.microsoft:uri"), "https://x/y")), ("other", Described(Symbol("x:y"), "z")),
        ("strange", Described(Symbol("x:y"), Long(1))), ("minute", "1m"),
    ]
)  # fmt: skip


def encoded(user: Map | None = None, **changed: Any) -> bytes:
    annotations = Map(
        [
            (Symbol("x-opt-sequence-number"), Long(77)),
            (Symbol("x-opt-enqueued-time"), Timestamp(NOW_MS - HOUR_MS)),
            (Symbol("x-opt-locked-until"), Timestamp(NOW_MS)),
            (Symbol("x-opt-partition-key"), "p"),
            (Symbol("x-opt-scheduled-enqueue-time"), Timestamp(NOW_MS)),
        ]
    )
    properties = Properties(
        message_id="m7",
        to="there",
        subject="bus stop",
        correlation_id=GUID,
        content_type=Symbol("text/plain"),
        group_id="s",
        reply_to_group_id="r",
    )
    return Sections(
        header=Header(ttl=changed.get("ttl", UInt(90_000)), delivery_count=UInt(3)).encode(),
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, changed.get("annotations", annotations)),
        properties=changed.get("properties", properties).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, user if user is not None else USER),
        body=changed.get("body", data_body(b"x" * 10)),
    ).join()


def filtered(payload: bytes, *, times: int = 1) -> FilteredMessage:
    """Decode a message as a mover does, `times` times by one decoder: the second time by a template if one fits."""
    decoder = Decoder("q")
    for _ in range(times):
        [decoded] = decoder.decode([payload])
    return FilteredMessage(decoded.facts, decoded.content, NOW_MS)


MESSAGE = filtered(encoded())

TRUE = """
    color = 'red' | COLOR = 'red' | user.color <> 'RED' | n = 5.0 | n + 1 = 6 | -n = -5 | big > 1 | half / 2 = 1.25
    exact = 19.99 | single = 1.5 | yes = TRUE | symbol = 'sym' | raw = raw | id = id | "Color" = 'red'
    [with space] = 'a]b' | [x-y] = 1 | color LIKE 'r%d' | color LIKE '_e_' | color NOT LIKE 'E%' | n IN (1, 5)
    n NOT IN (1, 2) | nothing IS NULL | missing IS NULL | EXISTS(nothing) | NOT EXISTS(missing) | color IS NOT NULL
    EXISTS(sys.Label) | sys.label = 'bus stop' | sys.Subject LIKE 'bus%' | sys.MessageId = 'm7' | sys.To = 'there'
    sys.CorrelationId = '12345678-1234-5678-1234-567812345678' | sys.ContentType = 'text/plain' | sys.SessionId = 's'
    sys.ReplyToSessionId = 'r' | sys.ReplyTo IS NULL | sys.DeliveryCount = 3 | sys.SequenceNumber = 77
    sys.EnqueuedSequenceNumber = 77 | sys.PartitionKey = 'p' | sys.ViaPartitionKey IS NULL | sys.TimeToLive = '90s'
    sys.TimeToLive > 89 | sys.ExpiresAtUtc = '2027-01-15T07:01:30Z' | sys.ScheduledEnqueueTimeUtc = at
    sys.EnqueuedTimeUtc = '2027-01-15T07:00:00Z' | sys.State = 'active' | sys.Size > 100 | sys.ForcePersistence = FALSE
    sys.DeadLetterSource IS NULL | enqueued < '2027-01-16' | enqueued >= '2027-01-15 08:00:00+01:00' | age = '1h'
    age > '59m' | age >= 3600 | age <= 'PT1H' | age / 60 = 60 | age - '30m' > '29m' | at - enqueued = '1h'
    at = offset | took = '1m' | took = 60 | enqueued + '1h' = at | size = sys.Size | user.size = 'own' | path IS NULL
    reason IS NULL | p('color') = 'red' | property('N') = n | newid() <> id | color + 1 = 'red1' | 7 / 2 = 3
    -7 % 4 = -3 | n * 2 - 1 = 9 | NOT color = 'blue' | NOT NOT n = 5 | n = 4 OR n = 5 AND color = 'red' | (n) = (5)
    color = 'blue' OR missing = 1 OR n = 5 | 'a' < 'b' | n > -1 | color IN ('blue', 'red') | +n = 5 | .5 + 2 = half
    2.5e0 = half | sys.MessageId IN ('m6', 'm7') | color LIKE 'r!ed' ESCAPE '!' | 'it''s' = 'it''s'
    body = 'xxxxxxxxxx' | body LIKE 'x%' | user.body IS NULL | EXISTS(body)
    link LIKE 'https:%' | minute = took | sys.EnqueuedTimeUtc < '2027-01-15T07:00:00.000001Z'
""".replace("\n", " | ")
NOT_TRUE = """
    color = 'RED' | missing = 1 | NOT missing = 1 | missing <> 1 | n > NULL | n NOT IN (1, NULL) | nothing = NULL
    color LIKE nothing | color = 'red' AND missing = 1 | missing IN (1) | age < '1h' | sys.State = 'deferred'
    sys.ReplyTo = 'x' | sys.ReplyTo <> 'x' | EXISTS(missing) | path = 'a' | reason <> 'a' | color LIKE 'r' | n <> n
""".replace("\n", " | ")
FAILS = """
    color = 5 | n = 'five' | yes > yes | list = list | raw < raw | color LIKE n | n + yes = 1 | n / 0 = 1
    -color = 1 | big + 9223372036854775807 > 1 | took = 'soon' | at = 5 | at * 2 = at | took % 2 = 1
    p(n) = 1 | color LIKE 'r!' ESCAPE '!' | color LIKE 'r' ESCAPE 'ab' | took > at
    list IN (1) | other = 'z' | strange = at
""".replace("\n", " | ")


def split(texts: str) -> list[str]:
    return [text.strip() for text in texts.split(" | ") if text.strip()]


@pytest.mark.parametrize("text", split(TRUE))
def test_filter_chooses_the_message(text: str) -> None:
    made = MessageFilter(text)
    assert made.matches(MESSAGE), made.first_failure


@pytest.mark.parametrize("text", split(NOT_TRUE))
def test_filter_that_is_false_or_unknown_does_not_choose(text: str) -> None:
    made = MessageFilter(text)
    assert (made.matches(MESSAGE), made.failures) == (False, 0)


@pytest.mark.parametrize("text", split(FAILS))
def test_message_that_cannot_be_calculated_is_not_chosen_but_counted(text: str) -> None:
    made = MessageFilter(text)
    assert (made.matches(MESSAGE), made.failures) == (False, 1)
    assert made.first_failure.startswith("message 77: ")


@pytest.mark.parametrize(
    ("text", "shown", "moved"),
    [
        ("price = 12345.6789", True, False), ("NOT price < 1", True, False), ("price IS NULL", False, False),
        ("price < 1 OR n = 5", True, True), ("price < 1 OR n = 6", False, False),
        ("EXISTS(price) AND n = 5", True, True),
        ("n = 5 OR price = 1", True, True),
    ],
)  # fmt: skip
def test_a_decimal_of_two_values_moves_no_message(text: str, shown: bool, moved: bool) -> None:
    """Bytes that .NET writes for 12345.6789 are 1.23456789E-4604 by IEEE 754."""
    price = Decimal128(bytes.fromhex("0c3800000000000000000000075bcd15"))
    message = filtered(encoded(Map([("n", Int(5)), ("price", price)])))
    made = MessageFilter(text, is_shown=True)
    assert (made.matches(message), made.failures) == (shown, 0)
    made = MessageFilter(text)
    assert (made.matches(message), made.failures) == (moved, not moved)
    assert moved or "message 77: the decimal price is one number to .NET" in made.first_failure


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (data_body(BODIES["string-json"]), """body LIKE '{"id": 1,%'"""),
        (data_body(BODIES["order"]), "body LIKE '%<Id>42</Id>%' AND n = 1"),
        (data_body(BODIES["datetime-utc"]), "body > '2026' AND body < '2027'"),
        (data_body(b"a") + data_body(b"b"), "body = 'ab'"),
        (data_body(b"\xff"), "body IS NULL"),
        (data_body(b"x" * 2**20), "body LIKE '%x'"),
        (value_body("größe"), "body = 'größe'"),
        (value_body(Map([("k", Int(1)), ("l", "ö")])), """body = '{"k": 1, "l": "ö"}'"""),
        (value_body(b"bytes"), "body = 'bytes'"),
        (value_body(None), "body IS NULL"),
        (section(VALUE, b"\xc0\x02\x01\xff"), "body IS NULL"),
        (b"", "body = ''"),
    ],
)
def test_a_body_is_the_text_that_it_holds(body: bytes, text: str) -> None:
    payload = encoded(Map([("n", Int(1))]), body=body)
    for times in (1, 3):
        made = MessageFilter(text)
        assert made.matches(filtered(payload, times=times)), made.first_failure
        assert made.doubts() == []


def test_a_body_above_a_megabyte_is_not_searched() -> None:
    made = MessageFilter("n = 6 OR body LIKE '%x%'")
    assert not made.matches(filtered(encoded(body=data_body(b"x" * 2**20 + b"x"))))
    assert made.first_failure == "message 77: its body is longer than 1 MB"


def test_a_property_called_body_makes_one_warning() -> None:
    made = MessageFilter("body = 'x' OR user.BODY = 'y'")
    assert [made.matches(filtered(encoded(Map([("Body", "y")])))) for _ in range(3)] == [True] * 3
    assert made.doubts() == [
        "body is the body of a message; messages have an application property body, too: user.body"
    ]
    other = MessageFilter("n = 5")
    assert (other.matches(filtered(encoded(Map([("body", "y"), ("n", Int(5))])))), other.doubts()) == (True, [])


def test_a_condition_before_the_failing_one_decides() -> None:
    made = MessageFilter("n = 5 OR color = 5")
    assert (made.matches(MESSAGE), made.failures) == (True, 0)


@pytest.mark.parametrize(
    ("text", "column", "mistake", "hint"),
    [
        ("sys.Foo = 1", 5, "no system property sys.Foo", "expected one of sys.ContentType"),
        ("sys.Body = 'a'", 5, "no system property sys.Body", "write body, without sys."),
        ("a = 'it's'", 9, "expected AND, OR, an operator or the end, got 's'", "twice"),
        ("a = 1)", 6, "expected the end, got ')'", "for example"),
        ("a IS nul", 6, "expected NOT or NULL, got 'nul'", "for example"),
        ("a between 1 AND 2", 3, "expected AND, IN, IS, LIKE", "for example"),
        ("'a' = (b = 1)", 8, "expected a value, got a condition", "for example"),
        ("'5x' < age", 1, "expected a duration, got '5x'", "90s"),
        ("enqueued > 5", 12, "expected a time, got 5", "2026-11-22"),
        ("5 = sys.Label", 9, "cannot compare a number with text", "for example"),
        ("body = 5", 8, "cannot compare text with a number", "for example"),
        ("size = 'big'", 8, "cannot compare a number with text", "for example"),
        ("sys.ForcePersistence > TRUE", 24, "only be compared by =", "for example"),
        ("age IN ('1h', 'x')", 15, "expected a duration", "90s"),
        ("a LIKE 5", 8, "LIKE compares text, not a number", "for example"),
        ("5 IS NULL", 1, "IS NULL applies to a property only", "for example"),
        ("EXISTS('a')", 8, "EXISTS applies to a property only", "for example"),
        ("a = 99999999999999999999", 5, "does not fit 64 bits", "for example"),
        ("a = -'x'", 6, "expected a number, got text", "for example"),
        ("now() > a", 1, "expected property(NAME)", "for example"),
        ("(" * 66 + "a" + ")" * 66 + " = 1", 67, "nests deeper than 64", "for example"),
        ("a = 1 OR " * 12_000, 1, f"the limit is {MAX_TEXT}", "for example"),
    ],
)
def test_mistake_is_shown_below_its_column(text: str, column: int, mistake: str, hint: str) -> None:
    with pytest.raises(FilterInvalid) as raised:
        MessageFilter(text)
    error = raised.value
    assert mistake in error.message
    assert hint in error.hint
    assert (error.column, error.exit_code) == (column, 2)
    shown, mark = error.excerpt
    assert mark.endswith("^")
    if len(text) < 60:
        assert (shown, len(mark)) == (f"  {text}", column + 2)


def test_long_text_is_cut_around_the_mistake() -> None:
    with pytest.raises(FilterInvalid) as raised:
        MessageFilter("a = 1 OR " * 40 + "b = = 1" + " OR c = 1" * 40)
    shown, mark = raised.value.excerpt
    assert len(shown) < 80
    assert shown[len(mark) - 1 :].startswith("= 1 OR")


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("MessageId = 'a'", "MessageId is an application property here; the message's own is sys.MessageId"),
        ("x-ms-path = 'a'", "x-ms-path is a subtraction; write [x-ms-path]"),
        ('color = "red"', "text has single quotes: 'red'"),
    ],
)
def test_likely_mistake_is_remarked(text: str, remark: str) -> None:
    [made] = MessageFilter(f"NOT ({text}) AND a = 1").remarks
    assert remark in made


def test_a_name_without_brackets_may_be_meant_as_text() -> None:
    [doubt] = MessageFilter("color = red").doubts()
    assert "'red'" in doubt
    assert MessageFilter("color = [red] AND red = 'x'").doubts() == []


def test_names_are_called_absent_only_if_no_message_has_them() -> None:
    made = MessageFilter("first = 1 AND second = 2")
    for name in ("Second", "frist"):
        assert not made.matches(filtered(encoded(Map([(name, Int(1))]))))
    assert made.doubts() == ["none of the messages that were looked at has the property first; they have frist, Second"]
    by_reason = MessageFilter("", reasons=["late"])
    for number in range(100):
        assert (by_reason.doubts() != []) == (number > 0)
        by_reason.matches(filtered(encoded(Map([("DeadLetterReason", f"r{number}")]))))
    assert by_reason.doubts() == []  # others were not noted: it may have been among them


def test_a_subtraction_of_a_number_is_no_likely_mistake() -> None:
    assert MessageFilter("5-n = 4 AND n - 1 = 4").remarks == ()


def test_aliases_count_as_what_they_stand_for() -> None:
    own = write_aliases(Aliases("orders", session_id="a", ttl_ticks=600_000_000, scheduled_at=NOW_MS))
    payload = encoded(Map([*own.items(), ("n", Int(1))]), properties=Properties(message_id="m"))
    text = (
        "path = 'orders' AND sys.SessionId = 'a' AND sys.TimeToLive = '1m' AND n = 1 AND [x-ms-path] = 'orders'"
        " AND sys.ScheduledEnqueueTimeUtc = '2027-01-15T08:00:00Z' AND sys.MessageId = 'm'"
    )
    for times in (1, 3):
        made = MessageFilter(text)
        assert made.matches(filtered(payload, times=times)), made.first_failure


def test_properties_in_the_usual_form_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    message = filtered(encoded(Map([("text", "x"), ("n", Int(300)), ("wanted", "y")])))
    monkeypatch.setattr(view, "_find_carefully", None)
    text = "Wanted = 'y' AND n = 300 AND missing IS NULL AND text LIKE '_' AND NOT EXISTS(x)"
    assert MessageFilter(text).matches(message)


def test_the_sequence_number_of_the_first_entity_is_kept() -> None:
    annotations = Map([(Symbol("x-opt-sequence-number"), Long(77)), (Symbol("x-opt-enqueue-sequence-number"), Long(5))])
    text = "sys.EnqueuedSequenceNumber = 5 AND sys.SequenceNumber = 77"
    assert MessageFilter(text).matches(filtered(encoded(annotations=annotations)))


def test_a_time_to_live_above_49_days_is_that_of_the_expiry() -> None:
    days_60 = 60 * 24 * HOUR_MS
    expiring = Properties(creation_time=NOW_MS, absolute_expiry_time=NOW_MS + days_60)
    for ttl, times, text in (
        (0xFFFFFFFF, expiring, "sys.TimeToLive = '60d' AND sys.ExpiresAtUtc > '2027-03-16'"),
        (WRAPPED_TTL_MS, expiring, "sys.TimeToLive = '60d'"),
        (90_000, expiring, "sys.TimeToLive = '90s'"),
        (0xFFFFFFFF, Properties(), "sys.ExpiresAtUtc IS NULL"),
    ):
        made = MessageFilter(text)
        assert made.matches(filtered(encoded(ttl=UInt(ttl), properties=times))), (text, made.first_failure)


def test_a_message_without_a_time_to_live_never_expires() -> None:
    assert MessageFilter("sys.ExpiresAtUtc IS NULL AND sys.TimeToLive > '365d'").matches(filtered(encoded(ttl=None)))


def reason_given(reason: Any) -> FilteredMessage:
    return filtered(encoded(Map([("DeadLetterReason", reason), ("n", Int(1))] if reason else [("n", Int(1))])))


@pytest.mark.parametrize(
    ("text", "reasons", "chosen", "shown"),
    [
        ("reason LIKE 'Max%'", (), [2], "reason LIKE 'Max%'"),
        ("", ("it's OLD",), [1], '--reason "it\'s OLD"'),
        ("", ("", "maxdelivery"), [0, 2, 3, 4], '--reason "(none)" --reason maxdelivery'),
        ("n = 1", ("", "MaxDelivery"), [0, 2, 3], '--reason "(none)" --reason MaxDelivery --where "n = 1"'),
        ("n = 2", ("MaxDelivery",), [], '--reason MaxDelivery --where "n = 2"'),
    ],
)
def test_dead_letters_are_chosen_by_their_reason(
    text: str, reasons: tuple[str, ...], chosen: list[int], shown: str
) -> None:
    messages = [*map(reason_given, (None, "It's old", "MaxDelivery", Int(3))), filtered(b"\x00nonsense")]
    made = MessageFilter(text, reasons=reasons)
    assert [at for at, message in enumerate(messages) if made.matches(message)] == chosen
    assert (made.chosen, made.counts(5).text, made.counts(5).skipped) == (len(chosen), shown, 5)


@pytest.mark.parametrize(
    ("choice", "matches", "shown"),
    [
        ({"sequences": SequenceRanges.read("5,70-80")}, True, "--sequence 5,70-80"),
        ({"sequences": SequenceRanges.read("76,78"), "older_than": 60}, False, "--sequence 76,78 --older-than 1m"),
        ({"older_than": 3_599.9, "text": "n = 5"}, True, '--older-than 3599.9s --where "n = 5"'),
        ({"older_than": 3_600, "text": "n = 5"}, False, '--older-than 1h --where "n = 5"'),
        ({"state": MessageState.ACTIVE}, True, "--messages active"),
        ({"state": MessageState.SCHEDULED}, False, "--messages scheduled"),
    ],
)
def test_messages_are_chosen_by_number_age_and_state(choice: dict[str, Any], matches: bool, shown: str) -> None:
    made = MessageFilter(choice.pop("text", ""), **choice)
    assert (made.matches(filtered(encoded())), made.full_text) == (matches, shown)
    missing = "none of the messages that were looked at has the sequence number "
    assert [each.removeprefix(missing) for each in made.doubts()] == {
        "--sequence 5,70-80": ["5"],
        "--sequence 76,78 --older-than 1m": ["76, 78"],
    }.get(shown, [])


def test_payload_that_is_no_message_is_never_chosen() -> None:
    made = MessageFilter("NOT EXISTS(a) AND sys.Label IS NULL")
    assert not made.matches(filtered(b"\x00nonsense"))
    assert made.failures == 1


@settings(max_examples=400)
@given(trees.conditions, trees.messages)
def test_filter_agrees_with_a_naive_evaluator(tree: trees.Tree, message: dict[str, Any]) -> None:
    text = trees.text_of(tree)
    found = filtered(payload_of({"sys.MessageId": "m1", **message}), times=2)
    assert MessageFilter(text).matches(found) is trees.chosen(tree, {"sys.MessageId": "m1", **message}), text


def payload_of(message: dict[str, Any]) -> bytes:
    """Encode a message with these properties; names of user properties are in upper case."""
    system = {name: message.get(f"sys.{full}") for name, full in SYSTEM_FIELDS.items()}
    kinds = {int: Int, float: float}
    user = [
        (name.upper(), kinds.get(type(value), lambda same: same)(value))
        for name, value in message.items()
        if not name.startswith("sys.")
    ]
    return encoded(Map(user), properties=Properties(**system), annotations=Map())


SYSTEM_FIELDS = {"message_id": "MessageId", "subject": "Label", "to": "To", "correlation_id": "CorrelationId"}
