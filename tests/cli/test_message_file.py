"""Messages read from JSON and JSON lines: every spelling of a property, and every fault with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.cli.message_file import read, text_of
from sbpair.errors import MachineLacks, UsageError
from sbpair.partition_key import Message

texts = st.none() | st.text(max_size=10)
messages = st.builds(Message, texts, texts, texts)
written = st.lists(messages, min_size=1, max_size=5)


def found(text: str) -> list[Message]:
    return [each.message for each in read(text, "FILE")]


def plain(message: Message) -> dict[str, str | None]:
    names = ("session_id", "partition_key", "message_id")
    return {name: getattr(message, name) for name in names}


@given(written, st.sampled_from([None, 2]))
def test_a_list_is_read_as_it_was_written(sent, indent) -> None:
    assert found(json.dumps([plain(each) for each in sent], indent=indent)) == sent


@given(written, st.sampled_from(["\n", "\r\n", "\n\n", " "]))
def test_lines_are_read_as_they_were_written(sent, end) -> None:
    assert found(end.join(json.dumps(plain(each)) for each in sent) + end) == sent


@given(written, st.integers(0, 4))
def test_each_message_has_the_line_on_which_it_begins(sent, blank) -> None:
    lines = [json.dumps(plain(each)) for each in sent]
    assert [each.line for each in read("\n" * blank + "\n".join(lines), "FILE")] == [
        blank + number for number in range(1, len(sent) + 1)
    ]
    assert [each.line for each in read("[\n" + ",\n".join(lines) + "]", "FILE")] == [
        number + 1 for number in range(1, len(sent) + 1)
    ]


@given(st.text(max_size=60) | st.text(alphabet='[]{},:"\\ \nsession_id123tfn', max_size=40))
def test_any_text_is_read_or_refused_with_a_line(text) -> None:
    refused = None
    try:
        read(text, "FILE")
    except UsageError as error:
        refused = error
    assert refused is None or (refused.message.startswith("FILE") and refused.hint)


@pytest.mark.parametrize(
    "name", ["session_id", "SessionId", "sessionId", "session-id", "SESSION_ID", "group_id", "group-id", "groupId"]
)
def test_every_spelling_of_a_session_id(name) -> None:
    assert found(json.dumps({name: "s", "body": 1})) == [Message("s")]


def test_amqp_names_the_key_in_its_own_way() -> None:
    assert found('{"x-opt-partition-key": "k", "MessageId": "m"}') == [Message(None, "k", "m")]


@pytest.mark.parametrize("text", ["[]", " [ ] \n"])
def test_an_empty_list_has_no_messages(text) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sesion_id", "session_id"), ("partition_keys", "partition_key"), ("mesage_id", "message_id")],
)
def test_a_slip_of_the_pen_is_noticed(name, meant) -> None:
    assert read(json.dumps({name: "x"}), "FILE")[0].slips == ((name, meant),)


@pytest.mark.parametrize(
    "name", ["body", "message", "session", "correlation_id", "reply_to_session_id", "via_partition_key", "partition"]
)
def test_other_properties_are_none(name) -> None:
    assert read(json.dumps({name: "x"}), "FILE")[0].slips == ()


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('{"session_id": "a"}\n{"session_id": }', "line 2, column 16", "it is not JSON: expecting value"),
        ('{"session_id": "a"', "line 1, column 19", "it is not JSON: expecting ',' delimiter"),
        ('{"session_id": "a\n"}', "line 1, column 18", "it is not JSON: invalid control character at"),
        ("{'session_id': 'a'}", "line 1, column 2", "it is not JSON: expecting property name enclosed in double"),
        ("session_id: a", "line 1, column 1", "it is not JSON: expecting value"),
        ('[{"session_id": "a"}\n {}]', "line 2, column 2", "a list goes on with ',' or ends with ']'"),
        ('[{"session_id": "a"},\n]', "line 2, column 1", "it is not JSON: expecting value"),
        ('[{"session_id": "a"}', "line 1, column 21", "a list goes on with ',' or ends with ']'"),
        ("[", "line 1, column 2", "it is not JSON: expecting value"),
        ("[]\n[]", "line 2, column 1", "there is something after the end of the list"),
        ('{}\n"a"', "line 2, column 1", "a message is an object, and this is text"),
        ("{}\n[{}]", "line 2, column 1", "a message is an object, and this is a list"),
        ("[null]", "line 1, column 2", "a message is an object, and this is null"),
        (f"[{'1' * 5000}]", "line 1, column 2", "a message is an object, and this is a number"),
        ('{"message_id": 7}', "line 1, column 1", "the message_id of the message that begins here must be text"),
        ('{}\n {"SessionId": true}', "line 2, column 2", "must be text, and is true or false"),
        ('{"session_id": ["a"]}', "line 1, column 1", "must be text, and is a list"),
        ('{"session_id": {}}', "line 1, column 1", "must be text, and is an object"),
        ('{"session_id": "a", "SessionId": "b"}', "line 1, column 1", "has its session_id twice"),
        ('{"session_id": null, "session_id": "b"}', "line 1, column 1", "has its session_id twice"),
    ],
)
def test_a_fault_is_told_with_its_line_and_column(text, place, what) -> None:
    with pytest.raises(UsageError) as refused:
        read(text, "orders.json")
    assert refused.value.message.startswith(f"orders.json, {place}: ")
    assert what in refused.value.message


@pytest.mark.parametrize(
    ("text", "what"), [("", "is empty"), (" \n", "is empty"), ("[" * 100_000, "nested too deeply")]
)
def test_a_fault_of_the_whole_has_no_place(text, what) -> None:
    with pytest.raises(UsageError, match=what):
        read(text, "orders.json")


def test_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        text_of(str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="Is a directory"):
        text_of(str(tmp_path))
    with pytest.raises(MachineLacks, match="null"):
        text_of("a\0b")
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{}\n{"session_id": "\xe9"}')
    with pytest.raises(UsageError, match=r"latin\.json, line 2: it is not UTF-8"):
        text_of(str(latin))


def test_a_mark_of_utf_8_is_no_part_of_the_text(tmp_path: Path) -> None:
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf{}")
    assert found(text_of(str(marked))) == [Message()]
