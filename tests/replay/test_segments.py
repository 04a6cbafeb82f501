"""A segment's rows on their way into its file, and a drain that receives one while it stores another."""

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.move.message.route import Facts
from sbpair.move.raw_source import RawReceivedMessage
from sbpair.replay import segment as segment_module
from sbpair.replay.archive import SEGMENTS, Archive
from sbpair.replay.ledger import Key, Ledger
from sbpair.replay.segment import (
    MAX_PARTS,
    SEGMENT,
    LruCache,
    RowPosition,
    Segment,
    SegmentReader,
    segment_path,
    shard_of,
)
from sbpair.replay.send_task import ShardReader
from sbpair.replay.shard_plan import COLUMNS
from tests.kit.waiting import PATIENCE_SECONDS
from tests.replay.segments import QUEUE, created, write_segment
from tests.replay.tasks import drain, proof_of, send, stranded
from tests.replay.world import World

MESSAGES, A_SEGMENT = 100, 20
WORLD = {"queues": 1}


def arrival(number: int) -> RawReceivedMessage:
    """Return a message. Every third has no destination, and every sixth has no bytes."""
    payload = payload_of(number)
    destination = "orders" if number % 3 else None
    facts = Facts(QUEUE, number, 1_000 + number, f"m{number}", destination, size=len(payload), flaw="none")
    made: Any = RawReceivedMessage(facts, 60.0, None, None, number)  # type: ignore[arg-type]
    made.payload = payload
    return made


def payload_of(number: int) -> bytes:
    return b"message %03d" % number if number % 6 else b""


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=6), st.sampled_from([1, 4, 3 * MAX_PARTS]))
def test_any_grouping_keeps_the_rows(comings: list[tuple[int, bool]], shards: int) -> None:
    with TemporaryDirectory() as directory:
        archive = created(directory)
        segment = Segment(QUEUE, archive.new_table(SEGMENT, shards, large=True), shards)
        for count, writes in comings:
            come = [arrival(len(segment) + number) for number in range(count)]
            segment.add(come, 1.0)
            if writes:
                segment.write_groups()
                assert segment.ungrouped_bytes == 0
                assert segment.written == segment.messages
                assert not any(each.payload for each in segment.messages), "nothing is held twice"
        segment.write_groups()
        archive.put(segment.path, segment.file)
        rows = archive.read_table(segment.path)
        about = archive.footer(segment.path).metadata

    total = sum(count for count, _ in comings)
    assert rows.schema.remove_metadata() == SEGMENT
    assert (about["sbpair.run"], about["sbpair.shards"]) == ("r1", str(shards))
    assert rows.column("position").to_pylist() == list(range(total))
    numbers = rows.column("sequence_number").to_pylist()
    assert sorted(numbers) == list(range(total))
    assert shards > 1 or numbers == sorted(numbers)
    assert rows.column("message").to_pylist() == [*map(payload_of, numbers)]
    assert rows.column("destination").to_pylist() == ["orders" if number % 3 else None for number in numbers]
    assert rows.column("flaw").to_pylist() == [None if number % 3 else "none" for number in numbers]
    assert segment.bytes == sum(len(payload_of(number)) for number in range(total))
    assert len(segment.written) == len(segment) == total


