"""The data source in a real Spark: batches and streams to queues, and an archive as rows. One session for all."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sbpair.replay.archive import RECEIPT_FILE, Archive
from tests.replay.tasks import drain, stranded
from tests.replay.world import World
from tests.spark.sessions import session

pytestmark = pytest.mark.java
of_spark_4 = pytest.mark.skipif(find_spec("pyspark.sql.datasource") is None, reason="Spark 3.5 has no data sources")


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    from tests.kit.running import Running

    with Running() as made:
        yield made


@pytest.fixture(scope="module")
def spark(running: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with session(running, tmp_path_factory.mktemp("driver")) as made:
        yield made


@pytest.fixture
def place(running: Any, request: pytest.FixtureRequest) -> World:
    """Create queues of this test's own."""
    number = abs(hash(request.node.name)) % 10**6
    return World(running, [f"orders-{number}", f"invoices-{number}"], 1, first=number)


def rows(spark: Any, count: int, partitions: int = 3) -> Any:
    columns = "concat('m', id) AS message_id", "cast(concat('body ', id) AS binary) AS body"
    return spark.range(0, count, 1, partitions).selectExpr(*columns, "struct(id AS number, 'a' AS text) AS properties")


def writer(frame: Any, place: World, ledger: Path, **options: str) -> Any:
    given = {"destination": place.destinations[0], "ledger": str(ledger), "run": "r1", **options}
    return frame.write.format("sbpair").mode("append").options(**given)


def bodies(place: World) -> dict[str, bytes]:
    found = [message.sections for messages in place.arrived().values() for message in messages]
    return {str(each.read_properties().message_id): b"".join(v for _, v in each.read_body()) for each in found}


@of_spark_4
def test_a_frame_is_sent_once_however_often_it_is_written(spark: Any, place: World, tmp_path: Path) -> None:
    writer(rows(spark, 300), place, tmp_path).save()
    assert bodies(place) == {f"m{n}": b"body %d" % n for n in range(300)}
    writer(rows(spark, 400, partitions=2), place, tmp_path).save()
    assert len(place.ids()) == 400
    receipt = json.loads((tmp_path / "r1" / "report" / "receipt.json").read_text())
    assert (receipt["rows"], receipt["acknowledged_before"], receipt["acknowledged"]) == (400, 300, 100)
    events = sorted(path.name.split("-", 2)[2] for path in (tmp_path / "r1" / "report" / "events").iterdir())
    assert events == ["job-committed.json"] * 2 + ["job-started.json"] * 2


@of_spark_4
def test_refusals_name_the_reason_and_the_remedy(spark: Any, place: World, tmp_path: Path) -> None:
    for frame, options, mode, expected in (
        (
            rows(spark, 1),
            {"destination": "nowhere"},
            "append",
            "there is no queue or topic 'nowhere' in contoso; create",
        ),
        (rows(spark, 1), {}, "overwrite", "a queue cannot be overwritten; use .mode"),
    ):
        with pytest.raises(Exception, match=r"sbpair\.errors") as refused:
            writer(frame, place, tmp_path, **options).mode(mode).save()
        assert expected in str(refused.value)
    assert place.ids() == []
    stream = spark.readStream.format("sbpair")
    with pytest.raises(Exception, match=r"sbpair replay drain QUEUE .* spark\.readStream\.schema"):
        stream.load()
    written = stream.schema("body binary").load(str(tmp_path)).writeStream.format("noop")
    with pytest.raises(Exception, match=r"sbpair replay drain QUEUE .* spark\.readStream\.schema"):
        written.option("checkpointLocation", str(tmp_path / "checkpoint")).start().processAllAvailable()


def with_a_wrong_last_row(spark: Any, place: World) -> Any:
    """Return rows of three partitions; the last row of the last one has no id."""
    columns = rows(spark, 300).schema.names
    wrong = "if(message_id = 'm299', null, message_id) AS message_id"
    return rows(spark, 300).selectExpr(wrong, *columns[1:], f"'{place.destinations[0]}' AS destination")


