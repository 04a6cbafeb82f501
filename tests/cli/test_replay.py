"""`sbpair replay` and its refusals. No test here starts Java.

Most run in this process: another one takes longer to start than to answer.
"""

import io
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import (
    DEDUPLICATED,
    DRAINED_FILE,
    EXPIRED,
    LEDGER,
    QUARANTINE,
    RECEIPT_FILE,
    REMOVED_FILE,
    SEGMENT,
)
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.run import ReplayMode, ReplayOptions, ReplayRun, save_run
from tests.kit import command
from tests.kit.terminal import PseudoTerminal

NAMESPACES = {
    "SBPAIR_PRIMARY_CONNECTION_STRING": "Endpoint=sb://127.0.0.1:9/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;"
    "UseDevelopmentEmulator=true",
    "SBPAIR_SECONDARY_CONNECTION_STRING": "Endpoint=sb://127.0.0.1:10/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;"
    "UseDevelopmentEmulator=true",
    "SBPAIR_PRIMARY_NAME": "contoso",
    "SBPAIR_SECONDARY_NAME": "contoso-dr",
}
QUEUE = "contoso/x-servicebus-transfer/0"
RUN = ReplayRun("r1", {"primary": "contoso", "secondary": "contoso-dr"}, (QUEUE,), 4, 1, ReplayOptions())


@pytest.fixture
def java(tmp_path: Path) -> Path:
    return java_in(tmp_path)


def java_in(directory: Path) -> Path:
    """Create a Java that only prints its version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    program.chmod(0o755)
    return directory


def environment(home: Path | None, changed: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_") and key != "JAVA_HOME"}
    java_home = {"JAVA_HOME": str(home)} if home else {"PATH": "/nowhere"}
    return {**kept, **NAMESPACES, **java_home, **changed}


def sbpair(*words: str, home: Path | None = None, **changed: str) -> subprocess.CompletedProcess[str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with patch.dict(os.environ, environment(home, changed), clear=True), redirect_stdout(out), redirect_stderr(err):
        code = command.run_here(("replay", *words))
    said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code, *said)


def sbpair_process(
    *words: str, home: Path | None = None, room: int | None = None, **changed: str
) -> subprocess.CompletedProcess[str]:
    """Run the tool in a process; `room` limits the bytes of its files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    limited = {} if room is None else {"preexec_fn": limit}
    return command.run("replay", *words, env=environment(home, changed), **limited)


@pytest.mark.parametrize("words", [["run"], ["resume", "r1"]])
def test_without_java_the_error_names_what_to_install(words: list[str], tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    done = sbpair_process(*words, "--archive", archive, SBPAIR_PRIMARY_CONNECTION_STRING="nonsense")

    assert done.returncode == 7
    assert "Java is not installed" in done.stderr
    assert "install Java 17, 21 or 25" in done.stderr
    assert not (tmp_path / "archive").exists()


def test_an_old_java_is_refused(java: Path) -> None:
    program = java / "bin" / "java"
    program.write_text(program.read_text().replace("17.0.1", "1.8.0_392"))

    done = sbpair("run", "--archive", str(java / "archive"), home=java)

    assert done.returncode == 7
    assert "is Java 8, too old for Spark" in done.stderr


def resume(java: Path, *words: str, **changed: Any) -> subprocess.CompletedProcess[str]:
    save_run(Archive(str(java / "archive"), "r1"), RUN)
    return sbpair("resume", "r1", "--archive", str(java / "archive"), *words, home=java, **changed)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--master spark://127.0.0.1:7077", 4, "--shared-archive"),
        ("--conf spark.speculation=true", 4, "speculation"),
        ("--where ' '", 2, "--where"),
    ],
)
def test_unsafe_or_contradictory_options_are_refused(java: Path, words: str, code: int, says: str) -> None:
    done = resume(java, *shlex.split(words))
    assert done.returncode == code
    assert says in done.stderr


def test_a_run_of_another_pair_is_refused(java: Path) -> None:
    done = resume(java, SBPAIR_PRIMARY_NAME="fabrikam")
    assert done.returncode == 4
    assert "run r1 belongs to contoso and contoso-dr, not to fabrikam" in done.stderr
    assert "c2VjcmV0" not in done.stdout + done.stderr


