"""A queue that `sbpair replay drain` drains into files while Spark reads them as a stream, as the documents say."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.message import Properties, Sections, data_body
from sbpair.replay.archive import DIGESTS, PARQUET, SEGMENTS, Archive
from sbpair.replay.digests import JSON
from sbpair.replay.verify import prove_run
from tests.kit.stranded import put
from tests.kit.waiting import until
from tests.replay.segments import rows_of
from tests.replay.world import World
from tests.spark.sessions import ROOT, session

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout_seconds(1_800)]

KILLS, MESSAGES = 20, 40
LOCK_SECONDS = 60


class Drain:
    """A drain of the primary's queue `orders`, each time in a process of its own."""

    def __init__(self, place: World, directory: Path) -> None:
        self._place, self._directory, self.sent = place, directory, list[str]()
        self.archive = Archive(str(directory / "archive"), "orders")
        self._queue = place.running.namespace.queue("orders")

    def start(self) -> subprocess.Popen[bytes]:
        words = ["orders", "--archive", self.archive.url, "--run", "orders", "--watch", "--seal", "0.2s"]
        command = [sys.executable, "-m", "sbpair", "replay", "drain", *words]
        return subprocess.Popen(command, env=self._place.shell(self._directory), stderr=subprocess.DEVNULL)

    def put(self) -> None:
        for number in range(len(self.sent), len(self.sent) + MESSAGES):
            self.sent.append(f"m{number}")
            properties = Properties(message_id=self.sent[-1]).encode()
            payload = Sections(properties=properties, body=data_body(b"text %d" % number)).join()
            self._place.running.do(lambda payload=payload: put(self._queue, payload))  # type: ignore[misc]

    def stores(self, kind: str, *, whole: bool) -> Callable[[], bool]:
        """Return whether a file of this kind has come since, whole or in part."""
        before, suffix = {*self.archive.sizes(kind)}, JSON if kind == DIGESTS else PARQUET

        def found() -> bool:
            new = {path.rpartition("/")[2] for path in {*self.archive.sizes(kind)} - before if suffix in path}
            return any(not (whole and name.startswith(".")) for name in new)

        return found

    def is_empty(self) -> bool:
        return not self._messages()

    def _messages(self) -> list[Any]:
        return self._place.running.do(lambda: [*self._queue.messages.peek(0, 10**6)])


def documented(spark: Any, directory: Path) -> Any:
    """Start the stream of the documents, with other directories. Returns its query."""
    text = (ROOT / "sbpair/replay/ARCHIVE.md").read_text().partition("<!-- stream -->\n```python\n")[2]
    names = {"spark": spark}
    exec(text.partition("```")[0].replace("/mnt", str(directory)), names)  # noqa: S102
    return names["query"]


async def test_twenty_kills_of_the_drain_lose_no_message_of_a_stream(place: World, tmp_path: Path) -> None:
    drain = Drain(place, tmp_path)
    running = drain.start()
    await until(lambda: drain.archive.exists(f"{SEGMENTS}/.stream"))
    with session(place.running, tmp_path) as spark:
        query = documented(spark, tmp_path)
        for number in range(KILLS):
            drain.put()
            kind, whole = ((SEGMENTS, False), (SEGMENTS, True), (DIGESTS, True))[number % 3]
            happens = drain.stores(kind, whole=whole)
            await until(lambda happens=happens, drain=running: happens() or drain.poll() is not None)
            assert running.poll() is None
            running.kill()
            running.wait()
            place.running.advance(LOCK_SECONDS + 1)
            running = drain.start()
        drain.put()
        await until(lambda: drain.is_empty() or running.poll() is not None)
        running.terminate()
        assert running.wait() == 0
        query.processAllAvailable()
        rows = spark.read.parquet(str(tmp_path / "lake/orders")).collect()
        query.stop()
    archived = Counter(row["message_id"] for row in rows_of(drain.archive, SEGMENTS))
    proof = prove_run(drain.archive, full=True)[1]
    assert {*archived} == {*drain.sent}
    assert proof.copies == archived.total() - len(archived) > 0
    assert Counter(row.message_id for row in rows) == Counter(drain.sent), "each once in the lake"
    assert {row.message_id: row.body_text for row in rows} == {name: f"text {name[1:]}" for name in drain.sent}
