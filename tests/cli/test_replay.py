"""`sbpair replay` as its users call it, where it says no, and what it says then. Nothing here starts Java.

Most of it is called in this process: to start another one takes longer than all that it says.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sbpair.__main__ import run
from sbpair.replay.archive import Archive
from sbpair.replay.run import Options, Run, save

NAMESPACES = {
    "SBPAIR_PRIMARY_CONNECTION_STRING": "Endpoint=sb://127.0.0.1:9/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;"
    "UseDevelopmentEmulator=true",
    "SBPAIR_SECONDARY_CONNECTION_STRING": "Endpoint=sb://127.0.0.1:10/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;"
    "UseDevelopmentEmulator=true",
    "SBPAIR_PRIMARY_NAME": "contoso",
    "SBPAIR_SECONDARY_NAME": "contoso-dr",
}
RUN = Run(
    "r1", {"primary": "contoso", "secondary": "contoso-dr"}, ("contoso/x-servicebus-transfer/0",), 4, 1, Options()
)


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A Java that says its version, and nothing else."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    return tmp_path


def environment(home: Path | None, changed: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_") and key != "JAVA_HOME"}
    java_home = {"JAVA_HOME": str(home)} if home else {"PATH": "/nowhere"}
    return {**kept, **NAMESPACES, **java_home, **changed}


def sbpair(*words: str, home: Path | None = None, **changed: str) -> subprocess.CompletedProcess[str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    on_terminate = signal.getsignal(signal.SIGTERM)
    with patch.dict(os.environ, environment(home, changed), clear=True), redirect_stdout(out), redirect_stderr(err):
        try:
            code = run(("replay", *words))
        finally:
            signal.signal(signal.SIGTERM, on_terminate)
    said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code, *said)


def sbpair_process(*words: str, home: Path | None = None, **changed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "sbpair", "replay", *words],
        env=environment(home, changed),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("words", [["run"], ["resume", "r1"]])
def test_without_java_it_says_what_to_install_before_anything_else(words: list[str], tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    done = sbpair_process(*words, "--archive", archive, SBPAIR_PRIMARY_CONNECTION_STRING="nonsense")

    assert done.returncode == 7
    assert "there is no Java" in done.stderr
    assert "install Java 17, 21 or 25" in done.stderr
    assert not (tmp_path / "archive").exists()


def test_a_java_that_is_too_old_is_told_of(java: Path) -> None:
    program = java / "bin" / "java"
    program.write_text(program.read_text().replace("17.0.1", "1.8.0_392"))

    done = sbpair("run", "--archive", str(java / "archive"), home=java)

    assert done.returncode == 7
    assert "is Java 8, too old for Spark" in done.stderr


def resume(java: Path, *words: str, **changed: Any) -> subprocess.CompletedProcess[str]:
    save(Archive(str(java / "archive"), "r1"), RUN)
    return sbpair("resume", "r1", "--archive", str(java / "archive"), *words, home=java, **changed)


def test_a_directory_and_a_remote_master_are_refused(java: Path) -> None:
    done = resume(java, "--master", "spark://127.0.0.1:7077")
    assert done.returncode == 4
    assert "--shared-archive" in done.stderr


def test_speculation_is_refused(java: Path) -> None:
    done = resume(java, "--conf", "spark.speculation=true")
    assert done.returncode == 4
    assert "speculation" in done.stderr


@pytest.mark.parametrize("words", [["--conf", "nonsense"], ["--conf", "=3"], ["--parallelism", "0"]])
def test_options_that_make_no_sense_are_refused(java: Path, words: list[str]) -> None:
    done = resume(java, *words)
    assert done.returncode == 2
    assert words[0] in done.stderr


def test_a_run_of_another_pair_is_refused(java: Path) -> None:
    done = resume(java, SBPAIR_PRIMARY_NAME="fabrikam")
    assert done.returncode == 4
    assert "run r1 is of contoso and contoso-dr, and not of fabrikam" in done.stderr
    assert "c2VjcmV0" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [["verify"], ["status"], ["stop"]])
def test_a_run_that_is_not_there_is_told_of(words: list[str], tmp_path: Path) -> None:
    done = sbpair(*words, "r9", "--archive", str(tmp_path))
    assert done.returncode == 2
    assert "there is no run r9" in done.stderr


def test_verify_status_and_stop_need_neither_java_nor_a_pair(tmp_path: Path) -> None:
    save(Archive(str(tmp_path), "r1"), RUN)
    none = dict.fromkeys(NAMESPACES, "")

    verified = sbpair("verify", "r1", "--archive", str(tmp_path), "--output", "json", **none)
    stopped = sbpair("stop", "r1", "--archive", str(tmp_path), **none)
    status = sbpair("status", "r1", "--archive", str(tmp_path), "--output", "json", **none)

    assert (verified.returncode, stopped.returncode, status.returncode) == (0, 0, 0)
    told = json.loads(verified.stdout)
    assert (told["schema"], told["archived"], told["balanced"]) == ("sbpair/replay/1", 0, True)
    assert json.loads(status.stdout)["stopped"] is True


def test_a_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path), "r1")
    save(archive, RUN)
    archive.write("segments/contoso/x-servicebus-transfer/0/cut.parquet", b"PAR1")

    done = sbpair("verify", "r1", "--archive", str(tmp_path))

    assert done.returncode == 4
    assert "cut.parquet is broken" in done.stderr