def stored(directory: Path, shards: int, arrivals: list[RawReceivedMessage], **limits: int) -> pq.ParquetFile:
    archive = created(directory)
    segment = Segment(QUEUE, archive.new_table(SEGMENT, shards, large=True), shards)
    segment.add(arrivals, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(segment_module, name, value)
        segment.write_groups()
    archive.put(segment.path, segment.file)
    return archive.parquet(segment.path)


@pytest.mark.parametrize("shards", [1, 8, 2 * MAX_PARTS])
def test_rows_of_a_shard_are_together_in_order_of_arrival(shards: int, tmp_path: Path) -> None:
    """A row group has as few shards as possible: a task reads few messages of others. Few messages are one group."""
    assert stored(tmp_path / "small", shards, [arrival(number) for number in range(100)]).num_row_groups == 1
    file = stored(tmp_path, shards, [arrival(number) for number in range(1_000)], MIN_PART_BYTES=1)
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    assert len(groups) == min(shards, MAX_PARTS)
    seen: list[int] = []
    for group in groups:
        columns = (group.column(name).to_pylist() for name in ("destination", "session_id", "message_id"))
        found = {shard_of(*row, shards) for row in zip(*columns, strict=True)}
        assert max(found) - min(found) < max(1, shards / MAX_PARTS)
        assert not found & set(seen)
        seen += found
        assert pc.all(pc.less(group["sequence_number"][:-1], group["sequence_number"][1:])).as_py()


@pytest.mark.parametrize("shards", [1, 8, 2 * MAX_PARTS])
def test_a_group_is_bounded_if_one_session_has_all_messages(shards: int, tmp_path: Path) -> None:
    """A task that sends some of it holds a row group of each queue at once."""
    arrivals = [arrival(number) for number in range(400)]
    arrivals[200].facts = arrivals[200].facts._replace(size=5_000)
    for each in arrivals:
        each.facts = each.facts._replace(session_id="hot", path="orders")
    sizes = [each.facts.size for each in arrivals]
    file, start = stored(tmp_path, shards, arrivals, PART_BYTES=1_000), 0
    assert file.read(["sequence_number"])["sequence_number"].to_pylist() == list(range(400))
    for number in range(file.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        assert sum(sizes[start : start + count - 1]) < 1_500, "the last of them may be of any size"
        start += count
    assert file.num_row_groups <= round(sum(sizes) / 1_000)


def test_a_failed_group_does_not_count_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = created(tmp_path)
    monkeypatch.setattr(segment_module, "MIN_PART_BYTES", 1)
    segment = Segment(QUEUE, archive.new_table(SEGMENT, 8, large=True), 8)
    segment.add([arrival(number) for number in range(100)], 1.0)
    segment.write_groups()
    segment.add([arrival(number) for number in range(100, 200)], 1.0)
    add, groups = segment.file.add, iter(range(3))

    def fails_at_the_fourth(table: pa.Table) -> None:
        if next(groups, None) is None:
            raise MemoryError
        add(table)

    monkeypatch.setattr(segment.file, "add", fails_at_the_fourth)
    with pytest.raises(MemoryError):
        segment.write_groups()
    assert segment.file.rows > 100
    assert [each.facts.sequence_number for each in segment.written] == list(range(100))


def test_the_next_segment_is_received_while_one_is_stored(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stranded(place, tmp_path, MESSAGES, segment_messages=A_SEGMENT)
    add, put = Segment.add, Archive.put
    segments, left, storing, overlaps = set[Segment](), list[int](), threading.Lock(), threading.Event()

    def added(segment: Segment, *arguments: Any) -> None:
        add(segment, *arguments)
        segments.add(segment)
        if len(segments) > 1:
            overlaps.set()

    def stored(archive: Archive, path: str, file: Any) -> None:
        assert storing.acquire(blocking=False), "two segments in memory, and not more"
        assert overlaps.wait(PATIENCE_SECONDS)
        put(archive, path, file)
        left.append(place.left())
        storing.release()

    monkeypatch.setattr(Segment, "add", added)
    monkeypatch.setattr(Archive, "put", stored)
    drain(job)
    assert left == [*range(MESSAGES, 0, -A_SEGMENT)], "each is settled when it is stored, not before"
    assert (place.left(), proof_of(job).archived, proof_of(job).copies) == (0, MESSAGES, 0)


def test_a_drain_writes_groups_while_it_receives(place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "PART_BYTES", 1)
    monkeypatch.setattr("sbpair.replay.queue_task.MAX_RECEIVE", 10)
    job = stranded(place, tmp_path, MESSAGES, segment_messages=MESSAGES)
    drain(job)
    [path] = job.open().files(SEGMENTS)
    assert pq.read_metadata(f"{job.open().root}/{path}").num_row_groups >= MESSAGES // 10
    send(job)
    place.check_arrived()
    assert proof_of(job).balanced


QUEUES = (QUEUE, "contoso/x-servicebus-transfer/1")
ROWS = 30
GROUPS = (1, 7, ROWS)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return filled(tmp_path)


def filled(directory: Path, *, group: int = 7) -> Archive:
    """Write two segments for each queue; rows are numbered through all of them, from 0."""
    archive = created(directory)
    for index in range(4):
        numbers = range(ROWS * index, ROWS * (index + 1))
        write_segment(archive, f"s{index}", [*map(key, numbers)], [*map(message, numbers)], group=group)
    return archive


@pytest.fixture(scope="module")
def by_group(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Archive]:
    return {group: filled(tmp_path_factory.mktemp("archive"), group=group) for group in GROUPS}


def message(number: int) -> bytes:
    return b"message %d " % number * (number % 5)


def key(number: int) -> Key:
    return QUEUES[number // ROWS % 2], number, 1_000 + number, None if number % 3 else f"m{number}"


def position(number: int) -> RowPosition:
    return f"s{number // ROWS}", number % ROWS


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.lists(st.lists(st.integers(0, 4 * ROWS - 1), max_size=40), max_size=6),
    group=st.sampled_from(GROUPS),
    files=st.sampled_from([1, 2, 64]),
    held=st.sampled_from([0, 500, 10**6]),
)
def test_each_message_belongs_to_its_row_at_any_cache_size(
    by_group: dict[int, Archive], wanted: Sequence[Sequence[int]], group: int, files: int, held: int
) -> None:
    reader = SegmentReader(by_group[group], max_files=files, groups_bytes=held)
    for numbers in wanted:
        assert reader.read([*map(position, numbers)]) == [(key(number), message(number)) for number in numbers]


def test_a_row_group_is_read_once_and_released_after_its_last_row(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, read, read_group = SegmentReader(archive), list[Any](), SegmentReader._read_group
    monkeypatch.setattr(reader._groups, "_make", lambda which: read.append(which) or read_group(reader, which))
    for number in range(ROWS):
        reader.read([position(number), position(ROWS + number)])
        group = number // 7
        is_last = number % 7 == 6 or number == ROWS - 1
        assert [*reader._groups._held] == ([] if is_last else [("s0", group), ("s1", group)])
    assert len(read) == len(set(read)) == 2 * 5


def removed(archive: Archive, path: str) -> None:
    archive.remove(path)


def replaced(archive: Archive, path: str) -> None:
    other = created(archive.url, "r2")
    write_segment(other, "s0", [key(0)], [message(0)])
    archive.write(path, other.read(path))


def cut_to(left: int, archive: Archive, path: str) -> None:
    archive.write(path, archive.read(path)[:left])


@pytest.mark.parametrize(
    ("change", "wanted", "why"),
    [
        (removed, ("s0", 0), ""),
        (replaced, ("s0", 0), ": it belongs to another run"),
        *((partial(cut_to, left), ("s0", 0), "") for left in (0, 3, 300)),
        (lambda *_: None, ("s0", ROWS), ": it has fewer rows than were planned"),
        (lambda *_: None, ("s4", 0), ": it is missing"),
    ],
)
def test_a_segment_that_lacks_a_planned_row_is_refused_by_name(
    change: Any, wanted: RowPosition, why: str, archive: Archive
) -> None:
    reader = SegmentReader(archive)
    change(archive, segment_path("s0"))
    with pytest.raises(errors.StateRefused, match=rf"{wanted[0]}\.parquet is broken{why}"):
        reader.read([position(ROWS), wanted])


def test_a_task_reads_as_many_rows_as_fit_in_a_chunk(archive: Archive) -> None:
    rows = [(0, *position(number), 100 * (number % 3)) for number in range(12)]
    batch = pa.RecordBatch.from_pydict(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)))
    reader = ShardReader(iter([batch]), archive, Ledger(archive, 2))
    found = []
    while not reader.exhausted:
        found.append([each.row for each in reader.read(5, 300)])
    assert found == [[*map(key, range(start, end))] for start, end in ((0, 3), (3, 6), (6, 9), (9, 12), (12, 12))]


def test_a_corrupted_message_is_refused(archive: Archive) -> None:
    path = segment_path("s0")
    chunk = archive.parquet(path).metadata.row_group(1).column(15)
    assert chunk.path_in_schema == "message"
    data = bytearray(archive.read(path))
    data[chunk.data_page_offset + chunk.total_compressed_size - 2] ^= 1
    archive.write(path, bytes(data))
    reader = SegmentReader(archive)
    assert reader.read([position(0)]) == [(key(0), message(0))]
    with pytest.raises(errors.StateRefused, match=r"s0\.parquet is broken"):
        reader.read([position(8)])


def test_the_cache_holds_as_much_as_its_limit() -> None:
    made: list[int] = []

    def make(size: int) -> int:
        made.append(size)
        return size

    latest = LruCache(make, 10, lambda size: size)
    assert latest[7] == 7
    del latest[7]
    made.clear()
    assert [latest[size] for size in (4, 5, 4, 3, 4, 5, 20, 4, 20)] == [4, 5, 4, 3, 4, 5, 20, 4, 20]
    assert made == [4, 5, 3, 5, 20, 4, 20]
