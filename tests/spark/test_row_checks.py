"""Checks of rows before the first message: of all, of a partition, of a chunk, or without a send."""

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp.message import Sections
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.errors import MachineLacks, NotAuthorized, Unreachable, UsageError
from sbpair.spark import write_task
from sbpair.spark.row_messages import MAX_REASONS, CheckCounts, RowMessage, RowSpool, check_rows
from sbpair.spark.write_run import BATCH_CHECKS, FRAME_CHECKS, STREAM_CHECKS, WriteJob, refuse_job, start_job
from sbpair.spark.write_task import TaskClaim, TaskPlace, _check, _write
from tests.kit.waiting import until
from tests.replay.test_tasks import limited
from tests.replay.world import KEY, VARIABLES, World
from tests.spark.writes import ROWS, TEXT, environment_of, numbered, schema_of, start, write

TO_ANY = {**ROWS, "destination": TEXT}


def last_is_wrong(count: int) -> pa.RecordBatch:
    return pa.record_batch({"id": [f"m{n}" for n in range(count)], "body": [b""] * (count - 1) + [None]})


def checked(job: WriteJob, *partitions: pa.RecordBatch) -> dict[str, Any]:
    parts = [asyncio.run(_check(job, TaskPlace(number), iter([rows]))) for number, rows in enumerate(partitions)]
    return check_rows(CheckCounts(**asdict(each)) for each in parts)


def test_a_task_sends_nothing_if_its_last_row_is_wrong(place: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="row 2999 of partition 0: column body: null; no row of partition 0 is sent"):
        write(start(place, tmp_path), last_is_wrong(3_000))
    assert place.ids() == []
    with pytest.raises(UsageError, match=r"row 2999 of partition 0: column body: null$"):
        write(start(place, tmp_path, check="row"), last_is_wrong(3_000))
    assert place.ids(), "rows that are checked one chunk at a time are sent before the wrong one"


def test_a_wrong_row_ends_the_other_tasks_of_its_job(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path)
    for rows in (last_is_wrong(1), numbered([1])):  # the second is another task, and the first one's retry
        for partition in (0, 1):
            with pytest.raises(UsageError, match="row 0 of partition 0: column body: null"):
                asyncio.run(_write(job, TaskPlace(partition), iter([rows])))
    assert place.ids() == []
    assert write(start(place, tmp_path), numbered([1]))["acknowledged"] == 1


def test_a_task_that_sends_learns_of_a_wrong_row(place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_task, "CLAIM_SECONDS", 0.02)
    job = start(place, tmp_path)

    def has_ended(claim: TaskClaim) -> bool:
        try:
            claim.check()
        except UsageError as error:
            return error.message == "a row is wrong"
        return False

    async def hold() -> None:
        async with TaskClaim(job, TaskPlace(0), "a").kept() as claim:
            claim.check()
            refuse_job(job, UsageError("a row is wrong", hint="mend it"))
            await until(lambda: has_ended(claim))

    asyncio.run(hold())


def test_faults_are_counted_by_column_and_reason(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path, TO_ANY, check="only")
    good = {"id": ["a", "b", "c"], "body": [b"", b"", b""], "destination": ["orders", "invoices", "orders"]}
    assert checked(job, pa.record_batch(good)) == {
        "schema": "sbpair/spark-check/1",
        "rows": 3,
        "destinations": {"orders": 2, "invoices": 1},
    }
    wrong = {**good, "id": pa.array([None, "b", ""], pa.string()), "destination": ["orders", "nowhere", "orders"]}
    with pytest.raises(UsageError) as refused:
        checked(job, *map(pa.record_batch, (good, wrong, wrong)))
    assert refused.value.message == (
        "row 0 of partition 1: column id: null or empty: a row that is sent once needs an id (and 3 more rows);"
        " row 1 of partition 1: column destination: there is no queue or topic 'nowhere' in contoso (and 1 more row);"
        " nothing was sent"
    )
    assert "create it, or correct the name" in refused.value.hint
    assert (place.ids(), [*tmp_path.iterdir()]) == ([], []), "a check sends nothing, and writes no ledger"


