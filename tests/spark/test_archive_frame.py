"""The rows of an archive: every column, decoded from any message, and the runs that are refused."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types

from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Properties,
    Sections,
    data_body,
    encode_map,
    value_body,
)
from sbpair.amqp.types import Long, Map, Symbol
from sbpair.backlog import Aliases, write_aliases
from sbpair.errors import SbpairError, StateRefused, UsageError
from sbpair.replay.archive import DRAINED_FILE, EXPIRED, QUARANTINE, RECEIPT_FILE, REMOVED_FILE, RUN_FILE, Archive
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.run_description import ReplayMode, ReplayOptions, ReplayRun, save_run
from sbpair.replay.segment import SEGMENT
from sbpair.spark.archive_frame import TYPES, ArchiveFrame
from tests.move.test_binary_xml import BODIES
from tests.replay.object_store import Store
from tests.replay.segments import QUEUE
from tests.spark.writes import BINARY, TEXT, schema_of

RUN = ReplayRun("r1", {"primary": "contoso", "secondary": "contoso-dr"}, (QUEUE,), 1, 1_000, ReplayOptions())
OWN: dict[Any, Any] = {"text": "a", "number": Long(5), "truth": True, **write_aliases(Aliases("orders", "s", 10**7))}


def message(body: bytes, **properties: Any) -> bytes:
    return Sections(
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, {Symbol("x-opt-own"): "kept"}),
        properties=Properties(message_id="m1", **properties).encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, OWN),
        body=body,
    ).join()


def put(archive: Archive, *messages: bytes) -> None:
    """Archive messages as one segment, of a run that has ended."""
    if not archive.exists(RUN_FILE):
        save_run(archive, RUN)
        archive.write_json(RECEIPT_FILE, {})
    values = {"segment": "one", "queue": QUEUE, "sequence_number": 7, "enqueued_at_ms": 1_500, "destination": "orders"}
    rows = [{**values, "position": at, "ttl_ticks": 25, "size": 1, "message": each} for at, each in enumerate(messages)]
    archive.write_table(f"segments/{QUEUE}/one.parquet", pa.Table.from_pylist(rows, schema=SEGMENT), 1)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path), "r1")


def frame(archive: Archive, schema: Any = None, **options: str) -> list[dict[str, Any]]:
    found = ArchiveFrame.open({"path": f"{archive.url}/{archive.run}", **options}, schema).check_files()
    return [row for file in found.files for batch in found.read(*file) for row in batch.to_pylist()]


def test_a_message_is_decoded_into_columns(archive: Archive) -> None:
    put(archive, message(data_body("größe".encode()), subject="t", correlation_id="c", reply_to="back"))
    [row] = frame(archive)
    assert list(row) == list(TYPES)
    assert (row["state"], row["destination"], row["body_text"]) == ("segments", "orders", "größe")
    assert row["body"] == "größe".encode()
    assert (row["subject"], row["correlation_id"], row["reply_to"]) == ("t", "c", "back")
    assert dict(row["properties"]) == {"text": "a", "number": "5", "truth": "true"}
    assert dict(row["annotations"]) == {"x-opt-own": "kept"}
    assert row["enqueued_at"].timestamp() == 1.5
    assert (row["time_to_live"].microseconds, row["scheduled_at"], row["reason"]) == (2, None, None)


def test_a_stored_archive_is_read(store: Store) -> None:
    archive = Archive("s3://bucket/backlog", RUN.id)
    put(archive, message(b""))
    assert (len(frame(archive)), len(store.objects) > 2) == (1, True)


def test_bodies_of_any_kind_are_columns(archive: Archive) -> None:
    text, plain = data_body(BODIES["string-markup"]), data_body(b"1") * 2
    bodies = data_body(b"\xff"), value_body("text"), value_body(Map([("a", Long(1))])), text, plain, b""
    put(archive, *map(message, bodies), b"no message")
    found = [(row["body"], row["body_text"]) for row in frame(archive)]
    assert found[:2] == [(b"\xff", None), (b"text", "text")]
    assert json.loads(found[2][1]) == {"a": 1}
    assert found[3] == (BODIES["string-markup"], '<a href="x">&amp; ]]> \t\r\n end</a>')
    assert found[4:] == [(b"11", "11"), (b"", ""), (None, None)]


def test_messages_that_were_not_sent_have_the_same_columns(archive: Archive) -> None:
    put(archive)
    for kind in (EXPIRED, QUARANTINE):
        entry = Entry((QUEUE, 7, 1_500, "m1"), "orders", f"why: {kind}", message(data_body(b"x")))
        Ledger(archive, 1).write(kind, 0, [entry])
    rows = frame(archive, states="expired, quarantine")
    assert [(row["state"], row["reason"], row["body"]) for row in rows] == [
        ("expired", "why: expired", b"x"),
        ("quarantine", "why: quarantine", b"x"),
    ]
    assert [(row["session_id"], row["ttl_ticks"], row["time_to_live"].seconds) for row in rows] == [("s", 10**7, 1)] * 2


def test_a_schema_chooses_columns(archive: Archive) -> None:
    put(archive, message(data_body(b"x")))
    chosen = [{"body": b"x", "state": "segments"}]
    assert frame(archive, schema_of({"body": BINARY, "state": TEXT})) == frame(archive, columns="body, state") == chosen


LATE = datetime.fromtimestamp(2, UTC)
FILTERS: dict[tuple[str, str, Any], tuple[int, ...]] = {
    ("EqualTo", "session_id", "b"): (1,),
    ("GreaterThan", "position", 1): (2, 3),
    ("GreaterThanOrEqual", "session_id", "b"): (1, 3),
    ("LessThan", "enqueued_at", LATE): (0, 1, 2, 3),
    ("GreaterThan", "enqueued_at", LATE): (),
    ("LessThanOrEqual", "ttl_ticks", 25): (0, 1, 2, 3),
    ("StringStartsWith", "session_id", "b"): (1, 3),
    ("StringEndsWith", "session_id", "c"): (3,),
    ("StringContains", "state", "men"): (0, 1, 2, 3),
    ("In", "session_id", ("a", "bc", None)): (0, 3),
    ("IsNull", "session_id", None): (2,),
    ("IsNotNull", "session_id", None): (0, 1, 3),
}


@pytest.mark.parametrize("given", FILTERS, ids=str)
def test_a_row_that_a_filter_leaves_out_is_not_decoded(given: tuple[str, str, Any], archive: Archive) -> None:
    put(archive, *(message(data_body(each)) for each in (b"0", b"1", b"2", b"3")))
    [path] = archive.files("segments")
    sessions = pa.array(["a", "b", None, "bc"])
    table = archive.read_table(path)
    archive.write_table(path, table.set_column(7, SEGMENT.field(7), sessions).replace_schema_metadata(None), 1)
    filters = [given, ("EqualTo", "body_text", "2"), ("Not", "session_id", None), ("LessThan", "time_to_live", 1)]
    made = [type(name, (SimpleNamespace,), {})(attribute=(column,), value=value) for name, column, value in filters]
    found = ArchiveFrame.open({"path": f"{archive.url}/{archive.run}", "columns": "body"}).filtered(made)
    assert found.filters == (made[0],)
    [rows] = [batch.column("body").to_pylist() for batch in found.read(*found.files[0])]
    assert rows == [b"%d" % at for at in FILTERS[given]]
    stored = given[1] not in ("session_id", "ttl_ticks", "position")
    assert replace(found, states=(EXPIRED,)).filtered(made).filters == ((made[0],) if stored else ())


BAD_SCHEMAS = {
    "column colour: unknown, got string": [types.StructField("colour", TEXT)],
    "column size: expected bigint, got int": [types.StructField("size", types.IntegerType())],
    "column body: given twice": [types.StructField("body", BINARY)] * 2,
    "column body: NOT NULL": [types.StructField("body", BINARY, nullable=False)],
    "the schema has no column": [],
}


@pytest.mark.parametrize("expected", BAD_SCHEMAS)
def test_a_schema_that_no_row_can_have_is_refused(archive: Archive, expected: str) -> None:
    put(archive, message(data_body(b"x")))
    with pytest.raises(UsageError, match=expected):
        frame(archive, types.StructType(BAD_SCHEMAS[expected]))


def refused(archive: Archive, **options: str) -> str:
    with pytest.raises(SbpairError) as found:
        frame(archive, **options)
    assert found.value.hint
    return found.value.message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sbpair.version", "2", "has version 2; expected 1"),
        ("sbpair.run", "r2", "belongs to run r2, not r1"),
        ("", "", "is broken"),
    ],
)
def test_a_wrong_file_is_refused_before_the_first_row(archive: Archive, name: str, value: str, message: str) -> None:
    put(archive, b"")
    whole = Path(archive.root, archive.files("segments")[0])
    wrong, table = whole.with_name("zzz.parquet"), pq.read_table(whole)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, name.encode(): value.encode()}), wrong)
    if not name:
        wrong.write_bytes(wrong.read_bytes()[:-9])
    found = ArchiveFrame.open({"path": archive.root})
    with pytest.raises(StateRefused, match=rf"zzz\.parquet {message}"):
        found.check_files()


def test_a_run_without_all_of_its_messages_is_refused(archive: Archive) -> None:
    put(archive, message(data_body(b"x")))
    archive.remove(RECEIPT_FILE)
    assert "is still going, or was interrupted" in refused(archive)
    assert len(frame(archive, unfinished="true")) == 1
    archive.write_json(REMOVED_FILE, {})
    with pytest.raises(StateRefused, match="were removed by sbpair replay gc"):
        frame(archive, unfinished="true")


def test_a_run_without_one_of_its_segments_is_refused(archive: Archive) -> None:
    put(archive, message(data_body(b"x")))
    archive.write_json(DRAINED_FILE, {"messages": 1})
    opened = ArchiveFrame.open({"path": archive.root})
    assert len(frame(archive)) == 1
    [segment] = archive.files("segments")
    archive.remove(segment)
    assert "segments holds 0 messages, and 1 were drained into it" in refused(archive)
    assert frame(archive, states="quarantine") == []
    archive.write_json(REMOVED_FILE, {})
    with pytest.raises(StateRefused, match="were removed by sbpair replay gc"):
        [*opened.read(*opened.files[0])]


def test_times_that_spark_cannot_hold_are_null(archive: Archive) -> None:
    put(archive, message(data_body(b"x")))
    [segment] = archive.files("segments")
    table = archive.read_table(segment)
    for name in ("scheduled_at_ms", "ttl_ticks"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array([2**63 - 1], pa.int64()))
    archive.write_table(segment, table.replace_schema_metadata(None), 1)
    [row] = frame(archive, schema_of({"scheduled_at": types.TimestampType(), "scheduled_at_ms": types.LongType()}))
    assert row == {"scheduled_at": None, "scheduled_at_ms": 2**63 - 1}
    [lives] = frame(archive, schema_of({"time_to_live": types.DayTimeIntervalType()}))
    assert lives["time_to_live"].days == 10_675_199


def test_wrong_options_and_other_runs_are_refused(archive: Archive) -> None:
    assert "path: expected ARCHIVE/RUN" in refused(archive, path="r1")
    assert f"there is no run r1 in {archive.url}" in refused(archive)
    put(archive)
    assert "option states: 'ledger' is unknown" in refused(archive, states="segments,ledger")
    assert "option destination is unknown" in refused(archive, destination="orders")
    assert "option columns: 'colour' is unknown" in refused(archive, columns="body,colour")
    assert "option columns: 'body' is given twice" in refused(archive, columns="body, body")
    assert "option unfinished: expected false or true, got 'yes'" in refused(archive, unfinished="yes")
    direct = replace(RUN, options=ReplayOptions(mode=ReplayMode.DIRECT))
    archive.write_json(RUN_FILE, direct.document())
    assert "run r1 is direct: it archived no messages" in refused(archive)
