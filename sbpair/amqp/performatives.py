"""AMQP's composite types: performatives of connections, sessions and links, outcomes, transactions and SASL.

Each is a dataclass whose annotations name the AMQP type of every field; encoding and decoding follow from them. Every
field is written, trailing nulls too: some peers index past the end of a trimmed list. AMQP 1.0, parts 2 to 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform, get_args, get_type_hints

from sbpair.amqp import codec
from sbpair.amqp.types import (
    Array,
    Byte,
    Described,
    Int,
    Integer,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)
from sbpair.errors import ProtocolError

C = TypeVar("C", bound="Composite")

_INTEGERS = (UByte, UShort, UInt, ULong, Byte, Short, Int, Long, Timestamp)
_ACCEPTS: dict[type, tuple[type, ...]] = {
    **dict.fromkeys((UByte, UShort, UInt, ULong, Timestamp), _INTEGERS),
    **dict.fromkeys((str, Symbol), (str, Symbol)),
    bool: (bool,), bytes: (bytes,), Map: (Map,), Array: (Array, Symbol, str, list),
}  # fmt: skip
"""Accepted Python types for a wanted one: an integer of another width is accepted if the value fits."""

Int8: TypeAlias = Annotated[int | None, UByte]
Int16: TypeAlias = Annotated[int | None, UShort]
Int32: TypeAlias = Annotated[int | None, UInt]
Int64: TypeAlias = Annotated[int | None, ULong]
Flag: TypeAlias = Annotated[bool | None, bool]
Text: TypeAlias = Annotated[str | None, str]
Sym: TypeAlias = Annotated[str | None, Symbol]
Binary: TypeAlias = Annotated[bytes | None, bytes]
Time: TypeAlias = Annotated[int | None, Timestamp]
Fields: TypeAlias = Annotated[Map | dict[Any, Any] | None, Map]
Symbols: TypeAlias = Annotated[Array | None, Array]
Anything: TypeAlias = Any


class Composite:
    """A described list with a name for each element."""

    CODE: ClassVar[int]
    NAME: ClassVar[str]
    TYPES: ClassVar[tuple[tuple[str, type | None, bool], ...]] = ()  # (field, AMQP type, mandatory)
    PREFIX: ClassVar[bytes]
    __slots__ = ()

    def encode(self) -> bytes:
        values = [_encode_field(getattr(self, name), kind) for name, kind, _ in self.TYPES]
        body = b"".join(values)
        size = len(body)
        if size < 255:
            return self.PREFIX + bytes((0xC0, size + 1, len(values))) + body
        return self.PREFIX + b"\xd0" + (size + 4).to_bytes(4) + len(values).to_bytes(4) + body

    @classmethod
    def from_list(cls: type[C], values: Value) -> C:
        """Decode a peer's list. Raises ProtocolError for a missing or mistyped field."""
        if not isinstance(values, list) or len(values) > len(cls.TYPES):
            raise ProtocolError(f"{cls.NAME} is not a list of at most {len(cls.TYPES)} fields")
        given = {}
        for (name, kind, mandatory), value in zip_longest(cls.TYPES, values):
            if value is None:
                if mandatory:
                    raise ProtocolError(f"{cls.NAME} lacks its {name}", condition="amqp:invalid-field")
            else:
                given[name] = _checked(cls, name, kind, value)
        return cls(**given)


def _checked(cls: type[Composite], name: str, kind: type | None, value: Value) -> Value:
    if kind is None:
        return composite_of(value)
    if type(value) not in _ACCEPTS[kind]:
        raise ProtocolError(
            f"{cls.NAME}.{name} is of the wrong type: {type(value).__name__}", condition="amqp:invalid-field"
        )
    if issubclass(kind, Integer) and not kind.LOW <= value <= kind.HIGH:
        raise ProtocolError(f"{cls.NAME}.{name} does not fit its type", condition="amqp:invalid-field")
    return value


def _encode_field(value: Any, kind: type | None) -> bytes:
    if value is None:
        return b"\x40"
    if kind is None:
        return value.encode() if isinstance(value, Composite) else codec.encode(value)
    if kind is Array or kind is Map:
        return codec.encode(value)
    return codec.encode(kind(value))


