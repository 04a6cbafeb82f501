"""A Parquet file that is built in memory, and its footer."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sbpair.replay.schema import DISTINCT


class Footer(NamedTuple):
    """A file's footer: run, version and shards in `metadata`; `schema` without metadata."""

    metadata: dict[str, str]
    rows: int
    schema: pa.Schema


class TableFile:
    """A Parquet file in memory, written one row group at a time. Encoded groups are not held twice."""

    def __init__(self, schema: pa.Schema, *, large: bool) -> None:
        """Choose the encoding: `large` suits many messages, and takes twice as long for some hundred rows."""
        self.rows = 0
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            write_page_checksum=True,
            compression="zstd" if large else "snappy",
            compression_level=1 if large else None,
            # Statistics of messages are never read, and would fill most of a footer.
            write_statistics=[name for name in schema.names if name != "message"] if large else False,
            use_dictionary=[name for name in schema.names if name not in DISTINCT],
        )

    def add(self, table: pa.Table) -> None:
        """Append row groups."""
        self._writer.write_table(table)
        self.rows += len(table)

    def content(self) -> pa.Buffer:
        """Close the file and return it; nothing more can be added."""
        self._writer.close()
        return self._sink.getvalue()


def file_metadata(schema: pa.Schema) -> dict[str, str]:
    """Return run, version and shards from a file's schema."""
    return {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
