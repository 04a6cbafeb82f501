"""The position of each key of a TOML document, which `tomllib` does not report.

Pure, and only for documents that `tomllib` accepts: this walks along well-formed text and parses no values.
"""

from __future__ import annotations

import re
import tomllib
from typing import NamedTuple

Path = tuple[str | int, ...]
"""Keys from the root on; a number is an index in an array."""

_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_TEXT = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}|" + _QUOTED.pattern, re.DOTALL)
_OTHER = re.compile(r"[^,\]}#\n]+")


class TextPosition(NamedTuple):
    """Both are counted from 1, columns in characters."""

    line: int
    column: int


def key_positions(text: str) -> dict[Path, TextPosition]:
    """Return the first position of each key of a document: in a header, dotted, quoted or inline."""
    return _Walk(text.replace("\r\n", "\n")).all()


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, int] = {}
        self._arrays: dict[Path, int] = {}

    def all(self) -> dict[Path, TextPosition]:
        table: Path = ()
        while self._next():
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
        return {path: self._position(at) for path, at in self._found.items()}

    def _next(self) -> bool:
        self._skip(_GAP)
        return self._at < len(self._text)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match.group() if match else ""

    def _accept(self, mark: str) -> bool:
        accepted = self._text.startswith(mark, self._at)
        self._at += len(mark) if accepted else 0
        return accepted

    def _header(self) -> Path:
        repeated = self._accept("[[")
        if not repeated:
            self._accept("[")
        path = self._keys((), in_header=True)
        self._accept("]]" if repeated else "]")
        if not repeated:
            return path
        self._arrays[path] = self._arrays.get(path, -1) + 1
        return (*path, self._arrays[path])

    def _pair(self, table: Path) -> None:
        path = self._keys(table)
        self._accept("=")
        self._skip(_BLANK)
        self._value(path)

    def _keys(self, table: Path, *, in_header: bool = False) -> Path:
        """Read a dotted key. A header continues in the latest table of each array that it passes."""
        path = table
        while True:
            if in_header and path in self._arrays:
                path = (*path, self._arrays[path])
            self._skip(_BLANK)
            at = self._at
            path = (*path, self._key())
            self._found.setdefault(path, at)
            self._skip(_BLANK)
            if not self._accept("."):
                return path

    def _key(self) -> str:
        bare = self._skip(_BARE)
        return bare or str(tomllib.loads(f"key = {self._skip(_QUOTED)}")["key"])

    def _value(self, path: Path) -> None:
        if self._accept("["):
            self._array(path)
        elif self._accept("{"):
            self._inline(path)
        elif not self._skip(_TEXT):
            self._skip(_OTHER)

    def _array(self, path: Path) -> None:
        for number in range(len(self._text)):
            self._skip(_GAP)
            if self._accept("]"):
                return
            self._value((*path, number))
            self._skip(_GAP)
            self._accept(",")

    def _inline(self, path: Path) -> None:
        while True:
            self._skip(_GAP)
            if self._accept("}"):
                return
            self._pair(path)
            self._skip(_GAP)
            self._accept(",")

    def _position(self, at: int) -> TextPosition:
        return TextPosition(self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at))
