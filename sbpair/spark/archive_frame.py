"""The archive of a replay as rows of a DataFrame: the columns of its files, and the message decoded.

The segments of `sbpair replay drain` are decoded in the same way; Spark itself reads them, as a stream of files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.amqp.message import Properties, Sections
from sbpair.amqp.types import Map, text_of
from sbpair.backlog import ALIASES
from sbpair.errors import ProtocolError, StateRefused, UsageError
from sbpair.message_io.message_fields import readable
from sbpair.move.message.body import body_content, content_text, plain_value
from sbpair.move.message.envelope import read_facts
from sbpair.move.message.route import Facts
from sbpair.replay.archive import EXPIRED, QUARANTINE, RECEIPT_FILE, REMOVED_FILE, SEGMENTS, Archive
from sbpair.replay.digests import FileDigest, check_files, for_each_file, messages_removed, without_digests
from sbpair.replay.ledger import OUTCOME
from sbpair.replay.run_description import load_run
from sbpair.replay.segment import SEGMENT, SEGMENT_IN_SPARK, SPARK_TYPES
from sbpair.replay.verify import check_segments
from sbpair.spark.write_run import check_names, choice
from sbpair.timespan import TICKS_PER_MICROSECOND

log = logging.getLogger(__name__)

READ_OPTIONS = ("path", "states", "columns", "unfinished")
STATES = (SEGMENTS, EXPIRED, QUARANTINE)
ROWS_PER_BATCH = 1_000

DECODED = {
    "state": "string",
    "reason": "string",
    "enqueued_at": "timestamp",
    "scheduled_at": "timestamp",
    "time_to_live": "interval day to second",
    "subject": "string",
    "correlation_id": "string",
    "reply_to": "string",
    "properties": "map<string,string>",
    "annotations": "map<string,string>",
    "body": "binary",
    "body_text": "string",
}
"""The columns that no file has. Those of a segment come before them."""

TYPES: Mapping[str, str] = {**{field.name: SPARK_TYPES[str(field.type)] for field in SEGMENT}, **DECODED}

EARLY_TYPES = ("string", "bigint", "int", "timestamp")
"""Types of columns by whose filters rows are chosen before they are decoded."""

SEGMENT_SCHEMA = SEGMENT_IN_SPARK
"""The schema of segments, for `readStream.schema`."""

READ_STREAM = (
    "a queue as a stream: sbpair replay drain QUEUE --archive ARCHIVE --run NAME --watch; then"
    ' spark.readStream.schema(sbpair.spark.SEGMENT_SCHEMA).parquet("ARCHIVE/NAME/segments")'
)

_TEXTS = pa.map_(pa.string(), pa.string())
_ARROW = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "interval day to second": pa.duration("us"),
    "map<string,string>": _TEXTS,
}


@dataclass(frozen=True, slots=True)
class ArchiveFrame:
    """The rows of one run: `files` are (state, path, digest if there is one), `columns` those to read.

    `filters` are those that Spark left to it: a row that does not pass them is not decoded.
    """

    url: str
    run: str
    states: tuple[str, ...]
    columns: tuple[str, ...]
    files: tuple[tuple[str, str, FileDigest | None], ...]
    filters: tuple[Any, ...] = ()

    @property
    def ddl(self) -> str:
        """The columns as Spark's schema."""
        return _ddl(self.columns)

    @classmethod
    def open(cls, options: Mapping[str, str], schema: Any = None) -> ArchiveFrame:
        """Check options and columns, and find the files. Raises UsageError, StateRefused, MachineLacks."""
        given = check_names(options, READ_OPTIONS)
        path = given.get("path", "").rstrip("/")
        url, _, run = path.rpartition("/")
        if not (url and run):
            raise UsageError(
                "path: expected ARCHIVE/RUN",
                hint=f"load the directory of a run: .load('/mnt/archive/RUN'); for {READ_STREAM}",
            )
        states = tuple(each.strip() for each in given.get("states", SEGMENTS).split(","))
        if wrong := [each for each in states if each not in STATES]:
            raise UsageError(f"option states: {wrong[0]!r} is unknown", hint=f"use some of {', '.join(STATES)}")
        unfinished = choice({name: value.lower() for name, value in given.items()}, "unfinished", ("false", "true"))
        archive = Archive(url, run)
        _check_run(archive, states, unfinished=unfinished == "true")
        files = [(state, path, None) for state in dict.fromkeys(states) for path in archive.files(state)]
        names = tuple(each.strip() for each in given["columns"].split(",")) if "columns" in given else tuple(TYPES)
        if wrong := [each for each in names if each not in TYPES or names.count(each) > 1]:
            why = "is unknown" if wrong[0] not in TYPES else "is given twice"
            raise UsageError(f"option columns: {wrong[0]!r} {why}", hint=f"use some of {', '.join(TYPES)}")
        return cls(url, run, states, names if schema is None else _columns(schema), tuple(files))

    def check_files(self) -> ArchiveFrame:
        """Return the frame with digests. Raises StateRefused for a file that is missing, broken, foreign or altered."""
        archive = Archive(self.url, self.run)
        run = load_run(archive)
        if not run.digests:
            log.warning(without_digests(run.id))
        checked = (check_segments if SEGMENTS in self.states else check_files)(archive, run)
        files = tuple((state, path, checked.digests.get(path)) for state, path, _ in self.files)
        unchecked = {path: state for state, path, _ in files if path not in checked.rows}
        for_each_file(lambda path: _check_file(archive, unchecked[path], path), unchecked)
        return replace(self, files=files)

    def filtered(self, filters: Sequence[Any]) -> ArchiveFrame:
        """Return the frame with those of Spark's filters that need no decoded message."""
        known = (each for each in filters if type(each).__name__ in (*_COMPARISONS, "In", "IsNull", "IsNotNull"))
        early = (each for each in known if TYPES.get(_column(each)) in EARLY_TYPES)
        chosen = [each for each in early if not any("message" in _needs(_column(each), s) for s in self.states)]
        return replace(self, filters=tuple(chosen))

    def read(self, state: str, path: str, digest: FileDigest | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file. Raises StateRefused for one that is broken, foreign or altered."""
        archive = Archive(self.url, self.run)
        _check_file(archive, state, path, digest)
        used = (*self.columns, *(_column(each) for each in self.filters))
        needed = sorted({name for each in used for name in _needs(each, state)} & {*_schema(state).names})
        with archive.parquet(path) as file:
            try:
                for stored in file.iter_batches(ROWS_PER_BATCH, columns=needed or ["queue"], use_threads=False):
                    rows = _Rows(state, stored)
                    for each in self.filters:
                        rows = rows.passing(each)
                    yield rows.decoded(self.columns)
            except (pa.ArrowException, OSError) as error:
                raise archive.broken(path, error) from error


def read(spark: Any, path: str, **options: str) -> Any:
    """Return the rows of an archived run as a DataFrame, with the options of the data source. Raises SbpairError."""
    frame = ArchiveFrame.open({"path": path, **options}).check_files()
    if not frame.files:
        return spark.createDataFrame([], frame.ddl)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield from frame.read(*frame.files[index])

    return spark.range(0, len(frame.files), 1, len(frame.files)).mapInArrow(task, frame.ddl)


def decoded(segments: Any) -> Any:
    """Return a DataFrame of segments, as Spark reads them by SEGMENT_SCHEMA, with the columns of `read`.

    It may be a stream. Messages are decoded by the workers.
    """

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield _Rows(SEGMENTS, batch).decoded(tuple(TYPES))

    return segments.mapInArrow(task, _ddl(TYPES))


def _ddl(columns: Iterable[str]) -> str:
    return ", ".join(f"{name} {TYPES[name]}" for name in columns)


def _schema(state: str) -> pa.Schema:
    return SEGMENT if state == SEGMENTS else OUTCOME


def _check_file(archive: Archive, state: str, path: str, digest: FileDigest | None = None) -> None:
    if digest is not None:
        digest.check(archive)
        return
    try:
        archive.check_footer(path, archive.footer(path), _schema(state))
    except StateRefused:
        if archive.exists(REMOVED_FILE) and not archive.exists(path):
            raise messages_removed(archive) from None
        raise


def _check_run(archive: Archive, states: Sequence[str], *, unfinished: bool) -> None:
    run = load_run(archive)
    if run.direct:
        raise UsageError(f"run {run.id} is direct: it archived no messages", hint="load a run of mode archive")
    if run.is_stream and not unfinished:
        text = f"run {run.id} is a stream, which has no end"
        raise UsageError(text, hint=f'read {READ_STREAM}; .option("unfinished", "true") reads the files there are')
    if SEGMENTS in states and archive.exists(REMOVED_FILE):
        raise messages_removed(archive)
    if not (unfinished or archive.exists(RECEIPT_FILE)):
        raise StateRefused(
            f"run {run.id} is still going, or was interrupted: not all of its messages may be archived",
            hint='wait for its end, resume it, or add .option("unfinished", "true") to read those there are',
        )


def _columns(schema: Any) -> tuple[str, ...]:
    """Return the columns of the user's schema. Raises UsageError for one that is unknown, or of another type."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kind != TYPES.get(field.name):
            expected = f"expected {TYPES[field.name]}" if field.name in TYPES else "unknown"
            raise UsageError(f"column {field.name}: {expected}, got {kind}", hint=f"columns are {', '.join(TYPES)}")
        if not field.nullable:
            raise UsageError(f"column {field.name}: NOT NULL, and it may be null", hint="leave out NOT NULL")
    names = tuple(schema.fieldNames())
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"column {twice[0]}: given twice", hint="name it once in the schema")
    if not names:
        raise UsageError("the schema has no column", hint="name one, or leave the schema out")
    return names


