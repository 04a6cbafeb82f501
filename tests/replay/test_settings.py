"""The settings of Spark on this machine."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from sbpair import errors
from sbpair.cli import logs
from sbpair.cli.options.common import Display
from sbpair.replay import pyspark_daemon, shard_plan, spark, spark_settings
from sbpair.replay.archive import Archive
from tests.kit.processes import offspring, read
from tests.kit.waiting import PATIENCE_SECONDS
from tests.replay.replays import pointed
from tests.replay.world import HASTY


@pytest.mark.parametrize(
    ("master", "collector"), [("local[2,4]", "Serial"), ("local", "Serial"), ("local[16]", "Parallel")]
)
def test_a_local_java_leaves_the_cores_to_the_workers(master: str, collector: str) -> None:
    options = spark_settings.local_settings(master)[spark_settings.JAVA_OPTIONS].split()
    assert f"-XX:+Use{collector}GC" in options
    assert "-XX:TieredStopAtLevel=1" in options


@pytest.mark.parametrize("master", ["local", "local[2,4]", "local-cluster[1,1,1024]", "yarn", "k8s://h", "spark://h:1"])
def test_a_master_of_spark_is_accepted(master: str) -> None:
    spark_settings.check_master(master)
    assert bool(spark_settings.local_settings(master)) == (master in ("local", "local[2,4]")), (
        "a remote Java has its own options"
    )


@pytest.mark.parametrize("master", ["", "foo", "locals", "spark:h", "http://h"])
def test_a_master_that_spark_does_not_know_is_named(master: str) -> None:
    with pytest.raises(errors.UsageError, match=f"^--master: '{master}' is not a Spark master$"):
        spark_settings.check_master(master)


SECRET_NAMES = (
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.container.lake",
    "spark.hadoop.fs.azure.sas.fixed.token",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
    "spark.executorEnv.SBPAIR_PRIMARY_CONNECTION_STRING",
    "spark.ssl.keyStorePassword",
    "spark.hadoop.x.Credential",
)
JAVA = "spark.driver.extraJavaOptions"
SECRET_VALUES = (
    ("spark.executorEnv.X", "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=s3cr3t"),
    ("spark.executorEnv.X", "https://lake.blob.core.windows.net/c?sv=1&sig=s3cr3t"),
    ("spark.executorEnv.X", "http://me:s3cr3t@proxy:3128"),
    (JAVA, "-Xmx1g -Dfs.s3a.secret.key=s3cr3t"),
    (JAVA, '-Xmx1g -D"fs.s3a.secret.key=s3cr3t"'),
    ("spark.executor.defaultJavaOptions", "'-Djavax.net.ssl.trustStorePassword'=s3cr3t"),
)
PUBLIC = (
    ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.x.SecretProvider"),
    ("spark.hadoop.hadoop.security.credential.provider.path", "jceks://file/x"),
    ("spark.kubernetes.authenticate.oauthTokenFile", "/run/token"),
    ("spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY", "store:key"),
    ("spark.hadoop.fs.s3a.endpoint", "http://127.0.0.1:9000"),
    (JAVA, "-Dfs.s3a.endpoint=x -Djavax.net.ssl.keyStoreFile=/x"),
)


@pytest.mark.parametrize(("name", "value"), [*((each, "s3cr3t") for each in SECRET_NAMES), *SECRET_VALUES])
def test_a_secret_in_a_setting_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(errors.UsageError, match=r"^--conf .*holds a secret") as refused:
        spark_settings.check_setting(name, value)
    assert "s3cr3t" not in refused.value.message + refused.value.hint
    assert name not in SECRET_NAMES or re.search(spark_settings.SETTINGS["spark.redaction.regex"], name)


@pytest.mark.parametrize(("name", "value"), PUBLIC)
def test_a_setting_that_names_where_a_secret_is_passes(name: str, value: str) -> None:
    spark_settings.check_setting(name, value)


def test_the_users_java_options_come_last(tmp_path: Path) -> None:
    options = spark._java_options("local[2]", "-XX:+UseG1GC", tmp_path, verbose=False)
    assert options.endswith("-XX:+UseG1GC")
    assert "log4j2" in options
    assert spark._java_options("spark://host:7077", "", tmp_path, verbose=True) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Calling o1.text.\n: java.lang.RuntimeException: a.b$C.DError: Class org.x.Store not found\n\tat x.y(z:7)",
            "Class org.x.Store not found",
        ),
        ("[PATH_NOT_FOUND] Path does not exist: file:/x.\nmore", "[PATH_NOT_FOUND] Path does not exist: file:/x."),
        (
            "In Python:\nTraceback (most recent call last):\n  File 'a.py', line 1\n    c()\nKeyError: 'd'\n\nmore",
            "KeyError: 'd'",
        ),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_spark_is_reduced_to_its_reason(text: str, reason: str) -> None:
    assert spark.spark_message(RuntimeError(text)) == reason


def test_a_failure_of_spark_has_its_reason_and_the_command_to_continue(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path), "r1")
    text = "An error occurred while calling o86.collect.\n: java.io.IOException: No space left on device\n\tat x.y(z:7)"
    found = spark.translate_failure(RuntimeError(text), archive)
    assert isinstance(found, errors.Unavailable)
    assert (found.message, found.hint) == (
        "Spark failed: No space left on device",
        "nothing is lost: continue with sbpair replay resume r1",
    )
    for ended in (Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused")):
        with pytest.raises(errors.Unavailable, match="Java was killed, or crashed"), spark.resumable(archive):
            raise ended
    (tmp_path / "r1").write_text("in the way")
    with pytest.raises(errors.MachineLacks, match="Not a directory") as full, spark.resumable(archive):
        archive.write("report/drained.json", b"{}")
    assert full.value.hint == "nothing is lost: correct that, then run sbpair replay resume r1"


@pytest.mark.parametrize(
    "text",
    [
        "[CAST_INVALID_INPUT] It is malformed. SQLSTATE: 22018\n== SQL ==",
        "\n[CAST_INVALID_INPUT] It is malformed.(line 1, pos 5)\n",
        "Calling o1.\n: org.x.SparkException: Aborted: a.b.CException: [CAST_INVALID_INPUT] It is malformed.",
        "It is malformed.; line 1 pos 516",
    ],
)
def test_a_sql_error_has_no_class_and_no_position(text: str) -> None:
    assert shard_plan.sql_message(RuntimeError(text)) == "It is malformed."


def test_a_worker_imports_pyspark_from_files_before_the_zip() -> None:
    own, other = "/site/pyspark/python/lib/pyspark.zip", "/opt/spark/python/lib/pyspark.zip"
    assert pyspark_daemon.files_first([own, "/work", "/site"]) == ["/work", "/site", own]
    assert pyspark_daemon.files_first([other, "/work", "/site"]) == [other, "/work", "/site"]
    assert pyspark_daemon.files_first(["pyspark.zip", "", "/"]) == ["pyspark.zip", "", "/"]


def hosts_that_listen() -> set[str]:
    """Return the addresses of all listening TCP sockets of this process and its children."""
    listening = {}
    for name in ("tcp", "tcp6"):
        for row in map(str.split, read(Path("/proc/net") / name).splitlines()[1:]):
            if row[3] == "0A":
                listening[f"socket:[{row[9]}]"] = host_of(row[1].partition(":")[0])
    links = (pointed(path) for pid in offspring(os.getpid()) for path in Path(f"/proc/{pid}/fd").glob("*"))
    return {listening[link] for link in links if link in listening}


def host_of(text: str) -> str:
    """Return the address that /proc/net shows as 32-bit words in the machine's order, an IPv4 one as such."""
    words = [int(text[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(text), 8)]
    found = ip_address(b"".join(words))
    return str(getattr(found, "ipv4_mapped", None) or found)


@pytest.mark.java
@pytest.mark.usefixtures("own_java")
def test_a_local_spark_starts_with_its_settings_and_light_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One start of Java serves several checks. Workers import PySpark from files, and no pandas."""
    (tmp_path / "spark-defaults.conf").write_text("spark.speculation true\nspark.speculation.quantile 0.5\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for master in ("local[x]", "nonsense"):
        with pytest.raises(errors.MachineLacks, match="Could not parse Master URL"), spark.spark_session(master, HASTY):
            pass
    wrong = {**HASTY, "spark.sql.shuffle.partitions": "0"}
    with pytest.raises(errors.MachineLacks, match="must be positive"), spark.spark_session("local[1]", wrong):
        pass

    def report(batches: Iterator[Any]) -> Iterator[Any]:
        had = set(sys.modules)
        import pyarrow as pa
        import pyspark

        for _ in batches:
            pa.array([1])
            pandas = sys.modules.get("pandas") is not None
            shared = "sbpair.move.mover" in had
            yield pa.RecordBatch.from_pydict({"place": [pyspark.__file__], "pandas": [pandas], "shared": [shared]})

    with spark.spark_session("local[1]", HASTY) as session:
        conf = session.sparkContext.getConf()
        chosen = [conf.get(f"spark.{name}") for name in ("speculation", "ui.enabled", "speculation.quantile")]
        assert chosen == ["false", "false", "0.5"]
        for name in SECRET_NAMES:  # as spark-defaults.conf may set them
            session.conf.set(name, "s3cr3t")
            assert "redacted" in session.sql(f"SET `{name}`").collect()[0].value
        assert hosts_that_listen() == {"127.0.0.1"}
        [row] = session.range(0, 1, 1, 1).mapInArrow(report, "place string, pandas boolean, shared boolean").collect()
    assert ".zip" not in row.place
    assert (row.pandas, row.shared) == (False, True)


def test_preloaded_modules_start_no_thread() -> None:
    program = (
        "import os, sys\n"
        "from sbpair.replay.pyspark_daemon import preload\n"
        "preload()\n"
        "assert not {'pyarrow', 'numpy', 'pandas'} & set(sys.modules), 'they start threads'\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("WARNING: Using incubator modules: jdk.incubator.vector", logging.DEBUG),
        ("WARNING: A terminally deprecated method was called", logging.WARNING),
        ("ERROR TaskSetManager: Task 0 failed", logging.ERROR),
        ("26/11/22 17:00:00 INFO SparkContext: Running", logging.INFO),
        ("26/11/22 17:00:00 WARN NativeCodeLoader: none", logging.WARNING),
        ("26/11/22 17:00:00 TRACE X: y", logging.DEBUG),
        ("\tat java.base/java.lang.Thread.run(Thread.java:840)", logging.WARNING),
    ],
)
def test_a_line_has_the_level_that_it_names(line: str, level: int) -> None:
    assert spark.level_of(line) == level


def test_the_lines_of_a_child_are_logged_and_its_noise_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="spark")
    program = "import sys; sys.stderr.write('WARNING: Using incubator modules: x\\n\\nERROR Task: failed\\nlast')"
    with spark.logged_stderr() as descriptor:
        subprocess.run([sys.executable, "-c", program], stderr=descriptor, check=True)
        *_, reader = (each for each in spark.threading.enumerate() if each.name == "java output")
    reader.join(PATIENCE_SECONDS)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", "ERROR Task: failed"),
        ("WARNING", "last"),
    ]


@pytest.mark.parametrize(("verbose", "shown"), [(0, 0), (1, 1)])
def test_what_py4j_logs_of_an_interrupt_needs_verbose(
    verbose: int, shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = logging.root.handlers[:]
    try:
        logs.start(Display(verbose=verbose))
        logging.error("KeyboardInterrupt while sending command.")  # noqa: LOG015  as Py4J does
        logging.getLogger("sbpair").warning("the run goes on")
    finally:
        logging.root.handlers[:] = before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + shown
    assert lines[-1].endswith("the run goes on")