_BY_DESCRIPTOR: dict[Value, type[Composite]] = {}


@dataclass_transform(field_specifiers=(field,))
def composite(code: int, name: str, *mandatory: str) -> Callable[[type[C]], type[C]]:
    """Make the class a dataclass with this descriptor, and know it by that."""

    def register(plain: type[C]) -> type[C]:
        cls: type[C] = dataclass(slots=True)(plain)
        hints = get_type_hints(cls, include_extras=True)
        cls.CODE, cls.NAME, cls.PREFIX = code, name, b"\x00" + codec.encode(ULong(code))
        types = []
        for item in fields(cls):  # type: ignore[arg-type]
            annotated = get_args(hints[item.name])
            kind = annotated[1] if len(annotated) > 1 and annotated[1] in _ACCEPTS else None
            types.append((item.name, kind, item.name in mandatory))
        cls.TYPES = tuple(types)
        _BY_DESCRIPTOR[code] = _BY_DESCRIPTOR[name] = cls
        return cls

    return register


def composite_of(value: Value) -> Value:
    """Return the composite that a described list stands for; any other value unchanged."""
    if isinstance(value, Described) and isinstance(value.descriptor, (ULong, Symbol)):
        cls = _BY_DESCRIPTOR.get(value.descriptor)
        if cls is not None:
            return cls.from_list(value.value)
    return value


def decode_composite(buffer: bytes, position: int = 0) -> tuple[Composite, int]:
    """Return the composite at `position`, and the position after it. Raises ProtocolError."""
    value, end = codec.decode(buffer, position)
    composite = composite_of(value)
    if not isinstance(composite, Composite):
        raise ProtocolError("a frame's body is not a performative that this peer knows")
    return composite, end


@composite(0x1D, "amqp:error:list", "condition")
class Error(Composite):
    """Always three fields on the wire: with two, pyamqp hangs."""

    condition: Sym = None
    description: Text = None
    info: Fields = None

    def encode(self) -> bytes:
        values = (Symbol(self.condition or "amqp:internal-error"), self.description or "", self.info or {})
        return self.PREFIX + codec.encode(list(values))


@composite(0x10, "amqp:open:list", "container_id")
class Open(Composite):
    container_id: Text = None
    hostname: Text = None
    max_frame_size: Int32 = 0xFFFFFFFF
    channel_max: Int16 = 0xFFFF
    idle_time_out: Int32 = None
    outgoing_locales: Symbols = None
    incoming_locales: Symbols = None
    offered_capabilities: Symbols = None
    desired_capabilities: Symbols = None
    properties: Fields = None


@composite(0x11, "amqp:begin:list", "next_outgoing_id", "incoming_window", "outgoing_window")
class Begin(Composite):
    remote_channel: Int16 = None
    next_outgoing_id: Int32 = 0
    incoming_window: Int32 = 0
    outgoing_window: Int32 = 0
    handle_max: Int32 = 0xFFFFFFFF
    offered_capabilities: Symbols = None
    desired_capabilities: Symbols = None
    properties: Fields = None


@composite(0x12, "amqp:attach:list", "name", "handle", "role")
class Attach(Composite):
    """`role` is True for a receiver."""

    name: Text = None
    handle: Int32 = 0
    role: Flag = False
    snd_settle_mode: Int8 = 2
    rcv_settle_mode: Int8 = 0
    source: Anything = None
    target: Anything = None
    unsettled: Fields = None
    incomplete_unsettled: Flag = False
    initial_delivery_count: Int32 = None
    max_message_size: Int64 = None
    offered_capabilities: Symbols = None
    desired_capabilities: Symbols = None
    properties: Fields = None


@composite(0x13, "amqp:flow:list", "incoming_window", "next_outgoing_id", "outgoing_window")
class Flow(Composite):
    next_incoming_id: Int32 = None
    incoming_window: Int32 = 0
    next_outgoing_id: Int32 = 0
    outgoing_window: Int32 = 0
    handle: Int32 = None
    delivery_count: Int32 = None
    link_credit: Int32 = None
    available: Int32 = None
    drain: Flag = False
    echo: Flag = False
    properties: Fields = None


