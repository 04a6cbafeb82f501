"""Bodies that .NET's serializer wrote, further records of its form, and hostile ones."""

import base64
import json
import struct
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.move.message.binary_xml import MAX_DEPTH, read_binary_xml

LIMIT: Final = 1 << 20
CORPUS: Final = json.loads(Path(__file__).with_name("dotnet_bodies.json").read_text())
"""By the kind of the object: the bytes that .NET's serializer wrote, in base64, and the XML that .NET reads."""

BODIES: Final = {name: base64.b64decode(body) for name, (body, _) in CORPUS.items()}
SIMPLE: Final = "{http://schemas.microsoft.com/2003/10/Serialization/}"
GUID: Final = bytes.fromhex("33221100554477668899aabbccddeeff")


def test_the_corpus_is_read_as_dotnet_reads_it() -> None:
    for name, (_, xml) in CORPUS.items():
        root = ET.fromstring(xml)  # noqa: S314  # the corpus
        is_simple = root.tag.startswith(SIMPLE) and not root.attrib
        held = chr(int(root.text or "")) if root.tag == f"{SIMPLE}char" else root.text or ""
        assert read_binary_xml(BODIES[name], LIMIT) == (held if is_simple else xml), name


def element(content: bytes) -> bytes:
    return b"@\x01a" + content + b"\x01"


@pytest.mark.parametrize(
    ("content", "xml"),
    [
        (b"\x80\x82\x84\x86\xa8", "01falsetrue"),
        (b"\x88\xff\x8a\x00\x80\x8c\xff\xff\xff\x7f\x8e" + b"\xff" * 8, "-1-327682147483647-1"),
        (b"\x90" + struct.pack("<f", 3.4028235e38), "3.4028235E+38"),
        (b"\x90" + struct.pack("<f", 1e7) + b"\x90" + struct.pack("<f", 0.1), "1E+070.1"),
        (b"\x92" + struct.pack("<d", 1e15) + b"\x92" + struct.pack("<d", -(2**54) - 4), "1E+15-18014398509481988"),
        (b"\x92" + struct.pack("<d", 1e14) + b"\x92" + struct.pack("<d", 0.0001), "1000000000000000.0001"),
        (b"\x92" + struct.pack("<d", -1.25e-5) + b"\x92" + struct.pack("<d", float("-inf")), "-1.25E-05-INF"),
        (b"\x94\0\0\x02\x80" + b"\0" * 4 + b"\x96\0\0\0" + b"\0" * 4, "-1.50"),
        (b"\x96" + struct.pack("<Q", 2 << 62 | 630_000_000_000_000_000 + 10), "1997-05-23T16:00:00.000001Z"),
        (b"\xac" + GUID + b"\xb0" + GUID, "urn:uuid:{0}{0}".format("00112233-4455-6677-8899-aabbccddeeff")),
        (b"\xae" + struct.pack("<q", -900_000_000), "-PT1M30S"),
        (b"\xb2" + b"\xff" * 8 + b"\xb4\x01\xb4\x00", "18446744073709551615truefalse"),
        (b"\xb6\x04\x3d\xd8\x00\xde\xb8\x02\x00a\x00\xba\x02\x00\x00\x00b\x00", "\U0001f600ab"),
        (b"\x9a\x01\x00<\x9c\x01\x00\x00\x00\x01\xa0\x03\x00abc\xa2\x01\x00\x00\x00d", "&lt;&#x1;YWJjZA=="),
        (b"\x02\x03 x ^\x01b\x05\x01p\x01n\xa4\x88\x05\x98\x01y\xa6\x01", '<!-- x --><a:b p:n="5 y"></a:b>'),
        (b"\x03@\x01b\x04\x01n\x98\x01\x22\x01\x8b\x02\x05\x00\x06\x00", '<b n="&quot;">5</b><b n="&quot;">6</b>'),
        (b"\x03@\x01b\x01\xb1\x01" + GUID, "<b>00112233-4455-6677-8899-aabbccddeeff</b>"),
    ],
)  # fmt: skip
def test_records_are_read_as_xml(content: bytes, xml: str) -> None:
    assert read_binary_xml(element(content), LIMIT) == f"<a>{xml}</a>"


NESTED: Final = b"@\x01a" * MAX_DEPTH + b"\x01" * MAX_DEPTH
MALFORMED: Final = [
    b"", b"hello", b"@", b"\x01", b"<a/>", element(b"")[:-1], element(b"") + b"\x01", element(b"") * 2,
    element(b"@\x00\x01"), element(b"@\x02a<\x01"), element(b"@\x01\xff\x01"), element(b"@\x80\x80\x80\x80\x10\x01"),
    *(element(bytes([code]) + b"\0" * 20) for code in (0x06, 0x0A, 0x25, 0x42, 0x5D, 0xA4, 0xA6, 0xAA, 0xBC, 0xBE)),
    element(b"\x94\0\0\x1d\0" + b"\0" * 12), element(b"\x94\0\0\0\x01" + b"\0" * 12),
    element(b"\x96" + b"\xff" * 8), element(b"\x98\x01\xff"), element(b"\xb6\x01a"), element(b"\x9c\xff\xff\xff\xff"),
    element(b"\x9c" + struct.pack("<i", 300_000_000) + b"x"), element(b"@" + b"\xff" * 4 + b"\x7fx"),
    element(b"\x04\x01n\x99\x01x"), b"@\x01a\x04\x01n\xa8\x04\x01n\xa8\x01",
    *(element(b"\x03@\x01b" + rest) for rest in (b"\x01\x99\x01\x01x", b"\x01\x8a\x01\0\0", b"\xa8\x8b\x01\0\0")),
    b"@\x01a" + NESTED + b"\x01",
]  # fmt: skip


def test_what_is_no_document_has_no_text() -> None:
    for number, data in enumerate(MALFORMED):
        assert read_binary_xml(data, LIMIT) is None, (number, data[:30])
    assert read_binary_xml(NESTED, LIMIT) is not None


@pytest.mark.parametrize(
    "data",
    [
        element(b"@\x01b\x01" * (LIMIT // 2)),
        element(b"\xa8" * (3 * LIMIT)),
        element(b"\x90\x12\x34\x56\x78" * (LIMIT // 5)),
        element(b"\x9c" + struct.pack("<i", LIMIT + 1) + b"x" * (LIMIT + 1)),
        element(b"\x03@\xff\x7f" + b"b" * 16_383 + b"\x01\xb5\xff\xff\x1f" + b"\1" * (LIMIT // 2)),
    ],
    ids=["elements", "empty texts", "floats", "a long text", "an array of long names"],
)
def test_documents_above_the_limit_have_no_text(data: bytes) -> None:
    assert read_binary_xml(data, LIMIT) is None


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.data())
def test_an_altered_document_has_a_bounded_text_or_none(name: str, data: st.DataObject) -> None:
    altered = bytearray(BODIES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(altered)))
        altered[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    text = read_binary_xml(bytes(altered), 500)
    assert text is None or len(text) <= 6 * 500
