"""Rows of a DataFrame as messages: the columns and their types, and each row as AMQP sections with a stable key.

The rows of a partition are messages in order, without those that were sent, and are checked before one is sent: wrong
ones are counted by reason, and a file keeps the others until all are checked.
"""

from __future__ import annotations

import difflib
import marshal
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.amqp.types import Byte, Float, Int, Long, Short, Symbol, Timestamp, Value
from sbpair.backlog import check_path
from sbpair.errors import MachineLacks, NameInvalid, UsageError
from sbpair.timespan import TICKS_PER_MICROSECOND, ticks

if TYPE_CHECKING:
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

MAX_REASONS = 10
"""How many reasons an error names. Rows with others are counted."""

MEMORY_BYTES = 16 * 1024 * 1024
"""How much of a partition stays in memory. A larger one goes to Spark's directory of temporary files."""

_LENGTH_BYTES = 8


def check_schema(schema: Any, destination: str | None) -> bool:
    """Check a Spark schema. Returns whether its rows have ids. Raises UsageError for the first wrong column."""
    types = {}
    for column in schema.fields:
        if column.name not in COLUMNS:
            near = difflib.get_close_matches(column.name.lower(), COLUMNS, 1)
            raise UsageError(
                f"column {column.name}: unknown" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"use {', '.join(COLUMNS)}, and put your own names into properties",
            )
        if column.name in types:
            raise UsageError(f"column {column.name}: given twice", hint="select it once")
        types[column.name] = column.dataType
        accepted, needed = COLUMNS[column.name]
        if type(column.dataType).__name__ not in accepted or not _may_be_properties(column.dataType):
            raise UsageError(
                f"column {column.name}: expected {needed}, got {column.dataType.simpleString()}",
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


class PartitionRows:
    """The rows of a partition as messages, in order, without those that `was_sent` takes.

    `read` counts all rows so far, `destinations` the messages of each; `wrong` are the rows that are no messages.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        columns: MessageColumns,
        partition: int,
        was_sent: Callable[[RowMessage], bool],
        check_destination: Callable[[str], None],
    ) -> None:
        self.read = 0
        self.destinations = Counter[str]()
        self.wrong = WrongRows()
        self._batches, self._columns, self._partition = batches, columns, partition
        self._was_sent, self._check_destination = was_sent, check_destination
        self._unchecked: dict[str, str] = {}
        self._batch: Any = None
        self._at = 0

    def next(self, max_rows: int, max_bytes: int) -> list[RowMessage] | None:
        """Return the messages of the next rows, maybe none; None at the end. Counts the others by their faults."""
        batch = self._next_rows(max_rows, max_bytes)
        if batch is None:
            return None
        found = []
        for row in self._columns.messages(batch):
            if isinstance(row, UsageError):
                self.wrong.add(WrongRow(row.message, row.hint, self._place()))
            elif not self._was_sent(row):
                if row.destination not in self.destinations:
                    self._unchecked[row.destination] = self._place()
                self.destinations[row.destination] += 1
                found.append(row)
            self.read += 1
        return found

    def check_destinations(self) -> None:
        """Find out whether the destinations of the rows since the last call exist: rows with another are wrong."""
        for destination, place in self._unchecked.items():
            try:
                self._check_destination(destination)
            except UsageError as error:
                self.wrong.add(WrongRow(error.message, error.hint, place, self.destinations[destination]))
        self._unchecked = {}

    def check(self, max_rows: int, max_bytes: int, keep: Callable[[list[RowMessage]], None] = lambda _: None) -> None:
        """Read all rows, and give those that are messages to `keep`. Raises no error for wrong rows."""
        while (found := self.next(max_rows, max_bytes)) is not None:
            if found and not self.wrong.found:
                keep(found)
        self.check_destinations()

    def _place(self) -> str:
        return f"row {self.read} of partition {self._partition}"

    def _next_rows(self, max_rows: int, max_bytes: int) -> Any:
        while self._batch is None or self._at >= len(self._batch):
            self._batch, self._at = next(self._batches, None), 0
            if self._batch is None:
                return None
        count = min(max_rows, len(self._batch) - self._at)
        while count > 1 and self._batch.slice(self._at, count).nbytes > max_bytes:
            count //= 2
        self._at += count
        return self._batch.slice(self._at - count, count)


class WrongRow(NamedTuple):
    """Rows that are no messages for one reason. `first` is the place of the first one."""

    reason: str
    hint: str
    first: str
    rows: int = 1


@dataclass(slots=True)
class WrongRows:
    """The wrong rows so far by reason, in the order of their first ones."""

    found: dict[str, WrongRow] = field(default_factory=dict)
    others: int = 0

    def add(self, row: WrongRow) -> None:
        if known := self.found.get(row.reason):
            self.found[row.reason] = known._replace(rows=known.rows + row.rows)
        elif len(self.found) < MAX_REASONS:
            self.found[row.reason] = row
        else:
            self.others += row.rows

    def check(self, sent: str = "") -> None:
        """Raise UsageError if there are any. `sent` ends its message, with the rows sent before."""
        if not self.found:
            return
        named = [f"{each.first}: {each.reason}{_more(each.rows - 1)}" for each in self.found.values()]
        if self.others:
            named.append(f"{self.others} rows for other reasons")
        hints = dict.fromkeys(each.hint for each in self.found.values())
        raise UsageError("; ".join([*named, sent] if sent else named), hint="; ".join(hints))


def _more(rows: int) -> str:
    return f" (and {rows} more row{'' if rows == 1 else 's'})" if rows else ""


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """The rows of one partition that were checked and not sent."""

    rows: int = 0
    destinations: Mapping[str, int] = field(default_factory=dict)
    wrong: Sequence[WrongRow] = ()
    others: int = 0


def check_rows(parts: Iterable[CheckCounts]) -> dict[str, object]:
    """Return the counts of all partitions as a document. Raises UsageError if a row is no message."""
    wrong, rows, destinations = WrongRows(), 0, Counter[str]()
    for part in parts:
        rows += part.rows
        destinations.update(part.destinations)
        for each in part.wrong:
            wrong.add(WrongRow(*each))
        wrong.others += part.others
    wrong.check("nothing was sent")
    return {"schema": "sbpair/spark-check/1", "rows": rows, "destinations": dict(destinations)}


class RowSpool:
    """The messages of a partition in a file without a name, which is written once, then read once."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._directory = _local_directory()
        self._file = SpooledTemporaryFile(memory_bytes, dir=self._directory)  # noqa: SIM115  # it outlives this block

    def add(self, rows: Sequence[RowMessage]) -> None:
        """Append rows that are later read together. Raises MachineLacks if the disk is full."""
        content = marshal.dumps([_marshalled(each) for each in rows])
        with self._reporting():
            self._file.write(len(content).to_bytes(_LENGTH_BYTES))
            self._file.write(content)

    def rewind(self) -> None:
        """Return to the first rows. Raises MachineLacks if the disk is full."""
        with self._reporting():
            self._file.seek(0)

    def read(self) -> list[RowMessage] | None:
        """Return the rows of the next `add`; None at the end."""
        length = int.from_bytes(self._file.read(_LENGTH_BYTES))
        if not length:
            return None
        values = marshal.loads(self._file.read(length))  # noqa: S302  # this object wrote it
        return [_unmarshalled(*each) for each in values]

    def close(self) -> None:
        with suppress(OSError):  # the rest did not fit on the disk
            self._file.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MachineLacks(
                f"{self._directory} of this worker cannot keep the checked rows: {error.strerror or error}",
                hint="make room there, use more partitions, or add option check=row",
            ) from error


def _marshalled(row: RowMessage) -> tuple[object, ...]:
    sections = row.sections
    return *row[:-1], sections.properties, sections.application_properties, sections.body


def _unmarshalled(*values: Any) -> RowMessage:
    *row, properties, application_properties, body = values
    sections = Sections(properties=properties, application_properties=application_properties, body=body)
    return RowMessage._make((*row, sections))


def _local_directory() -> str:
    """Return the directory that Spark gives its workers for temporary files, or that of this machine."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((each for each in given if each and Path(each).is_dir()), gettempdir())
