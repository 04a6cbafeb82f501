"""The hostile trial counts what is let in, keeps its figures, and ends with 1."""

import sys
from pathlib import Path

import pytest

from tests.faults.figures import Table
from tests.faults.hostile import __main__ as hostile
from tests.faults.hostile import pages


def test_a_trial_counts_what_a_door_lets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "HOSTS", ("localhost",))
    monkeypatch.setattr(pages, "ORIGINS", ())
    monkeypatch.setattr(pages.shutil, "which", lambda _: None)
    words = ["hostile", str(tmp_path), "--only", "pages", "--seconds", "0.01", "--scale", "0.01"]
    monkeypatch.setattr(sys, "argv", words)
    doors = len(("Atom: read", "Atom: list", "Resource Manager"))

    assert hostile.main() == 1
    found = Table(tmp_path / "figures.json").of("pages")
    assert (found.rounds, found.let_in >= doors, found.other, found.left) == (1, True, 0, 0), found.findings
    said = capsys.readouterr().out
    assert "not tried here: pages in a browser" in said
    assert said.splitlines()[-2].split()[:2] == ["pages", "1"]
    assert (tmp_path / "pages-0").exists()
