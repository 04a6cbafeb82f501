"""Accidents with the files of an archive: each is refused by each command that reads the archive, by name."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbpair.errors import SbpairError, StateRefused
from sbpair.replay import driver
from sbpair.replay.archive import (
    ACCEPTED_FILE,
    DIGESTS,
    DRAINED_FILE,
    LEDGER,
    RECEIPT_FILE,
    RUN_FILE,
    SEGMENTS,
    Archive,
)
from sbpair.replay.digests import segment_check
from sbpair.replay.run_description import load_run
from sbpair.replay.segment import SegmentReader
from sbpair.spark.archive_frame import ArchiveFrame
from tests.kit.command import Here
from tests.kit.running import NAMESPACE, OTHER
from tests.replay.tasks import QUICK, run_tasks_here
from tests.replay.world import exported

MESSAGES = 80


class Run(NamedTuple):
    """The directory of a run, and that of another one of the same pair in the same archive."""

    root: Path
    other: Path

    def files(self, path: str) -> list[Path]:
        """Return the file at a path of the run, or those below it."""
        return files_at(self.root / path)

    def others(self, path: str) -> list[Path]:
        return files_at(self.other / path)


def files_at(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.*"))


class Made(NamedTuple):
    archive: Path
    runs: tuple[str, str]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Two replays into one archive, each of four segments with equally many messages."""
    directory = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch, exported(patch, queues=2) as place:
        run_tasks_here(patch)
        patch.setattr("sbpair.runs.file_lease.MACHINE", str(directory))
        ids = []
        for _ in range(2):
            place.strand_many(MESSAGES)
            result = driver.start_run(place.request(directory), QUICK, place.queues, lambda _event: None)
            assert (result.exit_code, result.proof.acknowledged, result.proof.segments) == (0, MESSAGES, 4)
            ids.append(result.run.id)
        names = {"SBPAIR_PRIMARY_NAME": NAMESPACE, "SBPAIR_SECONDARY_NAME": OTHER}
        yield Made(directory / "archive", (ids[0], ids[1]), {**place.environment, **names})


@pytest.fixture
def run(made: Made, tmp_path: Path) -> Run:
    archive = tmp_path / "archive"
    shutil.copytree(made.archive, archive)
    return Run(*(archive / each for each in made.runs))


def swap(kind: str, run: Run) -> None:
    one, two, *_ = run.files(kind)
    whole = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(whole)


def copy_over(kind: str, run: Run) -> None:
    one, two, *_ = run.files(kind)
    shutil.copy(one, two)


def remove(path: str, run: Run) -> None:
    run.files(path)[0].unlink()


def cut(kind: str, run: Run, left: float) -> None:
    file = run.files(kind)[0]
    whole = file.read_bytes()
    file.write_bytes(whole[: int(left * len(whole))])


def allocate(run: Run) -> None:
    """Write the first half, as an upload into a file of the final size does."""
    file = run.files(SEGMENTS)[0]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))


def append(run: Run) -> None:
    with run.files(SEGMENTS)[0].open("ab") as file:
        file.write(b"\0")


def flip(kind: str, run: Run, at: Callable[[bytes], int]) -> None:
    file = run.files(kind)[0]
    data = bytearray(file.read_bytes())
    data[at(bytes(data))] ^= 1
    file.write_bytes(data)


def in_footer(whole: bytes) -> int:
    return len(whole) - 60


