"""Bulk replay on Spark: drain the backlog into an archive, plan, send from the archive, and prove the result.

The law: what is counted is counted from files that are durable, never from what Spark says of its rows. A message is
settled in the backlog only once its segment is durable, and it is in the ledger only once the primary has accepted it.
This is the only part that imports pyspark and pyarrow, and nothing of it does before it is needed.
"""
