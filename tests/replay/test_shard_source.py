"""The archive as a mover's source: its files match what is received and settled, in any order."""

import errno
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map
from sbpair.backlog import Aliases, write_aliases
from sbpair.model.pair import Endpoint, Identity
from sbpair.replay import ledger as ledger_module
from sbpair.replay import send_task
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import DEDUPLICATED, HELD, LEDGER, QUARANTINE
from sbpair.replay.ledger import Entry, Key, Ledger, read_held, table_keys
from sbpair.replay.run import NamespaceAccess, ReplayOptions, ReplayRun
from sbpair.replay.send_task import COLUMNS, ShardReader, ShardSource, mark_deduplicated
from sbpair.replay.shard_plan import DUPLICATE_COLUMNS
from sbpair.replay.spark_task import TaskJob
from tests.replay.segments import created, write_segment

QUEUE = "contoso/x-servicebus-transfer/0"
SEGMENT_NAME = "s0"
SHARDS = 2


def key(number: int) -> Key:
    return (QUEUE, number, 1_000 + number, f"m{number}")


def message(number: int) -> bytes:
    own = encode_map(APPLICATION_PROPERTIES, write_aliases(Aliases("orders", None, None)))
    properties = Properties(message_id=f"m{number}").encode()
    return Sections(properties=properties, application_properties=own, body=data_body(b"body")).join()


def batches(archive: Archive, count: int, size: int = 7) -> Iterator[Any]:
    """Return `count` messages of one segment, half of them in shard 0 and half in shard 1."""
    messages = [message(number) for number in range(count)]
    write_segment(archive, SEGMENT_NAME, [key(number) for number in range(count)], messages)
    rows = [(int(n >= count / 2), SEGMENT_NAME, n, len(messages[n])) for n in range(count)]
    for start in range(0, count, size):
        columns = zip(*rows[start : start + size], strict=True)
        yield pa.RecordBatch.from_pydict(dict(zip(COLUMNS, columns, strict=True)))


def written(archive: Archive, kind: str) -> list[Key]:
    def read(path: str) -> list[Key]:
        return list(read_held(archive, path)) if kind == HELD else table_keys(archive.read_table(path))

    return [each for path in archive.files(kind) for each in read(path)]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return created(tmp_path)


def source(archive: Archive, count: int) -> ShardSource:
    # It looks for the segments before it looks at the rows.
    rows = list(batches(archive, count))
    ledger = Ledger(archive, SHARDS)
    return ShardSource(ShardReader(iter(rows), archive, ledger), archive, ledger, lambda: None)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from((0.0, 60.0)))
async def test_held_and_accepted_messages_are_in_a_file_at_every_moment(seed: int, chunk: int, seconds: float) -> None:
    """After a kill at any moment, the files name all messages that may have been sent."""

    async def play(archive: Archive) -> None:
        random = Random(seed)
        made = source(archive, 12)
        hands, accepted, taken = list[Any](), set[Key](), 0
        while not made.ended or hands:
            if not made.ended and random.random() < 0.5:
                arrivals = await made.receive(random.randint(1, 9))
                taken += len(arrivals)
                hands += arrivals
            elif hands:
                some = [hands.pop(0) for _ in range(random.randint(1, len(hands)))]
                assert await made.complete(some) == []
                accepted.update(each.row for each in some)
            ledger, sending = set(written(archive, LEDGER)), set(written(archive, HELD))
            assert ledger <= accepted
            assert accepted | {each.row for each in hands} <= ledger | sending
        assert await made.write_accepted() is None
        made.close()
        assert sorted(written(archive, LEDGER)) == [key(number) for number in range(12)]
        assert (taken, archive.files(HELD)) == (12, [])

    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_task, "MAX_CHUNK", chunk)
        patch.setattr(send_task, "CHUNK_SECONDS", seconds)
        await play(created(Path(directory)))


