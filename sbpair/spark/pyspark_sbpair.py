"""The module that Spark finds by its name: it registers the data source `sbpair`. A wheel has it at its top level."""

from sbpair.spark.data_source import DefaultSource

__all__ = ["DefaultSource"]
