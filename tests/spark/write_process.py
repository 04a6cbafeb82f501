"""A write in a process of its own: `python -m tests.spark.write_process JSON`, for tests that kill."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from tests.spark.sessions import SETTINGS


def main(document: str) -> None:
    given = json.loads(document)
    chosen = {**SETTINGS, "spark.sql.warehouse.dir": given["directory"], **given.get("settings", {})}
    spark = SparkSession.builder.master(given.get("master", "local[2,4]")).config(map=chosen).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    body = f"cast(rpad(concat('body ', id, ' '), {given['bytes']}, 'x') AS binary) AS body"
    rows = spark.range(0, given["rows"], 1, given["partitions"]).selectExpr("concat('m', id) AS message_id", body)
    rows.write.format("sbpair").mode("append").options(**given["options"]).save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
