"""The Spark data source `sbpair`: any DataFrame to a queue or topic, and the archive of a replay as a DataFrame.

`SEGMENT_SCHEMA` and `decoded` are for the files of `sbpair replay drain`, which Spark reads as a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.spark.archive_frame import SEGMENT_SCHEMA as SEGMENT_SCHEMA
    from sbpair.spark.archive_frame import decoded as decoded
    from sbpair.spark.archive_frame import read as read
    from sbpair.spark.data_source import DefaultSource as DefaultSource
    from sbpair.spark.write_task import write as write

__all__ = ["SEGMENT_SCHEMA", "DefaultSource", "decoded", "read", "write"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.spark.archive_frame": "SEGMENT_SCHEMA, decoded, read",
        "sbpair.spark.data_source": "DefaultSource",
        "sbpair.spark.write_task": "write",
    },
)
