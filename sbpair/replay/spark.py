"""A Spark session with the settings of a replay, here or of a Spark Connect server, refusing what duplicates messages.

Here, Java and the packages of the `spark` extra are checked first, with clearer errors than Spark's own, and the lines
that Java and its workers write to stderr become records of the logger `spark`. With Spark Connect this process is a
client and needs no Java. Invariant: the URL of a server may have a token, so it is neither shown nor an argument of a
command; `server_name` is.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any

from sbpair import errors
from sbpair.errors import JobCancelled, MachineLacks, SbpairError, Unavailable, Unsafe, UsageError
from sbpair.operating_system import require_posix
from sbpair.operating_system.files import temporary_directory
from sbpair.operating_system.signals import handlers_kept
from sbpair.replay.spark_settings import (
    JAVA_OPTIONS,
    PLATFORM,
    SESSION_SETTINGS,
    SETTINGS,
    check_speculation,
    is_local_master,
    local_settings,
)

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive

log = logging.getLogger(__name__)
java_log = logging.getLogger("spark")

MIN_JAVA = 17
SUBJECT = "a replay that starts Spark on this machine"
INSTEAD = "run it in WSL 2 or in a Linux container, or on a server with --remote"
JAVAS = "Java 17, 21 or 25"
PACKAGES = ("pyspark", "pyarrow", "pandas")
VERSION_TIMEOUT_SECONDS = 20.0

NOISE = ("WARNING: Using incubator modules",)  # beginnings of lines that Java always writes

_LOG_LEVEL = re.compile(r"^.{0,24}?\b(ERROR|WARN|INFO|DEBUG|TRACE) ")
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

DAEMON = "sbpair.replay.pyspark_daemon"
QUIET_LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
logger.spark.name = org.apache.spark
logger.spark.level = off
# The level of this logger decides whether Spark prints a notice about levels.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

_NO_JAVA = "does not exist in the JVM"
"""Py4J's words for a class that it asks Java for, once Java has ended."""

_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
"""A traceback of a worker's Python, and what was raised."""

_LOST_TASK = re.compile(r"\(TID \d+\) \((?P<worker>\S+) executor (?!driver\))\S+\): ")
_CANCELLED = re.compile(r"\bJob \d+ cancelled\b|\bOPERATION_CANCELED\b")

VARIABLE = "SPARK_REMOTE"
DEFAULT_PORT = 15002
REACH_SECONDS = 5.0
STOP_SECONDS = 10.0
"""How long to wait for the server to end the session and its tasks. PySpark retries for ten minutes."""

MAX_NAMED = 3  # queues or destinations that the description of a job names

MAX_RETRIES, MAX_BACKOFF_MS = 12, 10_000
"""For a server that has gone: PySpark tries for 90 s again. A connection that returns in time loses nothing."""

_URL = re.compile(r"sc://(?P<host>\[[\da-fA-F:.]+\]|[^/:;@\s]+)(:(?P<port>\d{1,5}))?(/(;(?P<parameters>.*))?)?")
_OPEN_PARAMETERS = frozenset({"use_ssl", "user_id", "user_agent", "session_id", "x-databricks-cluster-id", ""})
_STANDALONE = re.compile(r"spark://(?P<masters>[^,\s]+:\d{1,5}(,[^,\s]+:\d{1,5})*)")
_MODE = "SPARK_CONNECT_MODE_ENABLED"  # PySpark's functions are those of Spark Connect while it is set


def find_java(environ: Mapping[str, str]) -> str | None:
    """Return the Java that Spark would start: that of JAVA_HOME if set, else from PATH."""
    if home := environ.get("JAVA_HOME"):
        candidate = Path(home, "bin", "java")
        return str(candidate) if candidate.exists() else None
    return shutil.which("java", path=environ.get("PATH", os.defpath))


def java_version(text: str) -> int | None:
    """Return the major version from the output of `java -version`, or None."""
    match = _JAVA_VERSION.search(text)
    return None if match is None else int(match[1])


