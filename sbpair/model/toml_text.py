"""TOML that users write: its tables, with the line and column of each key. Pure."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from sbpair.errors import UsageError
from sbpair.operating_system.files import check_dotted_keys

_AT = re.compile(r" \(at line (\d+), column (\d+)\)$")

Path = tuple[str, ...]
"""Keys from the root on."""

MAX_LEVELS = 32
"""Paths of more levels would take a memory that grows with their square."""

_TOKEN = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'{3}.*?\'{3,5}|#[^\n]*|(?P<key>[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')|[ \t]+|.''',
    re.DOTALL,
)


class TextPosition(NamedTuple):
    """Both are counted from 1, columns in characters."""

    line: int
    column: int


Positions: TypeAlias = Mapping[Path, TextPosition]


def parse_toml(text: str, source: str) -> tuple[dict[str, Any], Positions]:
    """Return the tables of a document, and the position of each key. Raises UsageError, which names `source`."""
    check_dotted_keys(text, source)
    try:
        return tomllib.loads(text), key_positions(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT.search(str(error))
        where = f"{source}:{found[1]}:{found[2]}" if found else source
        raise UsageError(f"{where}: not TOML: {_AT.sub('', str(error))}", hint="see https://toml.io") from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply", hint="write tables with key = value lines") from None


def key_positions(text: str) -> dict[Path, TextPosition]:
    """Return the first position of each key of a document: in a header, dotted, quoted or inline.

    Those inside an array may have none: our documents have no arrays. Raises RecursionError for a document with more
    than MAX_LEVELS levels.
    """
    text = text.replace("\r\n", "\n")
    line_ends = [-1, *(found.start() for found in re.finditer("\n", text))]
    positions: dict[Path, TextPosition] = {}
    for path, at in _keys(text):
        line = bisect_left(line_ends, at)
        positions.setdefault(path, TextPosition(line, at - line_ends[line - 1]))
        if len(path) > MAX_LEVELS:
            raise RecursionError(f"a key has more than {MAX_LEVELS} levels")
    return positions


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    """Yield each part of a key, with those before it, and its offset."""
    table: Path = ()
    path: Path = ()
    around: list[tuple[Path, bool]] = []
    """The key of each collection around a token, and whether it is an array."""
    is_value = False
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if token["key"] and not is_value:
            path = (*path, str(tomllib.loads(f"key = {mark}")["key"]) if mark[0] in "\"'" else mark)
            yield path, token.start()
        elif mark == "=":
            is_value = True
        elif mark in "[{" and is_value:
            is_value = mark == "["
            around.append((path, is_value))
        elif mark in "]}" and around:
            path, is_value = around.pop()[0], True
        elif mark == "," and around:
            path, is_value = around[-1]
        elif mark == "[":
            path = ()
        elif mark == "]":
            table = path
        elif mark == "\n" and not around:
            path, is_value = table, False
