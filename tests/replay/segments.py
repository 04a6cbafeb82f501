"""Segments with any rows and row groups, written without a drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sbpair.replay.archive_layout import segment_path
from sbpair.replay.schema import SEGMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.replay.archive import Archive
    from sbpair.replay.ledger import Key


def write_segment(
    archive: Archive, name: str, keys: Sequence[Key], messages: Sequence[bytes], *, group: int = 1_000, shards: int = 2
) -> None:
    """Write rows of one queue, in row groups of `group`."""
    file = archive.new_table(SEGMENT, shards, large=True)
    for start in range(0, len(keys), group):
        rows = [
            {"segment": name, "position": start + index, **_row(key, message)}
            for index, (key, message) in enumerate(
                zip(keys[start : start + group], messages[start : start + group], strict=True)
            )
        ]
        file.add(pa.Table.from_pylist(rows, schema=SEGMENT))
    archive.put(segment_path(keys[0][0], name), file)


def _row(key: Key, message: bytes) -> dict[str, object]:
    queue, number, enqueued_at, message_id = key
    return {
        "queue": queue,
        "sequence_number": number,
        "enqueued_at_ms": enqueued_at,
        "message_id": message_id,
        "destination": "orders",
        "size": len(message),
        "message": message,
    }
