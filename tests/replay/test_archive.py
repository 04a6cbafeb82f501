"""An archive's files are whole or absent, and refused if broken or another run's; the proof is computed from them."""

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import DEFAULT, Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import FileInfo, FileType

from sbpair import errors
from sbpair.cli.render.receipt import proof_lines
from sbpair.model.document import encoded
from sbpair.replay import run_description as runs
from sbpair.replay.archive import (
    ACCEPTED_BEFORE_LINES,
    ACCEPTED_FILE,
    DEDUPLICATED,
    DOUBTFUL,
    DOUBTFUL_FILE,
    DRAINED_FILE,
    EXPIRED,
    HELD,
    LEDGER,
    QUARANTINE,
    RECEIPT_FILE,
    REMOVED_FILE,
    RUN_FILE,
    SEGMENTS,
    Archive,
    find_archive,
)
from sbpair.replay.ledger import Entry, Key, Ledger
from sbpair.replay.outcomes import Proof, replay_receipt
from sbpair.replay.queue_task import load_accepted
from sbpair.replay.run_description import EVERYTHING, ReplayMode, ReplayOptions, ReplayRun, ReplaySelection
from sbpair.replay.verify import LIMITS, GarbageCollection, Limits, invalidate_receipt, plan_gc, remove_messages, verify
from tests.replay.segments import QUEUE, key, write_segment

RUN = ReplayRun(
    "r1", {"primary": "contoso", "secondary": "contoso-dr"}, (QUEUE, QUEUE + "1"), 4, 1_000, ReplayOptions()
)
OPTIONS: dict[str, Any] = RUN.document()["options"]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    made = Archive(str(tmp_path), RUN.id)
    runs.save_run(made, RUN)
    return made


def test_a_directory_that_is_made_while_it_is_listed_is_listed(archive: Archive) -> None:
    archive.write(f"{LEDGER}/one", b"1234")
    looks = Mock(side_effect=[FileNotFoundError("it was made between two looks"), DEFAULT])
    archive._fs = Mock(get_file_info=looks)
    looks.return_value = [FileInfo(f"{archive.root}/{LEDGER}/one", FileType.File, size=4)]
    assert archive.sizes(LEDGER) == {f"{LEDGER}/one": 4}


def put(archive: Archive, name: str, *keys: Key) -> None:
    write_segment(archive, name, keys, [b"body"] * len(keys), queue=QUEUE, shards=RUN.shards)


def end(archive: Archive, kind: str, *keys: Key, attempt: str = "a", shards: int = RUN.shards) -> None:
    Ledger(archive, shards, attempt).write(kind, 1, [Entry(each, "orders", kind) for each in keys])


def proof_of(archive: Archive) -> Proof:
    return verify(archive, RUN)


@pytest.mark.parametrize(
    "other",
    [
        (QUEUE + "1", 0, 1_000, "m0"),
        (QUEUE, 1, 1_000, "m0"),
        (QUEUE, 0, 1_001, "m0"),
        (QUEUE, 0, 1_000, "m1"),
        (QUEUE, 0, 1_000, None),
    ],
)
def test_all_parts_of_a_key_must_match(archive: Archive, other: Key) -> None:
    put(archive, "one", key(0))
    end(archive, LEDGER, other)
    proof = proof_of(archive)
    assert (proof.unsent, proof.unknown, proof.balanced, proof.exit_code) == (1, 1, False, 1)


