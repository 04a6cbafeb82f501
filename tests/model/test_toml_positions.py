"""Positions of keys in TOML, compared with the standard library's reading of the same text."""

import json
import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sbpair.model.toml_text import Path, key_positions

VALUES = st.sampled_from(
    [
        "1", "true", "1979-05-27 07:32:00", "-inf", "0x1F", '"]"', '"#"', "'}'", '"a\\"b"', "''", '""',
        '"""\n[x]\n k = 1 \\""" """', "'''a''b'''", '"""a""""', "''''a'''''", '"""\\\\"""',
        "[]", "[ ]", "[1, # ]\n 2,\n]", "[[1], ['=', \"]\"]]", "{}", "{ a = 1 }", '{ "b.c" = [ {d=1}, { e = "}" } ] }',
        "{a.b=1, a.c={ d = ',' }}", "[{a = 1}, {a = 2}]", "[ { a = [] } ] # x",
    ]
)  # fmt: skip
WORDS = st.one_of(st.text("abc-_0", min_size=1, max_size=3), st.text("ab .\"'#=[]{}\\é\t\u2028\U0001f600", max_size=4))
GAPS = st.sampled_from(["", " ", "\t", "  "])


@st.composite
def keys(draw: st.DrawFn, limit: int = 3) -> str:
    """Draw a dotted key, bare or quoted."""
    parts = []
    for word in draw(st.lists(WORDS, min_size=1, max_size=limit)):
        written = [json.dumps(word), json.dumps(word, ensure_ascii=False)]
        if word and all(each in "abc-_0" for each in word):
            written.append(word)
        if not {"'", "\t"} & set(word):
            written.append(f"'{word}'")
        parts.append(draw(GAPS) + draw(st.sampled_from(written)) + draw(GAPS))
    return ".".join(parts)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Draw lines that may form a TOML document."""
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["pair", "pair", "pair", "table", "array", "comment", "blank"]))
        line = {
            "pair": lambda: f"{draw(keys())}={draw(GAPS)}{draw(VALUES)}",
            "table": lambda: f"[{draw(keys())}]",
            "array": lambda: f"[[{draw(keys())}]]",
            "comment": lambda: "# [no] = 'table",
            "blank": lambda: "",
        }[kind]()
        lines.append(draw(GAPS) + line + draw(st.sampled_from(["", " ", " # x = 1"])))
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines)


def keys_of(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield the keys of tables; those inside an array belong to the array."""
    for key, each in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        yield from keys_of(each, (*path, key))


def has_array(value: object) -> bool:
    inner = value.values() if isinstance(value, dict) else ()
    return isinstance(value, list) or any(map(has_array, inner))


def check(text: str) -> None:
    """Check that exactly the keys have positions, and that each key is written at its position."""
    document = tomllib.loads(text)
    found, known = key_positions(text), set(keys_of(document))
    assert found.keys() >= known
    assert found.keys() == known or has_array(document)
    # Splitting at no other line break than TOML's own.
    lines = text.replace("\r\n", "\n").split("\n")
    for path, (line, column) in found.items():
        rest = lines[line - 1][column - 1 :]
        end = next(end for end in range(1, len(rest) + 1) if is_key(rest[:end], path[-1]))
        assert rest[:end].strip() == rest[:end]


def is_key(text: str, key: str) -> bool:
    try:
        return list(tomllib.loads(f"{text} = 1")) == [key]
    except tomllib.TOMLDecodeError:
        return False


@given(documents())
def test_every_key_has_its_position(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "a.b = 1\na.c.d = 2\n",
        '[queues."billing/invoices"]\nlock_duration = "30s"',
        "[[a]]\n[a.b]\nc = 1\n[[a]]\n[a.b]\nc = 2\n[[a.d]]\ne = 1\n[[a.d]]\ne.f = 2",
        'a = """\n[b]\nc = 1"""\nd = 2',
        'x = { "a b" = { \'c\' = [ { d = 1 }, 2, [ { e.f = "}" } ] ] } }',
        "[a]\r\nb = 1\r\n",
        "[ a . 'b' ]\n \"c\" . d = 1",
        '"" = 1',
    ],
)
def test_a_document_with_everything_in_it(text: str) -> None:
    check(text)


def test_lines_and_columns_are_counted_from_1_in_characters() -> None:
    assert key_positions('# ü\n[q."äö".x]\n  y = 1\n') == {
        ("q",): (2, 2),
        ("q", "äö"): (2, 4),
        ("q", "äö", "x"): (2, 9),
        ("q", "äö", "x", "y"): (3, 3),
    }