def test_an_error_names_some_reasons_and_counts_the_others(place: World, tmp_path: Path) -> None:
    texts = [f"{number} days ago" for number in range(MAX_REASONS + 5)]
    job = start(place, tmp_path, {**ROWS, "time_to_live": TEXT}, check="only")
    rows = pa.record_batch({"id": texts, "body": [b""] * len(texts), "time_to_live": texts})
    with pytest.raises(UsageError, match="10 rows for other reasons; nothing was sent") as refused:
        checked(job, rows, rows.slice(MAX_REASONS))
    assert refused.value.message.count("expected a duration") == MAX_REASONS


def test_a_check_leaves_out_rows_that_were_sent(place: World, tmp_path: Path) -> None:
    write(start(place, tmp_path), numbered([1]))
    job = start(place, tmp_path, checks=FRAME_CHECKS)
    assert checked(job, numbered([1, 2]))["destinations"] == {"orders": 1}


def test_a_check_refuses_destinations_that_take_no_message(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path, TO_ANY, check="only")
    rows = pa.record_batch({"id": ["a"], "body": [b""], "destination": ["orders"]})
    queue = place.running.namespace.queue("orders")
    place.running.do(lambda: queue.update(replace(queue.description, status="SendDisabled")))
    with pytest.raises(Unreachable, match="disabled for Send"):
        checked(job, rows)


def test_a_key_without_the_right_to_send_is_refused(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(place, tmp_path, TO_ANY)
    namespace = place.running.namespace
    namespace.keys = (AuthorizationRule("RootManageSharedAccessKey", KEY, KEY, frozenset({AccessRight.LISTEN})),)
    head, _, rest = place.environment[VARIABLES[0]].partition(";SharedAccessKey=")
    monkeypatch.setenv(VARIABLES[0], f"{head};SharedAccessKey={KEY};{rest.partition(';')[2]}")
    rows = pa.record_batch({"id": ["a", "b"], "body": [b"", b""], "destination": ["orders", "invoices"]})
    for run in (write, checked):
        with pytest.raises(NotAuthorized, match="Send"):
            run(job, rows)
    assert place.ids() == []


def test_a_check_of_all_rows_needs_the_whole_frame(place: World, tmp_path: Path) -> None:
    for check, stream, checks in (("full", False, BATCH_CHECKS), ("only", True, STREAM_CHECKS)):
        options = {"destination": "orders", "ledger": str(tmp_path), "run": "r1", "check": check}
        with pytest.raises(UsageError, match=f"option check: expected task.*, got '{check}'") as refused:
            start_job(options, schema_of(ROWS), environment_of(place), stream=stream, checks=checks)
        assert "sbpair.spark.write" in refused.value.hint


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
PARTS = st.binary(max_size=9)
MESSAGES = st.builds(
    RowMessage,
    TEXTS,
    st.none() | TEXTS,
    st.none() | st.integers(1, 2**80),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    TEXTS,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.builds(Sections, properties=PARTS, application_properties=PARTS, body=PARTS),
)


@settings(max_examples=30)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=3), max_size=4), st.sampled_from([1, 10_000]))
def test_a_spool_returns_what_was_added(chunks: list[list[RowMessage]], memory_bytes: int) -> None:
    spool = RowSpool(memory_bytes)
    for chunk in chunks:
        spool.add(chunk)
    spool.rewind()
    assert [*iter(spool.read, None)] == chunks
    spool.close()


def test_a_full_disk_of_a_worker_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/nonexistent,{tmp_path}")
    row = RowMessage("orders", None, None, None, "m", 1, 2, Sections(body=b"x" * 1_000_000))
    spool = RowSpool(1)
    full = pytest.raises(MachineLacks, match=f"{tmp_path} of this worker cannot keep the checked rows")
    with limited(tmp_path), full as refused:
        spool.add([row])
    spool.close()
    assert "check=row" in refused.value.hint
    assert [*tmp_path.iterdir()] == []
