"""Segments with any rows and row groups, written without a drain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sbpair.replay.archive import Archive
from sbpair.replay.ledger import KEY, Key
from sbpair.replay.segment import SEGMENT, segment_path

QUEUE = "contoso/x-servicebus-transfer/0"


def key(number: int, message_id: str | None = None) -> Key:
    return (QUEUE, number, 1_000 + number, message_id or f"m{number}")


def created(directory: Path | str, run: str = "r1") -> Archive:
    archive = Archive(str(directory), run)
    archive.create()
    return archive


def rows_of(archive: Archive, kind: str) -> list[dict[str, Any]]:
    """Return the rows of all files of a kind."""
    return [row for path in archive.files(kind) for row in archive.read_table(path).to_pylist()]


def write_segment(
    archive: Archive,
    name: str,
    keys: Sequence[Key],
    messages: Sequence[bytes],
    *,
    group: int = 1_000,
    shards: int = 2,
    queue: str = "",
    **same: object,
) -> None:
    """Write rows, in row groups of `group`, as a segment, in a directory of its `queue` as by earlier versions.

    `same` are columns that are equal in all of them.
    """
    rows = [
        {"segment": name, "position": at, **dict(zip(KEY, key, strict=True)), "destination": "orders"}
        | {"size": len(message), "message": message, **same}
        for at, (key, message) in enumerate(zip(keys, messages, strict=True))
    ]
    file = archive.new_table(SEGMENT, shards, large=True)
    for start in range(0, len(rows), group) or [0]:
        file.add(pa.Table.from_pylist(rows[start : start + group], schema=SEGMENT))
    archive.put(segment_path(f"{queue}/{name}".strip("/")), file)
