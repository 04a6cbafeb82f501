"""Masters and settings of Spark, which need no Spark: those of a replay, and what may not be set."""

from __future__ import annotations

import os
import re

from sbpair.errors import Unsafe, UsageError
from sbpair.model.connection_string import holds_secret

ROWS_PER_BATCH = 5_000  # rows a task takes from Spark at a time: enough for Arrow to be fast, and small without bodies
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

PLATFORM = "platform"
"""The master of a job that spark-submit or a managed platform has started: the one that it was started with."""

LOCAL_JAVA = "-XX:TieredStopAtLevel=1 -XX:-UsePerfData"  # the second compiler takes more time than it saves
EXTRA_TASKS = 2
LOCAL_TASK_TRIES = 4  # tries of a task on a local master, which by default tries once
FEW_TASKS = 4 + EXTRA_TASKS  # up to so many tasks the serial collector suffices; a parallel one would take their cores

HIDDEN_SETTING = (
    r"(?i)secret|password|token|account[._]key|[._]sas[._]|access[._]?key|connection[._]?string|credential$"
)
"""Names of settings that hold secrets: Spark's own pattern of what it hides, and those of stores and of Service Bus."""

SETTINGS = {
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    # Refuse data that the disk has changed.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # --where means the same in every version of Spark, and is not a template.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.variable.substitute": "false",
    # Since 4.0 lower() uses ICU, which takes longer than all else that is done for a row.
    "spark.sql.icu.caseMappings.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_BATCH),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # What its pages, its event log and its own logs hide; the password of a proxy is in its variable.
    "spark.redaction.regex": f"{HIDDEN_SETTING}|proxy",
    "spark.ui.showConsoleProgress": "false",
}

_PUBLIC_NAME = re.compile(
    r"(file|provider|path)$|^spark\.kubernetes\.(driver|executor)\.secret(s|KeyRef)\.", re.IGNORECASE
)
"""Names of settings that name a file, a class, or a secret of Kubernetes."""

_SECRET_VALUE = re.compile(r"SharedAccessKey=|\bsig=", re.IGNORECASE)
_JAVA_PROPERTY = re.compile(r"-D([^=\s]+)=")

SESSION_SETTINGS = {
    **{name: value for name, value in SETTINGS.items() if name.startswith("spark.sql.")},
    # Hadoop's settings of a session have no prefix.
    "parquet.page.verify-checksum.enabled": "true",
}


def check_setting(name: str, value: str) -> None:
    """Raise UsageError for a secret in a setting: other users of this machine can read the arguments of a command."""
    names = [name, *_JAVA_PROPERTY.findall(re.sub("[\"']", "", value))]
    secret = [each for each in names if re.search(HIDDEN_SETTING, each) and not _PUBLIC_NAME.search(each)]
    if secret or _SECRET_VALUE.search(value) or holds_secret(value):
        what = f"-D{secret[0]} of {name}" if secret and secret[0] != name else name
        raise UsageError(
            f"--conf {what} holds a secret, and other users of this machine can read the arguments of a command",
            hint="set it in spark-defaults.conf, in the environment of driver and workers, or use the machine's role",
        )


def check_master(master: str) -> None:
    """Raise UsageError for a text that Spark accepts as no master."""
    if master != PLATFORM and not re.fullmatch(r"(local(-cluster)?|yarn)(\[.*\])?|(spark|k8s|mesos)://.+", master):
        raise UsageError(
            f"--master: {master!r} is not a Spark master",
            hint="expected local[N], spark://HOST:PORT, k8s://URL or yarn",
        )


def is_local_master(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def local_master() -> str:
    """Return the master for this machine, with more tasks than cores: tasks wait for the namespaces."""
    return f"local[{(os.cpu_count() or 1) + EXTRA_TASKS},{LOCAL_TASK_TRIES}]"


def local_parallelism(master: str) -> int | None:
    """Return how many tasks a local master runs at once, or None for any other master."""
    if not is_local_master(master):
        return None
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    return (os.cpu_count() or 1) if inside == "*" else int(inside) if inside.isdecimal() else 1


def check_speculation(speculation: str) -> None:
    """Raise Unsafe for speculation, which would let two tasks send the same messages at once."""
    if speculation.strip().lower() == "true":
        raise Unsafe("spark.speculation is on, and would send messages twice", hint="remove it from --conf")


def local_settings(master: str) -> dict[str, str]:
    """Return settings that keep a local master off the network, without a UI, and its Java from taking the cores."""
    if not is_local_master(master):
        return {}
    collector = "Serial" if (local_parallelism(master) or 1) <= FEW_TASKS else "Parallel"
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        JAVA_OPTIONS: f"{LOCAL_JAVA} -XX:+Use{collector}GC",
    }
