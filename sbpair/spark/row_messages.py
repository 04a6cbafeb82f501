"""Rows of a DataFrame as messages: the columns and their types, and each row as AMQP sections with a stable key."""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Byte, Float, Int, Long, Short, Symbol, Timestamp
from sbpair.backlog import check_path
from sbpair.errors import NameInvalid, UsageError
from sbpair.timespan import ticks

if TYPE_CHECKING:
    from sbpair.amqp.types import Value
    from sbpair.replay.ledger import Key

TEXT = frozenset({"StringType", "CharType", "VarcharType"})
WHOLE = frozenset({"ByteType", "ShortType", "IntegerType", "LongType"})
PROPERTY = TEXT | WHOLE | {"BooleanType", "FloatType", "DoubleType", "TimestampType", "BinaryType"}
PROPERTIES_NEED = "a map from string, or a struct, of strings, numbers, booleans, timestamps or binary"
COLUMNS: Mapping[str, tuple[frozenset[str], str]] = {
    "body": (TEXT | {"BinaryType"}, "binary or string"),
    "id": (TEXT | WHOLE, "string or a whole number"),
    "message_id": (TEXT, "string"),
    "session_id": (TEXT, "string"),
    "subject": (TEXT, "string"),
    "correlation_id": (TEXT, "string"),
    "content_type": (TEXT, "string"),
    "time_to_live": (TEXT | WHOLE | {"DayTimeIntervalType"}, "a day-time interval, seconds or a string such as 90s"),
    "scheduled_at": (frozenset({"TimestampType"}), "timestamp"),
    "properties": (frozenset({"MapType", "StructType"}), PROPERTIES_NEED),
    "destination": (TEXT, "string"),
}
"""The columns of a message by name, with the Spark types that each accepts."""

TICKS_PER_MICROSECOND = 10


def check_schema(schema: Any, destination: str | None) -> bool:
    """Check a Spark schema. Returns whether its rows have ids. Raises UsageError for the first wrong column."""
    types = {}
    for field in schema.fields:
        if field.name not in COLUMNS:
            near = difflib.get_close_matches(field.name.lower(), COLUMNS, 1)
            raise UsageError(
                f"column {field.name}: unknown" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"use {', '.join(COLUMNS)}, and put your own names into properties",
            )
        if field.name in types:
            raise UsageError(f"column {field.name}: given twice", hint="select it once")
        types[field.name] = field.dataType
        accepted, needed = COLUMNS[field.name]
        if type(field.dataType).__name__ not in accepted or not _may_be_properties(field.dataType):
            raise UsageError(
                f"column {field.name}: expected {needed}, got {field.dataType.simpleString()}",
                hint="cast it in a select before the write",
            )
    if "body" not in types:
        raise UsageError("column body: missing", hint="select the content of the messages as body: binary or string")
    if ("destination" in types) == (destination is not None):
        both = destination is not None
        raise UsageError(
            "destination: given as an option and as a column" if both else "destination: missing",
            hint="keep one of them" if both else 'add .option("destination", "QUEUE"), or a column destination',
        )
    return not types.keys().isdisjoint(("id", "message_id"))


def _may_be_properties(data_type: Any) -> bool:
    match type(data_type).__name__:
        case "MapType":
            return {type(data_type.keyType).__name__} <= TEXT and type(data_type.valueType).__name__ in PROPERTY
        case "StructType":
            names, kinds = data_type.fieldNames(), {type(field.dataType).__name__ for field in data_type.fields}
            return len(names) == len({*names}) and kinds <= PROPERTY
    return True


