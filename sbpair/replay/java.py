"""Whether this machine can start Spark at all: looked for before anything else, for Spark's own word is a riddle."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sbpair.errors import MachineLacks

MIN_JAVA = 17
JAVAS = "Java 17, 21 or 25"
PACKAGES = ("pyspark", "pyarrow", "pandas")
ASK_SECONDS = 20.0

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(environ: Mapping[str, str]) -> str | None:
    """The Java that Spark would start: that of JAVA_HOME, there or not, before any other."""
    if home := environ.get("JAVA_HOME"):
        candidate = Path(home, "bin", "java")
        return str(candidate) if candidate.exists() else None
    return shutil.which("java", path=environ.get("PATH", os.defpath))


def java_version(said: str) -> int | None:
    """The version, of what `java -version` says; None where it does not."""
    match = _VERSION.search(said)
    return None if match is None else int(match[1])


def check_machine(environ: Mapping[str, str]) -> None:
    """Raise MachineLacks where there is no Java for Spark, or no Spark."""
    program = find_java(environ)
    if program is None:
        if home := environ.get("JAVA_HOME"):
            raise MachineLacks(
                f"JAVA_HOME is {home}, and there is no bin/java in it", hint=f"set it to that of {JAVAS}"
            )
        raise MachineLacks(
            "there is no Java on this machine, and Spark needs one",
            hint=f"install {JAVAS} (on Debian and Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME",
        )
    version = java_version(_ask(program))
    if version is not None and version < MIN_JAVA:
        raise MachineLacks(f"{program} is Java {version}, too old for Spark", hint=f"install {JAVAS}, or set JAVA_HOME")
    check_packages()


def check_packages(*names: str) -> None:
    """Raise MachineLacks where one of the packages of the `spark` extra is not installed; all of them by default."""
    for name in names or PACKAGES:
        if not is_installed(name):
            raise MachineLacks(f"{name} is not installed", hint="pip install 'sbpair[spark]'")


def is_installed(package: str) -> bool:
    """Whether a package is there; it is not imported."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _ask(program: str) -> str:
    try:
        done = subprocess.run([program, "-version"], capture_output=True, timeout=ASK_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineLacks(f"{program} cannot be started", hint=f"install {JAVAS}, or set JAVA_HOME") from error
    return (done.stderr + done.stdout).decode(errors="replace")