def test_reasons_beyond_a_limit_count_as_others(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is free text: the service may give every message its own."""
    monkeypatch.setattr("sbpair.replay.verify.MAX_KEPT_REASONS", 2)
    put(archive, "one", *map(key, range(7)))
    for number, reason in enumerate("abcdaea"):
        Ledger(archive, RUN.shards).write(QUARANTINE, number, [Entry(key(number), "orders", reason, b"")])
    proof = proof_of(archive)
    assert (proof.reasons, proof.quarantined) == ({"a": 3, "other reasons": 3, "b": 1}, 7)


def test_a_doubtful_entry_is_written_before_its_outcome(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = Archive.write

    def seen(self: Archive, path: str, *words: Any, **more: Any) -> None:
        written.append(path.partition("/")[0])
        write(self, path, *words, **more)

    monkeypatch.setattr(Archive, "write", seen)
    put(archive, "one", key(1))
    ledger = Ledger(archive, RUN.shards, "a")
    ledger.add_doubtful(Entry(key(1), "orders", "no answer came"))
    ledger.write(LEDGER, 1, [Entry(key(1), "orders")])
    ledger.write(LEDGER, 1, [Entry(key(2), "orders")])

    assert written == [SEGMENTS, DOUBTFUL, LEDGER, LEDGER]
    assert [each.message_id for each in proof_of(archive).doubtful] == ["m1"]


def plan_gc_of_ended(archive: Archive, messages: int = 1) -> GarbageCollection:
    for path in (DRAINED_FILE, RECEIPT_FILE):
        archive.write_json(path, {"messages": messages, "balanced": True})
    return plan_gc(archive, unsent=False)


def test_gc_removes_only_what_was_proved(archive: Archive) -> None:
    """Between the proof and the confirmation the run is resumed, and drains one more message."""
    put(archive, "one", key(1))
    end(archive, LEDGER, key(1))
    planned = plan_gc_of_ended(archive)
    put(archive, "two", key(2))
    remove_messages(archive, planned)
    assert archive.files(SEGMENTS) == [f"{SEGMENTS}/{QUEUE}/two.parquet"]
    remove_messages(archive, plan_gc(archive, unsent=False))
    assert archive.files(SEGMENTS) == [f"{SEGMENTS}/{QUEUE}/two.parquet"]


def test_gc_of_a_direct_run_accepts_a_truncated_chunk(archive: Archive) -> None:
    runs.save_run(archive, replace(RUN, options=ReplayOptions(mode=ReplayMode.DIRECT)))
    end(archive, QUARANTINE, key(1))
    [chunk] = archive.files(QUARANTINE)
    Path(archive.root, chunk).write_bytes(b"")
    end(archive, QUARANTINE, key(2))
    assert plan_gc_of_ended(archive, messages=0).kept == 1


def test_gc_removes_nothing_of_a_resumed_run(archive: Archive) -> None:
    put(archive, "one", key(1))
    end(archive, LEDGER, key(1))
    planned = plan_gc_of_ended(archive)
    invalidate_receipt(archive)
    with pytest.raises(errors.Unsafe, match="was resumed"):
        remove_messages(archive, planned)
    assert len(archive.files(SEGMENTS)) == len(archive.files(LEDGER)) == 1
    with pytest.raises(errors.Unsafe, match="has not ended"):
        plan_gc(archive, unsent=False)


def test_a_run_is_not_resumed_while_gc_removes_it(archive: Archive) -> None:
    archive.write_json(RECEIPT_FILE, {"balanced": True})
    archive.write_json(REMOVED_FILE, {})
    with pytest.raises(errors.StateRefused, match="were removed"):
        invalidate_receipt(archive)
    assert archive.read_json(RECEIPT_FILE) == {"balanced": True}


def test_a_renamed_run_directory_is_refused(archive: Archive, tmp_path: Path) -> None:
    """Its tasks would use the run's name, and its driver the directory's."""
    shutil.copytree(archive.root, tmp_path / "r2")
    with pytest.raises(errors.StateRefused, match="belongs to run r1, not"):
        runs.load_run(Archive(str(tmp_path), "r2"))


@pytest.mark.parametrize("name", ["r9", "", "r1/", "r2/../r1", "r1\0", "r1\udcff", "*"])
def test_an_unknown_or_invalid_run_id_is_refused(archive: Archive, name: str) -> None:
    with pytest.raises(errors.UsageError, match="there is no run"):
        runs.load_run(Archive(archive.url, name))


def test_a_doubtful_chunk_with_unexpected_columns_is_refused(archive: Archive) -> None:
    archive.write_table(f"{DOUBTFUL}/0.parquet", pa.table({"a": [1]}), RUN.shards)
    with pytest.raises(errors.StateRefused, match="missing columns: queue"):
        proof_of(archive)


def test_doubtful_messages_beyond_the_limit_are_counted(archive: Archive) -> None:
    put(archive, "one", *map(key, range(4)))
    end(archive, LEDGER, *map(key, range(4)))
    end(archive, DOUBTFUL, *map(key, range(4)))
    end(archive, DOUBTFUL, key(0))
    proof = verify(archive, RUN, Limits(named=2))
    assert (len(proof.doubtful), proof.doubtful_total, proof.balanced) == (2, 4, True)
    [line] = [
        line for line in proof_lines(encoded(replay_receipt("r1", RUN.options.mode, proof))) if "possible" in line
    ]
    assert line.startswith("possible duplicates: 4 (")


KINDS = (LEDGER, EXPIRED, QUARANTINE, DEDUPLICATED)
HANDS = st.sets(st.integers(-3, 12), max_size=6)
FILES = st.lists(st.tuples(st.sampled_from((SEGMENTS, *KINDS)), st.sampled_from("ab"), HANDS), max_size=8)


@settings(max_examples=30, deadline=None)
@given(
    files=FILES,
    held=st.dictionaries(st.sampled_from("abc"), HANDS.filter(bool)),
    direct=st.booleans(),
    max_part=st.integers(1, 40),
)
def test_the_proof_equals_a_naive_count(
    files: list[tuple[str, str, set[int]]], held: dict[str, set[int]], direct: bool, max_part: int
) -> None:
    run = replace(RUN, options=ReplayOptions(mode=ReplayMode.DIRECT)) if direct else RUN
    with TemporaryDirectory() as directory:
        archive = Archive(directory, RUN.id)
        runs.save_run(archive, run)
        for name, (kind, attempt, numbers) in enumerate(files):
            keys = [odd(number) for number in numbers]
            if kind != SEGMENTS:
                end(archive, kind, *keys, attempt=attempt)
            elif not direct:
                put(archive, f"s{name}", *keys)
        for attempt, numbers in held.items():
            Ledger(archive, RUN.shards, attempt).record_held([Entry(odd(number), "orders") for number in numbers])
        proof, whole = (verify(archive, run, each, save=True) for each in (Limits(max_part), LIMITS))
        listed = [*archive.read_lines(DOUBTFUL_FILE)] if archive.exists(DOUBTFUL_FILE) else []
    assert listed == encoded(whole.doubtful)
    in_order = {"doubtful": sorted(proof.doubtful, key=repr)}
    assert replace(proof, **in_order) == replace(whole, doubtful=sorted(whole.doubtful, key=repr))

    rows = [(kind, attempt, number) for kind, attempt, numbers in files for number in sorted(numbers)]
    ends = {kind: {number for each, _, number in rows if each == kind} for kind in KINDS}
    ended = set[int]().union(*ends.values())
    segments = [number for kind, _, number in rows if kind == SEGMENTS and not direct]
    archived = ended.union(*held.values()) if direct else set(segments)
    assert (proof.archived, proof.unsent) == (len(archived), len(archived - ended))
    assert proof.copies == len(segments) - len(set(segments))
    outcomes = (proof.acknowledged, proof.expired, proof.quarantined, proof.deduplicated)
    assert outcomes == tuple(len(ends[kind]) for kind in KINDS)
    assert proof.contradictions == sum(map(len, ends.values())) - len(ended)
    assert proof.unknown == sum(len(each - archived) for each in ends.values())
    assert proof.balanced == (len(archived) == sum(outcomes) and not proof.contradictions and not proof.unknown)
    not_sent = archived != ends[LEDGER] | ends[DEDUPLICATED]
    assert proof.exit_code == (1 if proof.contradictions or proof.unknown else 3 if not_sent else 0)
    wrote = [(number, attempt) for kind, attempt, number in rows if kind != SEGMENTS]
    twice = {number for _, _, number in rows if [(kind, each) for kind, _, each in rows].count((LEDGER, number)) > 1}
    doubled = {
        number
        for number, attempt in wrote
        if (number in twice.union(*held.values()) and [each for each, _ in wrote].count(number) > 1)
        or any(number in numbers and other != attempt for other, numbers in held.items())
    }
    assert {each.sequence_number for each in proof.doubtful} == doubled
    assert proof.queues[QUEUE]["unsent"] + proof.queues[QUEUE + "1"]["unsent"] == proof.unsent


def odd(number: int) -> Key:
    return (QUEUE + "1" * (number % 2), number, 1_000 + number // 2, None if number % 3 else f"m{number}")


def damaged(archive: Archive, path: str, how: Any) -> None:
    """Cut a file short, flip the last bit of a page, which the footer does not cover, or change its table."""
    place = Path(archive.root, path)
    whole = bytearray(place.read_bytes())
    if isinstance(how, int):
        place.write_bytes(whole[:how])
    elif how == "bit":
        column = pq.read_metadata(place).row_group(0).column(1)
        begin = column.dictionary_page_offset or column.data_page_offset
        whole[begin + column.total_compressed_size - 1] ^= 1
        place.write_bytes(whole)
    else:
        table = archive.read_table(path)
        pq.write_table(how(table).replace_schema_metadata(table.schema.metadata), place)


@pytest.mark.parametrize("kind", [SEGMENTS, LEDGER])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        *((left, "is broken") for left in (-10, 0, 4, 100, "bit")),
        (lambda table: table.drop_columns(["destination"]), "lacks the columns of version 1"),
        (lambda table: table.append_column("more", pa.nulls(table.num_rows)), "lacks the columns of version 1"),
        (lambda table: table.rename_columns(["key", *table.column_names[1:]]), "lacks the columns of version 1"),
        (
            lambda table: table.set_column(1, "sequence_number", table["sequence_number"].cast(pa.string())),
            "lacks the columns of version 1",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_name(archive: Archive, kind: str, how: Any, message: str) -> None:
    put(archive, "one", *map(key, range(50)))
    end(archive, LEDGER, *map(key, range(50)))
    [path] = archive.files(kind)
    damaged(archive, path, how)
    with pytest.raises(errors.StateRefused, match=f"{path} {message}") as refused:
        archive.read_table(path) if how == "bit" else proof_of(archive)
    assert "restore" in refused.value.hint


@pytest.mark.parametrize("content", [b"", b"[[1]]\n", b'[["q",99999999999999999999,1,null]]\n', b"[" * 100_000 + b"\n"])
def test_an_unreadable_list_of_held_messages_is_reported(content: bytes, archive: Archive) -> None:
    put(archive, "one", key(0))
    Ledger(archive, RUN.shards, "dead").record_held([Entry(key(0), "orders")])
    end(archive, LEDGER, key(0), attempt="next")
    [path] = archive.files(HELD)
    Path(archive.root, path).write_bytes(content)
    proof = proof_of(archive)
    assert (proof.unreadable, proof.doubtful, proof.balanced) == ([path], [], True)


def test_files_of_an_archive_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        archive = Archive(str(tmp_path / "archive"), "r1")
        archive.create()
        put(archive, "one", key(0))
        archive.write_line("held/a.jsonl", [1])
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in Path(archive.root).rglob("*")}
    assert (Path(archive.root).stat().st_mode & 0o777, modes) == (0o700, {True: 0o700, False: 0o600})


OF_SPARK = {"dbfs:/mnt/x": "/dbfs/", "dbfs:///x": "/dbfs/"} | dict.fromkeys(
    ("s3a://b/x", "S3A://b/x", "s3:/b/x"), "s3://"
)
"""URLs of Spark, and another name for each. Without a second slash, it would be a directory of this machine."""


@pytest.mark.parametrize(
    "url", ["/a*b", "/{a}", "nonsense://x", "mock://x", "s3://", "s3://bucket/[a]", "", " ", *OF_SPARK]
)
def test_an_unusable_archive_url_is_refused(url: str) -> None:
    expected = f"--archive {url} has the scheme" if url in OF_SPARK else "--archive"
    with pytest.raises(errors.UsageError, match=expected) as refused:
        Archive(url, "r1")
    assert OF_SPARK.get(url, "") in refused.value.hint


@pytest.mark.parametrize("url", ["file:/a", "file:///a", "/a:/b", "a/b:/c", "x"])
def test_a_directory_is_no_url_of_spark(url: str) -> None:
    assert Archive(url, "r1").is_local


@pytest.mark.parametrize("selection", [EVERYTHING, ReplaySelection(("orders", "sales/invoices"), "size > 3 -- \"'\\")])
def test_a_run_is_read_back_as_it_was_written(archive: Archive, selection: ReplaySelection) -> None:
    run = replace(RUN, options=ReplayOptions(selection=selection))
    runs.save_run(archive, run)
    assert runs.load_run(archive) == run


def test_a_run_of_an_earlier_version_keeps_its_shards(archive: Archive) -> None:
    document = RUN.document()
    assert document["options"].pop("sessions") == "ANY_CASE"
    archive.write_json("run.json", document)
    assert runs.load_run(archive).options.sessions is runs.SessionIds.EXACT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "sbpair/replay-run/2"}, "sbpair/replay-run/2"),
        ({"version": 2}, "version 2"),
        ({"options": {"dedup": "guess"}}, "cannot be read"),
        ({"options": None}, "cannot be read"),
        ({"options": {**OPTIONS, "selection": {"destinations": ["x') OR ('' = '"], "where": None}}}, "cannot be read"),
        ({"options": {**OPTIONS, "selection": {"destinations": 3, "where": None}}}, "cannot be read"),
        ({"options": {**OPTIONS, "selection": {"where": "true"}}}, "cannot be read"),
        ({"options": {name: OPTIONS[name] for name in OPTIONS if name != "selection"}}, "cannot be read"),
        ({"options": {**OPTIONS, "rate": "fast"}}, "cannot be read"),
        ({"options": {**OPTIONS, "segment_bytes": None}}, "cannot be read"),
        ({"queues": QUEUE}, "cannot be read"),
        ({"shards": "many"}, "cannot be read"),
        ({"shards": 0}, "cannot be read"),
        ({"shards": -3}, "cannot be read"),
        ({"shards": inf}, "cannot be read"),
        ({"options": {**OPTIONS, "rate": nan}}, "cannot be read"),
        ({"pair": 3}, "cannot be read"),
    ],
)
def test_a_run_of_another_kind_is_refused(archive: Archive, change: dict[str, Any], message: str) -> None:
    archive.write_json("run.json", {**RUN.document(), **change})
    with pytest.raises(errors.StateRefused, match=message):
        runs.load_run(archive)


NO_OBJECTS = ("", "[]", "{", "\0", "[" * 100_000)
NO_COUNTS = (
    *({"messages": "many"}, {"messages": None}, {"locked": "some"}),
    *({"remaining_in_queues": []}, {"remaining_in_queues": {QUEUE: "some"}}),
)
UNREADABLE = [
    *((RUN_FILE, content, runs.load_run) for content in NO_OBJECTS),
    *((DRAINED_FILE, json.dumps(report), proof_of) for report in NO_COUNTS),
    *(
        (ACCEPTED_BEFORE_LINES, json.dumps({"keys": keys}), partial(load_accepted, queue=QUEUE))
        for keys in (None, [3], [["contoso"]])
    ),
    *(
        (ACCEPTED_FILE, content, partial(load_accepted, queue=QUEUE))
        for content in ("", "{}\n", '["",', '["","q",[[1]]]\n')
    ),
]


@pytest.mark.parametrize(("path", "content", "read"), UNREADABLE)
def test_an_unreadable_document_is_refused_by_name(archive: Archive, path: str, content: str, read: Any) -> None:
    archive.write(path, content.encode())
    with pytest.raises(errors.StateRefused, match=f"{path} is broken"):
        read(archive)


IRREGULAR = {
    "run.json": (os.mkfifo, "neither a file nor a directory"),
    "segments/zzz.parquet": (os.mkfifo, "neither a file nor a directory"),
    "segments/two.parquet": (lambda place: place.symlink_to(place.parent / "one.parquet"), "a symbolic link"),
    "segments/directory": (lambda place: place.symlink_to(place.parent.parent), "a symbolic link"),
    "ledger": (lambda place: place.symlink_to("/nonexistent"), "a symbolic link"),
}


@pytest.mark.parametrize("path", IRREGULAR)
def test_a_link_or_a_pipe_within_a_run_is_refused(path: str, archive: Archive, tmp_path: Path) -> None:
    make, kind = IRREGULAR[path]
    (tmp_path / "link").symlink_to(tmp_path)
    linked = Archive(str(tmp_path / "link"), RUN.id)
    assert runs.load_run(linked) == RUN, "the directory of the archive may be a link"
    archive.remove(path)
    place = Path(archive.root, path)
    place.parent.mkdir(exist_ok=True)
    make(place)
    for each in (archive, linked):
        with pytest.raises(errors.StateRefused, match=rf"{path} is {kind}"):
            runs.load_run(each)


def test_a_run_with_a_very_long_id_is_reported(tmp_path: Path) -> None:
    with pytest.raises(errors.MachineLacks, match="File name too long"):
        find_archive(str(tmp_path), "r" * 5_000)
