"""`sbpair replay package` and `--print-submit`: a replay on a Spark cluster."""

import importlib.metadata
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.options.common import argument, flag
from sbpair.cli.render.screen import Screen, size
from sbpair.cli.render.table import columns

if TYPE_CHECKING:
    from sbpair.replay.run import ReplayRequest

SCHEMA, SUBMIT_SCHEMA = "sbpair/replay-package/1", "sbpair/replay-submit/1"
FLAG = "--print-submit"

PRINT_SUBMIT = flag(FLAG, "Only print the spark-submit command, without secrets")


def package_command(
    *, file: Path = argument("[FILE]", "The zip to write", default=Path("sbpair.zip")), screen: Screen
) -> int:
    """Write a zip of sbpair and its dependencies for bare Spark workers.

    Pass it to sbpair replay run --package. Packages with native code are listed, not packed: workers need them only to
    sign in with an identity. Workers always need pyspark, pyarrow, pandas and this machine's minor version of Python.

    Examples:
      sbpair replay package
      sbpair replay package /tmp/sbpair.zip
    """
    from sbpair.replay import package

    contents, written = package.build_package(file)
    document = {"file": str(file), "bytes": written, "packed": contents.packed, "native": contents.native}
    rows = [(name, version, "packed") for name, version in contents.packed.items()]
    rows += [(name, version, "native: not packed") for name, version in contents.native.items()]
    screen.result(SCHEMA, document, [f"{file}, {size(written)}", "", *columns([("PACKAGE", "VERSION", ""), *rows])])
    return 0


def show(screen: Screen, request: "ReplayRequest") -> int:
    """Print the command and the names of the environment variables it needs."""
    command = submission(request, sys.argv[1:])
    variables = [each for each in request.variables if each is not None]
    screen.result(SUBMIT_SCHEMA, {"command": command, "environment": variables}, [shlex.join(command)])
    if variables:
        screen.say(f"set {' and '.join(variables)} in its environment and in that of the workers")
    return 0


def submission(request: "ReplayRequest", words: Sequence[str]) -> list[str]:
    """Return the spark-submit command for `words`, without --print-submit."""
    job = Path(__file__).parents[1] / "spark_main.py"
    packages = ["--py-files", request.package] if request.package else []
    settings = [word for name, value in _settings(request).items() for word in ("--conf", f"{name}={value}")]
    kept = [word for word in words if word != FLAG]
    return [str(_program()), "--master", request.master, *packages, *settings, str(job), *kept]


def _settings(request: "ReplayRequest") -> Mapping[str, str]:
    from sbpair.replay import spark

    pythons = {"spark.pyspark.driver.python": sys.executable}
    if spark.is_local_master(request.master):
        pythons["spark.pyspark.python"] = sys.executable
    return {**spark.SETTINGS, **spark.local_settings(request.master), **pythons, **request.settings}


def _program() -> Path:
    """Return spark-submit of the installed PySpark."""
    return Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark/bin/spark-submit")))