@settings(max_examples=30, deadline=None)
@given(
    takes=st.lists(st.integers(1, 4), max_size=8),
    chance=st.randoms(use_true_random=False),
    max_reported=st.integers(0, 6),
    at_the_end=st.integers(0, 3),
)
def test_every_held_message_is_recorded_and_few_others(
    takes: list[int], chance: Random, max_reported: int, at_the_end: int
) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "MAX_HELD_PER_FILE", max_reported)
        archive = created(Path(directory))
        ledger = Ledger(archive, SHARDS)
        held, number = list[int](), 0
        for limit in takes:
            ledger.hold({each: Entry(key(each), "orders") for each in range(number, number + limit)})
            held, number = [*held, *range(number, number + limit)], number + limit
            assert {key(each) for each in held} <= set(written(archive, HELD))
            gone = chance.sample(held, chance.randint(0, len(held)))
            ledger.release(gone)
            held = [each for each in held if each not in gone]
        ledger.hold({number: Entry(key(number), "orders")})
        assert len(written(archive, HELD)) <= (len(held) + 2) * max(max_reported, 4)
        left = [Entry(key(each), "orders") for each in range(at_the_end)]
        ledger.clear_held(keep=left)
        assert sorted(written(archive, HELD)) == sorted(each.key for each in left)


def test_after_a_failed_append_a_new_file_is_started(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(archive, SHARDS)
    ledger.record_held([Entry(key(0), "orders")])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", full)
        with pytest.raises(errors.MachineLacks):
            ledger.record_held([Entry(key(1), "orders")])
    ledger.record_held([Entry(key(2), "orders")])
    assert (len(archive.files(HELD)), sorted(written(archive, HELD))) == (2, [key(0), key(2)])


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "no space left on device")


def test_the_readable_part_of_a_truncated_list_counts(archive: Archive) -> None:
    ledger = Ledger(archive, SHARDS)
    boundaries = []
    for number in range(0, 6, 2):
        path = Path(archive.root, ledger.record_held([Entry(key(each), "orders") for each in (number, number + 1)]))
        boundaries.append(path.stat().st_size)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        for rest in (b"", bytes(len(whole) - size)):
            path.write_bytes(whole[:size] + rest)
            found = list[Key]()
            with nullcontext() if size in boundaries and not rest else pytest.raises(errors.StateRefused):
                found.extend(read_held(archive, path.relative_to(archive.root).as_posix()))
            minimum = 2 * sum(boundary <= size for boundary in boundaries)
            assert found[:minimum] == [key(number) for number in range(minimum)]


async def test_messages_without_an_outcome_keep_the_order_of_their_rows(archive: Archive) -> None:
    earlier = Ledger(archive, SHARDS, "earlier")
    earlier.write(LEDGER, 0, [Entry(key(1), "orders")])
    earlier.write(QUARANTINE, 1, [Entry(key(15), "orders", "why")])
    made, arrivals = source(archive, 20), list[Any]()
    while not made.ended:
        arrivals += await made.receive(5)
    assert [each.row for each in arrivals] == [key(number) for number in range(20) if number not in (1, 15)]
    assert [each.ordinal for each in arrivals] == sorted(each.ordinal for each in arrivals)


def test_a_duplicate_is_marked_once_its_first_copy_is_accepted(archive: Archive) -> None:
    ledger = Ledger(archive, SHARDS)
    ledger.write(LEDGER, 0, [Entry(key(0), "orders")])
    ledger.write(QUARANTINE, 0, [Entry(key(1), "orders", "why")])
    ledger.write(LEDGER, 1, [Entry(key(2), "orders")])

    def repeated(number: int, first: int, first_shard: int) -> tuple[Any, ...]:
        return *key(number), "orders", 1, *key(first), first_shard

    rows = [repeated(10, 0, 0), repeated(11, 1, 0), repeated(12, 3, 0), repeated(13, 2, 1), repeated(14, 2, 1)]
    batch = pa.RecordBatch.from_pydict(dict(zip(DUPLICATE_COLUMNS, zip(*rows, strict=True), strict=True)))

    nowhere = NamespaceAccess(Endpoint("contoso", "contoso", "contoso", 5671, tls=True, credential=Identity()), None)
    job = TaskJob(ReplayRun("r1", {}, (), SHARDS, 0, ReplayOptions()), archive.url, nowhere, nowhere, tasks=1)
    counts = [mark_deduplicated(job, iter([batch]))[0]["messages"] for _ in range(2)]
    assert counts == [3, 0]
    assert sorted(written(archive, DEDUPLICATED)) == [key(number) for number in (10, 13, 14)]


async def test_large_messages_are_read_in_small_chunks(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_task, "CHUNK_BYTES", 2 * len(message(0)))
    made = source(archive, 20)
    await made.receive(1)
    assert len(written(archive, HELD)) == 2
