"""A replay on another Spark: a zip to import from, and a command without secrets."""

import json
import shlex
import subprocess
import sys
import zipfile
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from sbpair.testing import Emulator
from tests.cli.test_replay import sbpair, sbpair_process
from tests.kit.command import environment, finished, start
from tests.kit.replay_archives import java_in
from tests.kit.waiting import PATIENCE_SECONDS

IMPORTS = "import sbpair.replay, sbpair.amqp_client.client, sbpair.azure.credentials, sbpair.move.mover"
"""Imports of a replay task, except pyarrow, which no zip can have."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "sbpair.zip"
    done = sbpair("package", str(path), "--output", "json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["schema"], printed["file"]) == ("sbpair/replay-package/1", str(path))
    assert printed["bytes"] == path.stat().st_size
    assert {"sbpair", "azure-core", "jinja2", "markupsafe"} <= printed["packed"].keys()
    assert {"aiohttp", "cryptography"} <= printed["native"].keys()
    assert not printed["packed"].keys() & printed["native"].keys()
    return path


def test_python_imports_all_a_task_needs_from_the_package(package: Path, tmp_path: Path) -> None:
    said = f"import sys; sys.path.insert(0, {str(package)!r}); {IMPORTS}; print(sbpair.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", said],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"{package}/sbpair/__init__.py"), done.stderr


def test_the_package_is_pure_without_secrets_and_reproducible(package: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.zip"
    assert sbpair("package", str(again)).returncode == 0
    assert again.read_bytes() == package.read_bytes()
    names = zipfile.ZipFile(package).namelist()
    assert [name for name in names if name.endswith((".so", ".pyd", ".pyc")) or ".." in name] == []


def test_a_file_that_is_not_a_package_is_refused(tmp_path: Path) -> None:
    java = java_in(tmp_path)
    (tmp_path / "text.zip").write_text("nonsense")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("other/__init__.py", "")
    for name in ("missing.zip", "text.zip", "other.zip"):
        done = sbpair("run", "--archive", str(tmp_path), "--package", str(tmp_path / name), home=java)
        assert done.returncode == 2
        assert "is not a zip of sbpair" in done.stderr


@pytest.mark.parametrize("words", [["run", "--run", "nightly"], ["resume", "r1", "--all"]])
def test_the_command_has_all_settings_and_no_secret(words: list[str], package: Path, tmp_path: Path) -> None:
    """Without a namespace, an attempt to connect would fail."""
    said = [*words, "--archive", "s3://bucket/a b", "--master", "spark://m:7077", "--package", str(package)]
    said += ["--conf", "spark.executor.memory=4g"]
    java = java_in(tmp_path)

    done = sbpair_process(*said, "--print-submit", home=java)
    document = json.loads(sbpair_process(*said, "--print-submit", "--output", "json", home=java).stdout)

    assert done.returncode == 0, done.stderr
    command = shlex.split(done.stdout)
    at = command.index("replay")
    assert command[at:] == ["replay", *said]
    program, job = Path(command[0]), Path(command[at - 1])
    assert (program.name, program.exists(), job.name, job.exists()) == ("spark-submit", True, "__main__.py", True)
    settings = dict(word.split("=", 1) for before, word in pairwise(command[:at]) if before == "--conf")
    assert settings["spark.speculation"] == "false"
    assert settings["spark.executor.memory"] == "4g"
    assert command[1:5] == ["--master", "spark://m:7077", "--py-files", str(package)]
    assert document["environment"] == ["SBPAIR_PRIMARY_CONNECTION_STRING", "SBPAIR_SECONDARY_CONNECTION_STRING"]
    assert document["command"][:at] == command[:at]
    assert "c2VjcmV0" not in done.stdout + done.stderr + json.dumps(document)
    assert "SBPAIR_PRIMARY_CONNECTION_STRING and SBPAIR_SECONDARY_CONNECTION_STRING" in done.stderr


async def test_the_file_that_spark_submit_runs_hides_no_other_package() -> None:
    """It is run by its path, and the management API of Azure's SDK is imported beside `sbpair.azure`."""
    async with Emulator() as emulator:
        program = ("-u", str(files("sbpair") / "__main__.py"))
        process = await start("provision", "--count", "1", env=environment(emulator), program=program)
        code, _, err = await finished(process)
    assert code == 0, err


@pytest.mark.parametrize(("kind", "warned"), [("tmpfs", True), ("ext4", False)])
def test_an_archive_in_memory_is_warned_of(
    kind: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpair.replay.archive.mount_at", lambda _path, _mounts: (kind, ""))
    for words in ([], ["--mode", "direct"]):
        done = sbpair("run", "--archive", str(tmp_path), *words, "--print-submit", home=java_in(tmp_path))
        assert done.returncode == 0
        assert ("is in memory and is lost" in done.stderr) == (warned and not words)
