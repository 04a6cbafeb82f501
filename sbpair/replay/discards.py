"""The messages of an archive that their topics would discard, counted before the first of them is sent.

A topic keeps no message that none of its subscriptions takes, and the service reports no error.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sbpair.azure.destinations import open_destinations
from sbpair.errors import EntityMissing, SbpairError, WouldDiscard
from sbpair.move.message.route import Send, router
from sbpair.move.topic_guard import takes
from sbpair.replay.ledger import Ledger
from sbpair.replay.send_task import CHUNK_BYTES, MAX_CHUNK, ShardReader
from sbpair.replay.spark_task import run_in_worker

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint
    from sbpair.move.interface import Sendable
    from sbpair.replay.run import TaskJob

COUNTS = ("messages", "discarded", "not_evaluated")
SAFE = "everything is safe in the archive"


@dataclass(frozen=True, slots=True)
class FoundTopics:
    """Topics among the destinations: those without a subscription, and `selective` ones, which take some messages.

    `unchecked` is why some could not be read.
    """

    without: tuple[str, ...]
    selective: tuple[str, ...]
    unchecked: str = ""

    def check(self, job: TaskJob) -> None:
        """Raise WouldDiscard for a topic without a subscription."""
        if self.without:
            some = ", ".join(self.without[:3])
            raise WouldDiscard(
                f"{some}: a topic without a subscription, which would discard its messages; {SAFE}",
                hint=_hint(job, "create the subscription"),
            )


def _hint(job: TaskJob, way: str, most: str = "") -> str:
    resume = f"sbpair replay resume {job.run.id}"
    return f"{way}, then run {resume}; or run {resume} {most or '--allow-discard'}"


async def find_topics(primary: Endpoint, destinations: Sequence[str]) -> FoundTopics:
    """Read the destinations. Never raises: without the Manage claim, all are unchecked."""
    without, selective, unchecked = list[str](), list[str](), ""
    async with open_destinations(primary) as control:
        for destination in destinations:
            try:
                topic = (await control.get(destination)).topic
            except EntityMissing:
                continue  # quarantined
            except SbpairError as error:
                unchecked = error.message
                break
            if topic is not None and not topic.take_all:
                (selective if topic.subscriptions else without).append(destination)
    return FoundTopics(tuple(without), tuple(selective), unchecked)


def discard_task(job: TaskJob, topics: Sequence[str]) -> Any:
    """Return the function for `mapInArrow` over rows to send: it counts them by topic, as DISCARDS."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        counts = run_in_worker(_count(job, topics, batches))
        schema = pa.schema([("topic", pa.string()), *((name, pa.int64()) for name in COUNTS)])
        rows = [
            {"topic": name, **dict(zip(COUNTS, (found.total(), found[False], found[None]), strict=True))}
            for name, found in counts.items()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return task


async def _count(job: TaskJob, topics: Sequence[str], batches: Iterator[Any]) -> dict[str, Counter[bool | None]]:
    archive, now_ms = job.open(), int(time.time() * 1000)
    reader = ShardReader(batches, archive, Ledger(archive, job.run.shards), holds=False)
    route = router(job.run.options.ttl, lambda: now_ms)
    counts = {name.lower(): Counter[bool | None]() for name in topics}
    async with open_destinations(job.primary.endpoint()) as control:
        filters = {name: (await control.get(name)).topic for name in counts}
    while not reader.exhausted:
        for message in reader.read(MAX_CHUNK, CHUNK_BYTES):
            [send] = route([message.facts])
            name = send.destination.lower() if isinstance(send, Send) else ""
            topic = filters.get(name)
            if topic is not None and isinstance(send, Send):
                payload = b"".join(cast("Sendable", message).content.restore(send, now_ms)[1])
                counts[name][takes(topic, payload)] += 1
    return counts


def check_discards(job: TaskJob, rows: Sequence[Any]) -> list[str]:
    """Return what will be discarded, in words. Raises WouldDiscard if that is more than permitted."""
    discarded, unknown, whole = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        whole[row.topic] += row.messages
        discarded[row.topic] += row.discarded
        unknown[row.topic] += row.not_evaluated
    texts = [f"{count} of {whole[name]} for {name} match no subscription" for name, count in (+discarded).items()]
    limit, total = job.run.options.max_discard, discarded.total()
    if limit is not None and total > limit:
        way, most = "create a subscription or a rule that takes them", f"--max-discard {total}"
        raise WouldDiscard(f"{'; '.join(texts)}; {SAFE}", hint=_hint(job, way, most))
    missing = [f"whether subscriptions of {name} take {count} is not known" for name, count in (+unknown).items()]
    return texts + missing