@of_spark_4
def test_a_check_of_all_rows_sends_nothing_if_one_is_wrong(spark: Any, place: World, tmp_path: Path) -> None:
    from sbpair.errors import UsageError
    from sbpair.spark import write

    place_of_row = "row 99 of partition 2: column message_id: null or empty"
    frame = with_a_wrong_last_row(spark, place)
    options = {"ledger": str(tmp_path), "run": "r1"}
    with pytest.raises(Exception, match=f"{place_of_row}.*nothing was sent; give each row an id"):
        frame.write.format("sbpair").mode("append").option("check", "only").options(**options).save()
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(UsageError, match=f"{place_of_row}.*nothing was sent"):
        write(frame, **options)
    assert place.ids() == []
    receipt = write(frame.filter("message_id <> 'm299'"), **options)
    assert (receipt["rows"], receipt["balanced"], len(place.ids())) == (299, True, 299)


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="this Spark has no Arrow writers of streams")
@pytest.mark.slow
def test_a_stream_sends_each_batch_once(spark: Any, place: World, tmp_path: Path) -> None:
    incoming, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    incoming.mkdir()
    options = {"destination": place.destinations[0], "ledger": str(tmp_path / "ledger"), "run": "stream"}

    def arrive(name: str, numbers: range) -> None:
        (incoming / name).write_text("".join(f'{{"body": "b{number}"}}\n' for number in numbers))

    def run() -> None:
        frame = spark.readStream.schema("body string").json(str(incoming))
        stream = frame.writeStream.format("sbpair").options(**options).option("checkpointLocation", str(checkpoint))
        stream.trigger(availableNow=True).start().awaitTermination()

    arrive("a.json", range(5))
    run()
    arrive("b.json", range(3))  # equal bodies are other rows
    run()
    assert sorted(bodies(place).values()) == sorted([b"b%d" % n for n in (*range(5), *range(3))])
    # The batch is retried: Spark lost its commit, and the ledger has all of its messages.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert len(place.ids()) == 8
    receipts = sorted((tmp_path / "ledger" / "stream" / "report").glob("*/1.json"))
    [receipt] = [json.loads(path.read_text()) for path in receipts]
    assert (receipt["batch"], receipt["rows"], receipt["acknowledged_before"]) == (1, 3, 3)


@pytest.mark.parametrize(
    "function", [pytest.param(False, marks=of_spark_4), pytest.param(True, marks=pytest.mark.slow)]
)
def test_an_archive_is_read_and_written_back(function: bool, spark: Any, place: World, tmp_path: Path) -> None:
    from sbpair.spark import read, write

    job = stranded(place, tmp_path / "archive", 40)
    drain(job)
    archive = Archive(job.archive, job.run.id)
    kinds = "destination string, session_id string, message_id string, body binary, time_to_live interval day to second"
    columns = [each.split()[0] for each in kinds.split(", ")]

    def load(**schema: str) -> Any:
        source = spark.read.schema(**schema) if schema else spark.read
        return read(spark, archive.root) if function else source.format("sbpair").load(archive.root)

    with pytest.raises(Exception, match="run r1 is still going, or was interrupted"):
        load()
    archive.write_json(RECEIPT_FILE, {})
    assert {row.message_id: bytes(row.body) for row in load().collect()} == {f"m{n}": b"m%d" % n for n in range(40)}
    if not function:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        chosen = load().where("message_id IN ('m7', 'm8') AND body_text <> 'm8'")
        assert " IN (" not in chosen._jdf.queryExecution().executedPlan().toString(), "the source filters by the id"
        assert [row.message_id for row in chosen.collect()] == ["m7"]
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    frame = load(schema=kinds).select(columns)
    with ThreadPoolExecutor(1) as threads:  # there Spark finds no data source in Python
        for known in (0, 40):
            options = {"ledger": str(tmp_path / "ledger"), "run": "r1"}
            if function:
                receipt = threads.submit(write, frame, **options).result()
            else:
                frame.write.format("sbpair").mode("append").options(**options).save()
                receipt = json.loads((tmp_path / "ledger" / "r1" / "report" / "receipt.json").read_text())
            assert (receipt["rows"], receipt["acknowledged_before"], receipt["balanced"]) == (40, known, True)
    assert sorted(place.ids()) == sorted(f"m{n}" for n in range(40))
    assert {*place.by_session()} == {(name, f"session-{n}") for name in place.destinations for n in range(5)}
    assert place.altered() == []


@pytest.mark.slow
def test_a_batch_within_foreach_batch_is_sent_once(spark: Any, place: World, tmp_path: Path) -> None:
    incoming, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    incoming.mkdir()
    (incoming / "a.json").write_text("".join(f'{{"body": "b{n}", "id": "m{n}"}}\n' for n in range(5)))

    def send(frame: Any, _batch: int) -> None:
        from sbpair.spark import write

        write(frame, destination=place.destinations[0], ledger=str(tmp_path / "ledger"), run="r1")

    for _ in range(2):
        stream = spark.readStream.schema("body string, id string").json(str(incoming)).writeStream.foreachBatch(send)
        stream = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        stream.start().awaitTermination()
        for path in (checkpoint / "commits").iterdir():
            path.unlink()
    assert sorted(place.ids()) == [f"m{n}" for n in range(5)]
    [receipt] = (tmp_path / "ledger" / "r1" / "report").glob("*/0.json")
    assert json.loads(receipt.read_text())["acknowledged_before"] == 5
