"""A Spark session that finds the data source by itself, as where sbpair is installed."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sbpair.spark
from tests.kit.running import Running
from tests.replay.conftest import end_java
from tests.replay.world import HASTY, shell

ROOT = Path(sbpair.__file__).parents[1]
SETTINGS = {
    **HASTY,
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def environment(running: Running, directory: Path) -> dict[str, str]:
    """Return the environment of a driver in which sbpair is installed, and its namespaces are named."""
    site = directory / "site"
    site.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(sbpair.spark.__file__).with_name("pyspark_sbpair.py"), site)
    found = os.environ.get("PYTHONPATH", "")
    python = {"PYTHONPATH": f"{site}:{ROOT}:{found}", "PYSPARK_PYTHON": sys.executable, "HOME": str(directory)}
    return {**shell(running, directory), **python}


@contextmanager
def session(running: Running, directory: Path) -> Iterator[Any]:
    """Start a Java of its own, and a session."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(running, directory).items():
            patch.setenv(name, value)
        chosen = {**SETTINGS, "spark.sql.warehouse.dir": str(directory / "warehouse")}
        spark = SparkSession.builder.master("local[2,4]").appName("sbpair tests").config(map=chosen).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield spark
        finally:
            spark.stop()
            end_java()