def check_machine(environ: Mapping[str, str]) -> None:
    """Raise MachineLacks unless Java and Spark are installed, on Linux or macOS."""
    require_posix(SUBJECT, INSTEAD)
    program = find_java(environ)
    if program is None:
        if home := environ.get("JAVA_HOME"):
            raise MachineLacks(
                f"JAVA_HOME is {home}, which has no bin/java", hint=f"set it to the directory of {JAVAS}"
            )
        raise MachineLacks(
            "Java is not installed, and Spark needs it",
            hint=f"install {JAVAS} (on Debian and Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME",
        )
    try:
        done = subprocess.run([program, "-version"], capture_output=True, timeout=VERSION_TIMEOUT_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineLacks(f"{program} cannot be started", hint=f"install {JAVAS}, or set JAVA_HOME") from error
    version = java_version((done.stderr + done.stdout).decode(errors="replace"))
    if version is not None and version < MIN_JAVA:
        raise MachineLacks(f"{program} is Java {version}, too old for Spark", hint=f"install {JAVAS}, or set JAVA_HOME")
    check_packages()
    if "PYSPARK_GATEWAY_PORT" not in environ:
        _check_home(environ.get("SPARK_HOME", ""))


def _check_home(home: str) -> None:
    """Raise MachineLacks if the Spark of SPARK_HOME is not there, or is not that of pyspark. "" is pyspark's own."""
    if not home:
        return
    jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
    if not jars:
        raise MachineLacks(f"SPARK_HOME is {home}, which has no Spark", hint="correct it, or unset it to use pyspark's")
    there = jars[0].stem.rpartition("_")[2].partition("-")[2]
    with suppress(importlib.metadata.PackageNotFoundError):
        here = importlib.metadata.version("pyspark")
        if there.split(".")[:2] != here.split(".")[:2]:
            raise MachineLacks(
                f"SPARK_HOME is {home}, which has Spark {there}, and pyspark here is {here}",
                hint=f"unset SPARK_HOME, or install the package of that version: pip install pyspark=={there}",
            )


def check_packages(*names: str) -> None:
    """Raise MachineLacks unless these packages of the `spark` extra are installed; all of them by default."""
    for name in names or PACKAGES:
        if not is_installed(name):
            raise MachineLacks(f"{name} is not installed", hint="pip install 'sbpair[spark]'")


def is_installed(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # Spark's own directory, from which spark-submit imports pyspark, has no metadata.
        return any(each.name == package for each in pkgutil.iter_modules())
    return True


@contextmanager
def logged_stderr() -> Iterator[int]:
    """Yield a descriptor for the stderr of a child. Its lines are logged until the last process has closed it."""
    reading, writing = os.pipe()
    threading.Thread(target=_log_lines, args=(reading,), name="java output", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _log_lines(descriptor: int) -> None:
    with open(descriptor, errors="replace") as lines:
        for line in lines:
            if line.strip():
                java_log.log(level_of(line), "%s", line.rstrip())


def level_of(line: str) -> int:
    """Return the level of a line: that of log4j, or a warning."""
    if line.startswith(NOISE):
        return logging.DEBUG
    found = _LOG_LEVEL.match(line)
    return logging.WARNING if found is None else logging.getLevelNamesMapping().get(found[1], logging.DEBUG)


def _is_working_directory_trusted() -> bool:
    """Return whether this process imports from its working directory, in which others may have placed a module."""
    try:
        return bool({"", str(Path.cwd())} & set(sys.path))
    except FileNotFoundError:  # it was removed
        return False


@contextmanager
def spark_session(
    master: str, settings: Mapping[str, str], *, verbose: bool = False, package: str | None = None
) -> Iterator[Any]:
    """Open a session, with a `package` to import from. Raises Unsafe for speculation, MachineLacks without a start."""
    if python := settings.get("spark.pyspark.python"):  # which only spark-submit reads
        os.environ["PYSPARK_PYTHON"] = python
    if is_local_master(master):
        # By default workers use the first python3 on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if not _is_working_directory_trusted():
            os.environ.setdefault("PYTHONSAFEPATH", "1")
    if found := _STANDALONE.fullmatch(master):
        _reach(found["masters"].split(","), master)
    if not verbose:
        hide_tracebacks()
    with temporary_directory("sbpair-spark-") as folder:
        directory = str(folder)
        options = _java_options(master, settings.get(JAVA_OPTIONS, ""), folder, verbose=verbose)
        daemon = {"spark.python.daemon.module": DAEMON} if is_local_master(master) and package is None else {}
        with handlers_kept():
            spark = _start(master, {**local_settings(master), **daemon, **settings, JAVA_OPTIONS: options}, directory)
        try:
            try:
                speculation = spark.conf.get("spark.speculation", "false")
            except spark_errors() as error:  # Spark has not read its SQL settings before
                raise _not_started(master, error) from error
            check_speculation(speculation)
            if package is not None:
                add_package(spark, package)
            yield spark
        finally:
            if master != PLATFORM:  # the end of the job stops it, and some platforms need it until then
                _stop(spark)


def _reach(addresses: Sequence[str], name: str) -> None:
    """Raise MachineLacks if nothing listens at any HOST:PORT. Spark itself gives up after more than a minute."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS / len(addresses)):
                return
        except OSError as error:
            reason = error.strerror or str(error)
    raise MachineLacks(
        f"no Spark answers at {name}: {reason}",
        hint="check the address, and that it runs (start-master.sh; start-connect-server.sh for sc://)",
    )


def hide_tracebacks() -> None:
    """Disable what writes a traceback of each error, even if it is caught."""
    from pyspark import accumulators

    for each in vars(accumulators).values():
        if isinstance(each, type) and issubclass(each, BaseServer):
            # The server's own prints that Java has gone.
            each.handle_error = _log_handled  # type: ignore[method-assign,assignment]
    with suppress(ImportError):  # Spark 3.5 does not have it
        from pyspark.logger import PySparkLogger

        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _log_handled(_server: BaseServer, _request: Any, _client: Any) -> None:
    """Log the error that is being handled, of a request of Java to Python."""
    log.debug("a request of Spark's Java failed: %r", sys.exception())


def add_package(spark: Any, package: str) -> None:
    """Let tasks import from a zip."""
    from pyspark.errors import PySparkRuntimeError

    try:
        spark.addArtifacts(package, pyfile=True)
    except PySparkRuntimeError:  # Spark 3.5 has it for Spark Connect only
        spark.sparkContext.addPyFile(package)


def describe_jobs(spark: Any, text: str) -> None:
    """Name the jobs that this thread starts from now on, and their stages. No-op with Spark Connect."""
    with suppress(*spark_errors()):  # of a client, which has no context
        spark.sparkContext.setJobDescription(text)


def job_name(verb: str, names: Collection[str]) -> str:
    """Return a description of a job, such as `send orders`: with many names, the first ones and how many follow."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{verb} {', '.join([*names][:MAX_NAMED])}{more}"


def count_task_slots(spark: Any) -> int:
    """Return how many tasks Spark runs at once: of a cluster, the cores known by now; else by partitions it chooses."""
    with suppress(*spark_errors()):  # of a client, which has no context
        return int(spark.sparkContext.defaultParallelism)
    numbers = "SELECT spark_partition_id() AS number FROM range(100000)"
    [(highest,)] = spark.sql(f"SELECT max(number) FROM ({numbers})").collect()  # noqa: S608
    return int(highest) + 1


def _stop(spark: Any) -> None:
    """Stop Spark. No-op if Java was killed: what else failed then says why."""
    with suppress(ConnectionError, *spark_errors()):
        spark.stop()


@contextmanager
def stopping(spark: Any) -> Iterator[None]:
    """Stop Spark, which takes a second, while the block runs. A second stop has no effect."""
    thread = threading.Thread(target=_stop, args=(spark,), name="stop spark")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _start(master: str, settings: Mapping[str, str], directory: str) -> Any:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    conf = SparkConf().setAppName("sbpair replay")
    if master != PLATFORM:
        conf.setMaster(master)
    conf.setAll([*{**SETTINGS, "spark.sql.warehouse.dir": directory, **settings}.items()])
    try:
        _start_java(conf)
        return SparkSession.builder.config(conf=conf).getOrCreate()
    except (PySparkException, Py4JError, OSError, RuntimeError) as error:
        raise _not_started(master, error) from error


def _not_started(master: str, error: Exception) -> MachineLacks:
    return MachineLacks(
        f"Spark does not start on {master}: {spark_message(error)}",
        hint="check --master and --conf, or run again with -v to see what Java says",
    )


def _start_java(conf: Any) -> None:
    """Start Java as Spark would, except that its stderr is logged. No-op if it runs, as it does on a cluster."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        with logged_stderr() as descriptor:
            gateway = launch_gateway(conf, {"stderr": descriptor})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that Spark raises, in any supported version."""
    from pyspark.errors import PySparkException

    with suppress(ImportError):  # a client of Spark Connect alone does not have it
        from py4j.protocol import Py4JError  # raised by 3.5

        return PySparkException, Py4JError
    return (PySparkException,)


def spark_message(error: Exception) -> str:
    """Return the message of Spark, Java or a worker's Python in one line, without traceback and names of Java."""
    text = str(error)
    if raised := _RAISED.findall(text):  # the last: it may have been raised while another one was handled
        return str(raised[-1])
    lines = text.strip().splitlines() or [type(error).__name__]
    java = _LOST_TASK.split(next((line for line in lines if line.startswith(": ")), lines[0]))[-1]
    return re.sub(r"^: |\b[a-z][\w$.]*\.\w*(Exception|Error): ", "", java).strip()


def failed_worker(text: str) -> str | None:
    """Return the worker whose task failed last, if the text is Spark's error about one."""
    found = _LOST_TASK.search(text)
    return found and found["worker"]


def unreadable_segment(text: str) -> str | None:
    """Return the path of the segment if the text is Spark's error about one that it cannot read."""
    from sbpair.replay.archive import SEGMENTS  # it needs pyarrow

    found = re.search(rf"while reading file\s\S*/({SEGMENTS}/\S+?\.parquet)", text)
    return found and found[1]


def _java_options(master: str, chosen: str, directory: Path, *, verbose: bool) -> str:
    """Return our options, then the user's: Java prefers the later of two."""
    options = [local_settings(master).get(JAVA_OPTIONS, "")]
    if not verbose:
        (directory / "log4j2.properties").write_text(QUIET_LOG4J)
        options.append(f"-Dlog4j2.configurationFile=file:{directory}/log4j2.properties")
    return " ".join([*options, chosen]).strip()


def resume_command(archive: Archive) -> str:
    return f"sbpair replay resume {archive.run}"


@contextmanager
def resumable(archive: Archive) -> Iterator[None]:
    """Raise errors of Spark and MachineLacks, such as a full disk, with the command that continues the run."""
    try:
        yield
    except ConnectionError as error:
        raise translate_failure(error, archive) from error
    except spark_errors() as error:
        raise translate_failure(error, archive) from error
    except MachineLacks as error:
        hint = f"nothing is lost: correct that, then run {resume_command(archive)}"
        raise MachineLacks(error.message, hint=hint) from error


def translate_failure(error: BaseException, archive: Archive) -> BaseException:
    """Return the sbpair error that a task raised. Spark sends its traceback as text, so its name identifies it."""
    text = str(error)
    if (path := unreadable_segment(text)) is not None:
        return archive.broken(path, "Spark cannot read it")
    resume = resume_command(archive)
    for line in reversed(text.splitlines()):
        name, _, message = line.strip().removeprefix("sbpair.errors.").partition(": ")
        kind = getattr(errors, name, None)
        if "sbpair.errors." in line and isinstance(kind, type) and issubclass(kind, SbpairError):
            return kind(message or name, hint=f"nothing is lost: correct that, then run {resume}")
    if isinstance(error, (KeyboardInterrupt, SbpairError)):
        return error
    if isinstance(error, ConnectionError) or "Py4JNetworkError" in repr(error) or _NO_JAVA in text:
        return Unavailable("Spark's Java was killed, or crashed", hint=f"nothing is lost: continue with {resume}")
    first = spark_message(error) if isinstance(error, Exception) else type(error).__name__
    if _CANCELLED.search(text):
        return JobCancelled(f"Spark's job was cancelled: {first}", hint=f"nothing is lost: continue with {resume}")
    where = f" on worker {worker}" if (worker := failed_worker(text)) else ""
    return Unavailable(f"Spark failed{where}: {first}", hint=f"nothing is lost: continue with {resume}")


def check_remote(url: str, *, shown: bool) -> None:
    """Raise UsageError for a URL of no server, or if `shown`, for one with parameters that may be secrets."""
    source = "--remote" if shown else VARIABLE
    found = _URL.fullmatch(url)
    if found is None:
        raise UsageError(
            f"{source} is not the URL of a Spark Connect server",
            hint="expected sc://HOST:PORT; for another use --master",
        )
    parameters = {each.partition("=")[0].lower() for each in (found["parameters"] or "").split(";")}
    if shown and (secret := sorted(parameters - _OPEN_PARAMETERS)):
        raise UsageError(
            f"--remote has {secret[0]}, and other users of this machine can read the arguments of a command",
            hint=f"leave --remote out, and set the whole URL in {VARIABLE}",
        )


def server_name(url: str) -> str:
    """Return the URL without its parameters."""
    host, port = _address(url)
    return f"sc://{host}:{port}"


def check_client() -> None:
    """Raise MachineLacks unless the packages of a client are installed, beside pyarrow and pandas."""
    if not (is_installed("pyspark") or is_installed("pyspark-client")) or not is_installed("grpcio"):
        raise MachineLacks("the client of Spark Connect is not installed", hint="pip install 'pyspark[connect]'")


@contextmanager
def connect_session(
    url: str, settings: Mapping[str, str], *, verbose: bool = False, package: str | None = None
) -> Iterator[Any]:
    """Open a session of a server. Raises MachineLacks if it cannot be opened, UsageError, Unsafe for speculation."""
    name = server_name(url)
    if not verbose:
        hide_tracebacks()
    mode = os.environ.get(_MODE)
    try:
        spark = _open(url, name)
        try:
            _apply(spark, settings, name)
            _check_speculation(spark, name)
            if package is not None:
                add_package(spark, package)
            yield spark
        finally:
            _end_session(spark, name)
    finally:
        if mode is None:
            os.environ.pop(_MODE, None)


def _open(url: str, name: str) -> Any:
    host, port = _address(url)
    _reach([f"{host}:{port}"], name)
    from pyspark.sql import SparkSession

    failures: tuple[type[Exception], ...] = (*spark_errors(), ImportError, OSError)
    try:
        spark = SparkSession.builder.remote(url).create()
        with suppress(ImportError, AttributeError):  # Spark 3.5 has other retries
            from pyspark.sql.connect.client.retries import DefaultPolicy

            policy = DefaultPolicy(max_retries=MAX_RETRIES, max_backoff=MAX_BACKOFF_MS)
            spark.client.set_retry_policies([policy])
        log.info("Spark %s at %s", spark.version, name)
    except failures as error:
        raise MachineLacks(
            f"{name} opens no session: {spark_message(error)}",
            hint=f"check its version and the token in {VARIABLE}, or run again with -v",
        ) from error
    return spark


def _apply(spark: Any, settings: Mapping[str, str], name: str) -> None:
    """Apply the settings that a session may have. The others are those of the server."""
    for setting, value in SESSION_SETTINGS.items():
        try:
            spark.conf.set(setting, value)
        except spark_errors() as error:
            log.warning("%s keeps its own %s: %s", name, setting, spark_message(error))
    for setting, value in settings.items():
        try:
            spark.conf.set(setting, value)
        except spark_errors() as error:
            raise UsageError(
                f"{name} does not take {setting} from a session: {spark_message(error)}",
                hint=f"leave out --conf {setting}, and set it where the server is started",
            ) from error


def _check_speculation(spark: Any, name: str) -> None:
    try:
        speculation = spark.conf.get("spark.speculation", "false")
    except spark_errors() as error:
        log.warning("%s does not show spark.speculation, which must be off: %s", name, spark_message(error))
        return
    try:
        check_speculation(speculation)
    except Unsafe as error:
        raise Unsafe(error.message, hint=f"start the server at {name} with --conf spark.speculation=false") from None


def _end_session(spark: Any, name: str) -> None:
    """End the session, and with it the tasks that still run."""
    thread = threading.Thread(target=spark.stop, name="stop session", daemon=True)
    thread.start()
    thread.join(STOP_SECONDS)
    if thread.is_alive():
        log.warning("%s does not answer: its tasks stop sending once they miss the driver", name)


def _address(url: str) -> tuple[str, int]:
    found = _URL.fullmatch(url)
    assert found is not None  # noqa: S101  it was checked
    return found["host"], int(found["port"] or DEFAULT_PORT)