def _needs(column: str, state: str) -> tuple[str, ...]:
    """Return the file's columns that a column is made from."""
    stored = {"enqueued_at": "enqueued_at_ms", "scheduled_at": "scheduled_at_ms", "time_to_live": "ttl_ticks"}
    name = stored.get(column, column)
    if name in _schema(state).names or column in ("state", "reason"):
        return (name,)
    return ("message", "queue")


_COMPARISONS: Mapping[str, Callable[[pa.Array, Any], pa.Array]] = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "StringStartsWith": lambda array, value: pc.starts_with(array, value.as_py()),
    "StringEndsWith": lambda array, value: pc.ends_with(array, value.as_py()),
    "StringContains": lambda array, value: pc.match_substring(array, value.as_py()),
}
"""The comparisons of Spark's filters of these names. A null passes none of them, as in Spark."""


def _column(each: Any) -> str:
    return ".".join(each.attribute)


def _passes(each: Any, array: pa.Array) -> pa.Array:
    """Return which values of its column pass a filter of Spark."""
    match type(each).__name__:
        case "IsNull":
            return pc.is_null(array)
        case "IsNotNull":
            return pc.is_valid(array)
        case "In":
            return pc.is_in(array, pa.array(each.value, array.type), skip_nulls=True)
        case name:
            return _COMPARISONS[name](array, pa.scalar(each.value, array.type))


