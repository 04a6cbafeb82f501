"""A second opinion on the codec: the Azure SDK's own AMQP library reads what we write, and we read what it writes.

It does not tell a ubyte from a uint once it is decoded, so that what it has read is compared as plain Python values.
"""

from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode, _encode
from azure.servicebus._pyamqp.types import AMQPTypes
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Rejected,
    Source,
    Target,
    decode_composite,
)
from sbpair.amqp.types import (
    Array,
    Byte,
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


def foreign(raw: bytes) -> Any:
    rest, value = _decode._DECODE_BY_CONSTRUCTOR[raw[0]](memoryview(raw)[1:])
    assert len(rest) == 0
    return value


def plain(value: Any) -> Any:
    """What the SDK's library makes of a value: bytes for text, dicts for maps."""
    if isinstance(value, (str, Symbol)):
        return value.encode()
    if isinstance(value, (list, Array)):
        return [plain(item) for item in value]
    if isinstance(value, Map):
        return {plain(key): plain(item) for key, item in value.pairs}
    return value


numbers = st.one_of(
    [st.integers(cls.LOW, cls.HIGH).map(cls) for cls in (UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Timestamp)]
)
atoms = (
    st.none()
    | st.booleans()
    | numbers
    | st.floats(allow_nan=False)
    | st.floats(width=32, allow_nan=False).map(Float)
    | st.uuids()
    | st.binary(max_size=300)
    | st.text(max_size=300)
    | st.text(st.characters(max_codepoint=127), max_size=50).map(Symbol)
)
arrays = st.lists(st.text(max_size=20), min_size=1, max_size=300).map(Array) | st.lists(
    st.integers(0, 1 << 31).map(UInt), min_size=1, max_size=300
).map(Array)
trees = st.recursive(
    atoms | arrays,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=20), inner, max_size=6).map(lambda pairs: Map(pairs.items()))
    ),
    max_leaves=12,
)


@given(trees)
@settings(deadline=None, max_examples=200)
def test_the_sdk_reads_what_we_write(value: Any) -> None:
    assert foreign(codec.encode(value)) == plain(value)


TYPED: list[tuple[AMQPTypes, Any, Any]] = [
    (AMQPTypes.null, None, st.none()),
    (AMQPTypes.boolean, bool, st.booleans()),
    (AMQPTypes.ubyte, UByte, st.integers(0, UByte.HIGH)),
    (AMQPTypes.byte, Byte, st.integers(Byte.LOW, Byte.HIGH)),
    (AMQPTypes.ushort, UShort, st.integers(0, UShort.HIGH)),
    (AMQPTypes.short, Short, st.integers(Short.LOW, Short.HIGH)),
    (AMQPTypes.uint, UInt, st.integers(0, UInt.HIGH) | st.integers(0, 300)),
    (AMQPTypes.int, Int, st.integers(Int.LOW, Int.HIGH) | st.integers(-130, 130)),
    (AMQPTypes.ulong, ULong, st.integers(0, ULong.HIGH) | st.integers(0, 300)),
    (AMQPTypes.long, Long, st.integers(Long.LOW, Long.HIGH) | st.integers(-130, 130)),
    (AMQPTypes.timestamp, Timestamp, st.integers(0, 1 << 45)),
    (AMQPTypes.double, float, st.floats(allow_nan=False)),
    (AMQPTypes.uuid, lambda value: value, st.uuids()),
    (AMQPTypes.binary, bytes, st.binary(max_size=300)),
    (AMQPTypes.string, str, st.text(max_size=300)),
    (AMQPTypes.symbol, Symbol, st.text(st.characters(max_codepoint=127), max_size=300)),
]


@pytest.mark.parametrize(("kind", "make", "python_values"), TYPED, ids=lambda item: getattr(item, "name", ""))
def test_we_read_what_the_sdk_writes(kind: AMQPTypes, make: Any, python_values: Any) -> None:
    @given(python_values)
    @settings(deadline=None, max_examples=40)
    def read(value: Any) -> None:
        output = bytearray()
        _encode.encode_value(output, {"TYPE": kind, "VALUE": value})
        ours = codec.decode_all(bytes(output))
        assert same(ours, None if value is None else make(value))
        assert codec.encode(ours) == bytes(output)

    read()


ERROR = Error("amqp:not-found", "no such entity", Map([(Symbol("tracking"), "id")]))
PERFORMATIVES = [
    Open("container", "host", 65_536, 255, 120_000),
    Begin(3, 0, 5_000, 5_000, 255),
    Attach("link", 1, True, 0, 1, Source("queue"), Target("here"), initial_delivery_count=0, max_message_size=1 << 20),
    Flow(0, 5_000, 0, 5_000, 1, 4, 100, 0),
    Disposition(True, 3, 9, True, Accepted()),
    Disposition(False, 3, None, False, Rejected(ERROR)),
    Detach(1, True, ERROR),
    End(ERROR),
    Close(ERROR),
]


@pytest.mark.parametrize("performative", PERFORMATIVES, ids=lambda performative: type(performative).__name__)
def test_the_sdk_finds_every_field_of_a_performative_where_it_looks_for_it(performative: Any) -> None:
    code, fields = _decode.decode_frame(memoryview(performative.encode()))
    assert code == performative.CODE
    assert len(fields) == len(performative.TYPES)
    for (name, _, _), field in zip(performative.TYPES, fields, strict=True):
        value = getattr(performative, name)
        if isinstance(value, (bool, int, str)):
            assert field == plain(value)


def test_the_sdk_reads_our_message_and_we_read_its() -> None:
    message = Sections(
        properties=Properties(message_id="id", group_id="session", creation_time=1_767_225_600_000).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, {"answer": Int(42), "at": Timestamp(5)}),
        body=data_body(b"payload"),
    )
    theirs = _decode.decode_payload(memoryview(message.join()))
    assert theirs.properties.message_id == b"id"
    assert theirs.properties.group_id == b"session"
    assert theirs.application_properties == {b"answer": 42, b"at": 5}
    assert b"".join(theirs.data) == b"payload"
    output = bytearray()
    _encode.encode_payload(output, theirs)
    again = Sections.split(bytes(output))
    again.check()
    assert again.read_body() == message.read_body()
    assert again.read_properties().creation_time == 1_767_225_600_000


def test_an_outcome_with_annotations_decodes_to_itself() -> None:
    sent = Modified(True, True, Map([(Symbol("a"), Described(ULong(9), "b"))]))
    assert decode_composite(sent.encode())[0] == sent
