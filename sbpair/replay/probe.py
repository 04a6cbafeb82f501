"""Whether those who run the tasks have the same archive: each reads what the driver wrote, and answers there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sbpair.errors import Unsafe
from sbpair.replay.archive import REPORT, Archive

if TYPE_CHECKING:
    from sbpair.replay.run import Job


def question(archive: Archive) -> str:
    """Write one, and answer its path."""
    path = f"{REPORT}/probe-{uuid.uuid4()}"
    archive.write(path, b"sbpair")
    return path


def answer(job: Job, path: str) -> Any:
    """For `mapInArrow`: each task answers the path of what it wrote."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _batch in batches:
            archive = job.open()
            try:
                archive.read(path)
            except FileNotFoundError:
                raise Unsafe(
                    f"an executor does not see the archive {job.archive}",
                    hint="mount it at the same path on every one of them",
                ) from None
            mine = f"{path}-{uuid.uuid4()}"
            archive.write(mine, b"sbpair")
            yield pa.RecordBatch.from_pydict({"answer": [mine]})

    return task