def put(archive: Archive) -> str:
    """Archive one message, and return its file."""
    archive.create()
    path = f"segments/{QUEUE}/one.parquet"
    row = ("one", 0, QUEUE, 7, 1_000, "m7", "orders", None, None, None, None, 4, None, None, None, b"body")
    arrays = [pa.array([value], field.type) for value, field in zip(row, SEGMENT, strict=True)]
    archive.write_table(path, pa.Table.from_arrays(arrays, schema=SEGMENT), RUN.shards)
    archive.write_json(DRAINED_FILE, {"messages": 1})
    return path


def end(archive: Archive, kind: str = LEDGER, shards: int = RUN.shards) -> None:
    entry = Entry((QUEUE, 7, 1_000, "m7"), "orders", None if kind == LEDGER else kind, b"body")
    Ledger(archive, shards, "a").write(kind, 1, [entry])
    archive.write_json(RECEIPT_FILE, {"balanced": True})


def cut_a_segment_short(archive: Archive) -> None:
    place = Path(archive.root, put(archive))
    place.write_bytes(place.read_bytes()[:-9])


def lose_a_segment(archive: Archive) -> None:
    archive.remove(put(archive))


def bring_in_a_ledger_of_another_shard_count(archive: Archive) -> None:
    put(archive)
    end(archive, shards=7)


def bring_in_another_runs_segment(archive: Archive) -> None:
    put(archive)
    other = Archive(archive.url, "r2")
    Path(other.root, put(other)).rename(Path(archive.root, f"segments/{QUEUE}/two.parquet"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut_a_segment_short, "one.parquet is broken"),
        (lose_a_segment, "holds 0 messages, and 1 were drained"),
        (bring_in_a_ledger_of_another_shard_count, "for 7 shards, and run r1 has 4"),
        (bring_in_another_runs_segment, "two.parquet belongs to run r2, not r1"),
    ],
)
def test_an_incomplete_archive_is_not_sent_proved_or_removed(
    java: Path, spoil: Callable[[Archive], None], said: str
) -> None:
    """Without a namespace, an attempt to send would fail with another error."""
    archive = Archive(str(java / "archive"), "r1")
    spoil(archive)
    resumed = resume(java)
    verified = sbpair("verify", "r1", "--archive", archive.url)
    removed = sbpair("gc", "r1", "--archive", archive.url, "--yes")
    for done in (resumed, verified):
        assert done.returncode == 4, done.stderr
        assert said in done.stderr
        assert "\n" in done.stderr.strip()  # what to do about it
    assert removed.returncode == 4
    assert archive.files("segments") or spoil is lose_a_segment


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda place: place.joinpath("report").write_text(""), "cannot be used"),
        (lambda place: place.joinpath("run.json").write_bytes(b"\0"), "run.json is broken"),
    ],
)
def test_an_unwritable_archive_is_reported(java: Path, spoil: Callable[[Path], object], said: str) -> None:
    save_run(Archive(str(java / "archive"), "r1"), RUN)
    spoil(java / "archive" / "r1")
    done = sbpair("resume", "r1", "--archive", str(java / "archive"), home=java)
    assert done.returncode in (4, 7)
    assert said in done.stderr


def test_a_full_archive_is_reported_before_anything_is_received(java: Path) -> None:
    save_run(Archive(str(java / "archive"), "r1"), RUN)
    done = sbpair_process("resume", "r1", "--archive", str(java / "archive"), home=java, room=0)
    assert done.returncode == 7
    assert "File too large" in done.stderr
    assert "has room" in done.stderr


# Removing.


def gc(archive: Archive, *words: str) -> tuple[int, str, str]:
    done = sbpair("gc", archive.run, "--archive", archive.url, *words)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def proved(tmp_path: Path) -> Archive:
    """Create a run whose only message was sent."""
    archive = Archive(str(tmp_path / "archive"), "r1")
    save_run(archive, RUN)
    put(archive)
    end(archive)
    return archive


def test_off_a_terminal_and_without_consent_nothing_is_removed(proved: Archive) -> None:
    code, out, err = gc(proved)
    confirm = f"sbpair replay gc r1 --yes --archive {proved.url}"
    assert (code, err) == (4, f"error: not confirmed: nothing was deleted\nhint: confirm with {confirm}\n")
    assert out.startswith("would delete 2 files of run r1, ")
    code, planned, err = gc(proved, "--dry-run")
    assert (code, planned) == (0, out)
    assert command.untimed(err) == f"nothing was deleted; delete them with {confirm}\n"
    assert len(proved.files("segments")) == 1


