"""Bodies of .NET's serializer, which are XML in binary form, as the text that they hold. Pure.

[MC-NBFX] describes the records: elements, attributes, and texts of many types. BrokeredMessage(object) wrote them
without a dictionary of strings, so records that refer to one do not occur.

Invariant: bytes that are not exactly one document within the limits have no text, and raise nothing.
"""

from __future__ import annotations

import base64
import re
import struct
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

from sbpair import timespan

MAX_DEPTH: Final = 1_000
_SIMPLE_TYPES: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_NAME: Final = re.compile(r"[^\W\d][\w.-]*")

_END, _COMMENT, _ARRAY = 0x01, 0x02, 0x03
_SHORT_XMLNS, _XMLNS = 0x08, 0x09
# Each with a name alone, with a prefix before it, and the first of 26 with the letters as prefixes.
_ATTRIBUTE, _ELEMENT = (0x04, 0x05, 0x26), (0x40, 0x41, 0x5E)
_LETTERS = 26
_ATTRIBUTES: Final = frozenset({*_ATTRIBUTE[:2], _SHORT_XMLNS, _XMLNS, *range(0x26, 0x26 + _LETTERS)})
_ELEMENTS: Final = frozenset({*_ELEMENT[:2], *range(0x5E, 0x5E + _LETTERS)})
_FIRST_TEXT, _LIST, _LIST_END = 0x80, 0xA4, 0xA6
_ARRAY_TYPES: Final = frozenset({0x8A, 0x8C, 0x8E, 0x90, 0x92, 0x94, 0x96, 0xAE, 0xB0, 0xB4})

_MARKUP: Final = {
    **{control: f"&#x{control:X};" for control in range(0x20) if chr(control) not in "\t\n"},
    **{noncharacter: f"&#x{noncharacter:X};" for noncharacter in (0xFFFE, 0xFFFF)},
    **str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"}),
}
_QUOTED: Final = _MARKUP | str.maketrans({'"': "&quot;", "\t": "&#x9;", "\n": "&#xA;"})


class _Malformed(ValueError):
    """The bytes are not a document, or exceed a limit."""


def read_binary_xml(data: bytes, limit: int) -> str | None:
    """Return what a document holds: the text of a simple value, or XML of up to `limit` characters.

    None for any other bytes.
    """
    # The shortest form of a character is half of one of UTF-16.
    if not data or data[0] not in _ELEMENTS or len(data) > 2 * limit:
        return None
    try:
        return _Document(data, limit).read()
    except (ValueError, OverflowError):  # of a time after the year 9999
        return None


