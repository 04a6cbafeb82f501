"""`sbpair help`: the documents in the package."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbpair.cli.commands import documents
from sbpair.cli.options.common import Display
from sbpair.cli.render.screen import Screen
from sbpair.errors import UsageError
from tests.cli.test_golden import GOLDEN, sbpair


@contextmanager
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a runbook and two folders, of which one has a document."""
    (tmp_path / "RUNBOOK.md").write_text("# The runbook\n\nFirst step.\n")
    (tmp_path / "syphon").mkdir()
    (tmp_path / "syphon" / "README.md").write_text("\n## Moving messages\n")
    (tmp_path / "amqp" / "codec").mkdir(parents=True)
    (tmp_path / "amqp" / "codec" / "README.md").write_text("# The codec\n")
    with monkeypatch.context() as patch:
        patch.setattr(documents, "files", lambda _name: tmp_path)
        yield


def test_topics_are_the_documents_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with package(tmp_path, monkeypatch):
        found = documents.all_documents()
    assert list(found) == ["runbook", "amqp/codec", "syphon"]
    assert [documents.title_of(each) for each in found.values()] == ["The runbook", "The codec", "Moving messages"]


def test_a_topic_is_plain_markdown_off_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with package(tmp_path, monkeypatch):
        assert documents.help_command(name=["runbook"], screen=Screen(Display())) == 0
    assert capsys.readouterr() == ("# The runbook\n\nFirst step.\n", "")


def test_the_help_of_a_command_is_followed_by_its_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with package(tmp_path, monkeypatch):
        assert documents.help_command(name=["syphon"], screen=Screen(Display())) == 0
    assert capsys.readouterr() == ((GOLDEN / "sbpair-syphon.txt").read_text() + "\n\n## Moving messages\n", "")


@pytest.mark.parametrize("path", ["ping", "replay", "replay run", "partition topic"])
def test_a_command_below_another_has_its_help(path: str) -> None:
    assert sbpair("help", *path.split()).stdout.startswith(sbpair(*path.split(), "--help").stdout)


def test_an_unknown_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with package(tmp_path, monkeypatch), pytest.raises(UsageError) as caught:
        documents.help_command(name=["replay", "nope"], screen=Screen(Display()))
    assert caught.value.message == "'replay nope' is neither a command nor a topic"


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
