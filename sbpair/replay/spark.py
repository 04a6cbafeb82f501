"""A Spark session with the settings that a replay needs, and the refusal of those that lose or double messages."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sbpair.errors import MachineLacks, Unsafe
from sbpair.replay.archive import SEGMENTS

ROWS_A_BATCH = 5_000
"""What a task takes from Spark at once, enough for Arrow to be fast: they are small, for no body is among them."""

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
DAEMON = "sbpair.replay.pyspark_daemon"

QUIET = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
logger.spark.name = org.apache.spark
logger.spark.level = off
# By this one's level Spark decides whether to say something about levels.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

JAVA = "-XX:TieredStopAtLevel=1 -XX:-UsePerfData"
"""For a local master's Java: the second compiler takes more of the cores from those who move messages than it gives
back, for what Java does with a message is little beside what they do."""

TASKS_BEYOND_CORES = 2
TRIES = 4
"""How often a local master has a task tried before it gives up: by itself it would not try again."""

FEW_TASKS = 4 + TASKS_BEYOND_CORES
"""Up to here a collector with one thread does: those with several would take the cores as well."""

_READING = re.compile(rf"while reading file\s\S*/({SEGMENTS}/\S+?\.parquet)")

SETTINGS = {
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    # What a disk has changed is not sent.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # A --where is what it says, whichever Spark reads it, and no template.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",
    # Since 4.0 small letters are asked for of a library that takes longer for each of them than for all else of a row.
    "spark.sql.icu.caseMappings.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_A_BATCH),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def local_master() -> str:
    """This machine, with a few tasks more than it has cores: each of them waits for a namespace now and then."""
    return f"local[{(os.cpu_count() or 1) + TASKS_BEYOND_CORES},{TRIES}]"


def local_cores(master: str) -> int | None:
    """How many tasks a local master runs at once; None for any other."""
    if not is_local(master):
        return None
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    return (os.cpu_count() or 1) if inside == "*" else int(inside) if inside.isdecimal() else 1


@contextmanager
def session(
    master: str, settings: Mapping[str, str], *, verbose: bool = False, package: str | None = None
) -> Iterator[Any]:
    """A session, ended with the block. `package` is a zip that every task can import from.

    Raises Unsafe where speculation is on, MachineLacks where none can be had.
    """
    if is_local(master):
        # Workers would take whatever python3 is first on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not verbose:
        _hush()
    with tempfile.TemporaryDirectory(prefix="sbpair-spark-") as directory:
        mine = signal.getsignal(signal.SIGINT)
        options = _java_options(master, settings.get(JAVA_OPTIONS, ""), Path(directory), verbose=verbose)
        daemon = {"spark.python.daemon.module": DAEMON} if is_local(master) and package is None else {}
        spark = _started(master, {**local_settings(master), **daemon, **settings, JAVA_OPTIONS: options}, directory)
        try:
            if threading.current_thread() is threading.main_thread():
                # Spark's own would cancel what is to be finished first.
                signal.signal(signal.SIGINT, mine)
            check(spark.sparkContext.getConf().get("spark.speculation", "false"))
            if package is not None:
                spark.sparkContext.addPyFile(package)
            yield spark
        finally:
            spark.stop()


@contextmanager
def ending(spark: Any) -> Iterator[None]:
    """Have it end, for which it takes a second, while the block does something else. To end it again does nothing."""
    stopping = threading.Thread(target=spark.stop, name="spark ends")
    stopping.start()
    try:
        yield
    finally:
        stopping.join()


def _hush() -> None:
    """PySpark would write a Java traceback of each error that is caught and told in a line."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # Spark 3.5 does not
        return
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def check(speculation: str) -> None:
    """Raise Unsafe for speculation: it would have the same messages sent by two tasks at the same time."""
    if speculation.strip().lower() == "true":
        raise Unsafe(
            "spark.speculation is on, and would send messages twice",
            hint="take it out of --conf",
        )


def _started(master: str, settings: Mapping[str, str], directory: str) -> Any:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("sbpair replay")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": directory, **settings}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError, RuntimeError) as error:
        raise MachineLacks(
            f"Spark does not start on {master}: {said(error)}",
            hint="check --master and --conf, or run again with -v to see what Java says",
        ) from error


def errors() -> tuple[type[Exception], ...]:
    """What Spark raises, of whichever version."""
    from py4j.protocol import Py4JError  # of 3.5
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def said(error: Exception) -> str:
    """What Spark, or Java, says in one line: without its traceback, and without the names of its exceptions."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    java = next((line for line in lines if line.startswith(": ")), lines[0])
    return re.sub(r"^: |\b[a-z][\w$.]*\.\w*(Exception|Error): ", "", java).strip()


def unreadable(text: str) -> str | None:
    """The path of the segment, where what Spark has said is that it cannot read one."""
    found = _READING.search(text)
    return found and found[1]


def local_settings(master: str) -> dict[str, str]:
    """What keeps a local master off the network, and its Java from the cores."""
    if not is_local(master):
        return {}
    collector = "Serial" if (local_cores(master) or 1) <= FEW_TASKS else "Parallel"
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        JAVA_OPTIONS: f"{JAVA} -XX:+Use{collector}GC",
    }


def _java_options(master: str, said: str, directory: Path, *, verbose: bool) -> str:
    """Ours, and then what the user has said: of two that contradict each other Java takes the last."""
    options = [local_settings(master).get(JAVA_OPTIONS, "")]
    if not verbose:
        (directory / "log4j2.properties").write_text(QUIET)
        options.append(f"-Dlog4j2.configurationFile=file:{directory}/log4j2.properties")
    return " ".join([*options, said]).strip()