class _Records:
    """The bytes of a document, read from its beginning. Raises ValueError behind their end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        start, end = self.at, self.at + size
        if not start <= end <= len(self.data):
            raise _Malformed
        self.at = end
        return self.data[start:end]

    def byte(self) -> int:
        return self.take(1)[0]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def length(self) -> int:
        """Read an integer of 31 bits, seven of them in a byte, the lowest ones first."""
        found = 0
        for shift in range(0, 35, 7):
            each = self.byte()
            found |= (each & 0x7F) << shift
            if each < 0x80:
                break
        else:
            raise _Malformed
        return found

    def string(self) -> str:
        return self.take(self.length()).decode()

    def name(self) -> str:
        name = self.string()
        if not _NAME.fullmatch(name):
            raise _Malformed
        return name

    def qualified(self, code: int, forms: tuple[int, int, int]) -> str:
        """Read the name of an element or attribute, with its prefix."""
        short, prefixed, letters = forms
        if code == short:
            return self.name()
        if code == prefixed:
            return f"{self.name()}:{self.name()}"
        if letters <= code < letters + _LETTERS:
            return f"{chr(ord('a') + code - letters)}:{self.name()}"
        raise _Malformed

    def attribute(self) -> tuple[str, str]:
        code = self.byte()
        if code == _SHORT_XMLNS:
            return "xmlns", self.string()
        if code == _XMLNS:
            return f"xmlns:{self.name()}", self.string()
        name, code = self.qualified(code, _ATTRIBUTE), self.byte()
        if code != _LIST:
            return name, self.text(code)
        items = []
        while (code := self.byte()) != _LIST_END:
            items.append(self.text(code))
        return name, " ".join(items)

    def text(self, code: int) -> str:
        """Read the value of a text record."""
        if code not in _TEXTS:
            raise _Malformed
        return _TEXTS[code](self)


class _Document(_Records):
    """A document as XML, as .NET writes it. `left` is how many characters it may still have, before any is escaped."""

    def __init__(self, data: bytes, limit: int) -> None:
        super().__init__(data)
        self.left = limit
        self.pieces: list[str] = []
        self.open: list[str] = []
        self.simple = ""
        """The name of a simple type, if the root is of one and has only text: `texts`."""
        self.texts: list[str] = []

    def read(self) -> str:
        name, attributes = self.start(self.byte())
        self.simple = _simple_type(name, attributes)
        while self.open:
            code = self.byte()
            if code >= _FIRST_TEXT:
                self.content(self.text(code & ~1))
                if code & 1:
                    self.end()
            elif code == _END:
                self.end()
            else:
                self.simple = ""
                self.markup(code)
        if self.at != len(self.data):
            raise _Malformed
        if not self.simple:
            return "".join(self.pieces)
        text = "".join(self.texts)
        return _character(text) if self.simple == "char" else text

    def markup(self, code: int) -> None:
        if code == _COMMENT:
            self.write(f"<!--{self.string()}-->")
        elif code == _ARRAY:
            self.array()
        else:
            self.start(code)

    def array(self) -> None:
        """Read elements that differ in their texts alone, which are values of one type without their codes."""
        name, attributes = self.tag(self.byte())
        is_closed, code = self.byte() == _END, self.byte()
        if not (is_closed and code & 1 and code & ~1 in _ARRAY_TYPES):
            raise _Malformed
        for _ in range(self.length()):
            self.begin(name, attributes)
            self.content(self.text(code & ~1))
            self.end()

    def start(self, code: int) -> tuple[str, dict[str, str]]:
        name, attributes = self.tag(code)
        self.begin(name, attributes)
        return name, attributes

    def tag(self, code: int) -> tuple[str, dict[str, str]]:
        name, attributes = self.qualified(code, _ELEMENT), dict[str, str]()
        while self.at < len(self.data) and self.data[self.at] in _ATTRIBUTES:
            key, value = self.attribute()
            if key in attributes:
                raise _Malformed
            attributes[key] = value
        return name, attributes

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.open) == MAX_DEPTH:
            raise _Malformed
        self.open.append(name)
        values = (f' {key}="{value.translate(_QUOTED)}"' for key, value in attributes.items())
        self.write(f"<{name}{''.join(values)}>")

    def content(self, text: str) -> None:
        self.texts.append(text)
        self.write(text.translate(_MARKUP), len(text))

    def end(self) -> None:
        self.write(f"</{self.open.pop()}>")

    def write(self, piece: str, size: int | None = None) -> None:
        self.left -= len(piece) if size is None else size
        if self.left < 0:
            raise _Malformed
        self.pieces.append(piece)


def _simple_type(name: str, attributes: dict[str, str]) -> str:
    """Return the name of a root that holds a simple value: not null, which is an attribute."""
    prefix, _, local = name.rpartition(":")
    namespace = attributes.get(f"xmlns:{prefix}" if prefix else "xmlns")
    is_bare = all(key.partition(":")[0] == "xmlns" for key in attributes)
    return local if is_bare and namespace == _SIMPLE_TYPES else ""


def _character(code: str) -> str:
    """Return the character that .NET wrote as the number of its UTF-16 unit; the number of half a character."""
    is_one = code.isdecimal() and len(code) <= 5 and not 0xD800 <= int(code) <= 0xDFFF
    return chr(int(code)) if is_one else code


# Values as .NET's XmlConvert writes them


def _real(text: str, usual_digits: int) -> str:
    """Return a number, given as Python writes it, with an exponent if it has more digits before the point than that."""
    number = Decimal(text)
    if not number.is_finite():
        return "NaN" if number.is_nan() else f"{'-' if number < 0 else ''}INF"
    sign, digits, exponent = number.normalize().as_tuple()
    point = len(digits) + int(exponent)
    if -3 <= point <= max(len(digits), usual_digits):
        return f"{number.normalize():f}"
    first, *rest = map(str, digits)
    return f"{'-' * sign}{first}{'.' * bool(rest)}{''.join(rest)}E{point - 1:+03}"


def _float(value: float) -> str:
    candidates = (f"{value:.{digits}g}" for digits in range(1, 9))
    return _real(next((each for each in candidates if _is_float(each, value)), f"{value:.9g}"), 7)


def _is_float(text: str, value: float) -> bool:
    try:
        return _FLOAT.pack(float(text)) == _FLOAT.pack(value)
    except OverflowError:
        return False


def _decimal(scale: int, sign: int, high: int, low: int) -> str:
    if scale > 28 or sign & 0x7F:
        raise _Malformed
    digits = tuple(map(int, str(high << 64 | low)))
    return f"{Decimal((sign >> 7, digits, -scale)):f}"


def _time(value: int) -> str:
    """Return a time; .NET converts local ones to UTC before it writes them."""
    kind, (seconds, ticks) = value >> 62, divmod(value & (1 << 62) - 1, timespan.TICKS_PER_SECOND)
    moment = datetime(1, 1, 1) + timedelta(seconds=seconds)  # noqa: DTZ001  # of the zone that it has
    fraction = f".{ticks:07}".rstrip("0") if ticks else ""
    return f"{moment.isoformat()}{fraction}{'Z' if kind else ''}"


_Read: TypeAlias = Callable[[_Records], str]
_FLOAT: Final = struct.Struct("<f")


def _constant(text: str) -> _Read:
    return lambda _records: text


def _fixed(form: str, show: Callable[..., str] = str) -> _Read:
    layout = struct.Struct(form)
    return lambda records: show(*records.unpack(layout))


def _sized(form: str, show: Callable[[bytes], str]) -> _Read:
    layout = struct.Struct(form)
    return lambda records: show(records.take(*records.unpack(layout)))


def _all_sized(first: int, show: Callable[[bytes], str]) -> dict[int, _Read]:
    return {first + 2 * place: _sized(form, show) for place, form in enumerate(("<B", "<H", "<i"))}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_TEXTS: Final[dict[int, _Read]] = {
    **{0x80 + 2 * place: _constant(text) for place, text in enumerate(("0", "1", "false", "true"))},
    0x88: _fixed("<b"),
    0x8A: _fixed("<h"),
    0x8C: _fixed("<i"),
    0x8E: _fixed("<q"),
    0x90: _fixed("<f", _float),
    0x92: _fixed("<d", lambda value: _real(repr(value), 15)),
    0x94: _fixed("<xxBBIQ", _decimal),
    0x96: _fixed("<Q", _time),
    **_all_sized(0x98, bytes.decode),
    **_all_sized(0x9E, _base64),
    0xA8: _constant(""),
    0xAC: _fixed("<16s", lambda value: f"urn:uuid:{uuid.UUID(bytes_le=value)}"),
    0xAE: _fixed("<q", timespan.show),
    0xB0: _fixed("<16s", lambda value: str(uuid.UUID(bytes_le=value))),
    0xB2: _fixed("<Q"),
    0xB4: _fixed("<?", lambda value: str(value).lower()),
    **_all_sized(0xB6, lambda value: value.decode("utf-16-le")),
}
"""The text records, each without its twin that also closes the element: its code is higher by one."""