def test_with_yes_messages_are_removed_and_the_receipt_stays(proved: Archive) -> None:
    there = sum(proved.sizes("segments").values()) + sum(proved.sizes("ledger").values())

    code, out, _err = gc(proved, "--yes", "--output", "json")

    expected = {"schema": "sbpair/replay-gc/1", "run": "r1", "removed": True, "files": 2, "bytes": there, "kept": 0}
    assert (code, json.loads(out)) == (0, expected)
    left = {path.name for path in Path(proved.root).rglob("*") if path.is_file()}
    assert left == {"run.json", "drained.json", "receipt.json", "removed.json"}
    assert gc(proved, "--yes")[:2] == (0, "would delete 0 files of run r1, 0 B\n")
    for verb in ("verify", "resume"):
        done = sbpair(verb, "r1", "--archive", proved.url, home=java_in(Path(proved.url).parent))
        assert done.returncode == 4
        assert "were removed by sbpair replay gc" in done.stderr


@pytest.mark.parametrize(
    ("typed", "said", "left"),
    [(b"y\n", "deleted 2", 0), (b"N\n", "nothing was deleted", 1), (b"\n", "nothing was deleted", 1)],
)
def test_on_a_terminal_it_asks(proved: Archive, typed: bytes, said: str, left: int) -> None:
    words = [sys.executable, "-m", "sbpair", "replay", "gc", "r1", "--archive", proved.url]
    with PseudoTerminal() as terminal:
        process = subprocess.Popen(words, stdin=terminal.theirs, stdout=terminal.theirs, stderr=terminal.theirs)
        terminal.hand_over()
        assert "Delete 2 files of run r1" in terminal.read_until("[y/N] ")
        terminal.write(typed)
        assert process.wait(60) == (4 if left else 0)
        assert said in terminal.read()
    assert len(proved.files("segments")) == left