@dataclass
class _Message:
    """A message whose parts are decoded once, when they are first needed. Its facts stand in a segment's columns."""

    sections: Sections
    facts: Facts | None

    @cached_property
    def properties(self) -> Properties:
        return readable(self.sections.read_properties, Properties())

    @cached_property
    def content(self) -> Any:
        return readable(lambda: body_content(self.sections), (False, None))[1]

    @cached_property
    def text(self) -> str | None:
        return content_text(self.content, str(self.properties.content_encoding))

    @property
    def body(self) -> bytes | None:
        """The content of data sections, or the text or JSON of a value or of sequences."""
        found = self.content if isinstance(self.content, bytes) else self.text
        return found.encode(errors="replace") if isinstance(found, str) else found


class _Rows:
    """Some rows of a file, decoded as far as their columns are asked for."""

    def __init__(self, state: str, batch: pa.RecordBatch) -> None:
        self._state, self._batch = state, batch

    def passing(self, each: Any) -> _Rows:
        """Return the rows that pass a filter of Spark."""
        return _Rows(self._state, self._batch.filter(_passes(each, self.array(_column(each)))))

    def decoded(self, columns: Sequence[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*map(self.array, columns)], list(columns))

    def array(self, name: str) -> pa.Array:
        return pa.array(self.values(name), _ARROW[TYPES[name]])

    def values(self, name: str) -> Any:
        """Return a column's values, for an Arrow array of its type."""
        match name:
            case "state":
                return [self._state] * len(self._batch)
            case "enqueued_at" | "scheduled_at":
                return _scaled(self.values(f"{name}_ms"), lambda each: each * 1_000)
            case "time_to_live":
                return _scaled(self.values("ttl_ticks"), lambda each: each // TICKS_PER_MICROSECOND)
        if name in self._batch.schema.names:
            return self._batch.column(name)
        if name in _DECODERS:
            return [each and _DECODERS[name](each) for each in self._messages]
        if name in _OF_FACTS:
            return [each and getattr(each.facts, _OF_FACTS[name]) for each in self._messages]
        return [None] * len(self._batch)

    @cached_property
    def _messages(self) -> list[_Message | None]:
        columns = (self._batch.column(name).to_pylist() for name in ("queue", "message"))
        return [_message(self._state, queue, message) for queue, message in zip(*columns, strict=True)]


_OF_FACTS = {
    **{name: name for name in ("session_id", "ttl_ticks", "content_type", "size", "flaw")},
    "scheduled_at_ms": "scheduled_at",
}
"""Columns of a segment that the files of other states lack, by their names in a message's facts."""


def _message(state: str, queue: str, message: bytes | None) -> _Message | None:
    if message is None:
        return None
    try:
        return _Message(*((Sections.split(message), None) if state == SEGMENTS else read_facts(queue, message)))
    except ProtocolError:
        return None


def _scaled(values: Any, scale: Callable[[int], int]) -> list[int | None]:
    """Return scaled values; None for one that Spark's type cannot hold."""
    plain = values.to_pylist() if isinstance(values, pa.Array) else values
    scaled = (None if each is None else scale(each) for each in plain)
    return [each if each is None or -(1 << 63) <= each < 1 << 63 else None for each in scaled]


def _texts(pairs: Map) -> list[tuple[str, str | None]]:
    """Return a map's pairs as text, without the aliases: other columns have those. Values that are no text as JSON."""
    return [(str(plain_value(key)), _text(value)) for key, value in pairs.pairs if key not in ALIASES]


def _text(value: Any) -> str | None:
    plain = plain_value(value)
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain)


_DECODERS: Mapping[str, Callable[[_Message], Any]] = {
    "subject": lambda each: each.properties.subject,
    "correlation_id": lambda each: text_of(each.properties.correlation_id),
    "reply_to": lambda each: text_of(each.properties.reply_to),
    "properties": lambda each: _texts(readable(each.sections.read_application_properties, Map())),
    "annotations": lambda each: _texts(readable(each.sections.read_message_annotations, Map())),
    "body": lambda each: each.body,
    "body_text": lambda each: each.text,
}
