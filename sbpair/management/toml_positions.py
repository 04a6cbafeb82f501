"""The position of each key of a TOML document, which `tomllib` does not report.

Pure, and only for documents that `tomllib` accepts: this walks along well-formed text and parses no values.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from typing import NamedTuple

Path = tuple[str | int, ...]
"""Keys from the root on; a number is an index in an array."""

MAX_LEVELS = 32
"""Paths of more levels would take a memory that grows with their square."""

_GAP = re.compile(r"(?:[ \t\n,]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_OPENING = re.compile(r"\[\[?")
_CLOSING = re.compile(r"[ \t]*\]\]?")
_DOT = re.compile(r"[ \t]*\.")
_EQUALS = re.compile(r"[ \t]*=[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_TEXT = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}|" + _QUOTED.pattern, re.DOTALL)
_OTHER = re.compile(r"[^,\]}#\n]+")


class TextPosition(NamedTuple):
    """Both are counted from 1, columns in characters."""

    line: int
    column: int


def key_positions(text: str) -> dict[Path, TextPosition]:
    """Return the first position of each key of a document: in a header, dotted, quoted or inline.

    Raises RecursionError for a document with more than MAX_LEVELS levels.
    """
    text = text.replace("\r\n", "\n")
    walk = _Walk(text)
    walk.read_document()
    line_ends = [-1, *(found.start() for found in re.finditer("\n", text))]
    positions = {}
    for path, at in walk.found.items():
        line = bisect_left(line_ends, at)
        positions[path] = TextPosition(line, at - line_ends[line - 1])
    return positions


class _Walk:
    """A way through the text. `found` has the offset of each key."""

    def __init__(self, text: str) -> None:
        self.found: dict[Path, int] = {}
        self._text = text
        self._at = 0
        self._arrays: dict[Path, int] = {}

    def read_document(self) -> None:
        table: Path = ()
        while not self._ends_with(""):
            if brackets := self._skip(_OPENING):
                table = self._keys((), in_header=True)
                self._skip(_CLOSING)
                if brackets == "[[":
                    number = self._arrays[table] = self._arrays.get(table, -1) + 1
                    table = (*table, number)
            else:
                self._pair(table)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match.group() if match else ""

    def _accept(self, mark: str) -> bool:
        accepted = self._text.startswith(mark, self._at)
        self._at += len(mark) if accepted else 0
        return accepted

    def _ends_with(self, mark: str) -> bool:
        """Return whether the text ends, or a collection with its closing `mark`."""
        self._skip(_GAP)
        return self._at == len(self._text) or (bool(mark) and self._accept(mark))

    def _pair(self, table: Path) -> None:
        path = self._keys(table)
        self._skip(_EQUALS)
        self._value(path)

    def _keys(self, table: Path, *, in_header: bool = False) -> Path:
        """Read a dotted key. A header continues in the latest table of each array that it passes."""
        path = table
        while True:
            if in_header and path in self._arrays:
                path = (*path, self._arrays[path])
            self._skip(_BLANK)
            at = self._at
            path = (*path, self._skip(_BARE) or str(tomllib.loads(f"key = {self._skip(_QUOTED)}")["key"]))
            self.found.setdefault(path, at)
            if len(path) > MAX_LEVELS:
                raise RecursionError(f"a key has more than {MAX_LEVELS} levels")
            if not self._skip(_DOT):
                return path

    def _value(self, path: Path) -> None:
        if self._accept("["):
            number = 0
            while not self._ends_with("]"):
                self._value((*path, number))
                number += 1
        elif self._accept("{"):
            while not self._ends_with("}"):
                self._pair(path)
        elif not self._skip(_TEXT):
            self._skip(_OTHER)