@pytest.mark.parametrize("place", ["ledger", "segments/sub"])
def test_no_file_is_removed_through_a_link_out_of_the_archive(proved: Archive, tmp_path: Path, place: str) -> None:
    """Whoever may write into an archive must not be able to remove other files of its owner."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    link = Path(proved.root, place, "link") if place == "ledger" else Path(proved.root, place)
    link.symlink_to(elsewhere)
    code, _, err = gc(proved, "--yes")
    assert (code, "is a symbolic link" in err) == (4, True)
    assert (elsewhere / "precious").exists()
    assert len(proved.files("segments")) == 1


def test_an_unfinished_run_is_not_removed(proved: Archive) -> None:
    proved.remove(RECEIPT_FILE)
    code, _out, err = gc(proved, "--yes")
    assert code == 4
    assert "has not ended: it may be running" in err
    proved.write_json(RECEIPT_FILE, {"balanced": False})
    assert "was not proved when it ended" in gc(proved, "--yes")[2]
    proved.write_json(RECEIPT_FILE, {"balanced": True})
    proved.delete("ledger")
    assert "has 1 unsent messages" in gc(proved, "--yes")[2]
    end(proved)
    end(proved, EXPIRED)
    assert "contradict each other" in gc(proved, "--yes")[2]
    assert len(proved.files("segments")) == 1


@pytest.mark.parametrize("kind", [EXPIRED, QUARANTINE])
def test_unsent_messages_stay_without_include_unsent(proved: Archive, kind: str) -> None:
    proved.delete("ledger")
    end(proved, kind)
    assert "; kept, since never sent: 1 message" in gc(proved, "--yes")[1]
    [kept] = [row for path in proved.files(kind) for row in proved.read_table(path).to_pylist()]
    assert (kept["message_id"], kept["message"]) == ("m7", b"body")
    assert gc(proved, "--yes", "--include-unsent")[0] == 0
    assert proved.files(kind) == []


def test_deduplicated_messages_need_include_unsent(proved: Archive) -> None:
    proved.delete("ledger")
    end(proved, DEDUPLICATED)
    code, _out, err = gc(proved, "--yes")
    assert code == 4
    assert "--include-unsent" in err
    assert len(proved.files("segments")) == 1
    assert gc(proved, "--yes", "--include-unsent")[0] == 0
    assert proved.files("segments") == []


def test_the_ledger_of_a_direct_run_is_removed_once_nothing_is_in_doubt(proved: Archive) -> None:
    save_run(proved, replace(RUN, options=ReplayOptions(mode=ReplayMode.DIRECT)))
    proved.delete("segments")
    proved.write_json(DRAINED_FILE, {"messages": 0})
    Ledger(proved, RUN.shards, "dead").record_held([Entry((QUEUE, 8, 1_000, "m8"), "orders")])
    assert "has 1 unsent messages" in gc(proved, "--yes")[2]
    proved.delete("held")
    assert gc(proved, "--yes")[0] == 0
    assert proved.files("ledger") == []


def test_an_interrupted_removal_is_finished(proved: Archive) -> None:
    proved.write_json(REMOVED_FILE, {"places": []})
    proved.delete("segments")
    assert gc(proved, "--yes")[0] == 0
    assert proved.files("ledger") == []


def test_verify_status_and_stop_need_neither_java_nor_a_pair(tmp_path: Path) -> None:
    save_run(Archive(str(tmp_path), "r1"), RUN)
    none = dict.fromkeys(NAMESPACES, "")

    verified = sbpair("verify", "r1", "--archive", str(tmp_path), "--output", "json", **none)
    stopped = sbpair("stop", "r1", "--archive", str(tmp_path), "-o", "json", **none)
    status = sbpair("status", "r1", "--archive", str(tmp_path), "--output", "json", **none)

    assert (verified.returncode, stopped.returncode, status.returncode) == (0, 0, 0)
    printed = json.loads(verified.stdout)
    assert (printed["schema"], printed["archived"], printed["balanced"]) == ("sbpair/replay/1", 0, True)
    assert json.loads(stopped.stdout) == {"schema": "sbpair/replay-stop/1", "run": "r1", "requested": True}
    assert json.loads(status.stdout)["stopped"] is True


def test_a_run_that_was_stopped_before_anything_was_archived_is_not_proved(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path), "r1")
    save_run(archive, RUN)
    archive.write("STOP", b"")
    archive.write_json(RECEIPT_FILE, {"balanced": True, "stopped": True, "unsent": 0})
    done = sbpair("status", "r", "--archive", archive.url)
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith("a"))
    assert (rows["run"], rows["phase"], rows["stopped"]) == ("r1", "drain", "yes")
    assert command.untimed(done.stderr) == f"continue with sbpair replay resume r1 --archive {archive.url}\n"


def test_a_finished_run_cannot_be_stopped(proved: Archive) -> None:
    done = sbpair("stop", "r1", "--archive", proved.url, "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["requested"]) == (4, False)
    assert done.stderr.splitlines() == [
        "error: run r1 has finished: nothing was stopped",
        f"hint: see its result with sbpair replay status r1 --archive {proved.url}",
    ]
    assert not proved.stop_requested()


def test_runs_of_an_archive_are_listed_and_found_by_the_start_of_an_id(proved: Archive) -> None:
    save_run(Archive(proved.url, "r2"), replace(RUN, id="r2", started_ms=0))
    Path(proved.url, "other").mkdir()
    done = sbpair("list", "--archive", proved.url, "-o", "json")
    runs = json.loads(done.stdout)["runs"]
    assert [(run["run"], run["phase"], run["stopped"]) for run in runs] == [
        ("r2", "drain", False),
        ("r1", "proved", False),
    ]
    assert runs[0]["started"] == "1970-01-01T00:00:00Z"
    assert sbpair("list", "--archive", proved.url).stdout.split()[:6] == [
        *("RUN", "STARTED", "MODE", "PHASE", "STOPPED"),
        "r2",
    ]
    ambiguous = sbpair("verify", "r", "--archive", proved.url)
    assert (ambiguous.returncode, ambiguous.stderr.splitlines()) == (
        2,
        ["error: 2 runs begin with 'r'", "hint: give more of the id: r2 or r1"],
    )
    Archive(proved.url, "r2").write("run.json", b"{}")
    broken = sbpair("list", "--archive", proved.url)
    assert (broken.returncode, "r1" in broken.stdout, "run r2 has schema None" in broken.stderr) == (0, True, True)


def test_an_archive_without_runs_is_reported(tmp_path: Path) -> None:
    done = sbpair("list", "--archive", str(tmp_path))
    assert (done.returncode, done.stdout, command.untimed(done.stderr)) == (0, "", f"no runs in {tmp_path}\n")


def test_messages_remaining_in_the_backlog_are_a_finding(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path), "r1")
    save_run(archive, RUN)
    archive.write_json(DRAINED_FILE, {"messages": 0, "remaining_in_queues": {RUN.queues[0]: 3}})

    done = sbpair("verify", "r1", "--archive", str(tmp_path))

    assert done.returncode == 3
    assert f"3 remain in {RUN.queues[0]}: locked by another receiver, or deferred" in done.stdout