def in_pages(whole: bytes) -> int:
    """Return where the compressed bodies of the first row group end."""
    group = pq.read_metadata(pa.BufferReader(whole)).row_group(0)
    column = group.column(group.num_columns - 1)
    return int((column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1)


def blank(run: Run) -> None:
    """Lose a block of pages, as a sparse copy does."""
    file = run.files(SEGMENTS)[0]
    data = file.read_bytes()
    end = in_pages(data)
    file.write_bytes(data[: end - 100] + bytes(100) + data[end:])


def rename(kind: str, name: str, run: Run) -> None:
    file = run.files(kind)[0]
    file.rename(file.with_name(name))


def add_copy(kind: str, run: Run) -> None:
    file = run.files(kind)[0]
    shutil.copy(file, file.with_name(f"{'f' * len(file.stem)}{file.suffix}"))


def move_into_a_directory(run: Run) -> None:
    one = run.files(SEGMENTS)[0]
    directory = one.parent / "contoso"
    directory.mkdir()
    one.rename(directory / one.name)


def bring_in(kind: str, run: Run) -> None:
    """Add a file of the other run."""
    shutil.copy(run.others(kind)[0], run.files(kind)[0].parent)


def bring_over(path: str, run: Run) -> None:
    """Replace a file by that of the other run."""
    shutil.copy(run.others(path)[0], run.files(path)[0])


def bring_directory(kind: str, run: Run) -> None:
    shutil.rmtree(run.root / kind)
    shutil.copytree(run.other / kind, run.root / kind)


def mix(run: Run) -> None:
    """Put the files of both runs into one directory."""
    for each in run.others(""):
        place = run.root / each.relative_to(run.other)
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(each, place)


def rewrite(kind: str, run: Run, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write a changed table with the metadata of the file."""
    file = run.files(kind)[0]
    table = pq.ParquetFile(file).read()
    pq.write_table(change(table).replace_schema_metadata(table.schema.metadata), file, write_page_checksum=True)


def other_destination(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("destination")
    return table.set_column(at, table.schema.field(at), pa.array(["elsewhere"] * len(table)))


def write_foreign(run: Run, name: str) -> None:
    pq.write_table(pa.table({"a": [1]}), run.files(SEGMENTS)[0].with_name(name))


def edit(path: str, run: Run, **values: object) -> None:
    [file] = run.files(path)
    document = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({name: value for name, value in document.items() if value is not None}, indent=2))


def edit_a_digest(run: Run) -> None:
    file = run.files(DIGESTS)[0]
    file.write_text(file.read_text().replace('"bytes":', '"bytes":1'))


def remove_digests(run: Run) -> None:
    shutil.rmtree(run.root / DIGESTS)


TAMPERINGS: dict[str, Callable[[Run], object]] = {
    "two segments are swapped": partial(swap, SEGMENTS),
    "a segment is copied over another": partial(copy_over, SEGMENTS),
    "a segment is removed": partial(remove, SEGMENTS),
    "a segment is cut in half": partial(cut, SEGMENTS, left=0.5),
    "a segment is empty": partial(cut, SEGMENTS, left=0.0),
    "a segment lacks its end": partial(cut, SEGMENTS, left=0.99),
    "a segment is half uploaded": allocate,
    "a segment has more bytes": append,
    "a bit of a footer is flipped": partial(flip, SEGMENTS, at=in_footer),
    "a bit of a footer's length is flipped": partial(flip, SEGMENTS, at=lambda whole: len(whole) - 8),
    "a bit of the last byte is flipped": partial(flip, SEGMENTS, at=lambda whole: len(whole) - 1),
    "a segment is renamed": partial(rename, SEGMENTS, f"{'a' * 32}.parquet"),
    "a segment is no Parquet by its name": partial(rename, SEGMENTS, "one.parquet.part"),
    "a segment has a copy": partial(add_copy, SEGMENTS),
    "a segment is in a directory": move_into_a_directory,
    "a segment of another run is added": partial(bring_in, SEGMENTS),
    "a segment of another run replaces one": partial(bring_over, SEGMENTS),
    "all segments are of another run": partial(bring_directory, SEGMENTS),
    "a foreign file is added": partial(write_foreign, name="a.parquet"),
    "a column is edited": partial(rewrite, SEGMENTS, change=other_destination),
    "rows are removed": partial(rewrite, SEGMENTS, change=lambda table: table.slice(1)),
    "a segment is compacted": partial(rewrite, SEGMENTS, change=lambda table: table),
    "two runs are mixed": mix,
    "the ledger is of another run": partial(bring_directory, LEDGER),
    "a chunk of another run is added": partial(bring_in, LEDGER),
    "a chunk of another run replaces one": partial(bring_over, LEDGER),
    "a chunk is removed": partial(remove, LEDGER),
    "a chunk has a copy": partial(add_copy, LEDGER),
    "a chunk lacks a row": partial(rewrite, LEDGER, change=lambda table: table.slice(1)),
    "a chunk is empty": partial(cut, LEDGER, left=0.0),
    "a digest file is removed": partial(remove, DIGESTS),
    "all digest files are removed": remove_digests,
    "a digest file is edited": edit_a_digest,
    "a digest file is renamed": partial(rename, DIGESTS, f"{'a' * 64}.json"),
    "a digest file of another run is added": partial(bring_in, DIGESTS),
    "the digest files are of another run": partial(bring_directory, DIGESTS),
    "the drain's report is removed": partial(remove, DRAINED_FILE),
    "the drain's report counts less": partial(edit, DRAINED_FILE, messages=40),
    "the drain's report forgets a queue": partial(edit, DRAINED_FILE, remaining_in_queues=None),
    "the drain's report names no digests": partial(edit, DRAINED_FILE, digests=None),
    "the drain's report is of another run": partial(bring_over, DRAINED_FILE),
    "the receipt is of another run": partial(bring_over, RECEIPT_FILE),
    "the receipt is cut": partial(cut, RECEIPT_FILE, left=0.9),
    "the run says that it has no digests": partial(edit, RUN_FILE, digests=False),
    "the run does not say whether it has digests": partial(edit, RUN_FILE, digests=None),
    "the run has other queues": partial(edit, RUN_FILE, queues=["contoso/x-servicebus-transfer/1"]),
}
ONLY_BYTES: dict[str, Callable[[Run], object]] = {
    "a bit of a body is flipped": partial(flip, SEGMENTS, at=in_pages),
    "a block of bodies is lost": blank,
    "a bit of a chunk is flipped": partial(flip, LEDGER, at=lambda _whole: 100),
}
"""Accidents that neither sizes nor footers show."""

COMMANDS = {
    "status": "replay status {run} --archive {archive}",
    "list": "replay list --archive {archive}",
    "verify": "replay verify {run} --archive {archive}",
    "verify --full": "replay verify {run} --full --archive {archive}",
    "resume": "replay resume {run} --archive {archive} --state {archive}/../state --remote sc://127.0.0.1:1"
    " --shared-archive",
    "gc": "replay gc {run} --yes --archive {archive}",
}


def contents(run: Run) -> dict[Path, bytes]:
    """Return all files but the record of the journal, which each resume writes."""
    return {path: path.read_bytes() for path in run.files("") if path != run.root / ACCEPTED_FILE}


def outcome(here: Here, made: Made, run: Run, command: str) -> tuple[int, str]:
    line = COMMANDS[command].format(run=run.root.name, archive=run.root.parent)
    code, _, err = here(*line.split(), **made.environment)
    return code, err


def read_rows(run: Run) -> int:
    frame = ArchiveFrame.open({"path": str(run.root)}).check_files()
    return sum(len(batch) for file in frame.files for batch in frame.read(*file))


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_each_command_refuses_tampered_files(here: Here, made: Made, run: Run, tampering: str) -> None:
    TAMPERINGS[tampering](run)
    before = contents(run)
    for command in COMMANDS:
        code, err = outcome(here, made, run, command)
        assert code == 4, (command, err)
        assert [line.split(":")[0] for line in err.splitlines()][-2:] == ["error", "hint"], (command, err)
        assert run.root.name in err, (command, err)
    with pytest.raises(SbpairError) as refused:
        read_rows(run)
    assert refused.value.exit_code == 4
    assert before.items() <= contents(run).items(), "no file is removed or repaired"


def test_a_swapped_segment_is_named_with_what_it_contains(here: Here, made: Made, run: Run) -> None:
    copy_over(SEGMENTS, run)
    one, two, *_ = (str(each.relative_to(run.root)) for each in run.files(SEGMENTS))
    _, err = outcome(here, made, run, "verify")
    assert f"{two} is broken: it has the content of {one}" in err


@pytest.mark.parametrize("tampering", ONLY_BYTES)
def test_altered_bytes_are_refused_by_what_reads_them(here: Here, made: Made, run: Run, tampering: str) -> None:
    ONLY_BYTES[tampering](run)
    for command in ("verify --full", "gc"):
        code, err = outcome(here, made, run, command)
        assert (code, "its bytes were altered" in err) == (4, True), err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_accepts_untouched_files(here: Here, made: Made, run: Run, command: str) -> None:
    assert read_rows(run) == MESSAGES
    code, err = outcome(here, made, run, command)
    assert code == 0, err
    if command == "gc":
        assert run.files(SEGMENTS) == []
        assert outcome(here, made, run, "status")[0] == outcome(here, made, run, "list")[0] == 0
    else:
        assert len(run.files(SEGMENTS)) == 4


def make_old(run: Run) -> None:
    """Make the run one of an earlier version."""
    remove_digests(run)
    for path in (RUN_FILE, DRAINED_FILE, RECEIPT_FILE):
        edit(path, run, digests=None, drained=None, settled=None)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_says_once_that_a_run_has_no_digests(here: Here, made: Made, run: Run, command: str) -> None:
    make_old(run)
    code, err = outcome(here, made, run, command)
    assert (code, err.count(f"run {run.root.name} has no digests")) == (0, 1), err


@pytest.mark.parametrize("command", ["verify", "verify --full", "resume", "gc"])
def test_each_proof_names_a_lost_chunk_of_a_run_without_digests(here: Here, made: Made, run: Run, command: str) -> None:
    make_old(run)
    remove(LEDGER, run)
    code, err = outcome(here, made, run, command)
    assert (code, f"/{LEDGER} has " in err, f"messages, and the receipt {MESSAGES}" in err) == (4, True, True), err


def test_the_data_source_says_that_a_run_has_no_digests(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    make_old(run)
    assert read_rows(run) == MESSAGES
    assert caplog.text.count(f"run {run.root.name} has no digests") == 1


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_a_segment_alters_what_is_sent(run: Run, step: int) -> None:
    """The digest of the footer and the checksums of pages prove what all bytes would."""
    archive = Archive(str(run.root.parent), run.root.name)
    assert load_run(archive).digests
    check = segment_check(archive)
    file = run.files(SEGMENTS)[0]
    whole, positions = file.read_bytes(), [(file.stem, number) for number in range(20)]
    expected = SegmentReader(archive, check).read(positions)
    tried, refused = range(0, len(whole), step), 0
    for at in tried:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert SegmentReader(archive, check).read(positions) == expected, at
        except StateRefused:
            refused += 1
    assert refused > len(tried) // 2