class RowMessage(NamedTuple):
    """A row as a message. `number` and `content` are digests that identify it, by its id or else by its content."""

    destination: str
    session_id: str | None
    ttl_ticks: int | None
    scheduled_ms: int | None
    message_id: str
    number: int
    content: int
    sections: Sections

    def key(self, scope: str) -> Key:
        return (scope, self.number, self.content, self.message_id)


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The way from record batches to messages. `has_ids` is whether rows have ids, which must then not be null."""

    destination: str | None
    has_ids: bool

    def messages(self, batch: pa.RecordBatch) -> Iterator[RowMessage | UsageError]:
        """Yield each row as a message, or the error that names its wrong column."""
        names = batch.schema.names
        lists = [_values(name, batch.column(at)) for at, name in enumerate(names)]
        for values in zip(*lists, strict=True):
            try:
                yield self._message(dict(zip(names, values, strict=True)))
            except UsageError as error:
                yield error

    def _message(self, row: dict[str, Any]) -> RowMessage:
        body, given = row["body"], row.get("message_id")
        if body is None:
            raise UsageError("column body: null", hint="filter such rows out, or use coalesce(body, '')")
        name = "id" if "id" in row else "message_id"
        identity = row.get(name)
        if self.has_ids and identity in (None, ""):
            raise UsageError(
                f"column {name}: null or empty: a row that is sent once needs an id",
                hint="give each row an id, or leave the column out and do without a resume",
            )
        destination = row["destination"] if self.destination is None else self.destination
        if not destination:
            raise UsageError("column destination: null or empty", hint="filter such rows out, or name a queue")
        check_destination("column destination", destination)
        message_id = given or (str(identity) if identity is not None else uuid.uuid4().hex)
        ttl, scheduled_ms, session = row.get("time_to_live"), row.get("scheduled_at"), row.get("session_id")
        if isinstance(ttl, UsageError):
            raise ttl
        subject, correlation_id, content_type = map(row.get, ("subject", "correlation_id", "content_type"))
        if not (content_type or "").isascii():
            raise UsageError("column content_type: has other characters than ASCII", hint="write it as text/plain")
        properties = encode_map(APPLICATION_PROPERTIES, row.get("properties") or {})
        described = (destination.lower(), ttl, scheduled_ms, session, subject, correlation_id, content_type, given)
        number, content = _digest(described, properties, body)
        if identity is not None:
            number, _ = _digest((str(identity), destination.lower()))
        common = Properties(
            message_id=message_id,
            subject=subject,
            correlation_id=correlation_id,
            content_type=None if content_type is None else Symbol(content_type),
            group_id=session or None,
        )
        sections = Sections(properties=common.encode(), application_properties=properties, body=data_body(body))
        return RowMessage(destination, session or None, ttl, scheduled_ms, message_id, number, content, sections)


@lru_cache(4_096)
def check_destination(place: str, destination: str) -> None:
    """Raise UsageError, naming the place, for a path that Service Bus rejects."""
    try:
        check_path(destination, shorten="name a queue or a topic")
    except NameInvalid as error:
        raise UsageError(f"{place}: {error.message}", hint=error.hint) from None


def _digest(described: tuple[object, ...], *rest: bytes) -> tuple[int, int]:
    """Return two signed 64-bit numbers that stand for the values. They are the same in every process."""
    parts = repr(described).encode(errors="surrogatepass"), *rest
    lengths = repr(list(map(len, parts))).encode()
    whole = blake2b(b"".join((lengths, *parts)), digest_size=16).digest()
    return int.from_bytes(whole[:8], signed=True), int.from_bytes(whole[8:], signed=True)


def _values(name: str, column: pa.Array) -> Sequence[Any]:
    """Return a column's values as a message has them."""
    kind = column.type
    match name:
        case "body":
            return column.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
        case "properties":
            return _properties(column)
        case "scheduled_at":
            moments = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
            return [None if each is None else each // 1_000 for each in moments]
        case "time_to_live" if pa.types.is_duration(kind):
            spans = column.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
            return [None if each is None else _positive(each * TICKS_PER_MICROSECOND) for each in spans]
        case "time_to_live":
            return [None if each is None else _ticks(str(each)) for each in column.to_pylist()]
    return column.to_pylist()  # type: ignore[no-any-return]


def _ticks(text: str) -> int | UsageError:
    try:
        return _positive(ticks(text))
    except UsageError as error:
        return UsageError(f"column time_to_live: {error.message}", hint=error.hint)


def _positive(count: int) -> int | UsageError:
    """Return a time to live, or the error of the row that has it."""
    if count > 0:
        return count
    return UsageError("column time_to_live: not greater than 0", hint="use null for a message that never expires")


def _properties(column: pa.Array) -> list[dict[str, Value] | None]:
    kind = column.type
    if pa.types.is_map(kind):
        wrap = _wrapper(kind.item_type)
        rows = column.cast(pa.map_(kind.key_type, pa.int64())) if pa.types.is_timestamp(kind.item_type) else column
        # A null is a value of a map, and the absence of a field of a struct.
        return [
            None if pairs is None else {key: None if value is None else wrap(value) for key, value in pairs}
            for pairs in rows.to_pylist()
        ]
    wraps = {each.name: _wrapper(each.type) for each in kind}
    numbers = [each.with_type(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in kind]
    rows = column if numbers == [*kind] else column.cast(pa.struct(numbers))
    return [
        None if row is None else {name: wraps[name](value) for name, value in row.items() if value is not None}
        for row in rows.to_pylist()
    ]


def _wrapper(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that gives a value of an Arrow type its AMQP type. Timestamps are numbers here."""
    if pa.types.is_timestamp(kind):  # Python's datetime has fewer years than Spark's
        return lambda microseconds: Timestamp(microseconds // 1_000)
    return _WRAPPERS.get(kind, lambda value: value)


_WRAPPERS = {pa.int8(): Byte, pa.int16(): Short, pa.int32(): Int, pa.int64(): Long, pa.float32(): Float}
