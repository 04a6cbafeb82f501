"""The Spark data source `sbpair`: any DataFrame to a queue or topic, and the archive of a replay as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.spark.data_frames import read as read
    from sbpair.spark.data_frames import write as write
    from sbpair.spark.data_source import DefaultSource as DefaultSource

__all__ = ["DefaultSource", "read", "write"]

__getattr__, __dir__ = lazy_names(
    __name__, {"sbpair.spark.data_frames": "read, write", "sbpair.spark.data_source": "DefaultSource"}
)
