"""The command printed by --print-submit, run on this machine and on workers without sbpair."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.kit.installed import outside
from tests.replay.cluster import standalone
from tests.replay.world import World, world

pytestmark = [pytest.mark.java, pytest.mark.slow]

WORKERS_HAVE = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "dateutil", "pytz", "tzdata", "six")


def bare_python(directory: Path) -> Path:
    """Create a Python with the packages of a Spark worker, without sbpair."""
    venv.create(directory, symlinks=True)
    here = Path(sysconfig.get_path("purelib"))
    [there] = directory.glob("lib/python3*/site-packages")
    for name in WORKERS_HAVE:
        for path in (here / name, here / f"{name}.py", here / f"{name}.libs"):
            if path.exists():
                (there / path.name).symlink_to(path)
    python = directory / "bin" / "python"
    done = subprocess.run([python, "-c", "import pyarrow, pandas, pyspark"], env=outside({}), check=False)
    assert done.returncode == 0
    done = subprocess.run(
        [python, "-c", "import sbpair"], env=outside({}), cwd="/", stderr=subprocess.PIPE, check=False
    )
    assert b"No module named 'sbpair'" in done.stderr
    return python


def sbpair(place: World, directory: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sbpair", "replay", *words],
        env=place.shell(directory),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def submitted(place: World, directory: Path, *words: str) -> dict[str, object]:
    """Run the printed command and return its receipt. spark-submit joins both streams, so it runs with --quiet."""
    archive = ("--archive", str(directory / "archive"), "--output", "json", "--quiet")
    printed = json.loads(sbpair(place, directory, "run", *archive, *words, "--print-submit"))
    command = shlex.join(printed["command"])
    for secret in place.environment.values():
        assert secret.rpartition("SharedAccessKey=")[2] not in command
    done = subprocess.run(
        ["bash", "-c", command], env=place.shell(directory), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return dict(json.loads(done.stdout))


def test_the_printed_command_runs_by_itself(tmp_path: Path) -> None:
    with world(queues=1) as place:
        place.strand_many(20)
        receipt = submitted(place, tmp_path, "--master", "local[2,4]")
        assert (receipt["acknowledged"], receipt["balanced"]) == (20, True)
        assert sorted(place.ids()) == sorted(place.sent)
        assert place.altered() == []


def test_workers_without_sbpair_import_it_from_the_package(tmp_path: Path) -> None:
    package = str(tmp_path / "sbpair.zip")
    with world(queues=1) as place, standalone(tmp_path / "cluster", outside(place.shell(tmp_path)), 1) as cluster:
        sbpair(place, tmp_path, "package", package)
        place.strand_many(20)
        python = bare_python(tmp_path / "bare")
        master = ("--master", cluster.url, "--shared-archive", "--package", package)
        receipt = submitted(place, tmp_path, *master, "--conf", f"spark.pyspark.python={python}")
        assert (receipt["acknowledged"], receipt["balanced"]) == (20, True)
        assert sorted(place.ids()) == sorted(place.sent)
        assert place.left() == 0
