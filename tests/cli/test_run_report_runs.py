"""`sbpair runs report` of real runs: moves, a run that is still going on, and machines that lack something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sbpair
from sbpair.emulator.entities.description import QueueDescription
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import Figures, RunEntry
from sbpair.testing import EmulatorThread
from tests.kit import command
from tests.kit.command import Here, environment
from tests.kit.stranded import numbered, put
from tests.runs.states import PAIR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbpair.emulator.entities.queue import QueueEntity

ENVIRONMENT = {"SBPAIR_PRIMARY_NAMESPACE": "contoso.example", "SBPAIR_SECONDARY_NAMESPACE": "contoso-dr.example"}


class World:
    """Two queues of the primary, `source` with 20 messages; `strict` detects duplicates."""

    def __init__(self, thread: EmulatorThread, here: Here) -> None:
        self._here, self._environ = here, environment(thread.emulator, NO_COLOR="1")
        self.do, namespace = thread.do, thread.emulator.namespaces["contoso"]
        self.source: QueueEntity = self.do(lambda: namespace.create_queue("source"))
        strict = QueueDescription(requires_duplicate_detection=True)
        self.strict: QueueEntity = self.do(lambda: namespace.create_queue("strict", strict))
        for number in range(20):
            self.do(lambda number=number: put(self.source, numbered(number, "x")))

    def run(self, *words: str) -> tuple[int, str, str]:
        return self._here(*words, **self._environ)

    def report(self) -> tuple[str, str]:
        """Return the report of the latest run as Markdown and as HTML."""
        run = re.findall(r"^\d{6}-\d{6}-\w{4}", self.run("runs", "list")[1], re.MULTILINE)[0]
        found = []
        for form in ("--markdown", "--html"):
            code, out, err = self.run("runs", "report", run, form, "-")
            assert (code, err) == (0, "")
            found.append(out)
        return found[0], found[1]


@pytest.fixture
def world(here: Here, impatient: None) -> Iterator[World]:  # noqa: ARG001
    with EmulatorThread() as thread:
        yield World(thread, here)


def test_a_move_with_a_filter_names_it_and_what_it_skipped(world: World) -> None:
    assert world.run("move", "source", "strict", "--where", "number < 5")[0] == 0
    markdown, page = world.report()
    assert "**20 received = 5 sent + " in markdown
    section = markdown.partition("## Skipped messages\n")[2].partition("\n## ")[0]
    assert "The filter chose 5 of 20 messages: number < 5" in section
    assert "Skipped messages are in the source, unlocked, with the delivery counts that they had." in section
    assert "<h2>Skipped messages</h2>" in page
    assert "| `destination transport` | `tcp` |" in markdown
    assert "primary" not in markdown.partition("## Configuration")[2]


def test_a_redrive_names_each_message_that_stayed_and_why(world: World) -> None:
    assert world.run("move", "source", "strict", "--max", "3")[0] == 0
    for _ in range(3):
        (locked,) = world.do(lambda: world.strict.messages.receive(1))
        world.do(lambda locked=locked: world.strict.messages.dead_letter(locked.lock_token, "Poison", "no customer"))
    assert world.run("redrive", "strict")[0] == 3
    markdown, page = world.report()
    assert "> Some messages need attention: the exit code was 3." in markdown
    section = markdown.partition("## Skipped messages\n")[2].partition("\n## ")[0]
    assert (
        len(re.findall(r"\| `m\d+` \| `strict/\$deadletterqueue` \| `strict` \| `the destination detects", section))
        == 3
    )
    assert page.count('<td role="cell" data-label="reason">the destination detects duplicates') == 3


def test_a_running_run_is_reported_so_far(tmp_path: Path) -> None:
    with RunDatabase(tmp_path, PAIR) as state:
        entry = RunEntry(state, "syphon --watch")
        entry.sample(Figures({"received": 8, "sent": 5}, {"orders": 5}, None, None))
        env = command.environment(None, **ENVIRONMENT)
        done = command.run("runs", "report", entry.id, "--markdown", "-", "--state", str(tmp_path), env=env)
        entry.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# `sbpair syphon --watch`: running\n")
    assert "so far.\n" in done.stdout
    assert "> This run is still going on: all figures are those so far." in done.stdout


def test_without_the_extra_html_is_refused_and_markdown_is_not(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.lower().startswith("matplotlib"):
            (site / each.name).symlink_to(each)
    path = os.pathsep.join([str(Path(sbpair.__file__).parents[1]), str(site)])
    env = command.environment(None, **ENVIRONMENT) | {"PYTHONPATH": path}
    words = [sys.executable, "-S", "-m", "sbpair", "runs", "report", "2611", "--state", str(tmp_path / "state")]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], env=env, capture_output=True, text=True, check=False)

    done = run("--html", str(tmp_path / "r.html"))
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == "error: matplotlib is not installed\nhint: pip install 'sbpair[report]'\n"
    assert not (tmp_path / "r.html").exists()
    assert "matplotlib" not in run("--markdown", "-").stderr


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_refused_before_the_run_is_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    env = command.environment(None, **ENVIRONMENT)
    done = command.run("runs", "report", "2611", "--html", str(tmp_path / "r.html"), "--state", "/nowhere", env=env)
    assert (done.returncode, done.stdout) == (7, "")
    assert f"{tmp_path}/r.html cannot be written: Permission denied" in done.stderr
