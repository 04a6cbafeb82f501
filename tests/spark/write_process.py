"""A write in a process of its own: `python -m tests.spark.write_process JSON`, for tests that kill."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sbpair.spark import write
from tests.spark.sessions import SETTINGS


def main(document: str) -> None:
    """Write rows as a batch, through Spark Connect at `remote`, or as one batch of a `stream`, without ids.

    With `function`, by `sbpair.spark.write`.
    """
    given = json.loads(document)
    chosen = {**SETTINGS, "spark.sql.warehouse.dir": given["directory"], **given.get("settings", {})}
    if given.get("remote"):
        spark = SparkSession.builder.remote(given["remote"]).getOrCreate()
    else:
        spark = SparkSession.builder.master(given.get("master", "local[2,4]")).config(map=chosen).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
    body = f"cast(rpad(concat('body ', id, ' '), {given['bytes']}, 'x') AS binary) AS body"
    rows = spark.range(0, given["rows"], 1, given["partitions"]).selectExpr("concat('m', id) AS message_id", body)
    if given.get("stream"):
        source, checkpoint = (str(Path(given["directory"], name)) for name in ("source", "checkpoint"))
        if not Path(source, "_SUCCESS").exists():
            rows.select("body").write.mode("overwrite").parquet(source)
        stream = spark.readStream.schema("body binary").parquet(source).writeStream.format("sbpair")
        stream = stream.options(**given["options"]).option("checkpointLocation", checkpoint)
        stream.trigger(availableNow=True).start().awaitTermination()
    elif given.get("function"):
        write(rows, **given["options"])
    else:
        rows.write.format("sbpair").mode("append").options(**given["options"]).save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