@composite(0x14, "amqp:transfer:list", "handle")
class Transfer(Composite):
    handle: Int32 = 0
    delivery_id: Int32 = None
    delivery_tag: Binary = None
    message_format: Int32 = None
    settled: Flag = None
    more: Flag = False
    rcv_settle_mode: Int8 = None
    state: Anything = None
    resume: Flag = False
    aborted: Flag = False
    batchable: Flag = False


@composite(0x15, "amqp:disposition:list", "role", "first")
class Disposition(Composite):
    """`role` is the writer's: True for a receiver."""

    role: Flag = False
    first: Int32 = 0
    last: Int32 = None
    settled: Flag = False
    state: Anything = None
    batchable: Flag = False


@composite(0x16, "amqp:detach:list", "handle")
class Detach(Composite):
    handle: Int32 = 0
    closed: Flag = False
    error: Anything = None


@composite(0x17, "amqp:end:list")
class End(Composite):
    error: Anything = None


@composite(0x18, "amqp:close:list")
class Close(Composite):
    error: Anything = None


@composite(0x23, "amqp:received:list", "section_number", "section_offset")
class Received(Composite):
    section_number: Int32 = 0
    section_offset: Int64 = 0


@composite(0x24, "amqp:accepted:list")
class Accepted(Composite):
    pass


@composite(0x25, "amqp:rejected:list")
class Rejected(Composite):
    error: Anything = None


@composite(0x26, "amqp:released:list")
class Released(Composite):
    pass


@composite(0x27, "amqp:modified:list")
class Modified(Composite):
    delivery_failed: Flag = None
    undeliverable_here: Flag = None
    message_annotations: Fields = None


Outcome: TypeAlias = Accepted | Rejected | Released | Modified


@composite(0x28, "amqp:source:list")
class Source(Composite):
    address: Anything = None
    durable: Int32 = 0
    expiry_policy: Sym = "session-end"
    timeout: Int32 = 0
    dynamic: Flag = False
    dynamic_node_properties: Fields = None
    distribution_mode: Sym = None
    filter: Fields = None
    default_outcome: Anything = None
    outcomes: Symbols = None
    capabilities: Symbols = None


@composite(0x29, "amqp:target:list")
class Target(Composite):
    address: Anything = None
    durable: Int32 = 0
    expiry_policy: Sym = "session-end"
    timeout: Int32 = 0
    dynamic: Flag = False
    dynamic_node_properties: Fields = None
    capabilities: Symbols = None


@composite(0x30, "amqp:coordinator:list")
class Coordinator(Composite):
    """The target of a link that declares and discharges transactions."""

    capabilities: Symbols = None


@composite(0x31, "amqp:declare:list")
class Declare(Composite):
    global_id: Anything = None


@composite(0x32, "amqp:discharge:list", "txn_id")
class Discharge(Composite):
    """The end of a transaction: `fail` rolls it back."""

    txn_id: Binary = None
    fail: Flag = False


@composite(0x33, "amqp:declared:list", "txn_id")
class Declared(Composite):
    txn_id: Binary = None


@composite(0x34, "amqp:transactional-state:list", "txn_id")
class TransactionalState(Composite):
    """The state of a delivery that is sent or settled in a transaction."""

    txn_id: Binary = None
    outcome: Anything = None


@composite(0x40, "amqp:sasl-mechanisms:list", "sasl_server_mechanisms")
class SaslMechanisms(Composite):
    sasl_server_mechanisms: Symbols = None


@composite(0x41, "amqp:sasl-init:list", "mechanism")
class SaslInit(Composite):
    mechanism: Sym = None
    initial_response: Binary = field(default=None, repr=False)
    hostname: Text = None


@composite(0x44, "amqp:sasl-outcome:list", "code")
class SaslOutcome(Composite):
    """`code` 0 is ok, 1 is a failed authentication."""

    code: Int8 = 0
    additional_data: Binary = None
