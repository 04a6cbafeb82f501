"""Bulk replay on Spark: drain the backlog into an archive, plan, send from the archive, and prove the result.

Invariant: counts come from durable files, never from Spark's rows. A message is settled in the backlog only once its
segment is durable, and is in the ledger only once the primary has accepted it. Only this package imports pyspark and
pyarrow, each when it is needed.
"""
