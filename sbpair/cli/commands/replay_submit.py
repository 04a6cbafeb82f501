"""`sbpair replay package`, and what `--print-submit` prints: how to hand a replay to somebody else's Spark."""

import importlib.metadata
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.options.common import Display, options
from sbpair.cli.render.screen import Screen, columns, size

if TYPE_CHECKING:
    from sbpair.replay.job import ReplayRequest

SCHEMA, SUBMIT_SCHEMA = "sbpair/replay-package/1", "sbpair/replay-submit/1"
FLAG = "--print-submit"

PrintSubmit = Annotated[
    bool, typer.Option(FLAG, help="Do nothing; print the spark-submit command that does the same, without a secret")
]


@options
def package_command(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The zip to write")] = Path("sbpair.zip"),
    display: Display,
) -> int:
    """Write a zip of sbpair and what it needs, for a Spark whose workers have none of it.

    Give it to sbpair replay run with --package, or to spark-submit with --py-files. Only what is pure Python can be
    imported from a zip. What is not is listed: workers need none of it where the namespaces are reached with a key; to
    sign in with an identity, install aiohttp and cryptography there, or use an image that has them.
    Either way workers need pyspark, pyarrow and pandas, and the minor version of Python that this machine has.

    JSON, versions by name:

      {"schema": "sbpair/replay-package/1", "file": "", "bytes": 0, "packed": {}, "native": {}}

    Exit codes: 0 written; 2 it is no .zip; 7 it cannot be written.
    """
    screen = Screen(display)
    from sbpair.replay import package

    contents, written = package.build(file)
    told = {"schema": SCHEMA, "file": str(file), "bytes": written, "packed": contents.packed, "native": contents.native}
    rows = [(name, version, "packed") for name, version in contents.packed.items()]
    rows += [(name, version, "native: not packed") for name, version in contents.native.items()]
    screen.result(told, [told], [f"{file}, {size(written)}", "", *columns([("PACKAGE", "VERSION", ""), *rows])])
    return 0


def show(screen: Screen, request: "ReplayRequest") -> int:
    """Print the command, and the names of what its environment must have."""
    command = submission(request, sys.argv[1:])
    variables = [each for each in request.variables if each is not None]
    told = {"schema": SUBMIT_SCHEMA, "command": command, "environment": variables}
    screen.result(told, [told], [shlex.join(command)])
    if variables:
        screen.say(f"its environment, and that of the workers, has to have {' and '.join(variables)}")
    return 0


def submission(request: "ReplayRequest", words: Sequence[str]) -> list[str]:
    """The command that does what `words` ask for, less the wish to see it."""
    job = Path(__file__).parents[1] / "spark_main.py"
    packages = ["--py-files", request.package] if request.package else []
    settings = [word for name, value in _settings(request).items() for word in ("--conf", f"{name}={value}")]
    kept = [word for word in words if word != FLAG]
    return [str(_program()), "--master", request.master, *packages, *settings, str(job), *kept]


def _settings(request: "ReplayRequest") -> Mapping[str, str]:
    from sbpair.replay import spark

    pythons = {"spark.pyspark.driver.python": sys.executable}
    if spark.is_local(request.master):
        pythons["spark.pyspark.python"] = sys.executable
    return {**spark.SETTINGS, **spark.local_settings(request.master), **pythons, **request.settings}


def _program() -> Path:
    """Spark's own, of the PySpark that is installed here."""
    return Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark/bin/spark-submit")))
