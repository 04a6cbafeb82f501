"""A session of Spark Connect: this process is a client of a server elsewhere, and needs no Java.

Invariant: the URL may have a token, so it is neither shown nor an argument of a command; `server_name` is.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sbpair.errors import MachineLacks, Unsafe, UsageError
from sbpair.replay.java import is_installed
from sbpair.replay.spark import SETTINGS, add_package, check_speculation, hide_tracebacks, spark_errors, spark_message

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

VARIABLE = "SPARK_REMOTE"
DEFAULT_PORT = 15002
REACH_SECONDS = 5.0
STOP_SECONDS = 10.0
"""How long to wait for the server to end the session and its tasks. PySpark retries for ten minutes."""

MAX_RETRIES, MAX_BACKOFF_MS = 12, 10_000
"""For a server that has gone: PySpark tries for 90 s again. A connection that returns in time loses nothing."""

SESSION_SETTINGS = {
    **{name: value for name, value in SETTINGS.items() if name.startswith("spark.sql.")},
    # Hadoop's settings of a session have no prefix.
    "parquet.page.verify-checksum.enabled": "true",
}

_URL = re.compile(r"sc://(?P<host>\[[\da-fA-F:.]+\]|[^/:;@\s]+)(:(?P<port>\d{1,5}))?(/(;(?P<parameters>.*))?)?")
_OPEN_PARAMETERS = frozenset({"use_ssl", "user_id", "user_agent", "session_id", "x-databricks-cluster-id", ""})
_MODE = "SPARK_CONNECT_MODE_ENABLED"  # PySpark's functions are those of Spark Connect while it is set


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
            _stop(spark, name)
    finally:
        if mode is None:
            os.environ.pop(_MODE, None)


def _open(url: str, name: str) -> Any:
    host, port = _address(url)
    try:
        with socket.create_connection((host.strip("[]"), port), REACH_SECONDS):
            pass
    except OSError as error:
        raise MachineLacks(
            f"no Spark Connect server answers at {name}: {error.strerror or error}",
            hint="check the address, and that the server runs (start-connect-server.sh)",
        ) from error
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


def _stop(spark: Any, name: str) -> None:
    """End the session, and with it the tasks that still run."""
    if not _ends_in_time(spark.stop):
        log.warning("%s does not answer: its tasks stop sending once they miss the driver", name)


def _ends_in_time(action: Callable[[], None]) -> bool:
    thread = threading.Thread(target=action, name="stop session", daemon=True)
    thread.start()
    thread.join(STOP_SECONDS)
    return not thread.is_alive()


def _address(url: str) -> tuple[str, int]:
    found = _URL.fullmatch(url)
    assert found is not None  # noqa: S101  it was checked
    return found["host"], int(found["port"] or DEFAULT_PORT)
