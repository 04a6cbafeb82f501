"""`sbpair help`: the documents in the package."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from sbpair.cli.commands import documents
from sbpair.cli.options.common import Display
from sbpair.cli.render.screen import Screen
from tests.cli.test_golden import GOLDEN, sbpair
from tests.kit import command
from tests.kit.terminal import PseudoTerminal


@pytest.fixture
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a runbook and two folders, of which one has a document."""
    (tmp_path / "RUNBOOK.md").write_text("# The runbook\n\nFirst step.\n")
    (tmp_path / "syphon").mkdir()
    (tmp_path / "syphon" / "README.md").write_text("\n## Moving messages\n")
    (tmp_path / "amqp" / "codec").mkdir(parents=True)
    (tmp_path / "amqp" / "codec" / "README.md").write_text("# The codec\n")
    monkeypatch.setattr(documents, "files", lambda _name: tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("_package")
def test_topics_are_the_documents_in_the_package() -> None:
    found = documents.all_documents()
    assert list(found) == ["runbook", "amqp/codec", "syphon"]
    assert [documents.title_of(each) for each in found.values()] == ["The runbook", "The codec", "Moving messages"]


@pytest.mark.usefixtures("_package")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runbook", "# The runbook\n\nFirst step.\n"),
        ("syphon", (GOLDEN / "sbpair-syphon.txt").read_text() + "\n\n## Moving messages\n"),
    ],
)
def test_off_a_terminal_help_is_text_with_plain_markdown(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert documents.help_command(name=[name], screen=Screen(Display())) == 0
    assert capsys.readouterr() == (text, "")


@pytest.mark.parametrize("path", ["ping", "replay", "replay run", "partition topic"])
def test_a_command_below_another_has_its_help(path: str) -> None:
    assert sbpair("help", *path.split()).stdout.startswith(sbpair(*path.split(), "--help").stdout)


def test_the_version_is_a_command_too() -> None:
    lines = sbpair("version").stdout.splitlines()
    assert f"{lines[0]}\n" == sbpair("--version").stdout
    document = json.loads(sbpair("--version", "--output", "json").stdout)
    assert document == json.loads(sbpair("version", "-o", "json").stdout)
    assert [f"sbpair {document['version']}", f"Python {document['python']}"] == [lines[0], lines[2]]
    assert (document["commit"] or "unknown") in lines[1]


def test_the_list_has_a_line_for_each_document() -> None:
    lines = sbpair("help").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["TOPIC", *documents.all_documents()]


def test_help_is_one_document_of_json_on_request() -> None:
    topics = json.loads(sbpair("help", "-o", "json").stdout)["topics"]
    assert [each["topic"] for each in topics] == list(documents.all_documents())
    shown = json.loads(sbpair("help", "syphon", "-o", "json").stdout)
    assert (shown["name"], shown["text"]) == ("syphon", sbpair("help", "syphon").stdout)


@pytest.mark.parametrize(
    ("words", "pager", "paged"),
    [
        ((), "sed s/^/PAGED/", True),
        (("--no-pager",), "sed s/^/PAGED/", False),
        ((), "", False),
    ],
)
async def test_a_document_on_a_terminal_has_its_contents_and_a_pager(
    words: tuple[str, ...], pager: str, paged: bool
) -> None:
    with PseudoTerminal() as terminal:
        environ = command.environment(None, "LESS", PAGER=pager, TERM="xterm", NO_COLOR="1")
        streams = {"stdin": terminal.theirs, "stdout": terminal.theirs}
        process = await command.start("help", "filters", *words, env=environ, python=(), **streams)
        terminal.hand_over()
        seen = await asyncio.to_thread(terminal.read_to_the_end)
        await process.communicate()
    assert process.returncode == 0
    assert seen.count("PAGED") == (seen.count("\n") if paged else 0)
    document = documents.all_documents()["filters"].read_text()
    headings = [line.removeprefix("## ") for line in document.splitlines() if line.startswith("## ")]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert headings
    assert [each for each in headings if f"\u2022 {each}" not in plain] == []
