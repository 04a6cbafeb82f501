"""Java and the packages of the `spark` extra: checks with clearer errors than Spark's own, and Java's output as a log.

The lines that Java and its workers write to stderr become records of the logger `spark`.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import pkgutil
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sbpair.errors import MachineLacks
from sbpair.operating_system import require_posix

log = logging.getLogger("spark")

MIN_JAVA = 17
SUBJECT = "a replay that starts Spark on this machine"
INSTEAD = "run it in WSL 2 or in a Linux container, or on a server with --remote"
JAVAS = "Java 17, 21 or 25"
PACKAGES = ("pyspark", "pyarrow", "pandas")
VERSION_TIMEOUT_SECONDS = 20.0

NOISE = ("WARNING: Using incubator modules",)  # beginnings of lines that Java always writes

_LEVEL = re.compile(r"^.{0,24}?\b(ERROR|WARN|INFO|DEBUG|TRACE) ")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(environ: Mapping[str, str]) -> str | None:
    """Return the Java that Spark would start: that of JAVA_HOME if set, else from PATH."""
    if home := environ.get("JAVA_HOME"):
        candidate = Path(home, "bin", "java")
        return str(candidate) if candidate.exists() else None
    return shutil.which("java", path=environ.get("PATH", os.defpath))


def java_version(text: str) -> int | None:
    """Return the major version from the output of `java -version`, or None."""
    match = _VERSION.search(text)
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
                log.log(level_of(line), "%s", line.rstrip())


def level_of(line: str) -> int:
    """Return the level of a line: that of log4j, or a warning."""
    if line.startswith(NOISE):
        return logging.DEBUG
    found = _LEVEL.match(line)
    return logging.WARNING if found is None else logging.getLevelNamesMapping().get(found[1], logging.DEBUG)
