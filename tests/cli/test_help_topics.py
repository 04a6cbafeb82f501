"""`sbpair help`: the documents in the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sbpair.cli.commands import help as help_command
from sbpair.cli.options.common import Display
from sbpair.errors import UsageError
from tests.cli.test_golden import sbpair
from tests.kit.command import untimed


@contextmanager
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a runbook and two folders, of which one has a document."""
    (tmp_path / "RUNBOOK.md").write_text("# The runbook\n\nFirst step.\n")
    (tmp_path / "syphon").mkdir()
    (tmp_path / "syphon" / "README.md").write_text("\n## Moving messages\n")
    (tmp_path / "amqp").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(help_command, "files", lambda _name: tmp_path)
        yield


def test_topics_are_the_documents_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with package(tmp_path, monkeypatch):
        found = help_command.all_documents()
    assert list(found) == ["runbook", "syphon"]
    assert [help_command.title_of(each) for each in found.values()] == ["The runbook", "Moving messages"]


def test_a_topic_is_plain_markdown_off_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with package(tmp_path, monkeypatch):
        assert help_command.command(topic="runbook", **vars_of(Display())) == 0
        assert help_command.command(topic="syphon", **vars_of(Display())) == 0
    out, err = capsys.readouterr()
    assert out == "# The runbook\n\nFirst step.\n\n## Moving messages\n"
    assert untimed(err) == "for the options of the command see sbpair syphon --help\n"


def test_an_unknown_topic_names_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with package(tmp_path, monkeypatch), pytest.raises(UsageError) as caught:
        help_command.command(topic="nope", **vars_of(Display()))
    assert (caught.value.message, caught.value.hint) == ("'nope' is not a topic", "expected one of runbook, syphon")


def test_a_command_without_a_document_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with package(tmp_path, monkeypatch), pytest.raises(UsageError) as caught:
        help_command.command(topic="ping", **vars_of(Display()))
    assert caught.value.hint == "see sbpair ping --help"


def test_the_list_has_a_line_for_each_document() -> None:
    lines = sbpair("help").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["TOPIC", *help_command.all_documents()]


def vars_of(display: Display) -> dict[str, object]:
    return {name: getattr(display, name) for name in display.__dataclass_fields__}
