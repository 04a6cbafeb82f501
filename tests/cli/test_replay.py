"""`sbpair replay` in processes and on terminals. No test here starts Java.

What it prints of an archive, and what it refuses, is in `sessions/replay.txt`.
"""

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair.backlog import Aliases
from sbpair.replay.archive import Archive
from tests.cli.test_refusals import CONFIGURED
from tests.kit import command, replay_archives
from tests.kit.command import captured
from tests.kit.printed import commands_in
from tests.kit.replay_archives import java_in
from tests.kit.terminal import PseudoTerminal
from tests.kit.waiting import PATIENCE_SECONDS
from tests.replay.tasks import run_tasks_here
from tests.replay.world import HOUR_TICKS, exported

NAMESPACES = {name: value for name, value in CONFIGURED.items() if name != "SBPAIR_CONFIG"}


def environment(home: Path | None, changed: dict[str, str]) -> dict[str, str]:
    java_home = {"JAVA_HOME": str(home)} if home else {"PATH": "/nowhere"}
    return command.environment(None, "JAVA_HOME", **NAMESPACES | java_home | changed)


def sbpair(*words: str, home: Path | None = None, **changed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(words, *captured(("replay", *words), environment(home, changed), clear=True))


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


@pytest.fixture
def proved(tmp_path: Path) -> Archive:
    """Create a run whose only message was sent."""
    archive = Archive(str(tmp_path / "archive"), "r1")
    replay_archives.change(archive, ("stored", "sent"))
    return archive


def test_a_full_archive_is_reported_before_anything_is_received(tmp_path: Path) -> None:
    archive = Archive(str(tmp_path / "archive"), "r1")
    replay_archives.change(archive, ())
    done = sbpair_process("resume", "r1", "--archive", archive.url, home=java_in(tmp_path), room=0)
    assert done.returncode == 7
    assert "File too large" in done.stderr
    assert "has room" in done.stderr


@pytest.mark.parametrize(
    ("typed", "said", "left"),
    [(b"y\n", "deleted 2", 0), (b"N\n", "nothing was deleted", 1)],
)
def test_on_a_terminal_it_asks(proved: Archive, typed: bytes, said: str, left: int) -> None:
    words = [sys.executable, "-m", "sbpair", "replay", "gc", "r1", "--archive", proved.url]
    with PseudoTerminal() as terminal:
        process = subprocess.Popen(words, stdin=terminal.theirs, stdout=terminal.theirs, stderr=terminal.theirs)
        terminal.hand_over()
        assert "Delete 2 files of run r1" in terminal.read_until("[y/N] ")
        terminal.write(typed)
        assert process.wait(PATIENCE_SECONDS) == (4 if left else 0)
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
    done = sbpair("gc", "r1", "--archive", proved.url, "--yes")
    assert (done.returncode, "is a symbolic link" in done.stderr) == (4, True)
    assert (elsewhere / "precious").exists()
    assert len(proved.files("segments")) == 1


@pytest.mark.parametrize(
    ("way", "code", "acknowledged", "unsent", "quarantined"),
    [(0, 0, 5, 0, 0), (1, 3, 4, 1, 0), (2, 3, 4, 0, 1), (3, 0, 5, 0, 0)],
    ids=["create them", "skip them", "quarantine theirs", "send theirs elsewhere"],
)
def test_each_way_on_from_a_missing_destination_does_what_it_says(
    way: int,
    code: int,
    acknowledged: int,
    unsent: int,
    quarantined: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_tasks_here(monkeypatch)
    with exported(monkeypatch, queues=2) as place:
        place.strand_many(4)
        place.strand(0, "homeless", Aliases("not-there", None, HOUR_TICKS))

        environ = command.environment(place.running.emulator, "JAVA", JAVA_HOME=str(java_in(tmp_path / "java")))

        def run(*words: str) -> tuple[int, str, str]:
            return captured(words, environ, clear=True)

        before, _, said = run("replay", "run", "--archive", str(tmp_path / "a b"), "--state", str(tmp_path / "state"))
        assert (before, place.ids()) == (3, []), said
        [hint] = [line for line in said.splitlines() if line.startswith("hint: ")]
        ways = [*commands_in(hint)]
        assert len(ways) == 4
        if way == 0:
            place.running.do(lambda: place.running.namespace.create_queue("not-there"))
        now, out, said = run(*shlex.split(ways[way].replace("=NAME", "=orders")), "-o", "json")
        receipt = json.loads(out)
        assert (now, receipt["acknowledged"], receipt["unsent"]) == (code, acknowledged, unsent), said
        assert receipt["quarantined"] == quarantined
        assert ("quarantined for good" in said) == bool(quarantined)
