"""The segment reader returns the requested messages, or an error."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.replay.archive_layout import segment_path
from sbpair.replay.segment import LruCache, RowPosition, SegmentReader
from tests.replay.segments import created, write_segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.replay.archive import Archive
    from sbpair.replay.ledger import Key

QUEUES = ("contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1")
ROWS = 30


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


def message(number: int) -> bytes:
    return b"message %d " % number * (number % 5)


def key(number: int) -> Key:
    return QUEUES[number // ROWS % 2], number, 1_000 + number, None if number % 3 else f"m{number}"


def place(number: int) -> RowPosition:
    return f"s{number // ROWS}", number % ROWS


@settings(max_examples=60, deadline=None)
@given(
    wanted=st.lists(st.lists(st.integers(0, 4 * ROWS - 1), max_size=40), max_size=6),
    group=st.sampled_from([1, 7, ROWS]),
    files=st.sampled_from([1, 2, 64]),
    held=st.sampled_from([0, 500, 10**6]),
)
def test_each_message_belongs_to_its_row_at_any_cache_size(
    wanted: Sequence[Sequence[int]], group: int, files: int, held: int
) -> None:
    with TemporaryDirectory() as directory:
        reader = SegmentReader(filled(Path(directory), group=group), max_files=files, groups_bytes=held)
        for numbers in wanted:
            assert reader.read([*map(place, numbers)]) == [(key(number), message(number)) for number in numbers]


def test_a_row_group_is_read_once(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(
        SegmentReader,
        "_read_group",
        lambda reader, which, real=SegmentReader._read_group: read.append(which) or real(reader, which),
    )
    reader = SegmentReader(archive)
    for number in range(ROWS):
        reader.read([place(number), place(ROWS + number)])
    assert len(read) == len(set(read)) == 2 * 5


def test_a_row_group_is_released_once_all_its_rows_are_read(archive: Archive) -> None:
    reader = SegmentReader(archive)
    reader.read([place(number) for number in range(6)])
    assert [*reader._groups._held] == [("s0", 0)]
    reader.read([place(6), place(7)])
    assert [*reader._groups._held] == [("s0", 1)]


@pytest.mark.parametrize(
    ("position", "why"), [(("s0", ROWS), "it has fewer rows than were planned"), (("s4", 0), "it is missing")]
)
def test_a_missing_row_is_refused_by_the_name_of_its_segment(archive: Archive, position: RowPosition, why: str) -> None:
    with pytest.raises(errors.StateRefused, match=f"{position[0]}.*{why}"):
        SegmentReader(archive).read([place(0), position])


def test_a_removed_segment_is_refused(archive: Archive) -> None:
    reader = SegmentReader(archive)
    archive.remove(segment_path(QUEUES[0], "s0"))
    with pytest.raises(errors.StateRefused, match=r"s0\.parquet is broken"):
        reader.read([place(0)])


def test_a_segment_of_another_run_is_not_read(archive: Archive) -> None:
    other = created(archive.url, "r2")
    write_segment(other, "s0", [key(0)], [message(0)])
    path = segment_path(QUEUES[0], "s0")
    archive.write(path, other.read(path))
    with pytest.raises(errors.StateRefused, match=r"s0\.parquet is broken: it belongs to another run"):
        SegmentReader(archive).read([place(0)])


@pytest.mark.parametrize("left", [0, 3, 300])
def test_a_segment_truncated_after_planning_is_refused(archive: Archive, left: int) -> None:
    path = Path(archive.root, segment_path(QUEUES[0], "s0"))
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(errors.StateRefused, match=r"s0\.parquet is broken"):
        SegmentReader(archive).read([place(0)])


def test_a_corrupted_message_is_refused(archive: Archive) -> None:
    path = Path(archive.root, segment_path(QUEUES[0], "s0"))
    chunk = archive.parquet(segment_path(QUEUES[0], "s0")).metadata.row_group(1).column(15)
    assert chunk.path_in_schema == "message"
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 2] ^= 1
    path.write_bytes(data)
    reader = SegmentReader(archive)
    assert reader.read([place(0)]) == [(key(0), message(0))]
    with pytest.raises(errors.StateRefused, match=r"s0\.parquet is broken"):
        reader.read([place(8)])


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
