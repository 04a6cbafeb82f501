"""Rows as messages: each column arrives with its type, and a wrong one is refused before anything is sent."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from sbpair.amqp.types import Byte, Float, Int, Long, Short, Timestamp
from sbpair.errors import UsageError
from tests.replay.world import World
from tests.spark.writes import BINARY, ROWS, TEXT, numbered, start, write

MOMENT = datetime(2030, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
MOMENT_MS = int(MOMENT.timestamp() * 1000)
UTC_TIME = pa.timestamp("us", "UTC")
MAP = types.MapType(TEXT, TEXT)


def test_every_column_arrives_with_its_type(place: World, tmp_path: Path) -> None:
    own = {
        "text": (TEXT, "ü"),
        "truth": (types.BooleanType(), True),
        "tiny": (types.ByteType(), -1),
        "small": (types.ShortType(), 300),
        "whole": (types.IntegerType(), 1),
        "big": (types.LongType(), 2),
        "single": (types.FloatType(), 0.5),
        "double": (types.DoubleType(), 0.25),
        "bytes": (BINARY, b"\xff"),
        "moment": (types.TimestampType(), MOMENT),
        "absent": (TEXT, None),
    }
    arrow = [pa.string(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
    arrow += [pa.binary(), UTC_TIME, pa.string()]
    struct = types.StructType([types.StructField(name, kind) for name, (kind, _) in own.items()])
    columns: dict[str, Any] = {"message_id": TEXT, "session_id": TEXT, "subject": TEXT, "correlation_id": TEXT}
    columns |= {"content_type": TEXT, "time_to_live": types.DayTimeIntervalType(), "body": TEXT, "properties": struct}
    row = {"message_id": "m1", "session_id": "s", "subject": "t", "correlation_id": "c", "content_type": "text/plain"}
    row |= {"time_to_live": timedelta(seconds=90), "body": "größe", "properties": {k: v for k, (_, v) in own.items()}}
    kinds = [pa.string()] * 5 + [pa.duration("us"), pa.string()]
    kinds.append(pa.struct(list(zip(own, arrow, strict=True))))
    job = start(place, tmp_path, columns)
    write(job, pa.RecordBatch.from_pylist([row], pa.schema(list(zip(columns, kinds, strict=True)))))
    [message] = place.arrived()["orders"]
    found = message.sections.read_properties()
    assert (found.message_id, found.group_id, found.subject) == ("m1", "s", "t")
    assert (found.correlation_id, found.content_type) == ("c", "text/plain")
    assert [each for _, each in message.sections.read_body()] == ["größe".encode()]
    assert message.sections.read_header().ttl == 90_000
    values = dict(message.sections.read_application_properties().pairs)
    assert {name: type(value) for name, value in values.items()} == {
        "text": str,
        "truth": bool,
        "tiny": Byte,
        "small": Short,
        "whole": Int,
        "big": Long,
        "single": Float,
        "double": float,
        "bytes": bytes,
        "moment": Timestamp,
    }
    assert values == {name: value for name, (_, value) in own.items() if value is not None} | {"moment": MOMENT_MS}


def test_schedule_destination_and_map_of_properties_arrive(place: World, tmp_path: Path) -> None:
    columns = {"id": types.LongType(), "destination": TEXT, "scheduled_at": types.TimestampType(), "properties": MAP}
    job = start(place, tmp_path, {**columns, "body": BINARY, "time_to_live": TEXT})
    texts = pa.map_(pa.string(), pa.string())
    rows = {
        "id": pa.array([1, 2]),
        "destination": pa.array(["orders", "invoices"]),
        "scheduled_at": pa.array([MOMENT, None], UTC_TIME),
        "properties": pa.array([[("x-ms-path", "kept"), ("none", None)], None], texts),
        "body": pa.array([b"a", b"b"]),
        "time_to_live": pa.array(["PT1M", None]),
    }
    receipt = write(job, pa.record_batch(rows))
    assert receipt["destinations"] == {"orders": 1, "invoices": 1}
    [order], [invoice] = (place.arrived()[name] for name in ("orders", "invoices"))
    assert dict(order.sections.read_message_annotations().pairs)["x-opt-scheduled-enqueue-time"] == MOMENT_MS
    assert dict(order.sections.read_application_properties().pairs) == {"x-ms-path": "kept", "none": None}
    assert order.sections.read_properties().message_id == "1", "the id is the message's, without a message_id"
    assert invoice.sections.read_header().ttl != 60_000


STRUCT = types.StructType([types.StructField("d", types.DateType())])
TWICE = types.StructType([types.StructField("a", TEXT), types.StructField("a", TEXT)])
BAD_SCHEMAS = {
    "column body: missing": {"id": TEXT},
    "column Body: unknown; did you mean body?": {"Body": BINARY},
    "column body: expected binary or string, got int": {"body": types.IntegerType()},
    "column message_id: expected string, got bigint": {"body": BINARY, "message_id": types.LongType()},
    "column scheduled_at: expected timestamp, got timestamp_ntz": {
        "body": BINARY,
        "scheduled_at": types.TimestampNTZType(),
    },
    "column time_to_live: expected a day-time interval": {"body": BINARY, "time_to_live": types.DoubleType()},
    "column properties: expected a map from string": {"body": BINARY, "properties": types.MapType(BINARY, TEXT)},
    "column properties: expected a map from string, or a struct": {"body": BINARY, "properties": STRUCT},
    "column properties: expected a map from string, or a struct, of": {"body": BINARY, "properties": TWICE},
}


@pytest.mark.parametrize("message", BAD_SCHEMAS)
def test_a_wrong_column_is_refused_by_name(message: str, place: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        start(place, tmp_path, BAD_SCHEMAS[message])
    assert refused.value.message.startswith(message)
    assert refused.value.hint


ONE: dict[str, list[Any]] = {"id": ["a"], "body": [b""]}
BAD_ROWS: dict[str, dict[str, list[Any]]] = {
    "row 1 of partition 0: column id: null or empty": {"id": ["a", None], "body": [b"", b""]},
    "row 1 of partition 0: column body: null": {"id": ["a", "b"], "body": [b"", None]},
    "row 0 of partition 0: column destination: null": {**ONE, "destination": [None]},
    "row 0 of partition 0: column destination: 'a b'": {**ONE, "destination": ["a b"]},
    "row 1 of partition 0: column destination: there is no queue or topic 'nowhere' in contoso": {
        "id": ["a", "b"],
        "body": [b"", b""],
        "destination": ["orders", "nowhere"],
    },
    "row 0 of partition 0: column time_to_live: expected a duration": {**ONE, "time_to_live": ["soon"]},
    "row 0 of partition 0: column time_to_live: not greater than 0": {**ONE, "time_to_live": ["0"]},
    "row 0 of partition 0: column content_type: has other characters than ASCII": {**ONE, "content_type": ["größe"]},
}


@pytest.mark.parametrize("message", BAD_ROWS)
def test_a_wrong_row_ends_its_task_by_column_and_row(message: str, place: World, tmp_path: Path) -> None:
    rows = BAD_ROWS[message]
    job = start(place, tmp_path, {name: BINARY if name == "body" else TEXT for name in rows})
    arrays = {name: pa.array(values, pa.binary() if name == "body" else pa.string()) for name, values in rows.items()}
    with pytest.raises(UsageError) as refused:
        write(job, pa.record_batch(arrays))
    assert refused.value.message.startswith(message)
    assert place.ids() == []


def test_values_beyond_those_of_python_arrive(place: World, tmp_path: Path) -> None:
    far, long = 2**60, "999999999999w"
    struct = types.StructType([types.StructField("far", types.TimestampType())])
    for kind, arrow, value in (
        (struct, pa.struct([("far", UTC_TIME)]), {"far": far}),
        (types.MapType(TEXT, types.TimestampType()), pa.map_(pa.string(), UTC_TIME), [("far", far)]),
    ):
        job = start(place, tmp_path, {**ROWS, "properties": kind, "time_to_live": TEXT}, run=kind.typeName())
        properties = pa.array([value], arrow)
        write(job, pa.record_batch({"id": ["m"], "body": [b""], "properties": properties, "time_to_live": [long]}))
    for message in place.arrived()["orders"]:
        assert dict(message.sections.read_application_properties().pairs) == {"far": far // 1000}


def test_rows_larger_than_a_batch_are_all_sent(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path)
    rows = numbered(range(12))
    large = rows.set_column(1, "body", pa.array([b"%d" % n * 100_000 for n in range(12)]))
    receipt = write(job, [large, numbered(range(12, 2_500))])
    assert (receipt["rows"], receipt["acknowledged"], receipt["balanced"]) == (2_500, 2_500, True)
    assert sorted(place.ids()) == sorted(f"m{n}" for n in range(2_500))
