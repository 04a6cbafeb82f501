"""Performatives: every field there and back, every field on the wire, and what a peer may get wrong."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec, performatives
from sbpair.amqp.message import Header, Properties
from sbpair.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_composite,
)
from sbpair.amqp.types import Array, Described, Int, Map, Symbol, Timestamp, UByte, UInt, ULong, UShort, same
from sbpair.errors import ProtocolError
from tests.strict_amqp.values import BY_DESCRIPTOR, TYPES

KINDS: list[type[Composite]] = [
    Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close, Error, Received, Accepted, Rejected, Released,
    Modified, Source, Target, SaslMechanisms, SaslInit, SaslOutcome, Header, Properties,
]  # fmt: skip

ascii_text = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
symbols = ascii_text.map(Symbol)
fields_maps = st.lists(st.tuples(symbols, st.none() | st.text(max_size=5) | symbols), max_size=3).map(Map)
OF_KIND: dict[Any, st.SearchStrategy[Any]] = {
    **{cls: st.integers(cls.LOW, cls.HIGH) for cls in (UByte, UShort, UInt, ULong, Timestamp)},
    bool: st.booleans(),
    str: st.text(max_size=300),
    Symbol: symbols,
    bytes: st.binary(max_size=40),
    Map: fields_maps,
    Array: st.lists(symbols, min_size=1, max_size=3).map(Array),
    None: st.none()
    | st.text(max_size=20)
    | st.uuids()
    | st.builds(Error, ascii_text, st.text(max_size=20), fields_maps)
    | st.builds(Source, st.text(max_size=20))
    | st.just(Accepted())
    | st.builds(Described, symbols.map(lambda name: Symbol("x-" + name)), st.text(max_size=5)),
}


def composites(cls: type[Composite]) -> st.SearchStrategy[Composite]:
    chosen = {}
    for name, kind, mandatory in cls.TYPES:
        of = OF_KIND[kind]
        chosen[name] = of if mandatory else st.none() | of
    return st.builds(cls, **chosen)


def known(composite: Composite) -> dict[str, Any]:
    """The fields that were given: a null means the default of its field."""
    defaults = type(composite)()
    return {
        name: getattr(defaults, name) if (value := getattr(composite, name)) is None else value
        for name, _, _ in composite.TYPES
    }


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_a_performative_comes_back_with_every_field(cls: type[Composite]) -> None:
    @given(composites(cls))
    @settings(deadline=None, max_examples=15)
    def comes_back(sent: Composite) -> None:
        raw = sent.encode()
        got, end = decode_composite(b"\x40" + raw + b"payload", 1)
        assert end == len(raw) + 1
        assert type(got) is cls
        if cls is Error:
            assert (got.condition, got.description) == (sent.condition or "amqp:internal-error", sent.description or "")
        else:
            assert known(got) == known(sent)
        # Trailing nulls too: some peers index past the end.
        assert len(codec.decode_all(raw).value) == len(cls.TYPES)

    comes_back()


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_the_fields_are_those_of_the_specification(cls: type[Composite]) -> None:
    specified = TYPES[BY_DESCRIPTOR[cls.NAME]]
    assert specified["descriptor"] == [cls.NAME, cls.CODE]
    assert [(name.replace("_", "-"), mandatory) for name, _, mandatory in cls.TYPES] == [
        (field["name"], field.get("mandatory", False)) for field in specified["fields"]
    ]


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_a_symbolic_or_a_long_descriptor_names_the_same_performative(cls: type[Composite]) -> None:
    sample = cls(**{name: minimal(kind) for name, kind, mandatory in cls.TYPES if mandatory})
    values = codec.decode_all(sample.encode()).value
    symbolic = codec.encode(Described(Symbol(cls.NAME), values))
    long = b"\x00\x80" + cls.CODE.to_bytes(8) + codec.encode(values)
    assert decode_composite(symbolic)[0] == decode_composite(long)[0] == decode_composite(sample.encode())[0]


def minimal(kind: Any) -> Any:
    return {
        None: None,
        Map: Map(),
        bool: False,
        str: "x",
        Symbol: Symbol("x"),
        bytes: b"",
        Array: Array([Symbol("x")]),
    }.get(kind, 0)


@pytest.mark.parametrize(
    "cls", [cls for cls in KINDS if any(mandatory for *_, mandatory in cls.TYPES)], ids=lambda cls: cls.__name__
)
def test_a_mandatory_field_that_is_null_or_missing_is_an_error(cls: type[Composite]) -> None:
    full = [codec.decode_all(performatives._encode_field(minimal(kind), kind)) for _, kind, _ in cls.TYPES]
    for index, (name, _, mandatory) in enumerate(cls.TYPES):
        if mandatory:
            with pytest.raises(ProtocolError, match=f"lacks its {name}"):
                cls.from_list([*full[:index], None, *full[index + 1 :]])
            with pytest.raises(ProtocolError, match="lacks its"):
                cls.from_list(full[:index])


WRONG: dict[Any, list[Any]] = {
    ULong: [Int(-1), "1", True, b"1", [], 1.0],
    UInt: [Int(-1), ULong(1 << 32), "1", True, Map()],
    UByte: [UInt(256), "1"],
    UShort: [UInt(65_536)],
    Timestamp: ["now", ULong((1 << 64) - 1), 1.5],
    bool: [UInt(1), "true", b"", []],
    str: [b"bytes", UInt(1), [], Map()],
    Symbol: [b"bytes", UInt(1), True],
    bytes: ["text", UInt(1), []],
    Map: [[], "x", b"", UInt(0)],
    Array: [UInt(1), Map(), b""],
}


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_a_field_of_the_wrong_type_is_an_error(cls: type[Composite]) -> None:
    full = [codec.decode_all(performatives._encode_field(minimal(kind), kind)) for _, kind, _ in cls.TYPES]
    for index, (name, kind, _) in enumerate(cls.TYPES):
        for wrong in WRONG.get(kind, []):
            with pytest.raises(ProtocolError, match=f"{cls.NAME}.{name} ") as caught:
                cls.from_list([*full[:index], wrong, *full[index + 1 :]])
            assert caught.value.condition == "amqp:invalid-field"


def test_an_integer_of_another_width_will_do_if_it_fits() -> None:
    assert Begin.from_list([None, Int(5), ULong(6), UByte(7)]) == Begin(None, 5, 6, 7)


def test_fields_beyond_the_last_are_an_error() -> None:
    with pytest.raises(ProtocolError, match="at most 3 fields"):
        Detach.from_list([UInt(0), True, None, None])


@pytest.mark.parametrize("value", [None, UInt(0x10), [], Described(UInt(0x10), []), Described("amqp:open:list", [])])
def test_what_is_not_described_by_a_ulong_or_a_symbol_is_no_performative(value: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_composite(codec.encode(value))


@pytest.mark.parametrize(
    "error", [Error("amqp:not-found"), Error("amqp:not-found", "text"), Error("x", None, Map()), Error()]
)
def test_an_error_always_has_three_fields_of_the_right_type(error: Error) -> None:
    condition, description, info = codec.decode_all(error.encode()).value
    assert same(condition, Symbol(error.condition or "amqp:internal-error"))
    assert isinstance(description, str)
    assert isinstance(info, Map)


def test_a_password_is_in_no_repr() -> None:
    assert "secret" not in repr(SaslInit("PLAIN", b"\x00user\x00secret"))
