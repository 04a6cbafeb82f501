"""The body of a message: its content, and the text that it holds. Pure.

.NET's binary XML and compressed content have text, too, of up to `MAX_DECODED` characters or bytes. Invariant: what is
no text, hostile content included, is None, and takes no more memory than a few times that.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from sbpair.amqp.message import DATA, VALUE, Sections
from sbpair.amqp.types import Array, Described, Map
from sbpair.errors import ProtocolError
from sbpair.move.message.binary_xml import read_binary_xml

MAX_DECODED: Final = 1 << 20
_ANY_HEADER, _NO_HEADER = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS
_WINDOWS: Final = {"gzip": (_ANY_HEADER,), "x-gzip": (_ANY_HEADER,), "deflate": (_ANY_HEADER, _NO_HEADER)}
"""How content encodings are read; .NET's deflate has no header, that of HTTP has one."""


def body_content(sections: Sections) -> tuple[bool, Any]:
    """Return whether the body is data, and its bytes, its value or its list of sequences. Raises ProtocolError."""
    parts = sections.read_body()
    kinds, values = {kind for kind, _ in parts}, [value for _, value in parts]
    if kinds <= {DATA}:
        return True, b"".join(values)
    return False, values[0] if kinds == {VALUE} else values


def body_text(sections: Sections) -> str | None:
    """Return a body as text: a value that is no text as JSON. None for one that has no text, or cannot be read."""
    try:
        _, content = body_content(sections)
    except ProtocolError:
        return None
    return content_text(content, content_encoding(sections))


def content_text(content: Any, encoding: str) -> str | None:
    """Return the same for the content of a body."""
    if isinstance(content, bytes):
        return held_text(content, encoding)
    plain = plain_value(content)
    if plain is None:
        return None
    return str(plain) if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def content_encoding(sections: Sections) -> str:
    with suppress(ProtocolError):
        return str(plain_value(sections.read_properties().content_encoding))
    return ""


@lru_cache(maxsize=1)  # a filter may ask several times
def held_text(data: bytes, encoding: str = "") -> str | None:
    """Return the text that bytes hold: their own, that of .NET's serializer, either compressed. None without one."""
    for window in _WINDOWS.get(encoding.lower(), ()):
        if (whole := _decompressed(data, window)) is not None:
            return _text(whole)
    return _text(data)


def _text(data: bytes) -> str | None:
    # A document without a text ends with the end of an element, and may be UTF-8.
    found = read_binary_xml(data, MAX_DECODED) if data[-1:] == b"\x01" or not data.isascii() else None
    with suppress(UnicodeDecodeError):
        return data.decode() if found is None else found
    return None


def _decompressed(data: bytes, window: int) -> bytes | None:
    """Return compressed bytes as they were; None if they are something else, or too large."""
    stream = zlib.decompressobj(window)
    try:
        found = stream.decompress(data, MAX_DECODED)
    except zlib.error:
        return None
    return found if stream.eof and not stream.unused_data else None


def plain_value(value: Any) -> Any:
    """Return an AMQP value as a value of JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, Map):
        return {str(plain_value(key)): plain_value(each) for key, each in value.pairs}
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(each) for key, each in value.items()}
    if isinstance(value, Described):
        return plain_value(value.value)
    if isinstance(value, list | tuple | Array):
        return [plain_value(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value)
